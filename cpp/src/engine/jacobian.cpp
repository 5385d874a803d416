// Walks over two matrices at once, weights w = exp(s) and changes or cotangents t of their scores: products with w t
// and w.
#include "qk/jacobian.hpp"

#include <cmath>

#include "engine/walk.hpp"

namespace qk {
namespace {

// Replaces s by w = exp(s) and t by g = w t. Returns the sum of g; with Columns, g is also added to col_sums. Masked
// entries are 0 whatever their t.
template <class T, bool Columns>
T change_row(T* s, T* t, Index n, T* col_sums) {
    constexpr int width = SimdTraits<T>::width;
    Pack<T> sum[2] = {};
    for (Index j = 0; j < n; j += 2 * width) {
        Pack<T> w[2] = {load(s + j), load(s + j + width)};
        exp_each<T, 2>(w);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            const Index at = j + h * width;
            const Pack<T> g = select(w[h] == Pack<T>{}, Pack<T>{}, w[h] * load(t + at));
            sum[h] += g;
            store(s + at, w[h]);
            store(t + at, g);
            if constexpr (Columns) store(col_sums + at, load(col_sums + at) + g);
        }
    }
    return reduce_add<T>(sum[0] + sum[1]);
}

// Packs rows [first, first + n_rows) of a matrix in the layout of product_tile.
template <class T>
void pack_block(MatrixView<T> m, Index n_values, Index first, Index n_rows, Buffer<T>& out) {
    constexpr Index width = SimdTraits<T>::width, wide = MicroTile<T>::cols;
    const Index padded = round_up(n_values, width);
    out.reserve(n_rows * padded);
    for (Index k = 0; k < padded; k += wide) {
        const Index panel = std::min(wide, padded - k), live = std::clamp<Index>(n_values - k, 0, panel);
        T* to = out.data() + k * n_rows;
        for (Index r = 0; r < n_rows; ++r, to += panel) {
            for (Index c = 0; c < live; ++c) to[c] = m(first + r, k + c);
            std::fill(to + live, to + panel, T(0));
        }
    }
}

template <class T>
Index packs_of(Index n_values) {
    return round_up(n_values, SimdTraits<T>::width) / SimdTraits<T>::width;
}

// The sizes of blocks whose weights and changes stay in the L2 cache between their uses.
template <class T>
Tiling pair_tiling(Index n_rows, Index n_cols) {
    Tiling t{};
    t.block_rows = t.task_rows = std::min(tuning::pull_rows, std::max<Index>(1, n_rows));
    t.tile_cols = tuning::pull_cols;
    t.split_cols = n_cols;
    return t;
}

template <class T>
struct PushLocal : WalkLocal<T> {
    Buffer<T> sums;
    std::vector<double> mean;
};

// out_i = sum_j w_ij dv_j + sum_j w_ij (t_ij - mean_i) v_j, where mean_i = sum_j w_ij t_ij and sum_j w_ij v_j = y_i.
template <class T>
class Push {
public:
    static constexpr Keeps keeps = Keeps::tile;
    static constexpr bool pairs = true;
    using Local = PushLocal<T>;

    Push(const T* outputs, Index n_values, T* out, int n_workers)
        : outputs_(outputs),
          n_values_(n_values),
          ld_(packs_of<T>(n_values) * SimdTraits<T>::width),
          out_(out),
          locals_(static_cast<std::size_t>(n_workers)) {}

    Local& local(const Piece&, int worker) { return locals_[static_cast<std::size_t>(worker)]; }

    void start_block(Local& local, const Block<T>& at) const {
        local.sums.reserve(at.n_rows * ld_);
        std::fill(local.sums.data(), local.sums.data() + at.n_rows * ld_, T(0));
        local.mean.assign(static_cast<std::size_t>(at.n_rows), 0.0);
    }

