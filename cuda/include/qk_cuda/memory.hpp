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

// Allocations that are alive: 0 when nothing leaked.
Index live_allocations() noexcept;

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

}  // namespace qk::cuda
