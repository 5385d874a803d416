#include <algorithm>
#include <cmath>
#include <limits>

#include <Eigen/Core>

#include "bridge/long_vectors.hpp"
#include "qk/scalar_math.hpp"
#include "qk/sinkhorn.hpp"

namespace qk {
namespace {

using Vector = Eigen::VectorXd;
using Map = Eigen::Map<Vector>;

constexpr double none = -std::numeric_limits<double>::infinity();

// Anderson's extrapolation: from the last steps of Sinkhorn's iteration, the point at which a linear iteration
// would have none left. Columns without weight stay where they are.
class Extrapolation {
public:
    Extrapolation(const Vector& nu, const Run& run)
        : run_(run), changes_(nu.size(), most), moves_(nu.size(), most) {
        set(run_, weight_, nu.cwiseSqrt());
    }

    bool empty() const { return n_seen_ == 0; }

    // After a point that turned out worse. The same steps would lead there again: those who fail time and again
    // remember less, and in the end nothing, which is Sinkhorn's own iteration.
    void forget() {
        n_seen_ = 0;
        if (++n_failed_ > 2 && memory_ > 0) --memory_;
    }

    // The next point, having stepped from `point` by `step`.
    Vector next(const Vector& point, const Vector& step) {
        if (n_seen_ > 0 && memory_ > 0) {
            const Index k = (n_seen_ - 1) % memory_;  // the oldest goes
            each(run_, step.size(), [&](Index j) {
                const double change = step[j] - last_step_[j];
                changes_(j, k) = weight_[j] * change;
                moves_(j, k) = weight_[j] > 0 ? point[j] - last_point_[j] + change : 0.0;
            });
        }
        set(run_, last_point_, point);
        set(run_, last_step_, step);
        Vector to;
        set(run_, to, point + step);
        const Index m = std::min(n_seen_++, memory_);
        if (m > 0) {
            const Coefficients gamma = fit(m, step);
            Vector move(step.size());
            in_pieces(run_, 0, step.size(), [&](Index from, Index end) {
                move.segment(from, end - from).noalias() =
                    moves_.middleRows(from, end - from).leftCols(m) * gamma;
            });
            // Steps that are hardly independent give anything: no rate that is worth extrapolating is that slow.
            constexpr double farthest = 1e4;
            if (all_finite(run_, move) && max_size(run_, move) <= farthest * max_size(run_, step))
                set(run_, to, to - move);
        }
        return to;
    }

private:
    static constexpr Index most = 5;
    using Coefficients = Eigen::Matrix<double, Eigen::Dynamic, 1, 0, most, 1>;

    // The combination of the first m changes nearest to the weighted step, by Gram and Schmidt's method in its modified
    // form with the step as a last column, which is as stable as reflections (Björck), and for a handful of columns much
    // less to do. The longest column goes first; those that hardly add a direction get nothing.
    Coefficients fit(Index m, const Vector& step) {
        constexpr double dependent = 1e-14;
        rest_.resize(step.size(), m);
        in_pieces(run_, 0, step.size(), [&](Index from, Index end) {
            rest_.middleRows(from, end - from) = changes_.middleRows(from, end - from).leftCols(m);
        });
        set(run_, target_, step.cwiseProduct(weight_));
        double r[most][most], onto[most], longest = 0;
        Index order[most], rank = 0;
        for (Index k = 0; k < m; ++k) order[k] = k;
        for (; rank < m; ++rank) {
            Index pick = rank;
            double size = 0;
            for (Index k = rank; k < m; ++k) {
                const double length = norm(run_, rest_.col(order[k]));
                if (length > size) {
                    size = length;
                    pick = k;
                }
            }
            longest = std::max(longest, size);
            if (!(size > dependent * longest)) break;
            std::swap(order[rank], order[pick]);
            for (Index k = 0; k < rank; ++k) std::swap(r[k][rank], r[k][pick]);
            auto unit = rest_.col(order[rank]);
            set(run_, unit, unit / size);
            r[rank][rank] = size;
            for (Index k = rank + 1; k < m; ++k) {
                auto other = rest_.col(order[k]);
                r[rank][k] = dot(run_, unit, other);
                set(run_, other, other - r[rank][k] * unit);
            }
            onto[rank] = dot(run_, unit, target_);
            set(run_, target_, target_ - onto[rank] * unit);
        }
        Coefficients gamma = Coefficients::Zero(m);
        for (Index k = rank - 1; k >= 0; --k) {
            double value = onto[k];
            for (Index l = k + 1; l < rank; ++l) value -= r[k][l] * gamma[order[l]];
            gamma[order[k]] = value / r[k][k];
        }
        return gamma;
    }

