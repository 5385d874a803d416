// The linear system of Newton's method on the dual in g, at the point that an Iterate has visited last:
//     (diag(columns) - rho P^T diag(masses) P + diag(extra)) x = r,
// where P is the row softmax, and rho = a / (1 + a) for a penalty a on the rows, 1 without. It is a Laplacian plus a
// diagonal: the Laplacian of the graph in which two columns are connected if they share rows.
#pragma once

#include <Eigen/Core>

#include "bridge/iterate.hpp"
#include "qk/scalar_math.hpp"

namespace qk {

class NewtonSystem {
public:
    using Vector = Iterate::Vector;

    explicit NewtonSystem(Iterate& at);

    // Updates the system to the point that was visited last. If the kernel has few large entries, a visit gathers them,
    // or they are updated while the potentials have not moved far; products then need no visits of the kernel. Returns
    // false if the solve has ended.
    bool refresh();
    // Solves to the given relative tolerance, or as far as rounding allows. If x is not finite, the matrix was not
    // positive definite up to rounding. Returns false if the solve has ended.
    bool solve(const Vector& r, const Vector& extra, double tolerance, Vector& x);
    // From now on products need more than single precision.
    void refine() { rough_ = false; }

private:
    bool has_entries() const { return !rows_.start.empty(); }
    bool gather(double least, Index most);
    void follow();
    void sum_entries();
    double factoring_work() const;
    void multiply(const Vector& x, Vector& out);  // P^T diag(masses) P x, from the gathered entries
    void weigh();
    void factorise(const Vector& extra);
    bool by_conjugate_gradients(const Vector& r, const Vector& extra, double tolerance, Index most_steps,
                                bool& converged, Vector& x);

    Iterate& at_;
    SparseRows rows_;
    Vector gathered_g_, gathered_lse_, last_g_, last_lse_;
    Vector masses_;  // rho times the masses of the rows
    // From the gathered entries: the row sums of P^T diag(masses) P, and these sums without the entry on the diagonal,
    // which is the diagonal of the Laplacian.
    Vector laplacian_, diagonal_;
    Eigen::MatrixXd factor_;
    bool direct_;                               // whether the system is factored from now on
    bool has_all_ = true;                       // whether enough entries can be gathered for that
    double gather_below_ = infinity<double>();  // the error below which gathering is tried
    bool rough_ = true;
};

}  // namespace qk
