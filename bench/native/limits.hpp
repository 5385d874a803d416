// The functions that each file of probes gives to limits.cpp.
//
// The exp probes live in their own files because they must be compiled differently: libmvec is only
// reachable under -ffast-math, which must not leak into the probe of qkcore's own exp.
#pragma once

#include <cstddef>

namespace limits {

// y[i] = exp(x[i]). Returns false when this build has no such exp; the caller then leaves the figure out.
bool exp_libmvec(const float* x, float* y, std::size_t n);
bool exp_libmvec(const double* x, double* y, std::size_t n);
bool exp_qkcore(const float* x, float* y, std::size_t n);
bool exp_qkcore(const double* x, double* y, std::size_t n);

}  // namespace limits
