// Anderson's extrapolation, for fixed-point iterations of any kind: from the last steps, the point at which a linear
// iteration would have no step left. The solver of bridges uses the same (bridge/extrapolation.hpp).
#pragma once

#include <memory>

#include "views.hpp"

namespace qk {

class Extrapolation;

class Anderson {
public:
    // Of points with n coordinates. `weights` say what a coordinate counts; those of weight 0 take the plain step.
    Anderson(const double* weights, Index n, Index memory);
    ~Anderson();
    Anderson(const Anderson&) = delete;
    Anderson& operator=(const Anderson&) = delete;

    Index size() const { return n_; }
    bool empty() const;
    void forget();
    // `to`: the next point, where the plain iteration would step from `point` by `step`.
    void next(const double* point, const double* step, double* to);

private:
    Index n_;
    std::unique_ptr<Extrapolation> extrapolation_;
};

}  // namespace qk
