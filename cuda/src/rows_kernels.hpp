// Row reductions: log-sum-exps and products with the weights, in one visit of the scores.
#pragma once

#include "qk_cuda/api.hpp"
#include "tile.hpp"

namespace qk::cuda {

// Columns may be cut into splits with one block each; merge_rows merges their states in the order of the splits.
template <class T, class In>
struct RowArgs {
    Scores<T, In> scores;
    Weight weight;
    Matrix<In> values;
    Index n_values;
    Index split_cols;  // columns per split, a whole number of tiles
    T* log_sum_exp;    // the results, when there is one split
    T* product;
    T* part_max;  // with several splits the states: (splits, n_rows), (splits, n_rows), (splits, n_rows, n_values)
    T* part_sum;
    T* part_product;
};

// Two blocks of 256 threads per multiprocessor leave 128 registers per thread: enough for single precision.
template <class T>
constexpr int two_blocks = sizeof(T) == 4 ? 2 : 1;

template <class T>
QK_DEVICE T plain_weight(Weight weight, T s) {
    if (weight == Weight::linear) return LinearWeight::of(s);
    if (weight == Weight::relu) return ReluWeight::of(s);
    return s == -qk::infinity<T>() ? T(0) : SigmoidWeight::of(s);
}

// Turns `acc`, a weighted sum relative to the state's maximum, into the result.
template <class T>
QK_DEVICE T finished(Weight weight, const SoftmaxState<T>& state, T acc) {
    if (weight == Weight::softmax) return state.empty() ? T(0) : acc / state.sum;
    if (weight == Weight::exp) return state.empty() ? T(0) : acc * qk::exp(state.max);
    return acc;
}

template <class T, class In>
QK_DEVICE void write_state(const RowArgs<T, In>& args, Index i, const SoftmaxState<T>& state) {
    if (args.part_max != nullptr) {
        const Index at = static_cast<Index>(blockIdx.y) * args.scores.n_rows + i;
        args.part_max[at] = state.max;
        args.part_sum[at] = state.sum;
    } else if (args.log_sum_exp != nullptr) {
        args.log_sum_exp[i] = state.log_sum_exp();
    }
}

template <class T, class In>
QK_DEVICE void write_product(const RowArgs<T, In>& args, Index i, Index c, const SoftmaxState<T>& state,
                             T acc) {
    const Index at = i * args.n_values + c;
    if (args.part_max != nullptr)
        args.part_product[static_cast<Index>(blockIdx.y) * args.scores.n_rows * args.n_values + at] = acc;
    else
        args.product[at] = finished(args.weight, state, acc);
}

// At most Values right-hand sides. Each thread sums over its own columns, and lanes are merged at the end.
template <class T, class In, class Shape, int Values, bool Softmax>
__global__ void QK_BOUNDS_BLOCKS(Shape::threads, two_blocks<T>) reduce_narrow(QK_PARAM RowArgs<T, In> args) {
    QK_SHARED(T, x, Shape::row_space);
    QK_SHARED(T, y, Shape::col_space);
    const int tx = static_cast<int>(threadIdx.x) % Shape::tx, ty = static_cast<int>(threadIdx.x) / Shape::tx;
    const Index row0 = static_cast<Index>(blockIdx.x) * Shape::rows;
    constexpr int n_acc = Values > 0 ? Values : 1;

    SoftmaxState<T> state[Shape::tm];
    CarefulSum<T> sum[Shape::tm];
    T acc[Shape::tm][n_acc] = {};

    const Index begin = static_cast<Index>(blockIdx.y) * args.split_cols;
    const ColumnRange seen = visible_columns<T, In, Shape>(args.scores, row0, begin, begin + args.split_cols);
    QK_NO_UNROLL
    for (Index col0 = seen.begin; col0 < seen.end; col0 += Shape::cols) {
        T s[Shape::tm][Shape::tn];
        score_tile<T, In, Shape>(args.scores, row0, col0, x, y, s);

        QK_UNROLL
        for (int a = 0; a < Shape::tm; ++a) {
            T reference = T(0);
            if (Softmax) {
                T top = s[a][0];
                QK_UNROLL
                for (int b = 1; b < Shape::tn; ++b) top = qk::max(top, s[a][b]);
                const T factor = state[a].raise(top);
                if (factor != T(1)) {
                    sum[a].scale(factor);
                    QK_UNROLL
                    for (int c = 0; c < n_acc; ++c) acc[a][c] *= factor;
                }
                reference = state[a].empty() ? T(0) : state[a].max;
            }
            T total = T(0);
            QK_UNROLL
            for (int b = 0; b < Shape::tn; ++b) {
                s[a][b] = Softmax ? ExpWeight::of(s[a][b], reference) : plain_weight(args.weight, s[a][b]);
                total += s[a][b];
            }
            if (Softmax) sum[a].add(total);
        }
        if (Values > 0) {
            QK_UNROLL
            for (int b = 0; b < Shape::tn; ++b) {
                const Index j = col0 + tx * Shape::tn + b;
                QK_UNROLL
                for (int c = 0; c < Values; ++c) {
                    const bool live = j < args.scores.n_cols && c < args.n_values;
                    const T v =
                        live ? static_cast<T>(widen(
                                   args.values.data[j * args.values.row_stride + c * args.values.col_stride]))
                             : T(0);
                    QK_UNROLL
                    for (int a = 0; a < Shape::tm; ++a) acc[a][c] = qk::fma(s[a][b], v, acc[a][c]);
                }
            }
        }
    }

    QK_UNROLL
    for (int a = 0; a < Shape::tm; ++a) {
        state[a].sum = sum[a].value();
        QK_UNROLL
        for (int step = Shape::tx / 2; step > 0; step /= 2) {
            T own = T(1), others = T(1);
            if (Softmax) {
                SoftmaxState<T> other;
                other.max = __shfl_xor_sync(full_warp, state[a].max, step, 32);
                other.sum = __shfl_xor_sync(full_warp, state[a].sum, step, 32);
                state[a].merge(other, own, others);
            }
            if (Values > 0) {
                QK_UNROLL
                for (int c = 0; c < Values; ++c)
                    acc[a][c] = acc[a][c] * own + __shfl_xor_sync(full_warp, acc[a][c], step, 32) * others;
            }
        }
        const Index i = row0 + ty * Shape::tm + a;
        if (tx == 0 && i < args.scores.n_rows) {
            if (Softmax) write_state(args, i, state[a]);
            if (Values > 0) {
                QK_UNROLL
                for (int c = 0; c < Values; ++c)
                    if (c < args.n_values) write_product(args, i, c, state[a], acc[a][c]);
            }
        }
    }
}

// Values right-hand sides per block (blockIdx.z says which). The tile of weights goes through shared memory, and
// thread (tx, ty) sums `Values / TX` columns of the product for its rows.
template <class T, class In, class Shape, int Values, bool Softmax>
__global__ void QK_BOUNDS_BLOCKS(Shape::threads, two_blocks<T>) reduce_wide(QK_PARAM RowArgs<T, In> args) {
    constexpr int cv = Values / Shape::tx;
    static_assert(Values % Shape::tx == 0);
    QK_SHARED(T, x, Shape::row_space);
    QK_SHARED(T, y, Shape::col_space);
    QK_SHARED(T, w, Shape::cols * Shape::row_ld);  // w[j][i]
    QK_SHARED(T, v, Shape::cols * Values);
    const int tx = static_cast<int>(threadIdx.x) % Shape::tx, ty = static_cast<int>(threadIdx.x) / Shape::tx;
    const Index row0 = static_cast<Index>(blockIdx.x) * Shape::rows;
    const Index c0 = static_cast<Index>(blockIdx.z) * Values;

    SoftmaxState<T> state[Shape::tm];  // the same in all lanes of a row, except for the sum
    CarefulSum<T> sum[Shape::tm];
    T acc[Shape::tm][cv] = {};

    const Index begin = static_cast<Index>(blockIdx.y) * args.split_cols;
    const ColumnRange seen = visible_columns<T, In, Shape>(args.scores, row0, begin, begin + args.split_cols);
    QK_NO_UNROLL
    for (Index col0 = seen.begin; col0 < seen.end; col0 += Shape::cols) {
        T s[Shape::tm][Shape::tn];
        score_tile<T, In, Shape>(args.scores, row0, col0, x, y, s);

        QK_UNROLL
        for (int a = 0; a < Shape::tm; ++a) {
            T reference = T(0);
            if (Softmax) {
                T top = s[a][0];
                QK_UNROLL
                for (int b = 1; b < Shape::tn; ++b) top = qk::max(top, s[a][b]);
                const T factor = state[a].raise(max_over_lanes(top, Shape::tx));
                if (factor != T(1)) {
                    sum[a].scale(factor);
                    QK_UNROLL
                    for (int c = 0; c < cv; ++c) acc[a][c] *= factor;
                }
                reference = state[a].empty() ? T(0) : state[a].max;
            }
            T total = T(0);
            QK_UNROLL
            for (int b = 0; b < Shape::tn; ++b) {
                s[a][b] = Softmax ? ExpWeight::of(s[a][b], reference) : plain_weight(args.weight, s[a][b]);
                total += s[a][b];
            }
            if (Softmax) sum[a].add(total);
        }

        __syncthreads();  // the weights and values of the tile before have been read
        QK_UNROLL
        for (int b = 0; b < Shape::tn; ++b) {
            QK_UNROLL
            for (int a = 0; a < Shape::tm; ++a)
                w[(tx * Shape::tn + b) * Shape::row_ld + ty * Shape::tm + a] = s[a][b];
        }
        for (int idx = static_cast<int>(threadIdx.x); idx < Shape::cols * Values; idx += Shape::threads) {
            const Index j = col0 + idx / Values, c = c0 + idx % Values;
            const bool live = j < args.scores.n_cols && c < args.n_values;
            v[idx] = live ? static_cast<T>(widen(
                                args.values.data[j * args.values.row_stride + c * args.values.col_stride]))
                          : T(0);
        }
        __syncthreads();
        QK_UNROLL_4
        for (int j = 0; j < Shape::cols; ++j) {
            T ws[Shape::tm], vs[cv];
            QK_UNROLL
            for (int a = 0; a < Shape::tm; ++a) ws[a] = w[j * Shape::row_ld + ty * Shape::tm + a];
            QK_UNROLL
            for (int c = 0; c < cv; ++c) vs[c] = v[j * Values + tx * cv + c];
            QK_UNROLL
            for (int a = 0; a < Shape::tm; ++a) {
                QK_UNROLL
                for (int c = 0; c < cv; ++c) acc[a][c] = qk::fma(ws[a], vs[c], acc[a][c]);
            }
        }
    }

    QK_UNROLL
    for (int a = 0; a < Shape::tm; ++a) {
        if (Softmax) state[a].sum = add_over_lanes(sum[a].value(), Shape::tx);
        const Index i = row0 + ty * Shape::tm + a;
        if (i < args.scores.n_rows) {
            if (Softmax && tx == 0 && blockIdx.z == 0) write_state(args, i, state[a]);
            QK_UNROLL
            for (int c = 0; c < cv; ++c)
                if (c0 + tx * cv + c < args.n_values)
                    write_product(args, i, c0 + tx * cv + c, state[a], acc[a][c]);
        }
    }
}

// Merges the splits in their order, one thread per number of the result.
template <class T, class In, int Threads, bool Softmax>
__global__ void QK_BOUNDS(Threads) merge_rows(QK_PARAM RowArgs<T, In> args, int splits) {
    const Index n = args.scores.n_rows, width = args.n_values > 0 ? args.n_values : 1;
    const Index at = static_cast<Index>(blockIdx.x) * Threads + threadIdx.x;
    if (at >= n * width) return;
    const Index i = at / width, c = at % width;
    SoftmaxState<T> state;
    T acc = T(0);
    for (int split = 0; split < splits; ++split) {
        T own = T(1), others = T(1);
        if (Softmax) {
            SoftmaxState<T> other;
            other.max = args.part_max[split * n + i];
            other.sum = args.part_sum[split * n + i];
            state.merge(other, own, others);
        }
        if (args.n_values > 0) acc = acc * own + args.part_product[split * n * width + at] * others;
    }
    if (Softmax && c == 0 && args.log_sum_exp != nullptr) args.log_sum_exp[i] = state.log_sum_exp();
    if (args.n_values > 0) args.product[at] = finished(args.weight, state, acc);
}

}  // namespace qk::cuda
