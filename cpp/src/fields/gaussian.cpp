#include "qk/gaussian.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>

#include "fields/gaussian_field.hpp"

namespace qk {
namespace {

// Explicit Runge-Kutta methods as data: stage s starts from y + h sum_j a[s][j] k_j, the step adds h sum_j b[j] k_j.
struct Tableau {
    int stages = 1;
    std::array<std::array<double, 6>, 7> a{};
    std::array<double, 7> b{};
    std::array<double, 7> error{};  // b minus the weights of the embedded method
};

Tableau tableau_of(GaussianMethod method) {
    switch (method) {
        case GaussianMethod::euler:
            return {1, {}, {1}, {}};
        case GaussianMethod::heun:
            return {2, {{{}, {1}}}, {0.5, 0.5}, {}};
        case GaussianMethod::rk4:
            return {4, {{{}, {0.5}, {0, 0.5}, {0, 0, 1}}}, {1. / 6, 1. / 3, 1. / 3, 1. / 6}, {}};
        case GaussianMethod::dopri5:
            break;
    }
    // Dormand and Prince's 5(4) pair; the last stage is the first one of the next step.
    return {7,
            {{{},
              {1. / 5},
              {3. / 40, 9. / 40},
              {44. / 45, -56. / 15, 32. / 9},
              {19372. / 6561, -25360. / 2187, 64448. / 6561, -212. / 729},
              {9017. / 3168, -355. / 33, 46732. / 5247, 49. / 176, -5103. / 18656},
              {35. / 384, 0, 500. / 1113, 125. / 192, -2187. / 6784, 11. / 84}}},
            {35. / 384, 0, 500. / 1113, 125. / 192, -2187. / 6784, 11. / 84, 0},
            {71. / 57600, 0, -71. / 16695, 71. / 1920, -17253. / 339200, 22. / 525, -1. / 40}};
}

// Growth per step up to which a step is taken to resolve it.
constexpr double resolved = 0.1;
constexpr Index poll_steps = 16;

// Tells the caller now and then how far the work has come; only the calling thread does.
class Progress {
public:
    Progress(const std::function<void(double)>& report, Index n_tasks) : report_(report), n_tasks_(n_tasks) {}

    void finished_task() { done_.fetch_add(1, std::memory_order_relaxed); }
    void say(int worker, double part_of_task) {
        if (!report_ || worker != 0) return;
        const auto now = std::chrono::steady_clock::now();
        if (now - last_ < std::chrono::milliseconds(100)) return;
        last_ = now;
        report_((static_cast<double>(done_.load(std::memory_order_relaxed)) + part_of_task) /
                static_cast<double>(n_tasks_));
    }

private:
    const std::function<void(double)>& report_;
    Index n_tasks_;
    std::atomic<Index> done_{0};
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// As many trajectories as a pack has lanes, from the start to the end.
// rate: (mean', cov') at the state; k: the stages, the first of them at the state.
template <class T>
class Block {
public:
    using P = Pack<T>;
    using Mask = packs::Mask<T>;
    static constexpr int lanes = SimdTraits<T>::width;

    Block(const GaussianProblem<T>& problem, const GaussianOptions& options, const Tableau& tableau,
          const GaussianResult<T>& result, Index first, RatesOfLaws<T>& rates)
        : problem_(problem),
          options_(options),
          tableau_(tableau),
          result_(result),
          first_(first),
          n_here_(static_cast<int>(std::min<Index>(lanes, problem.n - first))),
          d_(static_cast<int>(problem.d)),
          rates_(rates),
          product_(options.pushforward ? length() * lanes : 0),
          memory_((tableau.stages + 4) * length() * lanes) {
        auto* at = reinterpret_cast<P*>(memory_.data());
        state_ = at;
        trial_ = at + length();
        map_ = at + 2 * length();
        k_ = at + 4 * length();
        rate_ = options.pushforward ? at + 3 * length() : k_;
        read();
    }

