// exp of an array by glibc's vector library. This file alone is compiled with -ffast-math, because
// glibc declares the vector variants of exp only then.
#include <cmath>

#include "limits.hpp"

namespace limits {
namespace {

template <class T>
bool run(const T* __restrict x, T* __restrict y, std::size_t n) {
#if defined(__GLIBC__) && defined(__x86_64__) && defined(__FAST_MATH__)
#pragma omp simd
    for (std::size_t i = 0; i < n; ++i) y[i] = std::exp(x[i]);
    return true;
#else
    (void)x, (void)y, (void)n;
    return false;
#endif
}

}  // namespace

bool exp_libmvec(const float* x, float* y, std::size_t n) { return run(x, y, n); }
bool exp_libmvec(const double* x, double* y, std::size_t n) { return run(x, y, n); }

}  // namespace limits
