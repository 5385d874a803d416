#include "bridge/iterate.hpp"
#include "qk/scalar_math.hpp"

namespace qk {

void symmetric(Iterate& at) {
    at.g.array() -= at.log_unit / 2;  // both potentials share the mass of an earlier result
    auto best = infinity<double>();
    Index since_best = 0;
    const RowMass nothing = [](Index, double) { return 0.0; };
    for (;;) {
        ++at.state.n_visits;
        const Status status = at.sweep.rows(at.g.data(), nothing, at.lse.data(), nullptr, at.run);
        if (status != Status::ok) {
            at.end(status == Status::overflow ? BridgeStatus::overflow : BridgeStatus::interrupted);
            return;
        }
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
        if (at.out_of_visits()) return;
        if (error < 0.99 * best) {
            best = error;
            since_best = 0;
        } else if (++since_best > Iterate::patience) {
            at.end(BridgeStatus::stagnated);
            return;
        }
        for (Index i = 0; i < at.mu.size(); ++i)
            if (at.mu[i] > 0) at.g[i] = 0.5 * (at.g[i] + at.log_mu[i] - at.lse[i]);
    }
}

}  // namespace qk