    // False when the computation was stopped.
    bool run(const Run& run, int worker, Progress& progress) {
        first_stage();
        measure();
        measure_slope();
        for (int l = 0; l < lanes; ++l) start(l);
        write(0);
        const bool adaptive = options_.method == GaussianMethod::dopri5;
        const double span = options_.t1 - options_.t0;
        const auto n = static_cast<double>(options_.n_steps);
        Index stored = 1;
        for (Index step = 0; step < options_.n_steps; ++step) {
            if (step % poll_steps == 0) {
                if (should_stop(run, worker)) return false;
                progress.say(worker, static_cast<double>(step) / n);
            }
            const double t = options_.t0 + span * (static_cast<double>(step) / n);
            const double t_next = step + 1 == options_.n_steps
                                      ? options_.t1
                                      : options_.t0 + span * (static_cast<double>(step + 1) / n);
            if (packs::any<T>(alive_)) {
                if (adaptive) {
                    if (!adaptive_interval(t, t_next, run, worker)) return false;
                } else {
                    fixed_step(t, t_next);
                }
            }
            if ((step + 1) % options_.store_every == 0 || step + 1 == options_.n_steps) write(stored++);
        }
        finish();
        progress.finished_task();
        return true;
    }

private:
    int d() const { return d_; }
    Index length() const { return d() + Index{d()} * d(); }  // times stages and lanes: more than an int holds
    P* stage(int s) { return k_ + s * length(); }

    void read() {
        for (int e = 0; e < length(); ++e) {
            T lane[lanes];
            for (int l = 0; l < lanes; ++l) {
                const Index which = std::min(first_ + l, problem_.n - 1);
                lane[l] =
                    e < d() ? problem_.mean[which * d() + e] : problem_.cov[which * d() * d() + e - d()];
            }
            state_[e] = load(lane);
        }
    }

    void scatter(const P* from, T* mean, T* cov) const {
        for (int l = 0; l < n_here_; ++l) {
            const Index which = first_ + l;
            for (int e = 0; e < d(); ++e) mean[which * d() + e] = from[e][l];
            for (int e = 0; e < d() * d(); ++e) cov[which * d() * d() + e] = from[d() + e][l];
        }
    }

    void write(Index slot) const {
        const Index n = problem_.n;
        scatter(state_, result_.mean + slot * n * d(), result_.cov + slot * n * d() * d());
    }

    // The square of the size.
    void measure() {
        square_ = packs::dot<T>(d() * d(), state_ + d(), state_ + d());
        if (options_.judge_mean) {  // the size of the mean is |mean|^2
            const P mean = packs::dot<T>(d(), state_, state_);
            square_ = max(square_, mean * mean);
        }
    }
    // Half its derivative; the growth is their quotient.
    void measure_slope() {
        slope_ = packs::dot<T>(d() * d(), state_ + d(), rate_ + d());
        if (options_.judge_mean) {
            const P mean = packs::dot<T>(d(), state_, state_), drift = packs::dot<T>(d(), state_, rate_);
            slope_ = select(mean * mean == square_, broadcast(T(2)) * mean * drift, slope_);
        }
    }

    double size(int l) const { return std::sqrt(static_cast<double>(square_[l])); }
    double growth(int l) const {
        const auto s = static_cast<double>(square_[l]);
        return s > 0 ? static_cast<double>(slope_[l]) / s : 0.0;
    }

    void start(int l) {
        GaussianOutcome& o = outcome_[static_cast<std::size_t>(l)];
        o.t = o.mark_t = options_.t0;
        o.start_size = o.size = o.mark_size = size(l);
        o.growth = o.mark_growth = growth(l);
        alive_[l] = l < n_here_ ? -1 : 0;
        const double most = options_.max_growth * o.start_size;
        const auto most_square = static_cast<T>(std::min(most * most, 0.9 * largest));
        limit_[l] = o.start_size > 0 ? most_square : infinity<T>();
        next_mark_[l] = T(4) * square_[l];
        last_error_[l] = 1;
    }

