#include "qk/flow.hpp"

#include <algorithm>
#include <cmath>

#include "ode/integrator.hpp"

namespace qk {
namespace {

using ode::Lane;

constexpr int bisections = 30;

// Particles as a state of the integrator, with the outputs that are kept and the events that end the flow.
template <class T>
class Particles {
public:
    static constexpr int lanes = 1;

    Particles(Velocity<T>& velocity, Index n, Index d, const T* x0, const FlowOptions& options,
              const Run& run)
        : velocity_(velocity),
          n_(n),
          d_(d),
          options_(options),
          method_(tableau(options.method)),
          run_(run),
          x_(x0, x0 + n * d),
          next_(x_.size()),
          middle_(x_.size()),
          end_slope_(x_.size()),
          k_(static_cast<std::size_t>(method_.n_stages + 1), std::vector<T>(x_.size())),
          slope_(k_[method_.implicit() ? static_cast<std::size_t>(method_.n_stages) : 0]),
          system_(*this) {}

    // ---- what the integrator asks for --------------------------------------------------------------------

    VelocityStatus first(double t) {
        if (has_first_) return VelocityStatus::ok;
        const VelocityStatus status = velocity_at(t, x_, slope_);
        has_first_ = status == VelocityStatus::ok;
        return status;
    }

    VelocityStatus stage(int s, const double* t, const double* h) {
        const bool last = method_.last_is_next && s == method_.n_stages - 1;
        std::vector<T>& to = last ? next_ : middle_;
        combine(method_.a[static_cast<std::size_t>(s)].data(), s, *h, to);
        if (!finite(to)) return VelocityStatus::not_finite;
        if (last) normalise(to);
        return velocity_at(*t, to, k_[static_cast<std::size_t>(s)]);
    }

    void finish(const double* h) {
        combine(method_.b.data(), method_.n_stages, method_.scale(*h), next_);
        normalise(next_);
    }

    void lost(bool* out) const { *out = !finite(next_); }

    void errors(const double* h, double* out) {
        if (!finite(next_)) {
            *out = std::numeric_limits<double>::infinity();
            return;
        }
        std::ranges::fill(middle_, T(0));
        add(method_.error.data(), method_.n_stages, method_.scale(*h), middle_);
        *out = scaled_norm(middle_, next_);
    }

    void sizes(double* size, double* speed) const {
        *size = scaled_norm(x_, x_);
        *speed = scaled_norm(slope_, x_);
    }

    VelocityStatus change(const double* t, const double* h, double* out) {
        for (std::size_t i = 0; i < x_.size(); ++i) middle_[i] = x_[i] + static_cast<T>(*h) * slope_[i];
        if (!finite(middle_)) return VelocityStatus::not_finite;
        const VelocityStatus status = velocity_at(*t + *h, middle_, k_[1]);
        if (status != VelocityStatus::ok) return status;
        for (std::size_t i = 0; i < x_.size(); ++i) middle_[i] = k_[1][i] - slope_[i];
        *out = scaled_norm(middle_, x_);
        return status;
    }

    bool escaping(int, double resolution) const {
        double size = 0, speed = 0;
        for (std::size_t i = 0; i < x_.size(); ++i) {
            size = std::max(size, std::abs(static_cast<double>(x_[i])));
            speed = std::max(speed, std::abs(static_cast<double>(slope_[i])));
        }
        return speed * 1000 * resolution >= size;
    }

    ode::StiffSystem* stiff() {
        if constexpr (std::is_same_v<T, double>) return &system_;
        return nullptr;
    }

