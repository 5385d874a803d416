#include "gaussian.hpp"

namespace qk::cuda {

template <class T>
Outcome gaussian_steps(const GaussianTask<T>& task, Stream stream) {
    return run_gaussian<Chosen>(task, stream);
}

#define QK_INSTANCE(Config, T) template Outcome gaussian_steps<T>(const GaussianTask<T>&, Stream);
QK_CUDA_REALS(QK_INSTANCE, Chosen)

}  // namespace qk::cuda
