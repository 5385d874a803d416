// Anderson's extrapolation for fixed-point iterations of any kind: from the last steps it finds the point at which a
// linear iteration would take no further step. The solver of bridges uses the same code (bridge/extrapolation.hpp).
#pragma once

#include <memory>

#include "views.hpp"

namespace qk {

class Extrapolation;

class Anderson {
public:
    // For points with n coordinates. `weights` say how much each coordinate counts; those of weight 0 take the plain
    // step.
    Anderson(const double* weights, Index n, Index memory);
    ~Anderson();
    Anderson(const Anderson&) = delete;
    Anderson& operator=(const Anderson&) = delete;

    Index size() const { return n_; }
    bool empty() const;
    void forget();
    // Writes the next point to `to`; from `point` the plain iteration would take the step `step`.
    void next(const double* point, const double* step, double* to);

private:
    Index n_;
    std::unique_ptr<Extrapolation> extrapolation_;
};

}  // namespace qk
