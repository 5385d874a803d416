// The x86-64 level of the processor. This is plain C++ without libraries, because two programs use it: the module that
// chooses a build of the engine at import (cpuid.cpp), and the build, which can make an engine for this machine alone
// (cmake/machine_level.cpp).
//
// The levels are those of the x86-64 psABI. A level counts only if the processor has every feature of it and of the
// levels below, and the operating system saves the registers it uses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#define QK_X86_64 1
#else
#define QK_X86_64 0
#endif

namespace qk::cpu {

#if QK_X86_64

struct Registers {
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero when the processor does not know the leaf.
inline Registers cpuid(std::uint32_t leaf) {
    Registers r;
    if (__get_cpuid_count(leaf, 0, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
    return r;
}

// Register state saved by the operating system; inline assembly because the intrinsic needs -mxsave.
inline std::uint32_t xcr0() {
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

constexpr bool has(std::uint32_t word, std::uint32_t mask) { return (word & mask) == mask; }

constexpr std::uint32_t bits(std::initializer_list<int> positions) {
    std::uint32_t mask = 0;
    for (const int position : positions) mask |= std::uint32_t{1} << position;
    return mask;
}

inline std::string level() {
    const Registers basic = cpuid(1), extended = cpuid(7), amd = cpuid(0x80000001U);

    // leaf 1 ecx: SSE3 0, SSSE3 9, CMPXCHG16B 13, SSE4.1 19, SSE4.2 20, POPCNT 23; amd ecx: LAHF-SAHF 0
    if (!has(basic.ecx, bits({0, 9, 13, 19, 20, 23})) || !has(amd.ecx, bits({0}))) return "v1";

    // leaf 1 ecx: FMA 12, MOVBE 22, OSXSAVE 27, AVX 28, F16C 29; leaf 7 ebx: BMI1 3, AVX2 5, BMI2 8; amd ecx: LZCNT 5
    if (!has(basic.ecx, bits({12, 22, 27, 28, 29})) || !has(extended.ebx, bits({3, 5, 8})) ||
        !has(amd.ecx, bits({5})))
        return "v2";
    const std::uint32_t saved = xcr0();          // legal from here on: OSXSAVE is set
    if (!has(saved, bits({1, 2}))) return "v2";  // xmm, ymm

    // leaf 7 ebx: AVX512F 16, DQ 17, CD 28, BW 30, VL 31
    if (!has(extended.ebx, bits({16, 17, 28, 30, 31}))) return "v3";
    if (!has(saved, bits({5, 6, 7}))) return "v3";  // mask registers, upper halves of zmm0-15, zmm16-31
    return "v4";
}

inline std::string brand() {
    if (cpuid(0x80000000U).eax < 0x80000004U) return "unknown x86-64 processor";
    std::array<char, 49> text{};  // 3 leaves of 16 characters and a final zero
    for (std::size_t part = 0; part < 3; ++part) {
        const Registers r = cpuid(0x80000002U + static_cast<std::uint32_t>(part));
        std::memcpy(text.data() + 16 * part, &r, sizeof r);
    }
    const std::string name(text.data());
    const auto first = name.find_first_not_of(' ');
    if (first == std::string::npos) return "unknown x86-64 processor";
    return name.substr(first, name.find_last_not_of(' ') - first + 1);
}

#else

inline std::string level() { return "baseline"; }
inline std::string brand() { return "unknown processor"; }

#endif

}  // namespace qk::cpu
