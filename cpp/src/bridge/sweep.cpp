#include "qk/sweep.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <tuple>
#include <vector>

#include "bridge/gathering.hpp"
#include "bridge/scaled_problem.hpp"
#include "bridge/sweep_rows.hpp"
#include "engine/flush_subnormals.hpp"
#include "engine/online_rows.hpp"
#include "engine/row_kernels.hpp"
#include "engine/row_scores.hpp"
#include "engine/tiling.hpp"

namespace qk {
namespace {

// Rows are cut into one range per thread, each with column sums of its own; these are added in the order of
// the ranges, so the result is the same for the same number of threads.
template <class T>
class Parts {
public:
    using Sums = std::vector<ColumnSums<T>>;

    // `sums`: memory that is kept from visit to visit
    Parts(Index n_rows, Index n_cols, const Run& run, double work, Sums& sums)
        : run_(scaled_run(run, work)),
          n_rows_(n_rows),
          n_cols_(n_cols),
          n_parts_(std::max<Index>(1, std::min<Index>(run_.n_threads, (n_rows + granule - 1) / granule))),
          sums_(sums) {
        sums_.resize(static_cast<std::size_t>(n_parts_));
    }

    // body(first_row, end_row, sums or null, worker)
    template <class Body>
    bool operator()(Index n_padded, double* columns, const Body& body) {
        parallel_for(run_, n_parts_, [&](Index part, int worker) {
            const Index granules = (n_rows_ + granule - 1) / granule;
            const Index first = part * granules / n_parts_ * granule;
            const Index end = std::min(n_rows_, (part + 1) * granules / n_parts_ * granule);
            auto& sums = sums_[static_cast<std::size_t>(part)];
            const FlushSubnormals flush;
            if (columns != nullptr && !sums.start(n_padded, run_, worker)) return;
            body(first, end, columns != nullptr ? &sums : nullptr, part, worker);
        });
        if (run_.stop != nullptr && run_.stop->stopped()) return false;
        if (columns == nullptr) return true;
        return in_pieces(run_, 0, n_cols_, [&](Index from, Index to) {
            std::fill(columns + from, columns + to, 0.0);
            for (auto& sums : sums_) {
                const double* total = sums.finish(from, to);
                for (Index j = from; j < to; ++j) columns[j] += total[j];
            }
        });
    }

    const Run& run() const { return run_; }
    Index count() const { return n_parts_; }

private:
    static constexpr Index granule = 12;

    Run run_;
    Index n_rows_, n_cols_, n_parts_;
    Sums& sums_;
};

template <class T>
Status column_lse(const Problem<T>& problem, const double* f, double* lse, const Run& run) {
    std::vector<T> bias(static_cast<std::size_t>(problem.n_rows)),
        found(static_cast<std::size_t>(problem.n_cols));
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<T>(f[i]);
    RowTask<T> task;
    task.problem = transposed(problem);
    const Stage stage = problem.has_late_biases() ? Stage::late : Stage::early;
    task.problem.col_bias.push_back({bias.data(), 1, stage});
    task.log_sum_exp = found.data();
    const Status status = reduce_rows<T>({task}, Weight::softmax, 0, run);
    std::copy(found.begin(), found.end(), lse);
    return status;
}

// Scores s_ij + g_j of all columns, a block of rows at a time, tile by tile.
template <class T>
class RowWalk {
public:
    static constexpr Index most_rows = 2 * MicroTile<T>::rows;
    // Of the L2 cache, which has a megabyte and more where packs have 512 bits.
    static constexpr Index l2_bytes = Index{QK_SIMD_BYTES == 64 ? 1024 : 256} << 10;

    RowWalk(const Problem<T>& problem, const Run& run)
        : problem_(problem),
          columns_(pack_columns(problem, MatrixView<T>{}, 0, run)),
          base_bias_(columns_.n_padded) {
        // The potentials are one more late bias of the columns.
        if (columns_.has_late()) columns_.late_sides = LateSides::both;
        in_pieces(run, 0, columns_.n_padded, [&](Index from, Index to) {
            std::copy(potentials().data() + from, potentials().data() + to, base_bias_.data() + from);
        });
        const Tiling t = choose_tiling(problem, 0);
        if (t.row_by_row) by_rows_ = pick_row_scores(problem, columns_.dims, columns_.late_sides);
        plain_ = by_rows_ && problem.band.everything();
        tile_ = t.row_by_row && !plain_ ? 256 : t.tile_cols;
        // A block of rows waits in the L2 cache for its sums, but rows that share a pass over the column sums go
        // together whatever their length; matrix work per entry wants whole micro-tiles, for two rows take more than
        // half as long as six.
        const bool features = columns_.dims.total() > 0;
        const Index row_bytes = std::max<Index>(1, columns_.n_padded) * static_cast<Index>(sizeof(T));
        const Index fits = l2_bytes / row_bytes;
        const Index least = by_rows_ || !features ? sweep_rows : MicroTile<T>::rows;
        block_rows_ =
            std::clamp(fits / least * least, least, features ? most_rows : std::min(t.block_rows, most_rows));
    }

