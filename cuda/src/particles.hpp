// Particles under attention: projections, Runge-Kutta combinations, and one velocity through the row reductions.
#pragma once

#include "rows.hpp"

namespace qk::cuda {

template <class T, int Threads>
__global__ void QK_BOUNDS(Threads) project_points(QK_PARAM ProjectTask<T> task) {
    const Index at = static_cast<Index>(blockIdx.x) * Threads + threadIdx.x;
    if (at >= task.n * task.d_out) return;
    const Index i = at / task.d_out, a = at % task.d_out;
    T sum = T(0);
    for (Index b = 0; b < task.d_in; ++b)
        sum = qk::fma(task.matrix[a * task.d_in + b], task.x[i * task.d_in + b], sum);
    task.out[at] = task.accumulate ? qk::fma(task.scale, sum, task.out[at]) : task.scale * sum;
}

template <class T, int Threads>
__global__ void QK_BOUNDS(Threads) combine_stages(QK_PARAM CombineTask<T> task) {
    const Index at = static_cast<Index>(blockIdx.x) * Threads + threadIdx.x;
    if (at >= task.n) return;
    T sum = T(0);
    for (int s = 0; s < task.n_stages; ++s) sum = qk::fma(task.a[s], task.k[s][at], sum);
    task.out[at] = qk::fma(task.h, sum, task.x[at]);
}

template <class Config, class T>
Outcome run_project(const ProjectTask<T>& task, Stream stream) {
    if (task.n < 0 || task.d_in < 0 || task.d_out < 0)
        return bad("n, d_in or d_out: wanted at least 0, got a negative number");
    if (task.n == 0 || task.d_out == 0) return {};
    if (task.out == nullptr || (task.d_in > 0 && (task.x == nullptr || task.matrix == nullptr)))
        return bad("x, matrix or out: wanted an array, got a null pointer");
    constexpr int threads = Config::vector_threads;
    const Index blocks = ceil_div(task.n * task.d_out, threads);
    if (blocks > max_grid_x) return {Status::too_large, 0, "n: too many points for one launch"};
    return QK_LAUNCH((project_points<T, threads>), static_cast<unsigned>(blocks), threads, 0, stream, task);
}

template <class Config, class T>
Outcome run_combine(const CombineTask<T>& task, Stream stream) {
    if (task.n < 0) return bad("n: wanted at least 0, got a negative number");
    if (task.n_stages < 0 || task.n_stages > max_stages) return bad("n_stages: wanted 0 to max_stages");
    if (task.n == 0) return {};
    if (task.x == nullptr || task.out == nullptr) return bad("x or out: wanted an array, got a null pointer");
    for (int s = 0; s < task.n_stages; ++s)
        if (task.k[s] == nullptr) return bad("k: wanted an array for every stage, got a null pointer");
    constexpr int threads = Config::vector_threads;
    const Index blocks = ceil_div(task.n, threads);
    if (blocks > max_grid_x) return {Status::too_large, 0, "n: too many numbers for one launch"};
    return QK_LAUNCH((combine_stages<T, threads>), static_cast<unsigned>(blocks), threads, 0, stream, task);
}

// Scratch memory of one head: its queries, its keys and its product.
template <class T>
struct VelocityRoom {
    T *queries, *keys, *product;

    VelocityRoom(const VelocityTask<T>& task, Cutter& room)
        : queries(room.take<T>(task.n * task.d_head)),
          keys(room.take<T>(task.n * task.d_head)),
          product(room.take<T>(task.n * task.d)) {}
};

template <class T>
RowTask<T> head_task(const VelocityTask<T>& task, const VelocityRoom<T>& room) {
    RowTask<T> rows;
    rows.scores.n_rows = rows.scores.n_cols = task.n;
    rows.scores.n_features = 1;
    rows.scores.features[0] = {
        task.kind, {room.queries, task.d_head, 1}, {room.keys, task.d_head, 1}, task.d_head, task.scale};
    rows.scores.band = task.band;
    if (task.mask != nullptr) {
        rows.scores.n_masks = 1;
        rows.scores.masks[0] = {task.mask, task.n, 1};
    }
    rows.weight = task.weight;
    rows.values = {task.x, task.d, 1};
    rows.n_values = task.d;
    rows.product = room.product;
    return rows;
}

template <class Config, class T>
std::size_t velocity_workspace(const VelocityTask<T>& task) {
    Cutter cutter(nullptr);
    VelocityRoom<T> room(task, cutter);
    T one{};
    room.product = &one;  // any address will do: it only says that the task has a product
    return cutter.used() + row_workspace<Config, T, T>(head_task(task, room));
}

template <class Config, class T>
Outcome run_velocity(const VelocityTask<T>& task, Workspace space, Stream stream) {
    if (task.n < 0 || task.d < 1 || task.d_head < 1 || task.heads < 1)
        return bad("n, d, d_head or heads: wanted n of at least 0, and the others of at least 1");
    if (task.n == 0) return {};
    if (task.x == nullptr || task.Q == nullptr || task.K == nullptr || task.V == nullptr ||
        task.out == nullptr)
        return bad("x, Q, K, V or out: wanted an array, got a null pointer");
    QK_TRY(check_room(space, velocity_workspace<Config>(task)));
    Cutter cutter(space.data);
    const VelocityRoom<T> room(task, cutter);
    const Workspace rest{static_cast<unsigned char*>(space.data) + cutter.used(),
                         space.bytes - cutter.used()};
    const Index size = task.d_head * task.d;
    for (Index h = 0; h < task.heads; ++h) {
        QK_TRY((run_project<Config, T>(
            {task.n, task.d, task.d_head, task.x, task.Q + h * size, T(1), false, room.queries}, stream)));
        QK_TRY((run_project<Config, T>(
            {task.n, task.d, task.d_head, task.x, task.K + h * size, T(1), false, room.keys}, stream)));
        QK_TRY((run_rows<Config, T, T>(head_task(task, room), rest, stream)));
        const T scale = task.mean ? T(1) / static_cast<T>(task.n) : T(1);
        QK_TRY((run_project<Config, T>(
            {task.n, task.d, task.d, room.product, task.V + h * task.d * task.d, scale, h > 0, task.out},
            stream)));
    }
    return {};
}

}  // namespace qk::cuda
