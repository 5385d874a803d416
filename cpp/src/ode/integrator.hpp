// The one integrator: fixed or controlled steps by a Tableau, for any State.
//
// A State holds `lanes` independent initial value problems (laws in the lanes of a pack; all particles together are one),
// with their stages and a trial state for each. It offers
//     lanes                                     how many
//     VelocityStatus first(t)                   the slope at the state, unless it is known already
//     VelocityStatus stage(s, t, h)             the slope of stage s, at t[lane] of each lane
//     void finish(h)                            the trial state from all stages (not called with last_is_next)
//     void errors(h, out)                       the scaled error of each lane's trial; not finite if the trial is lost
//     void lost(out)                            whether each lane's trial state has a number that is not finite
//     void sizes(size, speed)                   scaled norms of the states and their slopes
//     VelocityStatus change(t, h, out)          scaled norm of the change of the slopes along an Euler step
//     bool escaping(lane, resolution)           whether 1000 of the smallest steps would change the state by its own size
//     void take(taken, h, lane)                 moves lanes to their trial states; may end lanes
//     StiffSystem* stiff()                      for Rosenbrock methods, or nullptr
// Times and step sizes are arrays over lanes; a lane with h = 0 does not move.
#pragma once

#include <array>
#include <cmath>
#include <limits>

#include "ode/rosenbrock.hpp"
#include "qk/controller.hpp"
#include "qk/integration.hpp"
#include "qk/threads.hpp"
#include "qk/velocity.hpp"

namespace qk::ode {

struct Lane {
    double t = 0, to = 0;  // the time of the state, and the time to which its trial step leads
    double h = 0;          // the size of the next step; 0: not known yet
    StepController control;
    FlowStatus status = FlowStatus::finished;
    bool alive = true, overflowed = false;
    bool cut = false;  // whether the trial step is shorter than h because it ends at a wanted time
    Index n_steps = 0, n_rejected = 0;

    void end(FlowStatus why) {
        status = why;
        alive = false;
    }
};

inline FlowStatus status_of(VelocityStatus status) {
    switch (status) {
        case VelocityStatus::interrupted:
            return FlowStatus::interrupted;
        case VelocityStatus::no_convergence:
            return FlowStatus::no_convergence;
        default:
            return FlowStatus::blew_up;
    }
}

// The smallest step that time resolves at t.
inline double resolution(double t) {
    const double size = std::abs(t);
    return 10 * (std::nextafter(size, std::numeric_limits<double>::infinity()) - size);
}

template <class State>
class Integrator {
public:
    static constexpr int lanes = State::lanes;
    using Numbers = std::array<double, lanes>;
    using Flags = std::array<bool, lanes>;

    Integrator(State& state, const IntegrationOptions& options, const Run& run, int worker = 0)
        : state_(state),
          options_(options),
          method_(tableau(options.method)),
          run_(run),
          worker_(worker),
          rosenbrock_(method_, state.stiff()) {
        for (Lane& a : lane) {
            a.t = options.t0;
            a.h = options.first_step;
            a.control = StepController(method_.order, pi_rules);
        }
    }

    std::array<Lane, lanes> lane;

    bool moving() const {
        for (const Lane& a : lane)
            if (a.alive) return true;
        return false;
    }

    // Forgets step sizes and slopes, because the velocity jumps here.
    void restart() {
        for (Lane& a : lane) {
            a.h = 0;
            a.control.reset();
        }
    }

    // Takes one step of every lane that has not ended, to the time `to`.
    void fixed_step(double to) {
        Numbers t, h;
        for (int l = 0; l < lanes; ++l) {
            t[at(l)] = lane[at(l)].t;
            h[at(l)] = to - lane[at(l)].t;
            lane[at(l)].to = to;
        }
        const VelocityStatus problem = attempt(t, h);
        if (problem != VelocityStatus::ok) return end_all(status_of(problem));
        Flags lost{}, taken{};
        state_.lost(lost.data());
        for (int l = 0; l < lanes; ++l) {
            Lane& a = lane[at(l)];
            if (!a.alive) continue;
            if (lost[at(l)]) {
                a.end(FlowStatus::blew_up);
                continue;
            }
            ++a.n_steps;
            taken[at(l)] = true;
        }
        state_.take(taken.data(), h.data(), lane.data());
    }