    const Run& run_;
    Vector weight_, last_point_, last_step_;
    Eigen::MatrixXd changes_, moves_;  // of the step, weighted; of the point that it leads to
    Eigen::MatrixXd rest_;             // of fit()
    Vector target_;
    Index n_seen_ = 0, n_failed_ = 0;
    Index memory_ = most;
};

class Solver {
public:
    Solver(Sweep& sweep, const std::vector<double>& mu, const std::vector<double>& nu,
           const BridgeOptions& options, BridgeState& state, const Run& run)
        : sweep_(sweep),
          options_(options),
          state_(state),
          run_(run),
          row_damping_(damping(options.row_penalty)),
          col_damping_(damping(options.col_penalty)),
          balanced_(std::isinf(options.row_penalty) && std::isinf(options.col_penalty)),
          log_unit_(balanced_ ? std::log(sum(run_, copy(mu))) : 0.0),
          mu_(copy(mu)),
          nu_(copy(nu)),
          log_mu_(logs(mu_)),
          log_nu_(logs(nu_)),
          f_(copy(state.f)),
          g_(copy(state.g)),
          lse_(mu_.size()),
          columns_(nu_.size()) {
        if (balanced_) {  // marginals of mass 1, so that every threshold below is a share of the mass
            const double unit = sum(run_, mu_);
            set(run_, mu_, mu_ / unit);
            set(run_, nu_, nu_ / unit);
        }
        shift(f_, -log_unit_);
        each(run_, nu_.size(), [&](Index j) {
            if (nu_[j] == 0) g_[j] = none;
        });
    }

    void solve() {
        switch (options_.method) {
            case BridgeMethod::alternating:
                alternate(1.0, false);
                break;
            case BridgeMethod::relaxed:
                alternate(1.0, true);
                break;
            case BridgeMethod::anderson:
                anderson(false);
                break;
            case BridgeMethod::accelerated:
                if (anderson(true)) newton();
                break;
            case BridgeMethod::newton:
                newton();
                break;
            case BridgeMethod::symmetric:
                symmetric();
                break;
        }
        shift(f_, log_unit_);
        each(run_, f_.size(), [&](Index i) { state_.f[static_cast<std::size_t>(i)] = f_[i]; });
        each(run_, g_.size(), [&](Index j) { state_.g[static_cast<std::size_t>(j)] = g_[j]; });
    }

private:
    Vector copy(const std::vector<double>& v) const {
        Vector out;
        set(run_, out, Eigen::Map<const Vector>(v.data(), static_cast<Index>(v.size())));
        return out;
    }
    void shift(Vector& v, double by) const {
        each(run_, v.size(), [&](Index j) { v[j] += by; });
    }

    // Of weights, in the unit of mass.
    Vector logs(const Vector& weights) const {
        Vector out(weights.size());
        in_pieces(run_, 0, weights.size(), [&](Index from, Index to) {
            out.segment(from, to - from) = weights.segment(from, to - from).array().log() - log_unit_;
        });
        return out;
    }

    // With a penalty of weight w the potential is this fraction of the one that would meet the marginal.
    static double damping(double penalty) { return std::isinf(penalty) ? 1.0 : penalty / (1 + penalty); }

    // ---- steps ------------------------------------------------------------------------------------------

    // One visit at g: f by an update with the given relaxation, and the columns that follow; again and exactly
    // where what is not known of them would matter. False ends it.
    bool visit(double relaxation) {
        constexpr double negligible = 0.03;
        Vector before;
        if (relaxation != 1.0) set(run_, before, f_);
        if (!visit_once(relaxation)) return false;
        if (sweep_.uncertainty() == 0) return true;
        // The bound is in units of mass, as the columns are; errors are shares of it.
        const double bearable = negligible * std::max(column_error(), options_.tol) * sum(run_, columns_);
        if (!columns_vanish() && sweep_.uncertainty() <= bearable) return true;
        if (relaxation != 1.0) set(run_, f_, before);
        sweep_.refine();
        return visit_once(relaxation);
    }

