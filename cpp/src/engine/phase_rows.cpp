// Products with a matrix of complex entries exp(s_ij) e^{i theta_ij}: magnetic operators (DAC eqs 37-43).
#include <atomic>
#include <cmath>

#include "engine/walk.hpp"
#include "qk/engine.hpp"
#include "qk/vector_math.hpp"
#include "qk/vector_trig.hpp"

namespace qk {
namespace {

// Replaces s and theta by exp(s) (cos, sin)(theta). Masked entries are 0 whatever their phase.
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
struct Sums : WalkLocal<T> {
    Buffer<T> sums;
    Index ld = 0;
};

template <class T>
class PhaseProduct {
public:
    static constexpr Keeps keeps = Keeps::tile;
    static constexpr bool pairs = true;
    using Local = Sums<T>;

    PhaseProduct(const std::vector<PhaseTask<T>>& tasks, Index n_values, int n_workers)
        : tasks_(tasks), n_values_(n_values), locals_(static_cast<std::size_t>(n_workers)) {}

    Local& local(const Piece&, int worker) { return locals_[static_cast<std::size_t>(worker)]; }

    void start_block(Local& local, const Block<T>& at) const {
        local.ld = at.walked.columns.n_packs * SimdTraits<T>::width;
        local.sums.reserve(at.n_rows * local.ld);
        std::fill(local.sums.data(), local.sums.data() + at.n_rows * local.ld, T(0));
    }

    void row(Local&, const Block<T>&, const Tile&, const Row<T>& row) const {
        polar_row(row.s, row.beside, row.padded);
    }

    void end_tile(Local& local, const Block<T>& at, const Tile& tile) const {
        const auto add = [&](const Buffer<T>& weights, const PackedColumns<T>& columns) {
            product_tile(weights.data(), tile.ld, at.n_rows, tile.padded, columns.values.data(),
                         columns.n_padded, tile.first_col, columns.n_packs, local.sums.data(), local.ld);
        };
        add(local.block.scores, at.walked.columns);
        add(local.beside.scores, at.walked.beside_columns);
    }

    void end_block(Local& local, const Block<T>& at, const Run&, int) {
        T* out = tasks_[static_cast<std::size_t>(at.piece.problem)].out + at.first_row * n_values_;
        bool finite = true;
        for (Index r = 0; r < at.n_rows; ++r)
            for (Index k = 0; k < n_values_; ++k) {
                const T value = local.sums[r * local.ld + k];
                finite = finite && std::isfinite(value);
                out[r * n_values_ + k] = value;
            }
        if (!finite) overflow_.store(true, std::memory_order_relaxed);
    }

    Status status() const { return overflow_.load() ? Status::overflow : Status::ok; }

private:
    const std::vector<PhaseTask<T>>& tasks_;
    const Index n_values_;
    std::vector<Local> locals_;
    std::atomic<bool> overflow_{false};
};

}  // namespace

template <class T>
Status apply_phases(const std::vector<PhaseTask<T>>& tasks, Index n_values, const Run& run) {
    double work = 0;
    for (const auto& task : tasks) work += 4 * operations(task.problem, n_values);
    const Run scaled = scaled_run(run, work);
    const auto n = static_cast<Index>(tasks.size());
    // The layout is that for many right-hand sides whatever their number, because sines and cosines take most of the time.
    const auto problems = prepare_each<T>(n, scaled, [&](std::size_t at, const Run& inner) {
        const PhaseTask<T>& task = tasks[at];
        Walked<T> w =
            prepare(task.problem, whole_row_tiling(task.problem, n), task.values, n_values, inner, true);
        w.put_beside(task.phases, task.turned, n_values, inner, true);
        return w;
    });
    PhaseProduct<T> reducer(tasks, n_values, scaled.n_threads);
    return walk<T>(problems, cut_all(problems), reducer, scaled) ? reducer.status() : Status::interrupted;
}

template Status apply_phases(const std::vector<PhaseTask<float>>&, Index, const Run&);
template Status apply_phases(const std::vector<PhaseTask<double>>&, Index, const Run&);

}  // namespace qk
