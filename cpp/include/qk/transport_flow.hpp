// The largest flow from rows to columns through allowed entries, which decides whether the marginals can be coupled
// there.
#pragma once

#include <cstdint>
#include <vector>

#include "threads.hpp"

namespace qk {

struct TransportFlow {
    std::vector<Index> rows, cols;  // the entries that carry mass
    std::vector<double> amounts;    // the mass that they carry, > 0
    std::vector<double> row_rest;   // the mass of each row that could not be placed
    std::vector<double> col_rest;   // the mass that each column still lacks
};

// `allowed` is n x m, row-major; weights are finite and >= 0, and each side has some that are positive. Columns are
// scaled to the total of the rows. All sums are exact, because masses are whole numbers of one unit that divides every
// weight: a weight of 1e-300 counts as exactly as one of 1. Returns early when stopped.
TransportFlow largest_flow(const std::uint8_t* allowed, Index n, Index m, const double* mu, const double* nu,
                           const Run& run);

}  // namespace qk