    bool visit_once(double relaxation) {
        const RowMass mass = [&](Index i, double lse) {
            if (log_mu_[i] == none) {
                f_[i] = none;
                return 0.0;
            }
            const double target = row_damping_ * (log_mu_[i] - lse);
            f_[i] = relaxation == 1.0 || f_[i] == none ? target : f_[i] + relaxation * (target - f_[i]);
            return f_[i] == log_mu_[i] - lse && log_scale_ == 0 ? mu_[i] : std::exp(f_[i] + lse - log_scale_);
        };
        ++state_.n_visits;
        const Status status = sweep_.rows(g_.data(), mass, lse_.data(), columns_.data(), run_);
        if (status == Status::interrupted) return end(BridgeStatus::interrupted);
        if (status == Status::overflow) return end(BridgeStatus::overflow);
        bool feasible = true;
        each(run_, mu_.size(), [&](Index i) {
            // A row that sees nothing cannot have mass; a penalty bears that, a constraint does not.
            if (lse_[i] != none) return;
            if (mu_[i] > 0 && std::isinf(options_.row_penalty)) feasible = false;
            f_[i] = none;
        });
        return feasible || end(BridgeStatus::infeasible);
    }

    // How far the columns are from what they should be: L1, as a share of the mass of the plan.
    double column_error() const {
        if (balanced_) return sum(run_, (columns_ - nu_).cwiseAbs());
        double error = 0;
        each(run_, nu_.size(), [&](Index j) {
            if (nu_[j] > 0) error += std::abs(columns_[j] - std::exp(log_wanted(j) - log_scale_));
        });
        return error / sum(run_, columns_);
    }
    // The logarithm of column j of the solution: with a KL penalty of weight w it is nu_j exp(-g_j / w).
    double log_wanted(Index j) const {
        return std::isinf(options_.col_penalty) ? log_nu_[j] : log_nu_[j] - g_[j] / options_.col_penalty;
    }
    // The move of g_j that Sinkhorn makes.
    double column_step(Index j) const {
        if (nu_[j] == 0) return 0;
        const double lse = std::log(columns_[j]) + log_scale_ - g_[j];
        return col_damping_ * (log_nu_[j] - lse) - g_[j];
    }
    // g moved by a multiple of Sinkhorn's step. Rows may be so long that Ctrl-C has to be heard in between: the next
    // visit then ends the solve.
    void step_columns(double relaxation) {
        each(run_, nu_.size(), [&](Index j) {
            if (nu_[j] > 0) g_[j] += relaxation * column_step(j);
        });
    }
    void find_step(Vector& step) const {
        each(run_, nu_.size(), [&](Index j) { step[j] = column_step(j); });
    }
    // Penalised problems: f + t and g - t give the same plan for every t, and only the penalties tell them apart. Their
    // best t is known in closed form; the iteration alone would approach it like (1 - 1 / penalty)^k.
    void balance_masses() {
        const double a = options_.row_penalty, b = options_.col_penalty;
        const double rows = log_penalised_mass(mu_, log_mu_, f_, a),
                     columns = log_penalised_mass(nu_, log_nu_, g_, b);
        const double weight = std::isinf(a) ? b : std::isinf(b) ? a : a / (a + b) * b;
        const double t = weight * (rows - columns);
        if (std::isfinite(t)) shift(g_, -t);
    }
    // log sum_i mu_i exp(-f_i / penalty)
    double log_penalised_mass(const Vector& mu, const Vector& log_mu, const Vector& f, double penalty) const {
        const auto term = [&](Index i) {
            return std::isinf(penalty) ? log_mu[i] : log_mu[i] - f[i] / penalty;
        };
        double top = none, mass = 0;
        each(run_, mu.size(), [&](Index i) {
            if (mu[i] > 0 && f[i] != none) top = std::max(top, term(i));
        });
        each(run_, mu.size(), [&](Index i) {
            if (mu[i] > 0 && f[i] != none) mass += std::exp(term(i) - top);
        });
        return top + std::log(mass);
    }
    // A penalised plan may have any mass: the next columns are scaled by that of these, so that neither underflows.
    void rescale() {
        const double mass = sum(run_, columns_);
        if (!balanced_ && mass > 0 && std::isfinite(mass) && (mass <= 1e-10 || mass >= 1e10))
            log_scale_ += std::log(mass);
    }
    bool columns_vanish() const {
        bool found = false;
        each(run_, nu_.size(), [&](Index j) { found = found || (nu_[j] > 0 && !(columns_[j] > 0)); });
        return found;
    }
    // Columns whose mass has underflowed get the exact update; so do all others with them. False ends it.
    bool recover_columns() {
        Vector lse(nu_.size());
        ++state_.n_visits;
        const Status status = sweep_.columns(f_.data(), lse.data(), run_);
        if (status == Status::interrupted) return end(BridgeStatus::interrupted);
        if (status == Status::overflow) return end(BridgeStatus::overflow);
        double top = none;
        bool feasible = true;
        each(run_, nu_.size(), [&](Index j) {
            if (nu_[j] == 0) return;
            if (lse[j] == none) {
                if (std::isinf(options_.col_penalty)) feasible = false;
                // A column that no entry reaches stays empty, whatever its penalty: it is as one without weight.
                nu_[j] = 0;
                log_nu_[j] = g_[j] = none;
                return;
            }
            top = std::max(top, g_[j] + lse[j]);
        });
        if (!feasible) return end(BridgeStatus::infeasible);
        if (top == none) return end(BridgeStatus::converged);  // no entry at all: the empty plan
        if (!balanced_) log_scale_ = top;
        const double scale = balanced_ ? 0.0 : top;
        double error = 0, mass = 0;
        each(run_, nu_.size(), [&](Index j) {
            if (nu_[j] == 0) return;
            const double column = std::exp(g_[j] + lse[j] - scale);
            mass += column;
            error += std::abs(column - std::exp(log_wanted(j) - scale));
        });
        note(balanced_ ? error : error / mass);
        if (state_.errors.back() <= options_.tol) return end(BridgeStatus::converged);
        each(run_, nu_.size(), [&](Index j) {
            if (nu_[j] > 0) g_[j] = col_damping_ * (log_nu_[j] - lse[j]);
        });
        return !out_of_visits();
    }
    double row_error() const {
        double error = 0;
        each(run_, mu_.size(), [&](Index i) {
            if (mu_[i] > 0) error += std::abs(std::exp(f_[i] + lse_[i]) - mu_[i]);
        });
        return error;  // of balanced problems, whose mass is 1
    }

