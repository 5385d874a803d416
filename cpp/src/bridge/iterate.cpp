#include "bridge/iterate.hpp"

#include <algorithm>

#include "bridge/long_vectors.hpp"
#include "qk/arrays.hpp"
#include "qk/scalar_math.hpp"

namespace qk {
namespace {

using Vector = Iterate::Vector;

Vector to_vector(const std::vector<double>& v, const Run& run) {
    const Eigen::Map<const Vector> from(v.data(), static_cast<Index>(v.size()));
    Vector out;
    set(run, out, from);
    return out;
}

// With a penalty of weight w the potential is this fraction of the potential that would meet the marginal.
double damping(double penalty) { return std::isinf(penalty) ? 1.0 : penalty / (1 + penalty); }

// The logarithms of weights, relative to the unit of mass. Vectors may be so long that Ctrl-C must be checked in
// between; if it was pressed, the next visit ends the solve.
Vector logs(const Vector& weights, double log_unit, const Run& run) {
    Vector out;
    set(run, out, (weights.array().log() - log_unit).matrix());
    return out;
}

// log sum_i mu_i exp(-f_i / penalty)
double log_penalised_mass(const Vector& mu, const Vector& log_mu, const Vector& f, double penalty,
                          const Run& run) {
    const auto term = [&](Index i) { return std::isinf(penalty) ? log_mu[i] : log_mu[i] - f[i] / penalty; };
    double largest = log_of_nothing, mass = 0;
    each(run, mu.size(), [&](Index i) {
        if (mu[i] > 0 && f[i] != log_of_nothing) largest = std::max(largest, term(i));
    });
    each(run, mu.size(), [&](Index i) {
        if (mu[i] > 0 && f[i] != log_of_nothing) mass += std::exp(term(i) - largest);
    });
    return largest + std::log(mass);
}

}  // namespace

Iterate::Iterate(Sweep& sweep_, const std::vector<double>& mu_, const std::vector<double>& nu_,
                 const BridgeOptions& options_, BridgeState& state_, const Run& run_)
    : sweep(sweep_),
      options(options_),
      state(state_),
      run(run_),
      row_damping(damping(options_.row_penalty)),
      col_damping(damping(options_.col_penalty)),
      balanced(std::isinf(options_.row_penalty) && std::isinf(options_.col_penalty)),
      log_unit(balanced ? std::log(sum(run_, to_vector(mu_, run_))) : 0.0),
      mu(to_vector(mu_, run_)),
      nu(to_vector(nu_, run_)),
      log_mu(logs(mu, log_unit, run_)),
      log_nu(logs(nu, log_unit, run_)),
      f(to_vector(state_.f, run_)),
      g(to_vector(state_.g, run_)),
      lse(room_for(mu.size())),
      columns(room_for(nu.size())) {
    set(run, f, (f.array() - log_unit).matrix());
    if (balanced) {
        const double unit = sum(run, mu);
        set(run, mu, mu / unit);
        set(run, nu, nu / unit);
    }
    each(run, nu.size(), [&](Index j) {
        if (nu[j] == 0) g[j] = log_of_nothing;
    });
}

void Iterate::finish() {
    each(run, f.size(), [&](Index i) { state.f[static_cast<std::size_t>(i)] = f[i] + log_unit; });
    each(run, g.size(), [&](Index j) { state.g[static_cast<std::size_t>(j)] = g[j]; });
}

// ---- visits ---------------------------------------------------------------------------------------------

bool Iterate::visit(double relaxation) {
    constexpr double negligible = 0.03;
    Vector before;
    if (relaxation != 1.0) set(run, before, f);
    if (!visit_once(relaxation)) return false;
    if (sweep.uncertainty() == 0) return true;
    // The uncertainty is in units of mass, as the columns are; errors are shares of the mass.
    const double bearable = negligible * std::max(column_error(), options.tol) * sum(run, columns);
    if (!columns_vanish() && sweep.uncertainty() <= bearable) return true;
    if (relaxation != 1.0) set(run, f, before);
    sweep.refine();
    return visit_once(relaxation);
}

bool Iterate::visit_once(double relaxation) {
    const RowMass mass = [&](Index i, double row_lse) {
        if (log_mu[i] == log_of_nothing) {
            f[i] = log_of_nothing;
            return 0.0;
        }
        // NaN stands for a row whose sum is not positive; it has mass, which ends the solve (FactoredSweep).
        if (std::isnan(row_lse)) return row_lse;
        const double target = row_damping * (log_mu[i] - row_lse);
        f[i] = relaxation == 1.0 || f[i] == log_of_nothing ? target : f[i] + relaxation * (target - f[i]);
        return f[i] == log_mu[i] - row_lse && log_scale == 0 ? mu[i] : std::exp(f[i] + row_lse - log_scale);
    };
    ++state.n_visits;
    const Status status = sweep.rows(g.data(), mass, lse.data(), columns.data(), run);
    if (!went_through(status)) return false;
    bool feasible = true;
    each(run, mu.size(), [&](Index i) {
        if (lse[i] != log_of_nothing) return;
        // A row in which everything is masked cannot have mass. Penalties allow that, constraints do not.
        if (mu[i] > 0 && std::isinf(options.row_penalty)) feasible = false;
        f[i] = log_of_nothing;
    });
    if (!feasible) return end(rows_have_entries ? BridgeStatus::overflow : BridgeStatus::infeasible);
    rows_have_entries = true;
    columns_have_entries = columns_have_entries || !columns_vanish();
    return true;
}

bool Iterate::find_columns(Vector& exact) {
    exact = room_for(nu.size());
    ++state.n_visits;
    const Status status = sweep.columns(f.data(), exact.data(), run);
    if (!went_through(status)) return false;
    bool feasible = true;
    each(run, nu.size(), [&](Index j) {
        if (nu[j] == 0 || exact[j] != log_of_nothing) return;
        if (std::isinf(options.col_penalty)) {
            feasible = false;
            return;
        }
        // A column in which everything is masked stays empty whatever its penalty, so it is treated as one of weight 0.
        nu[j] = 0;
        log_nu[j] = g[j] = log_of_nothing;
    });
    return feasible || end(columns_have_entries ? BridgeStatus::overflow : BridgeStatus::infeasible);
}

bool Iterate::update_columns() {
    Vector exact;
    if (!find_columns(exact)) return false;
    each(run, nu.size(), [&](Index j) {
        if (nu[j] > 0) g[j] = col_damping * (log_nu[j] - exact[j]);
    });
    return true;
}

bool Iterate::recover_columns() {
    Vector exact;
    if (!find_columns(exact)) return false;
    double top = log_of_nothing;
    each(run, nu.size(), [&](Index j) {
        if (nu[j] > 0) top = std::max(top, g[j] + exact[j]);
    });
    // If no visit has found an entry, the solution is the empty plan. Otherwise the potentials have moved so far that all
    // entries are out of range.
    if (top == log_of_nothing)
        return end(columns_have_entries ? BridgeStatus::overflow : BridgeStatus::converged);
    if (!balanced) log_scale = top;
    const double scale = balanced ? 0.0 : top;
    double error = 0, mass = 0;
    each(run, nu.size(), [&](Index j) {
        if (nu[j] == 0) return;
        const double column = std::exp(g[j] + exact[j] - scale);
        mass += column;
        error += std::abs(column - std::exp(log_wanted(j) - scale));
    });
    note(balanced ? error : error / mass);
    if (state.errors.back() <= options.tol) return end(BridgeStatus::converged);
    each(run, nu.size(), [&](Index j) {
        if (nu[j] > 0) g[j] = col_damping * (log_nu[j] - exact[j]);
    });
    return !limited();
}

bool Iterate::settle_columns() {
    constexpr int most_rounds =
        20;  // if potentials are out of the range of the type, further updates change nothing
    for (int k = 0; k < most_rounds && columns_vanish(); ++k)
        if (!recover_columns() || !visit(1.0)) return false;
    return true;
}

bool Iterate::plain_steps(int count) {
    for (int k = 0; k < count && !out_of_budget(); ++k) {
        step_columns(1.0);
        if (!visit(1.0)) return false;
        if (columns_vanish() && !settle_columns()) return false;
        note(column_error());
        if (state.errors.back() <= options.tol) return end(BridgeStatus::converged);
    }
    return true;
}

bool Iterate::cross_plateau(double error) {
    constexpr Index doublings = 20;
    if (error <= 100 * options.tol || plateaus_left == 0) return end(BridgeStatus::stagnated);
    if (options.max_visits - state.n_visits <= doublings) return end(BridgeStatus::visit_limit);
    --plateaus_left;
    Vector from, step = room_for(nu.size());
    set(run, from, g);
    find_step(step);
    const double before = dual(), slope = dot(run, residual(), step);
    double length = 1;
    for (Index k = 0; k < doublings; ++k, length *= 2) {
        move(from, 2 * length, step);
        if (!visit(1.0)) return false;
        const double promised = 2 * length * slope;
        if (columns_vanish() || !(dual() - before > 0.5 * promised)) break;
    }
    if (length < 16) {  // no plateau: go back, and visit the old point again for the f that belongs to it
        set(run, g, from);
        return visit(1.0) && end(BridgeStatus::stagnated);
    }
    move(from, length, step);
    return true;
}

bool Iterate::limited() {
    if (stopped_) return !end(BridgeStatus::converged);
    if (iterations() >= options.max_iterations) return !end(BridgeStatus::iteration_limit);
    return state.n_visits >= options.max_visits && !end(BridgeStatus::visit_limit);
}

bool Iterate::end(BridgeStatus status) {
    state.status = status;
    return false;
}

bool Iterate::went_through(Status status) {
    switch (status) {
        case Status::ok:
            return true;
        case Status::interrupted:
            return end(BridgeStatus::interrupted);
        case Status::overflow:
            return end(BridgeStatus::overflow);
        case Status::negative:
            return end(BridgeStatus::negative_kernel);
    }
    return false;
}

void Iterate::charge(double visits) {
    charged_ += visits;
    const double whole = std::floor(charged_);
    const Index left = std::max<Index>(0, options.max_visits - state.n_visits);
    state.n_visits += std::min(left, static_cast<Index>(whole));
    charged_ -= whole;
}

// ---- measures -------------------------------------------------------------------------------------------

bool Iterate::columns_vanish() const {
    // Columns of weights near the smallest number of the type underflow whatever the potentials, so they do not count.
    const double least = !balanced ? 0.0 : sweep.epsilon() > 1e-10 ? 1e-34 : 1e-300;
    bool found = false;
    each(run, nu.size(), [&](Index j) { found = found || (nu[j] > least && !(columns[j] > 0)); });
    return found;
}

double Iterate::column_error() const {
    if (balanced) return sum(run, (columns - nu).cwiseAbs());
    double error = 0;
    each(run, nu.size(), [&](Index j) {
        if (nu[j] > 0) error += std::abs(columns[j] - std::exp(log_wanted(j) - log_scale));
    });
    return error / sum(run, columns);
}

double Iterate::log_wanted(Index j) const {
    return std::isinf(options.col_penalty) ? log_nu[j] : log_nu[j] - g[j] / options.col_penalty;
}

double Iterate::row_error() const {
    double error = 0;
    each(run, mu.size(), [&](Index i) {
        if (mu[i] > 0) error += std::abs(std::exp(f[i] + lse[i]) - mu[i]);
    });
    return error;
}

Vector Iterate::residual() const {
    Vector out;
    if (balanced) {
        set(run, out, nu - columns);
        return out;
    }
    set(run, out, -columns);
    each(run, nu.size(), [&](Index j) {
        if (nu[j] > 0) out[j] += std::exp(log_wanted(j) - log_scale);
    });
    return out;
}

double Iterate::dual() const {
    const double a = options.row_penalty, b = options.col_penalty, unit = std::exp(-log_scale);
    double value = 0;
    each(run, nu.size(), [&](Index j) {
        if (nu[j] == 0) return;
        value += std::isinf(b) ? unit * nu[j] * g[j] : -b * std::exp(log_wanted(j) - log_scale);
    });
    each(run, mu.size(), [&](Index i) {
        if (mu[i] == 0 || lse[i] == log_of_nothing) return;
        value -= std::isinf(a) ? unit * mu[i] * lse[i] : (1 + a) * std::exp(f[i] + lse[i] - log_scale);
    });
    return value;
}

void Iterate::note(double error) {
    state.errors.push_back(error);
    if (options.report) options.report(state.n_visits, error);
    if (!options.observe) return;
    finish();
    stopped_ = options.observe(state.f, state.g);
}

// ---- moves ----------------------------------------------------------------------------------------------

template <class Step>
void Iterate::each_column_step(const Step& step) const {
    constexpr Index some = 256;
    double logs[some];
    in_pieces(run, 0, nu.size(), [&](Index from, Index to) {
        for (Index first = from; first < to; first += some) {
            const Index n = std::min(some, to - first);
            log_array(columns.data() + first, n, logs);
            for (Index j = first; j < first + n; ++j) {
                const double column_lse = logs[j - first] + log_scale - g[j];
                const bool stays = nu[j] == 0 || !(columns[j] > 0);
                step(j, stays ? 0.0 : col_damping * (log_nu[j] - column_lse) - g[j]);
            }
        }
    });
}

void Iterate::find_step(Vector& step) const {
    each_column_step([&](Index j, double own) { step[j] = own; });
    if (balanced) return;
    Vector there;
    set(run, there, g + step);
    const double shift = mass_shift(there);
    set(run, step, (step.array() - shift).matrix());
}

void Iterate::step_columns(double relaxation) {
    each_column_step([&](Index j, double own) {
        if (nu[j] > 0) g[j] += relaxation * own;
    });
}

double Iterate::mass_shift(const Vector& at_g) const {
    const double a = options.row_penalty, b = options.col_penalty;
    const double rows = log_penalised_mass(mu, log_mu, f, a, run),
                 cols = log_penalised_mass(nu, log_nu, at_g, b, run);
    const double weight = std::isinf(a) ? b : std::isinf(b) ? a : a / (a + b) * b;
    const double t = weight * (rows - cols);
    return std::isfinite(t) ? t : 0.0;
}

void Iterate::balance_masses() {
    const double shift = mass_shift(g);
    set(run, g, (g.array() - shift).matrix());
}

bool Iterate::rescale() {
    const double mass = sum(run, columns);
    const bool usable = mass > 0 && std::isfinite(mass), in_range = mass > 1e-10 && mass < 1e10;
    if (balanced || !usable || in_range) return false;
    log_scale += std::log(mass);
    return true;
}

void Iterate::move(const Vector& from, double length, const Vector& step) {
    each(run, nu.size(), [&](Index j) {
        if (nu[j] > 0) g[j] = from[j] + length * step[j];
    });
}

}  // namespace qk
