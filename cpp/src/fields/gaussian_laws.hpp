// Gaussian laws as a state of the integrator: as many trajectories as a pack has lanes, or (Single) one alone.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "fields/gaussian_field.hpp"
#include "ode/integrator.hpp"

namespace qk {

// The largest growth in one step for which the step counts as resolving it.
inline constexpr double resolved_growth = 0.1;

// rate_ is (mean', cov') at the state; k_ are the stages, of which the first is at the state. In the pushforward form
// the second part of a stage is the matrix M_s P_s instead of cov'. With Single a pack holds one law, or a part of its
// numbers.
template <class T, bool Single>
class Laws {
public:
    using P = Pack<T>;
    using Mask = packs::Mask<T>;
    static constexpr int width = SimdTraits<T>::width;
    static constexpr int lanes = Single ? 1 : width;

    Laws(const GaussianProblem<T>& problem, const GaussianOptions& options, const GaussianResult<T>& result,
         Index first, RatesOfLaws<T>& rates)
        : problem_(problem),
          options_(options),
          method_(tableau(options.method)),
          result_(result),
          first_(first),
          n_here_(static_cast<int>(std::min<Index>(lanes, problem.n - first))),
          d_(static_cast<int>(problem.d)),
          at_{d_, Single},
          rates_(rates),
          product_(options.pushforward ? at_.length() * width : 0),
          memory_((method_.n_stages + 4) * at_.length() * width),
          system_(*this) {
        std::fill(memory_.data(), memory_.data() + (method_.n_stages + 4) * at_.length() * width, T(0));
        auto* at = reinterpret_cast<P*>(memory_.data());
        state_ = at;
        trial_ = at + at_.length();
        map_ = at + 2 * at_.length();
        k_ = at + 4 * at_.length();
        rate_ = options.pushforward || method_.implicit() ? at + 3 * at_.length() : k_;
        read();
    }

    // ---- what the integrator asks for --------------------------------------------------------------------

    VelocityStatus first(double) { return VelocityStatus::ok; }  // known since the last step

    VelocityStatus stage(int s, const double*, const double* h) {
        combine(method_.a[static_cast<std::size_t>(s)].data(), s, packed(h), trial_);
        slope(stage_at(s));
        return VelocityStatus::ok;
    }

    void finish(const double* h) {
        combine(method_.b.data(), method_.n_stages, method_.implicit() ? broadcast(T(1)) : packed(h), trial_);
    }

    void lost(bool* out) const {
        P sum[2] = {};  // 0 x is 0 for every finite x, and NaN otherwise
        for (Index e = 0; e < at_.length(); ++e) sum[e % 2] = fma(trial_[e], P{}, sum[e % 2]);
        const P all = gathered(sum[0] + sum[1]);
        for (int l = 0; l < lanes; ++l) out[l] = !(all[l] == T(0));
    }

    void errors(const double* h, double* out) {
        const P factor = method_.implicit() ? broadcast(T(1)) : packed(h);
        P weight[max_stages];
        for (int j = 0; j < method_.n_stages; ++j) weight[j] = factor * number(method_.error[place(j)]);
        scaled(trial_, out, [&](Index e) {
            P x{};
            for (int j = 0; j < method_.n_stages; ++j) x = fma(weight[j], stage_at(j)[e], x);
            return x;
        });
        bool gone[lanes];
        lost(gone);
        for (int l = 0; l < lanes; ++l)
            if (gone[l]) out[l] = infinity<double>();
    }

    void sizes(double* size, double* speed) const {
        const P one = broadcast(T(1));
        scaled(state_, size, [&](Index e) {  // in the pushforward form the map at the state is the identity
            return options_.pushforward && e >= at_.mean() ? one : state_[e];
        });
        const P* at_state = options_.pushforward ? k_ : rate_;
        scaled(state_, speed, [&](Index e) { return at_state[e]; });
    }

    VelocityStatus change(const double*, const double* h, double* out) {
        const double one = 1;
        P* const now = method_.implicit() ? rate_ : k_;
        combine(&one, 1, packed(h), trial_, now);
        slope(stage_at(1));
        scaled(state_, out, [&](Index e) { return stage_at(1)[e] - now[e]; });
        return VelocityStatus::ok;
    }

    bool escaping(int, double) const { return true; }  // a law whose steps become too small has blown up

    ode::StiffSystem* stiff() {
        if constexpr (Single && std::is_same_v<T, double>) return &system_;
        return nullptr;
    }

