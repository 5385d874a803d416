// A kernel of bridges that is given from Python: any object with
//   rows(g, mass) -> (lse, columns),  columns(f) -> lse,  curvature(x, mass) -> out (may be missing)
// on NumPy arrays, one call per visit. qk/sweep.hpp says what they mean.
#pragma once

#include <memory>

#include "bind.hpp"
#include "qk/sinkhorn.hpp"

namespace qk::bind {

// Keeps a reference to `kernel`: made and destroyed with the interpreter held, used without.
std::unique_ptr<Sweep> sweep_of_python(const py::object& kernel, Index n_rows, Index n_cols);

void register_python_sweep(py::module_& m);

}  // namespace qk::bind
