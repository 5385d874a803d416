// The only functions that allocate device memory. They allocate exact sizes and count what is alive.
#pragma once

#include "types.hpp"

namespace qk::cuda {

// Sets `count` in every case: to 0, with Status::no_device, when there is no driver.
Outcome device_count(int& count);

Outcome allocate(std::size_t bytes, void*& out);
void release(void* pointer) noexcept;
Outcome upload(void* to, const void* from, std::size_t bytes, Stream stream);
Outcome download(void* to, const void* from, std::size_t bytes, Stream stream);
Outcome synchronize(Stream stream);

Outcome copy(void* to, const void* from, std::size_t bytes, Stream stream);  // on one device

// Work that is given to `later` from now on waits for all work that has been given to `earlier`.
Outcome wait_for(Stream later, Stream earlier);

// Allocation and release in the order of a stream: work given to the stream afterwards may use the memory, and it is
// released when the work given before has ended. Neither call waits. `pooled` says whether the memory comes from the
// device's pool, and is passed back with it.
Outcome allocate_on(Stream stream, std::size_t bytes, void*& out, bool& pooled);
void release_on(Stream stream, void* pointer, bool pooled) noexcept;

// The number of allocations that have not been released: 0 when nothing leaked.
Index live_allocations() noexcept;

// ---- devices ------------------------------------------------------------------------------------
struct DeviceInfo {
    char name[256] = "";
    int major = 0, minor = 0;  // compute capability
    std::size_t bytes = 0;     // of memory
};
Outcome device_info(int device, DeviceInfo& out);
// Versions as CUDA writes them: 13000 is 13.0. The driver's version is 0 when there is none.
void versions(int& driver, int& runtime) noexcept;
Outcome current_device(int& device);
Outcome use_device(int device);

// Makes a device the current one, for as long as it lives.
class DeviceGuard {
public:
    explicit DeviceGuard(int device) {
        outcome_ = current_device(before_);
        if (outcome_.ok() && device != before_) {
            outcome_ = use_device(device);
            changed_ = outcome_.ok();
        }
    }
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;
    ~DeviceGuard() {
        if (changed_) (void)use_device(before_);
    }
    const Outcome& outcome() const { return outcome_; }

private:
    Outcome outcome_;
    int before_ = 0;
    bool changed_ = false;
};

class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { release(data_); }

    Outcome reserve(std::size_t bytes) {
        release(data_);
        data_ = nullptr;
        return allocate(bytes, data_);
    }
    void* data() { return data_; }

private:
    void* data_ = nullptr;
};

// A buffer that is allocated and released in the order of a stream: scratch memory that the host gives up before the
// device has finished its work.
class StreamBuffer {
public:
    explicit StreamBuffer(Stream stream) : stream_(stream) {}
    StreamBuffer(const StreamBuffer&) = delete;
    StreamBuffer& operator=(const StreamBuffer&) = delete;
    ~StreamBuffer() { release_on(stream_, data_, pooled_); }

    Outcome reserve(std::size_t bytes) {
        release_on(stream_, data_, pooled_);
        data_ = nullptr;
        return allocate_on(stream_, bytes, data_, pooled_);
    }
    void* data() { return data_; }

private:
    Stream stream_;
    void* data_ = nullptr;
    bool pooled_ = false;
};

}  // namespace qk::cuda
