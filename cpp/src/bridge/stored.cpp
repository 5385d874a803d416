// Sweeps that store their entries, scaled by the potentials at the moment of storing.
#include <atomic>
#include <numeric>
#include <tuple>
#include <utility>

#include "bridge/gathering.hpp"
#include "bridge/long_vectors.hpp"
#include "bridge/sweep_walk.hpp"
#include "qk/arrays.hpp"
#include "qk/bridge_kernels.hpp"

namespace qk {
namespace {

// The errors that rounding the entries to single precision causes in the sums, as measured by one exact visit.
class Corrections {
public:
    bool known() const { return known_; }
    void forget() { known_ = false; }
    double row(Index i) const { return known_ ? rows_[static_cast<std::size_t>(i)] : 1.0; }
    double column(Index j) const { return known_ ? columns_[static_cast<std::size_t>(j)] : 1.0; }

    void measured(std::vector<double> rows, std::vector<double> columns, std::vector<double> row_factors,
                  std::vector<double> column_factors) {
        rows_ = std::move(rows);
        columns_ = std::move(columns);
        row_factors_ = std::move(row_factors);
        column_factors_ = std::move(column_factors);
        known_ = true;
    }

    // A bound on how much these errors have changed since. The error of a row sum is an average of its entries' errors;
    // the weights of this average change as much as the factors of the columns have (a common factor does not matter).
    // The same holds for columns.
    double doubt(const std::vector<double>& row_factors, const std::vector<double>& masses,
                 const std::vector<double>& column_factors, const double* columns, const Run& run) const {
        constexpr double rounding = 1.0 / (1 << 23);  // twice the largest rounding error of an entry
        if (!known_) return 2 * rounding * std::accumulate(masses.begin(), masses.end(), 0.0);
        return rounding * (moved(row_factors, row_factors_, masses.data(), run) +
                           moved(column_factors, column_factors_, columns, run));
    }

private:
    // sum_k weight_k |now_k / (before_k scale) - 1|, where each factor of a weight is at most 1
    static double moved(const std::vector<double>& now, const std::vector<double>& before,
                        const double* weights, const Run& run) {
        double total = 0, scale = 0, sum = 0;
        const std::size_t n = before.size();  // `now` may be padded
        each(run, static_cast<Index>(n), [&](Index at) {
            const auto k = static_cast<std::size_t>(at);
            if (!(before[k] > 0)) return;
            total += weights[k];
            scale += weights[k] * (now[k] / before[k]);
        });
        if (!(scale > 0)) return std::accumulate(weights, weights + n, 0.0);
        scale /= total;
        each(run, static_cast<Index>(n), [&](Index at) {
            const auto k = static_cast<std::size_t>(at);
            sum += weights[k] *
                   (before[k] > 0 ? std::min(1.0, std::abs(now[k] / (before[k] * scale) - 1)) : 1.0);
        });
        return sum;
    }

    std::vector<double> rows_, columns_, row_factors_, column_factors_;
    bool known_ = false;
};

template <class T = double>
std::vector<T> zeros(Index n, const Run& run) {
    std::vector<T> out;
    out.reserve(static_cast<std::size_t>(n));
    ask_for_large_pages(out.data(), static_cast<std::size_t>(n) * sizeof(T));
    in_pieces(run, 0, n,
              [&](Index from, Index to) { out.resize(out.size() + static_cast<std::size_t>(to - from)); });
    return out;
}

// Whether the scores are a factor times one matrix whose rows or columns lie contiguously, as coupling_sums() wants it.
template <class T>
bool is_one_matrix(const Problem<T>& p) {
    const bool others = !p.dots.empty() || !p.distances.empty() || !p.row_bias.empty() ||
                        !p.col_bias.empty() || !p.masks.empty() || !p.band.everything();
    if (p.dense.size() != 1 || others) return false;
    const MatrixView<T>& z = p.dense.front().values;
    return z.row_stride == 1 || z.col_stride == 1;
}

// Stores entries of type E for a problem of type T.
template <class T, class E>
class Stored final : public Sweep {
    static constexpr bool rounded = sizeof(E) < sizeof(T);

public:
    Stored(const Problem<T>& problem, const Run& run)
        : scores_(problem, run),
          ld_(round_up(problem.n_cols, 2 * SimdTraits<E>::width)),
          entries_(problem.n_rows * ld_),
          scaled_(zeros<T>(ld_, run)),
          at_g_(zeros(problem.n_cols, run)),
          tops_(zeros(problem.n_rows, run)),
          sums_(zeros(problem.n_rows, run)) {
        if (rounded) {
            factors_ = zeros(problem.n_rows, run);
            masses_ = zeros(problem.n_rows, run);
        }
    }

