// exp and log on SIMD packs. Their bounds are tested over the whole range (tests/test_math.py):
//   exp: at most exp_max_ulp ulp where the result is a normal number; results below the smallest
//        normal number are returned as 0; exp(-inf) = 0, exp(+inf) = +inf, NaN stays NaN.
//   exp2_nonpos: at most exp_max_ulp ulp for x from the smallest normal exponent to 0, and exactly 0 from
//        one less downwards. Between the two the result is at most the smallest normal number. NaN stays NaN.
//   log: at most log_max_ulp ulp for every positive number, subnormals included; log(0) = -inf,
//        log(+inf) = +inf, negative numbers and NaN give NaN.
#pragma once

#include "exp_table.hpp"
#include "simd.hpp"

namespace qk {

inline constexpr double exp_max_ulp = 2.0;
inline constexpr double log_max_ulp = 2.0;

namespace detail {

// x = n ln2 + r with |r| <= ln2/2. Adding `magic` rounds x*log2(e) to the integer n and leaves n in
// the low bits. ln2_hi has few enough bits that n*ln2_hi is exact, so no FMA is needed for accuracy.
template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
    static constexpr float magic = 12582912.0f;  // 1.5 * 2^23
    static constexpr float log2e = 1.44269504088896341f;
    static constexpr float ln2_hi = 0.693359375f;
    static constexpr float ln2_lo = -2.12194440054690583e-4f;
    static constexpr float lowest = -87.33654f;  // log(smallest normal), rounded towards 0
    static constexpr float highest = 88.72283f;  // log(largest finite), rounded towards 0
    static constexpr int mantissa_bits = 23;
    // minimax on |r| <= ln2/2 for exp(r) = 1 + r + r^2 (c0 + c1 r + ...): relative error 3.1e-9
    static constexpr int terms = 5;
    static constexpr float c[terms] = {0.49999993430818545777f, 0.16666520386258743905f,
                                       0.04166839104728272693f, 0.0083687462968011311264f,
                                       0.0013814527541585910183f};
};

template <>
struct ExpConstants<double> {
    static constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double log2e = 1.44269504088896340736;
    static constexpr double ln2_hi = 6.93147180369123816490e-01;
    static constexpr double ln2_lo = 1.90821492927058770002e-10;
    static constexpr double lowest = -708.3964185322641;
    static constexpr double highest = 709.782712893384;
    static constexpr int mantissa_bits = 52;
    // relative error 3.7e-18
    static constexpr int terms = 10;
    static constexpr double c[terms] = {0.50000000000000106733,     0.16666666666666411525,
                                        0.041666666666529692051,    0.0083333333334949356533,
                                        0.0013888888943768738041,   0.00019841269505907086342,
                                        0.000024801492941237684827, 2.7557586657844972735e-6,
                                        2.7630309031204317282e-7,   2.500007134457038305e-8};
};

// 2^x = 2^n (1 + r (c0 + c1 r + ...)), n = round(x), |r| <= 1/2. This needs half the constants of exp, because there is
// no reduction by ln 2. A softmax may scale its shifted scores by log2(e) beforehand (see ShiftedExp).
template <class T>
struct Exp2Constants;

template <>
struct Exp2Constants<float> {
    static constexpr float zero_at = -127.0f;  // 2^-127 has an exponent field of 0
    static constexpr int terms = 6;            // relative error 2.6e-9
    static constexpr float c[terms] = {0.6931472149680278995f,    0.2402265278288773743f,
                                       0.055503105510137971734f,  0.0096176929729930623181f,
                                       0.0013406643902351759246f, 0.00015594678161326619324f};
};

template <>
struct Exp2Constants<double> {
    static constexpr double zero_at = -1023.0;
    static constexpr int terms = 11;  // relative error 1.8e-17
    static constexpr double c[terms] = {
        0.69314718055994569675,     0.24022650695910098007,   0.055504108664790394552,
        0.0096181291076070023796,   0.0013333558153439964747, 0.0001540353044157213033,
        0.000015252727385193868197, 1.3215442675329822143e-6, 1.0180647659234138888e-7,
        7.0725704128144235096e-9,   4.078071929588336665e-10};
};

// exp of N packs, in place, without range checks: right for lowest <= x <= highest, arbitrary
// elsewhere. Every operation is done for all packs before the next one, so that a constant is loaded once for
// N packs. With 16 registers the constants stay in memory, and loading them would otherwise limit the speed.
template <class T, int N>
QK_INLINE void exp_core(Pack<T> (&x)[N]) {
    using C = ExpConstants<T>;
    using V = Pack<T>;
    using Words = typename SimdTraits<T>::Words;  // out of range the sum below wraps around
    V shifted[N], r[N], r2[N], even[N], odd[N];
#define QK_EACH _Pragma("GCC unroll 4") for (int h = 0; h < N; ++h)
    QK_EACH shifted[h] = fma(x[h], broadcast<T>(C::log2e), broadcast<T>(C::magic));
    QK_EACH even[h] = shifted[h] - C::magic;  // n
    QK_EACH r[h] = fnma(even[h], broadcast<T>(C::ln2_hi), x[h]);
    QK_EACH r[h] = fnma(even[h], broadcast<T>(C::ln2_lo), r[h]);
    QK_EACH r2[h] = r[h] * r[h];
    // Even and odd powers are summed separately: one operation more than Horner's rule, half its chain of dependencies.
    constexpr int last = C::terms - 1;
    constexpr int last_even = last - last % 2, last_odd = last - 1 + last % 2;
    QK_EACH even[h] = broadcast<T>(C::c[last_even]);
    QK_EACH odd[h] = broadcast<T>(C::c[last_odd]);
#pragma GCC unroll 16
    for (int k = 2; k <= last_even; k += 2) {
        QK_EACH even[h] = fma(even[h], r2[h], broadcast<T>(C::c[last_even - k]));
        if (k <= last_odd - 1) {
            QK_EACH odd[h] = fma(odd[h], r2[h], broadcast<T>(C::c[last_odd - k]));
        }
    }
    QK_EACH even[h] = fma(odd[h], r[h], even[h]);
    QK_EACH even[h] = fma(even[h], r2[h], r[h]) + T(1);
    // Multiply by 2^n through the exponent field.
    QK_EACH x[h] = (V)((Words)even[h] + ((Words)shifted[h] << C::mantissa_bits));
}

template <class T, int N>
QK_INLINE void exp_nonpos_packs(Pack<T> (&x)[N]) {
    typename SimdTraits<T>::Bits gone[N];
    QK_EACH gone[h] = x[h] < ExpConstants<T>::lowest;
    exp_core<T, N>(x);
    QK_EACH x[h] = select(gone[h], Pack<T>{}, x[h]);
}

// 2^(n + x) for |x| <= 1/2, in place, if it is a normal number; `shifted` is n + magic.
template <class T, int N>
QK_INLINE void exp2_fraction(Pack<T> (&x)[N], const Pack<T> (&shifted)[N]) {
    using C = Exp2Constants<T>;
    using V = Pack<T>;
    using Words = typename SimdTraits<T>::Words;
    V q[N];
    // Horner's rule: where registers and scheduler slots are few, fewer operations are faster than shorter chains.
    QK_EACH q[h] = fma(x[h], broadcast<T>(C::c[C::terms - 1]), broadcast<T>(C::c[C::terms - 2]));
#pragma GCC unroll 16
    for (int k = C::terms - 3; k >= 0; --k) {
        QK_EACH q[h] = fma(q[h], x[h], broadcast<T>(C::c[k]));
    }
    QK_EACH q[h] = fma(q[h], x[h], broadcast<T>(T(1)));
    QK_EACH x[h] = (V)((Words)q[h] + ((Words)shifted[h] << ExpConstants<T>::mantissa_bits));
}

// Without a range check: right if 2^x is a normal number.
template <class T, int N>
QK_INLINE void exp2_core(Pack<T> (&x)[N]) {
    using E = ExpConstants<T>;
    Pack<T> shifted[N];
    QK_EACH shifted[h] = x[h] + E::magic;
    QK_EACH x[h] = x[h] - (shifted[h] - E::magic);
    exp2_fraction<T, N>(x, shifted);
}

#if defined(__FMA__)
// exp(x) for x <= 0 as 2^(x log2(e)). The product is not rounded: n is subtracted in the same fused operation.
template <class T, int N>
QK_INLINE void weight_exp_packs(Pack<T> (&x)[N]) {
    using E = ExpConstants<T>;
    typename SimdTraits<T>::Bits gone[N];
    Pack<T> shifted[N];
    QK_EACH gone[h] = x[h] < E::lowest;
    QK_EACH shifted[h] = fma(x[h], broadcast<T>(E::log2e), broadcast<T>(E::magic));
    QK_EACH x[h] = fma(x[h], broadcast<T>(E::log2e), E::magic - shifted[h]);
    exp2_fraction<T, N>(x, shifted);
    QK_EACH x[h] = select(gone[h], Pack<T>{}, x[h]);
}
#endif

template <class T, int N>
QK_INLINE void exp2_nonpos_packs(Pack<T> (&x)[N]) {
    // At zero_at the polynomial is exactly 1, and the exponent field of 1 minus its bias gives the bits
    // of +0, so this max is the whole range check. (max returns its second operand if one is NaN.)
    QK_EACH x[h] = max(broadcast<T>(Exp2Constants<T>::zero_at), x[h]);
    exp2_core<T, N>(x);
}
#undef QK_EACH

template <class T>
QK_INLINE Pack<T> exp_nonpos_pack(Pack<T> x) {
    Pack<T> y[1] = {x};
    exp_nonpos_packs<T, 1>(y);
    return y[0];
}

// exp of N packs in place: see exp_core.
template <class T, int N>
QK_INLINE void exp_packs(Pack<T> (&x)[N]) {
    Pack<T> y[N];
    for (int h = 0; h < N; ++h) y[h] = x[h];
    exp_nonpos_packs<T, N>(y);
    for (int h = 0; h < N; ++h) {
        y[h] = select(x[h] > ExpConstants<T>::highest, in_register(infinity<Pack<T>>()), y[h]);
        x[h] = select(x[h] == x[h], y[h], x[h]);
    }
}

template <class T>
QK_INLINE Pack<T> exp_pack(Pack<T> x) {
    Pack<T> y[1] = {x};
    exp_packs<T, 1>(y);
    return y[0];
}

template <class T>
struct LogConstants;

// log(m) = 2 atanh(z), z = (m-1)/(m+1), |z| <= 0.1716: the Taylor series, cut where the first
// omitted term is far below one ulp.
template <>
struct LogConstants<float> {
    static constexpr float smallest_normal = 1.17549435e-38f;
    static constexpr float lift = 16777216.0f;  // 2^24
    static constexpr float lift_log2 = 24.0f;
    static constexpr std::uint32_t sqrt_half_bits = 0x3f3504f3;
    static constexpr std::int32_t one_bits = 0x3f800000;
    static constexpr int terms = 4;
    static constexpr float c[terms] = {2.0f / 3, 2.0f / 5, 2.0f / 7, 2.0f / 9};
};
template <>
struct LogConstants<double> {
    static constexpr double smallest_normal = 2.2250738585072014e-308;
    static constexpr double lift = 18014398509481984.0;  // 2^54
    static constexpr double lift_log2 = 54.0;
    static constexpr std::uint64_t sqrt_half_bits = 0x3fe6a09e667f3bcd;
    static constexpr std::int64_t one_bits = 0x3ff0000000000000;
    static constexpr int terms = 9;
    static constexpr double c[terms] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9, 2.0 / 11,
                                        2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19};
};

