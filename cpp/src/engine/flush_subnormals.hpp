// Treats subnormal numbers as zeros, on this thread and as long as the object lives.
//
// Weights of kernels with large beta fall below the smallest normal number by the million, and so do their partial sums. An
// operation on such a number takes an Intel processor over a hundred cycles: a bridge at a small temperature took ten
// times as long there as with zeros in their place. Only whole sums matter, and for these such terms are rounding errors.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace qk {

class FlushSubnormals {
public:
#if defined(__SSE2__)
    FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | results | operands); }
    ~FlushSubnormals() { _mm_setcsr(before_); }

private:
    static constexpr unsigned results = 0x8000, operands = 0x0040;  // FTZ and DAZ of MXCSR
    unsigned before_;

public:
#else
    FlushSubnormals() = default;  // ARM's processors are as fast with such numbers
#endif
    FlushSubnormals(const FlushSubnormals&) = delete;
    FlushSubnormals& operator=(const FlushSubnormals&) = delete;
};

}  // namespace qk