    Status rows(const double* g, const RowMass& mass, double* lse, double* columns, const Run& run) override {
        if (wants_full_ && !full_) store_in_full(run);
        if (full_) return full_->rows(g, mass, lse, columns, run);
        if constexpr (rounded) {
            if (refine_ && columns != nullptr) {
                const Status status = measure_last(run);
                if (status == Status::interrupted) return status;
                refine_ = status != Status::ok;
            }
            seen_.clear();
        }
        if (!taken_ || too_far(g, run) || (refine_ && columns != nullptr)) {
            // If T has all digits of g, the entries are computed at g itself, and storing them is the visit as well.
            const bool at_once = columns != nullptr && (sizeof(T) == sizeof(double) || representable(g, run));
            const bool asked = refine_;
            const Status status = take(g, mass, lse, at_once ? columns : nullptr, run);
            if (status != Status::ok) return status;
            if (at_once) return rounded ? keep_exact(columns, asked, run) : status;
        }
        if constexpr (rounded) {
            if (!exact_columns_.empty()) {
                const bool worthwhile = columns != nullptr && near(g, run);
                if (const Status status = worthwhile ? measure(run) : Status::ok; status != Status::ok)
                    return status;
                exact_columns_.clear();
            }
        }
        if (!in_pieces(run, 0, problem().n_cols, [&](Index from, Index to) { set_factors(g, from, to); }))
            return Status::interrupted;
        const auto weigh = [&](Index first, int n, const double* found, double* factors) {
            double dots[stored_rows] = {}, logs[stored_rows];
            for (int r = 0; r < n; ++r) dots[r] = rounded ? found[r] * corrections_.row(first + r) : found[r];
            log_array<double>(dots, stored_rows, logs);  // of all, because whole packs are faster
            for (int r = 0; r < n; ++r) {
                const Index i = first + r;
                const auto at = static_cast<std::size_t>(i);
                const double dot = dots[r];
                sums_[at] = dot;
                lse[i] = dot > 0 ? tops_[at] + logs[r] : -infinity<double>();
                const double m = columns != nullptr && dot > 0 ? mass(i, lse[i]) : 0.0;
                factors[r] = m == 0 ? 0.0 : m / dot;
                if constexpr (rounded) {
                    masses_[at] = m;
                    factors_[at] = factors[r];
                }
            }
        };
        const Status status = visit(entries_, ld_, scaled_.data(), columns, run, weigh);
        if (columns == nullptr || status != Status::ok) return status;
        const bool done = in_pieces(run, 0, problem().n_cols, [&](Index from, Index to) {
            for (Index j = from; j < to; ++j)
                columns[j] *= static_cast<double>(scaled_[static_cast<std::size_t>(j)]);
            if constexpr (rounded) {
                seen_.insert(seen_.end(), columns + from, columns + to);
                for (Index j = from; j < to; ++j) columns[j] *= corrections_.column(j);
            }
        });
        if constexpr (rounded) uncertainty_ = corrections_.doubt(factors_, masses_, scaled_, columns, run);
        return done ? Status::ok : Status::interrupted;
    }

    double uncertainty() const override { return full_ ? 0.0 : uncertainty_; }

    // If exact visits are needed again and again, it is better to store the entries in double.
    void refine() override {
        constexpr int most = 5;
        if (++n_refined_ > most)
            wants_full_ = true;
        else
            refine_ = true;
    }

    Status columns(const double* f, double* lse, const Run& run) override {
        return scores_.columns(f, lse, run);
    }

    Status curvature(const double* x, const double* mass, double* out, bool rough, const Run& run) override {
        if (full_) return full_->curvature(x, mass, out, rough, run);
        if constexpr (rounded) {
            if (rough) return curvature_of(entries_, ld_, x, mass, out, run);
            // From now on visits are exact, but this product needs the sums of the last visit, which are computed
            // again.
            Buffer<double> g(problem().n_cols);
            std::vector<double> lse(sums_.size());
            each(run, problem().n_cols, [&](Index j) {
                const auto at = static_cast<std::size_t>(j);
                g[j] = at_g_[at] + std::log(scaled_[at]);
            });
            store_in_full(run);
            const Status status =
                full_->rows(g.data(), [](Index, double) { return 0.0; }, lse.data(), nullptr, run);
            return status == Status::ok ? full_->curvature(x, mass, out, rough, run) : status;
        } else {
            if (!rough || sizeof(T) == sizeof(float)) return curvature_of(entries_, ld_, x, mass, out, run);
            if (!halved_) halve(run);
            return curvature_of(single_, ld_single(), x, mass, out, run);
        }
    }

