#include "qk/self_bridge.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

#include "bridge/sweep_rows.hpp"
#include "engine/flush_subnormals.hpp"
#include "engine/tiling.hpp"

namespace qk {
namespace {

constexpr double none = -std::numeric_limits<double>::infinity();
constexpr Index block_rows = 64;  // a multiple of every row padding, so that blocks start on whole packs

template <class T>
Index padded(Index n) {
    return round_up(n, 2 * SimdTraits<T>::width);
}

// dots_r = sum_j w_rj z_j and sums_j += sum_r c_r w_rj, in one read of the rows.
template <class T, int R>
QK_INLINE void both_ways(const T* w, Index ld, const T* z, const T* c, Index n, T* sums, double* dots) {
    constexpr int width = SimdTraits<T>::width;
    Pack<T> factor[R];
    for (int r = 0; r < R; ++r) {
        factor[r] = broadcast(c[r]);
        dots[r] = 0;
    }
    for (Index first = 0; first < n; first += sweep_chunk) {
        const Index end = std::min(first + sweep_chunk, n);
        Pack<T> acc[R][2] = {};
        for (Index j = first; j < end; j += 2 * width) {
            const Pack<T> z0 = load(z + j), z1 = load(z + j + width);
            Pack<T> a0 = load(sums + j), a1 = load(sums + j + width);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                const Pack<T> w0 = load(w + r * ld + j), w1 = load(w + r * ld + j + width);
                acc[r][0] = fma(w0, z0, acc[r][0]);
                acc[r][1] = fma(w1, z1, acc[r][1]);
                a0 = fma(w0, factor[r], a0);
                a1 = fma(w1, factor[r], a1);
            }
            store(sums + j, a0);
            store(sums + j + width, a1);
        }
        for (int r = 0; r < R; ++r) dots[r] += static_cast<double>(reduce_add<T>(acc[r][0] + acc[r][1]));
    }
}

// lse_i = log sum_j exp(s_ij + g_j).
class RowSums {
public:
    virtual ~RowSums() = default;
    RowSums() = default;
    RowSums(const RowSums&) = delete;
    RowSums& operator=(const RowSums&) = delete;

    virtual Status operator()(const std::vector<double>& g, std::vector<double>& lse, const Run& run) = 0;
};

template <class T>
class OnTheFlySums final : public RowSums {
public:
    OnTheFlySums(const Problem<T>& problem, const Run& run) : sweep_(sweep_on_the_fly(problem, run)) {}

    Status operator()(const std::vector<double>& g, std::vector<double>& lse, const Run& run) override {
        return sweep_->rows(g.data(), [](Index, double) { return 0.0; }, lse.data(), nullptr, run);
    }

private:
    std::unique_ptr<Sweep> sweep_;
};

// Keeps U with U + U^T = exp(s_ij + h_i + h_j), in blocks of rows: zero below the diagonal, half on it.
template <class T>
class TriangleSums final : public RowSums {
public:
    TriangleSums(const Problem<T>& problem, T* scratch)
        : problem_(problem), n_(problem.n_rows), h_(static_cast<std::size_t>(n_)), z_(padded<T>(n_)) {
        // The scratch comes from elsewhere: start it on a cache line.
        const auto address = reinterpret_cast<std::uintptr_t>(scratch);
        T* at = scratch + (round_up(static_cast<Index>(address), 64) - static_cast<Index>(address)) /
                              static_cast<Index>(sizeof(T));
        for (Index first = 0; first < n_; first += block_rows) {
            blocks_.push_back(at);
            at += std::min(block_rows, n_ - first) * padded<T>(n_ - first);
        }
    }

    Status operator()(const std::vector<double>& g, std::vector<double>& lse, const Run& run) override {
        if (!taken_ || too_far(g)) {
            const Status status = take(g, run);
            if (status != Status::ok) return status;
        }
        for (Index j = 0; j < padded<T>(n_); ++j) {
            const auto at = static_cast<std::size_t>(j);
            z_[j] = j < n_ && g[at] != none ? static_cast<T>(std::exp(g[at] - h_[at])) : T(0);
        }
        if (!multiply(run)) return Status::interrupted;
        for (std::size_t i = 0; i < lse.size(); ++i)
            lse[i] = total_[i] > 0 && h_[i] != none ? std::log(total_[i]) - h_[i] : none;
        return Status::ok;
    }

private:
    struct Part {
        std::vector<double> sums;  // of every column, for the rows of this part
        Buffer<T> pending;         // added in T, moved to `sums` block by block
    };

    // Beyond this, factors exp(g - h) times entries would leave the range in which sums are exact.
    static constexpr double reach = sizeof(T) == 4 ? 8.0 : 60.0;

