// Reductions that use every entry without a shift: both marginals at once, and the matrix itself.
#include <cmath>

#include "engine/online_rows.hpp"
#include "engine/walk.hpp"
#include "qk/engine.hpp"

namespace qk {
namespace {

// One row of a tile: weights exp(s) are added to the row sum and, entry by entry, to the column sums. `ahead`: see
// weigh_row. It is not inlined, because GCC 12 makes the inlined loop a sixth slower.
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

// Each share of the rows has column sums, which are added in the order of the shares. A block of rows is summed
// separately first, so that the rounding errors of long columns of similar terms do not add up.
template <class T>
struct ColumnSumsOfShare : WalkLocal<T> {
    Buffer<double> total;
    Buffer<T> in_tile;
};

template <class T>
class Marginals {
public:
    static constexpr Keeps keeps = Keeps::row;
    using Local = ColumnSumsOfShare<T>;

    Marginals(const MarginalTask<T>& task, Index n_shares)
        : task_(task),
          rows_(static_cast<std::size_t>(task.problem.n_rows), 0.0),
          shares_(static_cast<std::size_t>(n_shares)) {}

    Local& local(const Piece& piece, int) { return shares_[static_cast<std::size_t>(piece.part)]; }

    bool start_piece(Local& local, const Piece& piece, const Run& run, int worker) const {
        const Index n = round_up(piece.end_col, MicroTile<T>::cols);
        local.total.reserve(n);
        local.in_tile.reserve(n);
        return in_pieces(run, worker, n, [&](Index from, Index to) {
            std::fill(local.total.data() + from, local.total.data() + to, 0.0);
            std::fill(local.in_tile.data() + from, local.in_tile.data() + to, T(0));
        });
    }

    void row(Local& local, const Block<T>&, const Tile&, const Row<T>& row) {
        rows_[static_cast<std::size_t>(row.i)] +=
            static_cast<double>(add_marginals(row.s, row.padded, local.in_tile.data(), row.ahead));
    }

    void end_tile(Local& local, const Block<T>&, const Tile& tile) const {
        for (Index c = 0; c < tile.padded; ++c) {
            local.total[tile.first_col + c] += static_cast<double>(local.in_tile[c]);
            local.in_tile[c] = T(0);
        }
    }

    // Returns false if it was stopped.
    bool write(const Run& run, bool& finite) const {
        const auto put = [&](T* out, Index at, double sum) {
            out[at] = static_cast<T>(sum);
            finite = finite && std::isfinite(out[at]);
        };
        return in_pieces(run, 0, task_.problem.n_rows,
                         [&](Index from, Index to) {
                             for (Index i = from; i < to; ++i)
                                 put(task_.rows, i, rows_[static_cast<std::size_t>(i)]);
                         }) &&
               in_pieces(run, 0, task_.problem.n_cols, [&](Index from, Index to) {
                   for (Index j = from; j < to; ++j) {
                       double sum = 0;
                       for (const auto& share : shares_) sum += share.total[j];
                       put(task_.cols, j, sum);
                   }
               });
    }

private:
    const MarginalTask<T>& task_;
    std::vector<double> rows_;
    std::vector<Local> shares_;
};

template <class T>
bool marginals_of(const MarginalTask<T>& task, const Run& run, bool& finite) {
    const Problem<T>& p = task.problem;
    const Walked<T> w = prepare(p, whole_row_tiling(p), MatrixView<T>{}, 0, run);
    const auto shares = cut_shares(0, p.n_rows, p.n_cols, w.tiling.block_rows, run.n_threads);
    Marginals<T> reducer(task, static_cast<Index>(shares.size()));
    return walk<T>({&w, 1}, shares, reducer, run) && reducer.write(run, finite);
}

// Turns two packs of scores into plain weights exp(s).
template <class T>
struct Raw {
    QK_INLINE void operator()(Pack<T> (&)[2]) const {}
};
template <class T>
struct Exponential {
    QK_INLINE void operator()(Pack<T> (&s)[2]) const { exp_each<T, 2>(s); }
};

// Writes the weights of one row of a tile; returns false if one of them is +inf or NaN. The row is padded to
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

// Writes the weights themselves, or the scores.
template <class T>
class WeightOutput {
public:
    static constexpr Keeps keeps = Keeps::row;
    using Local = WalkLocal<T>;

    WeightOutput(const std::vector<DenseTask<T>>& tasks, bool raw, Weight weight, int n_workers)
        : tasks_(tasks), raw_(raw), weight_(weight), locals_(static_cast<std::size_t>(n_workers)) {}

    Local& local(const Piece&, int worker) { return locals_[static_cast<std::size_t>(worker)]; }

    void row(Local&, const Block<T>& at, const Tile& tile, const Row<T>& row) {
        if (!write(row.s, tile.n_cols, out_row(at, row.i) + tile.first_col))
            overflow_.store(true, std::memory_order_relaxed);
    }

    void skipped(Local&, const Block<T>& at, Index first_col, Index end_col) const {
        for (Index i = at.first_row; i < at.first_row + at.n_rows; ++i)
            std::fill(out_row(at, i) + first_col, out_row(at, i) + end_col, raw_ ? -infinity<T>() : T(0));
    }

    Status status() const { return overflow_.load() ? Status::overflow : Status::ok; }

private:
    T* out_row(const Block<T>& at, Index i) const {
        const DenseTask<T>& task = tasks_[static_cast<std::size_t>(at.piece.problem)];
        return task.out + i * task.row_stride;
    }

