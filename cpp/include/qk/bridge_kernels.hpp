// The kernels that bridges are solved over, each as a Sweep, and where the entries of one live. qk/sweep.hpp has the
// contract and the sweeps of rows of entries.
#pragma once

#include <memory>
#include <vector>

#include "low_rank.hpp"
#include "sinkhorn.hpp"

namespace qk {

// ---- symmetric kernels -----------------------------------------------------------------------------------------

// Entries of scratch that the stored upper triangle of n points takes.
template <class T>
Index triangle_size(Index n);

// The upper triangle of a symmetric kernel, stored, for the method "symmetric". `scratch` holds triangle_size(n) entries
// and outlives the sweep; with null the sweep has its own. Where entries leave the range of T, they are computed on
// the fly from then on.
template <class T>
std::unique_ptr<Sweep> sweep_triangle(const Problem<T>& problem, T* scratch);

// Whether exp(s_ij) is known to be positive semi-definite: a product of Gaussian kernels of points and of exponentials
// of their inner products, scaled alike on both sides. False when that is merely not known.
template <class T>
bool positive_semidefinite(const Problem<T>& problem);

// ---- kernels that are not given by scores -----------------------------------------------------------------------

// What scalings of a kernel with negative factors may do.
enum class Signs {
    nonnegative,  // no factor is negative, so nothing is checked
    guarded,      // K v and K^T u must be positive where there is mass: otherwise Status::negative
    followed      // the potentials are those of |u| and |v|, and the signs are kept beside them
};

// The product of low-rank matrices, entry by entry: O((N + M) rank) per visit. RowMass is called with NaN for rows whose
// sum is not positive, and must give 0 where such a row has no mass.
class FactoredSweep : public Sweep {
public:
    // The signs of u and v at the last visit, when they are followed; else empty.
    virtual const std::vector<double>& row_signs() const = 0;
    virtual const std::vector<double>& column_signs() const = 0;
};
std::unique_ptr<FactoredSweep> sweep_factored(const FactorSide<double>& left, const FactorSide<double>& right,
                                              Signs signs);

// exp of the scores of several steps, multiplied as matrices, which are never formed.
template <class T>
std::unique_ptr<Sweep> sweep_chain(const std::vector<Problem<T>>& steps);

// ---- where the entries of scores live ---------------------------------------------------------------------------

enum class Storage {
    on_the_fly,  // computed at every visit, O(N + M) memory
    stored,      // as they are
    single,      // in single precision for a problem of doubles, corrected
    triangle     // the upper triangle alone
};

// The one place where this is decided. `max_memory`: bytes for entries, or negative for the default: as much as a dense
// kernel has already, 256 MB for one from points.
template <class T>
Storage where_entries_live(const Problem<T>& problem, double max_memory, const std::vector<double>& mu,
                           const std::vector<double>& nu, const BridgeOptions& options, const Run& run);

// Entries of scratch for the triangle of n points, or 0 where it does not fit.
template <class T>
Index triangle_scratch(Index n, double max_memory);

// `scratch`: of a triangle; may be null.
template <class T>
std::unique_ptr<Sweep> sweep_of(const Problem<T>& problem, Storage storage, T* scratch, const Run& run);

// ---- the final check ----------------------------------------------------------------------------------------------

// Row and column sums in double precision of exp(f_i + scale z_ij + g_j), for an n x m matrix whose rows or columns lie
// contiguously. Relative errors of entries: half a unit in the last place (2^-53) for every unit of |f_i|, |scale z_ij| and
// |g_j| in each of three roundings, and exp_max_ulp units of exp.
template <class E>
Status coupling_sums(const MatrixView<E>& z, Index n, Index m, double scale, const double* f, const double* g,
                     double* rows, double* columns, const Run& run);

// Sums of n entries `got` and `wanted`, of |got - wanted|, and the largest |got - wanted| / wanted where wanted > 0.
struct Deviation {
    double got = 0, wanted = 0, off = 0, worst = 0;
};
Deviation deviation(const double* got, const double* wanted, Index n, const Run& run);

// A dense term in single precision, whose scale is not rounded.
struct SingleTerm {
    MatrixView<float> values;
    double scale = 1;
};

// Row and column sums of exp(s_ij) in double precision, where s is the sum of `rest` and of dense terms.
Status widened_marginals(const Problem<double>& rest, const std::vector<SingleTerm>& dense, double* rows,
                         double* columns, const Run& run);

}  // namespace qk
