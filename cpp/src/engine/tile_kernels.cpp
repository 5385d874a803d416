#include "engine/tile_kernels.hpp"

#include <utility>

namespace qk {
namespace detail {

template <class Step, class T, int R>
QK_INLINE void accumulate(Pack<T> (&acc)[R][MicroTile<T>::packs], const T* x, Index ldx, const T* y,
                          Index count) {
    using Tile = MicroTile<T>;
    for (Index k = 0; k < count; ++k) {
        const Pack<T> y0 = load(y + k * Tile::cols);
        const Pack<T> y1 = load(y + k * Tile::cols + Tile::width);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const Pack<T> xr = broadcast(x[r * ldx + k]);
            acc[r][0] = Step::step(acc[r][0], xr, y0);
            acc[r][1] = Step::step(acc[r][1], xr, y1);
        }
    }
}

// Adds the features of one step of differences, which start at `at` in the packed order, and moves `at` to their end.
template <class Step, class T, int R>
QK_INLINE void accumulate_step(Pack<T> (&acc)[R][MicroTile<T>::packs], const T* x, Index ldx, const T* panel,
                               Index count, Index& at) {
    if constexpr (Step::kind != FeatureKind::dot) {
        accumulate<Step, T, R>(acc, x + at, ldx, panel + at * MicroTile<T>::cols, count);
        at += count;
    }
}

// Adds the features of all steps of differences, and returns their number.
template <class T, int R, class... Step>
QK_INLINE Index accumulate_differences(Steps<Step...>, Pack<T> (&acc)[R][MicroTile<T>::packs], const T* x,
                                       Index ldx, const T* panel, const FeatureDims& dims) {
    Index at = 0;
    const Index* count = dims.counts.data();
    (accumulate_step<Step, T, R>(acc, x, ldx, panel, *count++, at), ...);
    return at;
}

// Scores of R rows against one panel of columns.
template <class T, int R>
void score_micro(const T* x, Index ldx, const T* panel, const FeatureDims& dims, T distance_scale,
                 const T* row_bias, const T* col_bias, T* out, Index ldout) {
    using Tile = MicroTile<T>;
    Pack<T> acc[R][Tile::packs];
    const Pack<T> c0 = load(col_bias);
    const Pack<T> c1 = load(col_bias + Tile::width);
    Index before = 0;
    if (dims.total() > dims.dot()) {
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = Pack<T>{};
        before = accumulate_differences<T, R>(FeatureSteps{}, acc, x, ldx, panel, dims);
        const Pack<T> scale = broadcast(distance_scale);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const Pack<T> b = broadcast(row_bias[r]);
            acc[r][0] = fma(acc[r][0], scale, b + c0);
            acc[r][1] = fma(acc[r][1], scale, b + c1);
        }
    } else {
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const Pack<T> b = broadcast(row_bias[r]);
            acc[r][0] = b + c0;
            acc[r][1] = b + c1;
        }
    }
    accumulate<DotStep, T, R>(acc, x + before, ldx, panel + before * Tile::cols, dims.dot());
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
        store(out + r * ldout, acc[r][0]);
        store(out + r * ldout + Tile::width, acc[r][1]);
    }
}

// acc (R x NV packs) += p (R x count) * v (count x NV packs); with Across p is stored as its transpose, count x R.
template <class T, int R, int NV, bool Across>
void product_micro(const T* p, Index ldp, Index count, const T* v, T* out, Index ldout) {
    constexpr int width = SimdTraits<T>::width;
    Pack<T> acc[R][NV];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int q = 0; q < NV; ++q) acc[r][q] = load(out + r * ldout + q * width);
    for (Index j = 0; j < count; ++j) {
        Pack<T> vj[NV];
#pragma GCC unroll 2
        for (int q = 0; q < NV; ++q) vj[q] = load(v + (j * NV + q) * width);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const Pack<T> pr = broadcast(Across ? p[j * ldp + r] : p[r * ldp + j]);
#pragma GCC unroll 2
            for (int q = 0; q < NV; ++q) acc[r][q] = fma(pr, vj[q], acc[r][q]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int q = 0; q < NV; ++q) store(out + r * ldout + q * width, acc[r][q]);
}

