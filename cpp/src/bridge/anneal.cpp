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

    // Whether there are easier kernels.
    bool possible() { return at_.sweep.easier(0.5, at_.run).sweep != nullptr; }

    // Solves for harder and harder kernels, until the next one would be the kernel itself; its solver then starts from
    // their potentials. Returns false if the solve has ended.
    bool run() {
        if (!find_start()) return false;
        if (stage(difficulty_, rough) < 0) return !ended_ && at_.end(BridgeStatus::stagnated);
        for (double pace = 4; difficulty_ < 1;) {
            const double next = std::min(1.0, difficulty_ * pace);
            if (next == 1.0) break;
            const Stage before = last_, earlier = earlier_;
            const Index steps = stage(next, rough);
            if (ended_) return false;
            if (steps < 0) {  // the difficulty rose too much at once
                last_ = before;
                earlier_ = earlier;
                pace = std::sqrt(pace);
                if (++failures_ > most_failures) return at_.end(BridgeStatus::stagnated);
                continue;
            }
            difficulty_ = next;
            if (steps <= 2) pace = std::min(2 * pace, 16.0);
            if (steps >= 8) pace = std::max(pace / 2, 2.0);
        }
        carry(at_, 1.0, 1.0, false);
        return true;
    }

private:
    static constexpr double rough = 1e-2;
    static constexpr int most_failures = 6;
    // Penalties are multiplied by the unit of the potentials, but not to less than this (a smaller one stays as it is).
    // Otherwise weights times exp(-potential / penalty) would leave the range of the type.
    static constexpr double least_penalty = 1.0;

    // The result of a stage: g less the logarithms of the weights, divided by the unit (EasierKernel).
    struct Stage {
        double difficulty = 0;
        Vector potentials;
    };
    Stage staged(double difficulty, double unit, const Vector& g) const {
        Stage out{difficulty, Vector::Zero(g.size())};
        for (Index j = 0; j < g.size(); ++j)
            if (at_.nu[j] > 0) out.potentials[j] = (g[j] - at_.log_nu[j]) / unit;
        return out;
    }

    // Sets the potentials from which a kernel of this difficulty starts: those of the last stage or, if they drift, the
    // continuation of the line through the last two stages, by at most the distance between these.
    void carry(Iterate& to, double difficulty, double unit, bool drift) const {
        Vector start = last_.potentials;
        if (drift && earlier_.potentials.size() > 0) {
            const double ahead = (difficulty - last_.difficulty) / (last_.difficulty - earlier_.difficulty);
            start += std::min(ahead, 1.0) * (last_.potentials - earlier_.potentials);
        }
        for (Index j = 0; j < to.nu.size(); ++j)
            if (to.nu[j] > 0) to.g[j] = start[j] * unit + at_.log_nu[j];
    }

    // Finds the largest power of 1/16 at which one Sinkhorn step from zero potentials comes near the solution. To start
    // at a smaller difficulty would gain nothing.
    bool find_start() {
        constexpr double near = 0.3, smallest = 1e-9;
        for (difficulty_ = 1.0 / 16;; difficulty_ /= 16) {
            const EasierKernel easier = at_.sweep.easier(difficulty_, at_.run);
            last_ = staged(difficulty_, easier.unit, at_.log_nu);
            BridgeState state;
            BridgeOptions options = options_at(easier.unit);
            options.tol = near;
            options.max_visits = std::min<Index>(options.max_visits, 2);
            state.f.assign(mu_.size(), 0.0);
            state.g = to_vector(at_.log_nu);
            Iterate probe(*easier.sweep, mu_, nu_, options, state, at_.run);
            alternate(probe, false);
            count(state);
            at_.rows_have_entries = at_.rows_have_entries || probe.rows_have_entries;
            at_.columns_have_entries = at_.columns_have_entries || probe.columns_have_entries;
            if (ended_) return false;
            if (state.status == BridgeStatus::converged || difficulty_ < smallest) return true;
        }
    }

    // Solves for the kernel of a difficulty until the error is at most `tol`, starting from the stages before. Returns
    // the number of iterations, or -1 if the error stays larger.
    Index stage(double difficulty, double tol) {
        const EasierKernel easier = at_.sweep.easier(difficulty, at_.run);
        BridgeState state;
        BridgeOptions options = options_at(easier.unit);
        options.tol = std::max(tol, at_.options.tol);
        state.f.assign(mu_.size(), 0.0);
        state.g = to_vector(at_.log_nu);
        Iterate stage(*easier.sweep, mu_, nu_, options, state, at_.run);
        stage.rows_have_entries = at_.rows_have_entries;
        stage.columns_have_entries = at_.columns_have_entries;
        carry(stage, difficulty, easier.unit, easier.drift);
        if (stage.visit(1.0)) {
            if (!stage.columns_vanish() || stage.recover_columns()) {
                if (!stage.columns_vanish()) stage.step_columns(1.0);
                newton(stage, true);
            }
        }
        count(state);
        if (difficulty > last_.difficulty) earlier_ = last_;
        last_ = staged(difficulty, easier.unit, stage.g);
        return state.status == BridgeStatus::converged ? static_cast<Index>(state.errors.size()) : -1;
    }

    BridgeOptions options_at(double unit) const {
        BridgeOptions out = at_.options;
        out.observe = nullptr;  // the observer sees the potentials of the kernel itself only
        for (double* const penalty : {&out.row_penalty, &out.col_penalty})
            *penalty = std::max(*penalty * unit, std::min(*penalty, least_penalty));
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
        // These verdicts hold for the kernel itself as well. If kernels have negative entries, those of the easier kernel
        // are at least as large as its own, so a sum that is not positive here is not positive there either.
        for (const auto verdict :
             {BridgeStatus::interrupted, BridgeStatus::infeasible, BridgeStatus::negative_kernel})
            if (state.status == verdict) ended_ = true;
        if (ended_)
            at_.end(state.status);
        else
            ended_ = at_.limited();
    }

    Iterate& at_;
    const std::vector<double> mu_, nu_;
    Stage last_, earlier_;
    double difficulty_ = 1;
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
