#include "qk/build_facts.hpp"

#include "qk/vector_math.hpp"
#include "qk/vector_trig.hpp"

namespace qk {

BuildFacts build_facts() {
    return {
        .isa = QK_ISA_NAME,
#if defined(__clang__)
        .compiler = "clang " __clang_version__,
#else
        .compiler = "gcc " __VERSION__,
#endif
        .eigen = QK_EIGEN_VERSION,
        .simd_bytes = QK_SIMD_BYTES,
        .exp_max_ulp = exp_max_ulp,
        .log_max_ulp = log_max_ulp,
        .sincos_max_error = sincos_max_error,
    };
}

}  // namespace qk
