// Derivatives of reductions of scores, and the transposes of these derivatives, tile by tile.
#pragma once

#include "engine.hpp"

namespace qk {

// Gradients of a function of the weights w_ij = exp(s_ij) with respect to the arrays from which the scores are made.
// All of them are products or sums of one matrix, G_ij = w_ij t_ij. t_ij = <u_i, v_j> + a_i + b_j is described as a
// problem too.
template <class T>
struct PullTask {
    Problem<T> scores;                                 // s
    Problem<T> cotangent;                              // t, of the same shape; finite
    MatrixView<T> col_points, row_points, row_values;  // Y: n_cols x n_y, X: n_rows x n_x, U: n_rows x n_u
    Index n_y = 0, n_x = 0, n_u = 0;

    // Results, row-major. Outputs that are null or have no columns are not computed.
    T* to_rows = nullptr;    // G Y,   n_rows x n_y
    T* to_cols = nullptr;    // G^T X, n_cols x n_x
    T* to_values = nullptr;  // w^T U, n_cols x n_u
    T* row_sums = nullptr;   // G 1
    T* col_sums = nullptr;   // G^T 1
};

// Blocks of entries that are kept. A tile in which no block is kept is skipped: its G and w count as 0.
struct KeptBlocks {
    const unsigned char* keep = nullptr;  // [row block][column block]; null: everything is kept
    Index rows = 1, cols = 1;             // the size of a block
    Index n_cols = 0;                     // the number of blocks side by side

    bool any(Index first_row, Index end_row, Index first_col, Index end_col) const {
        if (keep == nullptr) return true;
        for (Index i = first_row / rows; i * rows < end_row; ++i)
            for (Index j = first_col / cols; j * cols < end_col; ++j)
                if (keep[i * n_cols + j] != 0) return true;
        return false;
    }
};

// The order of the sums over rows depends only on run.n_threads.
template <class T>
Status pull(const PullTask<T>& task, const KeptBlocks& kept, const Run& run);

// The derivative of softmax attention (MTA-3).
//   y_i = sum_j p_ij v_j,   p_ij = exp(<R_i, C_j> + shift_j - normalizer_i)
// All arrays are row-major and contiguous.
template <class T>
struct AttentionFactors {
    const T* rows = nullptr;     // R, n_rows x rank
    const T* columns = nullptr;  // C, n_cols x rank
    const T* shift = nullptr;    // a shift of each column: its log weight, -inf for weight 0
    const T* normalizer = nullptr;
    const T* values = nullptr;   // v, n_cols x n_values
    const T* outputs = nullptr;  // y, n_rows x n_values
    Index n_rows = 0, n_cols = 0, rank = 0, n_values = 0;
};

// out_i = sum_j p_ij dv_j + sum_j p_ij (ds_ij - mean) v_j with ds_ij = <left_i, right_j>, both with `width` columns.
template <class T>
void attention_push(const AttentionFactors<T>& f, const T* left, const T* right, Index width,
                    const T* d_values, T* out, const Run& run);

// With cotangents u (n_rows x n_values) and G_ij = p_ij <u_i, v_j - y_i> it computes
//   to_rows = G C,  to_columns = G^T R,  to_values = P^T u
template <class T>
void attention_pull(const AttentionFactors<T>& f, const T* u, T* to_rows, T* to_columns, T* to_values,
                    const Run& run);

}  // namespace qk
