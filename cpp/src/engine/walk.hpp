// The walker: everything that looks at every entry of a score matrix goes through it.
//
// A walk cuts the rows of its problems into pieces and hands them to threads. In a piece it goes block by block of rows,
// and in a block tile by tile of columns: it asks whether the tile may be skipped, makes its scores with the micro-kernel
// that fits, and gives them to a reducer. A reducer is a class with
//
//     static constexpr Keeps keeps;                 what of a block's scores it wants side by side
//     struct Local : WalkLocal<T>                   what a thread (or a share of the rows) keeps
//     Local& local(const Piece&, int worker)
//     void row(Local&, const Block<T>&, const Tile&, const Row<T>&)        one row of a tile
// and, where it has use for them,
//     static constexpr bool pairs = true            walks two problems of one shape: Row::beside
//     static constexpr bool flushes = true          subnormal numbers are taken for zeros
//     bool start_piece(Local&, const Piece&, const Run&, int worker)       false: stopped
//     void pack_rows(Local&, const Block<T>&)                              makes the row features of a block itself
//     void start_block(Local&, const Block<T>&)
//     void end_tile(Local&, const Block<T>&, const Tile&)                  all rows of the tile have been given
//     void skipped(Local&, const Block<T>&, Index first_col, Index end_col)  columns that were not visited
//     void end_block(Local&, const Block<T>&, const Run&, int worker)
//
// What calls what is settled at compile time. Rows of one block come in order, blocks of one piece too, and which pieces
// there are depends on shapes (Cut::tasks) or on shapes and the number of threads (Cut::shares) alone: so do sums.
#pragma once

#include <span>

#include "engine/flush_subnormals.hpp"
#include "engine/row_scores.hpp"
#include "engine/tiling.hpp"

namespace qk {

// How much of a block's scores (or of what the reducer writes over them) stays in the buffer.
enum class Keeps {
    nothing,  // the reducer scores the row itself, and all stays in registers: clouds of points (cloud_kernels.hpp)
    row,         // until the next row: points of few dimensions need no more than one row of a tile at a time
    tile,        // until end_tile
    whole_rows,  // until end_block: rows have the padded width of the problem
};

// What a walk needs of a problem, made once and used by any number of walks.
template <class T>
struct Walked {
    const Problem<T>* problem = nullptr;
    const Problem<T>* beside = nullptr;  // of reducers of pairs: another problem of the same shape
    PackedColumns<T> columns, beside_columns;
    Tiling tiling{};
    RowScoresKernel<T> by_rows{};  // of points of few dimensions; null for the others
    Band band;                     // outside of it nothing is visited

    void put_beside(const Problem<T>& other, MatrixView<T> values, Index n_values, const Run& run,
                    bool as_many = false) {
        beside = &other;
        beside_columns = pack_columns(other, values, n_values, run, as_many);
    }
};

template <class T>
Walked<T> prepare(const Problem<T>& problem, const Tiling& tiling, MatrixView<T> values, Index n_values,
                  const Run& run, bool as_many = false) {
    Walked<T> out;
    out.problem = &problem;
    out.columns = pack_columns(problem, values, n_values, run, as_many);
    out.tiling = tiling;
    out.band = problem.band;
    if (tiling.row_by_row) out.by_rows = pick_row_scores(problem, out.columns.dims, out.columns.late_sides);
    return out;
}

// one(k, run) for each of n problems: a single one has all threads to itself.
template <class T, class One>
std::vector<Walked<T>> prepare_each(Index n, const Run& run, const One& one) {
    std::vector<Walked<T>> out(static_cast<std::size_t>(n));
    if (n == 1) {
        out.front() = one(std::size_t{0}, run);
        return out;
    }
    parallel_for(run, n, [&](Index k, int worker) {
        out[static_cast<std::size_t>(k)] = one(static_cast<std::size_t>(k), alone(run, worker));
    });
    return out;
}

// All rows of all problems, in pieces of a task each.
template <class T>
std::vector<Piece> cut_all(const std::vector<Walked<T>>& problems) {
    std::vector<Piece> pieces;
    for (std::size_t at = 0; at < problems.size(); ++at)
        cut(static_cast<Index>(at), problems[at].problem->n_rows, problems[at].problem->n_cols,
            problems[at].tiling, pieces);
    return pieces;
}

template <class T>
struct WalkLocal {
    RowBlock<T> block, beside;
};

template <class T>
struct Block {
    const Walked<T>& walked;
    const Piece& piece;
    Index first_row, n_rows;
};

struct Tile {
    Index first_col, n_cols;
    Index padded;  // whole panels: scores beyond n_cols are -inf
    Index ld;      // from one row of the tile to the next, in the buffer
};

// A row of a tile.
template <class T>
struct Row {
    Index r;         // of the block
    Index i;         // of the problem
    T* s;            // its scores, `padded` of them, to be overwritten at will
    T* beside;       // those of the other problem
    const T* ahead;  // entries of a matrix that will be read soon, or null: see weigh_row
    Index padded;
    const T* known_top;

