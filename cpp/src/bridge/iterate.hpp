// The state of a bridge solver: potentials, the results of the last visit of the kernel, and the steps and
// measures that all methods share.
#pragma once

#include <cmath>
#include <vector>

#include <Eigen/Core>

#include "qk/sinkhorn.hpp"

namespace qk {

class Iterate {
public:
    using Vector = Eigen::VectorXd;

    // The number of visits without 1 % less error after which a method counts as stuck.
    static constexpr Index patience = 100;

    Iterate(Sweep& sweep, const std::vector<double>& mu, const std::vector<double>& nu,
            const BridgeOptions& options, BridgeState& state, const Run& run);

    // Writes the potentials to the state.
    void finish();

    // ---- visits: they return false when the solve has ended; its status is then set ----------------------

    // Visits the kernel at g: f follows from a row update with the given relaxation, and the columns from f. If the
    // uncertainty of a sweep that rounds is too large for the present error, the sweep is refined and visited again.
    bool visit(double relaxation);
    // update_columns() as an iteration, whose error is noted and judged; for columns whose mass underflows in visits.
    bool recover_columns();
    // Updates g by exact log-sum-exps of the columns. The new g has not been visited.
    bool update_columns();
    // Repeats recover_columns() and a visit until no column vanishes, or until more rounds would not help. The final g has
    // been visited.
    bool settle_columns();
    // Takes Sinkhorn steps from the g that was visited last. The final g has been visited too.
    bool plain_steps(int count);
    // Decides whether a standstill of the error is a plateau, and crosses it. Where blocks of rows and columns have
    // tiny weights for each other, the error stays the same while the potentials of whole blocks move by the same small
    // step at every visit, until the missing mass can pass between them. On the way the dual rises in proportion, so
    // the step is doubled as long as the dual does. The new g has not been visited. If the dual does not rise, the solve
    // ends as "stagnated".
    bool cross_plateau(double error);
    Index iterations() const { return static_cast<Index>(state.errors.size()); }
    // Whether no iteration may follow, because of their number or because the observer has ended the solve.
    bool out_of_iterations() const { return stopped_ || iterations() >= options.max_iterations; }
    bool out_of_budget() const { return out_of_iterations() || state.n_visits >= options.max_visits; }
    // The same as out_of_budget(), and sets the status that says which limit was met.
    bool limited();
    // Sets the status. Always returns false, so that a method can return what this returns.
    bool end(BridgeStatus status);
    // Returns whether a sweep succeeded; if not, sets the status that says why.
    bool went_through(Status status);
    // Counts work that is not a visit, in units of a visit's work.
    void charge(double visits);

    // ---- measures of the last visit ---------------------------------------------------------------------

    bool columns_vanish() const;
    // The L1 distance of the columns from what they should be, as a share of the mass of the plan.
    double column_error() const;
    double row_error() const;  // for balanced problems; not 0 after a relaxed update
    // What the columns should be at the present g, minus what they are, in the unit of `columns`: the gradient of the
    // dual.
    Vector residual() const;
    // The dual as a function of g alone, with the best f for it, in the unit of `columns`.
    double dual() const;
    void note(double error);

    // ---- moves of g -------------------------------------------------------------------------------------

    // Sinkhorn's step of every column; for penalised problems together with that of balance_masses().
    void find_step(Vector& step) const;
    // Moves g by a multiple of Sinkhorn's step.
    void step_columns(double relaxation);
    // For penalised problems: f + t and g - t give the same plan for every t, and only the penalties depend on t. The
    // best t is known in closed form; the iteration alone would approach it like (1 - 1 / penalty)^k.
    void balance_masses();
    // A penalised plan may have any mass. The unit of the next columns is the mass of these, so that neither
    // underflows. Returns whether the unit has changed.
    bool rescale();
    void move(const Vector& from, double length, const Vector& step);

    Sweep& sweep;
    const BridgeOptions& options;
    BridgeState& state;
    const Run& run;
    const double row_damping, col_damping;  // 1 without penalties
    const bool balanced;
    const double log_unit;  // logarithm of the mass that is the unit of the marginals
    Vector mu, nu;          // with mass 1 if balanced, so that every threshold is a share of the mass
    Vector log_mu, log_nu;
    Vector f, g, lse;
    Vector columns;  // column sums of the plan, times exp(-log_scale)
    double log_scale = 0;
    Index plateaus_left = 20;
    // Whether some visit found entries in every row (column) with weight. If a later one does not, the potentials are out
    // of range, and the problem is not infeasible.
    bool rows_have_entries = false, columns_have_entries = false;

    // The logarithm of what column j should be: nu_j, or nu_j exp(-g_j / w) with a KL penalty of weight w.
    double log_wanted(Index j) const;

private:
    bool visit_once(double relaxation);
    // The exact log-sum-exps of the columns.
    bool find_columns(Vector& exact);
    // step(j, Sinkhorn's step of g_j) for every column
    template <class Step>
    void each_column_step(const Step& step) const;
    double mass_shift(const Vector& at_g) const;

    double charged_ = 0;    // what charge() has not yet counted, less than a visit
    bool stopped_ = false;  // by the observer
};

// ---- methods; each sets the status when it ends the solve --------------------------------------------------

// Sinkhorn's iteration. With `may_relax` it is over-relaxed once its rate has settled, and only while that helps.
void alternate(Iterate& at, bool may_relax);
// Anderson's extrapolation of the last iterates. With `may_give_up` it returns true if it is slow; g is then the best
// that was found.
bool anderson(Iterate& at, bool may_give_up);
// Sinkhorn's iteration with a trial of the extrapolated point at every period-th step (BridgeOptions::period).
void periodic(Iterate& at);
// Newton's method on the dual in g, damped where the dual is not like its quadratic model. With `may_give_up` it returns
// true if it makes little progress.
bool newton(Iterate& at, bool may_give_up);
// Solves for an easy kernel, then for harder ones, and at last for this one (Sweep::easier). Each starts from the
// potentials of those before. Returns true if there are no easier kernels.
bool anneal(Iterate& at);
// Tries the methods in turn, each as long as it makes progress.
void automatic(Iterate& at);
// The averaged update of symmetric problems: f = g, and g moves half-way to the row update.
void symmetric(Iterate& at);

}  // namespace qk
