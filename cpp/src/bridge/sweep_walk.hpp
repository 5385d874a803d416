// The common part of the sweeps: scores plus potentials, walked in blocks whose weights wait in the L2 cache for their
// sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "bridge/sweep_rows.hpp"
#include "engine/online_rows.hpp"
#include "engine/walk.hpp"
#include "qk/sweep.hpp"

namespace qk {

// Rows are cut into one range per thread, each with its own column sums. These are added in the order of
// the ranges, so the result is the same for the same number of threads.
template <class T>
class Shares {
public:
    // Memory that is kept from visit to visit, for the ranges of as many threads as in the last visit.
    struct Sums {
        std::vector<ColumnSums<T>> each;
        std::vector<Piece> pieces;
        int n_threads = 0;
    };

    // `sums` must be the same object in every visit of the same rows and columns.
    Shares(Index n_rows, Index n_cols, const Run& run, double work, Sums& sums)
        : run_(scaled_run(run, work)), n_cols_(n_cols), sums_(sums) {
        if (sums_.n_threads == run_.n_threads) return;
        sums_.pieces = cut_shares(0, n_rows, n_cols, tuning::share_rows, run_.n_threads);
        sums_.each.resize(sums_.pieces.size());
        sums_.n_threads = run_.n_threads;
    }

    const Run& run() const { return run_; }
    const std::vector<Piece>& pieces() const { return sums_.pieces; }
    ColumnSums<T>& of(const Piece& piece) const { return sums_.each[static_cast<std::size_t>(piece.part)]; }

    // Returns false if it was stopped.
    bool finish(double* columns) const {
        return in_pieces(run_, 0, n_cols_, [&](Index from, Index to) {
            std::fill(columns + from, columns + to, 0.0);
            for (auto& sums : sums_.each) {
                const double* total = sums.finish(from, to);
                for (Index j = from; j < to; ++j) columns[j] += total[j];
            }
        });
    }

private:
    Run run_;
    Index n_cols_;
    Sums& sums_;
};

// The scores s_ij + g_j of a problem that is walked visit after visit.
template <class T>
class SweepScores {
public:
    static constexpr Index most_rows = 2 * MicroTile<T>::rows;

    SweepScores(const Problem<T>& problem, const Run& run)
        : problem_(problem), walked_(prepare(problem_, whole_row_tiling(problem_), MatrixView<T>{}, 0, run)) {
        // The potentials are a further late bias of the columns, so the micro-kernel must be one that adds late biases.
        PackedColumns<T>& columns = walked_.columns;
        Tiling& t = walked_.tiling;
        if (columns.has_late()) {
            columns.late_sides = LateSides::both;
            if (t.row_by_row) walked_.by_rows = pick_row_scores(problem_, columns.dims, columns.late_sides);
        }
        base_bias_.reserve(width());
        in_pieces(run, 0, width(), [&](Index from, Index to) {
            std::copy(potentials().data() + from, potentials().data() + to, base_bias_.data() + from);
        });
        const bool plain = walked_.by_rows && problem_.band.everything();
        if (t.row_by_row && !plain) t.tile_cols = tuning::tile_cols;
        // A block of rows must fit the L2 cache until its sums are known. But rows that share a pass over the column
        // sums go together whatever their length, and features need whole micro-tiles, because two rows take more than
        // half as long as six.
        const bool features = columns.dims.total() > 0;
        const Index row_bytes = std::max<Index>(1, width()) * static_cast<Index>(sizeof(T));
        const Index fits = tuning::l2_bytes / row_bytes;
        const Index least = walked_.by_rows || !features ? sweep_rows : MicroTile<T>::rows;
        t.block_rows =
            std::clamp(fits / least * least, least, features ? most_rows : std::min(t.block_rows, most_rows));
    }
    SweepScores(const SweepScores&) = delete;
    SweepScores& operator=(const SweepScores&) = delete;

    const Problem<T>& problem() const { return problem_; }
    Index width() const { return walked_.columns.n_padded; }
    Index tile() const { return walked_.tiling.tile_cols; }
    double work() const { return operations(problem_, 0); }

    void set_potential(const double* g, const Run& run) {
        in_pieces(run, 0, problem_.n_cols, [&](Index from, Index to) {
            for (Index j = from; j < to; ++j) potentials()[j] = base_bias_[j] + static_cast<T>(g[j]);
        });
    }

    // Computes column sums if `columns` is not null; returns false if it was stopped.
    template <class Reducer>
    bool walk_shares(const Shares<T>& shares, Reducer& reducer, double* columns) const {
        return walk<T>({&walked_, 1}, shares.pieces(), reducer, shares.run()) &&
               (columns == nullptr || shares.finish(columns));
    }

    // Walks rows [first, end) only, on the calling thread.
    template <class Reducer>
    void walk_rows(Index first, Index end, Reducer& reducer, const Run& run, int worker) const {
        const Piece piece{0, first, end, 0, problem_.n_cols, 0};
        detail::walk_piece(walked_, piece, reducer, NothingSkipped{}, run, worker);
    }

