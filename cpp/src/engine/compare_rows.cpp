// Two matrices exp(a_ij), exp(b_ij) against each other, row by row: probability currents when b is the
// transpose of a (DAC eq 18), distances between operators otherwise.
#include <cmath>

#include "engine/tile_walk.hpp"
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
        // Equal weights, both 0 included, have no tilt; a one-way entry has an infinite one.
        tilt += select(diff == Pack<T>{}, Pack<T>{}, diff * (x - y));
        largest = max(size, largest);
        top = max(wx, top);
        store(b + j, diff);  // to look for the largest afterwards
    }
    return {reduce_add<T>(absolute), reduce_add<T>(squares), reduce_add<T>(tilt), reduce_max<T>(largest),
            reduce_max<T>(top)};
}

}  // namespace

template <class T>
Status compare_rows(const std::vector<CompareTask<T>>& tasks, const Run& run) {
    std::atomic<bool> overflow{false};
    for (const CompareTask<T>& task : tasks) {
        const Problem<T>& p = task.a;
        const Run inner = scaled_run(run, 2 * operations(p, 0));
        const PackedColumns<T> columns_a = pack_columns(task.a, MatrixView<T>{}, 0, inner);
        const PackedColumns<T> columns_b = pack_columns(task.b, MatrixView<T>{}, 0, inner);
        const Tiling t = whole_row_tiling(p);
        std::vector<Piece> pieces;
        cut(0, p.n_rows, p.n_cols, t, pieces);
        std::vector<RowBlock<T>> blocks(2 * static_cast<std::size_t>(inner.n_threads));
        parallel_for(inner, static_cast<Index>(pieces.size()), [&](Index i, int worker) {
            RowBlock<T>& a = blocks[2 * static_cast<std::size_t>(worker)];
            RowBlock<T>& b = blocks[2 * static_cast<std::size_t>(worker) + 1];
            const Piece& piece = pieces[static_cast<std::size_t>(i)];
            for (Index r = piece.first_row; r < piece.end_row; ++r) task.rows[r] = RowComparison{};
            walk_pairs(task.a, columns_a, task.b, columns_b, piece.first_row, piece.end_row, t, a, b, inner,
                       worker, [&](Index padded, Index j, Index, Index ld) {
                           for (Index r = 0; r < a.n_rows; ++r) {
                               T* diffs = b.scores.data() + r * ld;
                               const auto found = compare_row(a.scores.data() + r * ld, diffs, padded);
                               RowComparison& row = task.rows[a.first_row + r];
                               row.absolute += static_cast<double>(found.absolute);
                               row.squares += static_cast<double>(found.squares);
                               row.tilt += static_cast<double>(found.tilt);
                               row.top = std::max(row.top, static_cast<double>(found.top));
                               if (static_cast<double>(found.largest) > std::abs(row.largest)) {
                                   const T* at = std::find_if(diffs, diffs + padded, [&](T d) {
                                       return std::abs(d) == found.largest;
                                   });
                                   row.largest = static_cast<double>(*at);
                                   row.where = j + (at - diffs);
                               }
                               if (!std::isfinite(found.absolute)) overflow.store(true);
                           }
                       });
        });
        if (run.stop != nullptr && run.stop->stopped()) return Status::interrupted;
    }
    return overflow.load() ? Status::overflow : Status::ok;
}

template Status compare_rows(const std::vector<CompareTask<float>>&, const Run&);
template Status compare_rows(const std::vector<CompareTask<double>>&, const Run&);

}  // namespace qk