    Index width() const { return columns_.n_padded; }
    Index tile() const { return tile_; }
    void set_potential(const double* g, const Run& run) {
        in_pieces(run, 0, problem_.n_cols, [&](Index from, Index to) {
            for (Index j = from; j < to; ++j) potentials()[j] = base_bias_[j] + static_cast<T>(g[j]);
        });
    }

    // For every block of rows: tile(r, j, padded, s, top) for every row r of the block and every tile of columns from j
    // on, whose scores s have the maximum `top`; then block_done(). Rows of the block are `width()` apart.
    template <class Tile, class Done>
    void each_block(Index first, Index end, RowBlock<T>& block, const Run& run, int worker, const Tile& tile,
                    const Done& block_done) const {
        const Index n = columns_.n_padded;
        block.scores.reserve(std::min(block_rows_, end - first) * n);
        for (Index i = first; i < end; i += block_rows_) {
            if (should_stop(run, worker)) return;
            pack_rows(problem_, columns_, i, std::min(block_rows_, end - i), block);
            for (Index j = 0; j < n; j += tile_) {
                if (j > 0 && should_stop(run, worker)) return;
                const Index padded = std::min(tile_, n - j);
                if (!plain_)
                    score_block(problem_, columns_, j, std::min(tile_, problem_.n_cols - j), block, n, j);
                for (Index r = 0; r < block.n_rows; ++r) {
                    T* s = block.scores.data() + r * n + j;
                    tile(r, j, padded, s,
                         plain_ ? by_rows_(row_scores_at(columns_, block, r, j, padded), s)
                                : row_top(block, r, s, padded));
                }
            }
            block_done();
        }
    }

private:
    // Scores that are normalised already take the potential as the last of their biases, when they are small.
    Buffer<T>& potentials() { return columns_.has_late() ? columns_.late : columns_.bias; }

    Problem<T> problem_;
    PackedColumns<T> columns_;
    Buffer<T> base_bias_;
    RowScoresKernel<T> by_rows_{};
    bool plain_ = false;
    Index tile_ = 1;
    Index block_rows_ = 1;
};

// The weights of a block of rows, which wait in the cache for their column sums.
template <class T>
class WeighedRows {
public:
    RowBlock<T> block;

    // row(r, i, state): row r of the block, which is row i of the problem, once all its weights are known; then
    // block_done().
    template <class Row, class Done>
    void walk(const RowWalk<T>& walk, Index first, Index end, const Run& run, int worker, const Row& row,
              const Done& block_done) {
        tile_ = walk.tile();
        online_.reserve(RowWalk<T>::most_rows, walk.width(), tile_);
        walk.each_block(
            first, end, block, run, worker,
            [&](Index r, Index j, Index padded, T* s, T top) {
                online_.weigh(r, j, padded, s, top, block.ahead.row(r));
            },
            [&] {
                for (Index r = 0; r < block.n_rows; ++r) row(r, block.first_row + r, online_.state(r));
                block_done();
                online_.start();
            });
    }

    double factor(Index r, Index j) const { return online_.factor(r, j); }

    // Adds the rows to the column sums, each times what `factors` says.
    void add_to(ColumnSums<T>& sums, Index width, const double* factors, const Run& run, int worker) const {
        T c[RowWalk<T>::most_rows];
        for (Index j = 0; j < width; j += tile_) {
            if (j > 0 && should_stop(run, worker)) return;
            for (Index r = 0; r < block.n_rows; ++r) c[r] = static_cast<T>(factors[r] * factor(r, j));
            sums.add(static_cast<int>(block.n_rows), block.scores.data() + j, width, c, j,
                     std::min(tile_, width - j));
        }
        sums.added(static_cast<int>(block.n_rows));
    }

private:
    Index tile_ = 1;
    OnlineRows<T> online_;
};

template <class T>
class OnTheFly final : public Sweep {
public:
    OnTheFly(const Problem<T>& problem, const Run& run) : OnTheFly(ScaledProblem<T>{problem, {}}, run) {}
    OnTheFly(ScaledProblem<T> scaled, const Run& run)
        : biases_(std::move(scaled.biases)),
          problem_(std::move(scaled.problem)),
          walk_(problem_, run),
          lse_(static_cast<std::size_t>(problem_.n_rows), 0.0) {}

