#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/tiling.hpp"
#include "qk/simd.hpp"
#include "qk/symmetric.hpp"

namespace qk {
namespace {

constexpr Index diagonal_tile = 16;
constexpr Index chunk = 512;  // entries of one column that stay in the L1 cache while other columns are read

template <class T>
Status diagonal_of(const Problem<T>& problem, double* out, const Run& run) {
    const Index n = problem.n_rows, n_tiles = (n + diagonal_tile - 1) / diagonal_tile;
    Buffer<T> tiles(n_tiles * diagonal_tile * diagonal_tile);
    std::vector<DenseTask<T>> tasks;
    tasks.reserve(static_cast<std::size_t>(n_tiles));
    for (Index t = 0; t < n_tiles; ++t) {
        const Index first = t * diagonal_tile, size = std::min(diagonal_tile, n - first);
        tasks.push_back({rectangle(problem, first, size, first, size), tiles.data() + first * diagonal_tile,
                         diagonal_tile});
    }
    const Status status = materialize(tasks, false, Weight::exp, run);
    for (Index i = 0; i < n; ++i)
        out[i] = static_cast<double>(tiles[(i * diagonal_tile) + i % diagonal_tile]);
    return status;
}

// column -= sum_k weights_k rows_k on [first, end), four rows at a time.
template <class T>
void subtract_rows(const T* rows, Index ld, const T* weights, Index n_rows, Index first, Index end,
                   T* column) {
    constexpr int width = SimdTraits<T>::width;
    for (Index k = 0; k < n_rows; k += 4) {
        const auto count = static_cast<int>(std::min<Index>(4, n_rows - k));
        const T* row[4];
        Pack<T> w[4];
        for (int h = 0; h < 4; ++h) {
            row[h] = rows + (k + std::min(h, count - 1)) * ld;
            w[h] = broadcast(h < count ? -weights[k + h] : T(0));
        }
        Index i = first;
        for (; i + width <= end; i += width) {
            Pack<T> c = load(column + i);
            for (int h = 0; h < 4; ++h) c = fma(w[h], load(row[h] + i), c);
            store(column + i, c);
        }
        for (; i < end; ++i)
            for (int h = 0; h < count; ++h) column[i] -= weights[k + h] * row[h][i];
    }
}

struct Largest {
    double value = -1;
    Index at = 0;
};

}  // namespace

template <class T>
Status partial_cholesky(const Problem<T>& problem, Index max_rank, double enough, T* factor,
                        PartialFactor& found, const Run& run) {
    const Index n = problem.n_rows, n_chunks = (n + chunk - 1) / chunk;
    std::vector<double> rest(static_cast<std::size_t>(n)), sums(static_cast<std::size_t>(n_chunks));
    std::vector<Largest> largest(static_cast<std::size_t>(n_chunks));
    std::vector<T> weights(static_cast<std::size_t>(max_rank));
    Status status = diagonal_of(problem, rest.data(), run);
    // Sums and the next pivot are computed chunk by chunk, so that they do not depend on the number of threads.
    const auto look_at = [&](Index c) {
        Largest best;
        double sum = 0;
        for (Index i = c * chunk; i < std::min(n, (c + 1) * chunk); ++i) {
            const double value = rest[static_cast<std::size_t>(i)];
            sum += value;
            if (value > best.value) best = {value, i};
        }
        sums[static_cast<std::size_t>(c)] = sum;
        largest[static_cast<std::size_t>(c)] = best;
    };
    for (Index c = 0; c < n_chunks; ++c) look_at(c);
    const double scale = *std::ranges::max_element(rest);
    for (Index rank = 0;; ++rank) {
        found.rank = rank;
        found.rest = 0;
        for (const double sum : sums) found.rest += sum;
        Largest pivot;
        for (const Largest& one : largest)
            if (one.value > pivot.value) pivot = one;
        const double rounding = 8 * static_cast<double>(std::numeric_limits<T>::epsilon()) * scale;
        if (status != Status::ok || rank == max_rank || found.rest <= enough || pivot.value <= rounding)
            return status;
        T* column = factor + rank * n;
        std::vector<DenseTask<T>> tasks;
        for (Index j = 0; j < n; j += 1 << 14)
            tasks.push_back(
                {rectangle(problem, pivot.at, 1, j, std::min<Index>(1 << 14, n - j)), column + j, n});
        status = materialize(tasks, false, Weight::exp, run);
        if (status != Status::ok) return status;
        for (Index k = 0; k < rank; ++k) weights[static_cast<std::size_t>(k)] = factor[k * n + pivot.at];
        const T inverse = T(1 / std::sqrt(pivot.value));
        const Run scaled = scaled_run(run, static_cast<double>(n * (rank + 2)) / SimdTraits<T>::width);
        parallel_for(scaled, n_chunks, [&](Index c, int worker) {
            if (should_stop(run, worker)) return;
            const Index first = c * chunk, end = std::min(n, first + chunk);
            subtract_rows(factor, n, weights.data(), rank, first, end, column);
            for (Index i = first; i < end; ++i) {
                column[i] *= inverse;
                const auto value = static_cast<double>(column[i]);
                double& left = rest[static_cast<std::size_t>(i)];
                left = std::max(0.0, left - value * value);
            }
            look_at(c);
        });
        if (run.stop != nullptr && run.stop->stopped()) return Status::interrupted;
        rest[static_cast<std::size_t>(pivot.at)] = 0;
        look_at(pivot.at / chunk);
    }
}

#define QK_INSTANTIATE(T) \
    template Status partial_cholesky(const Problem<T>&, Index, double, T*, PartialFactor&, const Run&);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)

}  // namespace qk
