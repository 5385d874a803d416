// Row sums and column sums of exp(s_ij) in one visit. A block walks strips of rows and keeps column sums of its own;
// finish_columns adds the column sums of all blocks in their order.
#pragma once

#include "tile.hpp"

namespace qk::cuda {

template <class T>
QK_DEVICE void put_column(T* mine, Index j, T total, bool first) {
    mine[j] = first ? total : mine[j] + total;
}

// Adds a tile of numbers by columns: first over the rows of each thread, then over the rows of threads, in order. It
// has two barriers, and `space` (ty x cols) may be overwritten only after a third one, which the caller provides.
template <class T, class Shape>
QK_DEVICE void add_columns(const T (&w)[Shape::tm][Shape::tn], T* space, Index col0, Index n_cols, T* mine,
                           bool first) {
    const int tx = static_cast<int>(threadIdx.x) % Shape::tx, ty = static_cast<int>(threadIdx.x) / Shape::tx;
    __syncthreads();
    QK_UNROLL
    for (int b = 0; b < Shape::tn; ++b) {
        T total = T(0);
        QK_UNROLL
        for (int a = 0; a < Shape::tm; ++a) total += w[a][b];
        space[ty * Shape::cols + tx * Shape::tn + b] = total;
    }
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < Shape::cols; c += Shape::threads) {
        T total = T(0);
        for (int r = 0; r < Shape::ty; ++r) total += space[r * Shape::cols + c];
        if (col0 + c < n_cols) put_column(mine, col0 + c, total, first);
    }
}

// Columns outside the range that a block's first strip visits start at 0.
template <class T, class Shape>
QK_DEVICE void clear_unseen(T* mine, ColumnRange seen, Index n_cols) {
    for (Index j = threadIdx.x; j < n_cols; j += Shape::threads)
        if (j < seen.begin || j >= seen.end) mine[j] = T(0);
}
// `seen` widened to whole tiles, which is the range that add_columns writes.
template <class Shape>
QK_DEVICE ColumnRange whole_tiles(ColumnRange seen) {
    if (seen.end <= seen.begin) return {0, 0};
    return {seen.begin, seen.begin + (seen.end - seen.begin + Shape::cols - 1) / Shape::cols * Shape::cols};
}

template <class T>
struct MarginalArgs {
    Scores<T> scores;
    T* rows;     // or null
    T* partial;  // gridDim.x x n_cols
    Index n_strips;
};

template <class T, class Shape>
__global__ void QK_BOUNDS(Shape::threads) marginal_strips(QK_PARAM MarginalArgs<T> args) {
    QK_SHARED(T, x, Shape::row_space);
    QK_SHARED(T, y, Shape::col_space);
    QK_SHARED(T, space, Shape::ty * Shape::cols);
    const int tx = static_cast<int>(threadIdx.x) % Shape::tx, ty = static_cast<int>(threadIdx.x) / Shape::tx;
    const Index n_cols = args.scores.n_cols;
    T* const mine = args.partial + static_cast<Index>(blockIdx.x) * n_cols;

    bool first = true;
    for (Index strip = blockIdx.x; strip < args.n_strips; strip += gridDim.x) {
        const Index row0 = strip * Shape::rows;
        const ColumnRange seen = visible_columns<T, T, Shape>(args.scores, row0, 0, n_cols);
        CarefulSum<T> sum[Shape::tm];
        QK_NO_UNROLL
        for (Index col0 = seen.begin; col0 < seen.end; col0 += Shape::cols) {
            T w[Shape::tm][Shape::tn];
            score_tile<T, T, Shape>(args.scores, row0, col0, x, y, w);
            QK_UNROLL
            for (int a = 0; a < Shape::tm; ++a) {
                T total = T(0);
                QK_UNROLL
                for (int b = 0; b < Shape::tn; ++b) {
                    w[a][b] = qk::exp(w[a][b]);
                    total += w[a][b];
                }
                sum[a].add(total);
            }
            add_columns<T, Shape>(w, space, col0, n_cols, mine, first);
        }
        if (first) clear_unseen<T, Shape>(mine, whole_tiles<Shape>(seen), n_cols);
        QK_UNROLL
        for (int a = 0; a < Shape::tm; ++a) {
            const T total = add_over_lanes(sum[a].value(), Shape::tx);
            const Index i = row0 + ty * Shape::tm + a;
            if (args.rows != nullptr && tx == 0 && i < args.scores.n_rows) args.rows[i] = total;
        }
        first = false;
        __syncthreads();  // other threads add to the same columns in the next strip
    }
}

