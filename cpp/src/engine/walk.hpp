// The walker: everything that uses every entry of a score matrix goes through it.
//
// A walk cuts the rows of its problems into pieces and hands them to threads. In a piece it goes block by block of rows,
// and in a block tile by tile of columns: it asks whether the tile may be skipped, makes its scores with the micro-kernel
// that fits, and gives them to a reducer. A reducer is a class with
//
//     static constexpr Keeps keeps;                 how much of a block's scores it needs at the same time
//     struct Local : WalkLocal<T>                   the memory of a thread (or of a share of the rows)
//     Local& local(const Piece&, int worker)
//     void row(Local&, const Block<T>&, const Tile&, const Row<T>&)        one row of a tile
// and, where it needs them,
//     static constexpr bool pairs = true            walks two problems of one shape: Row::beside
//     static constexpr bool flushes = true          subnormal numbers are treated as zeros
//     bool start_piece(Local&, const Piece&, const Run&, int worker)       returns false if it was stopped
//     void pack_rows(Local&, const Block<T>&)                              makes the row features of a block itself
//     void start_block(Local&, const Block<T>&)
//     void end_tile(Local&, const Block<T>&, const Tile&)                  all rows of the tile have been given
//     void skipped(Local&, const Block<T>&, Index first_col, Index end_col)  columns that were not visited
//     void end_block(Local&, const Block<T>&, const Run&, int worker)
//
// All calls are resolved at compile time. Rows of one block come in order, and so do blocks of one piece. The pieces depend
// only on shapes (Cut::tasks), or only on shapes and the number of threads (Cut::shares), and therefore so do the sums.
#pragma once

#include <span>

#include "engine/flush_subnormals.hpp"
#include "engine/row_scores.hpp"
#include "engine/tiling.hpp"

namespace qk {

// How long a block's scores (or what the reducer writes in their place) stay in the buffer.
enum class Keeps {
    nothing,  // not at all: the reducer scores the row itself in registers, for clouds of points (cloud_kernels.hpp)
    row,   // until the next row, for points of few dimensions, which need only one row of a tile at a time
    tile,  // until end_tile
    whole_rows,  // until end_block: rows have the padded width of the problem
};

// What a walk needs to know of a problem. It is made once and used by any number of walks.
template <class T>
struct Walked {
    const Problem<T>* problem = nullptr;
    const Problem<T>* beside = nullptr;  // for reducers of pairs: the other problem, of the same shape
    PackedColumns<T> columns, beside_columns;
    Tiling tiling{};
    RowScoresKernel<T> by_rows{};  // for points of few dimensions; otherwise null
    Band band;                     // nothing outside of it is visited

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

// Calls one(k, run) for each of n problems; a single problem gets all threads.
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

// All rows of all problems, cut into pieces of one task each.
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
    Index padded;  // n_cols rounded up to whole panels; scores beyond n_cols are -inf
    Index ld;      // the distance from one row of the tile to the next, in the buffer
};

// One row of a tile.
template <class T>
struct Row {
    Index r;         // its number in the block
    Index i;         // its number in the problem
    T* s;            // its `padded` scores, which may be overwritten
    T* beside;       // the scores of the other problem
    const T* ahead;  // entries of a matrix to prefetch, or null: see weigh_row
    Index padded;
    const T* known_top;

    // The largest of the scores.
    QK_INLINE T top() const { return known_top != nullptr ? *known_top : row_max(s, padded); }
};

// The predicate that says whether a tile may be skipped. With another predicate a walk leaves out the tiles for which
// it returns true: those that contribute nothing, or too little. Tiles wholly outside a band are always skipped.
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

// Walks one tile that is not skipped.
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
        // The columns of the piece that the band keeps, in whole panels. Tiles stay on one grid, so masks do not move
        // the cuts, and what a tile at the edge leaves out would have added zeros.
        Index first = piece.first_col, end = piece.end_col;
        clip_to_band(w.band, i, end_row, n_cols, first, end);
        constexpr Index panel = MicroTile<T>::cols;
        first = std::max(piece.first_col, first / panel * panel);
        end = std::max(first, std::min(piece.end_col, round_up(end, panel)));
        leave_out(piece.first_col, first);
        for (Index from = first; from < end;) {
            // parallel_for has checked before the first tile of a piece, and checking the clock takes as long as a
            // small tile.
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

// Walks the pieces of the problems. Returns false if it was stopped.
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