    Status gather(double least, Index most, SparseRows& out, const Run& run) override {
        if (full_) return full_->gather(least, most, out, run);
        Gathering gathering(problem().n_rows, most, scores_.work() / 5, run);
        return gathering(out, [&](Index first, Index end, const auto& found, const Run& inner, int worker) {
            for (Index i = first; i < end; ++i) {
                if ((i - first) % tuning::poll_rows == 0 && should_stop(inner, worker)) return;
                const double sum = sums_[static_cast<std::size_t>(i)];
                if (!(sum > 0)) continue;
                const E* w = entries_.data() + i * ld_;
                each_at_least<T>(
                    problem().n_cols, static_cast<T>(least * sum),
                    [&](Index j) { return load_entries<T>(w + j) * load(scaled_.data() + j); },
                    [&](Index j) {
                        found(i, j,
                              static_cast<double>(w[j]) *
                                  static_cast<double>(scaled_[static_cast<std::size_t>(j)]) / sum);
                    });
            }
        });
    }

    double epsilon() const override { return static_cast<double>(std::numeric_limits<T>::epsilon()); }

    EasierKernel easier(double factor, const Run& run) override {
        return {sweep_scaled(problem(), factor, run), factor};
    }

private:
    const Problem<T>& problem() const { return scores_.problem(); }

    void store_in_full(const Run& run) {
        full_ = std::make_unique<Stored<T, T>>(problem(), run);
        entries_ = Buffer<E>();
    }

    // Keeps the column sums of an exact visit, to compare them with those of the stored entries at the same potentials. If
    // this was asked for, it is done at once, and otherwise at the next visit if its potentials are near: after a long
    // first step the comparison would say nothing about them.
    Status keep_exact(const double* columns, bool asked, const Run& run) {
        exact_columns_.clear();
        const bool done = in_pieces(run, 0, problem().n_cols, [&](Index from, Index to) {
            exact_columns_.insert(exact_columns_.end(), columns + from, columns + to);
        });
        uncertainty_ = 0;
        if (!done) return Status::interrupted;
        const Status status = asked ? measure(run) : Status::ok;
        if (asked) exact_columns_.clear();
        return status;
    }

    Status measure(const Run& run) {
        std::vector<double> row_ratios(sums_.size(), 1.0), ratios = zeros(problem().n_cols, run);
        if (should_stop(run, 0)) return Status::interrupted;
        const Status status =
            visit(entries_, ld_, scaled_.data(), ratios.data(), run, row_by_row([&](Index i, double dot) {
                      const auto at = static_cast<std::size_t>(i);
                      if (dot > 0 && sums_[at] > 0) row_ratios[at] = sums_[at] / dot;
                      masses_[at] = factors_[at] * sums_[at];
                      return factors_[at];
                  }));
        std::vector<double> scaled;
        scaled.reserve(ratios.size());
        const bool done = in_pieces(run, 0, problem().n_cols, [&](Index from, Index to) {
            for (Index j = from; j < to; ++j) {
                double& ratio = ratios[static_cast<std::size_t>(j)];
                const double exact = exact_columns_[static_cast<std::size_t>(j)];
                ratio = ratio > 0 && exact > 0 ? exact / ratio : 1.0;
            }
            scaled.insert(scaled.end(), scaled_.data() + from, scaled_.data() + to);
        });
        if (!done) return Status::interrupted;
        corrections_.measured(std::move(row_ratios), std::move(ratios), factors_, std::move(scaled));
        return status;
    }

