// The engine walks tiles of scores, which it computes on the fly or reads, and reduces them.
// Each function takes a batch of independent problems (equal or ragged sizes) in one call.
#pragma once

#include <vector>

#include "problem.hpp"
#include "threads.hpp"

namespace qk {

enum class Weight { softmax, exp, linear, relu, sigmoid };

enum class Status {
    ok,
    interrupted,
    overflow,  // a score or a result left the range of the type
    negative,  // only from sweeps: a sum of entries that has to be positive is not
};

// What to compute for each row i of one problem; null outputs are skipped.
template <class T>
struct RowTask {
    Problem<T> problem;
    MatrixView<T> values;      // n_cols x n_values, for `product`
    T* log_sum_exp = nullptr;  // log sum_j exp(s_ij); softmax and exp only
    T* peak = nullptr;         // the same in two parts: max_j s_ij, one of the scores exactly,
    T* log_sum = nullptr;      // and log sum_j exp(s_ij - peak_i); both 0 for rows in which all is masked
    T* expected = nullptr;     // sum_j p_ij s_ij, p the row softmax
    T* entropy = nullptr;      // -sum_j p_ij log p_ij
    T* product = nullptr;      // n_rows x n_values, row-major: sum_j w_ij v_j
};

// Rows in which everything is masked get log_sum_exp = -inf and zeros elsewhere. Results have the same bits for any
// number of threads, because how rows and columns are cut depends on the shapes alone.
template <class T>
Status reduce_rows(const std::vector<RowTask<T>>& tasks, Weight weight, Index n_values, const Run& run);

// Row and column sums of exp(s_ij), in one pass. Results have the same bits for the same number of threads.
template <class T>
struct MarginalTask {
    Problem<T> problem;
    T* rows = nullptr;
    T* cols = nullptr;
};
template <class T>
Status marginals(const std::vector<MarginalTask<T>>& tasks, const Run& run);

// Writes w(s_ij) into a row-major array; for softmax the row softmax. If raw is true it writes the scores (masked =
// -inf).
template <class T>
struct DenseTask {
    Problem<T> problem;
    T* out = nullptr;
    Index row_stride = 0;
};
template <class T>
Status materialize(const std::vector<DenseTask<T>>& tasks, bool raw, Weight weight, const Run& run);

// out_i = sum_j exp(s_ij) e^{i theta_ij} v_j with complex v. Complex numbers are pairs of reals: `values`
// holds (re, im) of each column of v, `turned` holds (re, im) of i v; both are n_cols x n_values.
template <class T>
struct PhaseTask {
    Problem<T> problem;
    Problem<T> phases;  // theta
    MatrixView<T> values;
    MatrixView<T> turned;
    T* out = nullptr;  // n_rows x n_values, row-major
};
template <class T>
Status apply_phases(const std::vector<PhaseTask<T>>& tasks, Index n_values, const Run& run);

// What compare_rows finds for one row, with d_j = exp(a_j) - exp(b_j).
struct RowComparison {
    double absolute = 0;  // sum |d_j|
    double squares = 0;   // sum d_j^2
    double tilt = 0;      // sum d_j (a_j - b_j); infinite when one of the two weights is 0
    double largest = 0;   // the d_j of largest magnitude
    double top = 0;       // max exp(a_j)
    Index where = 0;      // the j of `largest`
};
template <class T>
struct CompareTask {
    Problem<T> a, b;
    RowComparison* rows = nullptr;
};
template <class T>
Status compare_rows(const std::vector<CompareTask<T>>& tasks, const Run& run);

}  // namespace qk
