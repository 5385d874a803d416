// Non-owning views (strides in elements, of any sign) and aligned scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace qk {

using Index = std::int64_t;

template <class T>
struct VectorView {
    const T* data = nullptr;
    Index stride = 0;

    const T& operator[](Index i) const { return data[i * stride]; }
};

template <class T>
struct MatrixView {
    const T* data = nullptr;
    Index row_stride = 0;
    Index col_stride = 0;

    const T& operator()(Index i, Index j) const { return data[i * row_stride + j * col_stride]; }
};

// Whether the columns, and not the rows, lie contiguously in memory.
template <class T>
bool column_major(const MatrixView<T>& m) {
    return m.row_stride == 1 && m.col_stride != 1;
}

// Asks the system for large pages, for memory to which nothing has been written yet. With pages of 4 KB the page faults
// take as long as filling the memory does, and returning it takes 0.1 s for each GB. This is only advice to the system.
inline void ask_for_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
    constexpr std::size_t small = 4096, worthwhile = std::size_t{4} << 20;
    if (bytes < worthwhile) return;
    const std::size_t before = (small - reinterpret_cast<std::uintptr_t>(memory) % small) % small;
    (void)madvise(static_cast<char*>(memory) + before, (bytes - before) / small * small, MADV_HUGEPAGE);
#endif
}

// Memory aligned to a cache line, or to a large page if it takes two or more of these; null if there is none.
inline void* allocate_aligned(std::size_t bytes) {
    constexpr std::size_t line = 64, page = std::size_t{2} << 20;
    if (bytes >= 2 * page) {
        const std::size_t whole = (bytes + page - 1) / page * page;
        void* memory = std::aligned_alloc(page, whole);
        if (memory != nullptr) ask_for_large_pages(memory, whole);
        return memory;
    }
    return std::aligned_alloc(line, (bytes + line - 1) / line * line);
}

// Uninitialised memory aligned to a cache line. It grows and never shrinks, because scratch memory is reused.
template <class T>
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(Index size) { reserve(size); }

    void reserve(Index size) {
        if (size <= capacity_) return;
        constexpr std::size_t most = std::numeric_limits<std::size_t>::max() / 2;
        if (static_cast<std::uint64_t>(size) > most / sizeof(T)) throw std::bad_alloc();
        data_.reset(static_cast<T*>(allocate_aligned(static_cast<std::size_t>(size) * sizeof(T))));
        if (!data_) {
            capacity_ = 0;
            throw std::bad_alloc();
        }
        capacity_ = size;
    }
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    T& operator[](Index i) { return data_.get()[i]; }
    const T& operator[](Index i) const { return data_.get()[i]; }

private:
    struct Free {
        void operator()(T* p) const { std::free(p); }
    };
    std::unique_ptr<T, Free> data_;
    Index capacity_ = 0;
};

inline constexpr Index round_up(Index n, Index multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace qk
