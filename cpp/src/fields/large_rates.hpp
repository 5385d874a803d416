// Rates of one Gaussian law in many dimensions, by products of whole matrices.
#pragma once

#include <memory>

#include "fields/gaussian_field.hpp"
#include "qk/blas.hpp"
#include "qk/threads.hpp"

namespace qk {

// Whether large_rates can be had: Sinkhorn attention takes decompositions from a library (qk/blas.hpp).
template <class T>
bool has_large_rates(GaussianField field);

// Of the first trajectory of the problem; its arrays are those of a single law (LawLayout). Products use the threads
// of the run.
template <class T>
std::unique_ptr<RatesOfLaws<T>> large_rates(const GaussianProblem<T>& problem, const Run& run);

}  // namespace qk
