// The softmax's mobility J = diag(p) - p p^T: moments of p and eigenvalues, without forming the matrix.
//
// As sum p = 1, every eigenvalue that is neither 0 nor a repeated p_i solves the secular equation
//   g(lambda) = sum_i w_i / (p_i - lambda) = 0,   w_i = (multiplicity of p_i) p_i,
// which rises from -inf to +inf between neighbouring poles, so there is one root in each gap.
#pragma once

#include "threads.hpp"

namespace qk {

// The figures of one row of probabilities, after division by its sum. Sums leave the largest entry out,
// because near a vertex of the simplex 1 - p_max and the moments would otherwise cancel.
struct RowMobility {
    double largest = 0;  // p_max
    double tail = 0;     // 1 - p_max, as the sum of the other entries
    double second = 0;   // the sum of the other entries' squares
    double third = 0;    // the sum of the other entries' cubes
    double norm = 0;     // largest eigenvalue of J
    double least = 0;    // smallest eigenvalue of J that is not 0; 0 when there is none
};

// Which of the two extreme eigenvalues are wanted; each takes some ten visits of the row.
enum class Extremes { none, largest, both };

// One RowMobility per row.
template <class T>
void mobility_rows(MatrixView<T> p, Index n_rows, Index n_columns, Extremes wanted, RowMobility* out,
                   const Run& run);

// The n - 1 roots between the n poles, which are in increasing order; every weight is positive.
void secular_roots(const double* poles, const double* weights, Index n, double* roots, const Run& run);

}  // namespace qk
