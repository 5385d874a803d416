// The CPU module: functions on arrays. Checks, classes and documentation are in Python. It is compiled once; entry.cpp
// gives it its name at each instruction-set level.
#include "bind.hpp"
#include "qk/build_facts.hpp"

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
}
