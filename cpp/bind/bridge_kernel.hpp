// The kernels of bridges as Python holds them.
#pragma once

#include <memory>

#include "bind.hpp"
#include "qk/bridge_kernels.hpp"

namespace qk::bind {

// A kernel is for one thread at a time, and made and destroyed with the interpreter held. It keeps what it reads.
class Kernel {
public:
    Kernel(Index rows, Index cols) : n_rows(rows), n_cols(cols) {}
    virtual ~Kernel() = default;
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

    // The sweep for a solve, kept for the next one. Adds to the options what is known of the kernel.
    virtual Sweep& sweep(const std::vector<double>& mu, const std::vector<double>& nu, BridgeOptions& options,
                         const Run& run) = 0;
    // Whether the entries were stored for the last solve.
    virtual bool stored() const { return false; }
    // Of the rows and of the columns, where a factored kernel follows them; else empty.
    virtual std::pair<std::vector<double>, std::vector<double>> signs() const { return {}; }

    const Index n_rows, n_cols;
};

void register_bridge_kernels(py::module_& m);

}  // namespace qk::bind