    // After steps of h to time t, with the rates there: marks, and trajectories that have grown too large. No h: the
    // steps are controlled, so that they resolve the growth.
    void judge(const double* t, const double* h) {
        measure();
        const Mask look = alive_ & ((square_ > next_mark_) | (square_ > limit_));
        if (!packs::any<T>(look)) return;
        measure_slope();
        for (int l = 0; l < n_here_; ++l) {
            if (look[l] == 0) continue;
            GaussianOutcome& o = outcome_[static_cast<std::size_t>(l)];
            if (square_[l] > next_mark_[l]) {
                if (h == nullptr || growth(l) * h[l] <= resolved) {
                    if (o.first_size == 0) {
                        o.first_t = t[l];
                        o.first_size = size(l);
                    }
                    o.earlier_t = o.mark_t;
                    o.earlier_size = o.mark_size;
                    o.earlier_growth = o.mark_growth;
                    o.mark_t = t[l];
                    o.mark_size = size(l);
                    o.mark_growth = growth(l);
                    o.positive = o.positive && positive(l);
                    next_mark_[l] = T(4) * square_[l];
                } else {
                    next_mark_[l] = infinity<T>();
                }
            }
            if (square_[l] > limit_[l]) end(l, GaussianEnd::too_large, t[l]);
        }
    }

    // Whether cov + resolved |cov| I has a Cholesky factor: what resolved steps may do to the smallest eigenvalue.
    bool positive(int l) const {
        Buffer<double> factor(d() * d());
        double norm = 0;
        for (int e = 0; e < d() * d(); ++e) {
            factor[e] = static_cast<double>(state_[d() + e][l]);
            norm += factor[e] * factor[e];
        }
        const double shift = resolved * std::sqrt(norm);
        for (int j = 0; j < d(); ++j) {
            double pivot = factor[j * d() + j] + shift;
            for (int k = 0; k < j; ++k) pivot -= factor[j * d() + k] * factor[j * d() + k];
            if (!(pivot > 0)) return false;
            const double inverse = 1 / std::sqrt(pivot);
            for (int i = j + 1; i < d(); ++i) {
                double x = factor[i * d() + j];
                for (int k = 0; k < j; ++k) x -= factor[i * d() + k] * factor[j * d() + k];
                factor[i * d() + j] = x * inverse;
            }
        }
        return true;
    }

    void end(int l, GaussianEnd why, double t) {
        GaussianOutcome& o = outcome_[static_cast<std::size_t>(l)];
        o.end = why;
        o.t = t;
        alive_[l] = 0;
    }

    // The rates at the state, and from them the first stage.
    void first_stage() {
        rates_(state_, rate_);
        if (!options_.pushforward) return;  // they are the same
        std::copy(rate_, rate_ + d(), k_);
        std::copy(rates_.matrix(), rates_.matrix() + d() * d(), k_ + d());
    }

    // Stage s from the state of that stage. Pushed forward, the second part of a stage is M_s P_s.
    void later_stage(int s) {
        combine(tableau_.a[static_cast<std::size_t>(s)].data(), s);
        rates_(trial_, stage(s));
        if (options_.pushforward) rates_.multiply(rates_.matrix(), map_ + d(), stage(s) + d());
    }

    // trial := y + h sum_j weight_j k_j. Pushed forward, the covariances are P cov P^T with P = I + h sum_j
    // weight_j k_j: the law that the particles x + h sum_j weight_j k_j(x) have, positive semidefinite always.
    void combine(const double* weights, int n) {
        P weight[7];
        for (int j = 0; j < n; ++j) weight[j] = h_pack_ * broadcast(static_cast<T>(weights[j]));
        const Index straight = options_.pushforward ? d() : length();
        if (n == 1) {
            for (int e = 0; e < straight; ++e) trial_[e] = fma(weight[0], k_[e], state_[e]);
        } else {
            for (int e = 0; e < straight; ++e) {
                P x = state_[e];
                for (int j = 0; j < n; ++j) x = fma(weight[j], stage(j)[e], x);
                trial_[e] = x;
            }
        }
        if (!options_.pushforward) return;
        for (int e = d(); e < length(); ++e) {
            P x = broadcast(T((e - d()) % (d() + 1) == 0 ? 1 : 0));
            for (int j = 0; j < n; ++j) x = fma(weight[j], stage(j)[e], x);
            map_[e] = x;
        }
        rates_.congruence(map_ + d(), state_ + d(), reinterpret_cast<P*>(product_.data()), trial_ + d());
    }

    Mask finite_trial() const {
        P sum[2] = {};  // 0 x is 0 for every finite x, NaN for the others
        for (int e = 0; e < length(); ++e) sum[e % 2] = fma(trial_[e], P{}, sum[e % 2]);
        return sum[0] + sum[1] == P{};
    }

