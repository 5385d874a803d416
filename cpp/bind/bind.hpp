// What the registering files share: arrays in, arrays out, the GIL released, Ctrl-C heard.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "qk/engine.hpp"

namespace py = pybind11;

void register_arrays(py::module_& m);
void register_engine(py::module_& m);
void register_bridge(py::module_& m);
void register_jacobian(py::module_& m);
void register_low_rank(py::module_& m);
void register_symmetric(py::module_& m);
void register_gaussian(py::module_& m);
void register_isb(py::module_& m);
void register_particles(py::module_& m);
void register_simplex(py::module_& m);

namespace qk::bind {

// Strides in elements. Python checks dtypes and that strides are whole elements.
template <class T>
Index element_stride(const py::array& a, py::ssize_t dim) {
    return static_cast<Index>(a.strides(dim)) / static_cast<Index>(sizeof(T));
}

inline bool is_float32(const py::array& a) { return a.dtype().num() == py::dtype::num_of<float>(); }

inline void raise_on_overflow(Status status, bool float32) {
    if (status != Status::overflow) return;
    const char* message =
        float32 ? "scores or result overflow float32: scale the inputs or beta down, or use float64"
                : "scores or result overflow float64: scale the inputs or beta down";
    PyErr_SetString(PyExc_OverflowError, message);
    throw py::error_already_set();
}

// Runs `work(run)` without the GIL; Python's signal handlers are run now and then meanwhile.
template <class Work>
auto without_gil(int n_threads, const Work& work) {
    StopToken stop([] {
        const py::gil_scoped_acquire gil;
        return PyErr_CheckSignals() != 0;
    });
    const Run run{n_threads, &stop};
    auto result = [&] {
        const py::gil_scoped_release release;
        return work(run);
    }();
    // The handler's exception (KeyboardInterrupt) is pending in this thread.
    if (stop.stopped()) throw py::error_already_set();
    return result;
}

}  // namespace qk::bind
