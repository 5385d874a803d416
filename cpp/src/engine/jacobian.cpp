#include "qk/jacobian.hpp"

#include <algorithm>
#include <vector>

#include <Eigen/Core>

#include "qk/vector_math.hpp"

namespace qk {
namespace {

// A tile of weights and one of score changes stay in L2 between their uses.
constexpr Index tile_rows = 64;
constexpr Index tile_cols = 256;

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Map = Eigen::Map<Matrix<T>>;
template <class T>
using ConstMap = Eigen::Map<const Matrix<T>>;
// A tile, of which the last may be smaller than its memory.
template <class T>
using Tile = Eigen::Map<Matrix<T>, Eigen::Aligned64, Eigen::OuterStride<tile_cols>>;

template <class T>
struct Scratch {
    Buffer<T> weights{tile_rows * tile_cols}, changes{tile_rows * tile_cols};
};

template <class T>
ConstMap<T> part(const T* data, Index first, Index count, Index width) {
    return {data + first * width, count, width};
}

// p_ij of one tile; what lies beyond its last column is finite and not used.
template <class T>
void weights_of(const AttentionFactors<T>& f, Index i, Index rows, Index j, Index cols, Tile<T>& P) {
    constexpr Index width = SimdTraits<T>::width;
    P.noalias() = part(f.rows, i, rows, f.rank) * part(f.columns, j, cols, f.rank).transpose();
    for (Index r = 0; r < rows; ++r) {
        T* row = P.data() + r * tile_cols;
        const T top = f.normalizer[i + r];
        for (Index c = 0; c < cols; ++c) row[c] += f.shift[j + c] - top;
        std::fill(row + cols, row + round_up(cols, width), T(0));
        for (Index c = 0; c < cols; c += width) store(row + c, exp(load(row + c)));
    }
}

template <class T>
void push_rows(const AttentionFactors<T>& f, const T* left, const T* right, Index width, const T* d_values,
               Index i, Index rows, Scratch<T>& scratch, T* out, const Run& run, int worker) {
    Map<T> result(out + i * f.n_values, rows, f.n_values);
    result.setZero();
    Eigen::Matrix<T, Eigen::Dynamic, 1> mean = Eigen::Matrix<T, Eigen::Dynamic, 1>::Zero(rows);
    for (Index j = 0; j < f.n_cols; j += tile_cols) {
        if (should_stop(run, worker)) return;
        const Index cols = std::min(tile_cols, f.n_cols - j);
        Tile<T> P(scratch.weights.data(), rows, cols);
        Tile<T> S(scratch.changes.data(), rows, cols);
        weights_of(f, i, rows, j, cols, P);
        S.noalias() = part(left, i, rows, width) * part(right, j, cols, width).transpose();
        S.array() *= P.array();
        mean += S.rowwise().sum();
        result.noalias() += P * part(d_values, j, cols, f.n_values);
        result.noalias() += S * part(f.values, j, cols, f.n_values);
    }
    result.noalias() -= mean.asDiagonal() * part(f.outputs, i, rows, f.n_values);
}

template <class T>
void pull_rows(const AttentionFactors<T>& f, const T* u, Index i, Index rows, Scratch<T>& scratch, T* to_rows,
               T* to_columns, T* to_values, const Run& run, int worker) {
    Map<T> result(to_rows + i * f.rank, rows, f.rank);
    result.setZero();
    const auto cotangents = part(u, i, rows, f.n_values);
    const Eigen::Matrix<T, Eigen::Dynamic, 1> mean =
        (cotangents.array() * part(f.outputs, i, rows, f.n_values).array()).rowwise().sum();
    for (Index j = 0; j < f.n_cols; j += tile_cols) {
        if (should_stop(run, worker)) return;
        const Index cols = std::min(tile_cols, f.n_cols - j);
        Tile<T> P(scratch.weights.data(), rows, cols);
        Tile<T> S(scratch.changes.data(), rows, cols);
        weights_of(f, i, rows, j, cols, P);
        Map<T>(to_values + j * f.n_values, cols, f.n_values).noalias() += P.transpose() * cotangents;
        S.noalias() = cotangents * part(f.values, j, cols, f.n_values).transpose();
        S.colwise() -= mean;
        S.array() *= P.array();
        result.noalias() += S * part(f.columns, j, cols, f.rank);
        Map<T>(to_columns + j * f.rank, cols, f.rank).noalias() +=
            S.transpose() * part(f.rows, i, rows, f.rank);
    }
}

}  // namespace

template <class T>
void attention_push(const AttentionFactors<T>& f, const T* left, const T* right, Index width,
                    const T* d_values, T* out, const Run& run) {
    std::vector<Scratch<T>> scratch(static_cast<std::size_t>(run.n_threads));
    const Index n_tasks = (f.n_rows + tile_rows - 1) / tile_rows;
    parallel_for(run, n_tasks, [&](Index task, int worker) {
        if (should_stop(run, worker)) return;
        const Index i = task * tile_rows;
        push_rows(f, left, right, width, d_values, i, std::min(tile_rows, f.n_rows - i),
                  scratch[static_cast<std::size_t>(worker)], out, run, worker);
    });
}

template <class T>
void attention_pull(const AttentionFactors<T>& f, const T* u, T* to_rows, T* to_columns, T* to_values,
                    const Run& run) {
    // Sums over rows: every share of the rows has its own, so that the order does not depend on the scheduler.
    const Index n_tiles = (f.n_rows + tile_rows - 1) / tile_rows;
    const Index shares = std::min<Index>(run.n_threads, n_tiles);
    const Index columns_size = f.n_cols * f.rank, values_size = f.n_cols * f.n_values;
    std::vector<Buffer<T>> sums(static_cast<std::size_t>(shares));
    parallel_for(run, shares, [&](Index share, int worker) {
        Buffer<T>& mine = sums[static_cast<std::size_t>(share)];
        mine.reserve(columns_size + values_size);
        std::fill_n(mine.data(), columns_size + values_size, T(0));
        Scratch<T> scratch;
        for (Index tile = share * n_tiles / shares; tile < (share + 1) * n_tiles / shares; ++tile) {
            if (should_stop(run, worker)) return;
            const Index i = tile * tile_rows;
            pull_rows(f, u, i, std::min(tile_rows, f.n_rows - i), scratch, to_rows, mine.data(),
                      mine.data() + columns_size, run, worker);
        }
    });
    if (run.stop != nullptr && run.stop->stopped()) return;
    std::fill_n(to_columns, columns_size, T(0));
    std::fill_n(to_values, values_size, T(0));
    for (const Buffer<T>& share : sums) {
        for (Index k = 0; k < columns_size; ++k) to_columns[k] += share[k];
        for (Index k = 0; k < values_size; ++k) to_values[k] += share[columns_size + k];
    }
}

#define QK_INSTANTIATE(T)                                                                                \
    template void attention_push<T>(const AttentionFactors<T>&, const T*, const T*, Index, const T*, T*, \
                                    const Run&);                                                         \
    template void attention_pull<T>(const AttentionFactors<T>&, const T*, T*, T*, T*, const Run&);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)
#undef QK_INSTANTIATE

}  // namespace qk
