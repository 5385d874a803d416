#include "qk/sweep.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "row_kernels.hpp"
#include "row_scores.hpp"
#include "sweep_rows.hpp"
#include "tiling.hpp"

namespace qk {
namespace {

// Rows are cut into one range per thread, each with column sums of its own; these are added in the order of
// the ranges, so the result is the same for the same number of threads.
template <class T>
class Parts {
public:
    Parts(Index n_rows, Index n_cols, const Run& run, double work)
        : run_(scaled_run(run, work)),
          n_rows_(n_rows),
          n_cols_(n_cols),
          n_parts_(std::max<Index>(1, std::min<Index>(run_.n_threads, (n_rows + granule - 1) / granule))),
          sums_(static_cast<std::size_t>(n_parts_)) {}

    // body(first_row, end_row, sums or null, worker)
    template <class Body>
    bool operator()(Index n_padded, double* columns, const Body& body) {
        parallel_for(run_, n_parts_, [&](Index part, int worker) {
            const Index granules = (n_rows_ + granule - 1) / granule;
            const Index first = part * granules / n_parts_ * granule;
            const Index end = std::min(n_rows_, (part + 1) * granules / n_parts_ * granule);
            auto& sums = sums_[static_cast<std::size_t>(part)];
            if (columns != nullptr) sums.start(n_padded);
            body(first, end, columns != nullptr ? &sums : nullptr, part, worker);
        });
        if (run_.stop != nullptr && run_.stop->stopped()) return false;
        if (columns == nullptr) return true;
        std::fill(columns, columns + n_cols_, 0.0);
        for (auto& sums : sums_) {
            const auto& total = sums.finish();
            for (Index j = 0; j < n_cols_; ++j) columns[j] += total[static_cast<std::size_t>(j)];
        }
        return true;
    }

    const Run& run() const { return run_; }
    Index count() const { return n_parts_; }

private:
    static constexpr Index granule = 12;

    Run run_;
    Index n_rows_, n_cols_, n_parts_;
    std::vector<ColumnSums<T>> sums_;
};

template <class T>
Status column_lse(const Problem<T>& problem, const double* f, double* lse, const Run& run) {
    std::vector<T> bias(static_cast<std::size_t>(problem.n_rows)),
        found(static_cast<std::size_t>(problem.n_cols));
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<T>(f[i]);
    RowTask<T> task;
    task.problem = transposed(problem);
    task.problem.col_bias.push_back({bias.data(), 1});
    task.log_sum_exp = found.data();
    const Status status = reduce_rows<T>({task}, Weight::softmax, 0, run);
    std::copy(found.begin(), found.end(), lse);
    return status;
}

// Scores s_ij + g_j of all columns, a block of rows at a time, while the block is in the cache.
template <class T>
class RowWalk {
public:
    static constexpr Index most_rows = 12;

    RowWalk(const Problem<T>& problem, const Run& run)
        : problem_(problem),
          columns_(pack_columns(problem, MatrixView<T>{}, 0, run)),
          base_bias_(columns_.bias.data(), columns_.bias.data() + columns_.n_padded),
          by_rows_(choose_tiling(problem, 0).row_by_row ? pick_row_scores(problem, columns_.dims)
                                                        : RowScoresKernel<T>{}) {
        // A block of rows waits in the L2 cache for its sums; matrix work per entry wants six rows at least.
        const Index row_bytes = std::max<Index>(1, columns_.n_padded) * static_cast<Index>(sizeof(T));
        const Index fits = (Index{256} << 10) / row_bytes;
        const Index least = by_rows_ ? 1 : MicroTile<T>::rows;
        block_rows_ = std::clamp(fits, least, most_rows);
    }

    Index width() const { return columns_.n_padded; }
    void set_potential(const double* g) {
        for (Index j = 0; j < problem_.n_cols; ++j)
            columns_.bias[j] = base_bias_[static_cast<std::size_t>(j)] + static_cast<T>(g[j]);
    }