    Status rows(const double* g, const RowMass& mass, double* lse, double* columns, const Run& run) override {
        walk_.set_potential(g, run);
        Parts<T> parts(problem_.n_rows, problem_.n_cols, run, operations(problem_, 0), sums_);
        blocks_.resize(static_cast<std::size_t>(parts.count()));
        std::atomic<bool> overflow{false};
        const bool done = parts(
            walk_.width(), columns, [&](Index first, Index end, ColumnSums<T>* sums, Index part, int worker) {
                WeighedRows<T>& rows = blocks_[static_cast<std::size_t>(part)];
                double factors[RowWalk<T>::most_rows] = {};
                rows.walk(
                    walk_, first, end, parts.run(), worker,
                    [&](Index r, Index i, const SoftmaxState<double>& state) {
                        const double found = state.log_sum_exp();
                        if (!state.empty() && !std::isfinite(found))
                            overflow.store(true, std::memory_order_relaxed);
                        lse[i] = found;
                        lse_[static_cast<std::size_t>(i)] = found;
                        factors[r] = sums != nullptr && state.sum > 0 ? mass(i, found) / state.sum : 0.0;
                    },
                    [&] {
                        if (sums != nullptr) rows.add_to(*sums, walk_.width(), factors, parts.run(), worker);
                    });
            });
        if (!done) return Status::interrupted;
        return overflow.load() ? Status::overflow : Status::ok;
    }

    Status columns(const double* f, double* lse, const Run& run) override {
        return column_lse(problem_, f, lse, run);
    }

    Status curvature(const double* x, const double* mass, double* out, bool, const Run& run) override {
        Buffer<T> direction(walk_.width());
        for (Index j = 0; j < walk_.width(); ++j)
            direction[j] = j < problem_.n_cols ? static_cast<T>(x[j]) : T(0);
        Parts<T> parts(problem_.n_rows, problem_.n_cols, run, operations(problem_, 0), sums_);
        blocks_.resize(static_cast<std::size_t>(parts.count()));
        const bool done = parts(
            walk_.width(), out, [&](Index first, Index end, ColumnSums<T>* sums, Index part, int worker) {
                RowBlock<T>& block = blocks_[static_cast<std::size_t>(part)].block;
                double along[RowWalk<T>::most_rows] = {};
                walk_.each_block(
                    first, end, block, parts.run(), worker,
                    [&](Index r, Index j, Index padded, T* s, T) {
                        const double at = lse_[static_cast<std::size_t>(block.first_row + r)];
                        if (at == -infinity<double>() || mass[block.first_row + r] == 0) {
                            std::fill(s, s + padded, T(0));
                            return;
                        }
                        const auto shift = static_cast<T>(at);
                        const auto found = weigh_row<ShiftedExp<T>, T, 1, false, true>(
                            s, padded, {broadcast(shift)}, shift, direction.data() + j, 0, s,
                            block.ahead.row(r));
                        along[r] += static_cast<double>(found.products[0]);
                    },
                    [&] {
                        T factors[RowWalk<T>::most_rows];
                        for (Index r = 0; r < block.n_rows; ++r)
                            factors[r] = static_cast<T>(mass[block.first_row + r] * along[r]);
                        sums->add(static_cast<int>(block.n_rows), block.scores.data(), walk_.width(),
                                  factors);
                        std::fill(std::begin(along), std::end(along), 0.0);
                    });
            });
        return done ? Status::ok : Status::interrupted;
    }

