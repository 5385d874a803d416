// Sums over a cloud of points as seen from one point: the micro-kernel of particle velocities in few dimensions. The
// scores of a strip, its weights and their sums stay in registers.
#pragma once

#include "engine/packed.hpp"
#include "qk/functors.hpp"
#include "qk/vector_math.hpp"

namespace qk {

using tuning::cloud_max_dim;

// The columns of a tile.
template <class T>
struct Cloud {
    static constexpr Index panel = MicroTile<T>::cols;
    static constexpr Index strip = tuning::cloud_packs * SimdTraits<T>::width;
    static_assert(strip == 2 * panel);

    const T* points = nullptr;  // panels, [panel][coordinate][column]
    const T* bias = nullptr;    // added to the score, or null
    const T* values = nullptr;  // [coordinate][n_padded]: what is averaged, or null for the points themselves
    Index n_padded = 0;
};

// The sums of a row so far: sum_j w_j and sum_j w_j y_j.
struct CloudSums {
    double mass = 0;
    double moment[cloud_max_dim] = {};
};

// ---- weights of a strip of scores, in place ----------------------------------------------------------

// 2^s for scores in units of log 2 that cannot underflow. They need no clamp, which saves one operation in twenty.
struct PowerOfTwo {
    template <class T, int N>
    QK_INLINE static void of(Pack<T> (&s)[N]) {
        exp2_in_range_each<T, N>(s);
    }
};
// 2^s for any score that is not above the shift.
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

// The packs of columns from j on; a strip is one panel or two.
template <class T, int D>
QK_INLINE const T* point_pack(const Cloud<T>& cloud, Index j, int k, int h) {
    constexpr int width = SimdTraits<T>::width, packs = MicroTile<T>::packs;
    return cloud.points + j * D + (h / packs * D + k) * Cloud<T>::panel + h % packs * width;
}

template <class T, int D, bool Bias, int P>
QK_INLINE void strip_scores(const Pack<T> (&x)[D], Pack<T> start, const Cloud<T>& cloud, Index j,
                            Pack<T> (&s)[P]) {
    constexpr int width = SimdTraits<T>::width;
#pragma GCC unroll 4
    for (int h = 0; h < P; ++h) s[h] = Bias ? load(cloud.bias + j + h * width) + start : start;
#pragma GCC unroll 4
    for (int k = 0; k < D; ++k)
#pragma GCC unroll 4
        for (int h = 0; h < P; ++h) s[h] = fma(x[k], load(point_pack<T, D>(cloud, j, k, h)), s[h]);
}

template <class T, int D, bool Values, int P>
QK_INLINE void add_strip(const Pack<T> (&w)[P], const Cloud<T>& cloud, Index j, Pack<T>& sum,
                         Pack<T> (&moment)[D]) {
    constexpr int width = SimdTraits<T>::width;
#pragma GCC unroll 4
    for (int h = 0; h < P; ++h) {
        sum += w[h];
#pragma GCC unroll 4
        for (int k = 0; k < D; ++k) {
            const T* y =
                Values ? cloud.values + k * cloud.n_padded + j + h * width : point_pack<T, D>(cloud, j, k, h);
            moment[k] = fma(w[h], load(y), moment[k]);
        }
    }
}

}  // namespace detail

// Adds the first `seen` columns to `out`. `x` has D scaled coordinates.
template <class T, int D, class Weigh, bool Bias, bool Values>
void cloud_sums(const T* x, T shift, const Cloud<T>& cloud, Index seen, CloudSums& out) {
    constexpr int width = SimdTraits<T>::width;
    constexpr int packs = tuning::cloud_packs;
    Pack<T> xs[D];
    for (int k = 0; k < D; ++k) xs[k] = broadcast(x[k]);
    const Pack<T> start = broadcast(-shift);
    Pack<T> sum = {};
    Pack<T> moment[D] = {};
    Index j = 0;
    for (; j + Cloud<T>::strip <= seen; j += Cloud<T>::strip) {
        Pack<T> s[packs];
        detail::strip_scores<T, D, Bias>(xs, start, cloud, j, s);
        Weigh::template of<T, packs>(s);
        detail::add_strip<T, D, Values>(s, cloud, j, sum, moment);
    }
    for (; j < seen; j += Cloud<T>::panel) {
        Pack<T> s[packs / 2];
        detail::strip_scores<T, D, Bias>(xs, start, cloud, j, s);
        Weigh::template of<T, packs / 2>(s);
        for (int h = 0; h < packs / 2; ++h)
            s[h] = select(detail::lanes_below<T>(j + h * width, seen), s[h], Pack<T>{});
        detail::add_strip<T, D, Values>(s, cloud, j, sum, moment);
    }
    out.mass += static_cast<double>(reduce_add<T>(sum));
    for (int k = 0; k < D; ++k) out.moment[k] += static_cast<double>(reduce_add<T>(moment[k]));
}

// The largest score of the first `seen` columns.
template <class T, int D, bool Bias>
T cloud_max(const T* x, const Cloud<T>& cloud, Index seen) {
    constexpr int width = SimdTraits<T>::width;
    Pack<T> xs[D];
    for (int k = 0; k < D; ++k) xs[k] = broadcast(x[k]);
    Pack<T> top[2];
    for (auto& t : top) t = -infinity<Pack<T>>();
    for (Index j = 0; j < seen; j += Cloud<T>::panel) {
        Pack<T> s[2];
        detail::strip_scores<T, D, Bias>(xs, Pack<T>{}, cloud, j, s);
        for (int h = 0; h < 2; ++h) {
            if (j + Cloud<T>::panel > seen)
                s[h] = select(detail::lanes_below<T>(j + h * width, seen), s[h],
                              in_register(-infinity<Pack<T>>()));
            top[h] = max(s[h], top[h]);
        }
    }
    return reduce_max<T>(max(top[0], top[1]));
}

}  // namespace qk
