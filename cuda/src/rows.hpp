// The host side of the row reductions, for any configuration of tiles.
#pragma once

#include "checks.hpp"
#include "configs.hpp"
#include "rows_kernels.hpp"

namespace qk::cuda {

template <class Config, class T, class In>
struct RowPlan {
    using Set = Tiles<Config, T>;
    bool narrow;
    Index strips, chunks, split_cols;
    int splits;

    explicit RowPlan(const RowTask<T, In>& task) {
        const Index width = task.product != nullptr ? task.n_values : 0;
        narrow = sizeof(In) == sizeof(T) && width <= Set::narrow_values;
        const Index rows = narrow ? Set::Narrow::rows : Set::Wide::rows;
        const Index cols = narrow ? Set::Narrow::cols : Set::Wide::cols;
        strips = ceil_div(task.scores.n_rows, rows);
        chunks = narrow || width == 0 ? 1 : ceil_div(width, Set::wide_values);
        const Index tiles = ceil_div(task.scores.n_cols, cols);
        // Enough blocks for the largest device that we know (132 multiprocessors, three blocks each). A split of
        // fewer than eight tiles would not be worth the merging.
        Index wanted = task.column_splits;
        if (wanted <= 0) {
            wanted = strips > 0 ? 396 / (strips * chunks) : 1;
            wanted = wanted < tiles / 8 ? wanted : tiles / 8;
        }
        wanted = wanted < tiles ? wanted : tiles;
        wanted = wanted < 1 ? 1 : wanted > 256 ? 256 : wanted;
        const Index per_split = ceil_div(tiles, wanted);
        split_cols = (per_split < 1 ? 1 : per_split) * cols;
        splits = static_cast<int>(tiles == 0 ? 1 : ceil_div(tiles, per_split));
    }
};

template <class T, class In>
void cut(const RowTask<T, In>& task, int splits, Cutter& room, RowArgs<T, In>& args) {
    args.part_max = args.part_sum = args.part_product = nullptr;
    if (splits == 1) return;
    const Index n = task.scores.n_rows;
    args.part_max = room.template take<T>(splits * n);
    args.part_sum = room.template take<T>(splits * n);
    if (task.product != nullptr) args.part_product = room.template take<T>(splits * n * task.n_values);
}

template <class Config, class T, class In>
std::size_t row_workspace(const RowTask<T, In>& task) {
    Cutter room(nullptr);
    RowArgs<T, In> args{};
    cut(task, RowPlan<Config, T, In>(task).splits, room, args);
    return room.used();
}

template <class Config, class T, class In, bool Softmax>
Outcome launch_rows(const RowArgs<T, In>& args, const RowPlan<Config, T, In>& plan, Stream stream) {
    using Set = Tiles<Config, T>;
    const dim3 grid(static_cast<unsigned>(plan.strips), static_cast<unsigned>(plan.splits),
                    static_cast<unsigned>(plan.chunks));
    if (plan.narrow) {
        if constexpr (sizeof(In) == sizeof(T)) {  // inputs of 16 bits always use the wide kernel
            if (args.n_values > 0)
                QK_TRY(QK_LAUNCH((reduce_narrow<T, In, typename Set::Narrow, Set::narrow_values, Softmax>),
                                 grid, Set::Narrow::threads, 0, stream, args));
            else if constexpr (Softmax)
                QK_TRY(QK_LAUNCH((reduce_narrow<T, In, typename Set::Narrow, 0, true>), grid,
                                 Set::Narrow::threads, 0, stream, args));
        }
    } else {
        QK_TRY(QK_LAUNCH((reduce_wide<T, In, typename Set::Wide, Set::wide_values, Softmax>), grid,
                         Set::Wide::threads, 0, stream, args));
    }
    if (plan.splits == 1) return {};
    constexpr int threads = Config::vector_threads;
    const Index numbers = args.scores.n_rows * (args.n_values > 0 ? args.n_values : 1);
    const Index blocks = ceil_div(numbers, threads);
    if (blocks > max_grid_x) return {Status::too_large, 0, "product: too many numbers for one launch"};
    return QK_LAUNCH((merge_rows<T, In, threads, Softmax>), static_cast<unsigned>(blocks), threads, 0, stream,
                     args, plan.splits);
}

template <class Config, class T, class In>
Outcome run_rows(const RowTask<T, In>& task, Workspace room, Stream stream) {
    QK_TRY(check(task.scores));
    const bool softmax = task.weight == Weight::softmax || task.weight == Weight::exp;
    if (task.n_values < 0) return bad("n_values: wanted at least 0, got a negative number");
    if (!softmax && task.log_sum_exp != nullptr) return bad("log_sum_exp: only with weights softmax and exp");
    const bool product = task.product != nullptr && task.n_values > 0;
    if (product && task.scores.n_cols > 0 && task.values.data == nullptr)
        return bad("values: wanted an array, got a null pointer");
    if (task.scores.n_rows == 0 || (!product && task.log_sum_exp == nullptr)) return {};

    const RowPlan<Config, T, In> plan(task);
    if (plan.strips > max_grid_x || plan.chunks > 65535)
        return {Status::too_large, 0, "scores or values: too many blocks for one launch"};
    QK_TRY(check_room(room, row_workspace<Config, T, In>(task)));

    RowArgs<T, In> args{};
    args.scores = task.scores;
    args.weight = task.weight;
    args.values = task.values;
    args.n_values = product ? task.n_values : 0;
    args.split_cols = plan.split_cols;
    args.log_sum_exp = task.log_sum_exp;
    args.product = task.product;
    Cutter cutter(room.data);
    cut(task, plan.splits, cutter, args);
    if (softmax) return launch_rows<Config, T, In, true>(args, plan, stream);
    if constexpr (sizeof(In) == sizeof(T)) return launch_rows<Config, T, In, false>(args, plan, stream);
    return bad("weight: inputs of 16 bits are compiled for softmax and exp");
}

}  // namespace qk::cuda
