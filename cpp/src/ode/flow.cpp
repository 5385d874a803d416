#include "qk/flow.hpp"

#include <algorithm>
#include <cmath>

namespace qk {
namespace {

// Controller of the step size (Gustafsson's PI): the exponents for order 5 and its usual limits.
constexpr double pi_alpha = 0.7, pi_beta = 0.4, safety = 0.9, shrink = 0.2, grow = 10.0;
constexpr int bisections = 30;

FlowStatus status_of(VelocityStatus status) {
    switch (status) {
        case VelocityStatus::interrupted:
            return FlowStatus::interrupted;
        case VelocityStatus::no_convergence:
            return FlowStatus::no_convergence;
        default:
            return FlowStatus::blew_up;
    }
}

template <class T>
class Integrator {
public:
    Integrator(Velocity<T>& velocity, Index n, Index d, const T* x0, const FlowOptions& options,
               const Run& run)
        : velocity_(velocity),
          n_(n),
          d_(d),
          size_(n * d),
          options_(options),
          method_(tableau(options.method)),
          run_(run),
          x_(x0, x0 + n * d),
          next_(x_.size()),
          middle_(x_.size()),
          end_slope_(x_.size()),
          k_(static_cast<std::size_t>(method_.n_stages), std::vector<T>(x_.size())) {}

    FlowResult<T> run() {
        t_ = options_.t0;
        if (options_.every_step) {
            save(t_, x_.data());
        } else {
            while (waiting_ < options_.output.size() && options_.output[waiting_] <= t_)
                save(options_.output[waiting_++], x_.data());
        }
        if (event(x_.data(), result_.status)) {
            close();
            return std::move(result_);
        }
        const FlowStatus status = options_.n_steps > 0 ? fixed() : adaptive();
        result_.status = status;
        close();
        return std::move(result_);
    }

private:
    // ---- one step ----------------------------------------------------------------------------------------

    VelocityStatus slope(double t, const std::vector<T>& x, std::vector<T>& out) {
        ++result_.n_evaluations;
        return velocity_(t, x.data(), out.data(), run_);
    }

    // out = x + h sum_s w_s k_s
    void combine(const double* w, int count, double h, std::vector<T>& out) const {
        std::ranges::copy(x_, out.begin());
        for (int s = 0; s < count; ++s) {
            if (w[s] == 0) continue;
            const T factor = static_cast<T>(h * w[s]);
            const T* k = k_[static_cast<std::size_t>(s)].data();
            T* o = out.data();
            for (Index i = 0; i < size_; ++i) o[i] += factor * k[i];
        }
    }

    // Stages and the state at t + h, into next_. The first slope is kept from the step before.
    VelocityStatus step(double h) {
        if (!has_first_) {
            const VelocityStatus status = slope(t_, x_, k_[0]);
            if (status != VelocityStatus::ok) return status;
            has_first_ = true;
        }
        for (int s = 1; s < method_.n_stages; ++s) {
            const bool last = method_.last_is_next && s == method_.n_stages - 1;
            std::vector<T>& at = last ? next_ : middle_;
            combine(method_.a[static_cast<std::size_t>(s)].data(), s, h, at);
            if (!finite(at)) return VelocityStatus::not_finite;
            if (last) normalise(at);
            const auto status =
                slope(t_ + method_.c[static_cast<std::size_t>(s)] * h, at, k_[static_cast<std::size_t>(s)]);
            if (status != VelocityStatus::ok) return status;
        }
        if (!method_.last_is_next) {
            combine(method_.b.data(), method_.n_stages, h, next_);
            if (!finite(next_)) return VelocityStatus::not_finite;
            normalise(next_);
        }
        return VelocityStatus::ok;
    }

    bool finite(const std::vector<T>& x) const {
        T sum = T(0);
        for (const T v : x) sum += v * T(0);
        return sum == T(0);
    }

    void normalise(std::vector<T>& x) const {
        if (!options_.sphere) return;
        for (Index i = 0; i < n_; ++i) {
            double square = 0;
            for (Index a = 0; a < d_; ++a) {
                const auto v = static_cast<double>(x[static_cast<std::size_t>(i * d_ + a)]);
                square += v * v;
            }
            const double norm = std::sqrt(square);
            if (norm == 0) continue;
            for (Index a = 0; a < d_; ++a) {
                T& v = x[static_cast<std::size_t>(i * d_ + a)];
                v = static_cast<T>(static_cast<double>(v) / norm);
            }
        }
    }

