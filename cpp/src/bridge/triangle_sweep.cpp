#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bridge/sweep_rows.hpp"
#include "engine/flush_subnormals.hpp"
#include "engine/tiling.hpp"
#include "qk/bridge_kernels.hpp"
#include "qk/scalar_math.hpp"

namespace qk {
namespace {

constexpr Index block_rows = 64;  // a multiple of every row padding, so that blocks start on whole packs

template <class T>
Index padded(Index n) {
    return round_up(n, 2 * SimdTraits<T>::width);
}

// Computes dots_r = sum_j w_rj z_j and adds sum_r c_r w_rj to sums_j, in one read of the rows.
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

// Stores U with U + U^T = exp(s_ij + h_i + h_j), in blocks of rows: zero below the diagonal, half of the entry on it. A
// product with the kernel reads every entry of U once and uses it twice. This serves the averaged update of symmetric
// problems, which needs only row sums; everything else is done by a sweep that computes entries on the fly.
template <class T>
class Triangle final : public Sweep {
public:
    Triangle(const Problem<T>& problem, T* scratch)
        : problem_(problem), n_(problem.n_rows), h_(static_cast<std::size_t>(n_)), z_(padded<T>(n_)) {
        if (scratch == nullptr) {
            own_.reserve(triangle_size<T>(n_));
            scratch = own_.data();
        }
        // The caller's scratch memory is used from its first whole cache line on.
        const auto address = reinterpret_cast<std::uintptr_t>(scratch);
        T* at = scratch + (round_up(static_cast<Index>(address), 64) - static_cast<Index>(address)) /
                              static_cast<Index>(sizeof(T));
        for (Index first = 0; first < n_; first += block_rows) {
            blocks_.push_back(at);
            at += std::min(block_rows, n_ - first) * padded<T>(n_ - first);
        }
    }

    // In a symmetric problem points with g = -inf have weight 0, and get lse = -inf.
    Status rows(const double* g, const RowMass& mass, double* lse, double* columns, const Run& run) override {
        if (columns != nullptr || vanished_) return exact(run).rows(g, mass, lse, columns, run);
        if (!taken_ || too_far(g)) {
            const Status status = take(g, run);
            vanished_ = status == Status::overflow;
            if (vanished_) return exact(run).rows(g, mass, lse, columns, run);
            if (status != Status::ok) return status;
        }
        for (Index j = 0; j < padded<T>(n_); ++j) {
            const auto at = static_cast<std::size_t>(j);
            z_[j] = j < n_ && g[j] != log_of_nothing ? static_cast<T>(std::exp(g[j] - h_[at])) : T(0);
        }
        if (!multiply(run)) return Status::interrupted;
        for (Index i = 0; i < n_; ++i) {
            const auto at = static_cast<std::size_t>(i);
            const bool live = g[i] != log_of_nothing;
            const bool in_range = total_[at] > 0 && std::isfinite(total_[at]);
            if (live && !in_range) {
                // Entries have left the range of the type, so they are computed from logarithms from here on.
                vanished_ = true;
                return exact(run).rows(g, mass, lse, columns, run);
            }
            lse[i] = live ? std::log(total_[at]) - h_[at] : log_of_nothing;
        }
        return Status::ok;
    }

    Status columns(const double* f, double* lse, const Run& run) override {
        return exact(run).columns(f, lse, run);
    }

    Status curvature(const double* x, const double* mass, double* out, bool rough, const Run& run) override {
        return exact(run).curvature(x, mass, out, rough, run);
    }

private:
    struct Part {
        std::vector<double> sums;  // the sums of every column over the rows of this part
        Buffer<T> pending;         // sums in T, moved to `sums` block by block
    };

    // If g - h is larger than this, exp(g - h) times entries would leave the range in which sums are exact.
    static constexpr double reach = sizeof(T) == 4 ? 8.0 : 60.0;

    bool too_far(const double* g) const {
        for (Index j = 0; j < n_; ++j)
            if (g[j] != log_of_nothing && !(std::abs(g[j] - h_[static_cast<std::size_t>(j)]) <= reach))
                return true;
        return false;
    }

    Index rows_of(Index block) const { return std::min(block_rows, n_ - block * block_rows); }
    Index width_of(Index block) const { return padded<T>(n_ - block * block_rows); }

    Sweep& exact(const Run& run) {
        if (!exact_) exact_ = sweep_on_the_fly(problem_, run);
        return *exact_;
    }

    Status take(const double* g, const Run& run) {
        std::vector<T> bias(h_.size());
        for (std::size_t j = 0; j < bias.size(); ++j) bias[j] = static_cast<T>(g[j]);
        Problem<T> whole = problem_;
        whole.row_bias.push_back({bias.data(), 1});
        whole.col_bias.push_back({bias.data(), 1});
        std::vector<DenseTask<T>> tasks;
        for (std::size_t b = 0; b < blocks_.size(); ++b) {
            const auto block = static_cast<Index>(b);
            // The entries of a block of the upper triangle: the columns from its first row on.
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
        for (std::size_t j = 0; j < bias.size(); ++j) h_[j] = static_cast<double>(bias[j]);
        taken_ = status == Status::ok;
        return status;
    }

    // total = (U + U^T) z. Each part takes blocks with about the same number of entries; the sums of the parts are
    // added in order, so the result is the same for the same number of threads.
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
    Buffer<T> own_;
    std::vector<T*> blocks_;
    std::vector<double> h_, total_;
    Buffer<T> z_;
    std::vector<Part> parts_;
    bool taken_ = false;
    std::unique_ptr<Sweep> exact_;
    bool vanished_ = false;
};

}  // namespace

template <class T>
Index triangle_size(Index n) {
    Index size = 64 / static_cast<Index>(sizeof(T));  // room to start at a cache line
    for (Index first = 0; first < n; first += block_rows)
        size += std::min(block_rows, n - first) * padded<T>(n - first);
    return size;
}

template <class T>
std::unique_ptr<Sweep> sweep_triangle(const Problem<T>& problem, T* scratch) {
    return std::make_unique<Triangle<T>>(problem, scratch);
}

#define QK_INSTANTIATE(T)                   \
    template Index triangle_size<T>(Index); \
    template std::unique_ptr<Sweep> sweep_triangle(const Problem<T>&, T*);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)

}  // namespace qk
