// The mergeable state of an online softmax: tiles, lanes, warps and column splits all use it.
#pragma once

#include "scalar_math.hpp"

namespace qk {

// Represents sum_j exp(s_j) = sum * exp(max), and sum_j exp(s_j) (s_j - max) = tilt. The neutral
// element is (-inf, 0, 0). Code that keeps an accumulator acc = sum_j exp(s_j - max) v_j must multiply it
// by the factor that raise() or merge() returns.
template <class T>
struct SoftmaxState {
    T max = -infinity<T>();
    T sum = T(0);
    T tilt = T(0);  // only kept by reductions that ask for the expected score

    // Raises the reference to max(max, candidate); returns the factor for accumulators.
    QK_HD QK_INLINE T raise(T candidate) {
        if (!(candidate > max)) return T(1);
        // An empty state holds zeros. Factor 0 also clears accumulators that were never written.
        const T factor = max == -infinity<T>() ? T(0) : exp(max - candidate);
        tilt = factor == T(0) ? T(0) : factor * (tilt + sum * (max - candidate));
        sum *= factor;
        max = candidate;
        return factor;
    }

    // Merges another state into this one; the factors scale the two accumulators.
    QK_HD QK_INLINE void merge(SoftmaxState other, T& own_factor, T& other_factor) {
        own_factor = raise(other.max);
        other_factor = other.max == max ? T(1) : other.raise(max);
        sum += other.sum;
        tilt += other.tilt;
    }

    QK_HD QK_INLINE bool empty() const { return max == -infinity<T>(); }
    QK_HD QK_INLINE T log_sum_exp() const { return empty() ? max : max + log(sum); }
    QK_HD QK_INLINE T expected_score() const { return empty() ? T(0) : max + tilt / sum; }
    QK_HD QK_INLINE T entropy() const { return empty() ? T(0) : log(sum) - tilt / sum; }
};

}  // namespace qk
