#include "bridge/newton_system.hpp"

#include <algorithm>
#include <cmath>

#include <Eigen/Cholesky>

#include "bridge/long_vectors.hpp"
#include "engine/tuning.hpp"
#include "qk/scalar_math.hpp"

namespace qk {
namespace {

using Vector = Iterate::Vector;

using tuning::always_factored, tuning::fewest_steps, tuning::least_direct, tuning::most_entries,
    tuning::most_factored, tuning::most_steps, tuning::per_computed_entry, tuning::per_kept_entry,
    tuning::per_stored_entry, tuning::reach, tuning::sparse;

}  // namespace

NewtonSystem::NewtonSystem(Iterate& at)
    : at_(at), masses_(at.mu.size()), direct_(at.nu.size() <= always_factored) {}

bool NewtonSystem::refresh() {
    weigh();
    if (has_entries()) follow();
    const double error = at_.column_error();
    const Index n = at_.mu.size(), m = at_.nu.size();
    if (!has_entries() && direct_) {
        if (!gather(least_direct, std::min(most_entries, n * m))) return false;
        direct_ = has_all_ = has_entries();
    } else if (!has_entries() && error < gather_below_) {
        if (!gather(std::clamp(1e-3 * error, 1e-12, 1e-5), std::min(most_entries, n * m / sparse)))
            return false;
        if (!has_entries()) gather_below_ = error / 30;  // there were too many large entries
    }
    if (has_entries()) sum_entries();
    return true;
}

bool NewtonSystem::gather(double least, Index most) {
    if (!at_.went_through(at_.sweep.gather(least, most, rows_, at_.run))) return false;
    if (!has_entries()) return true;  // there are too many, which a few rows show at little cost
    at_.charge(1);
    set(at_.run, gathered_g_, at_.g);
    set(at_.run, gathered_lse_, at_.lse);
    set(at_.run, last_g_, at_.g);
    set(at_.run, last_lse_, at_.lse);
    return true;
}

// Updates the entries by the changes of the potentials. Entries that were left out may matter after far moves, so such
// moves empty the store.
void NewtonSystem::follow() {
    double moved = 0;
    each(at_.run, at_.nu.size(), [&](Index j) {
        if (at_.nu[j] > 0) moved = std::max(moved, std::abs(at_.g[j] - gathered_g_[j]));
    });
    each(at_.run, at_.mu.size(), [&](Index i) {
        if (masses_[i] > 0) moved = std::max(moved, std::abs(at_.lse[i] - gathered_lse_[i]));
    });
    if (!(moved <= reach)) {
        rows_ = {};
        return;
    }
    for (Index i = 0; i < at_.mu.size(); ++i) {
        const double row = masses_[i] > 0 ? at_.lse[i] - last_lse_[i] : 0.0;
        const auto first = static_cast<std::size_t>(rows_.start[static_cast<std::size_t>(i)]),
                   end = static_cast<std::size_t>(rows_.start[static_cast<std::size_t>(i) + 1]);
        for (std::size_t k = first; k < end; ++k) {
            const Index j = rows_.column[k];
            rows_.share[k] *= std::exp(at_.g[j] - last_g_[j] - row);
        }
    }
    set(at_.run, last_g_, at_.g);
    set(at_.run, last_lse_, at_.lse);
}

void NewtonSystem::sum_entries() {
    laplacian_.setZero(at_.nu.size());
    diagonal_.setZero(at_.nu.size());
    for (Index i = 0; i < at_.mu.size(); ++i) {
        const auto first = static_cast<std::size_t>(rows_.start[static_cast<std::size_t>(i)]),
                   end = static_cast<std::size_t>(rows_.start[static_cast<std::size_t>(i) + 1]);
        double sum = 0;
        for (std::size_t k = first; k < end; ++k) sum += rows_.share[k];
        for (std::size_t k = first; k < end; ++k) {
            const double weight = masses_[i] * rows_.share[k];
            laplacian_[rows_.column[k]] += weight * sum;
            diagonal_[rows_.column[k]] += weight * (sum - rows_.share[k]);
        }
    }
}

void NewtonSystem::weigh() {
    const double damping = at_.row_damping;
    each(at_.run, at_.mu.size(), [&](Index i) {
        if (at_.mu[i] == 0 || at_.lse[i] == log_of_nothing)
            masses_[i] = 0;
        else
            masses_[i] = at_.balanced ? at_.mu[i] : damping * std::exp(at_.f[i] + at_.lse[i] - at_.log_scale);
    });
}

void NewtonSystem::multiply(const Vector& x, Vector& out) {
    out.setZero(x.size());
    for (Index i = 0; i < masses_.size(); ++i) {
        const auto first = static_cast<std::size_t>(rows_.start[static_cast<std::size_t>(i)]),
                   end = static_cast<std::size_t>(rows_.start[static_cast<std::size_t>(i) + 1]);
        double along = 0;
        for (std::size_t k = first; k < end; ++k) along += rows_.share[k] * x[rows_.column[k]];
        along *= masses_[i];
        for (std::size_t k = first; k < end; ++k) out[rows_.column[k]] += along * rows_.share[k];
    }
    at_.charge(static_cast<double>(rows_.share.size()) /
               (static_cast<double>(masses_.size()) * static_cast<double>(x.size())));
}

// The number of multiplications: those of the matrix, one for each pair of entries in a row, and those of its factor.
double NewtonSystem::factoring_work() const {
    const auto n = static_cast<double>(masses_.size()), m = static_cast<double>(at_.nu.size());
    const double per_row = has_entries() ? static_cast<double>(rows_.share.size()) / n : m;
    return n * per_row * per_row / 2 + m * m * m / 6;
}

// The off-diagonal entries are sums of positive terms, and the diagonal is the sum of its row's entries plus `extra`.
// So weak connections keep their digits, which a difference of nearly equal numbers would lose.
void NewtonSystem::factorise(const Vector& extra) {
    const Index n = masses_.size(), m = at_.nu.size();
    const auto entries = static_cast<double>(rows_.share.size());
    if (entries > 0.25 * static_cast<double>(n) * static_cast<double>(m)) {
        Eigen::MatrixXd weighed = Eigen::MatrixXd::Zero(m, n);
        for (Index i = 0; i < n; ++i) {
            const double root = std::sqrt(masses_[i]);
            for (Index k = rows_.start[static_cast<std::size_t>(i)];
                 k < rows_.start[static_cast<std::size_t>(i) + 1]; ++k)
                weighed(rows_.column[static_cast<std::size_t>(k)], i) =
                    root * rows_.share[static_cast<std::size_t>(k)];
        }
        factor_.setZero(m, m);
        factor_.selfadjointView<Eigen::Lower>().rankUpdate(weighed, -1.0);
    } else {
        factor_.setZero(m, m);
        for (Index i = 0; i < n; ++i) {
            const auto first = static_cast<std::size_t>(rows_.start[static_cast<std::size_t>(i)]),
                       end = static_cast<std::size_t>(rows_.start[static_cast<std::size_t>(i) + 1]);
            for (std::size_t k = first; k < end; ++k) {
                const double weight = masses_[i] * rows_.share[k];
                double* column = factor_.data() + rows_.column[k] * m;
                for (std::size_t l = k + 1; l < end; ++l) column[rows_.column[l]] -= weight * rows_.share[l];
            }
        }
    }
    factor_.diagonal().setZero();
    const Vector below = factor_.colwise().sum();
    Vector beside = Vector::Zero(m);
    for (Index j = 0; j < m; ++j) beside.tail(m - j) += factor_.col(j).tail(m - j);
    factor_.diagonal() = extra - below - beside;
    for (Index j = 0; j < m; ++j)
        if (at_.nu[j] == 0) factor_(j, j) = 1;
    at_.charge(factoring_work() / (per_computed_entry * static_cast<double>(n) * static_cast<double>(m)));
}

bool NewtonSystem::solve(const Vector& r, const Vector& extra, double tolerance, Vector& x) {
    const Index n = masses_.size(), m = at_.nu.size();
    if (!direct_) {
        const bool factorable = has_all_ && m <= most_factored;
        const double product = has_entries() ? per_kept_entry * static_cast<double>(rows_.share.size())
                                             : per_stored_entry * static_cast<double>(n * m);
        const double cost = factoring_work() / std::max(product, 1.0);
        const Index limit =
            factorable ? std::clamp(static_cast<Index>(cost), fewest_steps, most_steps) : most_steps;
        bool converged = false;
        if (!by_conjugate_gradients(r, extra, tolerance, limit, converged, x)) return false;
        if (converged || !factorable || at_.out_of_budget()) return true;
        // Weak connections between blocks of columns decide the last digits; a factorisation resolves them.
        direct_ = true;
        rows_ = {};
        if (!refresh()) return false;
        if (!direct_) return true;
    }
    factorise(extra + (1 - at_.row_damping) * at_.columns);
    const Eigen::LLT<Eigen::Ref<Eigen::MatrixXd>, Eigen::Lower> cholesky(factor_);
    if (cholesky.info() == Eigen::Success)
        x = cholesky.solve(r);
    else
        x = Vector::Constant(m, infinity<double>());
    return true;
}

// Without penalties the matrix maps constant vectors to 0, so the constant is projected out.
bool NewtonSystem::by_conjugate_gradients(const Vector& residual, const Vector& extra, double tolerance,
                                          Index most, bool& converged, Vector& x) {
    const Index m = at_.nu.size();
    const Vector& columns = at_.columns;
    const bool kept = has_entries();
    const double rest = 1 - at_.row_damping;
    const Run& run = at_.run;
    Vector inverse = room_for(m), spread = room_for(m), r, z, p, q;
    set(run, r, residual);
    each(run, m, [&](Index j) {
        const double d = (kept ? diagonal_[j] + rest * columns[j] : columns[j]) + extra[j];
        inverse[j] = d > 0 && at_.nu[j] > 0 ? 1 / d : 0;
    });
    const double mass = sum(run, columns);
    const auto project = [&](Vector& v) {  // orthogonal to the constant in the metric of the columns
        if (!at_.balanced || kept) return;
        const double mean = dot(run, columns, v) / mass;
        each(run, m, [&](Index j) { v[j] = inverse[j] > 0 ? v[j] - mean : 0; });
    };
    set(run, x, Vector::Zero(m));
    set(run, z, inverse.cwiseProduct(r));
    project(z);
    set(run, p, z);
    double rz = dot(run, r, z);
    const double stop = tolerance * tolerance * rz;
    const Index limit = std::min<Index>(most, 2 * m);
    for (Index k = 0; k < limit && rz > stop && rz > 0; ++k) {
        if (kept) {
            multiply(p, spread);
            set(run, q, (laplacian_ + rest * columns + extra).cwiseProduct(p) - spread);
        } else {
            ++at_.state.n_visits;
            if (!at_.went_through(
                    at_.sweep.curvature(p.data(), masses_.data(), spread.data(), rough_, at_.run)))
                return false;
            set(run, q, (columns + extra).cwiseProduct(p) - spread);
        }
        const double curvature = dot(run, p, q);
        const double rounding = rough_ && !kept ? 1e-6 : 1e-14;
        if (!(curvature > rounding * dot(run, p.cwiseProduct(columns), p)) && !kept)
            break;  // only rounding is left
        if (!(curvature > 0)) break;
        const double alpha = rz / curvature;
        set(run, x, x + alpha * p);
        set(run, r, r - alpha * q);
        set(run, z, inverse.cwiseProduct(r));
        project(z);
        const double next = dot(run, r, z);
        set(run, p, z + (next / rz) * p);
        rz = next;
        if (at_.out_of_budget()) break;
    }
    converged = rz <= stop;
    return true;
}

}  // namespace qk
