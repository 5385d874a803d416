#include <atomic>
#include <cstring>

#include "platform.hpp"
#include "qk_cuda/memory.hpp"

namespace qk::cuda {
namespace {

std::atomic<Index> n_alive{0};

#if defined(__CUDACC__)
Outcome outcome(cudaError_t error, Status status = Status::launch_failed) {
    if (error == cudaSuccess) return {};
    (void)cudaGetLastError();  // clears the error, so that the next launch does not report it again
    return {error == cudaErrorMemoryAllocation ? Status::out_of_memory : status, static_cast<int>(error),
            cudaGetErrorString(error)};
}
#endif

}  // namespace

Index live_allocations() noexcept { return n_alive.load(); }

#if defined(__CUDACC__)

Outcome device_count(int& count) {
    count = 0;  // without a driver the runtime does not write to it
    int found = 0;
    const cudaError_t error = cudaGetDeviceCount(&found);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();  // clears the error, so that the next launch does not report it
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
Outcome copy(void* to, const void* from, std::size_t bytes, Stream stream) {
    if (bytes == 0) return {};
    return outcome(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)));
}
Outcome wait_for(Stream later, Stream earlier) {
    cudaEvent_t event = nullptr;
    Outcome result = outcome(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    if (!result.ok()) return result;
    result = outcome(cudaEventRecord(event, static_cast<cudaStream_t>(earlier)));
    if (result.ok()) result = outcome(cudaStreamWaitEvent(static_cast<cudaStream_t>(later), event, 0));
    (void)cudaEventDestroy(event);  // the runtime frees it when the event has happened
    return result;
}
Outcome allocate_on(Stream stream, std::size_t bytes, void*& out, bool& pooled) {
    out = nullptr;
    pooled = false;
    if (bytes == 0) return {};
    const cudaError_t error = cudaMallocAsync(&out, bytes, static_cast<cudaStream_t>(stream));
    if (error == cudaSuccess) {
        pooled = true;
        ++n_alive;
        return {};
    }
    (void)cudaGetLastError();
    out = nullptr;
    if (error == cudaErrorNotSupported) return allocate(bytes, out);  // the device has no memory pools
    return outcome(error, Status::out_of_memory);
}
void release_on(Stream stream, void* pointer, bool pooled) noexcept {
    if (pointer == nullptr) return;
    if (!pooled) return release(pointer);
    (void)cudaFreeAsync(pointer, static_cast<cudaStream_t>(stream));
    --n_alive;
}

Outcome device_info(int device, DeviceInfo& out) {
    cudaDeviceProp properties;
    const Outcome result = outcome(cudaGetDeviceProperties(&properties, device), Status::no_device);
    if (!result.ok()) {
        (void)cudaGetLastError();
        return result;
    }
    static_assert(sizeof out.name == sizeof properties.name);
    std::memcpy(out.name, properties.name, sizeof out.name);
    out.name[sizeof out.name - 1] = 0;
    out.major = properties.major;
    out.minor = properties.minor;
    out.bytes = properties.totalGlobalMem;
    return {};
}
void versions(int& driver, int& runtime) noexcept {
    driver = runtime = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = 0;
    (void)cudaGetLastError();
}
Outcome current_device(int& device) { return outcome(cudaGetDevice(&device), Status::no_device); }
Outcome use_device(int device) { return outcome(cudaSetDevice(device), Status::no_device); }

#else

Outcome device_count(int& count) {
    count = simt::machine.devices;
    if (count == 0) return {Status::no_device, 100, "no CUDA-capable device is detected"};
    return {};
}
Outcome allocate(std::size_t bytes, void*& out) {
    out = nullptr;
    if (bytes == 0) return {};
    if (simt::machine.allocations_left-- != 0) out = simt::allocate(bytes);
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
Outcome synchronize(Stream) {
    ++simt::machine.waits;
    return {};
}
Outcome copy(void* to, const void* from, std::size_t bytes, Stream stream) {
    return upload(to, from, bytes, stream);
}
Outcome wait_for(Stream, Stream) {
    ++simt::machine.orders;
    return {};
}
Outcome allocate_on(Stream, std::size_t bytes, void*& out, bool& pooled) {
    pooled = false;
    return allocate(bytes, out);
}
void release_on(Stream, void* pointer, bool) noexcept { release(pointer); }

Outcome device_info(int device, DeviceInfo& out) {
    if (device < 0 || device >= simt::machine.devices)
        return {Status::no_device, 101, "invalid device ordinal"};
    std::memcpy(out.name, "SIMT layer", sizeof "SIMT layer");
    out.major = 7;
    out.minor = 5;
    out.bytes = std::size_t{1} << 30;
    return {};
}
void versions(int& driver, int& runtime) noexcept { driver = runtime = 13000; }
Outcome current_device(int& device) {
    device = simt::machine.current;
    return {};
}
Outcome use_device(int device) {
    if (device < 0 || device >= simt::machine.devices)
        return {Status::no_device, 101, "invalid device ordinal"};
    simt::machine.current = device;
    return {};
}

#endif

}  // namespace qk::cuda
