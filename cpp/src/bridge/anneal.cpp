#include <algorithm>
#include <cmath>

#include "bridge/iterate.hpp"
#include "qk/scalar_math.hpp"

namespace qk {
namespace {

using Vector = Iterate::Vector;

std::vector<double> to_vector(const Vector& v) { return {v.data(), v.data() + v.size()}; }

class Annealing {
public:
    explicit Annealing(Iterate& at) : at_(at), mu_(to_vector(at.mu)), nu_(to_vector(at.nu)) {}

    // False: the kernel cannot be scaled.
    bool possible() { return (sweep_ = at_.sweep.scaled(0.5, at_.run)) != nullptr; }

    // To the scores themselves, or as near as the stages come. False when the solve has ended.
    bool run() {
        if (!find_start()) return false;
        if (stage(scale_, rough) < 0) return !ended_ && at_.end(BridgeStatus::stagnated);
        for (double pace = 4; scale_ < 1;) {
            const double next = std::min(1.0, scale_ * pace);
            if (next == 1.0) break;
            const Vector before = g_;
            const Index steps = stage(next, rough);
            if (ended_) return false;
            if (steps < 0) {  // too far at once
                g_ = before;
                pace = std::sqrt(pace);
                if (++failures_ > most_failures) return at_.end(BridgeStatus::stagnated);
                continue;
            }
            scale_ = next;
            if (steps <= 2) pace = std::min(2 * pace, 16.0);
            if (steps >= 8) pace = std::max(pace / 2, 2.0);
        }
        set(at_, scale_, 1.0);
        return true;
    }

private:
    static constexpr double rough = 1e-2;
    static constexpr int most_failures = 6;
    // Penalties are scaled like the scores, but not to where they say nothing: weights times exp(-potential / penalty)
    // would leave the range of the type.
    static constexpr double least_penalty = 1.0;

    // Potentials scale like the scores, but for the weights.
    void set(Iterate& to, double from_scale, double to_scale) const {
        for (Index j = 0; j < to.nu.size(); ++j)
            if (to.nu[j] > 0) to.g[j] = (g_[j] - at_.log_nu[j]) * (to_scale / from_scale) + at_.log_nu[j];
    }

    // The largest power of 1/16 at which a Sinkhorn step from nothing comes near: there is nothing to gain below.
    bool find_start() {
        constexpr double near = 0.3, smallest = 1e-9;
        for (scale_ = 1.0 / 16;; scale_ /= 16) {
            g_ = at_.log_nu;
            sweep_ = at_.sweep.scaled(scale_, at_.run);
            BridgeState state;
            BridgeOptions options = options_at(scale_);
            options.tol = near;
            options.max_visits = std::min<Index>(options.max_visits, 2);
            state.f.assign(mu_.size(), 0.0);
            state.g = to_vector(g_);
            Iterate probe(*sweep_, mu_, nu_, options, state, at_.run);
            alternate(probe, false);
            count(state);
            at_.rows_have_entries = at_.rows_have_entries || probe.rows_have_entries;
            at_.columns_have_entries = at_.columns_have_entries || probe.columns_have_entries;
            if (ended_) return false;
            if (state.status == BridgeStatus::converged || scale_ < smallest) return true;
        }
    }

    // The number of errors noted on the way to `tol` at a scale, from the potentials of the last; -1 if it does not
    // come there.
    Index stage(double scale, double tol) {
        sweep_ = at_.sweep.scaled(scale, at_.run);
        BridgeState state;
        BridgeOptions options = options_at(scale);
        options.tol = std::max(tol, at_.options.tol);
        state.f.assign(mu_.size(), 0.0);
        state.g = to_vector(g_);
        Iterate stage(*sweep_, mu_, nu_, options, state, at_.run);
        stage.rows_have_entries = at_.rows_have_entries;
        stage.columns_have_entries = at_.columns_have_entries;
        set(stage, scale_, scale);
        if (stage.visit(1.0)) {
            if (!stage.columns_vanish() || stage.recover_columns()) {
                if (!stage.columns_vanish()) stage.step_columns(1.0);
                newton(stage, true);
            }
        }
        count(state);
        g_ = stage.g;
        return state.status == BridgeStatus::converged ? static_cast<Index>(state.errors.size()) : -1;
    }

    BridgeOptions options_at(double scale) const {
        BridgeOptions out = at_.options;
        for (double* const penalty : {&out.row_penalty, &out.col_penalty})
            *penalty = std::max(*penalty * scale, std::min(*penalty, least_penalty));
        out.observe = nullptr;  // potentials of easier kernels are not what it is to see
        out.max_visits = at_.options.max_visits - at_.state.n_visits;
        out.max_iterations = at_.options.max_iterations - at_.iterations();
        if (at_.options.report)
            out.report = [this](Index visits, double error) {
                at_.options.report(at_.state.n_visits + visits, error);
            };
        return out;
    }

    void count(const BridgeState& state) {
        at_.state.n_visits += state.n_visits;
        at_.state.errors.insert(at_.state.errors.end(), state.errors.begin(), state.errors.end());
        if (state.status == BridgeStatus::interrupted || state.status == BridgeStatus::infeasible) {
            at_.end(state.status);
            ended_ = true;
        } else {
            ended_ = at_.limited();
        }
    }

    Iterate& at_;
    const std::vector<double> mu_, nu_;
    std::unique_ptr<Sweep> sweep_;
    Vector g_;
    double scale_ = 1;
    int failures_ = 0;
    bool ended_ = false;
};

}  // namespace

bool anneal(Iterate& at) {
    Annealing annealing(at);
    if (!annealing.possible()) return true;
    if (annealing.run()) newton(at, false);
    return false;
}

}  // namespace qk
