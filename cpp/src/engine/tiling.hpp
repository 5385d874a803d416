// How problems are cut into tasks and tiles. The cuts depend on shapes alone, never on the number of
// threads, so results do not depend on it either.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/packed.hpp"
#include "engine/row_scores.hpp"

namespace qk {

struct Tiling {
    Index block_rows;  // rows whose tile is in cache at once
    Index tile_cols;   // columns of a tile
    Index task_rows;   // rows handled by one task, a multiple of block_rows
    Index split_cols;  // columns handled by one task; all of them unless rows are few
    bool row_by_row;   // points of few dimensions: see row_scores.hpp
};

// Rows of a block whose tile stays in the L1 cache between the score pass and the exp pass.
constexpr Index flat_block_rows = 12;

template <class T>
Tiling choose_tiling(const Problem<T>& problem, Index n_values) {
    const Index n_rows = problem.n_rows, n_cols = problem.n_cols;
    const Index feature_dim = problem.dot_dim() + problem.distance_dim();
    constexpr Index micro = MicroTile<T>::rows;
    // With matrix work per entry, tall blocks reuse the panels of the columns.
    const bool matrix_work = n_values > few_values || feature_dim > 16;
    Index block_rows = matrix_work ? 8 * micro : flat_block_rows;
    // A transposed dense matrix is read down its columns: in whole packs, and pieces of several cache lines.
    Index whole = micro;
    for (const auto& term : problem.dense)
        if (column_major(term.values)) {
            block_rows = 96;
            whole = 16;
        }
    Tiling t{};
    t.row_by_row =
        feature_dim > 0 && feature_dim <= row_scores_max_dim && !matrix_work && problem.dense.empty();
    // One row at a time may be long, and then spreads the work that is done once per row and tile.
    t.tile_cols = t.row_by_row ? 1024 : 256;
    // So may the rows of a matrix: long runs come faster from memory, and four of them fill the L1 cache. Not in a
    // band, whose tiles at the edge are computed whole.
    const bool reads_on = feature_dim == 0 && block_rows == flat_block_rows && problem.band.everything();
    if (reads_on) {
        block_rows = 4;
        t.tile_cols = 8192 / static_cast<Index>(sizeof(T));
    }
    // At least sixteen blocks, so that threads share a small problem evenly.
    t.block_rows = std::min(block_rows, round_up(std::max<Index>(1, (n_rows + 15) / 16), whole));
    // Microseconds of work: enough to be worth handing out, little enough to share evenly.
    Index entries_per_task = (1 << 17) / (feature_dim + n_values + 32);
    // A thread that reads on where it was finds there what it has asked for (Ahead, in packed.hpp).
    if (reads_on)
        entries_per_task = std::max(entries_per_task, std::min<Index>(n_rows * n_cols / 64, 1 << 16));
    const Index rows = std::max<Index>(1, entries_per_task / std::max<Index>(1, n_cols));
    t.task_rows = round_up(std::min(rows, n_rows), t.block_rows);
    // Few rows and many columns: cut the columns, and merge the states afterwards.
    const Index min_split = 1 << 14;
    t.split_cols = n_cols;
    if (n_rows <= 64 && n_cols >= 2 * min_split) t.split_cols = min_split;
    return t;
}

// A rectangle of one problem.
struct Piece {
    Index problem;
    Index first_row, end_row;
    Index first_col, end_col;
    Index split;  // which cut of the columns
};

inline void cut(Index problem, Index n_rows, Index n_cols, const Tiling& t, std::vector<Piece>& pieces) {
    for (Index i = 0; i < n_rows; i += t.task_rows) {
        Index split = 0, j = 0;
        do {  // at least once: rows of a problem without columns get their (empty) result too
            pieces.push_back({problem, i, std::min(i + t.task_rows, n_rows), j,
                              std::min(j + t.split_cols, n_cols), split++});
            j += t.split_cols;
        } while (j < n_cols);
    }
}

// Columns that the band lets any row of [first_row, end_row) see, within [first_col, end_col).
inline void clip_to_band(const Band& band, Index first_row, Index end_row, Index n_cols, Index& first_col,
                         Index& end_col) {
    first_col = std::max(first_col, band.first(first_row, n_cols));
    end_col = std::min(end_col, band.end(end_row - 1, n_cols));
}

// Whether no entry of the rectangle is masked by the band.
inline bool band_keeps_all(const Band& band, Index first_row, Index end_row, Index first_col, Index end_col) {
    return band.keep(end_row - 1, first_col) && band.keep(first_row, end_col - 1);
}

// Waking another thread costs microseconds: below this many (rough) operations one thread does it all.
inline Run scaled_run(const Run& run, double operations) {
    Run scaled = run;
    if (operations < 2e5) scaled.n_threads = 1;
    return scaled;
}

template <class T>
double operations(const Problem<T>& p, Index n_values) {
    return static_cast<double>(p.n_rows) * static_cast<double>(p.n_cols) *
           (20.0 + static_cast<double>(p.dot_dim() + p.distance_dim() + n_values)) / SimdTraits<T>::width;
}

}  // namespace qk