    // lse_j = log sum_i exp(f_i + s_ij), computed as rows of the transposed problem.
    Status columns(const double* f, double* lse, const Run& run) const {
        std::vector<T> bias(static_cast<std::size_t>(problem_.n_rows)),
            found(static_cast<std::size_t>(problem_.n_cols));
        for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<T>(f[i]);
        RowTask<T> task;
        task.problem = transposed(problem_);
        const Stage stage = problem_.has_late_biases() ? Stage::late : Stage::early;
        task.problem.col_bias.push_back({bias.data(), 1, stage});
        task.log_sum_exp = found.data();
        const Status status = reduce_rows<T>({task}, Weight::softmax, 0, run);
        std::copy(found.begin(), found.end(), lse);
        return status;
    }

private:
    // If scores are normalised already, the potential is added to the last of their biases, when scores have become
    // small.
    Buffer<T>& potentials() {
        return walked_.columns.has_late() ? walked_.columns.late : walked_.columns.bias;
    }

    Problem<T> problem_;
    Walked<T> walked_;
    Buffer<T> base_bias_;
};

template <class T>
struct SweepLocal : WalkLocal<T> {
    OnlineRows<T> online;
    double along[SweepScores<T>::most_rows] = {};
};

// The common part of the reducers of sweeps: blocks of whole rows, which become weights in place, and column sums.
template <class T>
class SweepReducer {
public:
    static constexpr Keeps keeps = Keeps::whole_rows;
    static constexpr bool flushes = true;
    using Local = SweepLocal<T>;

    // `with_columns`: whether there are column sums
    SweepReducer(const SweepScores<T>& scores, const Shares<T>& shares, std::vector<Local>& locals,
                 bool with_columns)
        : scores_(scores), shares_(shares), locals_(locals), with_columns_(with_columns) {
        locals_.resize(shares.pieces().size());
    }

    Local& local(const Piece& piece, int) { return locals_[static_cast<std::size_t>(piece.part)]; }

    bool start_piece(Local& local, const Piece& piece, const Run& run, int worker) const {
        local.online.reserve(SweepScores<T>::most_rows, scores_.width(), scores_.tile());
        return !with_columns_ || shares_.of(piece).start(scores_.width(), run, worker);
    }

    void skipped(Local& local, const Block<T>& at, Index first_col, Index end_col) const {
        if (end_col == scores_.problem().n_cols) end_col = scores_.width();
        for (Index r = 0; r < at.n_rows; ++r) {
            T* s = local.block.scores.data() + r * scores_.width();
            std::fill(s + first_col, s + end_col, T(0));
        }
    }

protected:
    const SweepScores<T>& scores_;
    const Shares<T>& shares_;
    std::vector<Local>& locals_;
    const bool with_columns_;
};

// Makes weights relative to the largest score of the row. finish(local, r, i, state, run, worker) is called for every
// row when all its weights are known; it returns the factor with which they are added to the column sums.
template <class T, class Finish>
class WeighedRows : public SweepReducer<T> {
    using Base = SweepReducer<T>;

public:
    using Local = typename Base::Local;

    WeighedRows(const SweepScores<T>& scores, const Shares<T>& shares, std::vector<Local>& locals,
                bool with_columns, const Finish& finish)
        : Base(scores, shares, locals, with_columns), finish_(finish) {}

    void start_block(Local& local, const Block<T>&) const { local.online.start(); }

    QK_INLINE void row(Local& local, const Block<T>&, const Tile& tile, const Row<T>& row) const {
        local.online.weigh(row.r, tile.first_col, row.padded, row.s, row.top(), row.ahead);
    }

    void end_block(Local& local, const Block<T>& at, const Run& run, int worker) const {
        double factors[SweepScores<T>::most_rows];
        for (Index r = 0; r < at.n_rows; ++r)
            factors[r] = finish_(local, r, at.first_row + r, local.online.state(r), run, worker);
        if (!this->with_columns_) return;
        ColumnSums<T>& sums = this->shares_.of(at.piece);
        const Index width = this->scores_.width(), tile = this->scores_.tile();
        T c[SweepScores<T>::most_rows];
        for (Index j = 0; j < width; j += tile) {
            if (j > 0 && should_stop(run, worker)) return;
            for (Index r = 0; r < at.n_rows; ++r)
                c[r] = static_cast<T>(factors[r] * local.online.factor(r, j));
            sums.add(static_cast<int>(at.n_rows), local.block.scores.data() + j, width, c, j,
                     std::min(tile, width - j));
        }
        sums.added(static_cast<int>(at.n_rows));
    }

private:
    const Finish& finish_;
};

// The sweep for the scores of a problem times a factor, computed on the fly.
template <class T>
std::unique_ptr<Sweep> sweep_scaled(const Problem<T>& problem, double factor, const Run& run);

}  // namespace qk
