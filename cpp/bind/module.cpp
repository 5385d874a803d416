// The CPU module: functions on arrays. Checks, classes and documentation are Python's.
#include "bind.hpp"
#include "qk/vector_math.hpp"
#include "qk/vector_trig.hpp"

PYBIND11_MODULE(QK_MODULE_NAME, m, py::mod_gil_not_used()) {
    m.doc() = "qkcore's engine, built for the instruction set named by ISA. Private.";
    m.attr("ISA") = QK_ISA_NAME;
    m.attr("SIMD_BYTES") = QK_SIMD_BYTES;
    m.attr("COMPILER") =
#if defined(__clang__)
        "clang " __clang_version__;
#else
        "gcc " __VERSION__;
#endif
    m.attr("EIGEN") = QK_EIGEN_VERSION;
    m.attr("EXP_MAX_ULP") = qk::exp_max_ulp;
    m.attr("LOG_MAX_ULP") = qk::log_max_ulp;
    m.attr("SINCOS_MAX_ERROR") = qk::sincos_max_error;
    register_arrays(m);
    register_engine(m);
    register_bridge(m);
    register_jacobian(m);
    register_low_rank(m);
    register_symmetric(m);
    register_gaussian(m);
    register_particles(m);
    register_simplex(m);
}
