// Reductions that see every entry unshifted: both marginals at once, and the matrix itself.
#include <cmath>

#include "engine/online_rows.hpp"
#include "engine/row_kernels.hpp"
#include "engine/tile_walk.hpp"
#include "qk/engine.hpp"

namespace qk {
namespace {

// One row of a tile: weights exp(s), added to the row sum and, entry by entry, to the column sums. `ahead`: see
// weigh_row. A function of its own: inlined by GCC 12, the loop is a sixth slower.
template <class T>
[[gnu::noinline]] T add_marginals(const T* s, Index n, T* col_sums, const T* ahead) {
    constexpr int width = SimdTraits<T>::width;
    Pack<T> sum[2] = {};
    for (Index j = 0; j < n; j += 2 * width) {
        Pack<T> w[2] = {load(s + j), load(s + j + width)};
        if (ahead != nullptr) fetch(ahead + j);
        exp_each<T, 2>(w);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            sum[h] += w[h];
            store(col_sums + j + h * width, load(col_sums + j + h * width) + w[h]);
        }
    }
    return reduce_add<T>(sum[0] + sum[1]);
}

bool clear(double* sums, Index n, const Run& run, int worker) {
    return in_pieces(run, worker, n, [&](Index from, Index to) { std::fill(sums + from, sums + to, 0.0); });
}

// False when it was stopped.
template <class T>
bool write_sums(const MarginalTask<T>& task, const std::vector<double>& rows,
                const std::vector<Buffer<double>>& parts, const Run& run, bool& finite) {
    const auto write = [&](T* out, Index at, double sum) {
        out[at] = static_cast<T>(sum);
        finite = finite && std::isfinite(out[at]);
    };
    return in_pieces(run, 0, task.problem.n_rows,
                     [&](Index from, Index to) {
                         for (Index i = from; i < to; ++i)
                             write(task.rows, i, rows[static_cast<std::size_t>(i)]);
                     }) &&
           in_pieces(run, 0, task.problem.n_cols, [&](Index from, Index to) {
               for (Index j = from; j < to; ++j) {
                   double sum = 0;
                   for (const auto& part : parts) sum += part[j];
                   write(task.cols, j, sum);
               }
           });
}

template <class T>
bool marginals_of(const MarginalTask<T>& task, const Run& run, bool& finite) {
    const Problem<T>& p = task.problem;
    const PackedColumns<T> columns = pack_columns(p, MatrixView<T>{}, 0, run);
    const Tiling t = choose_tiling(p, 0);
    // Column sums: one partial per thread over a fixed range of rows, added in the order of the ranges. A
    // block of rows is summed by itself first, so that long columns of like terms do not drift.
    const Index n_blocks = (p.n_rows + t.block_rows - 1) / t.block_rows;
    const Index n_parts = std::min<Index>(run.n_threads, n_blocks);
    std::vector<double> rows(static_cast<std::size_t>(p.n_rows), 0.0);
    std::vector<Buffer<double>> parts(static_cast<std::size_t>(n_parts));
    std::vector<RowBlock<T>> blocks(static_cast<std::size_t>(n_parts));
    std::atomic<bool> complete{true};
    parallel_for(run, n_parts, [&](Index part, int worker) {
        auto& cols = parts[static_cast<std::size_t>(part)];
        cols.reserve(columns.n_padded);
        if (!clear(cols.data(), columns.n_padded, run, worker)) return;
        Buffer<T> in_block(std::min(t.tile_cols, columns.n_padded));
        const Index first = part * n_blocks / n_parts * t.block_rows;
        const Index end = std::min((part + 1) * n_blocks / n_parts * t.block_rows, p.n_rows);
        RowBlock<T>& block = blocks[static_cast<std::size_t>(part)];
        const bool done = walk_tiles(
            p, columns, first, end, t, block, run, worker, [&](Index padded, Index j, Index, Index ld) {
                std::fill(in_block.data(), in_block.data() + padded, T(0));
                for (Index r = 0; r < block.n_rows; ++r)
                    rows[static_cast<std::size_t>(block.first_row + r)] += static_cast<double>(add_marginals(
                        block.scores.data() + r * ld, padded, in_block.data(), block.ahead.row(r)));
                for (Index c = 0; c < padded; ++c) cols[j + c] += static_cast<double>(in_block[c]);
            });
        if (!done) complete.store(false);
    });
    if (!complete.load() || (run.stop != nullptr && run.stop->stopped())) return false;
    return write_sums(task, rows, parts, run, finite);
}

// Two packs of scores become weights.
template <class T>
struct Raw {
    QK_INLINE void operator()(Pack<T> (&)[2]) const {}
};
template <class T>
struct Exponential {
    QK_INLINE void operator()(Pack<T> (&s)[2]) const { exp_each<T, 2>(s); }
};

// Weights of one row of a tile, written out; false when one of them is +inf or NaN. The row is padded to
// whole pairs of packs, `out` is not.
template <class T, class Weigh>
bool write_row(const T* s, Index n, const Weigh& weigh, T* out) {
    constexpr Index width = SimdTraits<T>::width;
    auto fine = ~typename SimdTraits<T>::Bits{};
    for (Index c = 0; c < n; c += 2 * width) {
        Pack<T> w[2] = {load(s + c), load(s + c + width)};
        weigh(w);
        if (c + 2 * width <= n) {
            fine &= (w[0] < infinity<T>()) & (w[1] < infinity<T>());
            store(out + c, w[0]);
            store(out + c + width, w[1]);
            continue;
        }
        T tail[2 * width];
        store(tail, w[0]);
        store(tail + width, w[1]);
        for (Index k = 0; k < n - c; ++k) {
            if (!(tail[k] < infinity<T>())) return false;
            out[c + k] = tail[k];
        }
    }
    for (Index i = 0; i < width; ++i)
        if (fine[i] == 0) return false;
    return true;
}

template <class T>
bool write_weights(const T* s, Index n, bool raw, Weight weight, T* out) {
    if (raw) return write_row(s, n, Raw<T>{}, out);
    switch (weight) {
        case Weight::softmax:  // write_softmax
            break;
        case Weight::exp:
            return write_row(s, n, Exponential<T>{}, out);
        case Weight::linear:
            return write_row(s, n, Unshifted<LinearWeight>{}, out);
        case Weight::relu:
            return write_row(s, n, Unshifted<ReluWeight>{}, out);
        case Weight::sigmoid:
            return write_row(s, n, Unshifted<SigmoidWeight>{}, out);
    }
    __builtin_unreachable();
}

// As many rows as the L2 cache keeps until their sums are known. Tall blocks stay: down the columns of a matrix they read
// less often, which saves more than a visit of the weights in the L3 cache costs, and from points it is even.
template <class T>
Index softmax_block_rows(const Problem<T>& problem, const Tiling& t) {
    if (t.block_rows > flat_block_rows) return t.block_rows;
    constexpr Index l2_bytes = 256 << 10;
    const Index row_bytes = std::max<Index>(1, problem.n_cols) * static_cast<Index>(sizeof(T));
    return std::clamp<Index>(l2_bytes / row_bytes, 1, t.block_rows);
}

// The row softmax of a tile, with one exponential per entry, is written out, and put right after the last tile, while the
// rows are in the cache. False when a sum is not finite.
template <class T>
bool write_softmax(RowBlock<T>& block, Index padded, Index j, Index n, Index ld, const DenseTask<T>& task,
                   Index tile_cols, OnlineRows<T>& online, const Run& run, int worker) {
    if (j == 0) online.start();
    const auto row = [&](Index r) { return task.out + (block.first_row + r) * task.row_stride; };
    for (Index r = 0; r < block.n_rows; ++r) {
        T* s = block.scores.data() + r * ld;
        online.weigh_into(r, j, n, padded, s, row_top(block, r, s, padded), block.ahead.row(r), row(r) + j);
    }
    const Index n_cols = task.problem.n_cols;
    if (j + n < n_cols) return true;
    bool finite = true;
    for (Index r = 0; r < block.n_rows; ++r) {
        const auto& state = online.state(r);
        if (state.empty()) continue;  // sees nothing, and is all zeros
        finite = finite && std::isfinite(state.max) && std::isfinite(state.sum);
        for (Index first = 0; first < n_cols; first += tile_cols) {
            if (first > 0 && should_stop(run, worker)) return finite;
            const auto factor = static_cast<T>(online.factor(r, first) / state.sum);
            T* out = row(r) + first;
            const Index count = std::min(tile_cols, n_cols - first);
            for (Index k = 0; k < count; ++k) out[k] *= factor;
        }
    }
    return finite;
}

}  // namespace

