// Scalar arithmetic under the same names as the SIMD packs of simd.hpp, so that one functor serves
// a CUDA thread, a SIMD pack and the scalar tail of a loop.
#pragma once

#include <cmath>

#include "macros.hpp"

namespace qk {

template <class T>
struct is_scalar_real {
    static constexpr bool value = false;
};
template <>
struct is_scalar_real<float> {
    static constexpr bool value = true;
};
template <>
struct is_scalar_real<double> {
    static constexpr bool value = true;
};

// Infinities without <limits>, which device code cannot use.
template <class T>
QK_HD QK_INLINE T infinity() {
    return static_cast<T>(HUGE_VAL);
}

QK_HD QK_INLINE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
QK_HD QK_INLINE double fma(double a, double b, double c) { return ::fma(a, b, c); }

// c - a*b
QK_HD QK_INLINE float fnma(float a, float b, float c) { return ::fmaf(-a, b, c); }
QK_HD QK_INLINE double fnma(double a, double b, double c) { return ::fma(-a, b, c); }

QK_HD QK_INLINE float max(float a, float b) { return a > b ? a : b; }
QK_HD QK_INLINE double max(double a, double b) { return a > b ? a : b; }

QK_HD QK_INLINE float abs(float x) { return ::fabsf(x); }
QK_HD QK_INLINE double abs(double x) { return ::fabs(x); }

QK_HD QK_INLINE float exp(float x) { return ::expf(x); }
QK_HD QK_INLINE double exp(double x) { return ::exp(x); }

// exp for arguments that cannot overflow (softmax: x <= 0); for scalars it is the plain exp.
QK_HD QK_INLINE float exp_nonpos(float x) { return ::expf(x); }
QK_HD QK_INLINE double exp_nonpos(double x) { return ::exp(x); }

QK_HD QK_INLINE float log(float x) { return ::logf(x); }
QK_HD QK_INLINE double log(double x) { return ::log(x); }

template <class T>
QK_HD QK_INLINE T select(bool condition, T a, T b) {
    return condition ? a : b;
}

}  // namespace qk
