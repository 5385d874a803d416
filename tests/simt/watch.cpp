// Device memory, and the memory watcher of the race build. That build compiles the kernels with -fsanitize=thread,
// which calls a function before every load and store. Those functions are ours and not libtsan's. This file is
// compiled without that flag.
#include "watch.hpp"

#include <cstring>
#include <map>
#include <sstream>
#include <vector>

#include <sys/mman.h>

#include "simt.hpp"

namespace simt {
namespace {

constexpr std::size_t arena_bytes = std::size_t{1} << 30;  // reserved, not used until touched
constexpr std::size_t red_zone = 4096;                     // on both sides of every allocation
constexpr unsigned char red = 0xA5;

unsigned char* arena = nullptr;
std::size_t arena_used = 0;
std::map<std::size_t, std::size_t> alive;  // offset -> bytes

}  // namespace

void* allocate(std::size_t bytes) {
    if (arena == nullptr)
        arena = static_cast<unsigned char*>(mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (alive.empty()) arena_used = 0;
    const std::size_t at = arena_used + red_zone;
    if (bytes > arena_bytes || at + bytes + red_zone + 64 > arena_bytes) return nullptr;
    std::memset(arena + at - red_zone, red, red_zone);
    std::memset(arena + at, 0xFF, bytes);
    std::memset(arena + at + bytes, red, red_zone);
    alive[at] = bytes;
    arena_used = (at + bytes + red_zone + 63) / 64 * 64;
    watch_forget(arena + at, bytes);
    return arena + at;
}

void release(void* pointer) {
    const std::size_t at = static_cast<std::size_t>(static_cast<unsigned char*>(pointer) - arena);
    const std::size_t bytes = alive.at(at);
    for (std::size_t i = 0; i < red_zone; ++i)
        if (arena[at - red_zone + i] != red || arena[at + bytes + i] != red) {
            std::ostringstream out;
            out << "write outside an allocation of " << bytes << " bytes";
            report(out.str());
            break;
        }
    alive.erase(at);
}

void mark_written(const void* pointer, std::size_t bytes) { watch_written(pointer, bytes); }

Place place_of(const void* at, std::size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(at);
    if (const unsigned char* base = shared_base(); p >= base && p < base + shared_capacity)
        return inside_shared_array(static_cast<std::size_t>(p - base), bytes) ? Place::shared
                                                                              : Place::outside;
    if (arena == nullptr || p < arena || p >= arena + arena_bytes) return Place::elsewhere;
    const std::size_t offset = static_cast<std::size_t>(p - arena);
    auto it = alive.upper_bound(offset);
    if (it == alive.begin()) return Place::outside;
    --it;
    return offset + bytes <= it->first + it->second ? Place::device : Place::outside;
}

std::size_t device_offset(const void* at) {
    return static_cast<std::size_t>(static_cast<const unsigned char*>(at) - arena);
}

#if !defined(QK_SIMT_RACES)

bool watches_memory() { return false; }
void watch_access(const void*, std::size_t, bool, bool, const void*) {}
void watch_reset_shared() {}
void watch_written(const void*, std::size_t) {}
void watch_forget(const void*, std::size_t) {}

#else

bool watches_memory() { return true; }

namespace {

struct Access {
    std::uint32_t launch = 0, block = 0, thread = 0, barriers = 0, warp_syncs = 0;
    bool atomic = false;
    const void* pc = nullptr;
};

// The last accesses to four bytes: the last write, and two later reads, from different warps if there are any.
struct Cell {
    Access write, read[2];
    bool written = false;
};
std::map<std::size_t, std::vector<Cell>> device_pages;  // arena offset / page -> cells
std::vector<Cell> shared_cells(shared_capacity / 4);
constexpr std::size_t page = 4096;

Cell& device_cell(std::size_t offset) {
    auto& cells = device_pages[offset / page];
    if (cells.empty()) cells.resize(page / 4);
    return cells[offset % page / 4];
}

bool unordered(const Access& before, bool atomic) {
    if (before.launch != now.launch || (before.atomic && atomic)) return false;
    if (before.block != now.block) return true;
    if (before.thread == now.thread || before.barriers != now.barriers) return false;
    return before.thread / 32 != now.thread / 32 || before.warp_syncs == now.warp_syncs;
}

void conflict(const char* kind, const Access& before, const void* pc) {
    const std::string first = source_line(before.pc), second = source_line(pc);
    report(std::string(before.block != now.block ? "race between blocks" : "race") + " (" + kind + ") at " +
           second + " with " + first);
}

void touch(Cell& cell, bool write, bool atomic, const void* pc) {
    const Access self{now.launch, now.block, now.thread, now.barriers, now.warp_syncs, atomic, pc};
    if (cell.written && unordered(cell.write, atomic))
        conflict(write ? "write, write" : "read after write", cell.write, pc);
    if (!write) {
        if (!cell.written) report("read of memory that nobody has written, at " + source_line(pc));
        Access& first = cell.read[0];
        const bool same_warp = first.launch == now.launch && first.block == now.block &&
                               first.barriers == now.barriers && first.thread / 32 == now.thread / 32 &&
                               first.thread != now.thread;
        const bool fresh = first.launch != now.launch || first.block != now.block ||
                           first.barriers != now.barriers || first.thread == now.thread;
        if (fresh)
            first = self;
        else if (!same_warp || cell.read[1].barriers != now.barriers || cell.read[1].block != now.block)
            cell.read[1] = self;
        return;
    }
    for (const Access& reader : cell.read)
        if (reader.launch != 0 && unordered(reader, atomic)) conflict("write after read", reader, pc);
    cell.write = self;
    cell.read[0] = cell.read[1] = Access{};
    cell.written = true;
}

}  // namespace

void watch_access(const void* at, std::size_t bytes, bool write, bool atomic, const void* pc) {
    if (!now.in_kernel) return;
    const Place place = place_of(at, bytes);
    if (place == Place::elsewhere) return;
    now.in_kernel = false;  // accesses made in here are not the kernel's
    if (place == Place::outside) {
        report(std::string(write ? "write" : "read") + " outside of memory at " + source_line(pc));
    } else {
        const auto* p = static_cast<const unsigned char*>(at);
        for (std::size_t b = 0; b < bytes; b += 4) {
            if (place == Place::shared)
                touch(shared_cells[static_cast<std::size_t>(p + b - shared_base()) / 4], write, atomic, pc);
            else
                touch(device_cell(device_offset(p + b)), write, atomic, pc);
        }
    }
    now.in_kernel = true;
}

void watch_reset_shared() { std::fill(shared_cells.begin(), shared_cells.end(), Cell{}); }
void watch_written(const void* at, std::size_t bytes) {
    for (std::size_t b = 0; b < bytes; b += 4) {
        Cell& cell = device_cell(device_offset(at) + b);
        cell = Cell{};
        cell.written = true;
    }
}
void watch_forget(const void* at, std::size_t bytes) {
    for (std::size_t b = 0; b < bytes + 4; b += 4) device_cell(device_offset(at) + b) = Cell{};
}

#endif

}  // namespace simt

#if defined(QK_SIMT_RACES)

// ---- the functions that -fsanitize=thread calls -------------------------------------------------
#define QK_HOOK(n)                                                                                        \
    void __tsan_read##n(void* p) { simt::watch_access(p, n, false, false, __builtin_return_address(0)); } \
    void __tsan_write##n(void* p) { simt::watch_access(p, n, true, false, __builtin_return_address(0)); } \
    void __tsan_unaligned_read##n(void* p) {                                                              \
        simt::watch_access(p, n, false, false, __builtin_return_address(0));                              \
    }                                                                                                     \
    void __tsan_unaligned_write##n(void* p) {                                                             \
        simt::watch_access(p, n, true, false, __builtin_return_address(0));                               \
    }
extern "C" {
QK_HOOK(1)
QK_HOOK(2)
QK_HOOK(4)
QK_HOOK(8)
QK_HOOK(16)
void __tsan_read_range(void* p, unsigned long n) {
    simt::watch_access(p, n, false, false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, unsigned long n) {
    simt::watch_access(p, n, true, false, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}

#endif
