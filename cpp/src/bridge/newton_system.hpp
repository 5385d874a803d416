// The linear system of Newton's method on the dual in g, at the point of an Iterate that was visited last:
//     (diag(columns) - rho P^T diag(masses) P + diag(extra)) x = r,
// where P is the row softmax, rho = a / (1 + a) for a penalty a on the rows, 1 without. In the graph whose edges join
// columns that rows share, this is the Laplacian plus a diagonal.
#pragma once

#include <Eigen/Core>

#include "bridge/iterate.hpp"
#include "qk/scalar_math.hpp"

namespace qk {

class NewtonSystem {
public:
    using Vector = Iterate::Vector;

    explicit NewtonSystem(Iterate& at);

    // Comes to the point just visited. The kernel's large entries, where they are few, are gathered by a visit, or
    // updated from the last ones while the potentials have not moved far: then products need no visits of the kernel.
    // False when the solve has ended.
    bool refresh();
    // To the given relative tolerance, or as far as rounding allows. An x that is not finite says that the matrix was
    // not positive definite to rounding. False when the solve has ended.
    bool solve(const Vector& r, const Vector& extra, double tolerance, Vector& x);
    // Products in more than single precision from now on.
    void refine() { rough_ = false; }

private:
    bool has_entries() const { return !rows_.start.empty(); }
    bool gather(double least, Index most);
    void follow();
    void sum_entries();
    double factoring_work() const;
    void multiply(const Vector& x, Vector& out);  // P^T diag(masses) P x, from the entries
    void weigh();
    void factorise(const Vector& extra);
    bool by_conjugate_gradients(const Vector& r, const Vector& extra, double tolerance, Index most_steps,
                                bool& converged, Vector& x);

    Iterate& at_;
    SparseRows rows_;
    Vector gathered_g_, gathered_lse_, last_g_, last_lse_;
    Vector masses_;  //  rho times those of the rows
    Vector laplacian_,
        diagonal_;  // diagonal of the Laplacian, with and without the part that cancels; from the entries
    Eigen::MatrixXd factor_;
    bool direct_;                               // factored from now on
    bool has_all_ = true;                       // whether the kernel shows enough entries for that
    double gather_below_ = infinity<double>();  // the error from which it is worth trying
    bool rough_ = true;
};

}  // namespace qk
