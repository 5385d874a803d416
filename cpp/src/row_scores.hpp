// Points of few dimensions: a row of scores and its maximum in one loop over a long tile. The matrix
// kernels have nothing to reuse there; the row stays in the L1 cache for the pass over its weights.
#pragma once

#include "packed.hpp"

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
};

// Writes the scores of the row, padding included (-inf by its bias), and returns the largest.
template <class T>
using RowScoresKernel = T (*)(const RowScores<T>&, T* out);

namespace detail {

template <class T, class Step, int D, bool RowBias>
T row_scores(const RowScores<T>& row, T* out) {
    using Tile = MicroTile<T>;
    Pack<T> x[D];
    for (int k = 0; k < D; ++k) x[k] = broadcast(row.x[k]);
    const Pack<T> scale = broadcast(row.distance_scale);
    const Pack<T> row_bias = broadcast(row.row_bias);
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
            top[h] = max(s, top[h]);
            store(out + p * Tile::cols + h * Tile::width, s);
        }
    }
    for (auto t : top) top[0] = max(t, top[0]);
    return reduce_max<T>(top[0]);
}

template <class T, class Step, bool RowBias>
RowScoresKernel<T> row_scores_of_dim(Index dim) {
    static_assert(row_scores_max_dim == 4);
    switch (dim) {
        case 1:
            return &row_scores<T, Step, 1, RowBias>;
        case 2:
            return &row_scores<T, Step, 2, RowBias>;
        case 3:
            return &row_scores<T, Step, 3, RowBias>;
        case 4:
            return &row_scores<T, Step, 4, RowBias>;
        default:
            return nullptr;
    }
}

}  // namespace detail

// Null when the problem is not of this kind: one sort of features, few of them, nothing dense.
template <class T>
RowScoresKernel<T> pick_row_scores(const Problem<T>& problem, const FeatureDims& dims) {
    if (!problem.dense.empty() || !problem.masks.empty() || dims.anti_distance > 0) return nullptr;
    const auto pick = [&](auto step, Index dim) {
        using Step = decltype(step);
        return problem.row_bias.empty() ? detail::row_scores_of_dim<T, Step, false>(dim)
                                        : detail::row_scores_of_dim<T, Step, true>(dim);
    };
    if (dims.distance == 0) return pick(DotStep{}, dims.dot);
    if (dims.dot == 0) return pick(DistanceStep{}, dims.distance);
    return nullptr;
}

}  // namespace qk
