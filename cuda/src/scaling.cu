#include "scaling.hpp"

namespace qk::cuda {

template <class T>
std::size_t workspace_bytes(const ScalingTask<T>& task) {
    return scaling_workspace<Chosen>(task);
}
template <class T>
Outcome scaling_sweep(const ScalingTask<T>& task, Workspace room, Stream stream) {
    return run_scaling<Chosen>(task, room, stream);
}

#define QK_INSTANCE(Config, T)                                      \
    template std::size_t workspace_bytes<T>(const ScalingTask<T>&); \
    template Outcome scaling_sweep<T>(const ScalingTask<T>&, Workspace, Stream);
QK_CUDA_REALS(QK_INSTANCE, Chosen)

}  // namespace qk::cuda