    void accept(Mask lanes_taken) {
        for (int e = 0; e < length(); ++e) state_[e] = select(lanes_taken, trial_[e], state_[e]);
    }

    void fixed_step(double t, double t_next) {
        h_pack_ = broadcast(static_cast<T>(t_next - t));
        for (int s = 1; s < tableau_.stages; ++s) later_stage(s);
        combine(tableau_.b.data(), tableau_.stages);
        const Mask fine = finite_trial(), lost = alive_ & ~fine;
        accept(alive_ & fine);
        if (packs::any<T>(lost))
            for (int l = 0; l < n_here_; ++l)
                if (lost[l] != 0) end(l, GaussianEnd::not_finite, t);
        first_stage();
        double times[lanes], steps[lanes];
        for (int l = 0; l < lanes; ++l) {
            times[l] = t_next;
            steps[l] = t_next - t;
            if (alive_[l] != 0) ++outcome_[static_cast<std::size_t>(l)].n_steps;
        }
        judge(times, steps);
    }

    // Every lane from t to t_next with steps of its own. False when the computation was stopped.
    bool adaptive_interval(double t, double t_next, const Run& run, int worker) {
        double now[lanes], h[lanes];
        for (int l = 0; l < lanes; ++l) {
            now[l] = t;
            if (h_[l] == 0) h_[l] = first_step(l, t_next - t);
        }
        for (Index round = 1;; ++round) {
            if (round % poll_steps == 0 && should_stop(run, worker)) return false;
            Mask moving{};
            h_pack_ = P{};
            for (int l = 0; l < n_here_; ++l) {
                const double left = t_next - now[l];
                if (alive_[l] == 0 || left <= 0) continue;
                h[l] = std::min(h_[l], left);
                if (left - h[l] < 1e-3 * h[l]) h[l] = left;  // no sliver at the end
                moving[l] = -1;
                h_pack_[l] = static_cast<T>(h[l]);
            }
            if (!packs::any<T>(moving)) return true;
            for (int s = 1; s < tableau_.stages; ++s) later_stage(s);
            const P error = error_square();
            const Mask fine = finite_trial();
            Mask taken{};
            for (int l = 0; l < n_here_; ++l) {
                if (moving[l] == 0) continue;
                const double e = fine[l] != 0 ? std::sqrt(static_cast<double>(error[l])) : infinity<double>();
                if (e <= 1) taken[l] = -1;
                control(l, e, now[l], h[l]);
            }
            if (!packs::any<T>(taken)) continue;
            accept(taken);
            if (options_.pushforward)
                first_stage();
            else  // the last stage was taken at the new state
                for (int x = 0; x < length(); ++x) k_[x] = select(taken, stage(6)[x], k_[x]);
            for (int l = 0; l < n_here_; ++l)
                if (taken[l] != 0) now[l] = h[l] == t_next - now[l] ? t_next : now[l] + h[l];
            judge(now, nullptr);
        }
    }

    // Step size after a trial of h with error e (in units of the tolerance), by a PI controller.
    void control(int l, double e, double now, double h) {
        GaussianOutcome& o = outcome_[static_cast<std::size_t>(l)];
        if (e <= 1) {
            ++o.n_steps;
            const double now_error = std::max(e, 1e-10);
            const double factor = 0.9 * std::pow(now_error, -0.14) * std::pow(last_error_[l], 0.08);
            const double wanted = h * std::clamp(factor, 0.2, 10.0);
            h_[l] = h < h_[l] ? std::max(h_[l], wanted) : wanted;  // a step cut at a stored time says little
            last_error_[l] = std::max(e, 1e-4);
            o.t = now + h;
        } else {
            ++o.n_rejected;
            h_[l] = h * (std::isfinite(e) ? std::clamp(0.9 * std::pow(e, -0.2), 0.1, 0.9) : 0.1);
        }
        const double smallest = 16 * std::numeric_limits<double>::epsilon() *
                                std::max(std::abs(options_.t0), std::abs(options_.t1));
        if (e > 1 && h_[l] < smallest)
            end(l, GaussianEnd::step_underflow, now);
        else if (o.n_steps + o.n_rejected >= options_.max_steps)
            end(l, GaussianEnd::step_limit, o.t);
    }

