// Compares two matrices exp(a_ij), exp(b_ij) row by row. If b is the transpose of a, the differences are probability
// currents (DAC eq 18); otherwise they give distances between operators.
#include <cmath>

#include "engine/walk.hpp"
#include "qk/engine.hpp"
#include "qk/vector_math.hpp"

namespace qk {
namespace {

template <class T>
struct TileComparison {
    T absolute, squares, tilt, largest, top;
};

template <class T>
TileComparison<T> compare_row(const T* a, T* b, Index n) {
    constexpr int width = SimdTraits<T>::width;
    Pack<T> absolute = {}, squares = {}, tilt = {}, largest = {}, top = {};
    for (Index j = 0; j < n; j += width) {
        const Pack<T> x = load(a + j), y = load(b + j);
        const Pack<T> wx = exp(x), wy = exp(y);
        const Pack<T> diff = wx - wy;
        const Pack<T> size = max(diff, -diff);
        absolute += size;
        squares = fma(diff, diff, squares);
        // Equal weights, also two zeros, have no tilt; if one of two weights is 0, the tilt is infinite.
        tilt += select(diff == Pack<T>{}, Pack<T>{}, diff * (x - y));
        largest = max(size, largest);
        top = max(wx, top);
        store(b + j, diff);  // the largest is looked for afterwards
    }
    return {reduce_add<T>(absolute), reduce_add<T>(squares), reduce_add<T>(tilt), reduce_max<T>(largest),
            reduce_max<T>(top)};
}

template <class T>
class Comparison {
public:
    static constexpr Keeps keeps = Keeps::row;
    static constexpr bool pairs = true;
    using Local = WalkLocal<T>;

    Comparison(const std::vector<CompareTask<T>>& tasks, int n_workers)
        : tasks_(tasks), locals_(static_cast<std::size_t>(n_workers)) {}

    Local& local(const Piece&, int worker) { return locals_[static_cast<std::size_t>(worker)]; }

    void start_block(Local&, const Block<T>& at) const {
        for (Index r = 0; r < at.n_rows; ++r) rows_of(at)[at.first_row + r] = RowComparison{};
    }

    void row(Local&, const Block<T>& at, const Tile& tile, const Row<T>& row) {
        T* diffs = row.beside;
        const auto found = compare_row(row.s, diffs, row.padded);
        RowComparison& sum = rows_of(at)[row.i];
        sum.absolute += static_cast<double>(found.absolute);
        sum.squares += static_cast<double>(found.squares);
        sum.tilt += static_cast<double>(found.tilt);
        sum.top = std::max(sum.top, static_cast<double>(found.top));
        if (static_cast<double>(found.largest) > std::abs(sum.largest)) {
            const T* at_largest =
                std::find_if(diffs, diffs + row.padded, [&](T d) { return std::abs(d) == found.largest; });
            sum.largest = static_cast<double>(*at_largest);
            sum.where = tile.first_col + (at_largest - diffs);
        }
        if (!std::isfinite(found.absolute)) overflow_.store(true, std::memory_order_relaxed);
    }

    Status status() const { return overflow_.load() ? Status::overflow : Status::ok; }

private:
    RowComparison* rows_of(const Block<T>& at) const {
        return tasks_[static_cast<std::size_t>(at.piece.problem)].rows;
    }

    const std::vector<CompareTask<T>>& tasks_;
    std::vector<Local> locals_;
    std::atomic<bool> overflow_{false};
};

}  // namespace

template <class T>
Status compare_rows(const std::vector<CompareTask<T>>& tasks, const Run& run) {
    double work = 0;
    for (const auto& task : tasks) work += 2 * operations(task.a, 0);
    const Run scaled = scaled_run(run, work);
    const auto n = static_cast<Index>(tasks.size());
    const auto problems = prepare_each<T>(n, scaled, [&](std::size_t at, const Run& inner) {
        const CompareTask<T>& task = tasks[at];
        Walked<T> w = prepare(task.a, whole_row_tiling(task.a, n), MatrixView<T>{}, 0, inner);
        w.put_beside(task.b, MatrixView<T>{}, 0, inner);
        // The union of both bands, because an entry may be in either.
        w.band = {std::min(task.a.band.lo, task.b.band.lo), std::max(task.a.band.hi, task.b.band.hi)};
        return w;
    });
    Comparison<T> reducer(tasks, scaled.n_threads);
    return walk<T>(problems, cut_all(problems), reducer, scaled) ? reducer.status() : Status::interrupted;
}

template Status compare_rows(const std::vector<CompareTask<float>>&, const Run&);
template Status compare_rows(const std::vector<CompareTask<double>>&, const Run&);

}  // namespace qk
