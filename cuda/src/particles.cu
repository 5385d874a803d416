#include "particles.hpp"

namespace qk::cuda {

// These functions are compiled in rows.cu.
#define QK_ELSEWHERE(Config, T) \
    extern template Outcome run_rows<Config, T, T>(const RowTask<T, T>&, Workspace, Stream);
QK_CUDA_REALS(QK_ELSEWHERE, Chosen)

template <class T>
Outcome project(const ProjectTask<T>& task, Stream stream) {
    return run_project<Chosen>(task, stream);
}
template <class T>
Outcome combine(const CombineTask<T>& task, Stream stream) {
    return run_combine<Chosen>(task, stream);
}
template <class T>
std::size_t workspace_bytes(const VelocityTask<T>& task) {
    return velocity_workspace<Chosen>(task);
}
template <class T>
Outcome velocity(const VelocityTask<T>& task, Workspace room, Stream stream) {
    return run_velocity<Chosen>(task, room, stream);
}

#define QK_INSTANCE(Config, T)                                       \
    template Outcome project<T>(const ProjectTask<T>&, Stream);      \
    template Outcome combine<T>(const CombineTask<T>&, Stream);      \
    template std::size_t workspace_bytes<T>(const VelocityTask<T>&); \
    template Outcome velocity<T>(const VelocityTask<T>&, Workspace, Stream);
QK_CUDA_REALS(QK_INSTANCE, Chosen)

}  // namespace qk::cuda
