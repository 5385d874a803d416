#include "vectors.hpp"

namespace qk::cuda {

template <class In>
std::size_t workspace_bytes(const SummaryTask<In>& task) {
    return summary_workspace<Chosen>(task);
}
template <class In>
Outcome summarize(const SummaryTask<In>& task, Workspace room, Stream stream) {
    return run_summary<Chosen>(task, room, stream);
}
template <class T>
Outcome map_vector(const VectorTask<T>& task, Stream stream) {
    return run_map<Chosen>(task, stream);
}
template <class T>
Outcome row_dots(const RowDotTask<T>& task, Stream stream) {
    return run_row_dots<Chosen>(task, stream);
}

#define QK_SUMMARY_INSTANCE(Config, T, In)                            \
    template std::size_t workspace_bytes<In>(const SummaryTask<In>&); \
    template Outcome summarize<In>(const SummaryTask<In>&, Workspace, Stream);
QK_CUDA_INPUTS(QK_SUMMARY_INSTANCE, Chosen)

#define QK_INSTANCE(Config, T)                                    \
    template Outcome map_vector<T>(const VectorTask<T>&, Stream); \
    template Outcome row_dots<T>(const RowDotTask<T>&, Stream);
QK_CUDA_REALS(QK_INSTANCE, Chosen)

}  // namespace qk::cuda