template <class T>
struct SweepArgs {
    Scores<T> scores;  // with g among the column biases
    const T* mu;
    T row_damping;
    const T* shift;  // or null
    T* lse;
    T* f;        // or null
    T* partial;  // gridDim.x x n_cols
    T* weights;  // gridDim.x x rows x n_cols, or null: weights are computed a second time
    Index n_strips;
};

// exp(s - shift). If a row was empty before (shift = -inf), its weight is 0 or, if it has an entry now, infinite.
template <class T>
QK_DEVICE T shifted_weight(T s, T shift) {
    if (s == -qk::infinity<T>()) return T(0);
    return qk::exp(s - shift);
}

template <class T>
QK_DEVICE T row_mass(T mu, T damping, T lse) {
    if (mu == T(0) || lse == -qk::infinity<T>()) return T(0);
    return damping == T(1) ? mu : qk::exp(damping * qk::log(mu) + (T(1) - damping) * lse);
}

template <class T, class Shape>
__global__ void QK_BOUNDS(Shape::threads) sinkhorn_strips(QK_PARAM SweepArgs<T> args) {
    QK_SHARED(T, x, Shape::row_space);
    QK_SHARED(T, y, Shape::col_space);
    QK_SHARED(T, space, Shape::ty * Shape::cols);
    QK_SHARED(T, shifts, Shape::rows);
    QK_SHARED(T, factors, Shape::rows);
    const int tx = static_cast<int>(threadIdx.x) % Shape::tx, ty = static_cast<int>(threadIdx.x) / Shape::tx;
    const Index n_rows = args.scores.n_rows, n_cols = args.scores.n_cols;
    T* const mine = args.partial + static_cast<Index>(blockIdx.x) * n_cols;
    T* const weights = args.weights != nullptr
                           ? args.weights + static_cast<Index>(blockIdx.x) * Shape::rows * n_cols
                           : nullptr;
    const T low = T(1e-20), high = T(1e20);

    bool first = true;
    for (Index strip = blockIdx.x; strip < args.n_strips; strip += gridDim.x) {
        const Index row0 = strip * Shape::rows;
        const ColumnRange seen = visible_columns<T, T, Shape>(args.scores, row0, 0, n_cols);
        bool exact = args.shift == nullptr, again = false;
        T total[Shape::tm];
        do {
            if (exact) {
                T top[Shape::tm];
                QK_UNROLL
                for (int a = 0; a < Shape::tm; ++a) top[a] = -qk::infinity<T>();
                QK_NO_UNROLL
                for (Index col0 = seen.begin; col0 < seen.end; col0 += Shape::cols) {
                    T s[Shape::tm][Shape::tn];
                    score_tile<T, T, Shape>(args.scores, row0, col0, x, y, s);
                    QK_UNROLL
                    for (int a = 0; a < Shape::tm; ++a) {
                        QK_UNROLL
                        for (int b = 0; b < Shape::tn; ++b) top[a] = qk::max(top[a], s[a][b]);
                    }
                }
                __syncthreads();  // in a second pass over this strip threads may still be reading the old shifts
                QK_UNROLL
                for (int a = 0; a < Shape::tm; ++a) {
                    const T found = max_over_lanes(top[a], Shape::tx);
                    if (tx == 0) shifts[ty * Shape::tm + a] = found;
                }
            } else {
                for (int r = static_cast<int>(threadIdx.x); r < Shape::rows; r += Shape::threads)
                    shifts[r] = row0 + r < n_rows ? args.shift[row0 + r] : -qk::infinity<T>();
            }
            __syncthreads();

            CarefulSum<T> sum[Shape::tm];
            QK_NO_UNROLL
            for (Index col0 = seen.begin; col0 < seen.end; col0 += Shape::cols) {
                T s[Shape::tm][Shape::tn];
                score_tile<T, T, Shape>(args.scores, row0, col0, x, y, s);
                QK_UNROLL
                for (int a = 0; a < Shape::tm; ++a) {
                    const T shift = shifts[ty * Shape::tm + a];
                    T part = T(0);
                    QK_UNROLL
                    for (int b = 0; b < Shape::tn; ++b) {
                        const T w = shifted_weight(s[a][b], shift);
                        part += w;
                        const Index j = col0 + tx * Shape::tn + b;
                        if (weights != nullptr && j < n_cols) weights[(ty * Shape::tm + a) * n_cols + j] = w;
                    }
                    sum[a].add(part);
                }
            }
            int moved = 0;
            QK_UNROLL
            for (int a = 0; a < Shape::tm; ++a) {
                total[a] = add_over_lanes(sum[a].value(), Shape::tx);
                const bool blank = shifts[ty * Shape::tm + a] == -qk::infinity<T>() && total[a] == T(0);
                if (!blank && !(total[a] > low && total[a] < high)) moved = 1;
            }
            again = !exact && __syncthreads_or(moved) != 0;
            exact = true;
        } while (again);

        QK_UNROLL
        for (int a = 0; a < Shape::tm; ++a) {
            const int r = ty * Shape::tm + a;
            const Index i = row0 + r;
            if (tx == 0) {
                T factor = T(0);
                if (i < n_rows) {
                    const T lse = total[a] == T(0) ? -qk::infinity<T>() : shifts[r] + qk::log(total[a]);
                    const T mu = args.mu[i];
                    const T mass = row_mass(mu, args.row_damping, lse);
                    factor = mass == T(0) ? T(0) : mass / total[a];
                    args.lse[i] = lse;
                    if (args.f != nullptr)
                        args.f[i] = mu == T(0) ? -qk::infinity<T>() : args.row_damping * (qk::log(mu) - lse);
                }
                factors[r] = factor;
            }
        }
        __syncthreads();  // now the factors, and the weights that other threads have written, can be read

        if (weights != nullptr) {
            for (Index j = threadIdx.x; j < n_cols; j += Shape::threads) {
                T column = T(0);
                if (j >= seen.begin && j < seen.end)
                    for (int r = 0; r < Shape::rows; ++r)
                        column = qk::fma(weights[r * n_cols + j], factors[r], column);
                put_column(mine, j, column, first);
            }
        } else {
            QK_NO_UNROLL
            for (Index col0 = seen.begin; col0 < seen.end; col0 += Shape::cols) {
                T w[Shape::tm][Shape::tn];
                score_tile<T, T, Shape>(args.scores, row0, col0, x, y, w);
                QK_UNROLL
                for (int a = 0; a < Shape::tm; ++a) {
                    const int r = ty * Shape::tm + a;
                    QK_UNROLL
                    for (int b = 0; b < Shape::tn; ++b)
                        w[a][b] = shifted_weight(w[a][b], shifts[r]) * factors[r];
                }
                add_columns<T, Shape>(w, space, col0, n_cols, mine, first);
            }
            if (first) clear_unseen<T, Shape>(mine, whole_tiles<Shape>(seen), n_cols);
        }
        first = false;
        __syncthreads();  // the next strip overwrites weights, shifts and factors
    }
}

