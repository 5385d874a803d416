// The types that host and kernels exchange: plain structs of device pointers, sizes and strides. Including this needs
// no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "qk/functors.hpp"

namespace qk::cuda {

using Index = std::int64_t;
using Stream = void*;  // a cudaStream_t; null is the default stream

// Inputs of 16 bits. The structs hold the bits only; arithmetic is done in float.
struct Half {
    std::uint16_t bits;
};
struct BFloat16 {
    std::uint16_t bits;
};

enum class Status : int {
    ok = 0,
    bad_argument = 1,     // a null pointer, a negative size, too many terms: `what` names it
    too_little_room = 2,  // the workspace is smaller than workspace_bytes() said
    too_large = 3,        // a size beyond what a launch can hold
    launch_failed = 4,    // the CUDA runtime refused a launch: `code` is its error
    no_device = 5,        // no driver or no device
    out_of_memory = 6,
};

// What every function here returns. Launches are asynchronous, so an error inside a kernel shows at a later call.
struct [[nodiscard]] Outcome {
    Status status = Status::ok;
    int code = 0;  // of the CUDA runtime
    const char* what = "";

    bool ok() const { return status == Status::ok; }
};

template <class T>
struct Matrix {
    const T* data = nullptr;
    Index row_stride = 0;
    Index col_stride = 1;
};

constexpr int max_terms = 4;
constexpr int max_biases = max_terms + 2;  // two more, for potentials

// dot:      scale * <x_i, y_j>
// distance: -scale * |x_i - y_j|^2 from the differences; a negative scale gives the negative directions of an
//           indefinite metric.
// l1:       -scale * sum_k |x_ik - y_jk|, likewise.
using qk::FeatureKind;

template <class In, class T>
struct FeatureTerm {
    FeatureKind kind = FeatureKind::dot;
    Matrix<In> rows;  // n_rows x dim
    Matrix<In> cols;  // n_cols x dim
    Index dim = 0;
    T scale = T(1);
};

template <class In, class T>
struct DenseTerm {
    Matrix<In> values;  // n_rows x n_cols
    T scale = T(1);
};

// The normal form of qk::Problem on the device:
//   s_ij = sum of feature terms + sum of dense terms + sum r_i + sum c_j,   -inf where a mask says so.
// Key padding is a mask with row_stride 0, or a column bias of -inf.
template <class T, class In = T>
struct Scores {
    Index n_rows = 0;
    Index n_cols = 0;
    int n_features = 0, n_dense = 0, n_row_bias = 0, n_col_bias = 0, n_masks = 0;
    FeatureTerm<In, T> features[max_terms];
    DenseTerm<In, T> dense[max_terms];
    const T* row_bias[max_biases] = {};
    const T* col_bias[max_biases] = {};
    DenseMask masks[max_terms];
    Band band;
};

// The same scores with rows and columns exchanged.
template <class T, class In>
Scores<T, In> transposed(const Scores<T, In>& s) {
    Scores<T, In> out = s;
    out.n_rows = s.n_cols;
    out.n_cols = s.n_rows;
    out.n_row_bias = s.n_col_bias;
    out.n_col_bias = s.n_row_bias;
    for (int t = 0; t < max_terms; ++t) {
        out.features[t].rows = s.features[t].cols;
        out.features[t].cols = s.features[t].rows;
        out.dense[t].values.row_stride = s.dense[t].values.col_stride;
        out.dense[t].values.col_stride = s.dense[t].values.row_stride;
        out.masks[t].row_stride = s.masks[t].col_stride;
        out.masks[t].col_stride = s.masks[t].row_stride;
    }
    for (int t = 0; t < max_biases; ++t) {
        out.row_bias[t] = s.col_bias[t];
        out.col_bias[t] = s.row_bias[t];
    }
    out.band.lo = -s.band.hi;
    out.band.hi = -s.band.lo;
    return out;
}

}  // namespace qk::cuda
