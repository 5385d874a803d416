// For points of few dimensions: a row of scores and its maximum in one loop over a long tile. There is nothing that the
// matrix kernels could reuse, and the row stays in the L1 cache until it becomes weights.
#pragma once

#include "engine/packed.hpp"

namespace qk {

template <class T>
struct RowScores {
    const T* x;  // features of the row
    const T* panels;
    const T* col_bias;
    Index n_panels;
    T distance_scale;
    T row_bias;
    // The late biases (qk/problem.hpp), if the problem has any.
    const T* col_reference = nullptr;
    const T* col_late = nullptr;
    T row_reference = T(0), row_late = T(0);
};

// The arguments for row r of the block and `padded` columns from `column` on.
template <class T>
QK_INLINE RowScores<T> row_scores_at(const PackedColumns<T>& columns, const RowBlock<T>& block, Index r,
                                     Index column, Index padded) {
    const Index d = columns.dims.total();
    const bool late = columns.has_late();
    return {block.features.data() + r * d,
            columns.panels.data() + column * d,
            columns.bias.data() + column,
            padded / MicroTile<T>::cols,
            columns.distance_scale,
            block.bias[r],
            late ? columns.reference.data() + column : nullptr,
            late ? columns.late.data() + column : nullptr,
            late ? block.reference[r] : T(0),
            late ? block.late[r] : T(0)};
}

// Writes the scores of the row, padding included (its bias is -inf), and returns the largest.
template <class T>
using RowScoresKernel = T (*)(const RowScores<T>&, T* out);

// Null unless the problem has features of one sort only, few of them, and nothing dense.
template <class T>
RowScoresKernel<T> pick_row_scores(const Problem<T>& problem, const FeatureDims& dims, LateSides sides);

}  // namespace qk
