// How problems are cut into tasks and tiles. The cuts depend on shapes alone, never on the number of
// threads, so results do not depend on it either.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/packed.hpp"
#include "engine/row_scores.hpp"
#include "engine/tuning.hpp"

namespace qk {

struct Tiling {
    Index block_rows;  // rows whose tile is in cache at once
    Index tile_cols;   // columns of a tile
    Index task_rows;   // rows handled by one task, a multiple of block_rows
    Index split_cols;  // columns handled by one task: all of them, except if there are few rows
    bool row_by_row;   // points of few dimensions: see row_scores.hpp
};

// `n_problems` is the number of problems that are walked together; together they must have enough blocks for the
// threads.
template <class T>
Tiling choose_tiling(const Problem<T>& problem, Index n_values, Index n_problems = 1) {
    const Index n_rows = problem.n_rows, n_cols = problem.n_cols;
    const Index feature_dim = problem.dot_dim() + problem.distance_dim();
    constexpr Index micro = MicroTile<T>::rows;
    // If an entry takes many operations, tall blocks are better, because they reuse the panels of the columns.
    const bool matrix_work = n_values > tuning::few_values || feature_dim > tuning::matrix_work_dim;
    // In a band blocks are less tall, because a block can leave out only columns that none of its rows sees.
    const Index micro_tiles =
        problem.band.everything() ? tuning::matrix_micro_tiles : tuning::band_micro_tiles;
    Index block_rows = matrix_work ? micro_tiles * micro : tuning::flat_block_rows;
    // A transposed dense matrix is read down its columns: in whole packs, and pieces of several cache lines.
    Index whole = micro;
    for (const auto& term : problem.dense)
        if (column_major(term.values)) {
            block_rows = tuning::down_rows;
            whole = tuning::down_whole;
        }
    Tiling t{};
    t.row_by_row =
        feature_dim > 0 && feature_dim <= tuning::row_scores_max_dim && !matrix_work && problem.dense.empty();
    t.tile_cols = t.row_by_row ? tuning::row_tile_cols : tuning::tile_cols;
    // Not in a band, because tiles at its edge are computed as a whole.
    const bool reads_on =
        feature_dim == 0 && block_rows == tuning::flat_block_rows && problem.band.everything();
    if (reads_on) {
        block_rows = tuning::read_rows;
        t.tile_cols = tuning::read_bytes / static_cast<Index>(sizeof(T));
    }
    const Index blocks = std::max<Index>(1, tuning::blocks_per_problem / n_problems);
    t.block_rows = std::min(block_rows, round_up(std::max<Index>(1, (n_rows + blocks - 1) / blocks), whole));
    Index entries_per_task = tuning::task_work / (feature_dim + n_values + 32);
    // A thread that continues where it stopped finds the entries in its cache that it has prefetched (Ahead, in
    // packed.hpp).
    if (reads_on)
        entries_per_task = std::max(
            entries_per_task, std::min<Index>(n_rows * n_cols / tuning::read_share, tuning::read_entries));
    const Index rows = std::max<Index>(1, entries_per_task / std::max<Index>(1, n_cols));
    t.task_rows = round_up(std::min(rows, n_rows), t.block_rows);
    // With few rows and many columns the columns are cut, and the states are merged afterwards.
    t.split_cols = n_cols;
    if (n_rows <= tuning::few_rows && n_cols >= 2 * tuning::split_cols) t.split_cols = tuning::split_cols;
    return t;
}

// The same with whole rows, for reductions that cannot merge parts of rows.
template <class T>
Tiling whole_row_tiling(const Problem<T>& problem, Index n_problems = 1) {
    Tiling t = choose_tiling(problem, 0, n_problems);
    t.split_cols = problem.n_cols;
    return t;
}

// A rectangle of one problem.
struct Piece {
    Index problem;
    Index first_row, end_row;
    Index first_col, end_col;
    Index part;  // the number of the cut of the columns, or of the share of the rows
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

// One range of rows for each of up to n_parts threads, in multiples of `granule` rows. This is for reductions with sums
// over rows, which every share keeps separately.
inline std::vector<Piece> cut_shares(Index problem, Index n_rows, Index n_cols, Index granule,
                                     Index n_parts) {
    const Index granules = (n_rows + granule - 1) / granule;
    n_parts = std::max<Index>(1, std::min(n_parts, granules));
    std::vector<Piece> pieces;
    pieces.reserve(static_cast<std::size_t>(n_parts));
    for (Index part = 0; part < n_parts; ++part)
        pieces.push_back({problem, part * granules / n_parts * granule,
                          std::min(n_rows, (part + 1) * granules / n_parts * granule), 0, n_cols, part});
    return pieces;
}

// Reduces [first_col, end_col) to the columns that the band keeps for some row of [first_row, end_row).
inline void clip_to_band(const Band& band, Index first_row, Index end_row, Index n_cols, Index& first_col,
                         Index& end_col) {
    first_col = std::max(first_col, band.first(first_row, n_cols));
    end_col = std::min(end_col, band.end(end_row - 1, n_cols));
}

// Whether no entry of the rectangle is masked by the band.
inline bool band_keeps_all(const Band& band, Index first_row, Index end_row, Index first_col, Index end_col) {
    return band.keep(end_row - 1, first_col) && band.keep(first_row, end_col - 1);
}

// Waking another thread costs microseconds, so below this (rough) number of operations one thread does all the work.
inline Run scaled_run(const Run& run, double operations) {
    Run scaled = run;
    if (operations < tuning::alone_operations) scaled.n_threads = 1;
    return scaled;
}

template <class T>
double operations(const Problem<T>& p, Index n_values) {
    return static_cast<double>(p.n_rows) * static_cast<double>(p.n_cols) *
           (tuning::entry_operations + static_cast<double>(p.dot_dim() + p.distance_dim() + n_values)) /
           SimdTraits<T>::width;
}

}  // namespace qk