    bool write(const T* s, Index n, T* out) const {
        if (raw_) return write_row(s, n, Raw<T>{}, out);
        switch (weight_) {
            case Weight::softmax:  // SoftmaxOutput handles this case
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

    const std::vector<DenseTask<T>>& tasks_;
    const bool raw_;
    const Weight weight_;
    std::vector<Local> locals_;
    std::atomic<bool> overflow_{false};
};

// As many rows as the L2 cache can hold until their sums are known. Tall blocks stay tall: down the columns of a matrix
// they read each cache line less often, which saves more than a second read of the weights from the L3 cache costs.
template <class T>
Index softmax_block_rows(const Problem<T>& problem, const Tiling& t) {
    if (t.block_rows > tuning::flat_block_rows) return t.block_rows;
    const Index row_bytes = std::max<Index>(1, problem.n_cols) * static_cast<Index>(sizeof(T));
    return std::clamp<Index>(tuning::output_l2_bytes / row_bytes, 1, t.block_rows);
}

template <class T>
struct OnlineLocal : WalkLocal<T> {
    OnlineRows<T> online;
};

// Writes the row softmax with one exponential per entry. Weights are relative to the largest score so far, and are
// corrected after the last tile, while the rows are in the cache.
template <class T>
class SoftmaxOutput {
public:
    static constexpr Keeps keeps = Keeps::row;
    using Local = OnlineLocal<T>;

    SoftmaxOutput(const std::vector<DenseTask<T>>& tasks, int n_workers)
        : tasks_(tasks), locals_(static_cast<std::size_t>(n_workers)) {}

    Local& local(const Piece&, int worker) { return locals_[static_cast<std::size_t>(worker)]; }

    bool start_piece(Local& local, const Piece& piece, const Run&, int) const {
        const DenseTask<T>& task = tasks_[static_cast<std::size_t>(piece.problem)];
        const Tiling t = tiling(task.problem);
        local.online.reserve(t.block_rows, task.problem.n_cols, t.tile_cols);
        return true;
    }

    void start_block(Local& local, const Block<T>&) const { local.online.start(); }

    void row(Local& local, const Block<T>& at, const Tile& tile, const Row<T>& row) const {
        local.online.weigh_into(row.r, tile.first_col, tile.n_cols, row.padded, row.s, row.top(), row.ahead,
                                out_row(at, row.i) + tile.first_col);
    }

    void skipped(Local&, const Block<T>& at, Index first_col, Index end_col) const {
        for (Index i = at.first_row; i < at.first_row + at.n_rows; ++i)
            std::fill(out_row(at, i) + first_col, out_row(at, i) + end_col, T(0));
    }

    void end_block(Local& local, const Block<T>& at, const Run& run, int worker) {
        const Index n_cols = at.piece.end_col, tile_cols = at.walked.tiling.tile_cols;
        for (Index r = 0; r < at.n_rows; ++r) {
            const auto& state = local.online.state(r);
            if (state.empty()) continue;  // everything is masked, and the row is all zeros
            if (!std::isfinite(state.max) || !std::isfinite(state.sum))
                overflow_.store(true, std::memory_order_relaxed);
            T* out = out_row(at, at.first_row + r);
            for (Index first = 0; first < n_cols; first += tile_cols) {
                if (first > 0 && should_stop(run, worker)) return;
                const auto factor = static_cast<T>(local.online.factor(r, first) / state.sum);
                const Index end = std::min(first + tile_cols, n_cols);
                for (Index k = first; k < end; ++k) out[k] *= factor;
            }
        }
    }

    Status status() const { return overflow_.load() ? Status::overflow : Status::ok; }

    static Tiling tiling(const Problem<T>& problem) {
        Tiling t = whole_row_tiling(problem);
        t.block_rows = softmax_block_rows(problem, t);
        return t;
    }

private:
    T* out_row(const Block<T>& at, Index i) const {
        const DenseTask<T>& task = tasks_[static_cast<std::size_t>(at.piece.problem)];
        return task.out + i * task.row_stride;
    }

    const std::vector<DenseTask<T>>& tasks_;
    std::vector<Local> locals_;
    std::atomic<bool> overflow_{false};
};

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
    if (!complete.load() || stopped(run)) return Status::interrupted;
    return all_finite.load() ? Status::ok : Status::overflow;
}

template <class T>
Status materialize(const std::vector<DenseTask<T>>& tasks, bool raw, Weight weight, const Run& run) {
    const bool normalised = !raw && weight == Weight::softmax;
    double work = 0;
    for (const auto& task : tasks) work += operations(task.problem, 0);
    const Run scaled = scaled_run(run, work);
    const auto problems =
        prepare_each<T>(static_cast<Index>(tasks.size()), scaled, [&](std::size_t at, const Run& inner) {
            const Problem<T>& p = tasks[at].problem;
            Tiling t = normalised ? SoftmaxOutput<T>::tiling(p) : whole_row_tiling(p);
            // Going row by row only helps to find maxima. Without them blocks are as fast, and faster for short rows.
            if (!normalised) t.row_by_row = false;
            return prepare(p, t, MatrixView<T>{}, 0, inner);
        });
    if (stopped(run)) return Status::interrupted;
    const auto write = [&](auto&& reducer) {
        return walk<T>(problems, cut_all(problems), reducer, scaled) ? reducer.status() : Status::interrupted;
    };
    if (normalised) return write(SoftmaxOutput<T>(tasks, scaled.n_threads));
    return write(WeightOutput<T>(tasks, raw, weight, scaled.n_threads));
}

#define QK_INSTANTIATE(T)                                                       \
    template Status marginals(const std::vector<MarginalTask<T>>&, const Run&); \
    template Status materialize(const std::vector<DenseTask<T>>&, bool, Weight, const Run&);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)

}  // namespace qk
