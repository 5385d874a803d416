// The contract between kernels exp(s_ij) and solvers: visits of every entry, as Sinkhorn's iteration and Newton's
// method need them. The sweeps declared here compute entries on the fly (O(N + M) memory, one exp each per visit), or
// store them once and read them again (one read each per visit, no exp). bridge_kernels.hpp declares the others.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "engine.hpp"

namespace qk {

// Returns the mass m_i of row i for the log-sum-exp lse_i = log sum_j exp(s_ij + g_j); called as mass(i, lse_i).
using RowMass = std::function<double(Index, double)>;

class Sweep;

// A kernel whose bridge is easier to find than that of another, and how its potentials lead to those of the next harder
// kernel.
struct EasierKernel {
    std::unique_ptr<Sweep> sweep;  // null if there are no easier kernels
    // If the logarithms of the weights are subtracted from potentials and the rest is divided by this unit, the result is
    // nearly the same from one difficulty to the next. Penalties are multiplied by the unit, to have the same influence.
    double unit = 1;
    // If true, the result is not nearly the same, but follows nearly a straight line over the difficulty.
    bool drift = false;
};

// The row softmax p_ij of a sweep without its small entries, row by row.
struct SparseRows {
    std::vector<Index>
        start;  // where each row starts in the two arrays below, and their length; empty if nothing was gathered
    std::vector<std::int32_t> column;
    std::vector<double> share;
};

class Sweep {
public:
    virtual ~Sweep() = default;
    Sweep() = default;
    Sweep(const Sweep&) = delete;
    Sweep& operator=(const Sweep&) = delete;

    // With p_ij = exp(s_ij + g_j - lse_i), the row softmax at g, it computes lse_i and, in the same visit,
    // columns_j = sum_i m_i p_ij. `columns` may be null; then `mass` is not called.
    virtual Status rows(const double* g, const RowMass& mass, double* lse, double* columns,
                        const Run& run) = 0;

    // A bound on the L1 error of the columns of the last rows(), beyond the rounding of the type. After refine() the
    // next rows(), at the same potentials, has no such error to speak of.
    virtual double uncertainty() const { return 0; }
    virtual void refine() {}

    // lse_j = log sum_i exp(f_i + s_ij), exactly; used for columns whose mass underflows in rows().
    virtual Status columns(const double* f, double* lse, const Run& run) = 0;

    // out_j = sum_i m_i p_ij (sum_k p_ik x_k) at the g and lse of the last rows(). `rough` allows single precision,
    // where that is faster.
    virtual Status curvature(const double* x, const double* mass, double* out, bool rough,
                             const Run& run) = 0;

    // The entries p_ij >= least at the g and lse of the last rows(), to the precision of the type. If there are more
    // than `most`, or the kernel cannot give entries, `out` stays empty.
    virtual Status gather(double least, Index most, SparseRows& out, const Run& run);

    // Whether curvature() is available.
    virtual bool curved() const { return true; }

    // The spacing of numbers next to 1 in the type in which scores are computed.
    virtual double epsilon() const { return std::numeric_limits<double>::epsilon(); }

    // One of a family of kernels that leads to this one: as the difficulty, between 0 and 1, falls to 0, Sinkhorn's
    // iteration finds the bridge in ever fewer steps, and as it rises to 1, the bridge tends to that of this kernel.
    // Scores are multiplied by the difficulty, which is then the unit of the potentials. A kernel without scores gets a
    // positive part added that vanishes as the difficulty rises; the unit is 1, and potentials drift as long as mass goes
    // through that part. If a row or column of this kernel has a positive entry, so has that of the easier one. The
    // easier kernel reads the memory that this one reads, and must not outlive it.
    virtual EasierKernel easier(double difficulty, const Run& run);
};

template <class T>
std::unique_ptr<Sweep> sweep_on_the_fly(const Problem<T>& problem, const Run& run);

// Stores n_rows x n_cols entries of T, scaled by the potentials at the moment of storing. When the potentials have
// moved so far that entries could leave the range of the type, they are computed and stored again.
template <class T>
std::unique_ptr<Sweep> sweep_stored(const Problem<T>& problem, const Run& run);

// Stores the entries in single precision, which halves what is read, and computes in double. Exact sums (refine()) measure
// by how much the rounding of the entries changes the sums, and from then on this change is divided out. As the potentials
// move, the change varies only to second order. Not for weights below 1e-20 of the total.
std::unique_ptr<Sweep> sweep_stored_single(const Problem<double>& problem, const Run& run);

}  // namespace qk
