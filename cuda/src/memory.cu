#include <atomic>

#include "platform.hpp"
#include "qk_cuda/memory.hpp"

namespace qk::cuda {
namespace {

std::atomic<Index> n_alive{0};

#if defined(__CUDACC__)
Outcome outcome(cudaError_t error, Status status = Status::launch_failed) {
    if (error == cudaSuccess) return {};
    return {error == cudaErrorMemoryAllocation ? Status::out_of_memory : status, static_cast<int>(error),
            cudaGetErrorString(error)};
}
#endif

}  // namespace

Index live_allocations() noexcept { return n_alive.load(); }

#if defined(__CUDACC__)

Outcome device_count(int& count) {
    count = 0;  // without a driver the runtime leaves it as it is
    int found = 0;
    const cudaError_t error = cudaGetDeviceCount(&found);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();  // do not leave the error for the next launch
        return {Status::no_device, static_cast<int>(error), cudaGetErrorString(error)};
    }
    count = found;
    return {};
}

Outcome allocate(std::size_t bytes, void*& out) {
    out = nullptr;
    if (bytes == 0) return {};
    const cudaError_t error = cudaMalloc(&out, bytes);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        out = nullptr;
        return outcome(error, Status::out_of_memory);
    }
    ++n_alive;
    return {};
}
void release(void* pointer) noexcept {
    if (pointer == nullptr) return;
    (void)cudaFree(pointer);
    --n_alive;
}
Outcome upload(void* to, const void* from, std::size_t bytes, Stream stream) {
    if (bytes == 0) return {};
    return outcome(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream)));
}
Outcome download(void* to, const void* from, std::size_t bytes, Stream stream) {
    if (bytes == 0) return {};
    return outcome(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream)));
}
Outcome synchronize(Stream stream) {
    return outcome(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

#else

Outcome device_count(int& count) {
    count = 0;
    return {Status::no_device, 0, "compiled without CUDA"};
}
Outcome allocate(std::size_t bytes, void*& out) {
    out = nullptr;
    if (bytes == 0) return {};
    out = simt::allocate(bytes);
    if (out == nullptr) return {Status::out_of_memory, 0, "the arena is full"};
    ++n_alive;
    return {};
}
void release(void* pointer) noexcept {
    if (pointer == nullptr) return;
    simt::release(pointer);
    --n_alive;
}
Outcome upload(void* to, const void* from, std::size_t bytes, Stream) {
    if (bytes > 0) {
        std::memcpy(to, from, bytes);
        simt::mark_written(to, bytes);
    }
    return {};
}
Outcome download(void* to, const void* from, std::size_t bytes, Stream) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return {};
}
Outcome synchronize(Stream) { return {}; }

#endif

}  // namespace qk::cuda
