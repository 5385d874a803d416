#include "bridge/extrapolation.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "bridge/long_vectors.hpp"
#include "qk/anderson.hpp"

namespace qk {

Extrapolation::Extrapolation(const Vector& weights, const Run& run, Index memory)
    : run_(run), memory_(memory) {
    make_room(changes_, weights.size(), memory);
    make_room(moves_, weights.size(), memory);
    set(run_, weight_, weights.cwiseSqrt());
}

void Extrapolation::forget() {
    n_seen_ = 0;
    if (++n_failed_ > 2 && memory_ > 0) --memory_;
}

void Extrapolation::next(const Vector& point, const Vector& step, Vector& to) {
    if (n_seen_ > 0 && memory_ > 0) {
        const Index k = (n_seen_ - 1) % memory_;  // the oldest one is replaced
        each(run_, step.size(), [&](Index j) {
            const double change = step[j] - last_step_[j];
            changes_(j, k) = weight_[j] * change;
            moves_(j, k) = weight_[j] > 0 ? point[j] - last_point_[j] + change : 0.0;
        });
    }
    set(run_, last_point_, point);
    set(run_, last_step_, step);
    set(run_, to, point + step);
    const Index m = std::min(n_seen_++, memory_);
    if (m == 0) return;
    fit(m, step);
    make_room(move_, step.size());
    in_pieces(run_, 0, step.size(), [&](Index from, Index end) {
        move_.segment(from, end - from).noalias() = moves_.middleRows(from, end - from).leftCols(m) * gamma_;
    });
    // Nearly dependent steps give arbitrarily large moves: an iteration whose limit is farther away than this is
    // too slow for extrapolation to be trusted.
    constexpr double farthest = 1e4;
    if (all_finite(run_, move_) && max_size(run_, move_) <= farthest * max_size(run_, step))
        set(run_, to, to - move_);
}

// Finds gamma_, the coefficients of the combination of the first m changes that is nearest to the weighted step. The
// modified Gram-Schmidt method with the step as a last column is as stable as Householder's reflections (Björck), and
// much less work for a handful of columns. The longest of the remaining columns is always the next one. Columns that
// hardly add a direction get the coefficient 0.
void Extrapolation::fit(Index m, const Vector& step) {
    constexpr double dependent = 1e-14;
    make_room(rest_, step.size(), m);
    in_pieces(run_, 0, step.size(), [&](Index from, Index end) {
        rest_.middleRows(from, end - from) = changes_.middleRows(from, end - from).leftCols(m);
    });
    set(run_, target_, step.cwiseProduct(weight_));
    triangle_.resize(m, m);
    onto_.resize(m);
    order_.resize(m);
    std::iota(order_.begin(), order_.end(), Index{0});
    double longest = 0;
    Index rank = 0;
    for (; rank < m; ++rank) {
        Index pick = rank;
        double size = 0;
        for (Index k = rank; k < m; ++k) {
            const double length = norm(run_, rest_.col(order_[k]));
            if (length > size) {
                size = length;
                pick = k;
            }
        }
        longest = std::max(longest, size);
        if (!(size > dependent * longest)) break;
        std::swap(order_[rank], order_[pick]);
        for (Index k = 0; k < rank; ++k) std::swap(triangle_(k, rank), triangle_(k, pick));
        auto unit = rest_.col(order_[rank]);
        set(run_, unit, unit / size);
        triangle_(rank, rank) = size;
        for (Index k = rank + 1; k < m; ++k) {
            auto other = rest_.col(order_[k]);
            triangle_(rank, k) = dot(run_, unit, other);
            set(run_, other, other - triangle_(rank, k) * unit);
        }
        onto_[rank] = dot(run_, unit, target_);
        set(run_, target_, target_ - onto_[rank] * unit);
    }
    gamma_.setZero(m);
    for (Index k = rank - 1; k >= 0; --k) {
        double value = onto_[k];
        for (Index l = k + 1; l < rank; ++l) value -= triangle_(k, l) * gamma_[order_[l]];
        gamma_[order_[k]] = value / triangle_(k, k);
    }
}

namespace {
using Given = Eigen::Map<const Eigen::VectorXd>;
constexpr Run on_one_thread{};
}  // namespace

Anderson::Anderson(const double* weights, Index n, Index memory)
    : n_(n), extrapolation_(std::make_unique<Extrapolation>(Given(weights, n), on_one_thread, memory)) {}
Anderson::~Anderson() = default;
bool Anderson::empty() const { return extrapolation_->empty(); }
void Anderson::forget() { extrapolation_->forget(); }
void Anderson::next(const double* point, const double* step, double* to) {
    Eigen::VectorXd next;
    extrapolation_->next(Given(point, n_), Given(step, n_), next);
    Eigen::Map<Eigen::VectorXd>(to, n_) = next;
}

}  // namespace qk
