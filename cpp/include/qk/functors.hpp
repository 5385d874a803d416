// Functors for the parts of the engine that differ from case to case: how a score accumulates, and what it weighs.
// Which entries exist is in masks.hpp. The value type is a scalar (CUDA thread, tail of a loop) or a SIMD pack.
#pragma once

#include "feature_kind.hpp"
#include "masks.hpp"
#include "scalar_math.hpp"
#if !defined(__CUDACC__)
// Argument-dependent lookup does not find packs, because they are built-in types. So their overloads must be
// declared before the templates below.
#include "vector_math.hpp"
#endif

namespace qk {

// ---- scores: s_ij = r_i + c_j + sum_k step(x_ik, y_jk) ---------------------------------------
// Every step names the kind of term that it serves. Steps of differences subtract (sign 1) or add (sign -1) a power of
// |x - y|. If both points are multiplied by point_factor(c), c > 0, that power is multiplied by c.

// <x, y>: dot products, and with biases the forward and backward divergences (DAC eqs 2-4).
struct DotStep {
    static constexpr FeatureKind kind = FeatureKind::dot;
    static constexpr int sign = 1;

    template <class V>
    QK_HD QK_INLINE static V step(V acc, V x, V y) {
        return fma(x, y, acc);
    }
};

// -(x - y)^2 by direct differences: no cancellation between nearby points.
struct DistanceStep {
    static constexpr FeatureKind kind = FeatureKind::distance;
    static constexpr int sign = 1;

    template <class T>
    static T point_factor(T c) {
        return std::sqrt(c);
    }

    template <class V>
    QK_HD QK_INLINE static V step(V acc, V x, V y) {
        const V diff = x - y;
        return fnma(diff, diff, acc);
    }
};

// +(x - y)^2: the negative directions of an indefinite metric W.
struct AntiDistanceStep : DistanceStep {
    static constexpr int sign = -1;

    template <class V>
    QK_HD QK_INLINE static V step(V acc, V x, V y) {
        const V diff = x - y;
        return fma(diff, diff, acc);
    }
};

// -|x - y|
struct L1Step {
    static constexpr FeatureKind kind = FeatureKind::l1;
    static constexpr int sign = 1;

    template <class T>
    static T point_factor(T c) {
        return c;
    }

    template <class V>
    QK_HD QK_INLINE static V step(V acc, V x, V y) {
        return acc - abs(x - y);
    }
};

// +|x - y|: terms that are subtracted.
struct AntiL1Step : L1Step {
    static constexpr int sign = -1;

    template <class V>
    QK_HD QK_INLINE static V step(V acc, V x, V y) {
        return acc + abs(x - y);
    }
};

template <class... Step>
struct Steps {};

// All steps, in the order in which the CPU packs features. Dot products come last, because they are added after the sum of
// differences has been scaled. A new power of differences needs a FeatureKind, two steps, and their place in this list.
using FeatureSteps = Steps<DistanceStep, AntiDistanceStep, L1Step, AntiL1Step, DotStep>;

// ---- weights: masked entries arrive as s = -inf and must weigh exactly 0 ----------------------

// exp(s - shift) with shift >= s up to rounding: the softmax and every shifted exponential.
struct ExpWeight {
    template <class V>
    QK_HD QK_INLINE static V of(V s, V shift) {
        return exp_nonpos(s - shift);
    }
};

struct LinearWeight {
    template <class V>
    QK_HD QK_INLINE static V of(V s) {
        return select(s == -infinity<V>(), V{}, s);
    }
};

struct ReluWeight {
    template <class V>
    QK_HD QK_INLINE static V of(V s) {
        return max(s, V{});
    }
};

// 1/(1 + e^-s), written with e^-|s| so that neither side overflows.
struct SigmoidWeight {
    template <class V>
    QK_HD QK_INLINE static V of(V s) {
        const V z = exp_nonpos(-max(s, -s));
        const V one = 1 - V{};
        return select(s < V{}, z, one) / (one + z);
    }
};

}  // namespace qk
