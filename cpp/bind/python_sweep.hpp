// A kernel of bridges that is given from Python: any object with
//   rows(g, mass) -> (lse, columns),  columns(f) -> lse,
// and any of the optional methods
//   curvature(x, mass) -> out,  scaled(factor) -> the object with all scores times a factor,
//   entries(first, end, least) -> (rows, columns, shares) of the entries >= least in a strip of rows.
// Vectors are NumPy arrays. A visit is one call, except that `entries` is called for one strip after the other.
// qk/sweep.hpp says what the methods mean.
#pragma once

#include <memory>

#include "bind.hpp"
#include "qk/sinkhorn.hpp"

namespace qk::bind {

// Keeps a reference to `kernel`. Call it with the GIL held; the sweep is then used and destroyed without. `epsilon` is
// that of the type in which the object computes.
std::unique_ptr<Sweep> sweep_of_python(const py::object& kernel, Index n_rows, Index n_cols, double epsilon);

void register_python_sweep(py::module_& m);

}  // namespace qk::bind