    // visit(block, tops): the scores of rows [block.first_row, + block.n_rows), `width()` apart, and the
    // largest of each row.
    template <class Visit>
    void each_block(Index first, Index end, RowBlock<T>& block, const Run& run, int worker,
                    const Visit& visit) const {
        const Index n = columns_.n_padded, d = columns_.dims.total();
        block.scores.reserve(block_rows_ * n);
        T tops[most_rows];
        const bool plain = by_rows_ && problem_.band.everything();
        for (Index i = first; i < end; i += block_rows_) {
            if (should_stop(run, worker)) return;
            pack_rows(problem_, columns_, i, std::min(block_rows_, end - i), block);
            if (!plain) score_block(problem_, columns_, 0, problem_.n_cols, block, n);
            for (Index r = 0; r < block.n_rows; ++r) {
                T* s = block.scores.data() + r * n;
                if (!plain) {
                    tops[r] = n > 0 ? row_max(s, n) : -infinity<T>();
                    continue;
                }
                const RowScores<T> row{block.features.data() + r * d, columns_.panels.data(),
                                       columns_.bias.data(),          n / MicroTile<T>::cols,
                                       columns_.distance_scale,       block.bias[r]};
                tops[r] = by_rows_(row, s);
            }
            visit(tops);
        }
    }

    // Scores become weights exp(s - shift); returns their sum, and the sum of weights times z.
    double weigh_all(T* s, T shift, const T* z, double* along) const {
        double sum = 0;
        for (Index j = 0; j < columns_.n_padded; j += sweep_chunk) {
            const Index n = std::min(sweep_chunk, columns_.n_padded - j);
            const ShiftedExp<T> weigh{broadcast(shift)};
            if (z == nullptr) {
                sum += static_cast<double>(
                    weigh_row<ShiftedExp<T>, T, 0, false, true>(s + j, n, weigh, shift, nullptr, 0).sum);
            } else {
                const auto found =
                    weigh_row<ShiftedExp<T>, T, 1, false, true>(s + j, n, weigh, shift, z + j, 0);
                sum += static_cast<double>(found.sum);
                *along += static_cast<double>(found.products[0]);
            }
        }
        return sum;
    }

private:
    Problem<T> problem_;
    PackedColumns<T> columns_;
    std::vector<T> base_bias_;
    RowScoresKernel<T> by_rows_;
    Index block_rows_ = 1;
};

template <class T>
class OnTheFly final : public Sweep {
public:
    OnTheFly(const Problem<T>& problem, const Run& run)
        : problem_(problem), walk_(problem, run), lse_(static_cast<std::size_t>(problem.n_rows), 0.0) {}

