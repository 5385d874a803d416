// exp of an array by qkcore's own vector exp, from the library's headers: its rate on data in L1 is
// the ceiling of every kernel of ours that takes one exponential per entry.
#include <qk/vector_math.hpp>

#include "limits.hpp"

namespace limits {
namespace {

// n is a multiple of four packs. Four at a time: the polynomial is a chain of dependent FMAs.
template <class T>
bool run(const T* x, T* y, std::size_t n) {
    constexpr std::size_t width = qk::SimdTraits<T>::width;
    for (std::size_t i = 0; i < n; i += 4 * width) {
#pragma GCC unroll 4
        for (std::size_t k = 0; k < 4; ++k)
            qk::store<T>(y + i + k * width, qk::exp_nonpos(qk::load<T>(x + i + k * width)));
    }
    return true;
}

}  // namespace

bool exp_qkcore(const float* x, float* y, std::size_t n) { return run(x, y, n); }
bool exp_qkcore(const double* x, double* y, std::size_t n) { return run(x, y, n); }

}  // namespace limits
