// A tile of scores, computed by a block of threads into their registers.
#pragma once

#include "platform.hpp"

namespace qk::cuda {

// A tile of Rows x Cols scores, computed by TX x TY threads with features staged Depth at a time. Thread (tx, ty) holds
// the tm x tn scores of rows ty * tm + a and columns tx * tn + b. These are neighbours in memory, so shared memory is
// read in wide words.
template <int Rows, int Cols, int Depth, int TX, int TY>
struct Tile {
    static constexpr int rows = Rows, cols = Cols, depth = Depth, tx = TX, ty = TY;
    static constexpr int threads = TX * TY;
    static constexpr int tm = Rows / TY, tn = Cols / TX;
    // Leading dimensions of the staged features: a multiple of 16 bytes, but not of the number of banks.
    static constexpr int row_ld = Rows + 4, col_ld = Cols + 4;
    static constexpr int row_space = Depth * row_ld, col_space = Depth * col_ld;

    static_assert(threads % 32 == 0 && threads <= 1024);
    static_assert(TX <= 32 && (TX & (TX - 1)) == 0, "a row of threads is part of one warp");
    static_assert(Rows % TY == 0 && Cols % TX == 0);
};

template <class In, class T, int Extent, int Ld, int Threads>
QK_DEVICE void stage(const Matrix<In>& m, Index first, Index n, Index k0, int depth, T* out) {
    for (int idx = static_cast<int>(threadIdx.x); idx < Extent * depth; idx += Threads) {
        const int k = idx % depth, r = idx / depth;
        const Index i = first + r;
        out[k * Ld + r] =
            i < n ? static_cast<T>(widen(m.data[i * m.row_stride + (k0 + k) * m.col_stride])) : T(0);
    }
}

template <class Step, class T, class Shape>
QK_DEVICE void accumulate(const T* x, const T* y, int depth, T (&part)[Shape::tm][Shape::tn]) {
    const int tx = static_cast<int>(threadIdx.x) % Shape::tx, ty = static_cast<int>(threadIdx.x) / Shape::tx;
    QK_UNROLL_4
    for (int k = 0; k < depth; ++k) {
        T xs[Shape::tm], ys[Shape::tn];
        QK_UNROLL
        for (int a = 0; a < Shape::tm; ++a) xs[a] = x[k * Shape::row_ld + ty * Shape::tm + a];
        QK_UNROLL
        for (int b = 0; b < Shape::tn; ++b) ys[b] = y[k * Shape::col_ld + tx * Shape::tn + b];
        QK_UNROLL
        for (int a = 0; a < Shape::tm; ++a) {
            QK_UNROLL
            for (int b = 0; b < Shape::tn; ++b) part[a][b] = Step::step(part[a][b], xs[a], ys[b]);
        }
    }
}

// The same by the step for this kind of term. Only steps of sign 1 are used, because here the sign of a term is that of
// its scale.
template <class T, class Shape, class... Step>
QK_DEVICE void accumulate_kind(Steps<Step...>, FeatureKind kind, const T* x, const T* y, int depth,
                               T (&part)[Shape::tm][Shape::tn]) {
    ((Step::kind == kind && Step::sign > 0 ? accumulate<Step, T, Shape>(x, y, depth, part) : void()), ...);
}

// s[a][b] = the score of row row0 + ty * tm + a and column col0 + tx * tn + b; -inf outside the matrix and where
// masked. All threads of the block must call this together, because it has barriers. After the first of them `x` and
// `y` may be overwritten. Each term has a sum of its own, so that its scale is applied once.
template <class T, class In, class Shape>
QK_DEVICE void score_tile(const Scores<T, In>& scores, Index row0, Index col0, T* x, T* y,
                          T (&s)[Shape::tm][Shape::tn]) {
    const int tx = static_cast<int>(threadIdx.x) % Shape::tx, ty = static_cast<int>(threadIdx.x) / Shape::tx;
    QK_UNROLL
    for (int a = 0; a < Shape::tm; ++a) {
        QK_UNROLL
        for (int b = 0; b < Shape::tn; ++b) s[a][b] = T(0);
    }

    QK_NO_UNROLL
    for (int t = 0; t < scores.n_features; ++t) {
        const FeatureTerm<In, T>& term = scores.features[t];
        T part[Shape::tm][Shape::tn] = {};
        QK_NO_UNROLL
        for (Index k0 = 0; k0 < term.dim; k0 += Shape::depth) {
            const int depth = static_cast<int>(term.dim - k0 < Shape::depth ? term.dim - k0 : Shape::depth);
            __syncthreads();  // all threads have read what was staged before
            stage<In, T, Shape::rows, Shape::row_ld, Shape::threads>(term.rows, row0, scores.n_rows, k0,
                                                                     depth, x);
            stage<In, T, Shape::cols, Shape::col_ld, Shape::threads>(term.cols, col0, scores.n_cols, k0,
                                                                     depth, y);
            __syncthreads();
            accumulate_kind<T, Shape>(FeatureSteps{}, term.kind, x, y, depth, part);
        }
        QK_UNROLL
        for (int a = 0; a < Shape::tm; ++a) {
            QK_UNROLL
            for (int b = 0; b < Shape::tn; ++b) s[a][b] = qk::fma(term.scale, part[a][b], s[a][b]);
        }
    }

    const Index i0 = row0 + ty * Shape::tm, j0 = col0 + tx * Shape::tn;
    QK_NO_UNROLL
    for (int t = 0; t < scores.n_col_bias; ++t) {
        QK_UNROLL
        for (int b = 0; b < Shape::tn; ++b) {
            const T bias = j0 + b < scores.n_cols ? scores.col_bias[t][j0 + b] : T(0);
            QK_UNROLL
            for (int a = 0; a < Shape::tm; ++a) s[a][b] += bias;
        }
    }
    QK_NO_UNROLL
    for (int t = 0; t < scores.n_row_bias; ++t) {
        QK_UNROLL
        for (int a = 0; a < Shape::tm; ++a) {
            const T bias = i0 + a < scores.n_rows ? scores.row_bias[t][i0 + a] : T(0);
            QK_UNROLL
            for (int b = 0; b < Shape::tn; ++b) s[a][b] += bias;
        }
    }
    QK_NO_UNROLL
    for (int t = 0; t < scores.n_dense; ++t) {
        const DenseTerm<In, T>& term = scores.dense[t];
        QK_UNROLL
        for (int a = 0; a < Shape::tm; ++a) {
            QK_UNROLL
            for (int b = 0; b < Shape::tn; ++b) {
                const Index i = i0 + a, j = j0 + b;
                if (i < scores.n_rows && j < scores.n_cols) {
                    const In entry =
                        term.values.data[i * term.values.row_stride + j * term.values.col_stride];
                    s[a][b] = qk::fma(term.scale, static_cast<T>(widen(entry)), s[a][b]);
                }
            }
        }
    }
    QK_NO_UNROLL
    for (int t = 0; t < scores.n_masks; ++t) {
        const DenseMask mask = scores.masks[t];
        QK_UNROLL
        for (int a = 0; a < Shape::tm; ++a) {
            QK_UNROLL
            for (int b = 0; b < Shape::tn; ++b) {
                const bool inside = i0 + a < scores.n_rows && j0 + b < scores.n_cols;
                if (inside && !mask.keep(i0 + a, j0 + b)) s[a][b] = -qk::infinity<T>();
            }
        }
    }
    // Most tiles lie wholly inside the matrix and the band; for these the whole block skips the check.
    const bool inside = row0 + Shape::rows <= scores.n_rows && col0 + Shape::cols <= scores.n_cols &&
                        scores.band.keep(row0, col0 + Shape::cols - 1) &&
                        scores.band.keep(row0 + Shape::rows - 1, col0);
    if (!inside) {
        QK_UNROLL
        for (int a = 0; a < Shape::tm; ++a) {
            QK_UNROLL
            for (int b = 0; b < Shape::tn; ++b) {
                const Index i = i0 + a, j = j0 + b;
                if (i >= scores.n_rows || j >= scores.n_cols || !scores.band.keep(i, j))
                    s[a][b] = -qk::infinity<T>();
            }
        }
    }
}

// The columns within [begin, end) that the band leaves to rows [row0, row0 + rows), widened to whole tiles.
struct ColumnRange {
    Index begin, end;
};
template <class T, class In, class Shape>
QK_DEVICE ColumnRange visible_columns(const Scores<T, In>& scores, Index row0, Index begin, Index end) {
    const Index last = row0 + Shape::rows < scores.n_rows ? row0 + Shape::rows - 1 : scores.n_rows - 1;
    const Index first_seen = scores.band.first(row0, scores.n_cols) / Shape::cols * Shape::cols;
    const Index end_seen = scores.band.end(last, scores.n_cols);
    return {first_seen > begin ? first_seen : begin, end_seen < end ? end_seen : end};
}

}  // namespace qk::cuda
