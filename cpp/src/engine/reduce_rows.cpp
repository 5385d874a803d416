// Row reductions: log-sum-exp, expected score, entropy and weights times values, in one pass.
#include <cmath>

#include "engine/row_kernels.hpp"
#include "engine/row_scores.hpp"
#include "engine/tiling.hpp"
#include "qk/engine.hpp"
#include "qk/softmax_state.hpp"

namespace qk {
namespace {

// What one row has gathered so far. Sums across tiles are kept in double for both types: they cost one
// addition per row and tile, and long float32 rows lose nothing.
template <class T>
struct RowAccumulators {
    std::vector<SoftmaxState<double>> state;
    std::vector<double> few;  // [row][few_values]
    Buffer<T> many;           // [row][padded values]
    Index ld_many = 0;

    void reset(Index n_rows, Index n_packs) {
        state.assign(static_cast<std::size_t>(n_rows), {});
        few.assign(static_cast<std::size_t>(n_rows * few_values), 0.0);
        ld_many = n_packs * SimdTraits<T>::width;
        many.reserve(n_rows * ld_many);
        std::fill(many.data(), many.data() + n_rows * ld_many, T(0));
    }
};

template <class T>
struct Scratch {
    RowBlock<T> block;
    RowAccumulators<T> acc;
};

template <class T>
class RowReducer {
public:
    RowReducer(const std::vector<RowTask<T>>& tasks, Weight weight, Index n_values, const Run& run)
        : tasks_(tasks), weight_(weight), n_values_(n_values), run_(run) {}

    Status run();

private:
    void piece(const Piece& piece, Scratch<T>& scratch, int worker);
    void tile(Index padded, Index column, const PackedColumns<T>& columns, bool tilt, Scratch<T>& scratch,
              Index ld);
    void tile_by_rows(RowScoresKernel<T> kernel, Index column, Index padded, const PackedColumns<T>& columns,
                      bool tilt, Scratch<T>& scratch);
    void add_row(T* s, Index r, Index padded, T top, const T* ahead, Index column,
                 const PackedColumns<T>& columns, bool tilt, RowAccumulators<T>& acc);
    static double raise(RowAccumulators<T>& acc, Index row, double candidate);
    static void add(RowAccumulators<T>& acc, Index row, const RowSums<T>& sums);
    void finish_block(const Piece& piece, const RowBlock<T>& block, RowAccumulators<T>& acc);
    void finish_row(const RowTask<T>& task, Index row, const SoftmaxState<double>& state, const double* few,
                    const T* many);
    void merge_splits();

    bool exponential() const { return weight_ == Weight::softmax || weight_ == Weight::exp; }

