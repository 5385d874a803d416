#include "ode/rosenbrock.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <Eigen/LU>

namespace qk::ode {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

const double root_epsilon = std::sqrt(std::numeric_limits<double>::epsilon());

}  // namespace

struct Rosenbrock::Workspace {
    explicit Workspace(const StiffSystem& system)
        : y(system.unknowns()),
          slope(y.size()),
          moved(y.size()),
          drift(VectorXd::Zero(y.size())),
          jacobian(y.size(), y.size()),
          whole(static_cast<std::size_t>(system.length())),
          rates(whole.size()) {}

    VectorXd y, slope, moved, drift;  // drift: df/dt
    MatrixXd jacobian;
    Eigen::PartialPivLU<MatrixXd> factor;
    std::vector<double> whole, rates;
    std::vector<VectorXd> k;
    double t = 0;
    bool known = false;  // whether the Jacobian is that of (t, y)
};

Rosenbrock::Rosenbrock(const Tableau& method, StiffSystem* system) : method_(method), system_(system) {
    if (!method.implicit() || system == nullptr) return;
    at_ = std::make_unique<Workspace>(*system);
    at_->k.assign(static_cast<std::size_t>(method.n_stages), VectorXd(at_->y.size()));
}

Rosenbrock::~Rosenbrock() = default;

VelocityStatus Rosenbrock::stages(double t, double h) {
    Workspace& w = *at_;
    StiffSystem& system = *system_;
    const auto rate_at = [&](double time, const VectorXd& y, VectorXd& out) {
        system.scatter(y.data(), w.whole.data());
        const VelocityStatus status = system.rate(time, w.whole.data(), w.rates.data());
        if (status == VelocityStatus::ok) system.gather(w.rates.data(), out.data());
        return status;
    };
    system.gather(system.state(), w.moved.data());
    if (!w.known || t != w.t || w.moved != w.y) {
        w.known = false;
        w.y = w.moved;
        w.t = t;
        system.gather(system.slope(), w.slope.data());
        // Forward differences. A number that is small relative to the others is moved as if it were a thousandth of
        // them.
        const double size = w.y.size() > 0 ? w.y.cwiseAbs().maxCoeff() : 0.0;
        const double floor = size > 0 ? 1e-3 * size : 1.0;
        for (Index j = 0; j < w.y.size(); ++j) {
            const double before = w.moved[j];
            w.moved[j] += root_epsilon * std::max(std::abs(before), floor);
            auto column = w.jacobian.col(j);
            VectorXd& rates = w.k[0];
            const VelocityStatus status = rate_at(t, w.moved, rates);
            if (status != VelocityStatus::ok) return status;
            column = (rates - w.slope) / (w.moved[j] - before);
            w.moved[j] = before;
        }
        if (!system.autonomous()) {
            const double later = t + root_epsilon * std::max(std::abs(t), h);
            const VelocityStatus status = rate_at(later, w.y, w.k[0]);
            if (status != VelocityStatus::ok) return status;
            w.drift = (w.k[0] - w.slope) / (later - t);
        }
        w.known = true;
    }
    if (!w.jacobian.allFinite()) return VelocityStatus::not_finite;
    MatrixXd matrix = -w.jacobian;
    matrix.diagonal().array() += 1 / (method_.gamma * h);
    w.factor.compute(matrix);
    for (int s = 0; s < method_.n_stages; ++s) {
        const auto at = static_cast<std::size_t>(s);
        VectorXd& k = w.k[at];
        if (s == 0) {
            k = w.slope;
        } else {
            w.moved = w.y;
            for (int r = 0; r < s; ++r)
                w.moved += method_.a[at][static_cast<std::size_t>(r)] * w.k[static_cast<std::size_t>(r)];
            const VelocityStatus status = rate_at(t + method_.c[at] * h, w.moved, k);
            if (status != VelocityStatus::ok) return status;
            for (int r = 0; r < s; ++r)
                k += method_.coupling[at][static_cast<std::size_t>(r)] / h * w.k[static_cast<std::size_t>(r)];
        }
        k += method_.rate[at] * h * w.drift;
        k = w.factor.solve(k).eval();
        if (!k.allFinite()) return VelocityStatus::not_finite;
        system.scatter(k.data(), system.increment(s));
    }
    return VelocityStatus::ok;
}

}  // namespace qk::ode
