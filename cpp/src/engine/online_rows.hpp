// Rows that become weights tile by tile, while each tile is in the L1 cache. The largest score of a row is known only
// at its end, so a tile's weights are relative to the largest score up to this tile. factor() gives the factor by which
// they must be multiplied to be relative to the largest score of the whole row.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/row_kernels.hpp"
#include "qk/softmax_state.hpp"

namespace qk {

template <class T>
class OnlineRows {
public:
    // For blocks of up to n_rows rows, whose tiles have tile_cols columns.
    void reserve(Index n_rows, Index n_cols, Index tile_cols) {
        tile_cols_ = tile_cols;
        n_tiles_ = (n_cols + tile_cols - 1) / tile_cols;
        states_.resize(static_cast<std::size_t>(n_rows));
        shifts_.resize(static_cast<std::size_t>(n_rows * n_tiles_));
        start();
    }

    // Must be called before every block. Tiles that are not weighed afterwards count as masked.
    void start() {
        std::ranges::fill(states_, SoftmaxState<double>{});
        std::ranges::fill(shifts_, -infinity<double>());
    }

    // Turns the scores of row r from column j on, of which `top` is the largest, into weights. `ahead`: see weigh_row.
    QK_INLINE void weigh(Index r, Index j, Index padded, T* s, T top, const T* ahead) {
        auto& state = raised(r, j, top);
        state.sum += weights(state, s, padded, s, ahead);
    }

    // The same, and writes the n weights that are not padding to `out`.
    QK_INLINE void weigh_into(Index r, Index j, Index n, Index padded, T* s, T top, const T* ahead, T* out) {
        const Index whole = n - n % (2 * SimdTraits<T>::width);
        auto& state = raised(r, j, top);
        state.sum += weights(state, s, whole, out, ahead);
        if (whole == n) return;
        state.sum += weights(state, s + whole, padded - whole, s + whole, nullptr);
        std::copy(s + whole, s + n, out + whole);
    }

    // The state after the tiles so far; its max is the shift of the row.
    const SoftmaxState<double>& state(Index r) const { return states_[static_cast<std::size_t>(r)]; }

    // The factor that makes the weights of the tile from column j on relative to the shift of the row.
    double factor(Index r, Index j) const {
        const double shift = shifts_[at(r, j)], top = state(r).max;
        if (shift == top) return 1.0;
        return shift == -infinity<double>() ? 0.0 : std::exp(shift - top);
    }

private:
    SoftmaxState<double>& raised(Index r, Index j, T top) {
        auto& state = states_[static_cast<std::size_t>(r)];
        state.raise(static_cast<double>(top));
        shifts_[at(r, j)] = state.max;
        return state;
    }

    // Turns n scores into weights, which are written to `out`, and returns their sum.
    QK_INLINE static double weights(const SoftmaxState<double>& state, const T* s, Index n, T* out,
                                    const T* ahead) {
        // If everything so far is masked, any finite shift gives weights of exactly 0.
        const T shift = state.empty() ? T(0) : static_cast<T>(state.max);
        return static_cast<double>(weigh_row<ShiftedExp<T>, T, 0, false, true>(s, n, {broadcast(shift)},
                                                                               shift, nullptr, 0, out, ahead)
                                       .sum);
    }

    std::size_t at(Index r, Index j) const { return static_cast<std::size_t>(r * n_tiles_ + j / tile_cols_); }

    Index tile_cols_ = 1, n_tiles_ = 0;
    std::vector<SoftmaxState<double>> states_;
    std::vector<double> shifts_;
};

}  // namespace qk
