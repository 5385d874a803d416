// exp of an array as qkcore's kernels compute their weights, from the library's headers. Its rate on data in L1 is an
// upper bound for every kernel of ours that computes one exponential per entry.
#include <qk/vector_math.hpp>

#include "limits.hpp"

namespace limits {
namespace {

// n is a multiple of two packs, the number that the kernels process at a time.
template <class T>
bool run(const T* x, T* y, std::size_t n) {
    constexpr std::size_t width = qk::SimdTraits<T>::width;
    for (std::size_t i = 0; i < n; i += 2 * width) {
        qk::Pack<T> packs[2] = {qk::load<T>(x + i), qk::load<T>(x + i + width)};
        qk::weight_exp_each<T, 2>(packs);
        qk::store<T>(y + i, packs[0]);
        qk::store<T>(y + i + width, packs[1]);
    }
    return true;
}

}  // namespace

bool exp_qkcore(const float* x, float* y, std::size_t n) { return run(x, y, n); }
bool exp_qkcore(const double* x, double* y, std::size_t n) { return run(x, y, n); }

}  // namespace limits