    // The slope at the end of the step just taken; it serves the next step too, unless the velocity jumps.
    VelocityStatus need_end_slope(double t) {
        if (has_end_) return VelocityStatus::ok;
        if (method_.last_is_next) {
            std::ranges::copy(k_.back(), end_slope_.begin());
        } else {
            const VelocityStatus status = slope(t, next_, end_slope_);
            if (status != VelocityStatus::ok) return status;
        }
        has_end_ = true;
        return VelocityStatus::ok;
    }

    // State at t_ + theta h on the step just taken.
    void interpolate(double theta, double h, std::vector<T>& out) const {
        if (method_.has_dense) {
            double w[max_stages];
            for (int s = 0; s < method_.n_stages; ++s) {
                const auto& p = method_.dense[static_cast<std::size_t>(s)];
                w[s] = theta * (p[0] + theta * (p[1] + theta * (p[2] + theta * p[3])));
            }
            combine(w, method_.n_stages, h, out);
        } else {
            const double square = theta * theta, cube = square * theta;
            const double from = 2 * cube - 3 * square + 1, slope0 = (cube - 2 * square + theta) * h;
            const double slope1 = (cube - square) * h;
            for (std::size_t i = 0; i < out.size(); ++i)
                out[i] = static_cast<T>(
                    from * static_cast<double>(x_[i]) + (1 - from) * static_cast<double>(next_[i]) +
                    slope0 * static_cast<double>(k_[0][i]) + slope1 * static_cast<double>(end_slope_[i]));
        }
        normalise(out);
    }

    // ---- events and output -------------------------------------------------------------------------------

    bool event(const T* x, FlowStatus& status) {
        if (options_.radius > 0) {
            for (Index i = 0; i < n_; ++i) {
                double square = 0;
                for (Index a = 0; a < d_; ++a) {
                    const auto v = static_cast<double>(x[i * d_ + a]);
                    square += v * v;
                }
                if (square > options_.radius * options_.radius) {
                    status = FlowStatus::blew_up;
                    return true;
                }
            }
        }
        if (options_.n_clusters > 0 &&
            cluster_labels(n_, d_, x, options_.linkage, labels_) <= options_.n_clusters) {
            status = FlowStatus::clustered;
            return true;
        }
        return false;
    }

    // What follows a step from t_ to t_ + h: outputs, events, the move. False ends the flow with `status`.
    bool accept(double h, double t_end, FlowStatus& status) {
        ++result_.n_steps;
        has_end_ = false;
        double theta = 1;
        const bool ended = event(next_.data(), status);
        const bool between = waiting_ < options_.output.size() && options_.output[waiting_] < t_end;
        if (ended || between) {
            const VelocityStatus problem = need_end_slope(t_end);
            if (problem != VelocityStatus::ok) {
                status = status_of(problem);
                if (status == FlowStatus::interrupted) return false;
            }
            if (ended && has_end_) theta = first_event(h, status);
        }
        const double t_stop = theta < 1 ? t_ + theta * h : t_end;
        while (waiting_ < options_.output.size() && options_.output[waiting_] <= t_stop) {
            const double at = options_.output[waiting_++];
            if (at >= t_end || !has_end_) {
                save(at, next_.data());
            } else {
                interpolate((at - t_) / h, h, middle_);
                save(at, middle_.data());
            }
        }
        if (theta < 1) {
            interpolate(theta, h, middle_);
            std::swap(middle_, next_);
        }
        std::swap(x_, next_);
        t_ = t_stop;
        has_first_ = false;
        if (!ended && (has_end_ || method_.last_is_next)) {
            if (!has_end_)
                std::swap(k_.front(), k_.back());
            else
                std::swap(k_.front(), end_slope_);
            has_first_ = true;
        }
        if (options_.every_step || ended) save(t_, x_.data());
        if (options_.report) options_.report(t_);
        return !ended && status == FlowStatus::finished;
    }

    // The earliest time of the step, as a fraction of h, at which the event is seen (bisection).
    double first_event(double h, FlowStatus& status) {
        double before = 0, after = 1;
        for (int k = 0; k < bisections; ++k) {
            const double theta = 0.5 * (before + after);
            FlowStatus ignored{};
            interpolate(theta, h, middle_);
            (event(middle_.data(), ignored) ? after : before) = theta;
            if (run_.stop != nullptr && run_.stop->check()) {
                status = FlowStatus::interrupted;
                break;
            }
        }
        return after;
    }

