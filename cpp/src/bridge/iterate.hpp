// The point at which a bridge solver is: potentials, what the last visit of the kernel found there, and the steps and
// measures that every method shares.
#pragma once

#include <cmath>
#include <vector>

#include <Eigen/Core>

#include "qk/sinkhorn.hpp"

namespace qk {

class Iterate {
public:
    using Vector = Eigen::VectorXd;

    // Visits of the kernel without 1 % less error after which a method takes itself to be stuck.
    static constexpr Index patience = 100;

    Iterate(Sweep& sweep, const std::vector<double>& mu, const std::vector<double>& nu,
            const BridgeOptions& options, BridgeState& state, const Run& run);

    // Gives the potentials back to the state.
    void finish();

    // ---- visits: false when the solve has ended; its status is then set ---------------------------------

    // Visits the kernel at g: f by a row update with the given relaxation, and the columns that follow from it. Where
    // a sweep that rounds could not tell the error of the columns, it is refined and visited again.
    bool visit(double relaxation);
    // update_columns() as an iteration, for columns whose mass underflows in visits.
    bool recover_columns();
    // Column updates from exact log-sum-exps. Leaves g not visited.
    bool update_columns();
    // recover_columns() and visits until no column vanishes, or weights are too small for that; leaves g visited.
    bool settle_columns();
    // Sinkhorn steps from the g just visited; leaves g visited.
    bool plain_steps(int count);
    // What looks like stagnation may be a plateau: where blocks of rows and columns hardly see each other, the error
    // stays as it is while the potentials of whole blocks move by the same small step at every visit, until their
    // distance lets the missing mass pass. The dual rises in proportion to the way, so the step is doubled as long as
    // it does. Leaves g moved and not visited; ends as "stagnated" where the dual does not rise.
    bool cross_plateau(double error);
    Index iterations() const { return static_cast<Index>(state.errors.size()); }
    // No iteration may follow: there have been as many as there may be, or the observer has ended the solve.
    bool out_of_iterations() const { return stopped_ || iterations() >= options.max_iterations; }
    bool out_of_budget() const { return out_of_iterations() || state.n_visits >= options.max_visits; }
    // Whether the solve is at its end for one of these reasons; the status then says which.
    bool limited();
    // Sets the status; always false.
    bool end(BridgeStatus status);
    // Whether a sweep went through; else the status says why not.
    bool went_through(Status status);
    // Counts work beside the kernel's visits by the share of a visit that it amounts to.
    void charge(double visits);

    // ---- measures of the last visit ---------------------------------------------------------------------

    bool columns_vanish() const;
    // How far the columns are from what they should be: L1, as a share of the mass of the plan.
    double column_error() const;
    double row_error() const;  // of balanced problems; not 0 after a relaxed update
    // What the columns should be at the present g, in the unit of `columns`, less what they are: the dual's gradient.
    Vector residual() const;
    // The dual as a function of g alone, f being best for it; in the unit of `columns`.
    double dual() const;
    void note(double error);

    // ---- moves of g -------------------------------------------------------------------------------------

    // Sinkhorn's step of every column; of penalised problems followed by that of balance_masses().
    void find_step(Vector& step) const;
    // g moved by a multiple of Sinkhorn's step.
    void step_columns(double relaxation);
    // Penalised problems: f + t and g - t give the same plan for every t, and only the penalties tell them apart.
    // Their best t is known in closed form; the iteration alone would approach it like (1 - 1 / penalty)^k.
    void balance_masses();
    // A penalised plan may have any mass: the next columns are scaled by that of these, so that neither underflows.
    // Whether the unit has changed.
    bool rescale();
    void move(const Vector& from, double length, const Vector& step);

    Sweep& sweep;
    const BridgeOptions& options;
    BridgeState& state;
    const Run& run;
    const double row_damping, col_damping;  // 1 without penalties
    const bool balanced;
    const double log_unit;  // of the mass that the marginals are counted in
    Vector mu, nu;          // of mass 1 if balanced, so that every threshold is a share of the mass
    Vector log_mu, log_nu;
    Vector f, g, lse;
    Vector columns;  // of the plan, times exp(-log_scale)
    double log_scale = 0;
    Index plateaus_left = 20;
    // Whether every row, every column with weight was seen to have an entry: one that has none later is out of reach by
    // the potentials alone.
    bool rows_have_entries = false, columns_have_entries = false;

    // The logarithm of column j of the solution: with a KL penalty of weight w it is nu_j exp(-g_j / w).
    double log_wanted(Index j) const;

private:
    bool visit_once(double relaxation);
    // The exact log-sum-exps of the columns.
    bool find_columns(Vector& exact);
    // step(j, Sinkhorn's step of g_j) for every column
    template <class Step>
    void each_column_step(const Step& step) const;
    double mass_shift(const Vector& at_g) const;

    double charged_ = 0;    // less than a visit
    bool stopped_ = false;  // by the observer
};

// ---- methods; each leaves its verdict in the state ----------------------------------------------------------

// Sinkhorn's iteration; `may_relax`: over-relaxed once its rate has settled, and only while that helps.
void alternate(Iterate& at, bool may_relax);
// Anderson's extrapolation of the last iterates. With `may_give_up`, true says that it is slow; g is then the best
// that was found.
bool anderson(Iterate& at, bool may_give_up);
// Sinkhorn's iteration with a trial of the extrapolated point at every period-th step (BridgeOptions::period).
void periodic(Iterate& at);
// Newton's method on the dual in g, damped where the dual is not like its quadratic model. With `may_give_up`, true
// says that it makes little progress here.
bool newton(Iterate& at, bool may_give_up);
// From an easy kernel to this one: each stage starts from the potentials of the one before, in its own unit
// (Sweep::easier). True says that there are no easier kernels.
bool anneal(Iterate& at);
// Every method in turn, as long as it makes progress.
void automatic(Iterate& at);
// The averaged update of symmetric problems: f = g, half-way to the row update.
void symmetric(Iterate& at);

}  // namespace qk
