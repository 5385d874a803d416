// CUDA's functions for a plain C++ compiler: blocks of threads run on the CPU, one fiber per thread, in an order drawn
// from a seed. It covers what our kernels use, and it reports whatever CUDA leaves undefined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "qk_cuda/types.hpp"

struct dim3 {
    unsigned x, y, z;
    // NOLINTNEXTLINE(google-explicit-constructor): as in CUDA
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

enum class WarpOp : int { none, sync, shuffle_xor, shuffle_down, shuffle, ballot };

// ---- called by kernels --------------------------------------------------------------------------
int barrier(int predicate);  // returns the OR of all predicates
std::uint64_t warp_op(WarpOp op, unsigned mask, std::uint64_t value, int operand, int width);
void* shared_array(const void* site, std::size_t bytes, std::size_t alignment);
void* dynamic_shared();
float atomic_add(float* at, float x);
double atomic_add(double* at, double x);
int atomic_add(int* at, int x);

// ---- called by hosts ----------------------------------------------------------------------------
using Body = void (*)(const void* arguments);
// Runs a grid; returns true if nothing was reported.
bool run(Body body, const void* arguments, dim3 grid, dim3 block, std::size_t dynamic_bytes,
         const char* name);

void* allocate(std::size_t bytes);  // null when the arena is full
void release(void* pointer);        // reports if memory around the allocation was written
void mark_written(const void* pointer, std::size_t bytes);

void set_seed(std::uint64_t seed);  // with 0 threads and blocks run in their natural order
const char* reports();              // what was found since clear_reports, one line each
void clear_reports();
bool watches_memory();  // whether this is the race build

// The devices that the imitated machine has; tests set and read it.
struct Machine {
    int devices = 1, current = 0;
    long long allocations_left = -1;  // this many allocations succeed, then one fails; negative: none fails
    long long launches = 0, waits = 0, orders = 0;
    int last_device = -1;  // the device of the last launch
    void* last_stream = nullptr;
};
extern Machine machine;

template <class To, class From>
To bits_of(From x) {
    static_assert(std::is_trivially_copyable_v<From> && sizeof(From) <= 8 && sizeof(To) <= 8);
    To out{};
    std::memcpy(&out, &x, sizeof(From) < sizeof(To) ? sizeof(From) : sizeof(To));
    return out;
}

template <class T>
T shuffle(WarpOp op, unsigned mask, T x, int operand, int width) {
    return bits_of<T>(warp_op(op, mask, bits_of<std::uint64_t>(x), operand, width));
}

// The arguments are copied, as in a real launch, and each thread gets them by value.
template <class... Params, class... Args>
qk::cuda::Outcome launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t smem,
                         qk::cuda::Stream stream, Args&&... args) {
    ++machine.launches;
    machine.last_device = machine.current;
    machine.last_stream = stream;
    auto call = [=] { kernel(args...); };
    const bool clean = run([](const void* c) { (*static_cast<const decltype(call)*>(c))(); }, &call, grid,
                           block, smem, name);
    if (clean) return {};
    return {qk::cuda::Status::launch_failed, 1, reports()};
}

}  // namespace simt

#define __global__
#define __device__
#define QK_DEVICE inline
#define QK_PARAM
#define QK_UNROLL
#define QK_UNROLL_4
#define QK_NO_UNROLL
#define QK_BOUNDS(threads)
#define QK_BOUNDS_BLOCKS(threads, blocks)
#define QK_SHARED(T, name, n)          \
    static const char name##_site = 0; \
    T* const name = static_cast<T*>(simt::shared_array(&name##_site, sizeof(T) * (n), 16))
#define QK_SHARED_DYN(T, name) T* const name = static_cast<T*>(simt::dynamic_shared())
#define QK_LAUNCH(kernel, grid, block, smem, stream, ...) \
    simt::launch(#kernel, kernel, grid, block, smem, stream, __VA_ARGS__)

inline void __syncthreads() { simt::barrier(0); }
inline int __syncthreads_or(int predicate) { return simt::barrier(predicate); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { simt::warp_op(simt::WarpOp::sync, mask, 0, 0, 32); }
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int lane_mask, int width = 32) {
    return simt::shuffle(simt::WarpOp::shuffle_xor, mask, x, lane_mask, width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T x, int delta, int width = 32) {
    return simt::shuffle(simt::WarpOp::shuffle_down, mask, x, delta, width);
}
template <class T>
T __shfl_sync(unsigned mask, T x, int lane, int width = 32) {
    return simt::shuffle(simt::WarpOp::shuffle, mask, x, lane, width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return static_cast<unsigned>(
        simt::warp_op(simt::WarpOp::ballot, mask, static_cast<std::uint64_t>(predicate != 0), 0, 32));
}
template <class T>
T atomicAdd(T* at, T x) {
    return simt::atomic_add(at, x);
}
