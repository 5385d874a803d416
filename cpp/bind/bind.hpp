// What the registering files share: conversion of arrays, release of the GIL, and Ctrl-C.
#pragma once

#include <vector>

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
void register_particles(py::module_& m);
void register_simplex(py::module_& m);

namespace qk::bind {

// Strides in elements. Python checks dtypes and that strides are whole elements.
template <class T>
Index element_stride(const py::array& a, py::ssize_t dim) {
    return static_cast<Index>(a.strides(dim)) / static_cast<Index>(sizeof(T));
}

// C-contiguous float64, converted if need be.
using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

template <class T>
const T* data_of(const py::array& a) {
    return static_cast<const T*>(a.data());
}

template <class A>
auto to_vector(const A& a) {
    return std::vector<std::remove_cv_t<std::remove_pointer_t<decltype(a.data())>>>(a.data(),
                                                                                    a.data() + a.size());
}

// The same in pieces, for use inside without_gil, because copying a very long array takes longer than Ctrl-C may wait.
// If the run was stopped, the result is too short and must not be used.
inline std::vector<double> to_vector(const double* data, Index n, const Run& run) {
    std::vector<double> out;
    out.reserve(static_cast<std::size_t>(n));
    ask_for_large_pages(out.data(), static_cast<std::size_t>(n) * sizeof(double));
    in_pieces(run, 0, n, [&](Index from, Index to) { out.insert(out.end(), data + from, data + to); });
    return out;
}

inline py::array_t<double> to_array(const std::vector<double>& v) {
    return py::array_t<double>(static_cast<py::ssize_t>(v.size()), v.data());
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

// Gives one RuntimeWarning after the system has refused to start threads.
inline void warn_of_thread_shortage() {
    if (!take_thread_shortage_notice()) return;
    const ThreadShortage found = thread_shortage();
    if (PyErr_WarnFormat(
            PyExc_RuntimeWarning, 1,
            "n_threads: wanted %d threads, but the system started only %d (a limit of processes or "
            "of memory: see ulimit -u, ulimit -v and the limits of the container); the results are the "
            "same, and take longer; raise the limit, or set a smaller number with "
            "qk.set_num_threads",
            found.wanted, found.had) != 0)
        throw py::error_already_set();
}

// Runs `work(run)` without the GIL; from time to time Python's signal handlers are run.
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
    warn_of_thread_shortage();
    return result;
}

}  // namespace qk::bind
