// The size of the next step of an adaptive integrator, from the error of the last step relative to the tolerance.
#pragma once

#include <algorithm>
#include <cmath>

namespace qk {

struct StepRules {
    // The factor after an accepted step: safety error^(-alpha / order) last_error^(beta / order), within [shrink,
    // grow].
    double alpha = 0.7, beta = 0.4;
    double safety = 0.9, shrink = 0.2, grow = 10.0;
    // Whether the step after any rejected step may not be longer. If false, this holds only after a step that was not
    // finite.
    bool hold = true;
};

// Gustafsson's proportional-integral control, the default.
inline constexpr StepRules pi_rules{};
// The rule of EOT H.1, in which only the error of the last step counts.
inline constexpr StepRules elementary_rules{1.0, 0.0, 0.9, 0.2, 10.0, false};

class StepController {
public:
    StepController() = default;
    StepController(int order, const StepRules& rules) : order_(order), rules_(rules) {}

    // The factor for the step size after a step with this error, at most 1, was accepted.
    double accepted(double error) {
        const double floor = std::max(error, 1e-10);
        const double factor = rules_.safety * std::pow(floor, -rules_.alpha / order_) *
                              std::pow(last_error_, rules_.beta / order_);
        const double most = held_ ? 1.0 : rules_.grow;
        last_error_ = std::max(floor, 1e-4);
        held_ = false;
        return std::clamp(factor, rules_.shrink, most);
    }

    // The factor after a step was rejected. Its error is above 1, or inf or NaN if the step was not finite.
    double rejected(double error) {
        const bool finite = std::isfinite(error);
        held_ = rules_.hold || !finite;
        return finite ? std::max(rules_.shrink, rules_.safety * std::pow(error, -1.0 / order_))
                      : rules_.shrink;
    }

    // Forgets the errors of the past, because the velocity jumps here and they say nothing about what follows.
    void reset() {
        last_error_ = 1.0;
        held_ = false;
    }

    // The length of an Euler step that shows how fast the slope changes, from the scaled norms of the state and its
    // slope (Hairer, Norsett and Wanner, II.4). It is needed once a flow and never inlined: in a loop over lanes the
    // compiler would read its constants through a mask, which is slow (see in_register in simd.hpp).
    [[gnu::noinline]] static double probe(double size, double speed, double longest) {
        return std::min(longest, size < 1e-5 || speed < 1e-5 ? 1e-6 * longest : 0.01 * size / speed);
    }
    // The first step, from that probe and from the scaled norm of the change of the slope along it.
    double first(double probe, double speed, double change, double longest) const {
        const double bend = change / probe, steepest = std::isfinite(bend) ? std::max(speed, bend) : speed;
        const double wanted =
            steepest <= 1e-15 ? std::max(1e-6, 1e-3 * probe) : std::pow(0.01 / steepest, 1.0 / order_);
        return std::min({longest, 100 * probe, wanted});
    }

private:
    int order_ = 5;
    StepRules rules_{};
    double last_error_ = 1.0;
    bool held_ = false;
};

}  // namespace qk
