// Marks functions that CPU and CUDA code share. For a plain C++ compiler the macros are empty.
#pragma once

#if defined(__CUDACC__)
#define QK_HD __host__ __device__
#define QK_INLINE __forceinline__
#else
#define QK_HD
#define QK_INLINE inline __attribute__((always_inline))
#endif
