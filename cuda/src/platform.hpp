// The macros and intrinsics that kernels use. With nvcc they are CUDA's own; with another compiler they come from the
// SIMT layer in tests/simt, which runs the same sources on a CPU.
#pragma once

#include <cmath>
#include <cstring>

#include "qk/softmax_state.hpp"
#include "qk_cuda/types.hpp"

#if defined(__CUDACC__)

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define QK_DEVICE __device__ __forceinline__
#define QK_PARAM const __grid_constant__  // large structs are read in place, not copied to every thread
#define QK_UNROLL _Pragma("unroll")
#define QK_UNROLL_4 _Pragma("unroll 4")
#define QK_NO_UNROLL _Pragma("unroll 1")
// Asks for at least one block, or `blocks` blocks, per multiprocessor. ptxas then does not spill to gain occupancy.
#define QK_BOUNDS(threads) __launch_bounds__(threads, 1)
#define QK_BOUNDS_BLOCKS(threads, blocks) __launch_bounds__(threads, blocks)
#define QK_SHARED(T, name, n) __shared__ __align__(16) T name[n]
#define QK_SHARED_DYN(T, name)                                         \
    extern __shared__ __align__(16) unsigned char qk_dynamic_shared[]; \
    T* const name = reinterpret_cast<T*>(qk_dynamic_shared)
// QK_LAUNCH((kernel<float, 128>), grid, block, shared bytes, stream, arguments...) returns an Outcome.
#define QK_LAUNCH(kernel, grid, block, smem, stream, ...)                                   \
    [&]() -> ::qk::cuda::Outcome {                                                          \
        auto* const qk_launched = kernel;                                                   \
        qk_launched<<<grid, block, smem, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__); \
        return ::qk::cuda::launched(cudaGetLastError());                                    \
    }()

namespace qk::cuda {
inline Outcome launched(cudaError_t error) {
    if (error == cudaSuccess) return {};
    return {Status::launch_failed, static_cast<int>(error), cudaGetErrorString(error)};
}
}  // namespace qk::cuda

#else

#include "simt.hpp"

#endif

namespace qk::cuda {

constexpr unsigned full_warp = 0xffffffffu;

QK_DEVICE float widen(float x) { return x; }
QK_DEVICE double widen(double x) { return x; }
QK_DEVICE float widen(BFloat16 x) {
    const unsigned bits = static_cast<unsigned>(x.bits) << 16;
#if defined(__CUDA_ARCH__)
    return __uint_as_float(bits);
#else
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
#endif
}
QK_DEVICE float widen(Half x) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(x.bits));
#else
    const int sign = x.bits >> 15, exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    float size;
    if (exponent == 31)
        size = fraction != 0 ? NAN : static_cast<float>(HUGE_VAL);
    else
        size = exponent == 0 ? ::ldexpf(static_cast<float>(fraction), -24)
                             : ::ldexpf(static_cast<float>(1024 + fraction), exponent - 25);
    return sign != 0 ? -size : size;
#endif
}

// Kahan's compensated sum, which carries its rounding error along: a row of 10^5 terms loses no digits in float.
template <class T>
struct CarefulSum {
    T sum = T(0), lost = T(0);

    QK_DEVICE void add(T x) {
        const T y = x - lost;
        const T total = sum + y;
        lost = (total - sum) - y;
        sum = total;
    }
    QK_DEVICE void scale(T factor) {
        sum *= factor;
        lost *= factor;
    }
    QK_DEVICE T value() const { return sum - lost; }
};

template <class T>
QK_DEVICE T add_over_lanes(T x, int width) {
    for (int step = width / 2; step > 0; step /= 2) x += __shfl_xor_sync(full_warp, x, step, 32);
    return x;
}
template <class T>
QK_DEVICE T max_over_lanes(T x, int width) {
    for (int step = width / 2; step > 0; step /= 2) x = qk::max(x, __shfl_xor_sync(full_warp, x, step, 32));
    return x;
}

inline Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

constexpr Index max_grid_x = 2147483647;

}  // namespace qk::cuda

#define QK_TRY(expression)                                   \
    do {                                                     \
        const ::qk::cuda::Outcome qk_outcome = (expression); \
        if (!qk_outcome.ok()) return qk_outcome;             \
    } while (false)
