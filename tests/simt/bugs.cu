// Kernels with one mistake each, and the same kernel without it. The tests require that every mistake is found.
#include "platform.hpp"
#include "qk_cuda/memory.hpp"

namespace qk::cuda {
namespace {

enum Bug : int {
    none,
    missing_barrier,         // between writing and reading shared memory
    missing_second_barrier,  // between reading shared memory and overwriting it
    missing_warp_sync,       // missing_barrier within a warp
    tile_off_by_one,         // reads one element beyond the input
    shared_overrun,          // writes one element beyond a shared array
    global_overrun,          // writes one element beyond the output
    no_tail_check,           // threads beyond the end write too
    narrow_mask,             // a shuffle whose mask leaves out lanes that it reads
    divergent_shuffle,       // half of a warp never reaches the shuffle
    divergent_barrier,       // half of the block never reaches the barrier
    early_return,            // threads return before a barrier
    atomic_order,            // a sum whose order depends on the order of the blocks
    block_race,              // two blocks write the same number
    uninitialised,           // reads shared memory that was never written
    lost_update,             // a += from all threads without an atomic
    n_bugs,
};

// out[0] = sum of x, out[1 + b] = sum of block b. On the way each warp rotates its numbers through shared memory.
template <int Threads>
__global__ void seeded(const float* x, int n, float* out, int n_out, int bug) {
    QK_SHARED(float, tile, Threads);
    QK_SHARED(float, turned, Threads);
    const int t = static_cast<int>(threadIdx.x), lane = t % 32;
    const int at = static_cast<int>(blockIdx.x) * Threads + t;
    if (bug == early_return && at >= n) return;

    const int reach = bug == tile_off_by_one ? n + 1 : n;
    if (bug != uninitialised || t != 5) tile[t] = at < reach ? x[at] : 0.0f;
    if (bug == shared_overrun && t == Threads - 1) tile[Threads] = 1.0f;
    if (bug != missing_barrier && !(bug == divergent_barrier && t < Threads / 2)) __syncthreads();

    // Reversed over the block: reads what another warp has written to shared memory.
    const float opposite = tile[Threads - 1 - t];
    if (bug != missing_second_barrier) __syncthreads();
    tile[t] = opposite;
    // Rotated within the warp.
    turned[t] = opposite;
    if (bug != missing_warp_sync) __syncwarp(full_warp);
    float sum = turned[t / 32 * 32 + (lane + 1) % 32];

    for (int step = 16; step > 0; step /= 2) {
        if (bug == narrow_mask) {
            if (lane < 16) sum += __shfl_xor_sync(0x0000ffffu, sum, step, 32);
        } else if (bug == divergent_shuffle) {
            if (lane < 16) sum += __shfl_xor_sync(full_warp, sum, step, 32);
        } else {
            sum += __shfl_xor_sync(full_warp, sum, step, 32);
        }
    }
    __syncthreads();
    if (lane == 0) tile[t / 32] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int w = 0; w < Threads / 32; ++w) total += tile[w];
    if (t == 0 && bug != atomic_order) out[1 + blockIdx.x] = total;
    if (t == 0 && bug == atomic_order) {
        atomicAdd(&out[0], total);
        out[1 + blockIdx.x] = total;
    }
    if (t == 0 && bug == block_race) out[1] = total;
    if (t == 0 && bug == global_overrun && blockIdx.x == gridDim.x - 1) out[n_out] = total;
    if (bug == no_tail_check && t == 1 && blockIdx.x == gridDim.x - 1) out[1 + at / 32 + n_out] = 0.0f;
    if (bug == lost_update) out[0] += total;
}

template <int Threads>
__global__ void join(float* out, int blocks) {
    if (threadIdx.x != 0) return;
    float total = 0.0f;
    for (int b = 0; b < blocks; ++b) total += out[1 + b];
    out[0] = total;
}

Outcome run_seeded(const float* x, int n, float* result, int bug) {
    constexpr int threads = 64;
    const int blocks = static_cast<int>(ceil_div(n, threads)), n_out = 1 + blocks;
    Buffer input, output;
    QK_TRY(input.reserve(sizeof(float) * static_cast<std::size_t>(n)));
    QK_TRY(output.reserve(sizeof(float) * static_cast<std::size_t>(n_out)));
    QK_TRY(upload(input.data(), x, sizeof(float) * static_cast<std::size_t>(n), nullptr));
    const float zero = 0.0f;
    QK_TRY(upload(output.data(), &zero, sizeof zero, nullptr));
    auto* const out = static_cast<float*>(output.data());
    const Outcome ran = QK_LAUNCH((seeded<threads>), static_cast<unsigned>(blocks), threads, 0, nullptr,
                                  static_cast<const float*>(input.data()), n, out, n_out, bug);
    if (!ran.ok()) return ran;
    if (bug != atomic_order && bug != lost_update)
        QK_TRY(QK_LAUNCH((join<32>), 1, 32, 0, nullptr, out, blocks));
    return download(result, out, sizeof(float), nullptr);
}

}  // namespace
}  // namespace qk::cuda

#define QK_EXPORT extern "C" __attribute__((visibility("default")))

QK_EXPORT int qk_n_bugs() { return qk::cuda::n_bugs; }
QK_EXPORT int qk_seeded(const float* x, int n, float* out, int bug) {
    return static_cast<int>(qk::cuda::run_seeded(x, n, out, bug).status);
}
