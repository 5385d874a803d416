// sin and cos on SIMD packs, both at once. The absolute error is at most sincos_max_error eps for
// every finite argument (tests/test_math.py); infinities and NaN give NaN.
#pragma once

#include <cmath>

#include "simd.hpp"

namespace qk {

inline constexpr double sincos_max_error = 1.0;

namespace detail {

// x = k pi/2 + r with |r| <= pi/4. pi/2 is split into three parts: k times each of the first two is exact up
// to |x| = reducible. Taylor series in r, cut where the next term is far below one eps.
template <class T>
struct TrigConstants;

template <>
struct TrigConstants<float> {
    static constexpr float magic = 12582912.0f;  // 1.5 * 2^23
    static constexpr float two_over_pi = 0.63661977236758134308f;
    static constexpr float high = 1.5703125f;
    static constexpr float middle = 0.0004837512969970703125f;
    static constexpr float low = 7.549789954891882169e-8f;
    static constexpr float reducible = 6000.0f;
    static constexpr int sin_terms = 4, cos_terms = 4;
    static constexpr float s[sin_terms] = {-1.0f / 6, 1.0f / 120, -1.0f / 5040, 1.0f / 362880};
    static constexpr float c[cos_terms] = {1.0f / 24, -1.0f / 720, 1.0f / 40320, -1.0f / 3628800};
};

template <>
struct TrigConstants<double> {
    static constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double two_over_pi = 0.63661977236758134308;
    static constexpr double high = 1.57079632673412561416626;
    static constexpr double middle = 6.077100506303965976595549e-11;
    static constexpr double low = 2.022266248795950732399685e-21;
    static constexpr double reducible = 1e6;
    static constexpr int sin_terms = 7, cos_terms = 7;
    static constexpr double s[sin_terms] = {
        -1.0 / 6,        1.0 / 120,        -1.0 / 5040,           1.0 / 362880,
        -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000.0};
    static constexpr double c[cos_terms] = {
        1.0 / 24,        -1.0 / 720,           1.0 / 40320,           -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200.0, 1.0 / 20922789888000.0};
};

// Arguments beyond `reducible` are computed one by one; they are rare, so this need not be fast.
template <class T>
inline void sincos_lanes(Pack<T> x, Pack<T>& sine, Pack<T>& cosine) {
    constexpr int width = SimdTraits<T>::width;
    T lane[width], s[width], c[width];
    store(lane, x);
    for (int i = 0; i < width; ++i) {
        s[i] = std::sin(lane[i]);
        c[i] = std::cos(lane[i]);
    }
    sine = load(s);
    cosine = load(c);
}

}  // namespace detail

template <class T>
QK_INLINE void sincos(Pack<T> x, Pack<T>& sine, Pack<T>& cosine) {
    using C = detail::TrigConstants<T>;
    using V = Pack<T>;
    using Bits = typename SimdTraits<T>::Bits;
    const V size = max(x, -x);
    if (!(reduce_max<T>(size) <= C::reducible)) {  // true for NaN too, because max returns its second operand
        detail::sincos_lanes<T>(x, sine, cosine);
        return;
    }
    const V shifted = fma(x, broadcast<T>(C::two_over_pi), broadcast<T>(C::magic));
    const V k = shifted - C::magic;
    V r = fnma(k, broadcast<T>(C::high), x);
    r = fnma(k, broadcast<T>(C::middle), r);
    r = fnma(k, broadcast<T>(C::low), r);
    const V r2 = r * r;
    V s = broadcast<T>(C::s[C::sin_terms - 1]), c = broadcast<T>(C::c[C::cos_terms - 1]);
#pragma GCC unroll 8
    for (int n = C::sin_terms - 2; n >= 0; --n) s = fma(s, r2, broadcast<T>(C::s[n]));
#pragma GCC unroll 8
    for (int n = C::cos_terms - 2; n >= 0; --n) c = fma(c, r2, broadcast<T>(C::c[n]));
    s = fma(s * r2, r, r);
    c = fma(c * r2, r2, fnma(r2, broadcast<T>(T(0.5)), broadcast<T>(T(1))));
    // By the quadrant k mod 4: 1 and 3 exchange sine and cosine, 2 and 3 negate the sine, 1 and 2 the cosine.
    const Bits quadrant = (Bits)shifted;
    const Bits swap = -(quadrant & 1);
    constexpr int sign = sizeof(T) * 8 - 1;
    const Bits sine_sign = (quadrant >> 1) << sign, cosine_sign = ((quadrant + 1) >> 1) << sign;
    sine = (V)((Bits)select(swap, c, s) ^ sine_sign);
    cosine = (V)((Bits)select(swap, s, c) ^ cosine_sign);
}

}  // namespace qk
