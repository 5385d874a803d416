#include "engine/row_scores.hpp"

namespace qk {
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
    static_assert(tuning::row_scores_max_dim == 4);
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

template <class T>
RowScoresKernel<T> pick_row_scores(const Problem<T>& problem, const FeatureDims& dims, LateSides sides) {
    if (!problem.dense.empty() || !problem.masks.empty()) return nullptr;
    const auto pick = [&](auto step, Index dim) {
        using Step = decltype(step);
        // Late biases of rows alone are rare; they share the kernel for both sides, with zeros for the columns.
        if (sides == LateSides::references)
            return detail::row_scores_of_dim<T, Step, true, LateSides::references>(dim);
        if (problem.has_late_rows()) return detail::row_scores_of_dim<T, Step, true, LateSides::both>(dim);
        if (sides == LateSides::col_references && problem.row_bias.empty())
            return detail::row_scores_of_dim<T, Step, false, LateSides::col_references>(dim);
        if (problem.has_late_cols()) return detail::row_scores_of_dim<T, Step, true, LateSides::cols>(dim);
        return problem.row_bias.empty() ? detail::row_scores_of_dim<T, Step, false, LateSides::none>(dim)
                                        : detail::row_scores_of_dim<T, Step, true, LateSides::none>(dim);
    };
    RowScoresKernel<T> found = nullptr;
    each_step(FeatureSteps{}, [&]<class Step>(std::size_t number) {
        if constexpr (Step::sign > 0)
            if (dims.counts[number] == dims.total()) found = pick(Step{}, dims.total());
    });
    return found;
}

template RowScoresKernel<float> pick_row_scores(const Problem<float>&, const FeatureDims&, LateSides);
template RowScoresKernel<double> pick_row_scores(const Problem<double>&, const FeatureDims&, LateSides);

}  // namespace qk