    bool too_far(const std::vector<double>& g) const {
        for (std::size_t j = 0; j < g.size(); ++j)
            if (g[j] != none && !(std::abs(g[j] - h_[j]) <= reach)) return true;
        return false;
    }

    Index rows_of(Index block) const { return std::min(block_rows, n_ - block * block_rows); }
    Index width_of(Index block) const { return padded<T>(n_ - block * block_rows); }

    Status take(const std::vector<double>& g, const Run& run) {
        std::vector<T> bias(g.size());
        for (std::size_t j = 0; j < g.size(); ++j) bias[j] = static_cast<T>(g[j]);
        Problem<T> whole = problem_;
        whole.row_bias.push_back({bias.data(), 1});
        whole.col_bias.push_back({bias.data(), 1});
        std::vector<DenseTask<T>> tasks;
        for (std::size_t b = 0; b < blocks_.size(); ++b) {
            const auto block = static_cast<Index>(b);
            // All that a block of the upper triangle needs: the columns from its first row on.
            const Index first = block * block_rows;
            tasks.push_back(
                {rectangle(whole, first, rows_of(block), first, n_ - first), blocks_[b], width_of(block)});
        }
        const Status status = materialize<T>(tasks, false, Weight::exp, run);
        for (std::size_t b = 0; b < blocks_.size(); ++b) {
            const auto block = static_cast<Index>(b);
            const Index ld = width_of(block), live = n_ - block * block_rows;
            for (Index r = 0; r < rows_of(block); ++r) {
                T* row = blocks_[b] + r * ld;
                std::fill(row, row + r, T(0));
                row[r] /= 2;
                std::fill(row + live, row + ld, T(0));
            }
        }
        for (std::size_t j = 0; j < g.size(); ++j) h_[j] = static_cast<double>(bias[j]);
        taken_ = status == Status::ok;
        return status;
    }

    // total = (U + U^T) z. Each part takes blocks of about the same number of entries; their sums are added in
    // the order of the parts, so the result is the same for the same number of threads.
    bool multiply(const Run& run) {
        const Run scaled = scaled_run(run, static_cast<double>(n_) * static_cast<double>(n_));
        const auto n_blocks = static_cast<Index>(blocks_.size());
        const Index n_parts = std::max<Index>(1, std::min<Index>(scaled.n_threads, n_blocks));
        std::vector<Index> cuts(static_cast<std::size_t>(n_parts) + 1, n_blocks);
        double all = 0, before = 0;
        for (Index b = 0; b < n_blocks; ++b) all += static_cast<double>(width_of(b));
        cuts[0] = 0;
        for (Index b = 0, part = 1; b < n_blocks; ++b) {
            before += static_cast<double>(width_of(b));
            for (; part < n_parts && before * static_cast<double>(n_parts) >= static_cast<double>(part) * all;
                 ++part)
                cuts[static_cast<std::size_t>(part)] = b + 1;
        }
        parts_.resize(static_cast<std::size_t>(n_parts));
        parallel_for(scaled, n_parts, [&](Index part, int worker) {
            const FlushSubnormals flush;
            const auto at = static_cast<std::size_t>(part);
            run_part(parts_[at], cuts[at], cuts[at + 1], scaled, worker);
        });
        if (run.stop != nullptr && run.stop->stopped()) return false;
        total_.assign(static_cast<std::size_t>(n_), 0.0);
        for (const Part& part : parts_)
            for (std::size_t i = 0; i < total_.size(); ++i) total_[i] += part.sums[i];
        return true;
    }

    void run_part(Part& part, Index first, Index end, const Run& run, int worker) {
        part.sums.assign(static_cast<std::size_t>(n_), 0.0);
        part.pending.reserve(padded<T>(n_));
        for (Index b = first; b < end; ++b) {
            if (should_stop(run, worker)) return;
            const Index start = b * block_rows, ld = width_of(b), n_rows = rows_of(b);
            T* pending = part.pending.data();
            std::fill(pending, pending + ld, T(0));
            for (Index r = 0; r < n_rows; r += sweep_rows) {
                const T* w = blocks_[static_cast<std::size_t>(b)] + r * ld;
                const T *z = z_.data() + start, *c = z + r;
                double dots[sweep_rows];
                const Index count = std::min<Index>(sweep_rows, n_rows - r);
                if (count == sweep_rows)
                    both_ways<T, sweep_rows>(w, ld, z, c, ld, pending, dots);
                else
                    for (Index k = 0; k < count; ++k)
                        both_ways<T, 1>(w + k * ld, ld, z, c + k, ld, pending, dots + k);
                for (Index k = 0; k < count; ++k)
                    part.sums[static_cast<std::size_t>(start + r + k)] += dots[k];
            }
            for (Index j = 0; j < n_ - start; ++j)
                part.sums[static_cast<std::size_t>(start + j)] += static_cast<double>(pending[j]);
        }
    }

