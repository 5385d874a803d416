// exp and 2^x with AVX-512 by a table of 2^(i/16), i < 16, that lies in one or two registers. It leaves a third of the
// polynomial, and one permutation looks it up for all lanes. It serves weights: see exp2_nonpos_each and
// weight_exp_each.
#pragma once

#include "simd.hpp"

#if defined(__AVX512F__)

namespace qk::detail {

// The bits of 2^(i/16), from which i is subtracted at the place where its four bits end up when n = 16 k + i is shifted
// into the exponent. Adding the shifted n then gives the bits of 2^(n/16). `natural` are the coefficients of
// exp(r) = 1 + r (c0 + c1 r + ...) for |r| <= ln 2 / 32; `binary` those of 2^r for |r| <= 1/32.
template <class T>
struct PowerTable;

template <>
struct PowerTable<float> {
    static constexpr float magic = 786432.0f;  // 1.5 * 2^19: sums with it are rounded to sixteenths
    static constexpr int shift = 19;
    static constexpr float ln2 = 0.693147180559945309f;
    static constexpr int terms = 3;  // relative error 2.4e-9
    static constexpr float natural[terms] = {1.0f, 0.50001469177425029079f, 0.16666960501164951244f};
    static constexpr float binary[terms] = {0.69314718055994530942f, 0.24023356566631907037f,
                                            0.055505087206136915584f};
    alignas(64) static constexpr std::uint32_t bits[16] = {
        0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532, 0x3f75fed7, 0x3f75583f,
        0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c, 0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d};

    // The entries of the table that the four lowest bits of each lane name. (max in simd.hpp says why maskz.)
    QK_INLINE static PackF look_up(PackF where) {
        return _mm512_maskz_permutexvar_ps(0xffff, (__m512i)where, (PackF)_mm512_load_si512(bits));
    }
    QK_INLINE static auto at_least(PackF x, float bound) {
        return _mm512_cmp_ps_mask(x, broadcast(bound), _CMP_NLT_UQ);  // true for NaN
    }
    QK_INLINE static PackF fma_or_zero(__mmask16 live, PackF a, PackF b, PackF c) {
        return _mm512_maskz_fmadd_ps(live, a, b, c);
    }
};

template <>
struct PowerTable<double> {
    static constexpr double magic = 422212465065984.0;  // 1.5 * 2^48
    static constexpr int shift = 48;
    static constexpr double ln2 = 0.693147180559945309417;
    static constexpr int terms = 6;  // relative error 7.1e-18
    static constexpr double natural[terms] = {1.0000000000000022797,    0.5000000000000019951,
                                              0.16666666662801438878,   0.041666666642505398502,
                                              0.0083334971674729813578, 0.0013889503350937687936};
    static constexpr double binary[terms] = {0.69314718055994688961,   0.24022650695910167089,
                                             0.055504108651949418561,  0.0096181291020512084433,
                                             0.0013333820285471727465, 0.00015404211865090396362};
    alignas(64) static constexpr std::uint64_t bits[16] = {
        0x3ff0000000000000, 0x3fefb5586cf9890f, 0x3fef72b83c7d517b, 0x3fef387a6e756238,
        0x3fef06fe0a31b715, 0x3feedea64c123422, 0x3feebfdad5362a27, 0x3feeab07dd485429,
        0x3feea09e667f3bcd, 0x3feea11473eb0187, 0x3feeace5422aa0db, 0x3feec49182a3f090,
        0x3feee89f995ad3ad, 0x3fef199bdd85529c, 0x3fef5818dcfba487, 0x3fefa4afa2a490da};

    QK_INLINE static PackD look_up(PackD where) {
        return _mm512_permutex2var_pd((PackD)_mm512_load_si512(bits), (__m512i)where,
                                      (PackD)_mm512_load_si512(bits + 8));
    }
    QK_INLINE static auto at_least(PackD x, double bound) {
        return _mm512_cmp_pd_mask(x, broadcast(bound), _CMP_NLT_UQ);
    }
    QK_INLINE static PackD fma_or_zero(__mmask8 live, PackD a, PackD b, PackD c) {
        return _mm512_maskz_fmadd_pd(live, a, b, c);
    }
};

// exp(x) or 2^x of N packs, in place. If Checked, the result is 0 below `lowest`, where it is no normal number, and NaN
// stays NaN; otherwise x must be in range. For exp the reduced argument is off only by x times the rounding of ln 2.
template <class T, int N, bool Natural, bool Checked>
QK_INLINE void table_exp(Pack<T> (&x)[N], T lowest) {
    using C = PowerTable<T>;
    using V = Pack<T>;
    using Words = typename SimdTraits<T>::Words;
    constexpr T log2e = static_cast<T>(1.44269504088896340736);
    constexpr const T* c = Natural ? C::natural : C::binary;
    decltype(C::at_least(x[0], lowest)) live[N];
    V shifted[N], scale[N], q[N];
#define QK_EACH _Pragma("GCC unroll 4") for (int h = 0; h < N; ++h)
    if constexpr (Checked) {
        QK_EACH live[h] = C::at_least(x[h], lowest);
    }
    if constexpr (Natural) {
        QK_EACH shifted[h] = fma(x[h], broadcast(log2e), broadcast(C::magic));
        QK_EACH x[h] = fnma(shifted[h] - C::magic, broadcast(C::ln2), x[h]);
    } else {
        QK_EACH shifted[h] = x[h] + C::magic;
        QK_EACH x[h] = x[h] - (shifted[h] - C::magic);
    }
    QK_EACH scale[h] = (V)((Words)C::look_up(shifted[h]) + ((Words)shifted[h] << C::shift));
    QK_EACH q[h] = fma(x[h], broadcast(c[C::terms - 1]), broadcast(c[C::terms - 2]));
#pragma GCC unroll 4
    for (int k = C::terms - 3; k >= 0; --k) {
        QK_EACH q[h] = fma(q[h], x[h], broadcast(c[k]));
    }
    QK_EACH x[h] = scale[h] * x[h];
    if constexpr (Checked) {
        QK_EACH x[h] = C::fma_or_zero(live[h], x[h], q[h], scale[h]);
    } else {
        QK_EACH x[h] = fma(x[h], q[h], scale[h]);
    }
#undef QK_EACH
}

}  // namespace qk::detail

#endif