template <class T>
QK_INLINE Pack<T> log_pack(Pack<T> x) {
    using C = LogConstants<T>;
    using E = ExpConstants<T>;
    using V = Pack<T>;
    using Bits = typename SimdTraits<T>::Bits;
    using Words = typename SimdTraits<T>::Words;  // the bits of a negative argument wrap around
    const auto subnormal = x < C::smallest_normal;
    const V lifted = select(subnormal, x * in_register(broadcast<T>(C::lift)), x);
    // Split x = m 2^e with m in [sqrt(1/2), sqrt(2)).
    const Bits bits = (Bits)((Words)lifted - C::sqrt_half_bits);
    const Bits exponent = bits >> E::mantissa_bits;
    const V m = (V)((Words)lifted - ((Words)exponent << E::mantissa_bits));
    const V e = __builtin_convertvector(exponent, V) -
                select(subnormal, in_register(broadcast<T>(C::lift_log2)), V{});
    const V f = m - T(1);
    const V z = f / (m + T(1));
    const V z2 = z * z;
    V q = broadcast<T>(C::c[C::terms - 1]);
#pragma GCC unroll 16
    for (int k = C::terms - 2; k >= 0; --k) q = fma(q, z2, broadcast<T>(C::c[k]));
    // log(1+f) = f - z (f - q z^2); in this form the leading f is exact.
    const V tail = fnma(z, f - q * z2, e * E::ln2_lo);
    V y = fma(e, broadcast<T>(E::ln2_hi), f + tail);
    y = select(x == V{}, in_register(-infinity<V>()), y);
    y = select(x < V{}, in_register(V{} + (infinity<T>() - infinity<T>())), y);
    return select(x == infinity<V>(), x, select(x == x, y, x));
}

}  // namespace detail

