// Collects the large entries of a kernel; the rows are cut among threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <vector>

#include "engine/tiling.hpp"
#include "qk/simd.hpp"
#include "qk/sweep.hpp"

namespace qk {

// Calls found(j), in order, for every j < n at which value(j), the pack from j on, is at least `least`. If n is not a
// multiple of a pack, value() is also called for lanes beyond n, which are ignored. Large entries are rare: all others
// cost one comparison for each pack.
template <class T, class Value, class Found>
QK_INLINE void each_at_least(Index n, T least, const Value& value, const Found& found) {
    constexpr Index width = SimdTraits<T>::width;
    for (Index j = 0; j < n; j += width)
        for (unsigned lanes = lanes_at_least<T>(value(j), least); lanes != 0; lanes &= lanes - 1)
            if (const Index at = j + std::countr_zero(lanes); at < n) found(at);
}

class Gathering {
public:
    Gathering(Index n_rows, Index most, double work, const Run& run)
        : n_rows_(n_rows), most_(most), run_(scaled_run(run, work)) {}

    // visit(first, end, found, run, worker) must call found(i, j, share) for the large entries of rows [first, end), row
    // by row, and in the order of the columns in each. If there are more than `most`, `out` stays empty.
    template <class Visit>
    Status operator()(SparseRows& out, const Visit& visit) {
        out = {};
        if (hopeless(visit)) return Status::ok;
        const Index n_parts = std::clamp<Index>(run_.n_threads, 1, std::max<Index>(1, n_rows_));
        std::vector<Part> parts(static_cast<std::size_t>(n_parts));
        std::atomic<Index> total{0};
        parallel_for(run_, n_parts, [&](Index k, int worker) {
            const Index first = k * n_rows_ / n_parts, end = (k + 1) * n_rows_ / n_parts;
            Part& part = parts[static_cast<std::size_t>(k)];
            part.counts.resize(static_cast<std::size_t>(end - first), 0);
            part.column.reserve(static_cast<std::size_t>(most_ / n_parts));
            part.share.reserve(static_cast<std::size_t>(most_ / n_parts));
            for (Index row = first; row < end;) {
                const Index stop = std::min(end, row + tuning::gather_rows);
                const std::size_t before = part.share.size();
                visit(
                    row, stop,
                    [&](Index i, Index j, double share) {
                        ++part.counts[static_cast<std::size_t>(i - first)];
                        part.column.push_back(static_cast<std::int32_t>(j));
                        part.share.push_back(share);
                    },
                    run_, worker);
                total.fetch_add(static_cast<Index>(part.share.size() - before), std::memory_order_relaxed);
                row = stop;
                if (total.load(std::memory_order_relaxed) > most_ || should_stop(run_, worker)) return;
            }
        });
        if (run_.stop != nullptr && run_.stop->stopped()) return Status::interrupted;
        if (total.load() > most_) return Status::ok;
        out.start.reserve(static_cast<std::size_t>(n_rows_) + 1);
        out.start.push_back(0);
        out.column.reserve(static_cast<std::size_t>(total.load()));
        out.share.reserve(static_cast<std::size_t>(total.load()));
        for (const Part& part : parts) {
            for (const Index count : part.counts) out.start.push_back(out.start.back() + count);
            out.column.insert(out.column.end(), part.column.begin(), part.column.end());
            out.share.insert(out.share.end(), part.share.begin(), part.share.end());
        }
        return Status::ok;
    }

private:
    // Whether some rows, spread evenly, have so many large entries that all rows together would have more than `most_`.
    template <class Visit>
    bool hopeless(const Visit& visit) const {
        const Index step = std::max(tuning::gather_rows, n_rows_ / tuning::gather_sample);
        Index seen = 0, count = 0;
        for (Index row = step / 2; row < n_rows_ && !should_stop(run_, 0); row += step, ++seen)
            visit(row, row + 1, [&](Index, Index, double) { ++count; }, run_, 0);
        return count * n_rows_ > most_ * seen;
    }

    struct Part {
        std::vector<Index> counts;
        std::vector<std::int32_t> column;
        std::vector<double> share;
    };
    Index n_rows_, most_;
    Run run_;
};

}  // namespace qk
