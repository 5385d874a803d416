// The bridge of a cloud with itself: exp(g_i + s_ij + g_j) with row sums mu, for symmetric scores whose kernel
// exp(s_ij) is positive semi-definite (the Gaussian kernel of points). Both facts are used: the upper triangle
// is all that is stored, and the spectrum of the linearised update is known, so that momentum can be chosen.
#pragma once

#include "sinkhorn.hpp"

namespace qk {

struct SelfBridgeOptions {
    double tol = 1e-9;         // L1 error of the row sums
    Index max_visits = 10000;  // of all entries
};

// Entries of scratch that the stored upper triangle of n points takes.
template <class T>
Index triangle_size(Index n);

// `state.g` comes with starting potentials and goes with the solution; f is the same and left empty.
// Weights may be 0: their potentials are -inf. `scratch` holds triangle_size(n) entries, or is null: then
// entries are computed at every visit, in O(n) memory.
template <class T>
void solve_self_bridge(const Problem<T>& problem, const std::vector<double>& mu,
                       const SelfBridgeOptions& options, T* scratch, BridgeState& state, const Run& run);

}  // namespace qk