    Status gather(double least, Index most, SparseRows& out, const Run& run) override {
        const double log_least = std::log(least);
        Gathering gathering(problem_.n_rows, most, operations(problem_, 0), run);
        return gathering(out,
                         [&](Index first, Index end, const auto& found, const Run& part_run, int worker) {
                             RowBlock<T> block;
                             walk_.each_block(
                                 first, end, block, part_run, worker, [](Index, Index, Index, T*, T) {},
                                 [&] {
                                     for (Index r = 0; r < block.n_rows; ++r) {
                                         const Index i = block.first_row + r;
                                         const double at = lse_[static_cast<std::size_t>(i)];
                                         const T* s = block.scores.data() + r * walk_.width();
                                         if (at != -infinity<double>())
                                             for (Index j = 0; j < problem_.n_cols; ++j) {
                                                 const double log = static_cast<double>(s[j]) - at;
                                                 if (log >= log_least) found(i, j, std::exp(log));
                                             }
                                     }
                                 });
                         });
    }

    double epsilon() const override { return static_cast<double>(std::numeric_limits<T>::epsilon()); }

    std::unique_ptr<Sweep> scaled(double factor, const Run& run) const override {
        return std::make_unique<OnTheFly<T>>(scaled_problem(problem_, factor), run);
    }

private:
    std::vector<std::vector<T>> biases_;  // what a scaled problem refers to
    Problem<T> problem_;
    RowWalk<T> walk_;
    std::vector<double> lse_;
    std::vector<WeighedRows<T>> blocks_;
    typename Parts<T>::Sums sums_;
};

// How much the sums over entries that were rounded to single precision are off, from one exact visit.
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

    // The sums of a row are off by an average of its entries' errors, with weights that change by as much as
    // the factors of the columns have since (a common factor does not matter); so for columns.
    double doubt(const std::vector<double>& row_factors, const std::vector<double>& masses,
                 const std::vector<double>& column_factors, const double* columns) const {
        constexpr double rounding = 1.0 / (1 << 23);  // twice the half unit of an entry
        if (!known_) return 2 * rounding * std::accumulate(masses.begin(), masses.end(), 0.0);
        return rounding * (moved(row_factors, row_factors_, masses.data()) +
                           moved(column_factors, column_factors_, columns));
    }

private:
    // sum_k weight_k |now_k / (before_k scale) - 1|, at most 1 each
    static double moved(const std::vector<double>& now, const std::vector<double>& before,
                        const double* weights) {
        double total = 0, scale = 0, sum = 0;
        const std::size_t n = before.size();  // `now` may be padded
        for (std::size_t k = 0; k < n; ++k)
            if (before[k] > 0) {
                total += weights[k];
                scale += weights[k] * (now[k] / before[k]);
            }
        if (!(scale > 0)) return std::accumulate(weights, weights + n, 0.0);
        scale /= total;
        for (std::size_t k = 0; k < n; ++k)
            sum += weights[k] *
                   (before[k] > 0 ? std::min(1.0, std::abs(now[k] / (before[k] * scale) - 1)) : 1.0);
        return sum;
    }

    std::vector<double> rows_, columns_, row_factors_, column_factors_;
    bool known_ = false;
};

// Entries of type E for a problem of type T.
template <class T, class E>
class Stored final : public Sweep {
    static constexpr bool rounded = sizeof(E) < sizeof(T);

public:
    Stored(const Problem<T>& problem, const Run& run)
        : problem_(problem),
          walk_(problem, run),
          ld_(round_up(problem.n_cols, 2 * SimdTraits<E>::width)),
          entries_(problem.n_rows * ld_),
          scaled_(static_cast<std::size_t>(ld_), T(0)),
          at_g_(static_cast<std::size_t>(problem.n_cols), 0.0),
          tops_(static_cast<std::size_t>(problem.n_rows), 0.0),
          sums_(static_cast<std::size_t>(problem.n_rows), 0.0) {
        if (rounded) {
            factors_.resize(sums_.size(), 0.0);
            masses_.resize(sums_.size(), 0.0);
        }
    }