    void take(const bool* taken, const double* h, ode::Lane* lane) {
        Mask moves{};
        bool all = true;
        for (int l = 0; l < lanes; ++l) {
            set(moves, l, taken[l]);
            all = all && (taken[l] || l >= n_here_);
        }
        for (Index e = 0; e < at_.length(); ++e) state_[e] = select(moves, trial_[e], state_[e]);
        if (method_.last_is_next && !options_.pushforward)  // the last stage is the slope at the new state
            for (Index e = 0; e < at_.length(); ++e)
                k_[e] = select(moves, stage_at(method_.n_stages - 1)[e], k_[e]);
        else
            first_slope();
        for (int l = 0; l < n_here_; ++l)
            if (taken[l]) lane[l].t = lane[l].to;
        judge(taken, h, lane);
    }

    // ---- what the flow asks for --------------------------------------------------------------------------

    void begin(ode::Lane* lane) {
        first_slope();
        measure();
        measure_slope();
        for (int l = 0; l < lanes; ++l) start(l, lane[l]);
    }

    void write(Index slot) const {
        const Index n = problem_.n;
        scatter(state_, result_.mean + slot * n * d_, result_.cov + slot * n * d_ * d_);
    }

    void close(const ode::Lane* lane) {
        rates_(state_, rate_);
        measure();
        measure_slope();
        scatter(rate_, result_.mean_rate, result_.cov_rate);
        for (int l = 0; l < n_here_; ++l) {
            GaussianOutcome& o = outcome_[place(l)];
            o.end = lane[l].status;
            o.t = lane[l].status == FlowStatus::finished ? options_.t1 : lane[l].t;
            o.n_steps = lane[l].n_steps;
            o.n_rejected = lane[l].n_rejected;
            o.size = size(l);
            o.growth = growth(l);
            result_.outcome[first_ + l] = o;
        }
    }

private:
    // The stiff system of a law: the mean and the lower triangle of the covariance are unknowns.
    class System final : public ode::StiffSystem {
    public:
        explicit System(Laws& of) : of_(of) {}

        Index unknowns() const override { return d() + d() * (d() + 1) / 2; }
        Index length() const override { return of_.at_.length() * width; }
        void gather(const double* whole, double* y) const override {
            std::copy_n(whole, d(), y);
            y += d();
            for (Index i = 0; i < d(); ++i, y += i) std::copy_n(whole + cov() + i * d(), i + 1, y);
        }
        void scatter(const double* y, double* whole) const override {
            std::copy_n(y, d(), whole);
            y += d();
            for (Index i = 0; i < d(); ++i)
                for (Index j = 0; j <= i; ++j) whole[cov() + i * d() + j] = whole[cov() + j * d() + i] = *y++;
        }
        bool autonomous() const override { return true; }
        VelocityStatus rate(double, const double* whole, double* out) override {
            if constexpr (std::is_same_v<T, double>) {
                std::copy_n(whole, length(), numbers(of_.trial_));
                of_.slope(of_.map_);
                std::copy_n(numbers(of_.map_), length(), out);
            }
            return VelocityStatus::ok;
        }
        const double* state() const override { return numbers(of_.state_); }
        const double* slope() const override { return numbers(of_.rate_); }
        double* increment(int s) override { return numbers(of_.stage_at(s)); }

    private:
        Index d() const { return of_.d_; }
        Index cov() const { return of_.at_.mean() * width; }
        static double* numbers(P* p) { return reinterpret_cast<double*>(p); }
        Laws& of_;
    };

    static std::size_t place(int i) { return static_cast<std::size_t>(i); }
    static P number(double x) { return broadcast(static_cast<T>(x)); }
    P* stage_at(int s) const { return k_ + s * at_.length(); }

    static P packed(const double* x) {
        P out{};
        for (int l = 0; l < width; ++l) out[l] = static_cast<T>(x[Single ? 0 : l]);
        return out;
    }
    static void set(Mask& mask, int lane, bool value) {
        for (int l = Single ? 0 : lane; l < (Single ? width : lane + 1); ++l) mask[l] = value ? -1 : 0;
    }
    // For a single law, a sum over numbers has to be completed by a sum over lanes.
    static P gathered(P x) {
        if constexpr (!Single) return x;
        T sum = T(0);
        for (int l = 0; l < width; ++l) sum += x[l];
        return broadcast(sum);
    }

    // Number e of the mean (in cov_at: of the covariance) of one lane.
    T mean_at(const P* from, int e, int l) const {
        return Single ? reinterpret_cast<const T*>(from)[e] : from[e][l];
    }
    T cov_at(const P* from, Index e, int l) const {
        const P* cov = from + at_.mean();
        return Single ? reinterpret_cast<const T*>(cov)[e] : cov[e][l];
    }