    void note(double error) {
        state_.errors.push_back(error);
        if (options_.report) options_.report(state_.n_visits, error);
    }
    bool end(BridgeStatus status) {
        state_.status = status;
        return false;
    }
    bool out_of_visits() const { return state_.n_visits >= options_.max_visits; }

    // ---- alternating updates, with over-relaxation once their rate has settled ---------------------------

    void alternate(double relaxation, bool may_relax) {
        auto best = infinity<double>();
        Index since_best = 0, settled = 0;
        double previous = infinity<double>(), rate = 0;
        if (!may_relax) leaps_left_ = 0;  // Sinkhorn's own iteration, and nothing else
        while (visit(relaxation)) {
            if (columns_vanish()) {
                if (!recover_columns()) return;
                relaxation = 1.0;
                continue;
            }
            double error = column_error();
            if (relaxation != 1.0) error = std::max(error, row_error());
            note(error);
            if (error <= options_.tol && relaxation == 1.0) {
                end(BridgeStatus::converged);
                return;
            }
            if (out_of_visits()) return;
            if (error < 0.99 * best) {
                best = error;
                since_best = 0;
            } else if (++since_best > patience) {
                may_relax = false;
                since_best = 0;
                if (relaxation == 1.0) {
                    if (!leap(error)) return;
                    best = infinity<double>();
                    continue;
                }
                relaxation = 1.0;  // it does not help here
            }
            if (relaxation != 1.0 && (error > 10 * best || !std::isfinite(error))) {
                relaxation = 1.0;
                may_relax = false;
            }
            if (error <= options_.tol) relaxation = 1.0;  // the last visit is an exact one
            if (may_relax && relaxation == 1.0 && state_.errors.size() >= 10) {
                const double now = error / previous;
                settled = std::abs(now - rate) < 0.02 * (1 - now) + 0.002 ? settled + 1 : 0;
                if (settled >= 3 && now < 1 && now > 0.3) {
                    relaxation = std::min(1.95, 2 / (1 + std::sqrt(1 - now)));
                    state_.relaxation = relaxation;
                }
                rate = now;
            }
            previous = error;
            step_columns(relaxation);
            if (!balanced_) balance_masses();
            rescale();
        }
    }

