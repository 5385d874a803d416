// Flows of Gaussian laws under attention: mean and covariance as one system of ODEs per trajectory, many
// trajectories at once (TPDE section 4). A velocity field that is affine, Gamma(x) = b + M x, gives
//   mean' = b + M mean,   cov' = M cov + cov M^T.
#pragma once

#include <functional>
#include <vector>

#include "integration.hpp"
#include "threads.hpp"

namespace qk {

// weighted: M = sum_h V_h G A_h, b = gain sum_h V_h mean, with G = cov, or cov + mean mean^T with `raw_moment`:
//           softmax (gain 1), linear attention expanded from softmax (gain 1/epsilon), plain linear (gain 0, raw).
// l2:       M = 2 sum_h V_h B_h Q_h, B = cov K^T (I + 2 K cov K^T)^-1, b = sum_h V_h (mean - 2 B K mean).
// sinkhorn: M = sum_h V_h N_h / epsilon, b = sum_h V_h (mean - N_h mean) / epsilon, with mean + N (x - mean) the mean of
//           y given x under the entropic coupling of the law with itself.
enum class GaussianField { weighted, l2, sinkhorn };

// Matrices (n_trajectories or 1, heads, d, d), contiguous; one set for all trajectories when `shared`.
template <class T>
struct MatrixStack {
    const T* data = nullptr;
    bool shared = true;
};

template <class T>
struct GaussianProblem {
    GaussianField field = GaussianField::weighted;
    Index d = 0, heads = 1, n = 0;
    MatrixStack<T> score;  // A, or K for l2
    MatrixStack<T> query;  // Q for l2, otherwise not read
    MatrixStack<T> value;  // V
    T gain = 1;            // weighted
    bool raw_moment = false;
    T epsilon = 1;            // sinkhorn
    const T* mean = nullptr;  // (n, d)
    const T* cov = nullptr;   // (n, d, d), symmetric
};

// min_step, max_step and first_step are ignored: steps are as long as the tolerances allow.
struct GaussianOptions : IntegrationOptions {
    GaussianOptions() : IntegrationOptions{.method = Method::euler, .rtol = 1e-8, .atol = 1e-10} {}

    // If true, the covariance is P cov P^T, the covariance of particles that the method moves by P. Otherwise the
    // method is applied to the ODE of the covariance.
    bool pushforward = false;
    Index n_steps = 0;      // equal steps; 0: steps that adapt
    Index store_every = 1;  // of equal steps; the start and the end are always stored
    std::vector<double>
        output;  // of steps that adapt: times after t0 that are stored, rising, the last of them t1
    double max_growth = 1e8;  // a trajectory blows up when its size has grown by this factor
    bool judge_mean = false;  // size: |cov|, or the larger of |cov| and |mean|^2
    std::function<void(double)> report;
};

// How one trajectory ended. A mark is a state whose growth per step was still resolved (at most a tenth). `mark` is the
// last one, `earlier` is one at half its size or less, and `first` is the first at twice the size of the start. growth
// = d log(size) / dt.
struct GaussianOutcome {
    FlowStatus end = FlowStatus::finished;
    double t = 0;  // of the last state, which is finite
    double start_size = 0, size = 0, growth = 0;
    double mark_t = 0, mark_size = 0, mark_growth = 0;
    double earlier_t = 0, earlier_size = 0, earlier_growth = 0;
    double first_t = 0, first_size = 0;
    bool positive = true;  // no eigenvalue of cov below minus a tenth of its size, at any mark
    Index n_steps = 0, n_rejected = 0;
};

// Where results go: states (n_stored, n, d) and (n_stored, n, d, d); rates (mean', cov') of the last states. A
// trajectory that has ended keeps its last state.
template <class T>
struct GaussianResult {
    T *mean = nullptr, *cov = nullptr;
    T *mean_rate = nullptr, *cov_rate = nullptr;
    GaussianOutcome* outcome = nullptr;
};

inline Index gaussian_stored(const GaussianOptions& o) {
    if (o.n_steps == 0) return 1 + static_cast<Index>(o.output.size());
    return 1 + (o.n_steps + o.store_every - 1) / o.store_every;
}

// Whether the library of qk/blas.hpp would make flows of this kind and dimension faster.
bool gaussian_wants_blas(GaussianField field, Index d);

// Explicit methods use the form that `options` name; implicit ones need double precision and the covariance form.
template <class T>
void gaussian_flow(const GaussianProblem<T>& problem, const GaussianOptions& options,
                   const GaussianResult<T>& result, const Run& run);

}  // namespace qk