    const std::vector<RowTask<T>>& tasks_;
    const Weight weight_;
    const Index n_values_;
    const Run run_;
    std::vector<PackedColumns<T>> columns_;
    std::vector<Tiling> tiling_;
    // Partial results of problems whose columns are cut, [split][row].
    std::vector<std::vector<RowAccumulators<T>>> partial_;
    std::atomic<bool> overflow_{false};
};

template <class T, int K, bool Tilt, bool Store>
RowSums<T> weigh(Weight weight, T* s, Index n, T shift, const T* values, Index ldv, const T* ahead) {
    switch (weight) {
        case Weight::softmax:
        case Weight::exp:
            return weigh_row<ShiftedExp<T>, T, K, Tilt, Store>(s, n, {broadcast(shift)}, shift, values, ldv,
                                                               s, ahead);
        case Weight::linear:
            return weigh_row<Unshifted<LinearWeight>, T, K, false, Store>(s, n, {}, shift, values, ldv, s,
                                                                          ahead);
        case Weight::relu:
            return weigh_row<Unshifted<ReluWeight>, T, K, false, Store>(s, n, {}, shift, values, ldv, s,
                                                                        ahead);
        case Weight::sigmoid:
            return weigh_row<Unshifted<SigmoidWeight>, T, K, false, Store>(s, n, {}, shift, values, ldv, s,
                                                                           ahead);
    }
    __builtin_unreachable();
}

template <class T>
RowSums<T> weigh_few(Weight weight, Index k, bool tilt, T* s, Index n, T shift, const T* values, Index ldv,
                     const T* ahead) {
    if (tilt) return weigh<T, 0, true, false>(weight, s, n, shift, values, ldv, ahead);
    switch (k) {
        case 0:
            return weigh<T, 0, false, false>(weight, s, n, shift, values, ldv, ahead);
        case 1:
            return weigh<T, 1, false, false>(weight, s, n, shift, values, ldv, ahead);
        case 2:
            return weigh<T, 2, false, false>(weight, s, n, shift, values, ldv, ahead);
        case 3:
            return weigh<T, 3, false, false>(weight, s, n, shift, values, ldv, ahead);
        default:
            return weigh<T, 4, false, false>(weight, s, n, shift, values, ldv, ahead);
    }
}

// out = factor * sums; false when a result is not finite. `sums` is padded to whole packs, `out` is not.
template <class T>
bool scale_row(const T* sums, Index n, T factor, T* out) {
    constexpr Index width = SimdTraits<T>::width;
    typename SimdTraits<T>::Bits finite = ~typename SimdTraits<T>::Bits{};
    for (Index k = 0; k < n; k += width) {
        const Pack<T> value = load(sums + k) * factor;
        finite &= max(value, -value) <= std::numeric_limits<T>::max();  // false for NaN
        if (k + width <= n) {
            store(out + k, value);
        } else {
            T tail[width];
            store(tail, value);
            std::copy(tail, tail + (n - k), out + k);
        }
    }
    bool all = true;
    for (Index i = 0; i < width; ++i) all = all && finite[i] != 0;
    return all;
}

// Moves a row's reference up to `candidate`; everything it has gathered is rescaled.
template <class T>
double RowReducer<T>::raise(RowAccumulators<T>& acc, Index row, double candidate) {
    const double factor = acc.state[static_cast<std::size_t>(row)].raise(candidate);
    if (factor != 1.0) {
        double* few = &acc.few[static_cast<std::size_t>(row * few_values)];
        for (Index k = 0; k < few_values; ++k) few[k] *= factor;
        T* many = acc.many.data() + row * acc.ld_many;
        for (Index k = 0; k < acc.ld_many; ++k) many[k] *= static_cast<T>(factor);
    }
    return factor;
}

template <class T>
void RowReducer<T>::add(RowAccumulators<T>& acc, Index row, const RowSums<T>& sums) {
    auto& state = acc.state[static_cast<std::size_t>(row)];
    state.sum += static_cast<double>(sums.sum);
    state.tilt += static_cast<double>(sums.tilt);
    double* few = &acc.few[static_cast<std::size_t>(row * few_values)];
    for (Index k = 0; k < few_values; ++k) few[k] += static_cast<double>(sums.products[k]);
}

// Adds one row of a tile, whose largest score is `top`, to its accumulators. `ahead`: see weigh_row.
template <class T>
void RowReducer<T>::add_row(T* s, Index r, Index padded, T top, const T* ahead, Index column,
                            const PackedColumns<T>& columns, bool tilt, RowAccumulators<T>& acc) {
    const auto& state = acc.state[static_cast<std::size_t>(r)];
    T shift = T(0);
    if (exponential()) {
        raise(acc, r, static_cast<double>(top));
        // A row that has seen nothing: any finite shift gives weights of exactly 0.
        shift = state.empty() ? T(0) : static_cast<T>(state.max);
    }
    const T* values = columns.values.data() + column;
    add(acc, r,
        n_values_ > few_values
            ? weigh<T, 0, false, true>(weight_, s, padded, shift, nullptr, 0, ahead)
            : weigh_few(weight_, n_values_, tilt, s, padded, shift, values, columns.n_padded, ahead));
}

// Adds one tile straight from the points, row after row: see row_scores.hpp.
template <class T>
void RowReducer<T>::tile_by_rows(RowScoresKernel<T> kernel, Index column, Index padded,
                                 const PackedColumns<T>& columns, bool tilt, Scratch<T>& scratch) {
    RowBlock<T>& block = scratch.block;
    for (Index r = 0; r < block.n_rows; ++r) {
        const T top = kernel(row_scores_at(columns, block, r, column, padded), block.scores.data());
        add_row(block.scores.data(), r, padded, top, nullptr, column, columns, tilt, scratch.acc);
    }
}

// Adds one tile of scores to the accumulators of its rows.
template <class T>
void RowReducer<T>::tile(Index padded, Index column, const PackedColumns<T>& columns, bool tilt,
                         Scratch<T>& scratch, Index ld) {
    RowAccumulators<T>& acc = scratch.acc;
    for (Index r = 0; r < scratch.block.n_rows; ++r) {
        T* s = scratch.block.scores.data() + r * ld;
        const T top = exponential() ? row_top(scratch.block, r, s, padded) : T(0);
        add_row(s, r, padded, top, scratch.block.ahead.row(r), column, columns, tilt, acc);
    }
    if (n_values_ > few_values)
        product_tile(scratch.block.scores.data(), ld, scratch.block.n_rows, padded, columns.values.data(),
                     columns.n_padded, column, columns.n_packs, acc.many.data(), acc.ld_many);
}

template <class T>
void RowReducer<T>::piece(const Piece& piece, Scratch<T>& scratch, int worker) {
    const auto at = static_cast<std::size_t>(piece.problem);
    const RowTask<T>& task = tasks_[at];
    const PackedColumns<T>& columns = columns_[at];
    const Tiling& t = tiling_[at];
    const bool tilt = task.expected != nullptr || task.entropy != nullptr;
    const RowScoresKernel<T> by_rows =
        t.row_by_row ? pick_row_scores(task.problem, columns.dims, columns.late_sides) : RowScoresKernel<T>{};
    const Index ld = std::min(t.tile_cols, columns.n_padded);
    scratch.block.scores.reserve(t.block_rows * ld);
    for (Index i = piece.first_row; i < piece.end_row; i += t.block_rows) {
        const Index end_row = std::min(i + t.block_rows, piece.end_row);
        pack_rows(task.problem, columns, i, end_row - i, scratch.block);
        scratch.acc.reset(end_row - i, columns.n_packs);
        Index first = piece.first_col, end = piece.end_col;
        clip_to_band(task.problem.band, i, end_row, task.problem.n_cols, first, end);
        // Tiles start on the same grid whatever the band, so that masks do not move the cuts.
        first = first / t.tile_cols * t.tile_cols;
        for (Index j = std::max(first, piece.first_col); j < end; j += t.tile_cols) {
            if (should_stop(run_, worker)) return;
            const Index n = std::min(t.tile_cols, piece.end_col - j);
            if (by_rows && band_keeps_all(task.problem.band, i, end_row, j, j + n)) {
                tile_by_rows(by_rows, j, round_up(n, MicroTile<T>::cols), columns, tilt, scratch);
                continue;
            }
            const Index padded = score_block(task.problem, columns, j, n, scratch.block, ld);
            tile(padded, j, columns, tilt, scratch, ld);
        }
        finish_block(piece, scratch.block, scratch.acc);
    }
}

template <class T>
void RowReducer<T>::finish_block(const Piece& piece, const RowBlock<T>& block, RowAccumulators<T>& acc) {
    const auto at = static_cast<std::size_t>(piece.problem);
    auto& partial = partial_[at];
    for (Index r = 0; r < block.n_rows; ++r) {
        const Index row = block.first_row + r;
        const auto& state = acc.state[static_cast<std::size_t>(r)];
        const double* few = &acc.few[static_cast<std::size_t>(r * few_values)];
        const T* many = acc.many.data() + r * acc.ld_many;
        if (partial.empty()) {
            finish_row(tasks_[at], row, state, few, many);
            continue;
        }
        auto& store = partial[static_cast<std::size_t>(piece.split)];
        store.state[static_cast<std::size_t>(row)] = state;
        std::copy(few, few + few_values, &store.few[static_cast<std::size_t>(row * few_values)]);
        std::copy(many, many + acc.ld_many, store.many.data() + row * store.ld_many);
    }
}

template <class T>
void RowReducer<T>::finish_row(const RowTask<T>& task, Index row, const SoftmaxState<double>& state,
                               const double* few, const T* many) {
    bool finite = true;
    if (exponential()) {
        // +inf or NaN scores end up here as a sum that is not finite.
        finite = state.empty() ? state.sum == 0.0 : std::isfinite(state.max) && std::isfinite(state.sum);
        if (task.log_sum_exp != nullptr) task.log_sum_exp[row] = static_cast<T>(state.log_sum_exp());
        if (task.peak != nullptr) {
            task.peak[row] = state.empty() ? T(0) : static_cast<T>(state.max);
            task.log_sum[row] = state.empty() ? T(0) : static_cast<T>(std::log(state.sum));
        }
        if (task.expected != nullptr) task.expected[row] = static_cast<T>(state.expected_score());
        if (task.entropy != nullptr) task.entropy[row] = static_cast<T>(std::max(0.0, state.entropy()));
    }
    if (task.product != nullptr) {
        double factor = 1.0;
        if (weight_ == Weight::softmax) factor = state.empty() ? 0.0 : 1.0 / state.sum;
        if (weight_ == Weight::exp) factor = state.empty() ? 0.0 : std::exp(state.max);
        T* out = task.product + row * n_values_;
        bool in_range = true;
        if (n_values_ <= few_values) {
            for (Index k = 0; k < n_values_; ++k) {
                // 0 * inf: exp(max) may overflow where the weighted sum is exactly 0.
                out[k] = few[k] == 0.0 ? T(0) : static_cast<T>(few[k] * factor);
                in_range = in_range && std::isfinite(out[k]);
            }
        } else if (factor == 0.0 || (factor >= static_cast<double>(std::numeric_limits<T>::min()) &&
                                     factor <= static_cast<double>(std::numeric_limits<T>::max()))) {
            in_range = scale_row(many, n_values_, static_cast<T>(factor), out);
        } else {
            for (Index k = 0; k < n_values_; ++k) {
                const auto sum = static_cast<double>(many[k]);
                out[k] = sum == 0.0 ? T(0) : static_cast<T>(sum * factor);
                in_range = in_range && std::isfinite(out[k]);
            }
        }
        finite = finite && in_range;
    }
    if (!finite) overflow_.store(true, std::memory_order_relaxed);
}

template <class T>
void RowReducer<T>::merge_splits() {
    for (std::size_t at = 0; at < partial_.size(); ++at) {
        auto& splits = partial_[at];
        if (splits.empty()) continue;
        auto& total = splits.front();
        for (std::size_t other = 1; other < splits.size(); ++other) {
            for (Index row = 0; row < tasks_[at].problem.n_rows; ++row) {
                const auto i = static_cast<std::size_t>(row);
                double own = 1.0, theirs = 1.0;
                if (exponential()) {
                    total.state[i].merge(splits[other].state[i], own, theirs);
                } else {
                    total.state[i].sum += splits[other].state[i].sum;
                }
                double* few = &total.few[i * few_values];
                const double* other_few = &splits[other].few[i * few_values];
                for (Index k = 0; k < few_values; ++k) few[k] = few[k] * own + other_few[k] * theirs;
                T* many = total.many.data() + row * total.ld_many;
                const T* other_many = splits[other].many.data() + row * total.ld_many;
                for (Index k = 0; k < total.ld_many; ++k)
                    many[k] = many[k] * static_cast<T>(own) + other_many[k] * static_cast<T>(theirs);
            }
        }
        for (Index row = 0; row < tasks_[at].problem.n_rows; ++row)
            finish_row(tasks_[at], row, total.state[static_cast<std::size_t>(row)],
                       &total.few[static_cast<std::size_t>(row * few_values)],
                       total.many.data() + row * total.ld_many);
    }
}

template <class T>
Status RowReducer<T>::run() {
    const std::size_t n = tasks_.size();
    double work = 0;
    for (const auto& task : tasks_) work += operations(task.problem, n_values_);
    const Run run = scaled_run(run_, work);

    columns_.resize(n);
    tiling_.resize(n);
    partial_.resize(n);
    const auto prepare = [&](std::size_t at, const Run& inner) {
        const Problem<T>& p = tasks_[at].problem;
        columns_[at] = pack_columns(p, tasks_[at].values, n_values_, inner);
        tiling_[at] = choose_tiling(p, n_values_);
        if (tiling_[at].split_cols >= p.n_cols) return;
        partial_[at].resize(
            static_cast<std::size_t>((p.n_cols + tiling_[at].split_cols - 1) / tiling_[at].split_cols));
        for (auto& store : partial_[at]) store.reset(p.n_rows, columns_[at].n_packs);
    };
    if (n == 1) {
        prepare(0, run);
    } else {
        parallel_for(run, static_cast<Index>(n), [&](Index at, int worker) {
            prepare(static_cast<std::size_t>(at), alone(run, worker));
        });
    }
    if (run_.stop != nullptr && run_.stop->stopped()) return Status::interrupted;

    std::vector<Piece> pieces;
    for (std::size_t at = 0; at < n; ++at)
        cut(static_cast<Index>(at), tasks_[at].problem.n_rows, tasks_[at].problem.n_cols, tiling_[at],
            pieces);
    std::vector<Scratch<T>> scratch(static_cast<std::size_t>(run.n_threads));
    parallel_for(run, static_cast<Index>(pieces.size()), [&](Index i, int worker) {
        piece(pieces[static_cast<std::size_t>(i)], scratch[static_cast<std::size_t>(worker)], worker);
    });
    if (run_.stop != nullptr && run_.stop->stopped()) return Status::interrupted;
    merge_splits();
    return overflow_.load() ? Status::overflow : Status::ok;
}

}  // namespace

template <class T>
Status reduce_rows(const std::vector<RowTask<T>>& tasks, Weight weight, Index n_values, const Run& run) {
    return RowReducer<T>(tasks, weight, n_values, run).run();
}

template Status reduce_rows(const std::vector<RowTask<float>>&, Weight, Index, const Run&);
template Status reduce_rows(const std::vector<RowTask<double>>&, Weight, Index, const Run&);

}  // namespace qk