    void row(Local& local, const Block<T>&, const Tile&, const Row<T>& row) const {
        local.mean[static_cast<std::size_t>(row.r)] +=
            static_cast<double>(change_row<T, false>(row.s, row.beside, row.padded, nullptr));
    }

    void end_tile(Local& local, const Block<T>& at, const Tile& tile) const {
        const auto add = [&](const Buffer<T>& weights, const PackedColumns<T>& columns) {
            product_tile(weights.data(), tile.ld, at.n_rows, tile.padded, columns.values.data(),
                         columns.n_padded, tile.first_col, columns.n_packs, local.sums.data(), ld_);
        };
        add(local.block.scores, at.walked.columns);
        add(local.beside.scores, at.walked.beside_columns);
    }

    void end_block(Local& local, const Block<T>& at, const Run&, int) const {
        for (Index r = 0; r < at.n_rows; ++r) {
            const auto mean = static_cast<T>(local.mean[static_cast<std::size_t>(r)]);
            const Index row = (at.first_row + r) * n_values_;
            for (Index k = 0; k < n_values_; ++k)
                out_[row + k] = local.sums[r * ld_ + k] - mean * outputs_[row + k];
        }
    }

private:
    const T* outputs_;
    Index n_values_, ld_;
    T* out_;
    std::vector<Local> locals_;
};

template <class T>
struct PullLocal : WalkLocal<T> {
    Buffer<T> rows;            // G Y of the block
    Buffer<T> points, values;  // X and U of the block, packed
    Buffer<T> cols;            // G^T X, w^T U and G^T 1 of the share
    Index n_cols = 0;
};

template <class T>
class Pull {
public:
    static constexpr Keeps keeps = Keeps::tile;
    static constexpr bool pairs = true;
    using Local = PullLocal<T>;

    Pull(const PullTask<T>& task, std::size_t n_shares)
        : task_(task),
          ld_y_(task.to_rows == nullptr ? 0 : packs_of<T>(task.n_y) * width),
          ld_x_(task.to_cols == nullptr ? 0 : packs_of<T>(task.n_x) * width),
          ld_u_(task.to_values == nullptr ? 0 : packs_of<T>(task.n_u) * width),
          padded_(round_up(task.scores.n_cols, MicroTile<T>::cols)),
          shares_(n_shares) {}

    Local& local(const Piece& piece, int) { return shares_[static_cast<std::size_t>(piece.part)]; }

    bool start_piece(Local& local, const Piece&, const Run& run, int worker) const {
        const Index size = padded_ * (ld_x_ + ld_u_ + 1);
        local.cols.reserve(size);
        return in_pieces(run, worker, size, [&](Index from, Index to) {
            std::fill(local.cols.data() + from, local.cols.data() + to, T(0));
        });
    }

    void start_block(Local& local, const Block<T>& at) const {
        local.rows.reserve(at.n_rows * (ld_y_ + 1));
        std::fill(local.rows.data(), local.rows.data() + at.n_rows * (ld_y_ + 1), T(0));
        if (ld_x_ > 0) pack_block(task_.row_points, task_.n_x, at.first_row, at.n_rows, local.points);
        if (ld_u_ > 0) pack_block(task_.row_values, task_.n_u, at.first_row, at.n_rows, local.values);
    }

    void row(Local& local, const Block<T>& at, const Tile& tile, const Row<T>& row) const {
        T& sum = local.rows[at.n_rows * ld_y_ + row.r];
        if (task_.col_sums == nullptr)
            sum += change_row<T, false>(row.s, row.beside, row.padded, nullptr);
        else
            sum += change_row<T, true>(row.s, row.beside, row.padded, col_sums(local) + tile.first_col);
    }

