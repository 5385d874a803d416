#include "bridge/iterate.hpp"
#include "qk/scalar_math.hpp"

namespace qk {
namespace {

using Vector = Iterate::Vector;

// Solves (diag(columns) - P^T diag(1/mu) P) x = residual to the given relative tolerance. The constant, along which
// the matrix vanishes, is projected out. `rough`: products in single precision. False ends the solve.
bool conjugate_gradients(Iterate& at, const Vector& residual, double tolerance, bool rough, Vector& x) {
    const Index m = at.nu.size();
    const Vector& columns = at.columns;
    Vector inverse(m), r = residual, z(m), p(m), q(m), spread(m);
    for (Index j = 0; j < m; ++j) inverse[j] = columns[j] > 0 && at.nu[j] > 0 ? 1 / columns[j] : 0;
    const double mass = columns.sum();
    const auto project = [&](Vector& v) {  // orthogonal to the constant in the metric of the diagonal
        const double mean = columns.dot(v) / mass;
        for (Index j = 0; j < m; ++j) v[j] = inverse[j] > 0 ? v[j] - mean : 0;
    };
    x.setZero(m);
    z = inverse.cwiseProduct(r);
    project(z);
    p = z;
    double rz = r.dot(z);
    const double stop = tolerance * tolerance * rz;
    const Index limit = std::min<Index>(500, 2 * m);
    for (Index k = 0; k < limit && rz > stop && rz > 0; ++k) {
        ++at.state.n_visits;
        const Status status = at.sweep.curvature(p.data(), at.mu.data(), spread.data(), rough, at.run);
        if (!at.went_through(status)) return false;
        q = columns.cwiseProduct(p) - spread;
        const double curvature = p.dot(q);
        const double rounding = rough ? 1e-6 : 1e-14;
        if (!(curvature > rounding * p.cwiseProduct(columns).dot(p))) break;  // flat
        const double alpha = rz / curvature;
        x += alpha * p;
        r -= alpha * q;
        z = inverse.cwiseProduct(r);
        project(z);
        const double next = r.dot(z);
        p = z + (next / rz) * p;
        rz = next;
        if (at.out_of_visits()) break;
    }
    return true;
}

// Far from the solution the quadratic model is worth little: Sinkhorn steps first. A plateau that outlasts them is for
// the caller to judge, who knows whether the problem has a solution.
bool come_near(Iterate& at) {
    constexpr int most_steps = 200;
    if (!at.visit(1.0)) return false;
    for (int steps = 0;; steps += 5) {
        if (at.columns_vanish() && !at.settle_columns()) return false;
        if (at.column_error() < 0.1 || at.out_of_visits()) return true;
        if (steps >= most_steps) return at.end(BridgeStatus::stagnated);
        if (!at.plain_steps(5)) return false;
    }
}

}  // namespace

void newton(Iterate& at) {
    constexpr Index few = 20;  // steps without progress before a plateau is looked for
    if (!come_near(at)) return;
    bool rough = true;  // directions need no more than single precision, until one turns out to be useless
    auto best = infinity<double>();
    Index since_best = 0;
    for (;;) {
        if (at.columns_vanish() && !at.settle_columns()) return;
        double error = at.column_error();
        at.note(error);
        if (error <= at.options.tol) {
            at.end(BridgeStatus::converged);
            return;
        }
        if (at.out_of_visits()) return;
        if (error < 0.99 * best) {
            best = error;
            since_best = 0;
        } else if (++since_best > few) {
            // After Sinkhorn steps, which find the direction of a plateau.
            if (!at.plain_steps(10) || !at.cross_plateau(at.column_error()) || !at.visit(1.0)) return;
            best = infinity<double>();
            since_best = 0;
            continue;
        }
        const Vector residual = at.nu - at.columns;
        const double before = at.dual();
        const Vector from = at.g;
        Vector step;
        // The nearer the solution, the more exactly the system is solved.
        if (!conjugate_gradients(at, residual, std::clamp(std::sqrt(error), 1e-3, 0.1), rough, step)) return;
        const double slope = residual.dot(step);
        bool accepted = false;
        if (slope > 0 && step.allFinite()) {
            double length = std::min(1.0, 20.0 / std::max(step.cwiseAbs().maxCoeff(), 1e-300));
            for (int k = 0; k < 8 && !accepted; ++k, length /= 4) {
                at.move(from, length, step);
                if (!at.visit(1.0)) return;
                const double now = at.columns_vanish() ? infinity<double>() : at.column_error();
                // Near the solution the dual's own rounding hides its increase: then the error decides.
                accepted = at.dual() >= before + 1e-4 * length * slope || now < 0.7 * error;
                if (at.out_of_visits()) break;
            }
        }
        if (!accepted) {  // a Sinkhorn step never lowers the dual
            rough = false;
            at.g = from;
            if (!at.visit(1.0) || !at.plain_steps(10)) return;
        }
    }
}

}  // namespace qk