QK_INLINE PackF exp(PackF x) { return detail::exp_pack<float>(x); }
QK_INLINE PackD exp(PackD x) { return detail::exp_pack<double>(x); }
// For x <= 0 (up to rounding), as in a softmax; two instructions less than exp.
QK_INLINE PackF exp_nonpos(PackF x) { return detail::exp_nonpos_pack<float>(x); }
QK_INLINE PackD exp_nonpos(PackD x) { return detail::exp_nonpos_pack<double>(x); }
template <class T, int N>
QK_INLINE void exp_each(Pack<T> (&x)[N]) {
    detail::exp_packs<T, N>(x);
}
// 2^x of N packs in place, for x <= 0 (it also works up to 1). Faster than one pack after the other.
template <class T, int N>
QK_INLINE void exp2_nonpos_each(Pack<T> (&x)[N]) {
#if defined(__AVX512F__)
    detail::table_exp<T, N, false, true>(x, detail::Exp2Constants<T>::zero_at + 1);
#else
    detail::exp2_nonpos_packs<T, N>(x);
#endif
}
// 2^x if it is a normal number, arbitrary otherwise: for arguments whose range is known.
template <class T, int N>
QK_INLINE void exp2_in_range_each(Pack<T> (&x)[N]) {
#if defined(__AVX512F__)
    detail::table_exp<T, N, false, false>(x, T(0));
#else
    detail::exp2_core<T, N>(x);
#endif
}
inline constexpr double log2_e = 1.44269504088896340736;
// exp(x) for x <= 0, as a weight relative to a weight of 1. Rounding log2(e), or with AVX-512 ln 2, costs up to half an
// ulp of the weight for every unit of -x.
template <class T, int N>
QK_INLINE void weight_exp_each(Pack<T> (&x)[N]) {
#if defined(__AVX512F__)
    detail::table_exp<T, N, true, true>(x, detail::ExpConstants<T>::lowest);
#elif defined(__FMA__)
    detail::weight_exp_packs<T, N>(x);
#else
    detail::exp_nonpos_packs<T, N>(x);  // without fused products the other way, by 2^x, would add a rounding
#endif
}
QK_INLINE PackF log(PackF x) { return detail::log_pack<float>(x); }
QK_INLINE PackD log(PackD x) { return detail::log_pack<double>(x); }

}  // namespace qk