    void end_tile(Local& local, const Block<T>& at, const Tile& tile) const {
        const T *w = local.block.scores.data(), *g = local.beside.scores.data();
        const PackedColumns<T>& columns = at.walked.columns;
        if (ld_y_ > 0)
            product_tile(g, tile.ld, at.n_rows, tile.padded, columns.values.data(), columns.n_padded,
                         tile.first_col, columns.n_packs, local.rows.data(), ld_y_);
        if (ld_x_ > 0)
            product_across(g, tile.ld, at.n_rows, tile.n_cols, local.points.data(), ld_x_ / width,
                           to_cols(local) + tile.first_col * ld_x_, ld_x_);
        if (ld_u_ > 0)
            product_across(w, tile.ld, at.n_rows, tile.n_cols, local.values.data(), ld_u_ / width,
                           to_values(local) + tile.first_col * ld_u_, ld_u_);
    }

    void end_block(Local& local, const Block<T>& at, const Run&, int) {
        bool finite = true;
        for (Index r = 0; r < at.n_rows; ++r) {
            const Index row = at.first_row + r;
            for (Index k = 0; ld_y_ > 0 && k < task_.n_y; ++k)
                finite = put(task_.to_rows, row * task_.n_y + k, local.rows[r * ld_y_ + k]) && finite;
            const T sum = local.rows[at.n_rows * ld_y_ + r];
            finite = std::isfinite(sum) && finite;
            if (task_.row_sums != nullptr) task_.row_sums[row] = sum;
        }
        if (!finite) overflow_.store(true, std::memory_order_relaxed);
    }

    // Adds the sums over rows in the order of the shares.
    Status finish(const Run& run) {
        const bool done = in_pieces(run, 0, task_.scores.n_cols, [&](Index from, Index to) {
            bool finite = true;
            for (Index j = from; j < to; ++j) {
                for (Index k = 0; ld_x_ > 0 && k < task_.n_x; ++k)
                    finite = put(task_.to_cols, j * task_.n_x + k,
                                 over_shares([&](Local& s) { return to_cols(s)[j * ld_x_ + k]; })) &&
                             finite;
                for (Index k = 0; ld_u_ > 0 && k < task_.n_u; ++k)
                    finite = put(task_.to_values, j * task_.n_u + k,
                                 over_shares([&](Local& s) { return to_values(s)[j * ld_u_ + k]; })) &&
                             finite;
                if (task_.col_sums != nullptr)
                    finite = put(task_.col_sums, j, over_shares([&](Local& s) { return col_sums(s)[j]; })) &&
                             finite;
            }
            if (!finite) overflow_.store(true, std::memory_order_relaxed);
        });
        if (!done) return Status::interrupted;
        return overflow_.load() ? Status::overflow : Status::ok;
    }

private:
    static constexpr Index width = SimdTraits<T>::width;

    static bool put(T* out, Index at, T value) {
        out[at] = value;
        return std::isfinite(value);
    }
    template <class Of>
    T over_shares(const Of& of) {
        T sum = T(0);
        for (Local& share : shares_) sum += of(share);
        return sum;
    }

    T* to_cols(Local& local) const { return local.cols.data(); }
    T* to_values(Local& local) const { return local.cols.data() + padded_ * ld_x_; }
    T* col_sums(Local& local) const { return local.cols.data() + padded_ * (ld_x_ + ld_u_); }

    const PullTask<T>& task_;
    const Index ld_y_, ld_x_, ld_u_, padded_;
    std::vector<Local> shares_;
    std::atomic<bool> overflow_{false};
};

// <R_i, C_j> + shift_j - normalizer_i; `negated` holds the negative normalizers.
template <class T>
Problem<T> problem_of(const AttentionFactors<T>& f, std::vector<T>& negated) {
    negated.assign(f.normalizer, f.normalizer + f.n_rows);
    for (T& value : negated) value = -value;
    Problem<T> p;
    p.n_rows = f.n_rows;
    p.n_cols = f.n_cols;
    p.dots.push_back({{f.rows, f.rank, 1}, {f.columns, f.rank, 1}, f.rank});
    p.col_bias.push_back({f.shift, 1});
    p.row_bias.push_back({negated.data(), 1});
    return p;
}

template <class T>
Problem<T> products_of(Index n_rows, Index n_cols, Index width, const T* left, const T* right) {
    Problem<T> p;
    p.n_rows = n_rows;
    p.n_cols = n_cols;
    p.dots.push_back({{left, width, 1}, {right, width, 1}, width});
    return p;
}

}  // namespace