    // What looks like stagnation may be a plateau. Where blocks of rows and columns hardly see each other, the error stays as
    // it is while the potentials of whole blocks move by the same small step at every visit, until their distance lets
    // the missing mass pass. The dual rises in proportion to the way, so the step is doubled as long as it does. False
    // ends the solve; else g has moved and is not visited yet.
    bool leap(double error) {
        constexpr Index doublings = 20;
        if (error <= 100 * options_.tol || leaps_left_ == 0) return end(BridgeStatus::stagnated);
        if (options_.max_visits - state_.n_visits <= doublings) return end(BridgeStatus::iteration_limit);
        --leaps_left_;
        Vector from, step(nu_.size());
        set(run_, from, g_);
        find_step(step);
        const double before = dual(), slope = dot(run_, nu_ - columns_, step);
        double length = 1;
        for (Index k = 0; k < doublings; ++k, length *= 2) {
            move(from, 2 * length, step);
            if (!visit(1.0)) return false;
            const double promised = 2 * length * slope;
            if (columns_vanish() || !(dual() - before > 0.5 * promised)) break;
        }
        if (length < 16) {  // back to where it was, and to the rows that belong there
            set(run_, g_, from);
            return visit(1.0) && end(BridgeStatus::stagnated);
        }
        move(from, length, step);
        return true;
    }

    // ---- Anderson's extrapolation of the last iterates ---------------------------------------------------

    // Whether, at the rate of the last iterations, too many more would be needed: then each product of
    // Newton's method is better spent.
    bool slow() const {
        constexpr std::size_t window = 5, early = 10;
        constexpr double many = 15;
        const std::vector<double>& e = state_.errors;
        if (e.size() < early) return false;
        const double gain = std::log(e[e.size() - 1 - window] / e.back()) / window;
        return !(gain > 0) || std::log(e.back() / options_.tol) > many * gain;
    }

    // With `may_give_up`, true says that it is slow; g is then the best that was found.
    bool anderson(bool may_give_up) {
        Extrapolation extrapolation(nu_, run_);
        Vector best_g, step(nu_.size()), plain;  // plain: Sinkhorn's own step from the point before
        set(run_, best_g, g_);
        double dual_before = -infinity<double>(), error_before = infinity<double>();
        auto best = infinity<double>();
        Index since_best = 0;
        while (visit(1.0)) {
            const bool vanish = columns_vanish();
            if (vanish && extrapolation.empty()) {
                if (!recover_columns()) return false;
                continue;
            }
            const double error = vanish ? infinity<double>() : column_error();
            note(error);
            if (error <= options_.tol) {
                end(BridgeStatus::converged);
                return false;
            }
            if (out_of_visits()) return false;
            if (error > 2 * best) {  // a bad extrapolation: go back, and forget what led to it
                set(run_, g_, best_g);
                extrapolation.forget();
                best = infinity<double>();
                dual_before = -infinity<double>();
                continue;
            }
            // So is one that lowers the dual, which Sinkhorn's own step never does: it may lie on a plateau far out,
            // where the error says nothing. Rounding hides changes close to the solution; there the error decides.
            const double dual_here = dual();
            const double rounding = 1e-12 * (1 + std::abs(dual_here));
            if (!(dual_here >= dual_before - rounding) && !(error < 0.5 * error_before)) {
                set(run_, g_, plain);
                extrapolation.forget();
                dual_before = -infinity<double>();
                continue;
            }
            dual_before = dual_here;
            error_before = error;
            if (error < best) {
                if (error < 0.99 * best) since_best = 0;
                best = error;
                set(run_, best_g, g_);
            }
            if (may_give_up && slow()) {
                set(run_, g_, best_g);
                return true;
            }
            if (++since_best > patience) {
                end(BridgeStatus::stagnated);
                return false;
            }
            find_step(step);
            set(run_, plain, g_ + step);
            g_ = extrapolation.next(g_, step);
        }
        return false;
    }

