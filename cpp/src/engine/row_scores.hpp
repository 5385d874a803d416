// Points of few dimensions: a row of scores and its maximum in one loop over a long tile. The matrix
// kernels have nothing to reuse there; the row stays in the L1 cache for the pass over its weights.
#pragma once

#include "engine/packed.hpp"

namespace qk {

inline constexpr Index row_scores_max_dim = 4;

template <class T>
struct RowScores {
    const T* x;  // features of the row
    const T* panels;
    const T* col_bias;
    Index n_panels;
    T distance_scale;
    T row_bias;
    // The late biases (qk/problem.hpp), where the problem has such.
    const T* col_reference = nullptr;
    const T* col_late = nullptr;
    T row_reference = T(0), row_late = T(0);
};

// Row r of the block against `padded` columns from `column` on.
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

// Writes the scores of the row, padding included (-inf by its bias), and returns the largest.
template <class T>
using RowScoresKernel = T (*)(const RowScores<T>&, T* out);

namespace detail {

template <class T, class Step, int D, bool RowBias, LateSides Sides>
T row_scores(const RowScores<T>& row, T* out) {
    using Tile = MicroTile<T>;
    Pack<T> x[D];
    for (int k = 0; k < D; ++k) x[k] = broadcast(row.x[k]);
    const Pack<T> scale = broadcast(row.distance_scale);
    const Pack<T> row_bias = broadcast(row.row_bias);
    const Pack<T> row_reference = broadcast(row.row_reference), row_late = broadcast(row.row_late);
    Pack<T> top[Tile::packs];
    for (auto& t : top) t = -infinity<Pack<T>>();
    for (Index p = 0; p < row.n_panels; ++p) {
#pragma GCC unroll 2
        for (int h = 0; h < Tile::packs; ++h) {
            const T* y = row.panels + p * D * Tile::cols + h * Tile::width;
            Pack<T> bias = load(row.col_bias + p * Tile::cols + h * Tile::width);
            if constexpr (RowBias) bias += row_bias;
            Pack<T> s = std::is_same_v<Step, DotStep> ? bias : Pack<T>{};
#pragma GCC unroll 4
            for (int k = 0; k < D; ++k) s = Step::step(s, x[k], load(y + k * Tile::cols));
            if constexpr (!std::is_same_v<Step, DotStep>) s = fma(s, scale, bias);
            if constexpr (Sides != LateSides::none) {
                const Index at = p * Tile::cols + h * Tile::width;
                const Pack<T> col_late = late_cols(Sides) ? load(row.col_late + at) : Pack<T>{};
                s = add_late_biases<Sides>(s, row_reference, load(row.col_reference + at), row_late,
                                           col_late);
            }
            top[h] = max(s, top[h]);
            store(out + p * Tile::cols + h * Tile::width, s);
        }
    }
    for (auto t : top) top[0] = max(t, top[0]);
    return reduce_max<T>(top[0]);
}

template <class T, class Step, bool RowBias, LateSides Sides>
RowScoresKernel<T> row_scores_of_dim(Index dim) {
    static_assert(row_scores_max_dim == 4);
    switch (dim) {
        case 1:
            return &row_scores<T, Step, 1, RowBias, Sides>;
        case 2:
            return &row_scores<T, Step, 2, RowBias, Sides>;
        case 3:
            return &row_scores<T, Step, 3, RowBias, Sides>;
        case 4:
            return &row_scores<T, Step, 4, RowBias, Sides>;
        default:
            return nullptr;
    }
}

}  // namespace detail

// Null when the problem is not of this kind: one sort of features, few of them, nothing dense.
template <class T>
RowScoresKernel<T> pick_row_scores(const Problem<T>& problem, const FeatureDims& dims, LateSides sides) {
    if (!problem.dense.empty() || !problem.masks.empty() || dims.anti_distance > 0) return nullptr;
    const auto pick = [&](auto step, Index dim) {
        using Step = decltype(step);
        // Few problems have late biases of rows alone: they share the kernel for both sides, whose columns are zeros then.
        if (sides == LateSides::references)
            return detail::row_scores_of_dim<T, Step, true, LateSides::references>(dim);
        if (problem.has_late_rows()) return detail::row_scores_of_dim<T, Step, true, LateSides::both>(dim);
        if (sides == LateSides::col_references && problem.row_bias.empty())
            return detail::row_scores_of_dim<T, Step, false, LateSides::col_references>(dim);
        if (problem.has_late_cols()) return detail::row_scores_of_dim<T, Step, true, LateSides::cols>(dim);
        return problem.row_bias.empty() ? detail::row_scores_of_dim<T, Step, false, LateSides::none>(dim)
                                        : detail::row_scores_of_dim<T, Step, true, LateSides::none>(dim);
    };
    if (dims.distance == 0) return pick(DotStep{}, dims.dot);
    if (dims.dot == 0) return pick(DistanceStep{}, dims.distance);
    return nullptr;
}

}  // namespace qk
