// What the scheduler and the memory watcher tell each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace simt {

constexpr std::size_t shared_capacity = 228 * 1024;  // the largest that any device has

// The thread that runs now. Two accesses of one block are ordered if a barrier lies between them, or, within a warp, a
// __syncwarp of the whole warp. Shuffles do not order memory.
struct Now {
    bool in_kernel = false;
    std::uint32_t launch = 0, block = 0;
    std::uint32_t thread = 0;
    std::uint32_t barriers = 0, warp_syncs = 0;
};
extern Now now;

unsigned char* shared_base();
bool inside_shared_array(std::size_t at, std::size_t bytes);

void report(const std::string& line);
std::string source_line(const void* pc);  // "" when it is not known

// `outside` is our memory, but in none of its arrays. `elsewhere` is not our memory.
enum class Place { elsewhere, shared, device, outside };
Place place_of(const void* at, std::size_t bytes);
std::size_t device_offset(const void* at);  // within the arena

void watch_access(const void* at, std::size_t bytes, bool write, bool atomic, const void* pc);
void watch_reset_shared();
void watch_written(const void* at, std::size_t bytes);
void watch_forget(const void* at, std::size_t bytes);

}  // namespace simt
