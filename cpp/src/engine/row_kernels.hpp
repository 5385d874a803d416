// Kernels on one row of a score tile: its maximum, and its weights with the sums over them.
// Tiles are padded with -inf, so n is always a multiple of two packs.
#pragma once

#include "qk/functors.hpp"
#include "qk/simd.hpp"
#include "qk/vector_math.hpp"
#include "qk/views.hpp"

namespace qk {

template <class T>
QK_INLINE T row_max(const T* s, Index n) {
    constexpr int width = SimdTraits<T>::width;
    Pack<T> m0 = load(s);
    Pack<T> m1 = load(s + width);
    for (Index j = 2 * width; j < n; j += 2 * width) {
        m0 = max(load(s + j), m0);
        m1 = max(load(s + j + width), m1);
    }
    return reduce_max<T>(max(m0, m1));
}

// Which sides have biases that are added after a score has been rounded (Stage, in qk/problem.hpp).
// Products with transposed operators have references of columns and nothing else; couplings have their potentials as
// references of both sides.
enum class LateSides { none, rows, cols, both, col_references, references };

// The kinds of biases that a side has.
constexpr bool late_rows(LateSides s) { return s == LateSides::rows || s == LateSides::both; }
constexpr bool late_cols(LateSides s) { return s == LateSides::cols || s == LateSides::both; }
constexpr bool row_references(LateSides s) { return late_rows(s) || s == LateSides::references; }
constexpr bool col_references(LateSides s) {
    return late_cols(s) || s == LateSides::references || s == LateSides::col_references;
}

// Adds the late biases of row and column. Maxima come first, because subtracting them is exact where the weight
// matters. A side without such biases counts as one of zeros, so that transposed scores have the same bits.
template <LateSides Sides, class V, class Row>
QK_INLINE V add_late_biases(V s, Row row_reference, V col_reference, Row row_late, V col_late) {
    if constexpr (Sides == LateSides::none) return s;
    if constexpr (Sides == LateSides::rows) return (s + row_reference) + row_late;
    if constexpr (Sides == LateSides::cols) return (s + col_reference) + col_late;
    if constexpr (Sides == LateSides::col_references) return s + col_reference;
    if constexpr (Sides == LateSides::references) return (s + row_reference) + col_reference;
    return ((s + row_reference) + col_reference) + (row_late + col_late);
}

// What a pass over one row can compute besides the sum of weights.
template <class T>
struct RowSums {
    static constexpr int max_values = 4;
    T sum = T(0);
    T tilt = T(0);                // sum w (s - shift)
    T products[max_values] = {};  // sum w v
};

// Prefetches as many bytes as two packs have.
template <class T>
QK_INLINE void fetch(const T* at) {
    constexpr Index line = 64 / static_cast<Index>(sizeof(T));
#pragma GCC unroll 2
    for (Index k = 0; k < 2 * SimdTraits<T>::width; k += line) __builtin_prefetch(at + k);
}

// The weights of one row. K right-hand sides (values[k * ldv + j]) are summed in registers; with Store
// the weights are written to `out`, which may be s. `ahead`: n entries to prefetch, or null.
template <class Weigh, class T, int K, bool Tilt, bool Store>
QK_INLINE RowSums<T> weigh_row(const T* s, Index n, const Weigh& weigh, T shift, const T* values, Index ldv,
                               T* out, const T* ahead) {
    constexpr int width = SimdTraits<T>::width;
    Pack<T> sum[2] = {};
    Pack<T> tilt[2] = {};
    Pack<T> prod[K > 0 ? K : 1][2] = {};
    const Pack<T> lowest = broadcast(std::numeric_limits<T>::lowest());
    for (Index j = 0; j < n; j += 2 * width) {
        const Pack<T> score[2] = {load(s + j), load(s + j + width)};
        Pack<T> w[2] = {score[0], score[1]};
        if (ahead != nullptr) fetch(ahead + j);
        weigh(w);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            const Index at = j + h * width;
            sum[h] += w[h];
            // 0 * -inf would be NaN, but 0 * lowest is 0.
            if constexpr (Tilt) tilt[h] = fma(w[h], max(score[h] - shift, lowest), tilt[h]);
#pragma GCC unroll 4
            for (int k = 0; k < K; ++k) prod[k][h] = fma(w[h], load(values + k * ldv + at), prod[k][h]);
            if constexpr (Store) store(out + at, w[h]);
        }
    }
    RowSums<T> sums;
    sums.sum = reduce_add<T>(sum[0] + sum[1]);
    if constexpr (Tilt) sums.tilt = reduce_add<T>(tilt[0] + tilt[1]);
    for (int k = 0; k < K; ++k) sums.products[k] = reduce_add<T>(prod[k][0] + prod[k][1]);
    return sums;
}

// Functions that turn two packs of scores into weights.
template <class T>
struct ShiftedExp {
    Pack<T> shift;
    QK_INLINE void operator()(Pack<T> (&s)[2]) const {
        s[0] = s[0] - shift;
        s[1] = s[1] - shift;
        weight_exp_each<T, 2>(s);
    }
};
template <class Functor>
struct Unshifted {
    template <class V>
    QK_INLINE void operator()(V (&s)[2]) const {
        s[0] = Functor::of(s[0]);
        s[1] = Functor::of(s[1]);
    }
};

}  // namespace qk
