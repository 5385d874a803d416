// The options and results that all integrations share, whatever is integrated.
#pragma once

#include "tableau.hpp"
#include "views.hpp"

namespace qk {

enum class FlowStatus {
    finished,
    blew_up,     // not finite, or beyond the given size, or changing faster than the smallest step resolves
    clustered,   // particles only: as many clusters as asked for, or fewer
    step_limit,  // max_steps were taken
    step_underflow,  // the tolerance asks for steps below min_step
    no_convergence,  // Sinkhorn's iteration inside the velocity did not converge
    interrupted,
};

struct IntegrationOptions {
    Method method = Method::rk4;
    double t0 = 0, t1 = 1;
    double rtol = 1e-6, atol = 1e-9;
    double first_step = 0;     // 0: chosen automatically
    double min_step = 0;       // 0: ten times the spacing of numbers at t
    double max_step = 0;       // 0: no limit
    Index max_steps = 100000;  // adaptive methods: accepted and rejected steps together
};

}  // namespace qk
