// The largest flow from rows to columns through allowed entries: can the marginals be coupled there at all?
#pragma once

#include <cstdint>
#include <vector>

#include "threads.hpp"

namespace qk {

struct TransportFlow {
    std::vector<Index> rows, cols;  // entries that carry something
    std::vector<double> amounts;    // what they carry, > 0
    std::vector<double> row_rest;   // the mass of each row that finds no place
    std::vector<double> col_rest;   // the mass that each column still lacks
};

// `allowed` is n x m, row-major; weights are finite and >= 0, and each side has some. Columns are scaled to the total of
// the rows. All sums are exact, because masses are whole numbers of one unit that divides every weight: a weight of
// 1e-300 beside one of 1 counts fully. Returns early when stopped.
TransportFlow largest_flow(const std::uint8_t* allowed, Index n, Index m, const double* mu, const double* nu,
                           const Run& run);

}  // namespace qk
