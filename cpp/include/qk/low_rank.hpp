// Products with Hadamard products of low-rank matrices, through their factors:
//   K_ij = prod_e sum_c L_e(c, i) R_e(c, j),   K z = sum over (c_0, c_1, ...) of prod_e L_e(c_e, i) H(c_0, c_1, ...)
// with H = sum_j z_j prod_e R_e(c_e, j). The right factors are read once, then the left ones.
#pragma once

#include <vector>

#include "threads.hpp"

namespace qk {

// One factor of one expert: component c of point i is data[c * stride + i].
template <class T>
struct Factor {
    const T* data = nullptr;
    Index rank = 0;
    Index stride = 0;
};

// The factors of all experts on one side (rows or columns) of the kernel.
template <class T>
struct FactorSide {
    std::vector<Factor<T>> experts;
    Index n_points = 0;
};

// out (k x left.n_points) = z (k x right.n_points) times K^T, both row-major. The sizes alone fix the order of all
// sums, so the number of threads does not change a bit. Partial sums of long columns are joined in double.
template <class T>
void factored_product(const FactorSide<T>& left, const FactorSide<T>& right, const T* z, Index k, T* out,
                      const Run& run);

// The negative entries u_i K_ij v_j of a scaled kernel (u, v >= 0). Only those with K_ij < -row_slack_i col_slack_j
// count, because smaller ones may be negative by rounding alone.
struct NegativeEntries {
    Index count = 0;
    double smallest = 0;  // the smallest of all u_i K_ij v_j
    double mass = 0;      // the sum of the entries that count
};
template <class T>
struct EntryScales {
    const T *u = nullptr, *v = nullptr;
    const T *row_slack = nullptr, *col_slack = nullptr;
};
template <class T>
NegativeEntries negative_entries(const FactorSide<T>& left, const FactorSide<T>& right,
                                 const EntryScales<T>& scales, const Run& run);

}  // namespace qk
