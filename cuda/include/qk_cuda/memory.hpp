// Device memory through one door: exact sizes, counted, freed by its owner.
#pragma once

#include "types.hpp"

namespace qk::cuda {

// Sets `count` in every case; without a driver 0 and Status::no_device.
Outcome device_count(int& count);

Outcome allocate(std::size_t bytes, void*& out);
void release(void* pointer) noexcept;
Outcome upload(void* to, const void* from, std::size_t bytes, Stream stream);
Outcome download(void* to, const void* from, std::size_t bytes, Stream stream);
Outcome synchronize(Stream stream);

Outcome copy(void* to, const void* from, std::size_t bytes, Stream stream);  // on one device

// What is given to `later` from now on waits for what `earlier` has been given.
Outcome wait_for(Stream later, Stream earlier);

// Memory in the order of a stream: usable by what the stream is given after it, given back after what it was given
// before. No waiting on either side. `pooled` says how it came, and is handed back with it.
Outcome allocate_on(Stream stream, std::size_t bytes, void*& out, bool& pooled);
void release_on(Stream stream, void* pointer, bool pooled) noexcept;

// Allocations that are alive: 0 when nothing leaked.
Index live_allocations() noexcept;

// ---- devices ------------------------------------------------------------------------------------
struct DeviceInfo {
    char name[256] = "";
    int major = 0, minor = 0;  // compute capability
    std::size_t bytes = 0;     // of memory
};
Outcome device_info(int device, DeviceInfo& out);
// As CUDA writes versions: 13000 is 13.0; 0 for a driver that is not there.
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

// A buffer in the order of a stream: for scratch memory that is given up before the work is done.
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
