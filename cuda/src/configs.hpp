// The list of all kernels that are compiled: every combination of types and tiles, once.
#pragma once

#include "tile.hpp"

namespace qk::cuda {

// Tiles of the shipped kernels. `Narrow` is for log-sum-exps and up to narrow_values right-hand sides, which each
// thread sums for its own columns. `Wide` is for wide_values right-hand sides per block, through shared memory.
// `Strip` is for the Sinkhorn sweep; it has few rows, so that a strip of weights stays in the L2 cache.
struct Shipped {
    static constexpr int vector_threads = 256;
    static constexpr int group_warps = 2;
};
// Small tiles for tests: the same sizes of problems then have more edges and more blocks, with fewer threads.
struct Small32 {
    static constexpr int vector_threads = 32;
    static constexpr int group_warps = 1;
};
struct Small64 {
    static constexpr int vector_threads = 64;
    static constexpr int group_warps = 2;
};

// The configuration that the functions of qk_cuda/api.hpp launch. The tests of the Python module choose small tiles.
#if !defined(QK_CUDA_TILES)
#define QK_CUDA_TILES Shipped
#endif
using Chosen = QK_CUDA_TILES;

template <class Config, class T>
struct Tiles;
template <>
struct Tiles<Shipped, float> {
    using Narrow = Tile<64, 64, 16, 16, 16>;
    using Wide = Tile<64, 64, 16, 16, 16>;
    using Strip = Tile<32, 64, 16, 16, 8>;
    static constexpr int narrow_values = 4, wide_values = 64;
};
template <>
struct Tiles<Shipped, double> {
    using Narrow = Tile<32, 32, 8, 16, 16>;
    using Wide = Tile<64, 32, 8, 16, 16>;
    using Strip = Tile<32, 32, 8, 16, 8>;
    static constexpr int narrow_values = 4, wide_values = 32;
};
template <class T>
struct Tiles<Small32, T> {
    using Narrow = Tile<8, 8, 4, 8, 4>;
    using Wide = Tile<8, 16, 4, 4, 8>;
    using Strip = Tile<4, 32, 4, 32, 1>;
    static constexpr int narrow_values = 2, wide_values = 8;
};
template <class T>
struct Tiles<Small64, T> {
    using Narrow = Tile<8, 32, 8, 32, 2>;
    using Wide = Tile<16, 8, 8, 8, 8>;
    using Strip = Tile<8, 16, 4, 16, 4>;
    static constexpr int narrow_values = 2, wide_values = 16;
};

// Each list calls X(Config, T) or X(Config, T, In) for everything that is compiled.
#define QK_CUDA_REALS(X, Config) X(Config, float) X(Config, double)
#define QK_CUDA_INPUTS(X, Config) \
    X(Config, float, float) X(Config, double, double) X(Config, float, Half) X(Config, float, BFloat16)
#if defined(__CUDACC__)
#define QK_CUDA_CONFIGS(LIST, X) LIST(X, Shipped)
#else
#define QK_CUDA_CONFIGS(LIST, X) LIST(X, Shipped) LIST(X, Small32) LIST(X, Small64)
#endif

}  // namespace qk::cuda