    // Stores the outputs of the step, looks for events, then moves. An event ends the flow at the time when it is seen.
    void take(const bool* taken, const double* size, Lane* lane) {
        if (!*taken) return;
        Lane& a = *lane;
        const double h = *size, t = a.t;
        has_end_ = false;
        double theta = 1;
        const bool ended = event(next_.data(), a);
        const bool between = waiting_ < options_.output.size() && options_.output[waiting_] < a.to;
        bool known = true;
        if (ended || between) {
            const VelocityStatus problem = need_end_slope(a.to);
            if (problem != VelocityStatus::ok) {
                known = false;
                a.end(ode::status_of(problem));
                if (a.status == FlowStatus::interrupted) return;
            } else if (ended) {
                theta = first_event(h, a);
            }
        }
        const double stop = theta < 1 ? t + theta * h : a.to;
        while (waiting_ < options_.output.size() && options_.output[waiting_] <= stop) {
            const double at = options_.output[waiting_++];
            if (at >= a.to || !known) {
                save(at, next_);
            } else {
                interpolate((at - t) / h, h, middle_);
                save(at, middle_);
            }
        }
        if (theta < 1) {
            interpolate(theta, h, middle_);
            std::swap(middle_, next_);
        }
        std::swap(x_, next_);
        a.t = stop;
        has_first_ = !ended && (method_.last_is_next || has_end_);
        if (has_first_) std::swap(slope_, method_.last_is_next ? k_[last_stage()] : end_slope_);
        if (options_.every_step || ended) save(a.t, x_);
        if (options_.report) options_.report(a.t);
    }

    // ---- what the flow asks for --------------------------------------------------------------------------

    void begin(Lane& a) {
        if (options_.every_step) save(a.t, x_);
        while (waiting_ < options_.output.size() && options_.output[waiting_] <= a.t)
            save(options_.output[waiting_++], x_);
        event(x_.data(), a);
    }

    // A flow that ends early keeps the state that it has reached.
    FlowResult<T> close(const Lane& a) {
        const bool early = a.status != FlowStatus::finished && a.status != FlowStatus::interrupted;
        if (early && (result_.t.empty() || result_.t.back() < a.t)) save(a.t, x_);
        result_.status = a.status;
        result_.n_steps = a.n_steps;
        result_.n_rejected = a.n_rejected;
        return std::move(result_);
    }

    void forget_slope() { has_first_ = false; }

private:
    // The stiff system of the particles: all coordinates are unknowns.
    class System final : public ode::StiffSystem {
    public:
        explicit System(Particles& of) : of_(of) {}

        Index unknowns() const override { return of_.n_ * of_.d_; }
        Index length() const override { return unknowns(); }
        void gather(const double* whole, double* y) const override { std::copy_n(whole, unknowns(), y); }
        void scatter(const double* y, double* whole) const override { std::copy_n(y, unknowns(), whole); }
        bool autonomous() const override { return false; }
        VelocityStatus rate(double t, const double* whole, double* out) override {
            if constexpr (std::is_same_v<T, double>) {
                ++of_.result_.n_evaluations;
                return of_.velocity_(t, whole, out, of_.run_);
            }
            return VelocityStatus::ok;
        }
        const double* state() const override { return numbers(of_.x_); }
        const double* slope() const override { return numbers(of_.slope_); }
        double* increment(int s) override {
            if constexpr (std::is_same_v<T, double>) return of_.k_[static_cast<std::size_t>(s)].data();
            return nullptr;
        }

    private:
        static const double* numbers(const std::vector<T>& v) {
            if constexpr (std::is_same_v<T, double>) return v.data();
            return nullptr;
        }
        Particles& of_;
    };

    std::size_t last_stage() const { return static_cast<std::size_t>(method_.n_stages - 1); }

    VelocityStatus velocity_at(double t, const std::vector<T>& x, std::vector<T>& out) {
        ++result_.n_evaluations;
        return velocity_(t, x.data(), out.data(), run_);
    }

    // out += h sum_s w_s k_s
    void add(const double* w, int count, double h, std::vector<T>& out) const {
        for (int s = 0; s < count; ++s) {
            if (w[s] == 0) continue;
            const T factor = static_cast<T>(h * w[s]);
            const T* k = k_[static_cast<std::size_t>(s)].data();
            T* o = out.data();
            for (std::size_t i = 0; i < out.size(); ++i) o[i] += factor * k[i];
        }
    }
    // out = x + h sum_s w_s k_s
    void combine(const double* w, int count, double h, std::vector<T>& out) const {
        std::ranges::copy(x_, out.begin());
        add(w, count, h, out);
    }

