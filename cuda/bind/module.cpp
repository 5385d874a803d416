// The Python module: functions on arrays that other libraries share by DLPack. It is compiled twice, over CUDA's
// runtime and, for the tests, over the SIMT layer.
#include <nanobind/nanobind.h>

#include "arrays.hpp"

#if defined(QK_SIMT_MODULE)
namespace qk::cuda {
void register_simt(nb::module_& module);  // tests/simt/register_simt.cpp
}
#endif

// Two levels of macros, so that the name is expanded before it is pasted.
#define QK_NB_MODULE(name, variable) NB_MODULE(name, variable)

QK_NB_MODULE(QK_MODULE_NAME, module) {
    module.attr("version") = QKCORE_VERSION;
    qk::cuda::register_arrays(module);
    qk::cuda::register_rows(module);
    qk::cuda::register_bridges(module);
    qk::cuda::register_flows(module);
    qk::cuda::register_vectors(module);
#if defined(QK_SIMT_MODULE)
    qk::cuda::register_simt(module);
#endif
}
