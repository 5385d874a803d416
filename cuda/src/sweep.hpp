// The host side of marginals, the Sinkhorn sweep and dense output, for any configuration of tiles.
#pragma once

#include "checks.hpp"
#include "configs.hpp"
#include "sweep_kernels.hpp"

namespace qk::cuda {

// The number of blocks that walk strips. It is large enough for the devices that we know, and small enough that the
// column sums and strips of weights of all blocks stay small. It does not depend on the device, so results do not.
constexpr Index sweep_blocks = 216;

template <class Shape, class T>
Index strip_blocks(const Scores<T>& scores) {
    const Index strips = ceil_div(scores.n_rows, Shape::rows);
    return strips < sweep_blocks ? strips : sweep_blocks;
}

// ---- the second stage ---------------------------------------------------------------------------

template <class Config, bool Scaling, class T>
Outcome finish(FinishArgs<T> args, double* pairs, double* residual, Stream stream) {
    if (args.n_cols == 0) return {};
    constexpr int threads = Config::vector_threads;
    const Index blocks = ceil_div(args.n_cols, threads);
    if (blocks > max_grid_x) return {Status::too_large, 0, "scores: too many columns for one launch"};
    args.residual = residual != nullptr ? pairs : nullptr;
    QK_TRY(QK_LAUNCH((finish_columns<T, threads, Scaling>), static_cast<unsigned>(blocks), threads, 0, stream,
                     args));
    if (residual == nullptr) return {};
    return QK_LAUNCH((finish_residual<32>), 1, 32, 0, stream, pairs, blocks, residual);
}

template <class Config>
double* take_pairs(Cutter& room, Index n_cols, bool wanted) {
    return wanted ? room.take<double>(2 * ceil_div(n_cols, Config::vector_threads)) : nullptr;
}

// ---- marginals ----------------------------------------------------------------------------------

template <class Config, class T>
std::size_t marginal_workspace(const MarginalTask<T>& task) {
    using Shape = typename Tiles<Config, T>::Strip;
    Cutter room(nullptr);
    room.take<T>(strip_blocks<Shape>(task.scores) * task.scores.n_cols);
    return room.used();
}

template <class Config, class T>
Outcome run_marginals(const MarginalTask<T>& task, Workspace room, Stream stream) {
    using Shape = typename Tiles<Config, T>::Strip;
    QK_TRY(check(task.scores));
    if (task.scores.n_rows == 0 || task.scores.n_cols == 0)
        return bad("scores: wanted at least one row and one column, got none");
    if (task.cols == nullptr) return bad("cols: wanted an array, got a null pointer");
    QK_TRY(check_room(room, marginal_workspace<Config>(task)));
    const Index blocks = strip_blocks<Shape>(task.scores);
    MarginalArgs<T> args{task.scores, task.rows, nullptr, ceil_div(task.scores.n_rows, Shape::rows)};
    Cutter cutter(room.data);
    args.partial = cutter.take<T>(blocks * task.scores.n_cols);
    QK_TRY(QK_LAUNCH((marginal_strips<T, Shape>), static_cast<unsigned>(blocks), Shape::threads, 0, stream,
                     args));
    FinishArgs<T> last{};
    last.partial = args.partial;
    last.n_parts = static_cast<int>(blocks);
    last.n_cols = task.scores.n_cols;
    last.columns = task.cols;
    return finish<Config, false>(last, nullptr, nullptr, stream);
}

// ---- the Sinkhorn sweep -------------------------------------------------------------------------

template <class Config, class T>
std::size_t sweep_workspace(const SweepTask<T>& task) {
    using Shape = typename Tiles<Config, T>::Strip;
    const Index blocks = strip_blocks<Shape>(task.scores);
    Cutter room(nullptr);
    room.take<T>(blocks * task.scores.n_cols);
    take_pairs<Config>(room, task.scores.n_cols, task.residual != nullptr);
    if (task.store_weights) room.take<T>(blocks * Shape::rows * task.scores.n_cols);
    return room.used();
}

template <class Config, class T>
Outcome run_sweep(const SweepTask<T>& task, Workspace room, Stream stream) {
    using Shape = typename Tiles<Config, T>::Strip;
    QK_TRY(check(task.scores));
    if (task.scores.n_rows == 0 || task.scores.n_cols == 0)
        return bad("scores: wanted at least one row and one column, got none");
    if (task.scores.n_col_bias >= max_biases)
        return bad("scores: wanted fewer than max_biases column biases, because g is one more");
    if (task.g == nullptr || task.mu == nullptr) return bad("g or mu: wanted an array, got a null pointer");
    if (task.lse == nullptr || task.columns == nullptr)
        return bad("lse or columns: wanted an array, got a null pointer");
    if (task.nu == nullptr && (task.g_new != nullptr || task.residual != nullptr))
        return bad("nu: wanted an array, because g_new or residual needs it, got a null pointer");
    QK_TRY(check_room(room, sweep_workspace<Config>(task)));

    const Index n_cols = task.scores.n_cols, blocks = strip_blocks<Shape>(task.scores);
    SweepArgs<T> args{};
    args.scores = task.scores;
    args.scores.col_bias[args.scores.n_col_bias++] = task.g;
    args.mu = task.mu;
    args.row_damping = task.row_damping;
    args.shift = task.shift;
    args.lse = task.lse;
    args.f = task.f;
    args.n_strips = ceil_div(task.scores.n_rows, Shape::rows);
    Cutter cutter(room.data);
    args.partial = cutter.take<T>(blocks * n_cols);
    double* const pairs = take_pairs<Config>(cutter, n_cols, task.residual != nullptr);
    if (task.store_weights) args.weights = cutter.take<T>(blocks * Shape::rows * n_cols);
    QK_TRY(QK_LAUNCH((sinkhorn_strips<T, Shape>), static_cast<unsigned>(blocks), Shape::threads, 0, stream,
                     args));

    FinishArgs<T> last{};
    last.partial = args.partial;
    last.n_parts = static_cast<int>(blocks);
    last.n_cols = n_cols;
    last.nu = task.nu;
    last.potential = task.g;
    last.damping = task.col_damping;
    last.columns = task.columns;
    last.updated = task.g_new;
    return finish<Config, false>(last, pairs, task.residual, stream);
}

// ---- dense output -------------------------------------------------------------------------------

template <class Config, class T>
Outcome run_dense(const DenseTask<T>& task, Stream stream) {
    using Shape = typename Tiles<Config, T>::Strip;
    QK_TRY(check(task.scores));
    if (task.scores.n_rows == 0 || task.scores.n_cols == 0) return {};
    if (task.out == nullptr) return bad("out: wanted an array, got a null pointer");
    if (task.row_stride < task.scores.n_cols)
        return bad("row_stride: wanted at least the number of columns, got less");
    const Index strips = ceil_div(task.scores.n_rows, Shape::rows),
                tiles = ceil_div(task.scores.n_cols, Shape::cols);
    if (strips > max_grid_x || tiles > 65535)
        return {Status::too_large, 0, "scores: too many tiles for one launch"};
    const DenseArgs<T> args{task.scores, task.raw, task.out, task.row_stride};
    const dim3 grid(static_cast<unsigned>(strips), static_cast<unsigned>(tiles));
    return QK_LAUNCH((dense_tile<T, Shape>), grid, Shape::threads, 0, stream, args);
}

}  // namespace qk::cuda