// Tables of the instantiations for 1..rows rows, which turn a row count at run time into one at compile time.
template <class T>
using ScoreMicro = void (*)(const T*, Index, const T*, const FeatureDims&, T, const T*, const T*, T*, Index);
template <class T>
using ProductMicro = void (*)(const T*, Index, Index, const T*, T*, Index);

template <class T, int... R>
ScoreMicro<T> pick_score(int rows, std::integer_sequence<int, R...>) {
    static constexpr ScoreMicro<T> table[] = {&score_micro<T, R + 1>...};
    return table[rows - 1];
}
template <class T, int NV, bool Across, int... R>
ProductMicro<T> pick_product(int rows, std::integer_sequence<int, R...>) {
    static constexpr ProductMicro<T> table[] = {&product_micro<T, R + 1, NV, Across>...};
    return table[rows - 1];
}

}  // namespace detail

template <class T>
void score_tile(const T* features, Index n_rows, const T* panels, Index n_panels, const FeatureDims& dims,
                T distance_scale, const T* row_bias, const T* col_bias, T* out, Index ldout) {
    using Tile = MicroTile<T>;
    using Rows = std::make_integer_sequence<int, Tile::rows>;
    const Index d = dims.total();
    for (Index p = 0; p < n_panels; ++p) {
        for (Index r = 0; r < n_rows; r += Tile::rows) {
            const int rows = static_cast<int>(n_rows - r < Tile::rows ? n_rows - r : Tile::rows);
            detail::pick_score<T>(rows, Rows{})(features + r * d, d, panels + p * d * Tile::cols, dims,
                                                distance_scale, row_bias + r, col_bias + p * Tile::cols,
                                                out + r * ldout + p * Tile::cols, ldout);
        }
    }
}

template <class T>
void product_tile(const T* weights, Index ldw, Index n_rows, Index count, const T* values, Index n_cols,
                  Index column_offset, Index n_packs, T* out, Index ldout) {
    using Tile = MicroTile<T>;
    using Rows = std::make_integer_sequence<int, Tile::rows>;
    constexpr int width = Tile::width;
    for (Index q = 0; q < n_packs; q += Tile::packs) {
        const bool single = n_packs - q == 1;
        const T* panel = values + q * width * n_cols + column_offset * width * (single ? 1 : Tile::packs);
        for (Index r = 0; r < n_rows; r += Tile::rows) {
            const int rows = static_cast<int>(n_rows - r < Tile::rows ? n_rows - r : Tile::rows);
            const auto kernel = single ? detail::pick_product<T, 1, false>(rows, Rows{})
                                       : detail::pick_product<T, 2, false>(rows, Rows{});
            kernel(weights + r * ldw, ldw, count, panel, out + r * ldout + q * width, ldout);
        }
    }
}

template <class T>
void product_across(const T* weights, Index ldw, Index n_rows, Index n_cols, const T* values, Index n_packs,
                    T* out, Index ldout) {
    using Tile = MicroTile<T>;
    using Rows = std::make_integer_sequence<int, Tile::rows>;
    constexpr int width = Tile::width;
    for (Index q = 0; q < n_packs; q += Tile::packs) {
        const bool single = n_packs - q == 1;
        for (Index c = 0; c < n_cols; c += Tile::rows) {
            const int cols = static_cast<int>(n_cols - c < Tile::rows ? n_cols - c : Tile::rows);
            const auto kernel = single ? detail::pick_product<T, 1, true>(cols, Rows{})
                                       : detail::pick_product<T, 2, true>(cols, Rows{});
            kernel(weights + c, ldw, n_rows, values + q * width * n_rows, out + c * ldout + q * width, ldout);
        }
    }
}

#define QK_INSTANTIATE(T)                                                                                 \
    template void score_tile(const T*, Index, const T*, Index, const FeatureDims&, T, const T*, const T*, \
                             T*, Index);                                                                  \
    template void product_tile(const T*, Index, Index, Index, const T*, Index, Index, Index, T*, Index);  \
    template void product_across(const T*, Index, Index, Index, const T*, Index, T*, Index);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)
#undef QK_INSTANTIATE

}  // namespace qk
