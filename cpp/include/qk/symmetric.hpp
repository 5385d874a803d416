// A symmetric matrix exp(s_ij) stored as the tiles on and above its diagonal. Only half of the weights are computed and
// stored, and every pass over them multiplies a whole block of vectors.
#pragma once

#include "engine.hpp"

namespace qk {

inline constexpr Index symmetric_tile = 128;

inline constexpr Index symmetric_tile_count(Index n) {
    const Index side = (n + symmetric_tile - 1) / symmetric_tile;
    return side * (side + 1) / 2;
}

// Fills `tiles` with the weights of a problem that is known to be symmetric. The layout is [tile][row][column], with
// the tiles of one row of tiles after another, and zeros beyond the last point.
template <class T>
Status pack_symmetric(const Problem<T>& problem, T* tiles, const Run& run);

// out = K x for x and out of k contiguous vectors of length n, one after another. The bits are the same for any
// number of threads.
template <class T>
Status symmetric_product(Index n, const T* tiles, Index k, const T* x, T* out, const Run& run);

// The result of a partial factorisation: its rank, and the trace of the remainder, which bounds the norm of the
// remainder if the kernel is positive semidefinite.
struct PartialFactor {
    Index rank = 0;
    double rest = 0;
};

// K ~ L L^T by Cholesky's method, which takes the largest remaining diagonal entry as the next pivot. `factor` holds
// the columns of L, [max_rank][n]. It ends at max_rank, when the trace of the rest is at most `enough`, or at a
// pivot that is only rounding. The bits are the same for any number of threads.
template <class T>
Status partial_cholesky(const Problem<T>& problem, Index max_rank, double enough, T* factor,
                        PartialFactor& found, const Run& run);

}  // namespace qk
