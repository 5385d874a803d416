// Row and column sums in double precision of exp(s_ij), for scores whose dense terms are in single precision. The terms
// are converted a few rows at a time, in the cache.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "bridge/exact_sums.hpp"
#include "engine/tiling.hpp"
#include "qk/bridge_kernels.hpp"

namespace qk {
namespace {

void widen(const MatrixView<float>& values, Index first, Index n_rows, Index n_cols, double* out,
           const Run& run, int worker) {
    for (Index r = 0; r < n_rows; ++r) {
        const float* from = values.data + (first + r) * values.row_stride;
        double* to = out + r * n_cols;
        in_pieces(run, worker, n_cols, [&](Index begin, Index end) {
            if (values.col_stride == 1)
                for (Index j = begin; j < end; ++j) to[j] = static_cast<double>(from[j]);
            else
                for (Index j = begin; j < end; ++j) to[j] = static_cast<double>(from[j * values.col_stride]);
        });
    }
}

}  // namespace

Status widened_marginals(const Problem<double>& rest, const std::vector<SingleTerm>& dense, double* rows,
                         double* columns, const Run& run) {
    constexpr Index block_entries = 1 << 16;  // half a megabyte of doubles
    const Index n = rest.n_rows, m = rest.n_cols;
    const Index height = std::clamp<Index>(block_entries / m, 1, n);
    const Index n_blocks = (n + height - 1) / height;
    const Run scaled = scaled_run(run, operations(rest, 0));
    // Column sums are added part by part, in order, so the result is the same for the same number of threads.
    const Index n_parts = std::min<Index>(scaled.n_threads, n_blocks);
    std::vector<ExactSums> parts(static_cast<std::size_t>(n_parts));
    std::atomic<bool> overflow{false};
    parallel_for(scaled, n_parts, [&](Index part, int worker) {
        const Run own = alone(scaled, worker);
        std::vector<Buffer<double>> blocks(dense.size());
        for (auto& block : blocks) block.reserve(height * m);
        Buffer<double> some(m);
        ExactSums& sums = parts[static_cast<std::size_t>(part)];
        sums.start(m, scaled, worker);
        for (Index b = part * n_blocks / n_parts; b < (part + 1) * n_blocks / n_parts; ++b) {
            if (should_stop(scaled, worker)) return;
            const Index first = b * height, count = std::min(height, n - first);
            MarginalTask<double> task{rectangle(rest, first, count, 0, m), rows + first, some.data()};
            for (std::size_t k = 0; k < dense.size(); ++k) {
                widen(dense[k].values, first, count, m, blocks[k].data(), scaled, worker);
                task.problem.dense.push_back({{blocks[k].data(), m, 1}, dense[k].scale});
            }
            if (marginals<double>({task}, own) == Status::overflow) overflow = true;
            sums.add(some.data(), scaled, worker);
        }
    });
    if (run.stop != nullptr && run.stop->stopped()) return Status::interrupted;
    ExactSums total;
    total.start(m, run, 0);
    for (const ExactSums& part : parts) total.add(part.sums(), run, 0);
    if (!in_pieces(run, 0, m, [&](Index from, Index to) {
            std::copy(total.sums() + from, total.sums() + to, columns + from);
        }))
        return Status::interrupted;
    return overflow ? Status::overflow : Status::ok;
}

}  // namespace qk
