// Products with a matrix of complex entries exp(s_ij) e^{i theta_ij}: magnetic operators (DAC eqs 37-43).
#include <atomic>
#include <cmath>

#include "engine/tile_walk.hpp"
#include "qk/engine.hpp"
#include "qk/vector_math.hpp"
#include "qk/vector_trig.hpp"

namespace qk {
namespace {

// exp(s) (cos, sin)(theta), in place of s and theta. Masked entries are 0 whatever their phase.
template <class T>
void polar_row(T* s, T* theta, Index n) {
    constexpr int width = SimdTraits<T>::width;
    for (Index j = 0; j < n; j += width) {
        const Pack<T> weight = exp(load(s + j));
        const auto gone = weight == Pack<T>{};
        Pack<T> sine, cosine;
        sincos<T>(select(gone, Pack<T>{}, load(theta + j)), sine, cosine);
        store(s + j, weight * cosine);
        store(theta + j, weight * sine);
    }
}

template <class T>
struct Scratch {
    RowBlock<T> weights, phases;
    Buffer<T> sums;
};

}  // namespace

template <class T>
Status apply_phases(const std::vector<PhaseTask<T>>& tasks, Index n_values, const Run& run) {
    std::atomic<bool> overflow{false};
    for (const PhaseTask<T>& task : tasks) {
        const Problem<T>& p = task.problem;
        const Run inner = scaled_run(run, 4 * operations(p, n_values));
        // The layout for many right-hand sides, whatever their number: sines and cosines are the work.
        const PackedColumns<T> columns = pack_columns(p, task.values, n_values, inner, true);
        const PackedColumns<T> turned = pack_columns(task.phases, task.turned, n_values, inner, true);
        const Tiling t = whole_row_tiling(p);
        std::vector<Piece> pieces;
        cut(0, p.n_rows, p.n_cols, t, pieces);
        std::vector<Scratch<T>> scratch(static_cast<std::size_t>(inner.n_threads));
        const Index ld_sums = columns.n_packs * SimdTraits<T>::width;
        parallel_for(inner, static_cast<Index>(pieces.size()), [&](Index i, int worker) {
            Scratch<T>& mine = scratch[static_cast<std::size_t>(worker)];
            const Piece& piece = pieces[static_cast<std::size_t>(i)];
            walk_pairs(p, columns, task.phases, turned, piece.first_row, piece.end_row, t, mine.weights,
                       mine.phases, inner, worker, [&](Index padded, Index j, Index, Index ld) {
                           const Index n_rows = mine.weights.n_rows;
                           mine.sums.reserve(t.block_rows * ld_sums);
                           if (j == 0) std::fill(mine.sums.data(), mine.sums.data() + n_rows * ld_sums, T(0));
                           T* cosines = mine.weights.scores.data();
                           T* sines = mine.phases.scores.data();
                           for (Index r = 0; r < n_rows; ++r)
                               polar_row(cosines + r * ld, sines + r * ld, padded);
                           product_tile(cosines, ld, n_rows, padded, columns.values.data(), columns.n_padded,
                                        j, columns.n_packs, mine.sums.data(), ld_sums);
                           product_tile(sines, ld, n_rows, padded, turned.values.data(), turned.n_padded, j,
                                        turned.n_packs, mine.sums.data(), ld_sums);
                           if (j + t.tile_cols < p.n_cols) return;
                           bool finite = true;
                           for (Index r = 0; r < n_rows; ++r)
                               for (Index k = 0; k < n_values; ++k) {
                                   const T value = mine.sums[r * ld_sums + k];
                                   finite = finite && std::isfinite(value);
                                   task.out[(mine.weights.first_row + r) * n_values + k] = value;
                               }
                           if (!finite) overflow.store(true, std::memory_order_relaxed);
                       });
        });
        if (run.stop != nullptr && run.stop->stopped()) return Status::interrupted;
    }
    return overflow.load() ? Status::overflow : Status::ok;
}

template Status apply_phases(const std::vector<PhaseTask<float>>&, Index, const Run&);
template Status apply_phases(const std::vector<PhaseTask<double>>&, Index, const Run&);

}  // namespace qk