    static bool finite(const std::vector<T>& x) {
        T sum = T(0);
        for (const T v : x) sum += v * T(0);
        return sum == T(0);
    }

    static double square(Index d, const T* x) {
        double sum = 0;
        for (Index a = 0; a < d; ++a) sum += static_cast<double>(x[a]) * static_cast<double>(x[a]);
        return sum;
    }

    void normalise(std::vector<T>& x) const {
        if (!options_.sphere) return;
        for (Index i = 0; i < n_; ++i) {
            T* row = x.data() + i * d_;
            const double norm = std::sqrt(square(d_, row));
            if (norm == 0) continue;
            for (Index a = 0; a < d_; ++a) row[a] = static_cast<T>(static_cast<double>(row[a]) / norm);
        }
    }

    // Computes the slope at the end of the step, for interpolants that need it; the next step uses it too.
    VelocityStatus need_end_slope(double t) {
        if (method_.has_dense || has_end_) return VelocityStatus::ok;
        const VelocityStatus status = velocity_at(t, next_, end_slope_);
        has_end_ = status == VelocityStatus::ok;
        return status;
    }

    // The state at the fraction theta of the last step.
    void interpolate(double theta, double h, std::vector<T>& out) const {
        if (method_.has_dense) {
            double w[max_stages];
            for (int s = 0; s < method_.n_stages; ++s) {
                const auto& p = method_.dense[static_cast<std::size_t>(s)];
                w[s] = theta * (p[0] + theta * (p[1] + theta * (p[2] + theta * p[3])));
            }
            combine(w, method_.n_stages, method_.scale(h), out);
        } else {
            const double square = theta * theta, cube = square * theta;
            const double from = 2 * cube - 3 * square + 1, slope0 = (cube - 2 * square + theta) * h;
            const double slope1 = (cube - square) * h;
            for (std::size_t i = 0; i < out.size(); ++i)
                out[i] = static_cast<T>(
                    from * static_cast<double>(x_[i]) + (1 - from) * static_cast<double>(next_[i]) +
                    slope0 * static_cast<double>(slope_[i]) + slope1 * static_cast<double>(end_slope_[i]));
        }
        normalise(out);
    }

    // Ends the lane if an event has happened.
    bool event(const T* x, Lane& a) {
        if (options_.radius > 0)
            for (Index i = 0; i < n_; ++i)
                if (square(d_, x + i * d_) > options_.radius * options_.radius) {
                    a.end(FlowStatus::blew_up);
                    return true;
                }
        if (options_.n_clusters > 0 &&
            cluster_labels(n_, d_, x, options_.linkage, labels_) <= options_.n_clusters) {
            a.end(FlowStatus::clustered);
            return true;
        }
        return false;
    }

    // The earliest time in the step, as a fraction of h, at which the event has happened (by bisection).
    double first_event(double h, Lane& a) {
        double before = 0, after = 1;
        for (int k = 0; k < bisections; ++k) {
            const double theta = 0.5 * (before + after);
            Lane ignored;
            interpolate(theta, h, middle_);
            (event(middle_.data(), ignored) ? after : before) = theta;
            if (run_.stop != nullptr && run_.stop->check()) {
                a.status = FlowStatus::interrupted;
                break;
            }
        }
        return after;
    }

    void save(double t, const std::vector<T>& x) {
        result_.t.push_back(t);
        result_.x.insert(result_.x.end(), x.begin(), x.end());
    }

    // Root mean square of v relative to the tolerance, which is taken at the larger of the state and y.
    double scaled_norm(const std::vector<T>& v, const std::vector<T>& y) const {
        double sum = 0;
        for (std::size_t i = 0; i < v.size(); ++i) {
            const double scale =
                options_.atol + options_.rtol * std::max(std::abs(static_cast<double>(x_[i])),
                                                         std::abs(static_cast<double>(y[i])));
            const double r = static_cast<double>(v[i]) / scale;
            sum += r * r;
        }
        return std::sqrt(sum / static_cast<double>(v.size()));
    }