    Status rows(const double* g, const RowMass& mass, double* lse, double* columns, const Run& run) override {
        if (full_) return full_->rows(g, mass, lse, columns, run);
        if (!taken_ || too_far(g) || (refine_ && columns != nullptr)) {
            // In double the entries are taken at g itself, and this is the visit as well.
            const bool at_once = sizeof(T) == sizeof(double) && columns != nullptr;
            const Status status = take(g, mass, lse, at_once ? columns : nullptr, run);
            if (status != Status::ok) return status;
            if (at_once) return rounded ? measure(lse, columns, run) : status;
        }
        if (!in_pieces(run, 0, problem_.n_cols, [&](Index from, Index to) {
                for (Index j = from; j < to; ++j) scaled_[static_cast<std::size_t>(j)] = factor(g, j);
            }))
            return Status::interrupted;
        const Status status = visit(entries_, ld_, scaled_.data(), columns, run, [&](Index i, double found) {
            const auto at = static_cast<std::size_t>(i);
            const double dot = rounded ? found * corrections_.row(i) : found;
            sums_[at] = dot;
            lse[i] = dot > 0 ? tops_[at] + std::log(dot) : -infinity<double>();
            const double m = columns != nullptr && dot > 0 ? mass(i, lse[i]) : 0.0;
            const double c = m == 0 ? 0.0 : m / dot;
            if constexpr (rounded) {
                masses_[at] = m;
                factors_[at] = c;
            }
            return c;
        });
        if (columns == nullptr || status != Status::ok) return status;
        for (Index j = 0; j < problem_.n_cols; ++j) {
            columns[j] *= static_cast<double>(scaled_[static_cast<std::size_t>(j)]);
            if (rounded) columns[j] *= corrections_.column(j);
        }
        if constexpr (rounded) uncertainty_ = corrections_.doubt(factors_, masses_, scaled_, columns);
        return status;
    }

    double uncertainty() const override { return full_ ? 0.0 : uncertainty_; }

    // Where exact visits are asked for again and again the entries are better stored as they are.
    void refine() override {
        constexpr int most = 5;
        if (++n_refined_ > most)
            store_in_full();
        else
            refine_ = true;
    }

    Status columns(const double* f, double* lse, const Run& run) override {
        return column_lse(problem_, f, lse, run);
    }

