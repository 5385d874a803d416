// Anderson's extrapolation: from the last steps of a fixed-point iteration it finds the point at which a linear
// iteration would take no further step.
#pragma once

#include <Eigen/Core>

#include "qk/threads.hpp"
#include "qk/views.hpp"

namespace qk {

class Extrapolation {
public:
    using Vector = Eigen::VectorXd;

    // Coordinates of weight 0 take the plain step.
    Extrapolation(const Vector& weights, const Run& run, Index memory = 5);

    // Whether it remembers no step yet.
    bool empty() const { return n_seen_ == 0; }

    // Called after a point that turned out worse. It drops the remembered steps, which would lead there again. After
    // repeated failures the memory shrinks, and with memory 0 this is the plain iteration.
    void forget();

    // The next point, where the plain iteration would step from `point` by `step`; `to` may be `point` itself.
    void next(const Vector& point, const Vector& step, Vector& to);

private:
    void fit(Index m, const Vector& step);

    const Run& run_;
    Vector weight_, last_point_, last_step_;
    // Each column holds how much the weighted step, or the point to which the step leads, changed in one iteration.
    Eigen::MatrixXd changes_, moves_;
    // Scratch memory of next() and fit(). It is kept, because for short vectors allocating it takes as long as using it.
    Eigen::MatrixXd rest_, triangle_;
    Vector target_, onto_, gamma_, move_;
    Eigen::VectorX<Index> order_;
    Index n_seen_ = 0, n_failed_ = 0;
    Index memory_;
};

}  // namespace qk
