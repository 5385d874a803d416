// Sinkhorn's iteration on a stored kernel. A block takes a few rows, computes their products with v, and adds the
// scaled rows to its column sums while they are still in the cache: each entry comes from memory once.
#pragma once

#include "sweep.hpp"

namespace qk::cuda {

constexpr int scaling_rows = 8;

template <class T>
struct ScalingArgs {
    Index n_rows, n_cols;
    const T* kernel;
    Index row_stride;
    const T *v, *mu;
    T* u;
    T* partial;  // gridDim.x x n_cols
    Index n_strips;
};

template <class T, int Threads>
__global__ void QK_BOUNDS(Threads) scaling_strips(QK_PARAM ScalingArgs<T> args) {
    constexpr int warps = Threads / 32;
    QK_SHARED(T, sums, warps * scaling_rows);
    QK_SHARED(T, scales, scaling_rows);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    T* const mine = args.partial + static_cast<Index>(blockIdx.x) * args.n_cols;

    bool first = true;
    for (Index strip = blockIdx.x; strip < args.n_strips; strip += gridDim.x) {
        const Index row0 = strip * scaling_rows;
        T dot[scaling_rows] = {};
        for (Index j = threadIdx.x; j < args.n_cols; j += Threads) {
            const T v = args.v[j];
            QK_UNROLL
            for (int r = 0; r < scaling_rows; ++r)
                if (row0 + r < args.n_rows)
                    dot[r] = qk::fma(args.kernel[(row0 + r) * args.row_stride + j], v, dot[r]);
        }
        QK_UNROLL
        for (int r = 0; r < scaling_rows; ++r) {
            const T total = add_over_lanes(dot[r], 32);
            if (lane == 0) sums[warp * scaling_rows + r] = total;
        }
        __syncthreads();
        if (threadIdx.x < scaling_rows) {
            const int r = static_cast<int>(threadIdx.x);
            T total = T(0), scale = T(0);
            for (int w = 0; w < warps; ++w) total += sums[w * scaling_rows + r];
            if (row0 + r < args.n_rows) {
                const T mu = args.mu[row0 + r];
                scale = mu == T(0) || total == T(0) ? T(0) : mu / total;
                args.u[row0 + r] = scale;
            }
            scales[r] = scale;
        }
        __syncthreads();
        for (Index j = threadIdx.x; j < args.n_cols; j += Threads) {
            T column = T(0);
            QK_UNROLL
            for (int r = 0; r < scaling_rows; ++r)
                if (row0 + r < args.n_rows)
                    column = qk::fma(args.kernel[(row0 + r) * args.row_stride + j], scales[r], column);
            put_column(mine, j, column, first);
        }
        first = false;
        __syncthreads();
    }
}

template <class T>
Index scaling_blocks(const ScalingTask<T>& task) {
    const Index strips = ceil_div(task.n_rows, scaling_rows);
    return strips < sweep_blocks ? strips : sweep_blocks;
}

template <class Config, class T>
std::size_t scaling_workspace(const ScalingTask<T>& task) {
    Cutter room(nullptr);
    room.take<T>(scaling_blocks(task) * task.n_cols);
    take_pairs<Config>(room, task.n_cols, task.residual != nullptr);
    return room.used();
}

template <class Config, class T>
Outcome run_scaling(const ScalingTask<T>& task, Workspace room, Stream stream) {
    if (task.n_rows <= 0 || task.n_cols <= 0)
        return bad("kernel: wanted at least one row and one column, got none");
    if (task.row_stride < task.n_cols)
        return bad("row_stride: wanted at least the number of columns, got less");
    if (task.kernel == nullptr || task.v == nullptr || task.mu == nullptr || task.nu == nullptr)
        return bad("kernel, v, mu or nu: wanted an array, got a null pointer");
    if (task.u == nullptr || task.columns == nullptr || task.v_new == nullptr)
        return bad("u, columns or v_new: wanted an array, got a null pointer");
    QK_TRY(check_room(room, scaling_workspace<Config>(task)));
    const Index blocks = scaling_blocks(task);
    Cutter cutter(room.data);
    T* const partial = cutter.take<T>(blocks * task.n_cols);
    double* const pairs = take_pairs<Config>(cutter, task.n_cols, task.residual != nullptr);
    const ScalingArgs<T> args{task.n_rows,     task.n_cols, task.kernel,
                              task.row_stride, task.v,      task.mu,
                              task.u,          partial,     ceil_div(task.n_rows, scaling_rows)};
    constexpr int threads = Config::vector_threads;
    QK_TRY(QK_LAUNCH((scaling_strips<T, threads>), static_cast<unsigned>(blocks), threads, 0, stream, args));
    FinishArgs<T> last{};
    last.partial = partial;
    last.n_parts = static_cast<int>(blocks);
    last.n_cols = task.n_cols;
    last.nu = task.nu;
    last.potential = task.v;
    last.damping = T(1);
    last.columns = task.columns;
    last.updated = task.v_new;
    return finish<Config, true>(last, pairs, task.residual, stream);
}

}  // namespace qk::cuda
