// Compiles and links the functors and the softmax state that CPU and CUDA share, as device code, in float and double.
// Nobody calls this kernel: it only shows that nvcc accepts the headers.

#include <cstdint>

#include "qk/functors.hpp"
#include "qk/softmax_state.hpp"

namespace qk_check {

// out_i = log sum_j exp(s_ij) over the kept entries, plus every weight once so that all of them are instantiated.
template <class T, class Step, class Mask>
__global__ void row_log_sum_exp(const T* x, const T* y, std::int64_t rows, std::int64_t columns,
                                std::int64_t depth, Mask mask, T* out) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= rows) return;

    qk::SoftmaxState<T> even, odd;
    T weights = T(0);
    for (std::int64_t j = 0; j < columns; ++j) {
        T score = mask.keep(i, j) ? T(0) : -qk::infinity<T>();
        for (std::int64_t k = 0; k < depth; ++k)
            score = Step::step(score, x[i * depth + k], y[j * depth + k]);

        qk::SoftmaxState<T>& state = j % 2 == 0 ? even : odd;
        state.raise(score);
        if (!state.empty()) state.sum += qk::ExpWeight::of(score, state.max);
        weights += qk::LinearWeight::of(score) + qk::ReluWeight::of(score) + qk::SigmoidWeight::of(score);
    }

    T even_factor, odd_factor;
    even.merge(odd, even_factor, odd_factor);
    out[i] = even.log_sum_exp() + even.expected_score() + even.entropy() + weights * even_factor * odd_factor;
}

template __global__ void row_log_sum_exp<float, qk::DotStep>(const float*, const float*, std::int64_t,
                                                             std::int64_t, std::int64_t, qk::Band, float*);
template __global__ void row_log_sum_exp<double, qk::DistanceStep>(const double*, const double*, std::int64_t,
                                                                   std::int64_t, std::int64_t, qk::DenseMask,
                                                                   double*);
template __global__ void row_log_sum_exp<float, qk::AntiDistanceStep>(const float*, const float*,
                                                                      std::int64_t, std::int64_t,
                                                                      std::int64_t, qk::DenseMask, float*);

}  // namespace qk_check

int main() {}
