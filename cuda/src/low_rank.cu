#include "low_rank.hpp"

namespace qk::cuda {

template <class T>
std::size_t workspace_bytes(const FactoredTask<T>& task) {
    return factored_workspace(task);
}
template <class T>
Outcome factored_product(const FactoredTask<T>& task, Workspace room, Stream stream) {
    return run_factored<Chosen>(task, room, stream);
}

#define QK_INSTANCE(Config, T)                                       \
    template std::size_t workspace_bytes<T>(const FactoredTask<T>&); \
    template Outcome factored_product<T>(const FactoredTask<T>&, Workspace, Stream);
QK_CUDA_REALS(QK_INSTANCE, Chosen)

}  // namespace qk::cuda
