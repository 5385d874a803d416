// SIMD packs on the compilers' vector extensions (GCC, Clang): one source for SSE, AVX2, AVX-512 and
// NEON. Intrinsics are used only for instructions that the compiler does not generate itself (max, fma).
#pragma once

#if defined(QK_NO_SIMD)
#error "simd.hpp: what is compiled once for all levels (cpp/bind) must not depend on the width of a register"
#endif

#include <cstdint>
#include <cstring>
#include <utility>

#include "scalar_math.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) || defined(QK_SIMD_WIDE)
#define QK_SIMD_BYTES 64
#define QK_SIMD_REGISTERS 32
#elif defined(__AVX__)
#define QK_SIMD_BYTES 32
#define QK_SIMD_REGISTERS 16
#elif defined(__aarch64__)
#define QK_SIMD_BYTES 16
#define QK_SIMD_REGISTERS 32
#else
#define QK_SIMD_BYTES 16
#define QK_SIMD_REGISTERS 16
#endif

// QK_SIMD_WIDE makes packs of 512 bits that the compiler splits. Tests use it to run the tile shapes of AVX-512 on
// processors without it.

namespace qk {

template <class T>
struct SimdTraits;

template <>
struct SimdTraits<float> {
    typedef float Pack __attribute__((vector_size(QK_SIMD_BYTES)));
    typedef float Unaligned __attribute__((vector_size(QK_SIMD_BYTES), aligned(4), may_alias));
    typedef std::int32_t Bits __attribute__((vector_size(QK_SIMD_BYTES)));
    typedef std::uint32_t Words
        __attribute__((vector_size(QK_SIMD_BYTES)));  // bits in lanes whose sums may wrap
    static constexpr int width = QK_SIMD_BYTES / 4;
};

template <>
struct SimdTraits<double> {
    typedef double Pack __attribute__((vector_size(QK_SIMD_BYTES)));
    typedef double Unaligned __attribute__((vector_size(QK_SIMD_BYTES), aligned(8), may_alias));
    typedef std::int64_t Bits __attribute__((vector_size(QK_SIMD_BYTES)));
    typedef std::uint64_t Words __attribute__((vector_size(QK_SIMD_BYTES)));
    static constexpr int width = QK_SIMD_BYTES / 8;
};

template <class T>
using Pack = typename SimdTraits<T>::Pack;

using PackF = Pack<float>;
using PackD = Pack<double>;

template <>
QK_INLINE PackF infinity<PackF>() {
    return infinity<float>() - PackF{};
}
template <>
QK_INLINE PackD infinity<PackD>() {
    return infinity<double>() - PackD{};
}

template <class T>
QK_INLINE Pack<T> load(const T* p) {
    return *reinterpret_cast<const typename SimdTraits<T>::Unaligned*>(p);
}
// Loads as many floats as a pack of doubles has lanes. GCC 12 would make four instructions of the conversion.
QK_INLINE PackD load_as_doubles(const float* p) {
#if defined(__AVX512F__)
    return _mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif defined(__AVX__) && !defined(QK_SIMD_WIDE)
    return _mm256_cvtps_pd(_mm_loadu_ps(p));
#else
    typedef float Half __attribute__((vector_size(QK_SIMD_BYTES / 2), aligned(4), may_alias));
    return __builtin_convertvector(*reinterpret_cast<const Half*>(p), PackD);
#endif
}
template <class T>
QK_INLINE void store(T* p, Pack<T> v) {
    *reinterpret_cast<typename SimdTraits<T>::Unaligned*>(p) = v;
}
template <class T>
QK_INLINE Pack<T> broadcast(T x) {
    return x - Pack<T>{};  // x - 0 is x for every x, so this compiles to a broadcast; x + 0 changes -0
}

// ---- fma, max: one instruction each ------------------------------------------------------------
#if defined(__AVX512F__)
QK_INLINE PackF fma(PackF a, PackF b, PackF c) { return _mm512_fmadd_ps(a, b, c); }
QK_INLINE PackD fma(PackD a, PackD b, PackD c) { return _mm512_fmadd_pd(a, b, c); }
QK_INLINE PackF fnma(PackF a, PackF b, PackF c) { return _mm512_fnmadd_ps(a, b, c); }
QK_INLINE PackD fnma(PackD a, PackD b, PackD c) { return _mm512_fnmadd_pd(a, b, c); }
// maskz with a full mask is the same instruction, but the plain intrinsic causes -Wmaybe-uninitialized in GCC 12.
QK_INLINE PackF max(PackF a, PackF b) { return _mm512_maskz_max_ps(0xffff, a, b); }
QK_INLINE PackD max(PackD a, PackD b) { return _mm512_maskz_max_pd(0xff, a, b); }
#else
#if defined(__FMA__) && !defined(QK_SIMD_WIDE)
QK_INLINE PackF fma(PackF a, PackF b, PackF c) { return _mm256_fmadd_ps(a, b, c); }
QK_INLINE PackD fma(PackD a, PackD b, PackD c) { return _mm256_fmadd_pd(a, b, c); }
QK_INLINE PackF fnma(PackF a, PackF b, PackF c) { return _mm256_fnmadd_ps(a, b, c); }
QK_INLINE PackD fnma(PackD a, PackD b, PackD c) { return _mm256_fnmadd_pd(a, b, c); }
#else
// Without FMA hardware there are two roundings. On NEON, which has it, the compiler contracts the expression.
QK_INLINE PackF fma(PackF a, PackF b, PackF c) { return a * b + c; }
QK_INLINE PackD fma(PackD a, PackD b, PackD c) { return a * b + c; }
QK_INLINE PackF fnma(PackF a, PackF b, PackF c) { return c - a * b; }
QK_INLINE PackD fnma(PackD a, PackD b, PackD c) { return c - a * b; }
#endif
#if defined(QK_SIMD_WIDE)
QK_INLINE PackF max(PackF a, PackF b) { return a > b ? a : b; }
QK_INLINE PackD max(PackD a, PackD b) { return a > b ? a : b; }
#elif defined(__AVX__)
QK_INLINE PackF max(PackF a, PackF b) { return _mm256_max_ps(a, b); }
QK_INLINE PackD max(PackD a, PackD b) { return _mm256_max_pd(a, b); }
#elif defined(__SSE2__)
QK_INLINE PackF max(PackF a, PackF b) { return _mm_max_ps(a, b); }
QK_INLINE PackD max(PackD a, PackD b) { return _mm_max_pd(a, b); }
#else
QK_INLINE PackF max(PackF a, PackF b) { return a > b ? a : b; }
QK_INLINE PackD max(PackD a, PackD b) { return a > b ? a : b; }
#endif
#endif

QK_INLINE PackF abs(PackF a) {
    return reinterpret_cast<PackF>(reinterpret_cast<SimdTraits<float>::Bits>(a) & 0x7fffffff);
}
QK_INLINE PackD abs(PackD a) {
    return reinterpret_cast<PackD>(reinterpret_cast<SimdTraits<double>::Bits>(a) & 0x7fffffffffffffff);
}

// For constants that are selected in rare lanes only. GCC folds such a constant into the selecting instruction of
// AVX-512, which reads it through the mask. If nothing else has touched its page and no lane asks for it, the page is
// never mapped, and every such read costs over a hundred cycles.
template <class V>
QK_INLINE V in_register(V v) {
#if defined(__AVX512F__)
    asm("" : "+v"(v));
#endif
    return v;
}

QK_INLINE PackF select(SimdTraits<float>::Bits condition, PackF a, PackF b) { return condition ? a : b; }
QK_INLINE PackD select(SimdTraits<double>::Bits condition, PackD a, PackD b) { return condition ? a : b; }

// Lane i of the result is lane lanes[i] of the two packs; the lanes of b are numbered after those of a.
template <class T>
QK_INLINE Pack<T> pick_lanes(Pack<T> a, Pack<T> b, typename SimdTraits<T>::Bits lanes) {
#if defined(__clang__)
    constexpr int width = SimdTraits<T>::width;
    Pack<T> out{};
    for (int i = 0; i < width; ++i) out[i] = lanes[i] < width ? a[lanes[i]] : b[lanes[i] - width];
    return out;
#else
    return __builtin_shuffle(a, b, lanes);
#endif
}

// Transposes a square of packs. At every step packs that are `step` apart exchange the lanes that are `step`
// apart.
template <class T>
QK_INLINE void transpose(Pack<T> (&square)[SimdTraits<T>::width]) {
    constexpr int width = SimdTraits<T>::width;
#pragma GCC unroll 4
    for (int step = 1; step < width; step *= 2) {
        typename SimdTraits<T>::Bits low{}, high{};
#pragma GCC unroll 16
        for (int lane = 0; lane < width; ++lane) {
            const bool other = (lane & step) != 0;
            low[lane] = other ? width + lane - step : lane;
            high[lane] = other ? width + lane : lane + step;
        }
#pragma GCC unroll 16
        for (int i = 0; i < width; ++i) {
            if ((i & step) != 0) continue;
            const Pack<T> a = square[i], b = square[i + step];
            square[i] = pick_lanes<T>(a, b, low);
            square[i + step] = pick_lanes<T>(a, b, high);
        }
    }
}

// ---- horizontal reductions: the pairwise order is fixed, so results repeat ---------------------
// Lane i becomes join(lane i, lane i + half), and so on with half as many lanes. This works on whole packs, because
// GCC 12 turns a loop over an array of lanes into loads, stores and branches, which take longer than a short row does.
template <class T, int half, class Join, int... Lane>
QK_INLINE T fold_lanes(Pack<T> v, const Join& join, std::integer_sequence<int, Lane...> all) {
    constexpr int width = SimdTraits<T>::width;
    if constexpr (half == 0) {
        return v[0];
    } else {
        const Pack<T> other = pick_lanes<T>(v, v, typename SimdTraits<T>::Bits{(Lane + half) % width...});
        return fold_lanes<T, half / 2>(join(v, other), join, all);
    }
}
template <class T, class Join>
QK_INLINE T fold_lanes(Pack<T> v, const Join& join) {
    constexpr int width = SimdTraits<T>::width;
    return fold_lanes<T, width / 2>(v, join, std::make_integer_sequence<int, width>{});
}
template <class T>
QK_INLINE T reduce_add(Pack<T> v) {
    return fold_lanes<T>(v, [](Pack<T> a, Pack<T> b) { return a + b; });
}
template <class T>
QK_INLINE T reduce_max(Pack<T> v) {
    return fold_lanes<T>(v, [](Pack<T> a, Pack<T> b) { return max(a, b); });
}

// Bit i says whether lane i is at least `least`. AVX-512 compares into a mask directly; with a vector of conditions in
// between, the compiler would read a constant through a mask (see in_register).
template <class T>
QK_INLINE unsigned lanes_at_least(Pack<T> pack, T least) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
        return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(pack), _mm512_set1_ps(least), _CMP_GE_OQ);
    else
        return _mm512_cmp_pd_mask(reinterpret_cast<__m512d>(pack), _mm512_set1_pd(least), _CMP_GE_OQ);
#elif defined(__AVX__) && !defined(QK_SIMD_WIDE)
    const auto condition = pack >= least;
    if constexpr (sizeof(T) == 4)
        return static_cast<unsigned>(_mm256_movemask_ps(reinterpret_cast<__m256>(condition)));
    else
        return static_cast<unsigned>(_mm256_movemask_pd(reinterpret_cast<__m256d>(condition)));
#else
    unsigned found = 0;
    for (int i = 0; i < SimdTraits<T>::width; ++i) found |= (pack[i] >= least ? 1U : 0U) << i;
    return found;
#endif
}

}  // namespace qk
