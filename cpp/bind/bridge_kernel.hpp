// The kernels of bridges, as objects that Python holds.
#pragma once

#include <memory>

#include "bind.hpp"
#include "qk/bridge_kernels.hpp"

namespace qk::bind {

// Only one thread at a time may use a kernel, and it is made and destroyed with the GIL held. It keeps its arrays
// alive.
class Kernel {
public:
    Kernel(Index rows, Index cols) : n_rows(rows), n_cols(cols) {}
    virtual ~Kernel() = default;
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

    // The sweep for a solve, which is kept for the next one. Adds to `options` what is known of the kernel.
    virtual Sweep& sweep(const std::vector<double>& mu, const std::vector<double>& nu, BridgeOptions& options,
                         const Run& run) = 0;
    // Whether the entries were stored in the last solve.
    virtual bool stored() const { return false; }
    // The signs of rows and of columns, if a factored kernel follows them; otherwise empty.
    virtual std::pair<std::vector<double>, std::vector<double>> signs() const { return {}; }

    const Index n_rows, n_cols;
};

void register_bridge_kernels(py::module_& m);

}  // namespace qk::bind
