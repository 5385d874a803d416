// Row reductions: log-sum-exp, expected score, entropy and weights times values, in one pass.
#include <cmath>

#include "engine/walk.hpp"
#include "qk/engine.hpp"
#include "qk/softmax_state.hpp"

namespace qk {
namespace {

using tuning::few_values;

// The sums of one row so far. Sums across tiles are kept in double for both types: that costs one
// addition per row and tile, and long float32 rows lose no digits.
template <class T>
struct RowAccumulators : WalkLocal<T> {
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

// out = factor * sums; returns false if a result is not finite. `sums` is padded to whole packs, `out` is not.
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

// The tasks of reduce_rows, and where the results of their rows go.
template <class T>
class RowResults {
public:
    RowResults(const std::vector<RowTask<T>>& all, Weight kind, Index n, int n_workers)
        : tasks(all),
          weight(kind),
          n_values(n),
          locals_(static_cast<std::size_t>(n_workers)),
          partial_(tasks.size()) {}

    const std::vector<RowTask<T>>& tasks;
    const Weight weight;
    const Index n_values;

    bool exponential() const { return weight == Weight::softmax || weight == Weight::exp; }
    RowAccumulators<T>& worker(int k) { return locals_[static_cast<std::size_t>(k)]; }

    // If the columns of a problem are cut, its rows are merged at the end from the sums of all cuts.
    void expect_splits(const std::vector<Walked<T>>& problems) {
        for (std::size_t at = 0; at < tasks.size(); ++at) {
            const Index n_cols = tasks[at].problem.n_cols, split = problems[at].tiling.split_cols;
            if (split >= n_cols) continue;
            partial_[at].resize(static_cast<std::size_t>((n_cols + split - 1) / split));
            for (auto& store : partial_[at])
                store.reset(tasks[at].problem.n_rows, problems[at].columns.n_packs);
        }
    }

    void end_block(const Block<T>& at, const RowAccumulators<T>& acc) {
        const auto problem = static_cast<std::size_t>(at.piece.problem);
        auto& partial = partial_[problem];
        for (Index r = 0; r < at.n_rows; ++r) {
            const Index row = at.first_row + r;
            const auto& state = acc.state[static_cast<std::size_t>(r)];
            const double* few = &acc.few[static_cast<std::size_t>(r * few_values)];
            const T* many = acc.many.data() + r * acc.ld_many;
            if (partial.empty()) {
                finish_row(tasks[problem], row, state, few, many);
                continue;
            }
            auto& store = partial[static_cast<std::size_t>(at.piece.part)];
            store.state[static_cast<std::size_t>(row)] = state;
            std::copy(few, few + few_values, &store.few[static_cast<std::size_t>(row * few_values)]);
            std::copy(many, many + acc.ld_many, store.many.data() + row * store.ld_many);
        }
    }

