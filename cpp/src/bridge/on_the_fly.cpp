// Sweeps that compute their entries at every visit.
#include <atomic>
#include <limits>

#include "bridge/gathering.hpp"
#include "bridge/scaled_problem.hpp"
#include "bridge/sweep_walk.hpp"

namespace qk {
namespace {

// The reducer of curvature(): makes the weights p_ij at the log-sum-exps of the last visit, and adds row i to the columns
// m_i sum_k p_ik x_k times.
template <class T>
class Curvature : public SweepReducer<T> {
    using Base = SweepReducer<T>;

public:
    using Local = typename Base::Local;

    Curvature(const SweepScores<T>& scores, const Shares<T>& shares, std::vector<Local>& locals,
              const double* lse, const double* mass, const T* direction)
        : Base(scores, shares, locals, true), lse_(lse), mass_(mass), direction_(direction) {}

    void start_block(Local& local, const Block<T>&) const {
        std::fill(std::begin(local.along), std::end(local.along), 0.0);
    }

    void row(Local& local, const Block<T>&, const Tile& tile, const Row<T>& row) const {
        if (lse_[row.i] == -infinity<double>() || mass_[row.i] == 0) {
            std::fill(row.s, row.s + row.padded, T(0));
            return;
        }
        const auto shift = static_cast<T>(lse_[row.i]);
        const auto found = weigh_row<ShiftedExp<T>, T, 1, false, true>(
            row.s, row.padded, {broadcast(shift)}, shift, direction_ + tile.first_col, 0, row.s, row.ahead);
        local.along[row.r] += static_cast<double>(found.products[0]);
    }

    void end_block(Local& local, const Block<T>& at, const Run& run, int worker) const {
        T factors[SweepScores<T>::most_rows];
        for (Index r = 0; r < at.n_rows; ++r)
            factors[r] = static_cast<T>(mass_[at.first_row + r] * local.along[r]);
        add_long_rows(this->shares_.of(at.piece), static_cast<int>(at.n_rows), local.block.scores.data(),
                      this->scores_.width(), factors, static_cast<const T*>(nullptr), run, worker);
    }

private:
    const double* lse_;
    const double* mass_;
    const T* direction_;
};

// Calls found(i, j, p_ij) for the entries p_ij >= least at the log-sum-exps of the last visit, row by row.
template <class T, class Found>
class LargeEntries {
public:
    static constexpr Keeps keeps = Keeps::whole_rows;
    using Local = WalkLocal<T>;

    LargeEntries(const SweepScores<T>& scores, const double* lse, double least, const Found& found)
        : scores_(scores), lse_(lse), log_least_(std::log(least)), found_(found) {}

    Local& local(const Piece&, int) { return local_; }

    void row(Local&, const Block<T>&, const Tile&, const Row<T>&) const {}

    void skipped(Local& local, const Block<T>& at, Index first_col, Index end_col) const {
        for (Index r = 0; r < at.n_rows; ++r) {
            T* s = local.block.scores.data() + r * scores_.width();
            std::fill(s + first_col, s + end_col, -infinity<T>());
        }
    }

    void end_block(Local& local, const Block<T>& at, const Run&, int) const {
        for (Index i = at.first_row; i < at.first_row + at.n_rows; ++i) {
            if (lse_[i] == -infinity<double>()) continue;
            const T* s = local.block.scores.data() + (i - at.first_row) * scores_.width();
            each_at_least<T>(
                scores_.problem().n_cols, static_cast<T>(lse_[i] + log_least_),
                [&](Index j) { return load(s + j); },
                [&](Index j) { found_(i, j, std::exp(static_cast<double>(s[j]) - lse_[i])); });
        }
    }

private:
    const SweepScores<T>& scores_;
    const double* lse_;
    const double log_least_;
    const Found& found_;
    Local local_;
};

template <class T>
class OnTheFly final : public Sweep {
public:
    OnTheFly(const Problem<T>& problem, const Run& run) : OnTheFly(ScaledProblem<T>{problem, {}}, run) {}
    OnTheFly(ScaledProblem<T> scaled, const Run& run)
        : biases_(std::move(scaled.biases)),
          scores_(scaled.problem, run),
          lse_(static_cast<std::size_t>(scaled.problem.n_rows), 0.0) {}

