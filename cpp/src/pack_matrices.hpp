// Small matrices of packs: entry (i, j) of as many matrices as a pack has lanes. D > 0 is the size at compile
// time, D = 0 means that `d` is only known at run time.
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
    Pack<T> sum[C];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) sum[j] = Add ? out[j] : Pack<T>{};
#pragma GCC unroll 8
    for (int k = 0; k < size_of<D>(d); ++k) {
        const Pack<T> x = left[k * left_stride];
#pragma GCC unroll 8
        for (int j = 0; j < C; ++j) sum[j] = fma(x, right[k * size_of<D>(d) + j], sum[j]);
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

// In place: the lower triangle of a positive definite matrix becomes L of L diag L^T (unit diagonal, not stored),
// the diagonal holds the inverses of diag.
template <class T, int D>
QK_INLINE void factor_ldl(int d, Pack<T>* a) {
    const int n = size_of<D>(d);
    for (int j = 0; j < n; ++j) {
        // Above the diagonal the products L_jk diag_k, which every row below needs again.
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

// out := L with L L^T = a, row by row, for a positive semidefinite matrix: a column whose pivot is rounding
// becomes zero.
template <class T, int D>
QK_INLINE void factor_cholesky(int d, const Pack<T>* a, Pack<T>* out) {
    const int n = size_of<D>(d);
    const Pack<T> rounding = broadcast(T(n) * std::numeric_limits<T>::epsilon());
    for (int j = 0; j < n; ++j) {
        Pack<T> pivot = a[j * n + j];
        for (int k = 0; k < j; ++k) pivot = fnma(out[j * n + k], out[j * n + k], pivot);
        const Mask<T> live = pivot > rounding * a[j * n + j];
        const Pack<T> r = root(select(live, pivot, broadcast(T(1))));
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

// One-sided Jacobi: the rows of `a` (columns of a matrix) become orthogonal by rotations of pairs, which are
// applied to the rows of `b` as well. The squared norms of the rows of `a` go to `squares`.
template <class T, int D>
void orthogonalize_rows(int d, Pack<T>* a, Pack<T>* b, Pack<T>* squares) {
    const int n = size_of<D>(d);
    constexpr int most_sweeps = 30;
    const Pack<T> tolerance = broadcast(T(2) * std::numeric_limits<T>::epsilon());
    const auto dot = [n](const Pack<T>* x, const Pack<T>* y) {
        Pack<T> sum{};
        for (int k = 0; k < n; ++k) sum = fma(x[k], y[k], sum);
        return sum;
    };
    for (int i = 0; i < n; ++i) squares[i] = dot(a + i * n, a + i * n);
    for (int sweep = 0; sweep < most_sweeps; ++sweep) {
        bool turned = false;
        for (int i = 0; i + 1 < n; ++i)
            for (int j = i + 1; j < n; ++j) {
                Pack<T>*x = a + i * n, *y = a + j * n;
                const Pack<T> xy = dot(x, y);
                const Pack<T> allowed = tolerance * root(squares[i]) * root(squares[j]);
                const Mask<T> turn = magnitude<T>(xy) > allowed;
                if (!any<T>(turn)) continue;
                turned = true;
                // tan of the angle: 2 xy sign(delta) / (|delta| + sqrt(delta^2 + 4 xy^2)), scaled against overflow
                const Pack<T> delta = squares[j] - squares[i], twice = xy + xy;
                const Pack<T> p = magnitude<T>(delta), q = magnitude<T>(twice);
                const Pack<T> larger = max(p, q);
                const Pack<T> inverse = broadcast(T(1)) / select(turn, larger, broadcast(T(1)));
                const Pack<T> u = p * inverse, v = q * inverse;
                const Pack<T> slope =
                    twice * inverse / select(turn, u + root(u * u + v * v), broadcast(T(1)));
                const Pack<T> t = select(turn, select(delta >= Pack<T>{}, slope, -slope), Pack<T>{});
                const Pack<T> c = broadcast(T(1)) / root(fma(t, t, broadcast(T(1)))), s = c * t;
                for (int k = 0; k < n; ++k) {
                    const Pack<T> xk = x[k], yk = y[k];
                    x[k] = fnma(s, yk, c * xk);
                    y[k] = fma(s, xk, c * yk);
                }
                Pack<T>*z = b + i * n, *w = b + j * n;
                for (int k = 0; k < n; ++k) {
                    const Pack<T> zk = z[k], wk = w[k];
                    z[k] = fnma(s, wk, c * zk);
                    w[k] = fma(s, zk, c * wk);
                }
                squares[i] = dot(x, x);
                squares[j] = dot(y, y);
            }
        if (!turned) return;
    }
}

}  // namespace qk::packs