template <class T>
Status marginals(const std::vector<MarginalTask<T>>& tasks, const Run& run) {
    std::atomic<bool> complete{true}, all_finite{true};
    const auto one = [&](const MarginalTask<T>& task, const Run& inner) {
        bool finite = true;
        if (!marginals_of(task, inner, finite)) complete.store(false);
        if (!finite) all_finite.store(false);
    };
    double work = 0;
    for (const auto& task : tasks) work += operations(task.problem, 0);
    const Run outer = scaled_run(run, work);
    if (tasks.size() == 1) {
        one(tasks.front(), outer);
    } else {
        parallel_for(outer, static_cast<Index>(tasks.size()), [&](Index i, int worker) {
            one(tasks[static_cast<std::size_t>(i)], alone(run, worker));
        });
    }
    if (!complete.load() || (run.stop != nullptr && run.stop->stopped())) return Status::interrupted;
    return all_finite.load() ? Status::ok : Status::overflow;
}

template <class T>
Status materialize(const std::vector<DenseTask<T>>& tasks, bool raw, Weight weight, const Run& run) {
    const bool normalised = !raw && weight == Weight::softmax;
    double work = 0;
    std::vector<Piece> pieces;
    std::vector<PackedColumns<T>> columns(tasks.size());
    std::vector<Tiling> tiling(tasks.size());
    for (std::size_t at = 0; at < tasks.size(); ++at) {
        const Problem<T>& p = tasks[at].problem;
        work += operations(p, 0);
        columns[at] = pack_columns(p, MatrixView<T>{}, 0, scaled_run(run, operations(p, 0)));
        tiling[at] = choose_tiling(p, 0);
        tiling[at].split_cols = p.n_cols;
        if (normalised) tiling[at].block_rows = softmax_block_rows(p, tiling[at]);
        cut(static_cast<Index>(at), p.n_rows, p.n_cols, tiling[at], pieces);
    }
    const Run scaled = scaled_run(run, work);
    std::vector<RowBlock<T>> blocks(static_cast<std::size_t>(scaled.n_threads));
    std::vector<OnlineRows<T>> online(static_cast<std::size_t>(scaled.n_threads));
    std::atomic<bool> overflow{false};
    parallel_for(scaled, static_cast<Index>(pieces.size()), [&](Index i, int worker) {
        const Piece& piece = pieces[static_cast<std::size_t>(i)];
        const auto at = static_cast<std::size_t>(piece.problem);
        const DenseTask<T>& task = tasks[at];
        RowBlock<T>& block = blocks[static_cast<std::size_t>(worker)];
        OnlineRows<T>& rows = online[static_cast<std::size_t>(worker)];
        const Tiling& t = tiling[at];
        if (normalised) rows.reserve(t.block_rows, task.problem.n_cols, t.tile_cols);
        walk_tiles(
            task.problem, columns[at], piece.first_row, piece.end_row, t, block, scaled, worker,
            [&](Index padded, Index j, Index n, Index ld) {
                bool finite = true;
                if (normalised) {
                    finite = write_softmax(block, padded, j, n, ld, task, t.tile_cols, rows, scaled, worker);
                } else {
                    for (Index r = 0; r < block.n_rows; ++r)
                        finite = write_weights(block.scores.data() + r * ld, n, raw, weight,
                                               task.out + (block.first_row + r) * task.row_stride + j) &&
                                 finite;
                }
                if (!finite) overflow.store(true, std::memory_order_relaxed);
            });
    });
    if (run.stop != nullptr && run.stop->stopped()) return Status::interrupted;
    return overflow.load() ? Status::overflow : Status::ok;
}

#define QK_INSTANTIATE(T)                                                       \
    template Status marginals(const std::vector<MarginalTask<T>>&, const Run&); \
    template Status materialize(const std::vector<DenseTask<T>>&, bool, Weight, const Run&);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)

}  // namespace qk