    Problem<T> problem_;
    Index n_;
    std::vector<T*> blocks_;
    std::vector<double> h_, total_;
    Buffer<T> z_;
    std::vector<Part> parts_;
    bool taken_ = false;
};

// With r = log mu - lse - g, small errors e of g give r = -(1 + P) e, P the stochastic kernel of the solution,
// whose eigenvalues lie in [0, 1]. Heavy-ball steps for the spectrum [1, 2] reduce e by 0.17 per visit, where
// the averaged update (a step of one half, no momentum) reduces it by 0.5 at worst.
class Iteration {
public:
    Iteration(const std::vector<double>& mu, const SelfBridgeOptions& options, BridgeState& state)
        : mu_(mu), options_(options), state_(state), lse_(mu.size()), before_(state.g) {}

    // True when the entries have vanished in the type of the sums, and need the log domain.
    bool solve(RowSums& sums, const Run& run) {
        constexpr double step = 0.6862915010152397;      // (2 / (1 + sqrt 2))^2
        constexpr double momentum = 0.0294372515228595;  // ((sqrt 2 - 1) / (sqrt 2 + 1))^2
        constexpr double near = 0.5;                     // an error from which the linear picture holds
        auto best = infinity<double>();
        Index since_best = 0;
        bool cautious = false;
        for (;;) {
            ++state_.n_visits;
            const Status status = sums(state_.g, lse_, run);
            if (status != Status::ok) {
                state_.status =
                    status == Status::overflow ? BridgeStatus::overflow : BridgeStatus::interrupted;
                return false;
            }
            double error = 0;
            for (std::size_t i = 0; i < mu_.size(); ++i) {
                if (mu_[i] == 0) continue;
                if (lse_[i] == none) {
                    state_.status = BridgeStatus::infeasible;
                    return true;
                }
                error += std::abs(std::exp(state_.g[i] + lse_[i]) - mu_[i]);
            }
            state_.errors.push_back(error);
            state_.status = BridgeStatus::converged;
            if (error <= options_.tol) return false;
            state_.status = BridgeStatus::iteration_limit;
            if (state_.n_visits >= options_.max_visits) return false;
            cautious = cautious || error > 2 * best || !std::isfinite(error);
            since_best = error < 0.99 * best ? 0 : since_best + 1;
            best = std::min(best, error);
            state_.status = BridgeStatus::stagnated;
            if (since_best > patience) return false;
            if (cautious || error > near)
                move(0.5, 0.0);
            else
                move(step, momentum);
        }
    }

private:
    static constexpr Index patience = 30;

    void move(double step, double momentum) {
        for (std::size_t i = 0; i < mu_.size(); ++i) {
            if (mu_[i] == 0) continue;
            const double now = state_.g[i];
            state_.g[i] += step * (std::log(mu_[i]) - lse_[i] - now) + momentum * (now - before_[i]);
            before_[i] = now;
        }
    }

    const std::vector<double>& mu_;
    const SelfBridgeOptions& options_;
    BridgeState& state_;
    std::vector<double> lse_, before_;
};

}  // namespace

template <class T>
Index triangle_size(Index n) {
    Index size = 64 / static_cast<Index>(sizeof(T));  // room to start on a cache line
    for (Index first = 0; first < n; first += block_rows)
        size += std::min(block_rows, n - first) * padded<T>(n - first);
    return size;
}

template <class T>
void solve_self_bridge(const Problem<T>& problem, const std::vector<double>& mu,
                       const SelfBridgeOptions& options, T* scratch, BridgeState& state, const Run& run) {
    for (std::size_t i = 0; i < mu.size(); ++i)
        if (mu[i] == 0) state.g[i] = none;
    Iteration iteration(mu, options, state);
    bool vanished = true;
    if (scratch != nullptr) {
        TriangleSums<T> sums(problem, scratch);
        vanished = iteration.solve(sums, run);
    }
    if (vanished) {
        OnTheFlySums<T> sums(problem, run);
        iteration.solve(sums, run);
    }
}

#define QK_INSTANTIATE(T)                                                                                    \
    template Index triangle_size<T>(Index);                                                                  \
    template void solve_self_bridge(const Problem<T>&, const std::vector<double>&, const SelfBridgeOptions&, \
                                    T*, BridgeState&, const Run&);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)

}  // namespace qk