    double first_step(int l, double interval) const {
        double y = 0, k = 0;
        for (int e = 0; e < length(); ++e) {
            y = std::max(y, std::abs(static_cast<double>(state_[e][l])));
            k = std::max(k, std::abs(static_cast<double>(rate_[e][l])));
        }
        const double guess = k > 0 ? 0.01 * (y + options_.atol) / k : interval;
        return std::min(interval, guess);
    }

    // In units of the tolerance. Pushed forward, the error is that of the map P, which moves every direction of the
    // covariance in proportion to its size: small eigenvalues beside large ones keep their digits, and their sign.
    P error_square() {
        P weight[7];
        for (int j = 0; j < 7; ++j)
            weight[j] = h_pack_ * broadcast(static_cast<T>(tableau_.error[static_cast<std::size_t>(j)]));
        const P absolute = broadcast(static_cast<T>(options_.atol)),
                relative = broadcast(static_cast<T>(options_.rtol));
        P sum{};
        for (int e = 0; e < length(); ++e) {
            P x{};
            for (int j = 0; j < 7; ++j) x = fma(weight[j], stage(j)[e], x);
            P scale =
                fma(relative, max(packs::magnitude<T>(state_[e]), packs::magnitude<T>(trial_[e])), absolute);
            if (options_.pushforward && e >= d()) scale = relative;
            x /= scale;
            sum = fma(x, x, sum);
        }
        return sum / broadcast(static_cast<T>(length()));
    }

    void finish() {
        rates_(state_, rate_);
        measure();
        measure_slope();
        scatter(rate_, result_.mean_rate, result_.cov_rate);
        for (int l = 0; l < n_here_; ++l) {
            GaussianOutcome& o = outcome_[static_cast<std::size_t>(l)];
            if (o.end == GaussianEnd::reached_t1) o.t = options_.t1;
            o.size = size(l);
            o.growth = growth(l);
            result_.outcome[first_ + l] = o;
        }
    }

    static constexpr double largest = std::numeric_limits<T>::max();

    const GaussianProblem<T>& problem_;
    const GaussianOptions& options_;
    const Tableau& tableau_;
    const GaussianResult<T>& result_;
    Index first_;
    int n_here_, d_;
    RatesOfLaws<T>& rates_;
    Buffer<T> product_, memory_;
    P *state_ = nullptr, *trial_ = nullptr, *map_ = nullptr, *rate_ = nullptr, *k_ = nullptr;
    P h_pack_{};
    P square_{}, slope_{}, limit_{}, next_mark_{};
    Mask alive_{};
    std::array<GaussianOutcome, lanes> outcome_{};
    double h_[lanes] = {};
    double last_error_[lanes] = {};
};

template <class T, int D>
void flow_of(const GaussianProblem<T>& problem, const GaussianOptions& options,
             const GaussianResult<T>& result, const Run& run) {
    const Tableau tableau = tableau_of(options.method);
    constexpr Index lanes = SimdTraits<T>::width;
    const Index n_tasks = (problem.n + lanes - 1) / lanes;
    Progress progress(options.report, n_tasks);
    parallel_for(run, n_tasks, [&](Index task, int worker) {
        GaussianRates<T, D> rates(problem, task * lanes);
        Block<T>(problem, options, tableau, result, task * lanes, rates).run(run, worker, progress);
    });
}

}  // namespace

template <class T>
void gaussian_flow(const GaussianProblem<T>& problem, const GaussianOptions& options,
                   const GaussianResult<T>& result, const Run& run) {
    switch (problem.d) {
        case 1:
            return flow_of<T, 1>(problem, options, result, run);
        case 2:
            return flow_of<T, 2>(problem, options, result, run);
        case 3:
            return flow_of<T, 3>(problem, options, result, run);
        case 4:
            return flow_of<T, 4>(problem, options, result, run);
        case 5:
            return flow_of<T, 5>(problem, options, result, run);
        case 6:
            return flow_of<T, 6>(problem, options, result, run);
        default:
            return flow_of<T, 0>(problem, options, result, run);
    }
}

template void gaussian_flow(const GaussianProblem<float>&, const GaussianOptions&,
                            const GaussianResult<float>&, const Run&);
template void gaussian_flow(const GaussianProblem<double>&, const GaussianOptions&,
                            const GaussianResult<double>&, const Run&);

}  // namespace qk
