// One problem prepared for tiles: column features, column biases and right-hand sides repacked for
// the kernels (O(n_cols) memory), row features repacked per block of rows.
#pragma once

#include "engine/row_kernels.hpp"
#include "engine/tile_kernels.hpp"
#include "engine/tuning.hpp"
#include "qk/problem.hpp"
#include "qk/threads.hpp"

namespace qk {

template <class T>
struct PackedColumns {
    Buffer<T> panels;  // [panel][feature][cols]
    Buffer<T> bias;    // [n_padded], the early biases; -inf beyond n_cols
    // The sums of the biases of the later stages, [n_padded], 0 beyond n_cols; only if the problem has such biases.
    Buffer<T> reference, late;
    LateSides late_sides = LateSides::none;

    bool has_late() const { return late_sides != LateSides::none; }
    Buffer<T> values;  // few: [value][n_padded]; many: see product_tile
    FeatureDims dims;
    T distance_scale = T(1);
    Index n_padded = 0;
    Index n_packs = 0;  // packs per row of a product, many values only
};

// `as_many`: use the layout for many right-hand sides even if there are few.
template <class T>
PackedColumns<T> pack_columns(const Problem<T>& problem, MatrixView<T> values, Index n_values, const Run& run,
                              bool as_many = false);

// The same into existing memory, which is allocated again only if the sizes have grown.
template <class T>
void repack_columns(const Problem<T>& problem, MatrixView<T> values, Index n_values, const Run& run,
                    bool as_many, PackedColumns<T>& packed);

// Entries of a matrix that the next tile will read. They are prefetched while this tile is weighed.
template <class T>
struct Ahead {
    const T* first = nullptr;
    Index row_stride = 0;
    Index n_rows = 0;

    // Null if there is nothing to prefetch.
    const T* row(Index r) const { return r < n_rows ? first + r * row_stride : nullptr; }
};

// Scratch memory of one thread: row features, row biases and the tile of scores.
template <class T>
struct RowBlock {
    Buffer<T> features;
    Buffer<T> bias, reference, late;  // as in PackedColumns
    Buffer<T> scores;
    Buffer<T> tops;           // the largest score of every row of the tile; only if tops_known,
    bool tops_known = false;  // which says whether score_block has found them
    Ahead<T> ahead;
    Index first_row = 0;
    Index n_rows = 0;
};

// The largest of the scores s of row r of the tile.
template <class T>
QK_INLINE T row_top(const RowBlock<T>& block, Index r, const T* s, Index padded) {
    return block.tops_known ? block.tops[r] : row_max(s, padded);
}

template <class T>
void pack_rows(const Problem<T>& problem, const PackedColumns<T>& columns, Index first_row, Index n_rows,
               RowBlock<T>& block);

// Scores of the block's rows against columns [first_col, first_col + n_cols), into block.scores from its column
// `at` on with leading dimension `ld`; first_col is a multiple of the panel width, and the tile is padded with
// -inf to whole panels. Returns the padded width.
template <class T>
Index score_block(const Problem<T>& problem, const PackedColumns<T>& columns, Index first_col, Index n_cols,
                  RowBlock<T>& block, Index ld, Index at = 0);

}  // namespace qk