    Status merge_splits() {
        for (std::size_t at = 0; at < partial_.size(); ++at)
            if (!partial_[at].empty()) merge(tasks[at], partial_[at]);
        return overflow_.load() ? Status::overflow : Status::ok;
    }

private:
    void merge(const RowTask<T>& task, std::vector<RowAccumulators<T>>& splits) {
        auto& total = splits.front();
        for (std::size_t other = 1; other < splits.size(); ++other) {
            for (Index row = 0; row < task.problem.n_rows; ++row) {
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
        for (Index row = 0; row < task.problem.n_rows; ++row)
            finish_row(task, row, total.state[static_cast<std::size_t>(row)],
                       &total.few[static_cast<std::size_t>(row * few_values)],
                       total.many.data() + row * total.ld_many);
    }

    void finish_row(const RowTask<T>& task, Index row, const SoftmaxState<double>& state, const double* few,
                    const T* many) {
        bool finite = true;
        if (exponential()) {
            // Scores of +inf or NaN show here as a sum that is not finite.
            finite = state.empty() ? state.sum == 0.0 : std::isfinite(state.max) && std::isfinite(state.sum);
            if (task.log_sum_exp != nullptr) task.log_sum_exp[row] = static_cast<T>(state.log_sum_exp());
            if (task.peak != nullptr) {
                task.peak[row] = state.empty() ? T(0) : static_cast<T>(state.max);
                task.log_sum[row] = state.empty() ? T(0) : static_cast<T>(std::log(state.sum));
            }
            if (task.expected != nullptr) task.expected[row] = static_cast<T>(state.expected_score());
            if (task.entropy != nullptr) task.entropy[row] = static_cast<T>(std::max(0.0, state.entropy()));
        }
        if (task.product != nullptr)
            finite = finish_product(state, few, many, task.product + row * n_values) && finite;
        if (!finite) overflow_.store(true, std::memory_order_relaxed);
    }

    bool finish_product(const SoftmaxState<double>& state, const double* few, const T* many, T* out) const {
        double factor = 1.0;
        if (weight == Weight::softmax) factor = state.empty() ? 0.0 : 1.0 / state.sum;
        if (weight == Weight::exp) factor = state.empty() ? 0.0 : std::exp(state.max);
        const bool is_few = n_values <= few_values;
        if (!is_few && (factor == 0.0 || (factor >= static_cast<double>(std::numeric_limits<T>::min()) &&
                                          factor <= static_cast<double>(std::numeric_limits<T>::max()))))
            return scale_row(many, n_values, static_cast<T>(factor), out);
        bool in_range = true;
        for (Index k = 0; k < n_values; ++k) {
            const double sum = is_few ? few[k] : static_cast<double>(many[k]);
            // This avoids 0 * inf: exp(max) may overflow where the weighted sum is exactly 0.
            out[k] = sum == 0.0 ? T(0) : static_cast<T>(sum * factor);
            in_range = in_range && std::isfinite(out[k]);
        }
        return in_range;
    }

    std::vector<RowAccumulators<T>> locals_;
    // Partial results of problems whose columns are cut, [split][row].
    std::vector<std::vector<RowAccumulators<T>>> partial_;
    std::atomic<bool> overflow_{false};
};

// The reducer. A few right-hand sides are summed in registers while a row becomes weights; many go through product_tile
// when the whole tile has become weights.
template <class T, bool Many>
class RowReducer {
public:
    static constexpr Keeps keeps = Many ? Keeps::tile : Keeps::row;
    using Local = RowAccumulators<T>;

    explicit RowReducer(RowResults<T>& results) : results_(results) {}

    Local& local(const Piece&, int worker) { return results_.worker(worker); }

    void start_block(Local& acc, const Block<T>& at) const {
        acc.reset(at.n_rows, at.walked.columns.n_packs);
    }

    QK_INLINE void row(Local& acc, const Block<T>& at, const Tile& tile, const Row<T>& row) const {
        auto& state = acc.state[static_cast<std::size_t>(row.r)];
        T shift = T(0);
        if (results_.exponential()) {
            raise(acc, row.r, static_cast<double>(row.top()));
            // If everything so far is masked, any finite shift gives weights of exactly 0.
            shift = state.empty() ? T(0) : static_cast<T>(state.max);
        }
        RowSums<T> sums;
        if constexpr (Many) {
            sums = weigh<T, 0, false, true>(results_.weight, row.s, row.padded, shift, nullptr, 0, row.ahead);
        } else {
            const auto& columns = at.walked.columns;
            const RowTask<T>& task = results_.tasks[static_cast<std::size_t>(at.piece.problem)];
            const bool tilt = task.expected != nullptr || task.entropy != nullptr;
            sums = weigh_few(results_.weight, results_.n_values, tilt, row.s, row.padded, shift,
                             columns.values.data() + tile.first_col, columns.n_padded, row.ahead);
            double* few = &acc.few[static_cast<std::size_t>(row.r * few_values)];
            for (Index k = 0; k < few_values; ++k) few[k] += static_cast<double>(sums.products[k]);
        }
        state.sum += static_cast<double>(sums.sum);
        state.tilt += static_cast<double>(sums.tilt);
    }

    void end_tile(Local& acc, const Block<T>& at, const Tile& tile) const
        requires Many
    {
        const auto& columns = at.walked.columns;
        product_tile(acc.block.scores.data(), tile.ld, at.n_rows, tile.padded, columns.values.data(),
                     columns.n_padded, tile.first_col, columns.n_packs, acc.many.data(), acc.ld_many);
    }

    void end_block(Local& acc, const Block<T>& at, const Run&, int) const { results_.end_block(at, acc); }

private:
    // Raises a row's reference to `candidate`, and rescales all sums of the row.
    static void raise(Local& acc, Index row, double candidate) {
        const double factor = acc.state[static_cast<std::size_t>(row)].raise(candidate);
        if (factor == 1.0) return;
        double* few = &acc.few[static_cast<std::size_t>(row * few_values)];
        for (Index k = 0; k < few_values; ++k) few[k] *= factor;
        T* many = acc.many.data() + row * acc.ld_many;
        for (Index k = 0; k < acc.ld_many; ++k) many[k] *= static_cast<T>(factor);
    }

    RowResults<T>& results_;
};

}  // namespace

template <class T>
Status reduce_rows(const std::vector<RowTask<T>>& tasks, Weight weight, Index n_values, const Run& run) {
    double work = 0;
    for (const auto& task : tasks) work += operations(task.problem, n_values);
    const Run scaled = scaled_run(run, work);
    const auto n = static_cast<Index>(tasks.size());
    const auto problems = prepare_each<T>(n, scaled, [&](std::size_t at, const Run& inner) {
        const RowTask<T>& task = tasks[at];
        return prepare(task.problem, choose_tiling(task.problem, n_values, n), task.values, n_values, inner);
    });
    if (stopped(run)) return Status::interrupted;
    RowResults<T> results(tasks, weight, n_values, scaled.n_threads);
    results.expect_splits(problems);
    const auto reduce = [&](auto&& reducer) { return walk<T>(problems, cut_all(problems), reducer, scaled); };
    const bool done =
        n_values > few_values ? reduce(RowReducer<T, true>(results)) : reduce(RowReducer<T, false>(results));
    return done ? results.merge_splits() : Status::interrupted;
}

template Status reduce_rows(const std::vector<RowTask<float>>&, Weight, Index, const Run&);
template Status reduce_rows(const std::vector<RowTask<double>>&, Weight, Index, const Run&);

}  // namespace qk