    // Measures what rounding does to the sums at the potentials of the last visit, by the loop of the final check: this
    // takes less time than an exact visit, and no entry is stored again. Status::overflow: an exact visit is needed, because
    // the scores are not one matrix, the last visit had no columns or was exact itself, or entries have lost more than
    // rounding takes.
    Status measure_last(const Run& run) {
        constexpr double most_lost = 1.0 / (1 << 22);  // four times the largest rounding error of an entry
        const Index n = problem().n_rows, m = problem().n_cols;
        if (std::cmp_not_equal(seen_.size(), m) || !is_one_matrix(problem())) return Status::overflow;
        std::vector<double> f = zeros(n, run), g = zeros(m, run), rows = zeros(n, run),
                            columns = zeros(m, run), scaled;
        if (should_stop(run, 0)) return Status::interrupted;
        in_pieces(run, 0, n, [&](Index from, Index to) {
            log_array(factors_.data() + from, to - from, f.data() + from);
            for (Index i = from; i < to; ++i)
                f[static_cast<std::size_t>(i)] -= tops_[static_cast<std::size_t>(i)];
        });
        in_pieces(run, 0, m, [&](Index from, Index to) {
            log_array(scaled_.data() + from, to - from, g.data() + from);
            for (Index j = from; j < to; ++j)
                g[static_cast<std::size_t>(j)] += at_g_[static_cast<std::size_t>(j)];
        });
        const DenseTerm<T>& z = problem().dense.front();
        if (const Status status = coupling_sums(z.values, n, m, static_cast<double>(z.scale), f.data(),
                                                g.data(), rows.data(), columns.data(), run);
            status != Status::ok)
            return status;
        double lost = 0;
        const auto divide = [&](double& exact, double seen) {
            exact = exact == seen ? 1.0 : exact / seen;  // both may be 0
            lost = std::max(lost, std::abs(exact - 1));
        };
        each(run, n, [&](Index i) {
            const auto at = static_cast<std::size_t>(i);
            divide(rows[at], masses_[at] / corrections_.row(i));
        });
        scaled.reserve(seen_.size());
        each(run, m, [&](Index j) {
            const auto at = static_cast<std::size_t>(j);
            divide(columns[at], seen_[at]);
            scaled.push_back(scaled_[at]);
        });
        if (stopped(run)) return Status::interrupted;
        if (!(lost <= most_lost)) return Status::overflow;
        corrections_.measured(std::move(rows), std::move(columns), factors_, std::move(scaled));
        return Status::ok;
    }

    // Whether g differs from what the entries were taken at by little more than one number.
    bool near(const double* g, const Run& run) const {
        double least = infinity<double>(), most = -infinity<double>();
        each(run, problem().n_cols, [&](Index j) {
            if (g[j] == -infinity<double>()) return;
            const double moved = g[j] - at_g_[static_cast<std::size_t>(j)];
            least = std::min(least, moved);
            most = std::max(most, moved);
        });
        return most - least <= tuning::measured_reach;
    }

    template <class A>
    Status curvature_of(const Buffer<A>& entries, Index ld, const double* x, const double* mass, double* out,
                        const Run& run) {
        Buffer<A> direction(ld);
        each(run, ld, [&](Index j) {
            direction[j] =
                j < problem().n_cols
                    ? static_cast<A>(static_cast<double>(scaled_[static_cast<std::size_t>(j)]) * x[j])
                    : A(0);
        });
        const auto weigh = row_by_row([&](Index i, double dot) {
            const double sum = sums_[static_cast<std::size_t>(i)];
            return sum > 0 ? mass[i] * dot / (sum * sum) : 0.0;
        });
        const Status status = visit(entries, ld, direction.data(), out, run, weigh);
        each(run, problem().n_cols,
             [&](Index j) { out[j] *= static_cast<double>(scaled_[static_cast<std::size_t>(j)]); });
        return status;
    }

    Index ld_single() const { return round_up(problem().n_cols, 2 * SimdTraits<float>::width); }

    // Makes a copy of the entries in single precision, which halves what is read.
    void halve(const Run& run) {
        const Index ld = ld_single();
        single_.reserve(problem().n_rows * ld);
        parallel_for(run, problem().n_rows, [&](Index i, int worker) {
            float* to = single_.data() + i * ld;
            in_pieces(run, worker, problem().n_cols, [&](Index first, Index end) {
                for (Index j = first; j < end; ++j) to[j] = static_cast<float>(entries_[i * ld_ + j]);
            });
            std::fill(to + problem().n_cols, to + ld, 0.0F);
        });
        halved_ = true;
    }

