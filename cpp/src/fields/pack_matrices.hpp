// Small matrices of packs: entry (i, j) of as many matrices as a pack has lanes. D > 0 is the size at compile
// time; D = 0 means that the size `d` is only known at run time.
#pragma once

#include <cmath>

#include "qk/simd.hpp"
#include "qk/views.hpp"

namespace qk::packs {

#if defined(__AVX512F__)
QK_INLINE PackF root(PackF x) { return _mm512_maskz_sqrt_ps(0xffff, x); }
QK_INLINE PackD root(PackD x) { return _mm512_maskz_sqrt_pd(0xff, x); }
#elif defined(__AVX__) && !defined(QK_SIMD_WIDE)
QK_INLINE PackF root(PackF x) { return _mm256_sqrt_ps(x); }
QK_INLINE PackD root(PackD x) { return _mm256_sqrt_pd(x); }
#elif defined(__SSE2__) && !defined(QK_SIMD_WIDE)
QK_INLINE PackF root(PackF x) { return _mm_sqrt_ps(x); }
QK_INLINE PackD root(PackD x) { return _mm_sqrt_pd(x); }
#else
QK_INLINE PackF root(PackF x) {
    for (int i = 0; i < SimdTraits<float>::width; ++i) x[i] = std::sqrt(x[i]);
    return x;
}
QK_INLINE PackD root(PackD x) {
    for (int i = 0; i < SimdTraits<double>::width; ++i) x[i] = std::sqrt(x[i]);
    return x;
}
#endif

template <class T>
using Mask = typename SimdTraits<T>::Bits;

template <class T>
QK_INLINE Pack<T> magnitude(Pack<T> x) {
    return max(x, -x);
}

template <class T>
QK_INLINE bool any(Mask<T> m) {
    bool found = false;
    for (int i = 0; i < SimdTraits<T>::width; ++i) found |= m[i] != 0;
    return found;
}

template <int D>
QK_INLINE int size_of(int d) {
    return D > 0 ? D : d;
}

// out[j] (+)= sum_k left[k * left_stride] right[k, j] for `C` columns j
template <class T, int D, int C, bool Add>
QK_INLINE void row_times(int d, const Pack<T>* left, int left_stride, const Pack<T>* right, Pack<T>* out) {
    const int n = size_of<D>(d);
    Pack<T> sum[C];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) sum[j] = Add ? out[j] : Pack<T>{};
#pragma GCC unroll 8
    for (int k = 0; k < n; ++k) {
        const Pack<T> x = left[k * left_stride];
#pragma GCC unroll 8
        for (int j = 0; j < C; ++j) sum[j] = fma(x, right[k * n + j], sum[j]);
    }
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) out[j] = sum[j];
}

// out (+)= left right, or left^T right
template <class T, int D, bool Transposed = false, bool Add = false>
QK_INLINE void multiply(int d, const Pack<T>* left, const Pack<T>* right, Pack<T>* out) {
    const int n = size_of<D>(d), stride = Transposed ? n : 1;
    for (int i = 0; i < n; ++i) {
        const Pack<T>* row = left + (Transposed ? i : i * n);
        if constexpr (D > 0) {
            row_times<T, D, D, Add>(d, row, stride, right, out + i * n);
        } else {
            int j = 0;
            for (; j + 4 <= n; j += 4) row_times<T, D, 4, Add>(d, row, stride, right + j, out + i * n + j);
            for (; j < n; ++j) row_times<T, D, 1, Add>(d, row, stride, right + j, out + i * n + j);
        }
    }
}

// out (+)= left x, or left^T x
template <class T, int D, bool Transposed = false, bool Add = false>
QK_INLINE void multiply_vector(int d, const Pack<T>* left, const Pack<T>* x, Pack<T>* out) {
    const int n = size_of<D>(d);
    for (int i = 0; i < n; ++i) {
        Pack<T> sum = Add ? out[i] : Pack<T>{};
        for (int k = 0; k < n; ++k) sum = fma(left[Transposed ? k * n + i : i * n + k], x[k], sum);
        out[i] = sum;
    }
}

