// Sums over a cloud of points seen from one point: the inner loop of particle velocities in few dimensions.
// Coordinates, the score bias and the masses lie in columns (one array per coordinate, padded with zeros to
// whole strips), so that a strip of scores, its weights and what is summed from them stay in registers.
#pragma once

#include "qk/functors.hpp"
#include "qk/simd.hpp"
#include "qk/vector_math.hpp"
#include "qk/views.hpp"

namespace qk {

inline constexpr Index cloud_max_dim = 4;

template <class T>
struct Cloud {
    static constexpr int packs = 4;
    static constexpr Index strip = packs * SimdTraits<T>::width;

    const T* points = nullptr;  // [coordinate][n_padded]
    const T* bias = nullptr;    // [n_padded]: added to the score, or null
    const T* mass = nullptr;    // [n_padded]: multiplies the weight, or null
    Index n_padded = 0;
};

// What a row has gathered: sum_j w_j and sum_j w_j y_j.
struct CloudSums {
    double mass = 0;
    double moment[cloud_max_dim] = {};
};

// ---- weights of a strip of scores, in place ----------------------------------------------------------

// 2^s for scores in units of log 2. On this side of the underflow no clamp is needed: one operation in twenty.
struct PowerOfTwo {
    template <class T, int N>
    QK_INLINE static void of(Pack<T> (&s)[N]) {
        exp2_in_range_each<T, N>(s);
    }
};
// The same for any score that is not above the shift.
struct ClampedPowerOfTwo {
    template <class T, int N>
    QK_INLINE static void of(Pack<T> (&s)[N]) {
        exp2_nonpos_each<T, N>(s);
    }
};

template <class Weigh>
struct ClampedOf {
    using type = Weigh;
};
template <>
struct ClampedOf<PowerOfTwo> {
    using type = ClampedPowerOfTwo;
};
template <class Weigh>
using Clamped = typename ClampedOf<Weigh>::type;

template <class Functor>
struct EachPack {
    template <class T, int N>
    QK_INLINE static void of(Pack<T> (&s)[N]) {
        for (auto& pack : s) pack = Functor::of(pack);
    }
};

namespace detail {

template <class T>
QK_INLINE typename SimdTraits<T>::Bits lanes_below(Index first, Index end) {
    typename SimdTraits<T>::Bits lane;
    for (int i = 0; i < SimdTraits<T>::width; ++i) lane[i] = first + i < end ? -1 : 0;
    return lane;
}

template <class T, int D, bool Bias>
QK_INLINE void strip_scores(const Pack<T> (&x)[D], Pack<T> start, const Cloud<T>& cloud, Index j,
                            Pack<T> (&s)[Cloud<T>::packs]) {
    constexpr int width = SimdTraits<T>::width;
#pragma GCC unroll 4
    for (int h = 0; h < Cloud<T>::packs; ++h) s[h] = Bias ? load(cloud.bias + j + h * width) + start : start;
#pragma GCC unroll 4
    for (int k = 0; k < D; ++k)
#pragma GCC unroll 4
        for (int h = 0; h < Cloud<T>::packs; ++h)
            s[h] = fma(x[k], load(cloud.points + k * cloud.n_padded + j + h * width), s[h]);
}

}  // namespace detail

// Sums over columns [first, end), first a multiple of the strip. `x` has D scaled coordinates.
template <class T, int D, class Weigh, bool Bias, bool Mass>
void cloud_sums(const T* x, T shift, const Cloud<T>& cloud, Index end, CloudSums& out) {
    constexpr int width = SimdTraits<T>::width;
    constexpr int packs = Cloud<T>::packs;
    constexpr Index strip = Cloud<T>::strip;
    // Long rows are added up in double: one reduction per chunk.
    constexpr Index chunk = 64 * strip;
    Pack<T> xs[D];
    for (int k = 0; k < D; ++k) xs[k] = broadcast(x[k]);
    const Pack<T> start = broadcast(-shift);
    for (Index from = 0; from < end; from += chunk) {
        const Index to = end - from < chunk ? end : from + chunk;
        Pack<T> sum = {};
        Pack<T> moment[D] = {};
        const auto add = [&](Index j, const Pack<T>(&w)[packs]) {
#pragma GCC unroll 4
            for (int h = 0; h < packs; ++h) {
                sum += w[h];
#pragma GCC unroll 4
                for (int k = 0; k < D; ++k)
                    moment[k] = fma(w[h], load(cloud.points + k * cloud.n_padded + j + h * width), moment[k]);
            }
        };
        Pack<T> s[packs];
        Index j = from;
        for (; j + strip <= to; j += strip) {
            detail::strip_scores<T, D, Bias>(xs, start, cloud, j, s);
            Weigh::template of<T, packs>(s);
            if constexpr (Mass)
                for (int h = 0; h < packs; ++h) s[h] *= load(cloud.mass + j + h * width);
            add(j, s);
        }
        if (j < to) {
            detail::strip_scores<T, D, Bias>(xs, start, cloud, j, s);
            Weigh::template of<T, packs>(s);
            for (int h = 0; h < packs; ++h) {
                if constexpr (Mass) s[h] *= load(cloud.mass + j + h * width);
                s[h] = select(detail::lanes_below<T>(j + h * width, to), s[h], Pack<T>{});
            }
            add(j, s);
        }
        out.mass += static_cast<double>(reduce_add<T>(sum));
        for (int k = 0; k < D; ++k) out.moment[k] += static_cast<double>(reduce_add<T>(moment[k]));
    }
}

// The largest score of columns [0, end).
template <class T, int D, bool Bias>
T cloud_max(const T* x, const Cloud<T>& cloud, Index end) {
    constexpr int width = SimdTraits<T>::width;
    constexpr int packs = Cloud<T>::packs;
    Pack<T> xs[D];
    for (int k = 0; k < D; ++k) xs[k] = broadcast(x[k]);
    Pack<T> top[packs];
    for (auto& t : top) t = -infinity<Pack<T>>();
    for (Index j = 0; j < end; j += Cloud<T>::strip) {
        Pack<T> s[packs];
        detail::strip_scores<T, D, Bias>(xs, Pack<T>{}, cloud, j, s);
        for (int h = 0; h < packs; ++h) {
            if (j + Cloud<T>::strip > end)
                s[h] = select(detail::lanes_below<T>(j + h * width, end), s[h],
                              in_register(-infinity<Pack<T>>()));
            top[h] = max(s[h], top[h]);
        }
    }
    for (auto t : top) top[0] = max(t, top[0]);
    return reduce_max<T>(top[0]);
}

}  // namespace qk
