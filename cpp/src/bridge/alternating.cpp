#include "bridge/iterate.hpp"
#include "qk/scalar_math.hpp"

namespace qk {

void alternate(Iterate& at, bool may_relax) {
    const double tol = at.options.tol;
    auto best = infinity<double>();
    Index since_best = 0, settled = 0;
    double relaxation = 1.0, previous = infinity<double>(), rate = 0;
    if (!may_relax) at.plateaus_left = 0;  // the plain iteration takes no other steps
    while (at.visit(relaxation)) {
        if (at.columns_vanish()) {
            if (!at.recover_columns()) return;
            relaxation = 1.0;
            continue;
        }
        double error = at.column_error();
        if (relaxation != 1.0) error = std::max(error, at.row_error());
        at.note(error);
        if (error <= tol && relaxation == 1.0) {
            at.end(BridgeStatus::converged);
            return;
        }
        if (at.limited()) return;
        if (error < 0.99 * best) {
            best = error;
            since_best = 0;
        } else if (++since_best > Iterate::patience) {
            may_relax = false;
            since_best = 0;
            if (relaxation == 1.0) {
                if (!at.cross_plateau(error)) return;
                best = infinity<double>();
                continue;
            }
            relaxation = 1.0;  // over-relaxation does not help here
        }
        if (relaxation != 1.0 && (error > 10 * best || !std::isfinite(error))) {
            relaxation = 1.0;
            may_relax = false;
        }
        if (error <= tol) relaxation = 1.0;  // so that the last visit makes the rows exact
        if (may_relax && relaxation == 1.0 && at.state.errors.size() >= 10) {
            const double now = error / previous;
            settled = std::abs(now - rate) < 0.02 * (1 - now) + 0.002 ? settled + 1 : 0;
            if (settled >= 3 && now < 1 && now > 0.3) {
                relaxation = std::min(1.95, 2 / (1 + std::sqrt(1 - now)));
                at.state.relaxation = relaxation;
            }
            rate = now;
        }
        previous = error;
        at.step_columns(relaxation);
        if (!at.balanced) at.balance_masses();
        at.rescale();
    }
}

}  // namespace qk
