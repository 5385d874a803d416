// What every integration is told, and how it can end, whatever is integrated.
#pragma once

#include "tableau.hpp"
#include "views.hpp"

namespace qk {

enum class FlowStatus {
    finished,
    blew_up,         // not finite, or beyond the size that was given, or faster than the smallest step
    clustered,       // particles: as many clusters as asked for, or fewer
    step_limit,      // max_steps taken
    step_underflow,  // the tolerance asks for steps below min_step
    no_convergence,  // of Sinkhorn's iteration inside the velocity
    interrupted,
};

struct IntegrationOptions {
    Method method = Method::rk4;
    double t0 = 0, t1 = 1;
    double rtol = 1e-6, atol = 1e-9;
    double first_step = 0;     // 0: chosen
    double min_step = 0;       // 0: ten times the spacing of numbers at t
    double max_step = 0;       // 0: none
    Index max_steps = 100000;  // accepted and rejected, adaptive
};

}  // namespace qk