    void save(double t, const T* x) {
        result_.t.push_back(t);
        result_.x.insert(result_.x.end(), x, x + size_);
    }

    // A flow that ends early keeps the state it reached.
    void close() {
        if (result_.status == FlowStatus::finished || result_.status == FlowStatus::interrupted) return;
        if (result_.t.empty() || result_.t.back() < t_) save(t_, x_.data());
    }

    // ---- loops -------------------------------------------------------------------------------------------

    // Uniform steps, cut at the breaks.
    FlowStatus fixed() {
        const double span = options_.t1 - options_.t0;
        const double h = span / static_cast<double>(options_.n_steps);
        std::size_t next_break = 0;
        for (Index i = 0; i < options_.n_steps; ++i) {
            const double to =
                i + 1 == options_.n_steps ? options_.t1 : options_.t0 + static_cast<double>(i + 1) * h;
            while (next_break < options_.breaks.size() && options_.breaks[next_break] < to - 1e-9 * h) {
                const double cut = options_.breaks[next_break++];
                if (cut <= t_ + 1e-9 * h) {
                    has_first_ = false;
                    continue;
                }
                const FlowStatus status = fixed_step(cut);
                if (status != FlowStatus::finished) return status;
                has_first_ = false;
            }
            const FlowStatus status = fixed_step(to);
            if (status != FlowStatus::finished) return status;
            if (next_break < options_.breaks.size() && options_.breaks[next_break] <= to + 1e-9 * h) {
                ++next_break;
                has_first_ = false;
            }
        }
        return FlowStatus::finished;
    }

    FlowStatus fixed_step(double to) {
        const double h = to - t_;
        velocity_.enter(t_, to);
        const VelocityStatus problem = step(h);
        if (problem != VelocityStatus::ok) return status_of(problem);
        auto status = FlowStatus::finished;
        return accept(h, to, status) ? FlowStatus::finished : status;
    }

    double resolution() const { return 10 * (std::nextafter(std::abs(t_), infinity_) - std::abs(t_)); }
    double smallest_step() const { return options_.min_step > 0 ? options_.min_step : resolution(); }

    // Root mean square of v relative to the tolerance at the larger of two states.
    double scaled_norm(const std::vector<T>& v, const std::vector<T>& x, const std::vector<T>& y) const {
        double sum = 0;
        for (std::size_t i = 0; i < v.size(); ++i) {
            const double scale =
                options_.atol + options_.rtol * std::max(std::abs(static_cast<double>(x[i])),
                                                         std::abs(static_cast<double>(y[i])));
            const double r = static_cast<double>(v[i]) / scale;
            sum += r * r;
        }
        return std::sqrt(sum / static_cast<double>(v.size()));
    }

    // Hairer, Norsett and Wanner, II.4: from the size of the slope and of its change.
    VelocityStatus choose_first_step(double limit, double& h) {
        const VelocityStatus status = slope(t_, x_, k_[0]);
        if (status != VelocityStatus::ok) return status;
        has_first_ = true;
        const double size = scaled_norm(x_, x_, x_), speed = scaled_norm(k_[0], x_, x_);
        const double h0 = std::min(limit, size < 1e-5 || speed < 1e-5 ? 1e-6 * limit : 0.01 * size / speed);
        const double one = 1.0;
        combine(&one, 1, h0, middle_);
        double change = 0;
        if (finite(middle_) && slope(t_ + h0, middle_, k_[1]) == VelocityStatus::ok) {
            for (std::size_t i = 0; i < middle_.size(); ++i) middle_[i] = k_[1][i] - k_[0][i];
            change = scaled_norm(middle_, x_, x_) / h0;
        }
        const double steepest = std::max(speed, change);
        const double h1 =
            steepest <= 1e-15 ? std::max(1e-6, 1e-3 * h0) : std::pow(0.01 / steepest, 1.0 / (method_.order));
        h = std::min({limit, 100 * h0, h1});
        return run_.stop != nullptr && run_.stop->stopped() ? VelocityStatus::interrupted
                                                            : VelocityStatus::ok;
    }

    double error_of_step(double h) {
        std::ranges::fill(middle_, T(0));
        for (int s = 0; s < method_.n_stages; ++s) {
            const double w = method_.error[static_cast<std::size_t>(s)] * h;
            if (w == 0) continue;
            const auto& k = k_[static_cast<std::size_t>(s)];
            for (std::size_t i = 0; i < middle_.size(); ++i) middle_[i] += static_cast<T>(w) * k[i];
        }
        return scaled_norm(middle_, x_, next_);
    }

