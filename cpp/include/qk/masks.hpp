// Which entries of a score matrix exist.
#pragma once

#include <cstdint>

#include "macros.hpp"

namespace qk {

// Keeps lo <= j - i <= hi. Causal is (-unbounded, offset); a window is (-left, right).
struct Band {
    static constexpr std::int64_t unbounded = std::int64_t{1} << 60;
    std::int64_t lo = -unbounded;
    std::int64_t hi = unbounded;

    QK_HD QK_INLINE bool keep(std::int64_t i, std::int64_t j) const { return j - i >= lo && j - i <= hi; }
    QK_HD QK_INLINE bool everything() const { return lo <= -unbounded && hi >= unbounded; }

    // First kept column and one past the last for row i, clipped to [0, n_cols].
    QK_HD QK_INLINE std::int64_t first(std::int64_t i, std::int64_t n_cols) const {
        const std::int64_t j = i + lo;
        return j < 0 ? 0 : (j > n_cols ? n_cols : j);
    }
    QK_HD QK_INLINE std::int64_t end(std::int64_t i, std::int64_t n_cols) const {
        const std::int64_t j = i + hi + 1;
        return j < 0 ? 0 : (j > n_cols ? n_cols : j);
    }
};

// A dense boolean mask; true keeps the entry.
struct DenseMask {
    const unsigned char* data = nullptr;
    std::int64_t row_stride = 0;
    std::int64_t col_stride = 0;

    QK_HD QK_INLINE bool keep(std::int64_t i, std::int64_t j) const {
        return data[i * row_stride + j * col_stride] != 0;
    }
};

}  // namespace qk