    void read() {
        for (int l = 0; l < lanes; ++l) {
            const Index which = std::min(first_ + l, problem_.n - 1);
            const T *mean = problem_.mean + which * d_, *cov = problem_.cov + which * at_.square();
            if constexpr (Single) {
                std::copy_n(mean, d_, reinterpret_cast<T*>(state_));
                std::copy_n(cov, at_.square(), reinterpret_cast<T*>(state_ + at_.mean()));
            } else {
                for (int e = 0; e < d_; ++e) state_[e][l] = mean[e];
                for (Index e = 0; e < at_.square(); ++e) state_[d_ + e][l] = cov[e];
            }
        }
    }

    void scatter(const P* from, T* mean, T* cov) const {
        for (int l = 0; l < n_here_; ++l) {
            const Index which = first_ + l;
            for (int e = 0; e < d_; ++e) mean[which * d_ + e] = mean_at(from, e, l);
            for (Index e = 0; e < at_.square(); ++e) cov[which * at_.square() + e] = cov_at(from, e, l);
        }
    }

    // The square of the size.
    void measure() {
        const P* cov = state_ + at_.mean();
        square_ = gathered(packs::dot<T>(at_.cov(), cov, cov));
        if (options_.judge_mean) {  // the size of the mean is |mean|^2
            const P mean = gathered(packs::dot<T>(at_.mean(), state_, state_));
            square_ = max(square_, mean * mean);
        }
    }
    // Half the derivative of the square of the size; divided by the square it is the growth.
    void measure_slope() {
        slope_ = gathered(packs::dot<T>(at_.cov(), state_ + at_.mean(), rate_ + at_.mean()));
        if (options_.judge_mean) {
            const P mean = gathered(packs::dot<T>(at_.mean(), state_, state_));
            const P drift = gathered(packs::dot<T>(at_.mean(), state_, rate_));
            slope_ = select(mean * mean == square_, broadcast(T(2)) * mean * drift, slope_);
        }
    }

    double size(int l) const { return std::sqrt(static_cast<double>(square_[l])); }
    double growth(int l) const {
        const auto s = static_cast<double>(square_[l]);
        return s > 0 ? static_cast<double>(slope_[l]) / s : 0.0;
    }

    void start(int l, ode::Lane& lane) {
        GaussianOutcome& o = outcome_[place(l)];
        lane.alive = l < n_here_;
        o.t = o.mark_t = options_.t0;
        o.start_size = o.size = o.mark_size = size(l);
        o.growth = o.mark_growth = growth(l);
        const double most = options_.max_growth * o.start_size;
        const auto most_square = static_cast<T>(std::min(most * most, 0.9 * largest));
        limit_[l] = o.start_size > 0 ? most_square : infinity<T>();
        next_mark_[l] = T(4) * square_[l];
    }

    // After a step: sets marks, and ends trajectories that have grown too large. Controlled steps always resolve the
    // growth.
    void judge(const bool* taken, const double* h, ode::Lane* lane) {
        measure();
        bool any = false;
        for (int l = 0; l < n_here_; ++l)
            any = any || (taken[l] && (square_[l] > next_mark_[l] || square_[l] > limit_[l]));
        if (!any) return;
        measure_slope();
        const bool controlled = options_.n_steps == 0;
        for (int l = 0; l < n_here_; ++l) {
            if (!taken[l]) continue;
            GaussianOutcome& o = outcome_[place(l)];
            const double t = lane[l].t;
            if (square_[l] > next_mark_[l]) {
                if (controlled || growth(l) * h[l] <= resolved_growth) {
                    if (o.first_size == 0) {
                        o.first_t = t;
                        o.first_size = size(l);
                    }
                    o.earlier_t = o.mark_t;
                    o.earlier_size = o.mark_size;
                    o.earlier_growth = o.mark_growth;
                    o.mark_t = t;
                    o.mark_size = size(l);
                    o.mark_growth = growth(l);
                    o.positive = o.positive && positive(l);
                    next_mark_[l] = T(4) * square_[l];
                } else {
                    next_mark_[l] = infinity<T>();
                }
            }
            if (square_[l] > limit_[l]) lane[l].end(FlowStatus::blew_up);
        }
    }