    // At this speed the state changes by its own size within a thousand of the steps that time can resolve.
    bool escaping() const {
        double size = 0, speed = 0;
        for (std::size_t i = 0; i < x_.size(); ++i) {
            size = std::max(size, std::abs(static_cast<double>(x_[i])));
            speed = std::max(speed, std::abs(static_cast<double>(k_[0][i])));
        }
        return speed * 1000 * resolution() >= size;
    }

    FlowStatus adaptive() {
        double h = options_.first_step, last_error = 1.0;
        std::size_t next_break = 0;
        Index taken = 0;
        bool stretched = false;  // a jump of the velocity: the old step size means nothing
        const double order = method_.order;
        bool rejected = false, not_finite = false;
        while (t_ < options_.t1) {
            while (next_break < options_.breaks.size() && options_.breaks[next_break] <= t_) ++next_break;
            const double limit = next_break < options_.breaks.size()
                                     ? std::min(options_.breaks[next_break], options_.t1)
                                     : options_.t1;
            velocity_.enter(t_, limit);
            if (h <= 0 || stretched) {
                const VelocityStatus problem = choose_first_step(limit - t_, h);
                if (problem != VelocityStatus::ok) return status_of(problem);
                stretched = false;
                last_error = 1.0;
            }
            if (options_.max_step > 0) h = std::min(h, options_.max_step);
            if (h < smallest_step() && limit - t_ > smallest_step())
                return not_finite || escaping() ? FlowStatus::blew_up : FlowStatus::step_underflow;
            if (taken++ >= options_.max_steps) return FlowStatus::step_limit;
            // A sliver left over would be a step too small: the last two are made equal.
            const double left = limit - t_;
            const double size = h >= left * (1 - 1e-12) ? left : (2 * h > left ? 0.5 * left : h);
            const double to = size == left ? limit : t_ + size;
            const VelocityStatus problem = step(to - t_);
            if (problem == VelocityStatus::interrupted || problem == VelocityStatus::no_convergence)
                return status_of(problem);
            not_finite = problem == VelocityStatus::not_finite;
            const double error = not_finite ? infinity_ : error_of_step(to - t_);
            if (!(error <= 1.0)) {
                if (not_finite && !has_first_) return FlowStatus::blew_up;
                ++result_.n_rejected;
                rejected = true;
                const double factor = std::isfinite(error) ? safety * std::pow(error, -1.0 / order) : 0.1;
                h = size * std::max(shrink, factor);
                continue;
            }
            auto status = FlowStatus::finished;
            if (!accept(to - t_, to, status)) return status;
            const double floor = std::max(error, 1e-10);
            double factor =
                safety * std::pow(floor, -pi_alpha / order) * std::pow(last_error, pi_beta / order);
            factor = std::clamp(factor, shrink, rejected ? 1.0 : grow);
            h = size * factor;
            last_error = std::max(floor, 1e-4);
            rejected = false;
            if (next_break < options_.breaks.size() && t_ >= options_.breaks[next_break]) {
                has_first_ = false;
                stretched = true;
            }
        }
        return FlowStatus::finished;
    }

    static constexpr double infinity_ = std::numeric_limits<double>::infinity();

    Velocity<T>& velocity_;
    const Index n_, d_, size_;
    const FlowOptions& options_;
    const Tableau& method_;
    const Run& run_;
    double t_ = 0;
    std::vector<T> x_, next_, middle_, end_slope_;
    std::vector<std::vector<T>> k_;
    std::vector<Index> labels_;
    std::size_t waiting_ = 0;  // first requested time not yet saved
    bool has_first_ = false;   // k_[0] is the slope at (t_, x_)
    bool has_end_ = false;     // end_slope_ is the slope at next_
    FlowResult<T> result_;
};

}  // namespace

template <class T>
FlowResult<T> integrate(Velocity<T>& velocity, Index n, Index d, const T* x0, const FlowOptions& options,
                        const Run& run) {
    return Integrator<T>(velocity, n, d, x0, options, run).run();
}

template FlowResult<float> integrate(Velocity<float>&, Index, Index, const float*, const FlowOptions&,
                                     const Run&);
template FlowResult<double> integrate(Velocity<double>&, Index, Index, const double*, const FlowOptions&,
                                      const Run&);

}  // namespace qk
