// Work on plain arrays for the callers of the engine: checks, projections, elementwise exp and log.
#pragma once

#include <vector>

#include "threads.hpp"

namespace qk {

// An n-dimensional array with any strides (in elements).
template <class T>
struct ArrayView {
    const T* data = nullptr;
    std::vector<Index> shape;
    std::vector<Index> strides;
};

// Which non-finite values an array holds, and the largest magnitude among the finite ones.
struct Scan {
    bool nan = false;
    bool plus_inf = false;
    bool minus_inf = false;
    double max_abs = 0;
};
template <class T>
Scan scan(const ArrayView<T>& array, const Run& run);

// out (n x r, row-major) = x (n x d) * w (d x r)
template <class T>
void project(Index n, Index d, Index r, MatrixView<T> x, MatrixView<T> w, T* out, const Run& run);

// out_i = sum_k a_ik b_ik, accumulated in double
template <class T>
void row_dots(Index n, Index d, MatrixView<T> a, MatrixView<T> b, T* out);

template <class T>
void exp_array(const T* x, Index n, T* out);
template <class T>
void exp2_nonpos_array(const T* x, Index n, T* out);
template <class T>
void weight_exp_array(const T* x, Index n, T* out);
template <class T>
void log_array(const T* x, Index n, T* out);
template <class T>
void sincos_array(const T* x, Index n, T* sine, T* cosine);

}  // namespace qk