    // Moves every lane that has not ended to `to`, with controlled steps of its own. Returns false if it was stopped.
    bool advance(double to) {
        constexpr Index poll = 16;
        for (Index round = 1;; ++round) {
            if (round % poll == 0 && should_stop(run_, worker_)) return false;
            const VelocityStatus unknown = choose_first_steps(to);
            if (unknown == VelocityStatus::interrupted) return false;
            if (unknown != VelocityStatus::ok) end_all(status_of(unknown));
            Numbers t, h{};
            Flags tried{}, taken{};
            bool any = false;
            for (int l = 0; l < lanes; ++l) {
                t[at(l)] = lane[at(l)].t;
                tried[at(l)] = plan(l, to, h[at(l)]);
                any = any || tried[at(l)];
            }
            if (!any) return true;
            Numbers error{};
            const VelocityStatus problem = attempt(t, h);
            if (problem == VelocityStatus::interrupted) return false;
            if (problem == VelocityStatus::ok)
                state_.errors(h.data(), error.data());
            else if (problem == VelocityStatus::not_finite)
                error.fill(std::numeric_limits<double>::infinity());
            else
                end_all(status_of(problem));
            any = false;
            for (int l = 0; l < lanes; ++l) {
                if (!tried[at(l)] || !lane[at(l)].alive) continue;
                taken[at(l)] = judge(lane[at(l)], h[at(l)], error[at(l)]);
                any = any || taken[at(l)];
            }
            if (any) state_.take(taken.data(), h.data(), lane.data());
        }
    }

private:
    static std::size_t at(int l) { return static_cast<std::size_t>(l); }

    void end_all(FlowStatus why) {
        for (Lane& a : lane)
            if (a.alive) a.end(why);
    }

    // Chooses the size of the next step of a lane; returns false if the lane takes none.
    bool plan(int l, double to, double& h) {
        Lane& a = lane[at(l)];
        const double left = to - a.t;
        if (!a.alive || left <= 0) return false;
        if (options_.max_step > 0) a.h = std::min(a.h, options_.max_step);
        const double smallest = options_.min_step > 0 ? options_.min_step : resolution(a.t);
        if (a.h < smallest && left > smallest) {
            const bool gone = a.overflowed || state_.escaping(l, resolution(a.t));
            a.end(gone ? FlowStatus::blew_up : FlowStatus::step_underflow);
            return false;
        }
        if (a.n_steps + a.n_rejected >= options_.max_steps) {
            a.end(FlowStatus::step_limit);
            return false;
        }
        // If a tiny rest would be left, the last two steps are made equal instead.
        const double size = a.h >= left * (1 - 1e-12) ? left : (2 * a.h > left ? 0.5 * left : a.h);
        a.to = size == left ? to : a.t + size;
        a.cut = size < a.h;
        h = a.to - a.t;
        return true;
    }

    // Decides whether the step is accepted, and sets the size of the next one.
    static bool judge(Lane& a, double h, double error) {
        if (!(error <= 1.0)) {
            ++a.n_rejected;
            a.overflowed = !std::isfinite(error);
            a.h = h * a.control.rejected(error);
            return false;
        }
        ++a.n_steps;
        a.overflowed = false;
        const double wanted = h * a.control.accepted(error);
        a.h = a.cut ? std::max(a.h, wanted) : wanted;
        return true;
    }

    // Computes all stages and the trial states.
    VelocityStatus attempt(const Numbers& t, const Numbers& h) {
        VelocityStatus status = state_.first(t[0]);
        if (status != VelocityStatus::ok) {
            if (status == VelocityStatus::not_finite) end_all(FlowStatus::blew_up);
            return status;
        }
        if (method_.implicit()) {
            status = rosenbrock_.stages(t[0], h[0]);
            if (status != VelocityStatus::ok) return status;
        }
        for (int s = 1; s < method_.n_stages && !method_.implicit(); ++s) {
            Numbers times;
            for (int l = 0; l < lanes; ++l) times[at(l)] = t[at(l)] + method_.c[at(s)] * h[at(l)];
            status = state_.stage(s, times.data(), h.data());
            if (status != VelocityStatus::ok) return status;
        }
        if (!method_.last_is_next) state_.finish(h.data());
        return VelocityStatus::ok;
    }

    VelocityStatus choose_first_steps(double to) {
        bool needed = false;
        for (const Lane& a : lane) needed = needed || (a.alive && a.h <= 0 && a.t < to);
        if (!needed) return VelocityStatus::ok;
        const VelocityStatus status = state_.first(lane[0].t);
        if (status != VelocityStatus::ok) return status;
        Numbers t, size, speed, probe, change;
        state_.sizes(size.data(), speed.data());
        for (int l = 0; l < lanes; ++l) {
            t[at(l)] = lane[at(l)].t;
            probe[at(l)] = StepController::probe(size[at(l)], speed[at(l)], std::max(to - t[at(l)], 0.0));
        }
        const VelocityStatus along = state_.change(t.data(), probe.data(), change.data());
        if (along == VelocityStatus::not_finite)
            change.fill(std::numeric_limits<double>::infinity());
        else if (along != VelocityStatus::ok)
            return along;
        for (int l = 0; l < lanes; ++l) {
            Lane& a = lane[at(l)];
            if (a.alive && a.h <= 0 && a.t < to)
                a.h = a.control.first(probe[at(l)], speed[at(l)], change[at(l)], to - a.t);
        }
        return VelocityStatus::ok;
    }

    State& state_;
    const IntegrationOptions& options_;
    const Tableau& method_;
    const Run& run_;
    const int worker_;
    Rosenbrock rosenbrock_;
};

}  // namespace qk::ode
