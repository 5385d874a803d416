// The CPU module: functions on arrays. Checks, classes and documentation are Python's. Compiled once; entry.cpp
// gives it its name at each instruction-set level.
#include <cstdlib>

#include "bind.hpp"
#include "qk/build_facts.hpp"

namespace {

// glibc gives the end of its heap back to the system as soon as 128 KB of it are free, and a short solve would then fault
// its vectors in anew at every call, which takes longer than the solve. It keeps twice the largest block of the
// system's that was ever freed: any program that has dropped an array of a megabyte has it so. Whoever sets glibc's
// thresholds (MALLOC_TRIM_THRESHOLD_) is left with them.
void keep_freed_memory() {
#if defined(__GLIBC__)
    constexpr std::size_t block = std::size_t{1} << 20;
    void* volatile memory = std::malloc(block);
    std::free(memory);
#endif
}

}  // namespace

PYBIND11_MODULE(_cpu, m, py::mod_gil_not_used()) {
    const qk::BuildFacts facts = qk::build_facts();
    m.doc() = "qkcore's engine, built for the instruction set named by ISA. Private.";
    m.attr("ISA") = facts.isa;
    m.attr("SIMD_BYTES") = facts.simd_bytes;
    m.attr("COMPILER") = facts.compiler;
    m.attr("EIGEN") = facts.eigen;
    m.attr("EXP_MAX_ULP") = facts.exp_max_ulp;
    m.attr("LOG_MAX_ULP") = facts.log_max_ulp;
    m.attr("SINCOS_MAX_ERROR") = facts.sincos_max_error;
    register_arrays(m);
    register_engine(m);
    register_bridge(m);
    register_jacobian(m);
    register_low_rank(m);
    register_symmetric(m);
    register_gaussian(m);
    register_particles(m);
    register_simplex(m);
    keep_freed_memory();
}
