// Column sums of the checks in double precision, as accurate as if they were rounded once, whatever the number of rows.
#pragma once

#include <algorithm>

#include "qk/threads.hpp"
#include "qk/views.hpp"

namespace qk {

// Sums that carry their rounding errors along (Kahan's method).
class ExactSums {
public:
    // Rows may be so long that Ctrl-C must be checked within them, by `run` and `worker` as in in_pieces. If the run was
    // stopped, the sums must not be used.
    void start(Index n, const Run& run, int worker) {
        n_ = n;
        sums_.reserve(n);
        lost_.reserve(n);
        in_pieces(run, worker, n, [&](Index from, Index to) {
            std::fill(sums_.data() + from, sums_.data() + to, 0.0);
            std::fill(lost_.data() + from, lost_.data() + to, 0.0);
        });
    }
    void add(const double* values, const Run& run, int worker) {
        in_pieces(run, worker, n_, [&](Index from, Index to) {
            for (Index j = from; j < to; ++j) {
                const double part = values[j] + lost_[j], total = sums_[j] + part;
                lost_[j] = part - (total - sums_[j]);
                sums_[j] = total;
            }
        });
    }
    const double* sums() const { return sums_.data(); }

private:
    Index n_ = 0;
    Buffer<double> sums_, lost_;
};

}  // namespace qk
