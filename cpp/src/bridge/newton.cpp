#include <algorithm>
#include <cmath>

#include "bridge/iterate.hpp"
#include "bridge/long_vectors.hpp"
#include "bridge/newton_system.hpp"
#include "qk/scalar_math.hpp"

namespace qk {
namespace {

using Vector = Iterate::Vector;

// Far from the solution Sinkhorn steps come first, as long as they reduce the error.
bool come_near(Iterate& at) {
    if (!at.visit(1.0)) return false;
    auto before = infinity<double>();
    for (;;) {
        if (at.columns_vanish() && !at.settle_columns()) return false;
        const double error = at.column_error();
        if (error < 0.1 || at.out_of_budget() || error > 0.8 * before) return true;
        before = error;
        if (!at.plain_steps(5)) return false;
    }
}

// The relative tolerance for the linear system: smaller near the solution, but not smaller than the result needs. If
// the next step is expected to reach the tolerance by squaring the error, the system is solved accurately enough for
// that.
double exactness(double error, double tol) {
    const double wanted = 0.3 * tol / error;
    const double usual = error * error < 0.1 * tol ? 0.0 : std::clamp(std::sqrt(error), 1e-3, 0.1);
    return std::min(0.1, std::max(usual, wanted));
}

// How far a step may go, and how much it is damped: more after a step that failed, less after one that succeeded.
struct Caution {
    static constexpr double least_damping = 1e-15;

    double damping, reach = 20;

    void reward(bool cut) {
        damping = std::max(damping / 5, least_damping);
        if (cut) reach *= 4;
    }
    void punish(double size) {
        damping = std::max(10 * damping, 1e-12);
        reach = std::max(std::min(size, reach) / 4, 1.0);
    }
};

// An addition to the diagonal for columns that lack most of their mass, because these gain more than their tangent
// predicts: with the mass that the column should have on the diagonal, its step is Sinkhorn's. The power makes the
// addition negligible for columns that have most of their mass. With a penalty on the columns, what they should have
// depends on g too.
Vector diagonal(const Iterate& at, const Vector& residual, double damping) {
    const double b = at.options.col_penalty;
    Vector out = room_for(residual.size());
    each(at.run, out.size(), [&](Index j) {
        const double wanted = at.columns[j] + residual[j];
        out[j] = 0;
        if (!(wanted > 0)) return;
        const double missing = std::max(residual[j], 0.0) / wanted;
        out[j] = damping * std::max(at.columns[j], wanted) + wanted * std::pow(missing, 4);
        if (!std::isinf(b)) out[j] += wanted / b;
    });
    return out;
}

// Whether more than a fifth of the missing mass is in columns that lack more than half of theirs, as after a long step.
// These columns would determine when conjugate gradients stop; a Sinkhorn step fills them.
bool starved(const Iterate& at) {
    const Vector residual = at.residual();
    double lacking = 0, all = 0;
    each(at.run, residual.size(), [&](Index j) {
        if (residual[j] <= 0) return;
        all += residual[j];
        if (residual[j] > at.columns[j]) lacking += residual[j];
    });
    return lacking > 0.2 * all;
}

}  // namespace

bool newton(Iterate& at, bool may_give_up) {
    constexpr int most_tries = 8, most_failures = 4;
    constexpr Index few = 20;          // steps without progress
    constexpr std::size_t window = 6;  // steps in which the error should halve
    if (!come_near(at)) return false;
    NewtonSystem system(at);
    Caution caution{1e-4 * std::min(1.0, at.column_error())};
    auto best = infinity<double>(), best_dual = -infinity<double>();
    Index since_best = 0;
    int failures = 0;
    std::vector<double> errors;
    for (;;) {
        if (at.columns_vanish() && !at.settle_columns()) return false;
        if (at.rescale()) {
            if (!at.visit(1.0)) return false;
            best_dual = -infinity<double>();
        }
        // The last iterations may have been Sinkhorn steps after the last step of Newton's method.
        if (at.out_of_iterations() && at.limited()) return false;
        const double error = at.column_error(), before = at.dual();
        at.note(error);
        if (error <= at.options.tol) return at.end(BridgeStatus::converged);
        if (at.limited()) return false;
        errors.push_back(error);
        if (may_give_up && errors.size() > window && error > 0.5 * errors[errors.size() - 1 - window])
            return true;
        const double unclear = std::max(1e-13, 16 * at.sweep.epsilon()) * (1 + std::abs(before));
        since_best = error < 0.99 * best || before > best_dual + 10 * unclear ? 0 : since_best + 1;
        best = std::min(best, error);
        best_dual = std::max(best_dual, before);
        if (since_best > few) return at.end(BridgeStatus::stagnated);

        if (!system.refresh()) return false;
        const Vector residual = at.residual();
        Vector from;
        set(at.run, from, at.g);
        bool accepted = false;
        for (int k = 0; k < most_tries && !accepted; ++k) {
            Vector step;
            if (!system.solve(residual, diagonal(at, residual, caution.damping),
                              exactness(error, at.options.tol), step))
                return false;
            if (at.balanced) {
                const double mean = dot(at.run, at.nu, step);
                set(at.run, step, (step.array() - mean).matrix());
            }
            const double slope = dot(at.run, residual, step),
                         size = all_finite(at.run, step) ? max_size(at.run, step) : infinity<double>();
            if (!(slope > 0) || !std::isfinite(size)) {
                caution.punish(caution.reach);
                continue;
            }
            const double length = std::min(1.0, caution.reach / std::max(size, 1e-300));
            at.move(from, length, step);
            if (!at.visit(1.0)) return false;
            const double now = at.columns_vanish() ? infinity<double>() : at.column_error();
            // Near the solution the rounding of the dual hides its increase; there the error decides.
            const double gain = at.dual() - before;
            accepted = gain >= 1e-4 * length * slope || now < 0.7 * error ||
                       (now < error && std::abs(gain) <= unclear);
            if (accepted && k == 0)
                caution.reward(length < 1);
            else if (!accepted)
                caution.punish(size);
            if (at.out_of_budget()) break;
        }
        if (accepted) {
            if (at.column_error() > at.options.tol && starved(at) && !at.plain_steps(1)) return false;
            continue;
        }
        if (at.limited()) return false;
        if (++failures > most_failures) return at.end(BridgeStatus::stagnated);
        system.refine();
        set(at.run, at.g, from);
        if (!at.visit(1.0) || !at.plain_steps(10)) return false;  // a Sinkhorn step never lowers the dual
    }
}

}  // namespace qk
