// Rates of one Gaussian law in many dimensions, by products of whole matrices.
#pragma once

#include <memory>

#include "fields/gaussian_field.hpp"
#include "qk/blas.hpp"
#include "qk/threads.hpp"

namespace qk {

// Whether large_rates is available: Sinkhorn attention needs decompositions from a library (qk/blas.hpp).
template <class T>
bool has_large_rates(GaussianField field);

// The rates of the first trajectory of the problem, whose arrays are laid out as a single law (LawLayout). Products use
// the threads of the run.
template <class T>
std::unique_ptr<RatesOfLaws<T>> large_rates(const GaussianProblem<T>& problem, const Run& run);

}  // namespace qk