    // ---- Newton's method on the dual in g, its system solved by conjugate gradients ----------------------

    double dual() const {
        double value = 0;
        each(run_, nu_.size(), [&](Index j) {
            if (nu_[j] > 0) value += nu_[j] * g_[j];
        });
        each(run_, mu_.size(), [&](Index i) {
            if (mu_[i] > 0) value -= mu_[i] * lse_[i];
        });
        return value;
    }

    // Solves (diag(columns) - P^T diag(1/mu) P) x = residual to the given relative tolerance. The constant,
    // along which the matrix vanishes, is projected out. False ends the solve.
    bool conjugate_gradients(const Vector& residual, double tolerance, Vector& x) {
        const Index m = nu_.size();
        Vector inverse(m), r, z, p, q, spread(m);
        set(run_, r, residual);
        each(run_, m, [&](Index j) { inverse[j] = columns_[j] > 0 && nu_[j] > 0 ? 1 / columns_[j] : 0; });
        const double mass = sum(run_, columns_);
        const auto project = [&](Vector& v) {  // orthogonal to the constant in the metric of the diagonal
            const double mean = dot(run_, columns_, v) / mass;
            each(run_, m, [&](Index j) { v[j] = inverse[j] > 0 ? v[j] - mean : 0; });
        };
        set(run_, x, Vector::Zero(m));
        set(run_, z, inverse.cwiseProduct(r));
        project(z);
        set(run_, p, z);
        double rz = dot(run_, r, z);
        const double stop = tolerance * tolerance * rz;
        const Index limit = std::min<Index>(500, 2 * m);
        for (Index k = 0; k < limit && rz > stop && rz > 0; ++k) {
            ++state_.n_visits;
            const Status status = sweep_.curvature(p.data(), mu_.data(), spread.data(), rough_, run_);
            if (status != Status::ok) return end(BridgeStatus::interrupted);
            set(run_, q, columns_.cwiseProduct(p) - spread);
            const double curvature = dot(run_, p, q);
            const double rounding = rough_ ? 1e-6 : 1e-14;
            if (!(curvature > rounding * dot(run_, p.cwiseProduct(columns_), p))) break;  // flat
            const double alpha = rz / curvature;
            set(run_, x, x + alpha * p);
            set(run_, r, r - alpha * q);
            set(run_, z, inverse.cwiseProduct(r));
            project(z);
            const double next = dot(run_, r, z);
            set(run_, p, z + (next / rz) * p);
            rz = next;
            if (out_of_visits()) break;
        }
        return true;
    }

    // Exact column updates until no column vanishes; ends at a visited g.
    bool settle_columns() {
        while (columns_vanish())
            if (!recover_columns() || !visit(1.0)) return false;
        return true;
    }

    // Sinkhorn steps from the g just visited; ends at a visited g.
    bool plain_steps(int count) {
        for (int k = 0; k < count && !out_of_visits(); ++k) {
            step_columns(1.0);
            if (!visit(1.0)) return false;
            if (columns_vanish() && !settle_columns()) return false;
            note(column_error());
            if (state_.errors.back() <= options_.tol) return end(BridgeStatus::converged);
        }
        return true;
    }