    // scaled_ = exp(g - at_g)
    void set_factors(const double* g, Index from, Index to) {
        constexpr Index some = 256;
        double moved[some];
        for (Index first = from; first < to; first += some) {
            const Index n = std::min(some, to - first);
            for (Index k = 0; k < n; ++k) {
                const double at = at_g_[static_cast<std::size_t>(first + k)];
                moved[k] = g[first + k] == -infinity<double>() ? g[first + k] : g[first + k] - at;
            }
            exp_array(moved, n, moved);
            for (Index k = 0; k < n; ++k)
                scaled_[static_cast<std::size_t>(first + k)] = static_cast<T>(moved[k]);
        }
    }
    bool too_far(const double* g, const Run& run) const {
        bool found = false;
        each(run, problem().n_cols, [&](Index j) {
            const double from = at_g_[static_cast<std::size_t>(j)];
            found = found ||
                    (g[j] != -infinity<double>() && !(std::abs(g[j] - from) <= tuning::stored_reach<E, T>));
        });
        return found;
    }

    // Whether g has no more digits than T.
    bool representable(const double* g, const Run& run) const {
        bool found = true;
        each(run, problem().n_cols,
             [&](Index j) { found = found && static_cast<double>(static_cast<T>(g[j])) == g[j]; });
        return found;
    }

    // Computes and stores the entries exp(s_ij + g_j - max_k (s_ik + g_k)). If `columns` is not null, this is a visit too.
    Status take(const double* g, const RowMass& mass, double* lse, double* columns, const Run& run) {
        taken_ = halved_ = refine_ = false;
        corrections_.forget();
        exact_columns_.clear();
        scores_.set_potential(g, run);
        const Shares<T> shares(problem().n_rows, problem().n_cols, run, scores_.work(), sums_of<T>());
        std::vector<SweepLocal<T>> locals;
        std::atomic<bool> overflow{false};
        const auto finish = [&](const SweepLocal<T>& local, Index r, Index i,
                                const SoftmaxState<double>& state, const Run& inner, int worker) {
            const auto at = static_cast<std::size_t>(i);
            if (!std::isfinite(state.sum)) overflow.store(true, std::memory_order_relaxed);
            sums_[at] = state.sum;
            tops_[at] = state.empty() ? 0.0 : state.max;
            store_row(i, r, local, inner, worker);
            if (columns == nullptr) return 0.0;
            lse[i] = state.log_sum_exp();
            const double factor = state.sum > 0 ? mass(i, lse[i]) / state.sum : 0.0;
            if constexpr (rounded) factors_[at] = factor;
            return factor;
        };
        WeighedRows<T, decltype(finish)> rows(scores_, shares, locals, columns != nullptr, finish);
        if (!scores_.walk_shares(shares, rows, columns)) return Status::interrupted;
        if (overflow.load()) return Status::overflow;
        taken_ = in_pieces(run, 0, problem().n_cols, [&](Index from, Index to) {
            for (Index j = from; j < to; ++j)  // exactly the potentials that the entries contain
                at_g_[static_cast<std::size_t>(j)] = static_cast<double>(static_cast<T>(g[j]));
            set_factors(g, from, to);
        });
        return taken_ ? Status::ok : Status::interrupted;
    }

    // Stores row r of the block, which is row i of the problem. A row in which everything is masked has weights 0.
    void store_row(Index i, Index r, const SweepLocal<T>& local, const Run& run, int worker) {
        E* to = entries_.data() + i * ld_;
        const T* from = local.block.scores.data() + r * scores_.width();
        for (Index j = 0; j < problem().n_cols; j += scores_.tile()) {
            if (j > 0 && should_stop(run, worker)) return;
            const auto factor = static_cast<T>(local.online.factor(r, j));
            const Index end = std::min(j + scores_.tile(), problem().n_cols);
            for (Index k = j; k < end; ++k) to[k] = static_cast<E>(from[k] * factor);
        }
        std::fill(to + problem().n_cols, to + ld_, E(0));
    }

    template <class A>
    typename Shares<A>::Sums& sums_of() {
        return std::get<typename Shares<A>::Sums>(column_sums_);
    }

    // What visit() wants, from a function that gives the weight of row i.
    template <class Weigh>
    static auto row_by_row(const Weigh& weigh) {
        return [weigh](Index first, int n, const double* dots, double* factors) {
            for (int r = 0; r < n; ++r) factors[r] = weigh(first + r, dots[r]);
        };
    }