// ---- the second stage ---------------------------------------------------------------------------

template <class T>
struct FinishArgs {
    const T* partial;
    int n_parts;
    Index n_cols;
    const T* nu;         // or null
    const T* potential;  // g, or v when scaling
    T damping;
    T* columns;
    T* updated;        // or null
    double* residual;  // gridDim.x pairs, or null
};

template <class T, int Threads, bool Scaling>
__global__ void QK_BOUNDS(Threads) finish_columns(QK_PARAM FinishArgs<T> args) {
    QK_SHARED(double, errors, Threads);
    QK_SHARED(double, lost, Threads);
    const Index j = static_cast<Index>(blockIdx.x) * Threads + threadIdx.x;
    const bool live = j < args.n_cols;
    double error = 0, gone = 0;
    if (live) {
        CarefulSum<T> sum;
        for (int part = 0; part < args.n_parts; ++part) sum.add(args.partial[part * args.n_cols + j]);
        const T total = sum.value();
        const T column = Scaling ? args.potential[j] * total : total;
        if (args.nu != nullptr) {
            const T nu = args.nu[j];
            const T old = args.potential[j];
            T next = old;
            if (nu == T(0))
                next = Scaling ? T(0) : -qk::infinity<T>();
            else if (total > T(0))
                next = Scaling ? nu / total : args.damping * (old + qk::log(nu) - qk::log(total));
            else
                gone = 1;
            if (args.updated != nullptr) args.updated[j] = next;
            const double difference = static_cast<double>(column) - static_cast<double>(nu);
            error = difference < 0 ? -difference : difference;
        }
        args.columns[j] = column;
    }
    errors[threadIdx.x] = error;
    lost[threadIdx.x] = gone;
    for (int half = Threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < half) {
            errors[threadIdx.x] += errors[threadIdx.x + half];
            lost[threadIdx.x] += lost[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0 && args.residual != nullptr) {
        args.residual[2 * static_cast<Index>(blockIdx.x)] = errors[0];
        args.residual[2 * static_cast<Index>(blockIdx.x) + 1] = lost[0];
    }
}

// Adds the pairs that finish_columns has written; one warp does it.
template <int Lanes>
__global__ void QK_BOUNDS(Lanes) finish_residual(const double* pairs, Index n, double* out) {
    double error = 0, gone = 0;
    for (Index b = threadIdx.x; b < n; b += Lanes) {
        error += pairs[2 * b];
        gone += pairs[2 * b + 1];
    }
    error = add_over_lanes(error, Lanes);
    gone = add_over_lanes(gone, Lanes);
    if (threadIdx.x == 0) {
        out[0] = error;
        out[1] = gone;
    }
}

// ---- dense output -------------------------------------------------------------------------------

template <class T>
struct DenseArgs {
    Scores<T> scores;
    bool raw;
    T* out;
    Index row_stride;
};

template <class T, class Shape>
__global__ void QK_BOUNDS(Shape::threads) dense_tile(QK_PARAM DenseArgs<T> args) {
    QK_SHARED(T, x, Shape::row_space);
    QK_SHARED(T, y, Shape::col_space);
    const int tx = static_cast<int>(threadIdx.x) % Shape::tx, ty = static_cast<int>(threadIdx.x) / Shape::tx;
    const Index row0 = static_cast<Index>(blockIdx.x) * Shape::rows;
    const Index col0 = static_cast<Index>(blockIdx.y) * Shape::cols;
    T s[Shape::tm][Shape::tn];
    score_tile<T, T, Shape>(args.scores, row0, col0, x, y, s);
    QK_UNROLL
    for (int a = 0; a < Shape::tm; ++a) {
        QK_UNROLL
        for (int b = 0; b < Shape::tn; ++b) {
            const Index i = row0 + ty * Shape::tm + a, j = col0 + tx * Shape::tn + b;
            if (i < args.scores.n_rows && j < args.scores.n_cols)
                args.out[i * args.row_stride + j] = args.raw ? s[a][b] : qk::exp(s[a][b]);
        }
    }
}

}  // namespace qk::cuda