    void newton() {
        if (!visit(1.0)) return;
        // Far from the solution the quadratic model is worth little: Sinkhorn steps first.
        // A plateau that outlasts them is for the caller to judge, who knows whether the problem has a solution.
        for (int steps = 0;; steps += 5) {
            if (columns_vanish() && !settle_columns()) return;
            if (column_error() < 0.1 || out_of_visits()) break;
            if (steps >= most_first_steps) {
                end(BridgeStatus::stagnated);
                return;
            }
            if (!plain_steps(5)) return;
        }
        auto best = infinity<double>();
        Index since_best = 0;
        for (;;) {
            if (columns_vanish() && !settle_columns()) return;
            double error = column_error();
            note(error);
            if (error <= options_.tol) {
                end(BridgeStatus::converged);
                return;
            }
            if (out_of_visits()) return;
            if (error < 0.99 * best) {
                best = error;
                since_best = 0;
            } else if (++since_best > 20) {
                // After Sinkhorn steps, which find the direction of a plateau.
                if (!plain_steps(10) || !leap(column_error()) || !visit(1.0)) return;
                best = infinity<double>();
                since_best = 0;
                continue;
            }
            Vector residual, from, step;
            set(run_, residual, nu_ - columns_);
            set(run_, from, g_);
            const double before = dual();
            // As exact as the distance to the solution deserves.
            if (!conjugate_gradients(residual, std::clamp(std::sqrt(error), 1e-3, 0.1), step)) return;
            const double slope = dot(run_, residual, step);
            bool accepted = false;
            if (slope > 0 && all_finite(run_, step)) {
                double length = std::min(1.0, 20.0 / std::max(max_size(run_, step), 1e-300));
                for (int k = 0; k < 8 && !accepted; ++k, length /= 4) {
                    move(from, length, step);
                    if (!visit(1.0)) return;
                    const double now = columns_vanish() ? infinity<double>() : column_error();
                    // Near the solution the dual's own rounding hides its increase: then the error decides.
                    accepted = dual() >= before + 1e-4 * length * slope || now < 0.7 * error;
                    if (out_of_visits()) break;
                }
            }
            if (!accepted) {  // a Sinkhorn step never lowers the dual
                rough_ = false;
                set(run_, g_, from);
                if (!visit(1.0) || !plain_steps(10)) return;
            }
        }
    }

    void move(const Vector& from, double length, const Vector& step) {
        each(run_, nu_.size(), [&](Index j) {
            if (nu_[j] > 0) g_[j] = from[j] + length * step[j];
        });
    }

    // ---- the averaged update of symmetric problems: f = g, half-way to the row update --------------------

    void symmetric() {
        g_.array() -= log_unit_ / 2;  // both potentials share the mass of an earlier result
        auto best = infinity<double>();
        Index since_best = 0;
        const RowMass nothing = [](Index, double) { return 0.0; };
        for (;;) {
            ++state_.n_visits;
            const Status status = sweep_.rows(g_.data(), nothing, lse_.data(), nullptr, run_);
            if (status != Status::ok) {
                end(status == Status::overflow ? BridgeStatus::overflow : BridgeStatus::interrupted);
                return;
            }
            double error = 0;
            for (Index i = 0; i < mu_.size(); ++i) {
                if (mu_[i] == 0) continue;
                if (lse_[i] == none) {
                    end(BridgeStatus::infeasible);
                    return;
                }
                error += std::abs(std::exp(g_[i] + lse_[i]) - mu_[i]);
            }
            f_ = g_;
            note(error);
            if (error <= options_.tol) {
                end(BridgeStatus::converged);
                return;
            }
            if (out_of_visits()) return;
            if (error < 0.99 * best) {
                best = error;
                since_best = 0;
            } else if (++since_best > patience) {
                end(BridgeStatus::stagnated);
                return;
            }
            for (Index i = 0; i < mu_.size(); ++i)
                if (mu_[i] > 0) g_[i] = 0.5 * (g_[i] + log_mu_[i] - lse_[i]);
        }
    }

    static constexpr Index patience = 100;
    static constexpr int most_first_steps = 200;
    Index leaps_left_ = 20;

    // Directions need no more than single precision, until one turns out to be useless.
    bool rough_ = true;

    Sweep& sweep_;
    const BridgeOptions& options_;
    BridgeState& state_;
    const Run& run_;
    const double row_damping_, col_damping_;
    const bool balanced_;
    const double log_unit_;  // of the mass that the marginals are counted in
    Vector mu_, nu_, log_mu_, log_nu_, f_, g_, lse_;
    Vector columns_;  // of the plan, times exp(-log_scale_)
    double log_scale_ = 0;
};

}  // namespace

void solve_bridge(Sweep& sweep, const std::vector<double>& mu, const std::vector<double>& nu,
                  const BridgeOptions& options, BridgeState& state, const Run& run) {
    Solver(sweep, mu, nu, options, state, run).solve();
}

}  // namespace qk
