#include "sweep.hpp"

namespace qk::cuda {

template <class T>
std::size_t workspace_bytes(const MarginalTask<T>& task) {
    return marginal_workspace<Chosen>(task);
}
template <class T>
Outcome marginals(const MarginalTask<T>& task, Workspace room, Stream stream) {
    return run_marginals<Chosen>(task, room, stream);
}
template <class T>
std::size_t workspace_bytes(const SweepTask<T>& task) {
    return sweep_workspace<Chosen>(task);
}
template <class T>
Outcome sinkhorn_sweep(const SweepTask<T>& task, Workspace room, Stream stream) {
    return run_sweep<Chosen>(task, room, stream);
}
template <class T>
Outcome materialize(const DenseTask<T>& task, Stream stream) {
    return run_dense<Chosen>(task, stream);
}

#define QK_INSTANCE(Config, T)                                                  \
    template std::size_t workspace_bytes<T>(const MarginalTask<T>&);            \
    template Outcome marginals<T>(const MarginalTask<T>&, Workspace, Stream);   \
    template std::size_t workspace_bytes<T>(const SweepTask<T>&);               \
    template Outcome sinkhorn_sweep<T>(const SweepTask<T>&, Workspace, Stream); \
    template Outcome materialize<T>(const DenseTask<T>&, Stream);
QK_CUDA_REALS(QK_INSTANCE, Chosen)

}  // namespace qk::cuda