    // Computes the product of each row with z, and adds the row times its weight to the columns, in the arithmetic of z.
    // weigh(first, n, dots, factors) gets the products of up to stored_rows rows at once, and returns their weights.
    template <class F, class A, class Weigh>
    Status visit(const Buffer<F>& entries, Index ld, const A* z, double* columns, const Run& run,
                 const Weigh& weigh) {
        const Shares<A> shares(problem().n_rows, problem().n_cols, run, scores_.work() / 5, sums_of<A>());
        // Checking whether to stop reads the clock, so it is done only after many entries.
        const Index poll =
            std::clamp<Index>(tuning::poll_entries / std::max<Index>(1, ld), 1, tuning::poll_rows);
        // Each row is read twice: for its product, and when it is added. Eight rows (stored_rows) go together if the L1
        // cache holds them in between, and four if only four fit. Longer rows wait in the L2 cache: eight go together if
        // half of it holds them, and four otherwise. The other half is for the next rows, which are prefetched.
        const Index row = ld * static_cast<Index>(sizeof(F));
        const bool in_l1 = 4 * row <= tuning::l1_bytes;
        const Index room = in_l1 ? tuning::l1_bytes : tuning::l2_bytes / 2;
        const Index most_rows = stored_rows * row > room ? 4 : stored_rows;
        const auto& pieces = shares.pieces();
        parallel_for(shares.run(), static_cast<Index>(pieces.size()), [&](Index part, int worker) {
            const FlushSubnormals flush;
            const Piece& piece = pieces[static_cast<std::size_t>(part)];
            ColumnSums<A>& sums = shares.of(piece);
            if (columns != nullptr && !sums.start(ld, shares.run(), worker)) return;
            Index since_poll = 0;  // parallel_for has just checked
            for (Index i = piece.first_row, n = 0; i < piece.end_row; i += n, since_poll += n) {
                if (since_poll >= poll) {
                    if (should_stop(shares.run(), worker)) return;
                    since_poll = 0;
                }
                n = next_rows(std::min(most_rows, piece.end_row - i));
                const int count = static_cast<int>(n);
                const F* w = entries.data() + i * ld;
                double dots[stored_rows], weights[stored_rows];
                A factors[stored_rows];
                dot_long_rows(count, w, ld, z, dots, shares.run(), worker);
                weigh(i, count, dots, weights);
                for (int r = 0; r < count; ++r) factors[r] = static_cast<A>(weights[r]);
                const F* next =
                    (!in_l1 || sizeof(F) < sizeof(A)) && i + 2 * n <= piece.end_row ? w + n * ld : nullptr;
                if (columns != nullptr)
                    add_long_rows(sums, count, w, ld, factors, next, shares.run(), worker);
            }
        });
        const bool done = !stopped(run) && (columns == nullptr || shares.finish(columns));
        return done ? Status::ok : Status::interrupted;
    }

    SweepScores<T> scores_;
    std::tuple<Shares<float>::Sums, Shares<double>::Sums> column_sums_;
    Index ld_;
    Buffer<E> entries_;
    std::vector<T> scaled_;  // exp(g - at_g), zeros beyond the columns
    Buffer<float> single_;
    bool halved_ = false;
    std::vector<double> at_g_, tops_, sums_;  // tops: what was subtracted from the exponents of each row
    bool taken_ = false;

    // Of rounded entries alone.
    std::vector<double> factors_, masses_;
    std::vector<double> exact_columns_;  // of an exact visit that has just been made, and not measured
    std::vector<double> seen_;  // the columns of the last visit if it was not exact, without corrections
    Corrections corrections_;
    std::unique_ptr<Stored<T, T>> full_;
    double uncertainty_ = 0;
    int n_refined_ = 0;
    bool refine_ = false, wants_full_ = false;
};

}  // namespace

Status Sweep::gather(double, Index, SparseRows& out, const Run&) {
    out = {};
    return Status::ok;
}
EasierKernel Sweep::easier(double, const Run&) { return {}; }

template <class T>
std::unique_ptr<Sweep> sweep_stored(const Problem<T>& problem, const Run& run) {
    return std::make_unique<Stored<T, T>>(problem, run);
}
std::unique_ptr<Sweep> sweep_stored_single(const Problem<double>& problem, const Run& run) {
    return std::make_unique<Stored<double, float>>(problem, run);
}

template std::unique_ptr<Sweep> sweep_stored(const Problem<float>&, const Run&);
template std::unique_ptr<Sweep> sweep_stored(const Problem<double>&, const Run&);

}  // namespace qk
