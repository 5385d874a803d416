// The derivative of softmax attention and its transpose, tile by tile (MTA-3).
//   y_i = sum_j p_ij v_j,   p_ij = exp(<R_i, C_j> + shift_j - normalizer_i)
// All arrays are row-major and contiguous.
#pragma once

#include "threads.hpp"

namespace qk {

template <class T>
struct AttentionFactors {
    const T* rows = nullptr;     // R, n_rows x rank
    const T* columns = nullptr;  // C, n_cols x rank
    const T* shift = nullptr;    // of the columns: log weights, -inf for none
    const T* normalizer = nullptr;
    const T* values = nullptr;   // v, n_cols x n_values
    const T* outputs = nullptr;  // y, n_rows x n_values
    Index n_rows = 0, n_cols = 0, rank = 0, n_values = 0;
};

// out_i = sum_j p_ij dv_j + sum_j p_ij (ds_ij - mean) v_j with ds_ij = <left_i, right_j>, both of `width`.
template <class T>
void attention_push(const AttentionFactors<T>& f, const T* left, const T* right, Index width,
                    const T* d_values, T* out, const Run& run);

// For cotangents u (n_rows x n_values) and G_ij = p_ij <u_i, v_j - y_i>:
//   to_rows = G C,  to_columns = G^T R,  to_values = P^T u
// The order of the sums over rows depends on run.n_threads, and on nothing else.
template <class T>
void attention_pull(const AttentionFactors<T>& f, const T* u, T* to_rows, T* to_columns, T* to_values,
                    const Run& run);

}  // namespace qk
