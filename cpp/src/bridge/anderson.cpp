#include "bridge/extrapolation.hpp"
#include "bridge/iterate.hpp"
#include "bridge/long_vectors.hpp"
#include "qk/scalar_math.hpp"

namespace qk {
namespace {

// Whether, at the rate of the last iterations, so many more would be needed that Newton's method is a better use of
// visits.
bool slow(const std::vector<double>& errors, double tol) {
    constexpr std::size_t window = 5, early = 10;
    constexpr double many = 15;
    if (errors.size() < early) return false;
    const double gain = std::log(errors[errors.size() - 1 - window] / errors.back()) / window;
    return !(gain > 0) || std::log(errors.back() / tol) > many * gain;
}

}  // namespace

bool anderson(Iterate& at, bool may_give_up) {
    using Vector = Iterate::Vector;
    const Run& run = at.run;
    Extrapolation extrapolation(at.nu, run, at.options.memory);
    Vector best_g, step = room_for(at.nu.size()), plain;  // plain: where Sinkhorn's last step leads
    set(run, best_g, at.g);
    double dual_before = -infinity<double>(), error_before = infinity<double>();
    auto best = infinity<double>();
    Index since_best = 0;
    while (at.visit(1.0)) {
        const bool vanish = at.columns_vanish();
        if (vanish && extrapolation.empty()) {
            if (!at.recover_columns()) return false;
            continue;
        }
        const double error = vanish ? infinity<double>() : at.column_error();
        at.note(error);
        if (error <= at.options.tol) return at.end(BridgeStatus::converged);
        if (at.limited()) return false;
        // If the error has doubled, the extrapolation was bad: go back to the best point, and forget the steps from which
        // it was made. With penalties this is done only once the error is below 0.5: a plan of far too much mass has an
        // error of about 1 whatever its excess, so there the error says nothing.
        if (error > 2 * best && (at.balanced || best < 0.5)) {
            set(run, at.g, best_g);
            extrapolation.forget();
            best = infinity<double>();
            dual_before = -infinity<double>();
            continue;
        }
        // An extrapolation that lowers the dual was bad too, because Sinkhorn's step never does that. It may have led to
        // a plateau far away, where the error says nothing. Close to the solution rounding hides changes of the dual, so
        // an extrapolation that halves the error is kept.
        const double dual_here = at.dual();
        const double rounding = 1e-12 * (1 + std::abs(dual_here));
        if (!(dual_here >= dual_before - rounding) && !(error < 0.5 * error_before)) {
            set(run, at.g, plain);
            extrapolation.forget();
            dual_before = -infinity<double>();
            continue;
        }
        dual_before = dual_here;
        error_before = error;
        if (error < best) {
            if (error < 0.99 * best) since_best = 0;
            best = error;
            set(run, best_g, at.g);
        }
        if (may_give_up && slow(at.state.errors, at.options.tol)) {
            set(run, at.g, best_g);
            return true;
        }
        if (++since_best > Iterate::patience) return at.end(BridgeStatus::stagnated);
        at.find_step(step);
        set(run, plain, at.g + step);
        // A penalised plan of the wrong mass is far from the solution, where the last steps do not predict the next.
        const bool wild = !at.balanced && !(error < 2);
        if (wild)
            set(run, at.g, plain);
        else
            extrapolation.next(at.g, step, at.g);
        if (at.rescale()) dual_before = -infinity<double>();
    }
    return false;
}

void periodic(Iterate& at) {
    using Vector = Iterate::Vector;
    const Run& run = at.run;
    const Vector live = (at.nu.array() > 0).cast<double>().matrix();
    Extrapolation extrapolation(live, run, at.options.memory);
    Vector step = room_for(at.nu.size()), further, g, f, lse, columns;
    // Sinkhorn's step from the potentials that were visited last.
    const auto find_step = [&] {
        if (!at.columns_vanish()) {
            at.find_step(step);
            return true;
        }
        set(run, g, at.g);
        if (!at.update_columns()) return false;
        set(run, step, at.g);
        each(run, step.size(), [&](Index j) { step[j] = at.nu[j] > 0 ? step[j] - g[j] : 0.0; });
        set(run, at.g, g);
        return true;
    };
    if (!at.update_columns()) return;
    for (Index k = 1; at.visit(1.0) && find_step(); ++k) {
        double error = at.column_error();
        extrapolation.next(at.g, step, further);
        if (k % at.options.period == 0) {
            set(run, g, at.g);
            set(run, f, at.f);
            set(run, lse, at.lse);
            set(run, columns, at.columns);
            each(run, at.nu.size(), [&](Index j) {
                if (at.nu[j] > 0) at.g[j] = further[j];
            });
            if (!at.visit(1.0)) return;
            if (at.column_error() < error) {
                error = at.column_error();
                if (!find_step()) return;
            } else {
                set(run, at.g, g);
                set(run, at.f, f);
                set(run, at.lse, lse);
                set(run, at.columns, columns);
            }
        }
        at.note(error);
        if (error <= at.options.tol) {
            at.end(BridgeStatus::converged);
            return;
        }
        if (at.limited()) return;
        set(run, g, at.g);
        at.move(g, 1.0, step);
    }
}

}  // namespace qk