    Status rows(const double* g, const RowMass& mass, double* lse, double* columns, const Run& run) override {
        walk_.set_potential(g);
        Parts<T> parts(problem_.n_rows, problem_.n_cols, run, operations(problem_, 0));
        blocks_.resize(static_cast<std::size_t>(parts.count()));
        std::atomic<bool> overflow{false};
        const bool done = parts(walk_.width(), columns,
                                [&](Index first, Index end, ColumnSums<T>* sums, Index part, int worker) {
                                    RowBlock<T>& block = blocks_[static_cast<std::size_t>(part)];
                                    walk_.each_block(first, end, block, parts.run(), worker, [&](T* tops) {
                                        T factors[RowWalk<T>::most_rows];
                                        for (Index r = 0; r < block.n_rows; ++r) {
                                            T* s = block.scores.data() + r * walk_.width();
                                            const Index i = block.first_row + r;
                                            const auto top = static_cast<double>(tops[r]);
                                            double found = top, sum = 0;
                                            if (top != -infinity<double>()) {
                                                sum = walk_.weigh_all(s, tops[r], nullptr, nullptr);
                                                found = top + std::log(sum);
                                                if (!std::isfinite(found))
                                                    overflow.store(true, std::memory_order_relaxed);
                                            }
                                            lse[i] = found;
                                            lse_[static_cast<std::size_t>(i)] = found;
                                            factors[r] = T(0);
                                            if (sums != nullptr && sum > 0)
                                                factors[r] = static_cast<T>(mass(i, found) / sum);
                                            if (sum == 0) std::fill(s, s + walk_.width(), T(0));
                                        }
                                        if (sums != nullptr)
                                            sums->add(static_cast<int>(block.n_rows), block.scores.data(),
                                                      walk_.width(), factors);
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
        Parts<T> parts(problem_.n_rows, problem_.n_cols, run, operations(problem_, 0));
        blocks_.resize(static_cast<std::size_t>(parts.count()));
        const bool done = parts(
            walk_.width(), out, [&](Index first, Index end, ColumnSums<T>* sums, Index part, int worker) {
                RowBlock<T>& block = blocks_[static_cast<std::size_t>(part)];
                walk_.each_block(first, end, block, parts.run(), worker, [&](T*) {
                    T factors[RowWalk<T>::most_rows];
                    for (Index r = 0; r < block.n_rows; ++r) {
                        T* s = block.scores.data() + r * walk_.width();
                        const Index i = block.first_row + r;
                        const double at = lse_[static_cast<std::size_t>(i)];
                        factors[r] = T(0);
                        if (at == -infinity<double>() || mass[i] == 0) {
                            std::fill(s, s + walk_.width(), T(0));
                            continue;
                        }
                        double along = 0;
                        walk_.weigh_all(s, static_cast<T>(at), direction.data(), &along);
                        factors[r] = static_cast<T>(mass[i] * along);
                    }
                    sums->add(static_cast<int>(block.n_rows), block.scores.data(), walk_.width(), factors);
                });
            });
        return done ? Status::ok : Status::interrupted;
    }

private:
    Problem<T> problem_;
    RowWalk<T> walk_;
    std::vector<double> lse_;
    std::vector<RowBlock<T>> blocks_;
};

template <class T>
class Stored final : public Sweep {
public:
    Stored(const Problem<T>& problem, const Run& run)
        : problem_(problem),
          walk_(problem, run),
          ld_(round_up(problem.n_cols, 2 * SimdTraits<T>::width)),
          entries_(problem.n_rows * ld_),
          scaled_(ld_),
          at_g_(static_cast<std::size_t>(problem.n_cols), 0.0),
          tops_(static_cast<std::size_t>(problem.n_rows), 0.0),
          sums_(static_cast<std::size_t>(problem.n_rows), 0.0) {}

    Status rows(const double* g, const RowMass& mass, double* lse, double* columns, const Run& run) override {
        if (!taken_ || too_far(g)) {
            const Status status = take(g, run);
            if (status != Status::ok) return status;
        }
        for (Index j = 0; j < ld_; ++j) scaled_[j] = j < problem_.n_cols ? factor(g, j) : T(0);
        const Status status = visit(entries_, ld_, scaled_.data(), columns, run, [&](Index i, double dot) {
            sums_[static_cast<std::size_t>(i)] = dot;
            lse[i] = dot > 0 ? tops_[static_cast<std::size_t>(i)] + std::log(dot) : -infinity<double>();
            return columns != nullptr && dot > 0 ? mass(i, lse[i]) / dot : 0.0;
        });
        if (columns != nullptr && status == Status::ok)
            for (Index j = 0; j < problem_.n_cols; ++j) columns[j] *= static_cast<double>(scaled_[j]);
        return status;
    }

    Status columns(const double* f, double* lse, const Run& run) override {
        return column_lse(problem_, f, lse, run);
    }

    Status curvature(const double* x, const double* mass, double* out, bool rough, const Run& run) override {
        if (rough && sizeof(T) > sizeof(float)) {
            if (!halved_) halve(run);
            return curvature_of(single_, ld_single(), x, mass, out, run);
        }
        return curvature_of(entries_, ld_, x, mass, out, run);
    }

private:
    template <class E>
    Status curvature_of(const Buffer<E>& entries, Index ld, const double* x, const double* mass, double* out,
                        const Run& run) {
        Buffer<E> direction(ld);
        for (Index j = 0; j < ld; ++j)
            direction[j] =
                j < problem_.n_cols ? static_cast<E>(static_cast<double>(scaled_[j]) * x[j]) : E(0);
        const Status status = visit(entries, ld, direction.data(), out, run, [&](Index i, double dot) {
            const double sum = sums_[static_cast<std::size_t>(i)];
            return sum > 0 ? mass[i] * dot / (sum * sum) : 0.0;
        });
        for (Index j = 0; j < problem_.n_cols; ++j) out[j] *= static_cast<double>(scaled_[j]);
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
    static constexpr double reach = sizeof(T) == 4 ? 8.0 : 60.0;

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

    // Takes the entries exp(s_ij + g_j - max_k (s_ik + g_k)) anew.
    Status take(const double* g, const Run& run) {
        taken_ = halved_ = false;
        walk_.set_potential(g);
        Parts<T> parts(problem_.n_rows, problem_.n_cols, run, operations(problem_, 0));
        std::vector<RowBlock<T>> blocks(static_cast<std::size_t>(parts.count()));
        std::atomic<bool> overflow{false};
        const Index width = walk_.width();
        const bool done =
            parts(width, nullptr, [&](Index first, Index end, ColumnSums<T>*, Index part, int worker) {
                RowBlock<T>& block = blocks[static_cast<std::size_t>(part)];
                walk_.each_block(first, end, block, parts.run(), worker, [&](const T* tops) {
                    for (Index r = 0; r < block.n_rows; ++r) {
                        T* s = block.scores.data() + r * width;
                        const Index i = block.first_row + r;
                        T* to = entries_.data() + i * ld_;
                        const bool seen = tops[r] != -infinity<T>();  // else every entry is 0
                        tops_[static_cast<std::size_t>(i)] = seen ? static_cast<double>(tops[r]) : 0.0;
                        if (seen) {
                            if (!std::isfinite(walk_.weigh_all(s, tops[r], nullptr, nullptr)))
                                overflow.store(true, std::memory_order_relaxed);
                            std::copy(s, s + problem_.n_cols, to);
                        } else {
                            std::fill(to, to + problem_.n_cols, T(0));
                        }
                        std::fill(to + problem_.n_cols, to + ld_, T(0));
                    }
                });
            });
        if (!done) return Status::interrupted;
        if (overflow.load()) return Status::overflow;
        // Exactly what the entries were taken at.
        for (Index j = 0; j < problem_.n_cols; ++j)
            at_g_[static_cast<std::size_t>(j)] = static_cast<double>(static_cast<T>(g[j]));
        taken_ = true;
        return Status::ok;
    }

    // Each row dotted with z, weighed by what `weigh(i, dot)` says, and added to the columns.
    template <class E, class Weigh>
    Status visit(const Buffer<E>& entries, Index ld, const E* z, double* columns, const Run& run,
                 const Weigh& weigh) {
        Parts<E> parts(problem_.n_rows, problem_.n_cols, run, operations(problem_, 0) / 5);
        const bool done =
            parts(ld, columns, [&](Index first, Index end, ColumnSums<E>* sums, Index, int worker) {
                for (Index i = first; i < end; i += sweep_rows) {
                    if (should_stop(parts.run(), worker)) return;
                    const int n = static_cast<int>(std::min<Index>(sweep_rows, end - i));
                    const E* w = entries.data() + i * ld;
                    double dots[sweep_rows];
                    E factors[sweep_rows];
                    dot_some_rows(n, w, ld, z, ld, dots);
                    for (int r = 0; r < n; ++r) factors[r] = static_cast<E>(weigh(i + r, dots[r]));
                    if (sums != nullptr) sums->add(n, w, ld, factors);
                }
            });
        return done ? Status::ok : Status::interrupted;
    }

    Problem<T> problem_;
    RowWalk<T> walk_;
    Index ld_;
    Buffer<T> entries_, scaled_;
    Buffer<float> single_;
    bool halved_ = false;
    std::vector<double> at_g_, tops_, sums_;  // tops: what the rows were divided by, as logarithms
    bool taken_ = false;
};

}  // namespace

template <class T>
std::unique_ptr<Sweep> sweep_on_the_fly(const Problem<T>& problem, const Run& run) {
    return std::make_unique<OnTheFly<T>>(problem, run);
}
template <class T>
std::unique_ptr<Sweep> sweep_stored(const Problem<T>& problem, const Run& run) {
    return std::make_unique<Stored<T>>(problem, run);
}

#define QK_INSTANTIATE(T)                                                            \
    template std::unique_ptr<Sweep> sweep_on_the_fly(const Problem<T>&, const Run&); \
    template std::unique_ptr<Sweep> sweep_stored(const Problem<T>&, const Run&);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)

}  // namespace qk