    Status rows(const double* g, const RowMass& mass, double* lse, double* columns, const Run& run) override {
        scores_.set_potential(g, run);
        const Shares<T> shares = shares_of_rows(run);
        std::atomic<bool> overflow{false};
        const auto finish = [&](auto&, Index, Index i, const SoftmaxState<double>& state, const Run&, int) {
            const double found = state.log_sum_exp();
            if (!state.empty() && !std::isfinite(found)) overflow.store(true, std::memory_order_relaxed);
            lse[i] = found;
            lse_[static_cast<std::size_t>(i)] = found;
            return columns != nullptr && state.sum > 0 ? mass(i, found) / state.sum : 0.0;
        };
        WeighedRows<T, decltype(finish)> rows(scores_, shares, locals_, columns != nullptr, finish);
        if (!scores_.walk_shares(shares, rows, columns)) return Status::interrupted;
        return overflow.load() ? Status::overflow : Status::ok;
    }

    Status columns(const double* f, double* lse, const Run& run) override {
        return scores_.columns(f, lse, run);
    }

    Status curvature(const double* x, const double* mass, double* out, bool, const Run& run) override {
        Buffer<T> direction(scores_.width());
        in_pieces(run, 0, scores_.width(), [&](Index from, Index to) {
            for (Index j = from; j < to; ++j)
                direction[j] = j < scores_.problem().n_cols ? static_cast<T>(x[j]) : T(0);
        });
        const Shares<T> shares = shares_of_rows(run);
        Curvature<T> rows(scores_, shares, locals_, lse_.data(), mass, direction.data());
        return scores_.walk_shares(shares, rows, out) ? Status::ok : Status::interrupted;
    }

    Status gather(double least, Index most, SparseRows& out, const Run& run) override {
        Gathering gathering(scores_.problem().n_rows, most, scores_.work(), run);
        return gathering(out, [&](Index first, Index end, const auto& found, const Run& inner, int worker) {
            LargeEntries entries(scores_, lse_.data(), least, found);
            scores_.walk_rows(first, end, entries, inner, worker);
        });
    }

    double epsilon() const override { return static_cast<double>(std::numeric_limits<T>::epsilon()); }

    EasierKernel easier(double factor, const Run& run) override {
        return {sweep_scaled(scores_.problem(), factor, run), factor};
    }

private:
    Shares<T> shares_of_rows(const Run& run) {
        const Problem<T>& p = scores_.problem();
        return {p.n_rows, p.n_cols, run, scores_.work(), sums_};
    }

    std::vector<std::vector<T>> biases_;  // the arrays that a scaled problem refers to
    SweepScores<T> scores_;
    std::vector<double> lse_;
    std::vector<SweepLocal<T>> locals_;
    typename Shares<T>::Sums sums_;
};

}  // namespace

template <class T>
std::unique_ptr<Sweep> sweep_scaled(const Problem<T>& problem, double factor, const Run& run) {
    return std::make_unique<OnTheFly<T>>(scaled_problem(problem, factor), run);
}

template <class T>
std::unique_ptr<Sweep> sweep_on_the_fly(const Problem<T>& problem, const Run& run) {
    return std::make_unique<OnTheFly<T>>(problem, run);
}

template std::unique_ptr<Sweep> sweep_scaled(const Problem<float>&, double, const Run&);
template std::unique_ptr<Sweep> sweep_scaled(const Problem<double>&, double, const Run&);
template std::unique_ptr<Sweep> sweep_on_the_fly(const Problem<float>&, const Run&);
template std::unique_ptr<Sweep> sweep_on_the_fly(const Problem<double>&, const Run&);

}  // namespace qk