    Status curvature(const double* x, const double* mass, double* out, bool rough, const Run& run) override {
        if (full_) return full_->curvature(x, mass, out, rough, run);
        if constexpr (rounded) {
            if (rough) return curvature_of(entries_, ld_, x, mass, out, run);
            // Visits that follow are exact, this one's sums come from the last.
            std::vector<double> g(at_g_), lse(sums_.size());
            for (std::size_t j = 0; j < g.size(); ++j) g[j] += std::log(scaled_[j]);
            store_in_full();
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
        Gathering gathering(problem_.n_rows, most, operations(problem_, 0) / 5, run);
        return gathering(
            out, [&](Index first, Index end, const auto& found, const Run& part_run, int worker) {
                for (Index i = first; i < end; ++i) {
                    if ((i - first) % poll_rows == 0 && should_stop(part_run, worker)) return;
                    const double sum = sums_[static_cast<std::size_t>(i)];
                    if (!(sum > 0)) continue;
                    const E* w = entries_.data() + i * ld_;
                    for (Index j = 0; j < problem_.n_cols; ++j) {
                        const double share = static_cast<double>(w[j]) *
                                             static_cast<double>(scaled_[static_cast<std::size_t>(j)]) / sum;
                        if (share >= least) found(i, j, share);
                    }
                }
            });
    }

    double epsilon() const override { return static_cast<double>(std::numeric_limits<T>::epsilon()); }

    std::unique_ptr<Sweep> scaled(double factor, const Run& run) const override {
        return std::make_unique<OnTheFly<T>>(scaled_problem(problem_, factor), run);
    }

private:
    void store_in_full() {
        full_ = std::make_unique<Stored<T, T>>(problem_, Run{});
        entries_ = Buffer<E>();
    }

    // After an exact visit: what the stored entries say at the same potentials.
    Status measure(const double* lse, const double* columns, const Run& run) {
        std::vector<double> row_ratios(sums_.size(), 1.0), ratios(at_g_.size());
        const Status status =
            visit(entries_, ld_, scaled_.data(), ratios.data(), run, [&](Index i, double dot) {
                const auto at = static_cast<std::size_t>(i);
                if (dot > 0 && sums_[at] > 0) row_ratios[at] = sums_[at] / dot;
                masses_[at] = factors_[at] * sums_[at];
                return lse[i] == -infinity<double>() ? 0.0 : factors_[at];
            });
        for (std::size_t j = 0; j < ratios.size(); ++j)
            ratios[j] = ratios[j] > 0 && columns[j] > 0 ? columns[j] / ratios[j] : 1.0;
        corrections_.measured(std::move(row_ratios), std::move(ratios), factors_,
                              {scaled_.begin(), scaled_.begin() + problem_.n_cols});
        uncertainty_ = 0;
        return status;
    }

    template <class A>
    Status curvature_of(const Buffer<A>& entries, Index ld, const double* x, const double* mass, double* out,
                        const Run& run) {
        Buffer<A> direction(ld);
        for (Index j = 0; j < ld; ++j)
            direction[j] =
                j < problem_.n_cols
                    ? static_cast<A>(static_cast<double>(scaled_[static_cast<std::size_t>(j)]) * x[j])
                    : A(0);
        const Status status = visit(entries, ld, direction.data(), out, run, [&](Index i, double dot) {
            const double sum = sums_[static_cast<std::size_t>(i)];
            return sum > 0 ? mass[i] * dot / (sum * sum) : 0.0;
        });
        for (Index j = 0; j < problem_.n_cols; ++j)
            out[j] *= static_cast<double>(scaled_[static_cast<std::size_t>(j)]);
        return status;
    }

    Index ld_single() const { return round_up(problem_.n_cols, 2 * SimdTraits<float>::width); }

    // A copy of the entries in single precision: half to read.
    void halve(const Run& run) {
        const Index ld = ld_single();
        single_.reserve(problem_.n_rows * ld);
        parallel_for(run, problem_.n_rows, [&](Index i, int) {
            float* to = single_.data() + i * ld;
            for (Index j = 0; j < problem_.n_cols; ++j) to[j] = static_cast<float>(entries_[i * ld_ + j]);
            std::fill(to + problem_.n_cols, to + ld, 0.0F);
        });
        halved_ = true;
    }

    // Beyond this, factors exp(g - g0) times entries would leave the range in which sums are exact.
    static constexpr double reach = rounded ? 20.0 : sizeof(T) == 4 ? 8.0 : 60.0;

    T factor(const double* g, Index j) const {
        if (g[j] == -infinity<double>()) return T(0);
        return static_cast<T>(std::exp(g[j] - at_g_[static_cast<std::size_t>(j)]));
    }
    bool too_far(const double* g) const {
        for (Index j = 0; j < problem_.n_cols; ++j) {
            const double from = at_g_[static_cast<std::size_t>(j)];
            if (g[j] != -infinity<double>() && !(std::abs(g[j] - from) <= reach)) return true;
        }
        return false;
    }

    // Takes the entries exp(s_ij + g_j - max_k (s_ik + g_k)) anew; with `columns`, as a visit.
    Status take(const double* g, const RowMass& mass, double* lse, double* columns, const Run& run) {
        taken_ = halved_ = refine_ = false;
        corrections_.forget();
        walk_.set_potential(g, run);
        Parts<T> parts(problem_.n_rows, problem_.n_cols, run, operations(problem_, 0), parts_of<T>());
        std::vector<WeighedRows<T>> blocks(static_cast<std::size_t>(parts.count()));
        std::atomic<bool> overflow{false};
        const Index width = walk_.width();
        const bool done =
            parts(width, columns, [&](Index first, Index end, ColumnSums<T>* sums, Index part, int worker) {
                WeighedRows<T>& rows = blocks[static_cast<std::size_t>(part)];
                double factors[RowWalk<T>::most_rows] = {};
                rows.walk(
                    walk_, first, end, parts.run(), worker,
                    [&](Index r, Index i, const SoftmaxState<double>& state) {
                        const auto at = static_cast<std::size_t>(i);
                        if (!std::isfinite(state.sum)) overflow.store(true, std::memory_order_relaxed);
                        sums_[at] = state.sum;
                        tops_[at] = state.empty() ? 0.0 : state.max;
                        store_row(i, r, rows, parts.run(), worker);
                        if (sums == nullptr) return;
                        lse[i] = state.log_sum_exp();
                        factors[r] = state.sum > 0 ? mass(i, lse[i]) / state.sum : 0.0;
                        if constexpr (rounded) factors_[at] = factors[r];
                    },
                    [&] {
                        if (sums != nullptr) rows.add_to(*sums, width, factors, parts.run(), worker);
                    });
            });
        if (!done) return Status::interrupted;
        if (overflow.load()) return Status::overflow;
        taken_ = in_pieces(run, 0, problem_.n_cols, [&](Index from, Index to) {
            for (Index j = from; j < to; ++j) {
                const auto at = static_cast<std::size_t>(j);
                at_g_[at] =
                    static_cast<double>(static_cast<T>(g[j]));  // exactly what the entries were taken at
                scaled_[at] = factor(g, j);
            }
        });
        return taken_ ? Status::ok : Status::interrupted;
    }

    // Row r of the block, which is row i; a row that sees nothing has weights 0.
    void store_row(Index i, Index r, const WeighedRows<T>& rows, const Run& run, int worker) {
        E* to = entries_.data() + i * ld_;
        const T* from = rows.block.scores.data() + r * walk_.width();
        for (Index j = 0; j < problem_.n_cols; j += walk_.tile()) {
            if (j > 0 && should_stop(run, worker)) return;
            const auto factor = static_cast<T>(rows.factor(r, j));
            const Index end = std::min(j + walk_.tile(), problem_.n_cols);
            for (Index k = j; k < end; ++k) to[k] = static_cast<E>(from[k] * factor);
        }
        std::fill(to + problem_.n_cols, to + ld_, E(0));
    }

    // Asking whether to stop looks at the clock, which takes as long as four short rows; long ones take their time.
    static constexpr Index poll_rows = 64, poll_entries = Index{1} << 21;

    template <class A>
    typename Parts<A>::Sums& parts_of() {
        return std::get<typename Parts<A>::Sums>(part_sums_);
    }

    // Each row dotted with z, weighed by what `weigh(i, dot)` says, and added to the columns; in the arithmetic
    // of z.
    template <class F, class A, class Weigh>
    Status visit(const Buffer<F>& entries, Index ld, const A* z, double* columns, const Run& run,
                 const Weigh& weigh) {
        Parts<A> parts(problem_.n_rows, problem_.n_cols, run, operations(problem_, 0) / 5, parts_of<A>());
        const Index poll = std::clamp<Index>(poll_entries / std::max<Index>(1, ld) / sweep_rows * sweep_rows,
                                             sweep_rows, poll_rows);
        const bool done =
            parts(ld, columns, [&](Index first, Index end, ColumnSums<A>* sums, Index, int worker) {
                for (Index i = first; i < end; i += sweep_rows) {
                    if ((i - first) % poll == 0 && should_stop(parts.run(), worker)) return;
                    const int n = static_cast<int>(std::min<Index>(sweep_rows, end - i));
                    const F* w = entries.data() + i * ld;
                    double dots[sweep_rows];
                    A factors[sweep_rows];
                    dot_some_rows(n, w, ld, z, ld, dots);
                    for (int r = 0; r < n; ++r) factors[r] = static_cast<A>(weigh(i + r, dots[r]));
                    const F* next = i + 2 * sweep_rows <= end ? w + sweep_rows * ld : nullptr;
                    if (sums != nullptr) sums->add(n, w, ld, factors, next);
                }
            });
        return done ? Status::ok : Status::interrupted;
    }

    Problem<T> problem_;
    RowWalk<T> walk_;
    std::tuple<Parts<float>::Sums, Parts<double>::Sums> part_sums_;
    Index ld_;
    Buffer<E> entries_;
    std::vector<T> scaled_;  // exp(g - at_g), zeros beyond the columns
    Buffer<float> single_;
    bool halved_ = false;
    std::vector<double> at_g_, tops_, sums_;  // tops: what the rows were divided by, as logarithms
    bool taken_ = false;

    // Of rounded entries alone.
    std::vector<double> factors_, masses_;
    Corrections corrections_;
    std::unique_ptr<Stored<T, T>> full_;
    double uncertainty_ = 0;
    int n_refined_ = 0;
    bool refine_ = false;
};

}  // namespace

Status Sweep::gather(double, Index, SparseRows& out, const Run&) {
    out = {};
    return Status::ok;
}
std::unique_ptr<Sweep> Sweep::scaled(double, const Run&) const { return nullptr; }

template <class T>
std::unique_ptr<Sweep> sweep_on_the_fly(const Problem<T>& problem, const Run& run) {
    return std::make_unique<OnTheFly<T>>(problem, run);
}
template <class T>
std::unique_ptr<Sweep> sweep_stored(const Problem<T>& problem, const Run& run) {
    return std::make_unique<Stored<T, T>>(problem, run);
}
std::unique_ptr<Sweep> sweep_stored_single(const Problem<double>& problem, const Run& run) {
    return std::make_unique<Stored<double, float>>(problem, run);
}

#define QK_INSTANTIATE(T)                                                            \
    template std::unique_ptr<Sweep> sweep_on_the_fly(const Problem<T>&, const Run&); \
    template std::unique_ptr<Sweep> sweep_stored(const Problem<T>&, const Run&);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)

}  // namespace qk
