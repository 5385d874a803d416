#include "bridge/iterate.hpp"
#include "qk/scalar_math.hpp"

namespace qk {
namespace {

// How far a step goes towards the row update, and how much of the last step is added to it.
struct Pace {
    double step, momentum;
};
constexpr Pace averaged{0.5, 0.0};
// With r = log mu - lse - g, small errors e of g give r = -(1 + P) e, where P is the stochastic kernel of the solution.
// If the kernel is positive semi-definite, its eigenvalues lie in [0, 1]. Heavy-ball steps for the spectrum [1, 2] then
// reduce e by 0.17 per visit; the averaged update reduces it by 0.5 at worst.
constexpr Pace heavy_ball{0.6862915010152397,   // (2 / (1 + sqrt 2))^2
                          0.0294372515228595};  // ((sqrt 2 - 1) / (sqrt 2 + 1))^2
constexpr double near = 0.5;                    // the error below which the problem is nearly linear

}  // namespace

void symmetric(Iterate& at) {
    at.g.array() -= at.log_unit / 2;  // both potentials take half of the unit of mass
    auto best = infinity<double>();
    Index since_best = 0;
    bool cautious = !at.options.positive_semidefinite, came_from_afar = true;
    Iterate::Vector before = at.g;
    const RowMass nothing = [](Index, double) { return 0.0; };
    for (;;) {
        ++at.state.n_visits;
        if (!at.went_through(at.sweep.rows(at.g.data(), nothing, at.lse.data(), nullptr, at.run))) return;
        double error = 0;
        for (Index i = 0; i < at.mu.size(); ++i) {
            if (at.mu[i] == 0) continue;
            if (at.lse[i] == log_of_nothing) {
                at.end(BridgeStatus::infeasible);
                return;
            }
            error += std::abs(std::exp(at.g[i] + at.lse[i]) - at.mu[i]);
        }
        at.f = at.g;
        at.note(error);
        if (error <= at.options.tol) {
            at.end(BridgeStatus::converged);
            return;
        }
        if (at.limited()) return;
        cautious = cautious || error > 2 * best || !std::isfinite(error);
        if (error < 0.99 * best) {
            best = error;
            since_best = 0;
        } else if (++since_best > Iterate::patience) {
            at.end(BridgeStatus::stagnated);
            return;
        }
        Pace pace = cautious || error > near ? averaged : heavy_ball;
        // A step that began far from the solution says nothing about the nearly linear problem.
        if (came_from_afar) pace.momentum = 0;
        came_from_afar = error > near;
        for (Index i = 0; i < at.mu.size(); ++i) {
            if (at.mu[i] == 0) continue;
            const double now = at.g[i];
            at.g[i] += pace.step * (at.log_mu[i] - at.lse[i] - now) + pace.momentum * (now - before[i]);
            before[i] = now;
        }
    }
}

}  // namespace qk