    // The largest of the scores.
    QK_INLINE T top() const { return known_top != nullptr ? *known_top : row_max(s, padded); }
};

// May the tile be skipped? A walk that is given another predicate leaves out the tiles for which it says so: those that
// contribute nothing, or less than matters. Tiles wholly outside a band are skipped whatever it says.
struct NothingSkipped {
    bool operator()(const Piece&, Index /*first_row*/, Index /*end_row*/, Index /*first_col*/,
                    Index /*end_col*/) const {
        return false;
    }
};

namespace detail {

template <class Reducer>
concept OfPairs = requires { requires Reducer::pairs; };
template <class Reducer>
concept Flushes = requires { requires Reducer::flushes; };

// One tile that is not skipped.
template <class T, class Reducer, class Local>
QK_INLINE void walk_tile(Reducer& reducer, Local& local, const Block<T>& at, Index j, Index n, Index ld) {
    const Walked<T>& w = at.walked;
    RowBlock<T>& block = local.block;
    const Index offset = Reducer::keeps == Keeps::whole_rows ? j : 0;
    const Tile tile{j, n, round_up(n, MicroTile<T>::cols), ld};
    T* scores = block.scores.data() + offset;
    if constexpr (Reducer::keeps == Keeps::nothing) {
        for (Index r = 0; r < at.n_rows; ++r)
            reducer.row(local, at, tile,
                        Row<T>{r, at.first_row + r, nullptr, nullptr, nullptr, tile.padded, nullptr});
        return;
    }
    if constexpr (!OfPairs<Reducer>)
        if (w.by_rows && band_keeps_all(w.problem->band, at.first_row, at.first_row + at.n_rows, j, j + n)) {
            const Index next = Reducer::keeps == Keeps::row ? 0 : ld;
            for (Index r = 0; r < at.n_rows; ++r) {
                T* s = scores + r * next;
                const T top = w.by_rows(row_scores_at(w.columns, block, r, j, tile.padded), s);
                reducer.row(local, at, tile,
                            Row<T>{r, at.first_row + r, s, nullptr, nullptr, tile.padded, &top});
            }
            if constexpr (requires { reducer.end_tile(local, at, tile); }) reducer.end_tile(local, at, tile);
            return;
        }
    score_block(*w.problem, w.columns, j, n, block, ld, offset);
    T* beside = nullptr;
    if constexpr (OfPairs<Reducer>) {
        score_block(*w.beside, w.beside_columns, j, n, local.beside, ld, offset);
        beside = local.beside.scores.data() + offset;
    }
    for (Index r = 0; r < at.n_rows; ++r)
        reducer.row(
            local, at, tile,
            Row<T>{r, at.first_row + r, scores + r * ld, beside == nullptr ? nullptr : beside + r * ld,
                   block.ahead.row(r), tile.padded, block.tops_known ? &block.tops[r] : nullptr});
    if constexpr (requires { reducer.end_tile(local, at, tile); }) reducer.end_tile(local, at, tile);
}

template <class T, class Reducer, class Skip>
void walk_piece(const Walked<T>& w, const Piece& piece, Reducer& reducer, const Skip& skip, const Run& run,
                int worker) {
    auto& local = reducer.local(piece, worker);
    RowBlock<T>& block = local.block;
    const Tiling& t = w.tiling;
    const Index n_cols = w.problem->n_cols;
    if constexpr (requires { reducer.start_piece(local, piece, run, worker); })
        if (!reducer.start_piece(local, piece, run, worker)) return;
    const Index ld =
        Reducer::keeps == Keeps::whole_rows ? w.columns.n_padded : std::min(t.tile_cols, w.columns.n_padded);
    const Index most_rows = std::min(t.block_rows, piece.end_row - piece.first_row);
    if constexpr (Reducer::keeps != Keeps::nothing) block.scores.reserve(most_rows * ld);
    if constexpr (OfPairs<Reducer>) local.beside.scores.reserve(most_rows * ld);
    for (Index i = piece.first_row; i < piece.end_row; i += t.block_rows) {
        const Index end_row = std::min(i + t.block_rows, piece.end_row);
        const Block<T> at{w, piece, i, end_row - i};
        if constexpr (requires { reducer.pack_rows(local, at); })
            reducer.pack_rows(local, at);
        else
            pack_rows(*w.problem, w.columns, i, at.n_rows, block);
        if constexpr (OfPairs<Reducer>) pack_rows(*w.beside, w.beside_columns, i, at.n_rows, local.beside);
        if constexpr (requires { reducer.start_block(local, at); }) reducer.start_block(local, at);
        const auto leave_out = [&](Index from, Index to) {
            if constexpr (requires { reducer.skipped(local, at, from, to); })
                if (from < to) reducer.skipped(local, at, from, to);
        };
        // What the band shows of the piece, in whole panels. Tiles stay on one grid: masks do not move the cuts, and what
        // a tile at the edge leaves out would have added zeros.
        Index first = piece.first_col, end = piece.end_col;
        clip_to_band(w.band, i, end_row, n_cols, first, end);
        constexpr Index panel = MicroTile<T>::cols;
        first = std::max(piece.first_col, first / panel * panel);
        end = std::max(first, std::min(piece.end_col, round_up(end, panel)));
        leave_out(piece.first_col, first);
        for (Index from = first; from < end;) {
            // Before the first tile of a piece parallel_for has asked, and looking at the clock takes as long as a small tile.
            if ((i > piece.first_row || from > first) && should_stop(run, worker)) return;
            const Index to = std::min(end, (from / t.tile_cols + 1) * t.tile_cols);
            if (skip(piece, i, end_row, from, to))
                leave_out(from, to);
            else
                walk_tile(reducer, local, at, from, to - from, ld);
            from = to;
        }
        leave_out(end, piece.end_col);
        if constexpr (requires { reducer.end_block(local, at, run, worker); })
            reducer.end_block(local, at, run, worker);
    }
}

}  // namespace detail

inline bool stopped(const Run& run) { return run.stop != nullptr && run.stop->stopped(); }

// Walks the pieces of the problems. False when it was stopped.
template <class T, class Reducer, class Skip = NothingSkipped>
bool walk(std::span<const Walked<T>> problems, std::span<const Piece> pieces, Reducer& reducer,
          const Run& run, const Skip& skip = {}) {
    parallel_for(run, static_cast<Index>(pieces.size()), [&](Index k, int worker) {
        const Piece& piece = pieces[static_cast<std::size_t>(k)];
        const Walked<T>& walked = problems[static_cast<std::size_t>(piece.problem)];
        if constexpr (detail::Flushes<Reducer>) {
            const FlushSubnormals flush;
            detail::walk_piece(walked, piece, reducer, skip, run, worker);
        } else {
            detail::walk_piece(walked, piece, reducer, skip, run, worker);
        }
    });
    return !stopped(run);
}

}  // namespace qk
