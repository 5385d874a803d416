// Rates of one Gaussian law in many dimensions, by the products of a BLAS library.
#pragma once

#include <memory>

#include "fields/gaussian_field.hpp"
#include "qk/blas.hpp"

namespace qk {

// Of the first trajectory of the problem; its arrays are those of a single law (LawLayout).
template <class T>
std::unique_ptr<RatesOfLaws<T>> blas_rates(const GaussianProblem<T>& problem);

}  // namespace qk
