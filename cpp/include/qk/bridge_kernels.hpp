// The kernels over which bridges are solved, each as a Sweep, and the decision where entries are stored. qk/sweep.hpp
// has the contract and the sweeps of rows of entries.
#pragma once

#include <memory>
#include <vector>

#include "low_rank.hpp"
#include "sinkhorn.hpp"

namespace qk {

// ---- symmetric kernels -----------------------------------------------------------------------------------------

// The number of entries of scratch memory that the stored upper triangle of n points takes.
template <class T>
Index triangle_size(Index n);

// A symmetric kernel stored as its upper triangle, for the method "symmetric". `scratch` holds triangle_size(n) entries
// and must outlive the sweep; if it is null, the sweep allocates its own. If entries leave the range of T, the sweep
// computes them on the fly from then on.
template <class T>
std::unique_ptr<Sweep> sweep_triangle(const Problem<T>& problem, T* scratch);

// Whether exp(s_ij) is known to be positive semi-definite, because it is a product of Gaussian and Laplacian kernels of
// points and of exponentials of their inner products, with equal biases on both sides. False means only that it is not
// known.
template <class T>
bool positive_semidefinite(const Problem<T>& problem);

// ---- kernels that are not given by scores -----------------------------------------------------------------------

// How scalings of a factored kernel deal with negative factors.
enum class Signs {
    nonnegative,  // no factor is negative, so nothing is checked
    guarded,      // K v and K^T u must be positive where there is mass: otherwise Status::negative
    followed      // the potentials are those of |u| and |v|, and the signs are kept separately
};

// An entrywise product of low-rank matrices, with O((N + M) rank) work per visit. RowMass is called with NaN for rows
// whose sum is not positive, and must return 0 for those of them that have no mass.
class FactoredSweep : public Sweep {
public:
    // The signs of u and v at the last visit, if signs are followed; otherwise empty.
    virtual const std::vector<double>& row_signs() const = 0;
    virtual const std::vector<double>& column_signs() const = 0;
};
std::unique_ptr<FactoredSweep> sweep_factored(const FactorSide<double>& left, const FactorSide<double>& right,
                                              Signs signs);

// The matrix product of the exponentials of the scores of several steps. The product is never formed.
template <class T>
std::unique_ptr<Sweep> sweep_chain(const std::vector<Problem<T>>& steps);

// ---- where the entries of scores are stored ----------------------------------------------------------------------

enum class Storage {
    on_the_fly,  // computed at every visit, O(N + M) memory
    stored,      // in the type of the problem
    single,      // in single precision for a problem of doubles, with corrected sums
    triangle     // only the upper triangle
};

// The one place where this is decided. `max_memory` is in bytes. If it is negative, a dense kernel may take as much as
// it has already, and a kernel from points 256 MB.
template <class T>
Storage where_entries_live(const Problem<T>& problem, double max_memory, const std::vector<double>& mu,
                           const std::vector<double>& nu, const BridgeOptions& options, const Run& run);

// The entries of scratch memory for the triangle of n points, or 0 if it may not be stored.
template <class T>
Index triangle_scratch(Index n, double max_memory);

// A visit on a device goes through a problem in strips of rows, and uses the weights of a strip twice. This says whether
// they are kept in between, because they fit `max_memory` (1 GB if it is negative), or are computed twice. A weight takes
// `entry_bytes`.
bool device_keeps_weights(Index n_rows, Index n_cols, Index entry_bytes, double max_memory);

// `scratch` is the memory for a triangle; it may be null.
template <class T>
std::unique_ptr<Sweep> sweep_of(const Problem<T>& problem, Storage storage, T* scratch, const Run& run);

// ---- the final check ----------------------------------------------------------------------------------------------

// Row and column sums in double precision of exp(f_i + scale z_ij + g_j), for an n x m matrix whose rows or columns lie
// contiguously. Relative errors of entries: half a unit in the last place (2^-53) for every unit of |f_i|, |scale z_ij| and
// |g_j| in each of three roundings, and exp_max_ulp units of exp.
template <class E>
Status coupling_sums(const MatrixView<E>& z, Index n, Index m, double scale, const double* f, const double* g,
                     double* rows, double* columns, const Run& run);

// The sums of n entries of `got`, of `wanted` and of |got - wanted| (`off`), and the largest |got - wanted| / wanted
// where wanted > 0 (`worst`).
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