// sum_i x_i y_i, in four sums that do not depend on each other
template <class T>
QK_INLINE Pack<T> dot(Index n, const Pack<T>* x, const Pack<T>* y) {
    Pack<T> sum[4] = {};
    Index i = 0;
    for (; i + 4 <= n; i += 4)
        for (int c = 0; c < 4; ++c) sum[c] = fma(x[i + c], y[i + c], sum[c]);
    for (; i < n; ++i) sum[0] = fma(x[i], y[i], sum[0]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// In place: the lower triangle of a positive definite matrix becomes L of L diag L^T (its unit diagonal is not stored),
// and the diagonal holds the inverses of diag.
template <class T, int D>
QK_INLINE void factor_ldl(int d, Pack<T>* a) {
    const int n = size_of<D>(d);
    for (int j = 0; j < n; ++j) {
        // Above the diagonal are the products L_jk diag_k, which every row below needs again.
        Pack<T> pivot = a[j * n + j];
        for (int k = 0; k < j; ++k) pivot = fnma(a[j * n + k], a[k * n + j], pivot);
        const Pack<T> inverse = broadcast(T(1)) / pivot;
        for (int i = j + 1; i < n; ++i) {
            Pack<T> x = a[i * n + j];
            for (int k = 0; k < j; ++k) x = fnma(a[i * n + k], a[k * n + j], x);
            a[j * n + i] = x;
            a[i * n + j] = x * inverse;
        }
        a[j * n + j] = inverse;
    }
}

// In place: b := a^-1 b for C right-hand sides (C = 0: as many as rows), b (d x C)
template <class T, int D, int C>
QK_INLINE void solve_ldl(int d, const Pack<T>* a, Pack<T>* b) {
    const int n = size_of<D>(d), columns = C > 0 ? C : n;
    for (int i = 1; i < n; ++i)
        for (int k = 0; k < i; ++k)
            for (int c = 0; c < columns; ++c)
                b[i * columns + c] = fnma(a[i * n + k], b[k * columns + c], b[i * columns + c]);
    for (int i = n - 1; i >= 0; --i) {
        for (int c = 0; c < columns; ++c) b[i * columns + c] *= a[i * n + i];
        for (int k = i + 1; k < n; ++k)
            for (int c = 0; c < columns; ++c)
                b[i * columns + c] = fnma(a[k * n + i], b[k * columns + c], b[i * columns + c]);
    }
}

// out := L with L L^T = a, row by row, for a positive semidefinite matrix. A column whose pivot is only rounding
// becomes zero.
template <class T, int D>
QK_INLINE void factor_cholesky(int d, const Pack<T>* a, Pack<T>* out) {
    const int n = size_of<D>(d);
    const Pack<T> rounding = broadcast(T(n) * std::numeric_limits<T>::epsilon());
    for (int j = 0; j < n; ++j) {
        Pack<T> pivot = a[j * n + j];
        for (int k = 0; k < j; ++k) pivot = fnma(out[j * n + k], out[j * n + k], pivot);
        const Mask<T> live = pivot > rounding * a[j * n + j];
        const Pack<T> r = root(select(live, pivot, in_register(broadcast(T(1)))));
        out[j * n + j] = select(live, r, Pack<T>{});
        const Pack<T> inverse = select(live, broadcast(T(1)) / r, Pack<T>{});
        for (int i = j + 1; i < n; ++i) {
            Pack<T> x = a[i * n + j];
            for (int k = 0; k < j; ++k) x = fnma(out[i * n + k], out[j * n + k], x);
            out[i * n + j] = x * inverse;
            out[j * n + i] = Pack<T>{};
        }
    }
}

// Rotates the rows x and y of one array, and z and w of another, by the angle that makes x and y orthogonal.
template <class T, int D>
QK_INLINE bool orthogonalize_pair(int d, Pack<T>* x, Pack<T>* y, Pack<T>* z, Pack<T>* w, Pack<T>& xx,
                                  Pack<T>& yy) {
    const int n = size_of<D>(d);
    const Pack<T> one = in_register(broadcast(T(1)));
    const Pack<T> xy = dot<T>(n, x, y);
    // |xy| > 2 eps |x| |y|, without roots and without squares that could overflow; 0 / 0 rotates nothing
    const Pack<T> bound =
        broadcast(T(4) * std::numeric_limits<T>::epsilon() * std::numeric_limits<T>::epsilon());
    const Mask<T> turn = (xy / xx) * xy > bound * yy;
    if (!any<T>(turn)) return false;
    // the tangent of the angle: 2 xy sign(delta) / (|delta| + sqrt(delta^2 + 4 xy^2)), scaled against overflow
    const Pack<T> delta = yy - xx, twice = xy + xy;
    const Pack<T> p = magnitude<T>(delta), q = magnitude<T>(twice);
    const Pack<T> inverse = one / select(turn, max(p, q), one);
    const Pack<T> u = p * inverse, v = q * inverse;
    const Pack<T> slope = twice * inverse / select(turn, u + root(u * u + v * v), one);
    const Pack<T> t = select(turn, select(delta >= Pack<T>{}, slope, -slope), Pack<T>{});
    const Pack<T> c = one / root(fma(t, t, one)), s = c * t;
    for (int k = 0; k < n; ++k) {
        const Pack<T> xk = x[k], yk = y[k], zk = z[k], wk = w[k];
        x[k] = fnma(s, yk, c * xk);
        y[k] = fma(s, xk, c * yk);
        z[k] = fnma(s, wk, c * zk);
        w[k] = fma(s, zk, c * wk);
    }
    xx = dot<T>(n, x, x);
    yy = dot<T>(n, y, y);
    return true;
}

// One-sided Jacobi: rotations of pairs make the rows of `a` (columns of a matrix) orthogonal; they are applied to the
// rows of `b` as well. The squared norms of the rows of `a` go to `squares`. The pairs come in rounds, as in a
// tournament: within a round no two pairs share a row, so the long divisions and roots of one pair overlap with those
// of the next.
template <class T, int D>
void orthogonalize_rows(int d, Pack<T>* a, Pack<T>* b, Pack<T>* squares) {
    const int n = size_of<D>(d), even = n + n % 2;
    constexpr int most_sweeps = 30;
    for (int i = 0; i < n; ++i) squares[i] = dot<T>(n, a + i * n, a + i * n);
    for (int sweep = 0; sweep < most_sweeps; ++sweep) {
        bool turned = false;
        for (int round = 0; round + 1 < even; ++round)
            for (int k = 0; k < even / 2; ++k) {
                const int i = k == 0 ? even - 1 : (round + k) % (even - 1);
                const int j = (round + even - 1 - k) % (even - 1);
                if (i >= n || j >= n) continue;  // an odd row has no partner in this round
                const bool moved = orthogonalize_pair<T, D>(d, a + i * n, a + j * n, b + i * n, b + j * n,
                                                            squares[i], squares[j]);
                turned = turned || moved;
            }
        if (!turned) return;
    }
}

}  // namespace qk::packs
