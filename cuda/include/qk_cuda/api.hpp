// The kernels as functions on device pointers. Each function checks its arguments, launches on the caller's stream,
// checks every launch and returns at once. The caller owns all memory: workspace_bytes(task) says how much scratch
// memory to pass. Results depend on the shapes and the task alone, bit for bit, because there are no floating-point
// atomics and every order is fixed.
#pragma once

#include "types.hpp"

namespace qk::cuda {

enum class Weight : int { softmax, exp, linear, relu, sigmoid };

struct Workspace {
    void* data = nullptr;
    std::size_t bytes = 0;
};

// ---- row reductions: log-sum-exp and products ---------------------------------------------------
// lse_i = log sum_j exp(s_ij), product_i = sum_j w_ij v_j; either may be null. Rows in which every entry is masked get
// -inf and 0. For columns pass transposed(scores). For a row softmax applied from the left, u P, pass
// transposed(scores) with the column bias -lse and Weight::exp.
template <class T, class In = T>
struct RowTask {
    Scores<T, In> scores;
    Weight weight = Weight::softmax;
    Matrix<In> values;  // n_cols x n_values
    Index n_values = 0;
    T* log_sum_exp = nullptr;  // softmax and exp only
    T* product = nullptr;      // n_rows x n_values, row-major
    int column_splits = 0;     // 0: chosen from the shapes
};
template <class T, class In>
std::size_t workspace_bytes(const RowTask<T, In>& task);
template <class T, class In>
Outcome reduce_rows(const RowTask<T, In>& task, Workspace room, Stream stream);

// ---- one visit of exp(f_i + s_ij + g_j) ---------------------------------------------------------
// Row and column sums of exp(f_i + s_ij + g_j): f and g are biases of the scores.
template <class T>
struct MarginalTask {
    Scores<T> scores;
    T* rows = nullptr;  // may be null
    T* cols = nullptr;
};
template <class T>
std::size_t workspace_bytes(const MarginalTask<T>& task);
template <class T>
Outcome marginals(const MarginalTask<T>& task, Workspace room, Stream stream);

// exp(f_i + s_ij + g_j) itself, row-major, which is what the scaling sweep reads; with `raw` the scores.
template <class T>
struct DenseTask {
    Scores<T> scores;
    bool raw = false;
    T* out = nullptr;
    Index row_stride = 0;
};
template <class T>
Outcome materialize(const DenseTask<T>& task, Stream stream);

// ---- Sinkhorn -----------------------------------------------------------------------------------
// One iteration in one visit. The row update uses g, which is separate from the scores because it changes at every
// iteration:
//   lse_i = log sum_j exp(s_ij + g_j),  f_i = row_damping (log mu_i - lse_i),
//   columns_j = sum_i exp(f_i + s_ij + g_j),
// then g_new_j = col_damping (g_j + log nu_j - log columns_j) and residual = {sum |columns_j - nu_j|, number of
// columns with nu_j > 0 whose mass underflowed}. The g of such columns stays as it was.
// `shift` (may be null) is the lse of the iteration before. A strip of rows whose sums leave [1e-20, 1e20] relative to
// it is computed again, relative to the maximum of each row. With memory for a strip of weights per block each entry
// costs one exp; without, two.
template <class T>
struct SweepTask {
    Scores<T> scores;
    const T* g = nullptr;
    const T* mu = nullptr;
    const T* nu = nullptr;  // null: no update of g and no residual
    T row_damping = T(1), col_damping = T(1);
    const T* shift = nullptr;  // may be the same as lse
    T* lse = nullptr;
    T* f = nullptr;  // may be null
    T* columns = nullptr;
    T* g_new = nullptr;          // may be the same as g
    double* residual = nullptr;  // 2 numbers
    bool store_weights = true;
};
template <class T>
std::size_t workspace_bytes(const SweepTask<T>& task);
template <class T>
Outcome sinkhorn_sweep(const SweepTask<T>& task, Workspace room, Stream stream);

// The same iteration on a stored kernel P_ij = exp(s + f + g), each entry read from memory once:
//   u_i = mu_i / sum_j P_ij v_j,  columns_j = v_j sum_i u_i P_ij,  v_new_j = nu_j / sum_i u_i P_ij.
template <class T>
struct ScalingTask {
    Index n_rows = 0, n_cols = 0;
    const T* kernel = nullptr;
    Index row_stride = 0;
    const T *v = nullptr, *mu = nullptr, *nu = nullptr;
    T *u = nullptr, *columns = nullptr;
    T* v_new = nullptr;          // may be the same as v
    double* residual = nullptr;  // as for SweepTask
};
template <class T>
std::size_t workspace_bytes(const ScalingTask<T>& task);
template <class T>
Outcome scaling_sweep(const ScalingTask<T>& task, Workspace room, Stream stream);

// ---- low-rank products of experts ---------------------------------------------------------------
// K_ij = prod_e sum_c L_e(c, i) R_e(c, j), out (k x n_left) = z (k x n_right) K^T. Component c of point i of a factor
// is data[c * stride + i].
template <class T>
struct Factor {
    const T* data = nullptr;
    Index rank = 0;
    Index stride = 0;
};
template <class T>
struct FactoredTask {
    int n_experts = 0;
    Factor<T> left[max_terms], right[max_terms];
    Index n_left = 0, n_right = 0;
    const T* z = nullptr;
    Index k = 1;
    T* out = nullptr;
};
template <class T>
std::size_t workspace_bytes(const FactoredTask<T>& task);
template <class T>
Outcome factored_product(const FactoredTask<T>& task, Workspace room, Stream stream);

// ---- vectors ------------------------------------------------------------------------------------
// Figures of long vectors that host loops need, computed in one visit and summed in double in a fixed order. With b
// the two vectors are compared; b may be null, and otherwise has the shape of a. Infinities and NaN in a are counted
// and left out of the sums.
enum class Figure : int {
    nan,         // number of NaN in a
    plus_inf,    // number of +inf in a
    minus_inf,   // number of -inf in a
    largest,     // max |a|
    smallest,    // min a, +inf if there is none
    sum,         // sum a
    squares,     // sum a^2
    weight,      // sum b
    difference,  // sum |a - b|
    ratio,       // max |a - b| / b where b > 0
    dot,         // sum a b where b > 0
};
constexpr int n_figures = 11;
template <class In>
struct SummaryTask {
    Index n_rows = 0, n_cols = 0;
    Matrix<In> a;
    const In* b = nullptr;  // row-major
    double* figures = nullptr;
};
template <class In>
std::size_t workspace_bytes(const SummaryTask<In>& task);
template <class In>
Outcome summarize(const SummaryTask<In>& task, Workspace room, Stream stream);

// out_i from x_i, y_i and z_i. Arrays that an operation does not name may be null.
enum class VectorOp : int {
    affine,         // a x + b y + c (y may be null)
    minus_or_zero,  // -x, and 0 where x is infinite; -lse becomes a bias that normalises scores
    log,            // log x
    log_minus,      // a (log x - y), -inf where x = 0: the potential of a row with mass x and log-sum-exp y
    tilt,           // x exp(a y), 0 where x = 0: the marginal that a penalty leads to
    relative,       // x / (a + b max(|y|, |z|)): an error relative to its tolerance
};
template <class T>
struct VectorTask {
    VectorOp op = VectorOp::affine;
    Index n = 0;
    const T *x = nullptr, *y = nullptr, *z = nullptr;
    T a = T(1), b = T(0), c = T(0);
    T* out = nullptr;  // may be x, y or z
};
template <class T>
Outcome map_vector(const VectorTask<T>& task, Stream stream);

// out_i = scale <x_i, y_i>
template <class T>
struct RowDotTask {
    Index n = 0, dim = 0;
    Matrix<T> x, y;
    T scale = T(1);
    T* out = nullptr;
};
template <class T>
Outcome row_dots(const RowDotTask<T>& task, Stream stream);

// ---- particles ----------------------------------------------------------------------------------
// out_i (+)= scale * M x_i with M (d_out x d_in) row-major. This makes the queries, keys and values of a field.
template <class T>
struct ProjectTask {
    Index n = 0, d_in = 0, d_out = 0;
    const T* x = nullptr;
    const T* matrix = nullptr;
    T scale = T(1);
    bool accumulate = false;
    T* out = nullptr;
};
template <class T>
Outcome project(const ProjectTask<T>& task, Stream stream);

// out = x + h sum_s a_s k_s, over n numbers: the argument of a Runge-Kutta stage, or the step itself.
constexpr int max_stages = 8;
template <class T>
struct CombineTask {
    Index n = 0;
    const T* x = nullptr;
    int n_stages = 0;
    const T* k[max_stages] = {};
    T a[max_stages] = {};
    T h = T(0);
    T* out = nullptr;
};
template <class T>
Outcome combine(const CombineTask<T>& task, Stream stream);

// One velocity: v_i = sum over heads of V_h sum_j w(s^h_ij) x_j, with scores s^h from Q_h x_i and K_h x_j (dot
// products, or distances for L2 attention). Q and K are matrices (heads, d_head, d), V is (heads, d, d). `mean` divides
// the sum by n.
template <class T>
struct VelocityTask {
    Index n = 0, d = 0, d_head = 0, heads = 1;
    const T *x = nullptr, *Q = nullptr, *K = nullptr, *V = nullptr;
    Weight weight = Weight::softmax;
    FeatureKind kind = FeatureKind::dot;
    T scale = T(1);
    bool mean = false;
    Band band;
    const unsigned char* mask = nullptr;  // n x n, or null
    T* out = nullptr;
};
template <class T>
std::size_t workspace_bytes(const VelocityTask<T>& task);
template <class T>
Outcome velocity(const VelocityTask<T>& task, Workspace room, Stream stream);

// ---- Gaussian flows -----------------------------------------------------------------------------
// n_steps steps of mean' = b + M mean, cov' = M cov + cov M^T (qk/gaussian.hpp) for n trajectories of dimension d <= 8,
// by a Runge-Kutta method given as its tableau:
//   weighted: M = sum_h V_h G A_h, b = gain sum_h V_h mean, G = cov (+ mean mean^T with raw_moment)
//   l2:       M = 2 sum_h V_h B_h Q_h, B = cov K^T (I + 2 K cov K^T)^-1, b = sum_h V_h (mean - 2 B K mean)
enum class GaussianField : int { weighted, l2 };
constexpr int max_gaussian_dim = 8;
constexpr int max_gaussian_stages = 4;
struct Tableau {
    int n_stages = 1;
    double a[max_gaussian_stages][max_gaussian_stages] = {};
    double b[max_gaussian_stages] = {1};
};
template <class T>
struct GaussianTask {
    GaussianField field = GaussianField::weighted;
    Index n = 0;
    int d = 0, heads = 1;
    const T *score = nullptr, *query = nullptr, *value = nullptr;  // (n or 1, heads, d, d)
    bool shared = true;                                            // one set of matrices for all
    T gain = T(1);
    bool raw_moment = false;
    Tableau tableau;
    T h = T(0);
    Index n_steps = 1;
    T* mean = nullptr;  // (n, d), stepped in place
    T* cov = nullptr;   // (n, d, d)
};
template <class T>
Outcome gaussian_steps(const GaussianTask<T>& task, Stream stream);

}  // namespace qk::cuda
