#include "bridge/extrapolation.hpp"

#include <algorithm>
#include <utility>

namespace qk {
namespace {

double max_size(const Eigen::VectorXd& v) { return v.size() > 0 ? v.cwiseAbs().maxCoeff() : 0.0; }

}  // namespace

Extrapolation::Extrapolation(const Vector& weights)
    : weight_(weights.cwiseSqrt()), changes_(weights.size(), most), moves_(weights.size(), most) {}

void Extrapolation::forget() {
    n_seen_ = 0;
    if (++n_failed_ > 2 && memory_ > 0) --memory_;
}

Eigen::VectorXd Extrapolation::next(const Vector& point, const Vector& step) {
    if (n_seen_ > 0 && memory_ > 0) {
        const Index k = (n_seen_ - 1) % memory_;  // the oldest is replaced
        for (Index j = 0; j < step.size(); ++j) {
            const double change = step[j] - last_step_[j];
            changes_(j, k) = weight_[j] * change;
            moves_(j, k) = weight_[j] > 0 ? point[j] - last_point_[j] + change : 0.0;
        }
    }
    last_point_ = point;
    last_step_ = step;
    Vector to = point + step;
    const Index m = std::min(n_seen_++, memory_);
    if (m > 0) {
        const Vector move = moves_.leftCols(m) * fit(m, step);
        // Nearly dependent steps give arbitrarily large moves: an iteration whose limit is farther away than this is
        // too slow for extrapolation to be trusted.
        constexpr double farthest = 1e4;
        if (move.allFinite() && max_size(move) <= farthest * max_size(step)) to -= move;
    }
    return to;
}

// The combination of the first m changes nearest to the weighted step, by Gram and Schmidt's method in its modified
// form with the step as a last column, which is as stable as reflections (Björck), and for a handful of columns much
// less to do. The longest column goes first; those that hardly add a direction get nothing.
Extrapolation::Coefficients Extrapolation::fit(Index m, const Vector& step) {
    constexpr double dependent = 1e-14;
    rest_ = changes_.leftCols(m);
    target_ = step.cwiseProduct(weight_);
    double r[most][most], onto[most], longest = 0;
    Index order[most], rank = 0;
    for (Index k = 0; k < m; ++k) order[k] = k;
    for (; rank < m; ++rank) {
        Index pick = rank;
        double size = 0;
        for (Index k = rank; k < m; ++k) {
            const double norm = rest_.col(order[k]).norm();
            if (norm > size) {
                size = norm;
                pick = k;
            }
        }
        longest = std::max(longest, size);
        if (!(size > dependent * longest)) break;
        std::swap(order[rank], order[pick]);
        for (Index k = 0; k < rank; ++k) std::swap(r[k][rank], r[k][pick]);
        auto unit = rest_.col(order[rank]);
        unit /= size;
        r[rank][rank] = size;
        for (Index k = rank + 1; k < m; ++k) {
            r[rank][k] = unit.dot(rest_.col(order[k]));
            rest_.col(order[k]) -= r[rank][k] * unit;
        }
        onto[rank] = unit.dot(target_);
        target_ -= onto[rank] * unit;
    }
    Coefficients gamma = Coefficients::Zero(m);
    for (Index k = rank - 1; k >= 0; --k) {
        double value = onto[k];
        for (Index l = k + 1; l < rank; ++l) value -= r[k][l] * gamma[order[l]];
        gamma[order[k]] = value / r[k][k];
    }
    return gamma;
}

}  // namespace qk