    // Whether cov + resolved_growth |cov| I has a Cholesky factor: steps that resolve the growth may change the
    // smallest eigenvalue by that much.
    bool positive(int l) const {
        const Index n = d_;
        Buffer<double> factor(n * n);
        double norm = 0;
        for (Index e = 0; e < n * n; ++e) {
            factor[e] = static_cast<double>(cov_at(state_, e, l));
            norm += factor[e] * factor[e];
        }
        const double shift = resolved_growth * std::sqrt(norm);
        for (Index j = 0; j < n; ++j) {
            double pivot = factor[j * n + j] + shift;
            for (Index k = 0; k < j; ++k) pivot -= factor[j * n + k] * factor[j * n + k];
            if (!(pivot > 0)) return false;
            const double inverse = 1 / std::sqrt(pivot);
            for (Index i = j + 1; i < n; ++i) {
                double x = factor[i * n + j];
                for (Index k = 0; k < j; ++k) x -= factor[i * n + k] * factor[j * n + k];
                factor[i * n + j] = x * inverse;
            }
        }
        return true;
    }

    // Computes the rates at the state, and from them the first stage.
    void first_slope() {
        rates_(state_, rate_);
        if (!options_.pushforward) return;  // the first stage is the rate
        std::copy(rate_, rate_ + at_.mean(), k_);
        std::copy(rates_.matrix(), rates_.matrix() + at_.cov(), k_ + at_.mean());
    }

    // The slope at the trial state. In the pushforward form the second part is M P, where P is the map that led there.
    void slope(P* out) {
        rates_(trial_, out);
        if (options_.pushforward) rates_.multiply(rates_.matrix(), map_ + at_.mean(), out + at_.mean());
    }

    // to := y + h sum_j weight_j k_j. In the pushforward form the covariances become P cov P^T with P = I + h sum_j
    // weight_j k_j, the law of the particles x + h sum_j weight_j k_j(x), which is always positive semidefinite.
    void combine(const double* weights, int n, P h, P* to, const P* only = nullptr) {
        P weight[max_stages];
        for (int j = 0; j < n; ++j) weight[j] = h * number(weights[j]);
        const Index straight = options_.pushforward ? at_.mean() : at_.length();
        if (n == 1) {
            const P* k = only != nullptr ? only : k_;
            for (Index e = 0; e < straight; ++e) to[e] = fma(weight[0], k[e], state_[e]);
        } else {
            for (Index e = 0; e < straight; ++e) {
                P x = state_[e];
                for (int j = 0; j < n; ++j) x = fma(weight[j], stage_at(j)[e], x);
                to[e] = x;
            }
        }
        if (!options_.pushforward) return;
        P* const map = map_ + at_.mean();
        std::fill(map, map + at_.cov(), P{});
        for (int i = 0; i < d_; ++i) {
            const Index e = Index{i} * (d_ + 1);
            if constexpr (Single)
                reinterpret_cast<T*>(map)[e] = T(1);
            else
                map[e] = broadcast(T(1));
        }
        for (Index e = 0; e < at_.cov(); ++e) {
            P x = map[e];
            for (int j = 0; j < n; ++j) x = fma(weight[j], stage_at(j)[at_.mean() + e], x);
            map[e] = x;
        }
        rates_.congruence(map, state_ + at_.mean(), reinterpret_cast<P*>(product_.data()), to + at_.mean());
    }

    // Root mean squares relative to the tolerance, which is taken at the larger of the state and `other`. In the
    // pushforward form the error is that of the map P. P changes every direction of the covariance in proportion to its
    // size, so small eigenvalues next to large ones keep their digits and their sign.
    template <class Entry>
    void scaled(const P* other, double* out, const Entry& entry) const {
        const P absolute = number(options_.atol), relative = number(options_.rtol);
        P sum{};
        for (Index e = 0; e < at_.length(); ++e) {
            P scale =
                fma(relative, max(packs::magnitude<T>(state_[e]), packs::magnitude<T>(other[e])), absolute);
            if (options_.pushforward && e >= at_.mean()) scale = relative;
            const P x = entry(e) / scale;
            sum = fma(x, x, sum);
        }
        sum = gathered(sum);
        const double count = static_cast<double>(d_) + static_cast<double>(at_.square());
        for (int l = 0; l < lanes; ++l) out[l] = std::sqrt(static_cast<double>(sum[l]) / count);
    }

    static constexpr double largest = std::numeric_limits<T>::max();

    P square_{}, slope_{}, limit_{}, next_mark_{};
    const GaussianProblem<T>& problem_;
    const GaussianOptions& options_;
    const Tableau& method_;
    const GaussianResult<T>& result_;
    Index first_;
    int n_here_, d_;
    LawLayout<T> at_;
    RatesOfLaws<T>& rates_;
    Buffer<T> product_, memory_;
    P *state_ = nullptr, *trial_ = nullptr, *map_ = nullptr, *rate_ = nullptr, *k_ = nullptr;
    std::array<GaussianOutcome, static_cast<std::size_t>(lanes)> outcome_{};
    System system_;
};

}  // namespace qk
