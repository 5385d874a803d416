#include <algorithm>
#include <cmath>

#include "qk/bridge_kernels.hpp"
#include "qk/scalar_math.hpp"

namespace qk {
namespace {

constexpr double default_bytes = 256.0 * 1024 * 1024;
// A device can spare more scratch memory than that. Its strips need this much at 38 000 columns in single precision.
constexpr double default_device_bytes = 1024.0 * 1024 * 1024;
// A visit on a device is made by 216 blocks, each with a strip of 32 rows (cuda/src/sweep.hpp).
constexpr Index device_strips = 216, device_strip_rows = 32;

// Whether this many entries of T may be stored. Without a limit dense scores always are: they take as much memory already.
template <class T>
bool fits(double entries, bool dense, double max_memory) {
    const double bytes = entries * sizeof(T);
    return max_memory >= 0 ? bytes <= max_memory : dense || bytes <= default_bytes;
}

// Whether single precision can tell all weights from 0.
bool ordinary(const std::vector<double>& weights, const Run& run) {
    double largest = 0, least = infinity<double>();  // the largest weight, and the least that is not 0
    in_pieces(run, 0, static_cast<Index>(weights.size()), [&](Index from, Index to) {
        for (Index k = from; k < to; ++k) {
            const double w = weights[static_cast<std::size_t>(k)];
            largest = std::max(largest, w);
            if (w != 0) least = std::min(least, w);
        }
    });
    return least >= 1e-20 * largest;
}

template <class T>
bool same_features(const FeatureTerm<T>& term) {
    return term.rows.data == term.cols.data && term.rows.row_stride == term.cols.row_stride &&
           term.rows.col_stride == term.cols.col_stride;
}

}  // namespace

template <class T>
bool positive_semidefinite(const Problem<T>& problem) {
    if (problem.n_rows != problem.n_cols || !problem.dense.empty() || !problem.masks.empty() ||
        !problem.band.everything() || problem.row_bias.size() != problem.col_bias.size())
        return false;
    for (std::size_t k = 0; k < problem.row_bias.size(); ++k)
        if (problem.row_bias[k].data != problem.col_bias[k].data ||
            problem.row_bias[k].stride != problem.col_bias[k].stride)
            return false;
    const auto positive = [](const FeatureTerm<T>& term) { return term.scale > 0 && same_features(term); };
    return std::ranges::all_of(problem.dots, positive) &&
           std::ranges::all_of(problem.distances, [&](const FeatureTerm<T>& term) {
               return term.n_negative == 0 && positive(term);
           });
}

template <class T>
Index triangle_scratch(Index n, double max_memory) {
    const Index size = triangle_size<T>(n);
    return fits<T>(static_cast<double>(size), false, max_memory) ? size : 0;
}

template <class T>
Storage where_entries_live(const Problem<T>& problem, double max_memory, const std::vector<double>& mu,
                           const std::vector<double>& nu, const BridgeOptions& options, const Run& run) {
    const double entries = static_cast<double>(problem.n_rows) * static_cast<double>(problem.n_cols);
    const bool symmetric = options.method == BridgeMethod::symmetric;
    // Only for Gaussian and Laplacian kernels: their entries are at most 1, so the first scaling of the triangle does
    // not overflow.
    if (symmetric && problem.dots.empty() && positive_semidefinite(problem))
        return triangle_scratch<T>(problem.n_rows, max_memory) > 0 ? Storage::triangle : Storage::on_the_fly;
    if (!fits<T>(entries, !problem.dense.empty(), max_memory)) return Storage::on_the_fly;
    const bool balanced = std::isinf(options.row_penalty) && std::isinf(options.col_penalty);
    // If there are many entries, single precision with corrections is faster in spite of its additional visits.
    constexpr double many = 1 << 20;
    if (sizeof(T) == sizeof(double) && entries >= many && balanced && !symmetric && ordinary(mu, run) &&
        ordinary(nu, run))
        return Storage::single;
    return Storage::stored;
}

bool device_keeps_weights(Index n_rows, Index n_cols, Index entry_bytes, double max_memory) {
    const Index strips = std::min(device_strips, (n_rows + device_strip_rows - 1) / device_strip_rows);
    const double entries = static_cast<double>(strips * device_strip_rows) * static_cast<double>(n_cols);
    return entries * static_cast<double>(entry_bytes) <=
           (max_memory >= 0 ? max_memory : default_device_bytes);
}

template <class T>
std::unique_ptr<Sweep> sweep_of(const Problem<T>& problem, Storage storage, T* scratch, const Run& run) {
    switch (storage) {
        case Storage::triangle:
            return sweep_triangle(problem, scratch);
        case Storage::single:
            if constexpr (std::is_same_v<T, double>) return sweep_stored_single(problem, run);
            [[fallthrough]];
        case Storage::stored:
            return sweep_stored(problem, run);
        case Storage::on_the_fly:
            break;
    }
    return sweep_on_the_fly(problem, run);
}

#define QK_INSTANTIATE(T)                                                                              \
    template bool positive_semidefinite(const Problem<T>&);                                            \
    template Storage where_entries_live(const Problem<T>&, double, const std::vector<double>&,         \
                                        const std::vector<double>&, const BridgeOptions&, const Run&); \
    template Index triangle_scratch<T>(Index, double);                                                 \
    template std::unique_ptr<Sweep> sweep_of(const Problem<T>&, Storage, T*, const Run&);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)

}  // namespace qk
