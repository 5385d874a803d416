// Walks the tiles of one problem, for reductions that look at every entry themselves.
#pragma once

#include <algorithm>

#include "engine/tiling.hpp"

namespace qk {

// The scores of a block of rows, tile after tile. `visit(padded, first_col, n_cols)` sees each tile.
template <class T, class Visit>
bool walk_tiles(const Problem<T>& problem, const PackedColumns<T>& columns, Index first_row, Index end_row,
                const Tiling& t, RowBlock<T>& block, const Run& run, int worker, const Visit& visit) {
    const Index ld = std::min(t.tile_cols, columns.n_padded);
    block.scores.reserve(t.block_rows * ld);
    for (Index i = first_row; i < end_row; i += t.block_rows) {
        pack_rows(problem, columns, i, std::min(t.block_rows, end_row - i), block);
        for (Index j = 0; j < problem.n_cols; j += t.tile_cols) {
            if (should_stop(run, worker)) return false;
            const Index n = std::min(t.tile_cols, problem.n_cols - j);
            const Index padded = score_block(problem, columns, j, n, block, ld);
            visit(padded, j, n, ld);
        }
    }
    return true;
}

// The same for two problems of one shape at once: their tiles cover the same entries.
template <class T, class Visit>
bool walk_pairs(const Problem<T>& first, const PackedColumns<T>& first_columns, const Problem<T>& second,
                const PackedColumns<T>& second_columns, Index first_row, Index end_row, const Tiling& t,
                RowBlock<T>& first_block, RowBlock<T>& second_block, const Run& run, int worker,
                const Visit& visit) {
    const Index ld = std::min(t.tile_cols, first_columns.n_padded);
    first_block.scores.reserve(t.block_rows * ld);
    second_block.scores.reserve(t.block_rows * ld);
    for (Index i = first_row; i < end_row; i += t.block_rows) {
        const Index n_rows = std::min(t.block_rows, end_row - i);
        pack_rows(first, first_columns, i, n_rows, first_block);
        pack_rows(second, second_columns, i, n_rows, second_block);
        for (Index j = 0; j < first.n_cols; j += t.tile_cols) {
            if (should_stop(run, worker)) return false;
            const Index n = std::min(t.tile_cols, first.n_cols - j);
            const Index padded = score_block(first, first_columns, j, n, first_block, ld);
            score_block(second, second_columns, j, n, second_block, ld);
            visit(padded, j, n, ld);
        }
    }
    return true;
}

// Pieces of whole rows, for tasks that share nothing.
template <class T>
Tiling whole_row_tiling(const Problem<T>& problem) {
    Tiling t = choose_tiling(problem, 0);
    t.split_cols = problem.n_cols;
    return t;
}

}  // namespace qk
