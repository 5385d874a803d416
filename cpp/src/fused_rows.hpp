// Points of few dimensions: score, exp and sums of a row in one loop, the scores never leave registers.
// Here the exp is the cost, so everything around it is trimmed: no tile in memory, and no pass for the
// maximum. Any shift within `slack` of the maximum serves as well as the maximum itself (the sums stay
// far from overflow), so a row keeps the shift it has and redoes a tile only when that no longer holds.
#pragma once

#include "packed.hpp"
#include "qk/softmax_state.hpp"
#include "row_kernels.hpp"

namespace qk {

inline constexpr Index fused_max_dim = 4;
inline constexpr double fused_slack =
    4.0;  // weights stay below e^4, so values within a factor 55 of overflow still work

template <class T>
struct FusedTile {
    const T* x;  // features of the row
    const T* panels;
    const T* col_bias;
    const T* values;
    Index ld_values;
    Index n_panels;
    T distance_scale;
    T row_bias;
};

namespace detail {

template <class T, class Step, int D>
QK_INLINE Pack<T> fused_score(const Pack<T> (&x)[D], const T* y, Pack<T> scale, Pack<T> bias) {
    if constexpr (std::is_same_v<Step, DotStep>) {
        Pack<T> s = bias;
#pragma GCC unroll 4
        for (int k = 0; k < D; ++k) s = Step::step(s, x[k], load(y + k * MicroTile<T>::cols));
        return s;
    } else {
        Pack<T> s = {};
#pragma GCC unroll 4
        for (int k = 0; k < D; ++k) s = Step::step(s, x[k], load(y + k * MicroTile<T>::cols));
        return fma(s, scale, bias);
    }
}

template <class T, class Step, int D>
T fused_max(const FusedTile<T>& t) {
    using Tile = MicroTile<T>;
    Pack<T> x[D];
    for (int k = 0; k < D; ++k) x[k] = broadcast(t.x[k]);
    const Pack<T> scale = broadcast(t.distance_scale);
    Pack<T> top = -infinity<Pack<T>>();
    for (Index p = 0; p < t.n_panels; ++p)
        for (int h = 0; h < Tile::packs; ++h) {
            const T* y = t.panels + p * D * Tile::cols + h * Tile::width;
            const Pack<T> bias = load(t.col_bias + p * Tile::cols + h * Tile::width) + t.row_bias;
            top = max(fused_score<T, Step, D>(x, y, scale, bias), top);
        }
    return reduce_max<T>(top);
}

// Sums with the given shift, and the largest score seen.
template <class T, class Step, int D, int K, bool Tilt>
RowSums<T> fused_sums(const FusedTile<T>& t, T shift, T& largest) {
    using Tile = MicroTile<T>;
    Pack<T> x[D];
    for (int k = 0; k < D; ++k) x[k] = broadcast(t.x[k]);
    const Pack<T> scale = broadcast(t.distance_scale);
    // The shift joins the bias: scores come out shifted, without a subtraction of their own.
    const Pack<T> row = broadcast(t.row_bias - shift);
    const Pack<T> lowest = broadcast(std::numeric_limits<T>::lowest());
    Pack<T> top[2] = {-infinity<Pack<T>>(), -infinity<Pack<T>>()};
    Pack<T> sum[2] = {};
    Pack<T> tilt[2] = {};
    Pack<T> prod[K > 0 ? K : 1][2] = {};
    for (Index p = 0; p < t.n_panels; ++p) {
        const Index at = p * Tile::cols;
        const T* y = t.panels + p * D * Tile::cols;
        Pack<T> w[2] = {
            fused_score<T, Step, D>(x, y, scale, load(t.col_bias + at) + row),
            fused_score<T, Step, D>(x, y + Tile::width, scale, load(t.col_bias + at + Tile::width) + row)};
        const Pack<T> s[2] = {w[0], w[1]};
        exp_nonpos_each<T, 2>(w);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            top[h] = max(s[h], top[h]);
            sum[h] += w[h];
            if constexpr (Tilt) tilt[h] = fma(w[h], max(s[h], lowest), tilt[h]);
#pragma GCC unroll 4
            for (int k = 0; k < K; ++k)
                prod[k][h] = fma(w[h], load(t.values + k * t.ld_values + at + h * Tile::width), prod[k][h]);
        }
    }
    largest = reduce_max<T>(max(top[0], top[1])) + shift;
    RowSums<T> out;
    out.sum = reduce_add<T>(sum[0] + sum[1]);
    if constexpr (Tilt) out.tilt = reduce_add<T>(tilt[0] + tilt[1]);
    for (int k = 0; k < K; ++k) out.products[k] = reduce_add<T>(prod[k][0] + prod[k][1]);
    return out;
}

}  // namespace detail

// The two loops for one kind of score, dimension and number of right-hand sides.
template <class T>
struct FusedKernel {
    T (*max)(const FusedTile<T>&) = nullptr;
    RowSums<T> (*sums)(const FusedTile<T>&, T, T&) = nullptr;

    explicit operator bool() const { return sums != nullptr; }
};

namespace detail {

template <class T, class Step, int D>
FusedKernel<T> fused_with_values(Index n_values, bool tilt) {
    const auto max = &fused_max<T, Step, D>;
    if (tilt) return {max, &fused_sums<T, Step, D, 0, true>};
    switch (n_values) {
        case 0:
            return {max, &fused_sums<T, Step, D, 0, false>};
        case 1:
            return {max, &fused_sums<T, Step, D, 1, false>};
        case 2:
            return {max, &fused_sums<T, Step, D, 2, false>};
        case 3:
            return {max, &fused_sums<T, Step, D, 3, false>};
        case 4:
            return {max, &fused_sums<T, Step, D, 4, false>};
        default:
            return {};
    }
}

template <class T, class Step>
FusedKernel<T> fused_with_dim(Index dim, Index n_values, bool tilt) {
    switch (dim) {
        case 1:
            return fused_with_values<T, Step, 1>(n_values, tilt);
        case 2:
            return fused_with_values<T, Step, 2>(n_values, tilt);
        case 3:
            return fused_with_values<T, Step, 3>(n_values, tilt);
        case 4:
            return fused_with_values<T, Step, 4>(n_values, tilt);
        default:
            return {};
    }
}

}  // namespace detail

// Empty when the problem is not of the fused kind: one sort of features, few of them, nothing dense.
template <class T>
FusedKernel<T> pick_fused(const Problem<T>& problem, const FeatureDims& dims, Index n_values, bool tilt) {
    if (!problem.dense.empty() || !problem.masks.empty() || dims.anti_distance > 0) return {};
    if (dims.distance == 0) return detail::fused_with_dim<T, DotStep>(dims.dot, n_values, tilt);
    if (dims.dot == 0) return detail::fused_with_dim<T, DistanceStep>(dims.distance, n_values, tilt);
    return {};
}

}  // namespace qk
