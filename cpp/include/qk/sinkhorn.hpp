// Sinkhorn's problem: potentials f, g such that exp(f_i + s_ij + g_j) has row sums mu and column sums nu.
// The solver sees every kernel through Sweep. Potentials are natural logarithms, in double for both types.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "sweep.hpp"

namespace qk {

// The potential of weight 0, and the log-sum-exp of a row in which everything is masked.
constexpr double log_of_nothing = -std::numeric_limits<double>::infinity();

enum class BridgeMethod {
    alternating,
    relaxed,
    anderson,
    newton,
    symmetric,
    accelerated,
    annealed,
    automatic
};
enum class BridgeStatus {
    converged,
    iteration_limit,
    visit_limit,
    stagnated,
    infeasible,
    interrupted,
    overflow,
    negative_kernel  // K v or K^T u is not positive where there is mass
};

struct BridgeOptions {
    BridgeMethod method = BridgeMethod::alternating;
    double tol = 1e-9;             // L1 error of the column marginal, rows being met, as a share of the mass
    Index max_iterations = 10000;  // one error is noted in each
    Index max_visits = 10000;      // visits of all entries, including those that are no iterations
    // Weights of KL penalties on the marginals; infinite: a constraint.
    double row_penalty = std::numeric_limits<double>::infinity();
    double col_penalty = std::numeric_limits<double>::infinity();
    // For the method "symmetric": exp(s_ij) is known to be positive semi-definite, so it may use momentum.
    bool positive_semidefinite = false;
    // For the method "anderson": the number of changes from which it extrapolates. With a period above 1 it takes
    // Sinkhorn's steps. At every period-th one it also visits the extrapolated point, and keeps it if its error is
    // smaller.
    Index memory = 5, period = 1;
    std::function<void(Index, double)> report;  // after each iteration: visits so far, error
    // Called with the potentials f and g after each iteration over the kernel itself, but not over easier ones. If it
    // returns true, the solve ends and counts as converged.
    std::function<bool(const std::vector<double>&, const std::vector<double>&)> observe;
};

struct BridgeState {
    std::vector<double> f, g;
    std::vector<double> errors;  // after each iteration
    Index n_visits = 0;
    double relaxation = 1.0;
    std::vector<std::string> methods;  // the methods that were used, in this order
    BridgeStatus status = BridgeStatus::iteration_limit;
};

// `state` holds the starting potentials on entry and the solution on return, in which f follows from g by an exact row
// update. Weights may be 0; their potentials are -inf.
void solve_bridge(Sweep& sweep, const std::vector<double>& mu, const std::vector<double>& nu,
                  const BridgeOptions& options, BridgeState& state, const Run& run);

}  // namespace qk
