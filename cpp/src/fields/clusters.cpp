#include <numeric>

#include "qk/flow.hpp"

namespace qk {

template <class T>
Index cluster_labels(Index n, Index d, const T* x, double linkage, std::vector<Index>& labels) {
    // Clusters grow from seeds. Each particle that is reached is compared once with all particles not yet reached.
    // This is O(n^2) at worst, and O(n) per cluster if clusters are tight.
    std::vector<Index> waiting(static_cast<std::size_t>(n)), frontier;
    std::iota(waiting.begin(), waiting.end(), Index{0});
    labels.assign(static_cast<std::size_t>(n), -1);
    const double square = linkage * linkage;
    Index count = 0;
    for (Index seed = 0; seed < n; ++seed) {
        if (labels[static_cast<std::size_t>(seed)] >= 0) continue;
        frontier.assign(1, seed);
        labels[static_cast<std::size_t>(seed)] = count;
        while (!frontier.empty()) {
            const Index i = frontier.back();
            frontier.pop_back();
            std::size_t kept = 0;
            for (const Index j : waiting) {
                if (labels[static_cast<std::size_t>(j)] >= 0) continue;
                double distance = 0;
                for (Index a = 0; a < d; ++a) {
                    const double step = static_cast<double>(x[i * d + a]) - static_cast<double>(x[j * d + a]);
                    distance += step * step;
                }
                if (distance <= square) {
                    labels[static_cast<std::size_t>(j)] = count;
                    frontier.push_back(j);
                } else {
                    waiting[kept++] = j;
                }
            }
            waiting.resize(kept);
        }
        ++count;
    }
    return count;
}

template Index cluster_labels(Index, Index, const float*, double, std::vector<Index>&);
template Index cluster_labels(Index, Index, const double*, double, std::vector<Index>&);

}  // namespace qk