    Velocity<T>& velocity_;
    const Index n_, d_;
    const FlowOptions& options_;
    const Tableau& method_;
    const Run& run_;
    std::vector<T> x_, next_, middle_, end_slope_;
    std::vector<std::vector<T>> k_;
    std::vector<T>& slope_;  // at the state: the first stage, or a separate array for implicit methods
    std::vector<Index> labels_;
    std::size_t waiting_ = 0;  // index of the first requested time that is not saved yet
    bool has_first_ = false;   // slope_ is the slope at the state
    bool has_end_ = false;     // end_slope_ is the slope at next_
    FlowResult<T> result_;
    System system_;
};

template <class T>
class Flow {
public:
    Flow(Velocity<T>& velocity, Index n, Index d, const T* x0, const FlowOptions& options, const Run& run)
        : velocity_(velocity),
          options_(options),
          particles_(velocity, n, d, x0, options, run),
          integrator_(particles_, options, run) {}

    FlowResult<T> run() {
        particles_.begin(here_);
        if (here_.alive) options_.n_steps > 0 ? fixed() : adaptive();
        return particles_.close(here_);
    }

private:
    // Equal steps, cut at the breaks.
    void fixed() {
        const double span = options_.t1 - options_.t0, h = span / static_cast<double>(options_.n_steps);
        const std::vector<double>& breaks = options_.breaks;
        std::size_t next = 0;
        for (Index i = 0; i < options_.n_steps; ++i) {
            const double to =
                i + 1 == options_.n_steps ? options_.t1 : options_.t0 + static_cast<double>(i + 1) * h;
            for (; next < breaks.size() && breaks[next] < to - 1e-9 * h; ++next) {
                if (breaks[next] > here_.t + 1e-9 * h) step(breaks[next]);
                if (!here_.alive) return;
                particles_.forget_slope();
            }
            step(to);
            if (!here_.alive) return;
            if (next < breaks.size() && breaks[next] <= to + 1e-9 * h) {
                ++next;
                particles_.forget_slope();
            }
        }
    }

    void step(double to) {
        velocity_.enter(here_.t, to);
        integrator_.fixed_step(to);
    }

    // Implicit steps end at the times of outputs. Stiff components are not resolved between the ends of steps, and the
    // interpolant of order 3 is far less accurate than the states.
    void adaptive() {
        std::vector<double> outputs;
        if (tableau(options_.method).implicit()) outputs = options_.output;
        outputs.push_back(options_.t1);
        auto next = outputs.begin();
        for (const double at : options_.breaks) {
            if (at <= here_.t || at >= options_.t1) continue;
            for (; next != outputs.end() && *next < at; ++next)
                if (!advance(*next)) return;
            if (!advance(at)) return;
            particles_.forget_slope();
            integrator_.restart();
        }
        for (; next != outputs.end(); ++next)
            if (!advance(*next)) return;
    }

    bool advance(double to) {
        velocity_.enter(here_.t, to);
        if (!integrator_.advance(to)) here_.end(FlowStatus::interrupted);
        return here_.alive;
    }

    Velocity<T>& velocity_;
    const FlowOptions& options_;
    Particles<T> particles_;
    ode::Integrator<Particles<T>> integrator_;
    Lane& here_ = integrator_.lane[0];
};

}  // namespace

template <class T>
FlowResult<T> integrate(Velocity<T>& velocity, Index n, Index d, const T* x0, const FlowOptions& options,
                        const Run& run) {
    return Flow<T>(velocity, n, d, x0, options, run).run();
}

template FlowResult<float> integrate(Velocity<float>&, Index, Index, const float*, const FlowOptions&,
                                     const Run&);
template FlowResult<double> integrate(Velocity<double>&, Index, Index, const double*, const FlowOptions&,
                                      const Run&);

}  // namespace qk