template <class T>
Status pull(const PullTask<T>& task, const KeptBlocks& kept, const Run& run) {
    const Index n_rows = task.scores.n_rows, n_cols = task.scores.n_cols;
    const Run scaled = scaled_run(
        run, 2 * operations(task.scores, task.n_x + task.n_y + task.n_u) + operations(task.cotangent, 0));
    const bool to_rows = task.to_rows != nullptr;
    Walked<T> w = prepare(task.scores, pair_tiling<T>(n_rows, n_cols),
                          to_rows ? task.col_points : MatrixView<T>{}, to_rows ? task.n_y : 0, scaled, true);
    w.put_beside(task.cotangent, MatrixView<T>{}, 0, scaled);
    const auto shares = cut_shares(0, n_rows, n_cols, w.tiling.block_rows, scaled.n_threads);
    Pull<T> reducer(task, shares.size());
    const auto skip = [&](const Piece&, Index first_row, Index end_row, Index first_col, Index end_col) {
        return !kept.any(first_row, end_row, first_col, end_col);
    };
    if (!walk<T>({&w, 1}, shares, reducer, scaled, skip)) return Status::interrupted;
    return reducer.finish(scaled);
}

template <class T>
void attention_push(const AttentionFactors<T>& f, const T* left, const T* right, Index width,
                    const T* d_values, T* out, const Run& run) {
    std::vector<T> negated;
    const Problem<T> scores = problem_of(f, negated),
                     changes = products_of(f.n_rows, f.n_cols, width, left, right);
    Walked<T> w =
        prepare(scores, pair_tiling<T>(f.n_rows, f.n_cols), {d_values, f.n_values, 1}, f.n_values, run, true);
    w.put_beside(changes, {f.values, f.n_values, 1}, f.n_values, run, true);
    Push<T> reducer(f.outputs, f.n_values, out, run.n_threads);
    std::vector<Piece> pieces;
    cut(0, f.n_rows, f.n_cols, w.tiling, pieces);
    walk<T>({&w, 1}, pieces, reducer, run);
}

template <class T>
void attention_pull(const AttentionFactors<T>& f, const T* u, T* to_rows, T* to_columns, T* to_values,
                    const Run& run) {
    std::vector<T> negated, means(static_cast<std::size_t>(f.n_rows));
    for (Index i = 0; i < f.n_rows; ++i) {
        T mean = T(0);
        for (Index k = 0; k < f.n_values; ++k) mean += u[i * f.n_values + k] * f.outputs[i * f.n_values + k];
        means[static_cast<std::size_t>(i)] = -mean;
    }
    PullTask<T> task;
    task.scores = problem_of(f, negated);
    task.cotangent = products_of(f.n_rows, f.n_cols, f.n_values, u, f.values);
    task.cotangent.row_bias.push_back({means.data(), 1});
    task.col_points = {f.columns, f.rank, 1};
    task.row_points = {f.rows, f.rank, 1};
    task.row_values = {u, f.n_values, 1};
    task.n_y = task.n_x = f.rank;
    task.n_u = f.n_values;
    task.to_rows = to_rows;
    task.to_cols = to_columns;
    task.to_values = to_values;
    pull(task, {}, run);
}

#define QK_INSTANTIATE(T)                                                                                \
    template Status pull(const PullTask<T>&, const KeptBlocks&, const Run&);                             \
    template void attention_push<T>(const AttentionFactors<T>&, const T*, const T*, Index, const T*, T*, \
                                    const Run&);                                                         \
    template void attention_pull<T>(const AttentionFactors<T>&, const T*, T*, T*, T*, const Run&);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)
#undef QK_INSTANTIATE

}  // namespace qk
