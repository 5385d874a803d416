// Register-blocked kernels on one tile: scores from features, and weights times values. They are compiled once, in
// tile_kernels.cpp.
#pragma once

#include <array>

#include "qk/functors.hpp"
#include "qk/simd.hpp"
#include "qk/views.hpp"

namespace qk {

// A micro-tile is `rows` x (`packs` SIMD packs). Its accumulators fill the registers, except for those
// of the column packs and one broadcast.
template <class T>
struct MicroTile {
    static constexpr int width = SimdTraits<T>::width;
    static constexpr int packs = 2;
    static constexpr int cols = packs * width;
    static constexpr int rows = QK_SIMD_REGISTERS == 32 ? 12 : 6;
};

// Calls visit<Step>(number) for every step of a list.
template <class... Step, class Visit>
void each_step(Steps<Step...>, const Visit& visit) {
    std::size_t number = 0;
    (visit.template operator()<Step>(number++), ...);
}

template <class... Step>
constexpr std::size_t n_steps(Steps<Step...>) {
    return sizeof...(Step);
}

// Feature counts of one problem, in the order they are packed: one for every step, the dot products' last.
struct FeatureDims {
    std::array<Index, n_steps(FeatureSteps{})> counts{};

    Index dot() const { return counts.back(); }
    Index total() const {
        Index d = 0;
        for (const Index count : counts) d += count;
        return d;
    }
};

// Scores of n_rows rows against n_panels panels; `features` is n_rows x dims.total(), row-major.
template <class T>
void score_tile(const T* features, Index n_rows, const T* panels, Index n_panels, const FeatureDims& dims,
                T distance_scale, const T* row_bias, const T* col_bias, T* out, Index ldout);

// out (n_rows x n_values) += weights (n_rows x count) * values. The values are packed in panels of two
// packs ([panel][column][2 * width]); the last panel has one pack if that is enough.
// `column_offset` and `n_cols` say where the tile lies in the packed columns.
template <class T>
void product_tile(const T* weights, Index ldw, Index n_rows, Index count, const T* values, Index n_cols,
                  Index column_offset, Index n_packs, T* out, Index ldout);

// out (n_cols x values) += weights^T (n_cols x n_rows) * values, whose rows are packed as above.
template <class T>
void product_across(const T* weights, Index ldw, Index n_rows, Index n_cols, const T* values, Index n_packs,
                    T* out, Index ldout);

}  // namespace qk
