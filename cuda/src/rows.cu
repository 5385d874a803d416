#include "rows.hpp"

namespace qk::cuda {

template <class T, class In>
std::size_t workspace_bytes(const RowTask<T, In>& task) {
    return row_workspace<Chosen, T, In>(task);
}
template <class T, class In>
Outcome reduce_rows(const RowTask<T, In>& task, Workspace room, Stream stream) {
    return run_rows<Chosen, T, In>(task, room, stream);
}

#define QK_INSTANCE(Config, T, In)                                                 \
    template std::size_t workspace_bytes<T, In>(const RowTask<T, In>&);            \
    template Outcome reduce_rows<T, In>(const RowTask<T, In>&, Workspace, Stream); \
    template Outcome run_rows<Config, T, In>(const RowTask<T, In>&, Workspace, Stream);
QK_CUDA_INPUTS(QK_INSTANCE, Chosen)

}  // namespace qk::cuda
