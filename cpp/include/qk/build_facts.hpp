// Facts about one build of the core. This file is compiled once for each instruction-set level, whereas the bindings
// are compiled once for all levels.
#pragma once

namespace qk {

struct BuildFacts {
    const char *isa, *compiler, *eigen;
    int simd_bytes;
    double exp_max_ulp, log_max_ulp, sincos_max_error;
};

BuildFacts build_facts();

}  // namespace qk
