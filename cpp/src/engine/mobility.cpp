#include "qk/mobility.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/tuning.hpp"
#include "qk/simd.hpp"

namespace qk {
namespace {

// The terms of the secular function whose poles lie on one side of the root.
struct Side {
    const double* poles = nullptr;
    const double* weights = nullptr;
    Index n = 0;
};

struct Sum {
    double value = 0;
    double slope = 0;
};

// sum w / d and sum w / d^2 with d = (pole - origin) - mu. The difference of two close poles is exact,
// so a root close to its pole keeps all its digits.
Sum sum_terms(const Side& side, double origin, double mu) {
    constexpr Index width = SimdTraits<double>::width;
    Pack<double> values = {}, slopes = {};
    Index i = 0;
    for (; i + width <= side.n; i += width) {
        const Pack<double> inverse = 1.0 / ((load(side.poles + i) - origin) - mu);
        const Pack<double> term = load(side.weights + i) * inverse;
        values += term;
        slopes += term * inverse;
    }
    Sum sum;
    for (Index k = 0; k < width; ++k) {
        sum.value += values[k];
        sum.slope += slopes[k];
    }
    for (; i < side.n; ++i) {
        const double inverse = 1.0 / ((side.poles[i] - origin) - mu);
        const double term = side.weights[i] * inverse;
        sum.value += term;
        sum.slope += term * inverse;
    }
    return sum;
}

// The step to the root of c + s / (a - x) + S / (b - x), which matches value and slope of both sides at x = 0
// (Bunch, Nielsen and Sorensen); a < 0 < b are the distances to the poles.
double rational_step(double a, double b, Sum left, Sum right) {
    const double s = left.slope * a * a, S = right.slope * b * b;
    const double c = (left.value - left.slope * a) + (right.value - right.slope * b);
    const double linear = c * (a + b) + s + S;
    const double constant = a * b * (left.value + right.value);
    const double root = std::sqrt(std::max(0.0, linear * linear - 4 * c * constant));
    if (linear <= 0) return (linear - root) / (2 * c);
    return 2 * constant / (linear + root);
}

// Divides the bracket in two, on a logarithmic scale if it spans orders of magnitude, because the root may be far
// closer to its pole (at 0) than to the other end.
double split(double low, double high) {
    if (low == 0) return high / 16;
    if (high == 0) return low / 16;
    const double mean = std::sqrt(low * high);  // both have the same sign
    return low < 0 ? -mean : mean;
}

// The root between the poles below < above, which belong to `left` and `right`.
double solve_gap(const Side& left, const Side& right, double below, double above) {
    constexpr double eps = std::numeric_limits<double>::epsilon();
    const double gap = above - below;
    double mu = gap / 2;
    if (mu == 0) return below;
    const bool near_below = sum_terms(left, below, mu).value + sum_terms(right, below, mu).value >= 0;
    const double origin = near_below ? below : above;
    const double a = near_below ? 0.0 : -gap, b = near_below ? gap : 0.0;
    double low = near_below ? 0.0 : -mu, high = near_below ? mu : 0.0;
    if (!near_below) mu = -mu;
    const auto inside = [&](double x) { return x > low && x < high; };
    for (int iteration = 0; iteration < 100; ++iteration) {
        const Sum l = sum_terms(left, origin, mu), r = sum_terms(right, origin, mu);
        const double g = l.value + r.value;
        if (std::abs(g) <= eps * (std::abs(l.value) + std::abs(r.value))) break;
        (g > 0 ? high : low) = mu;
        const double step = rational_step(a - mu, b - mu, l, r);
        double next = mu + step;
        if (!inside(next)) next = split(low, high);
        if (!inside(next)) break;  // there is no number between the two ends
        const bool still = std::abs(next - mu) <= eps * std::abs(next);
        mu = next;
        if (still) break;
    }
    return origin + mu;
}

// The smallest nonzero eigenvalue of a row with at least two entries that are not 0; `entries` may be in any order.
double least_eigenvalue(std::vector<double>& entries) {
    std::ranges::iter_swap(std::ranges::min_element(entries), entries.begin());
    const double least = entries.front();
    const double next = *std::ranges::min_element(entries.begin() + 1, entries.end());
    if (next == least) return least;
    const Side left{entries.data(), entries.data(), 1};
    const Side right{entries.data() + 1, entries.data() + 1, static_cast<Index>(entries.size()) - 1};
    return solve_gap(left, right, least, next);
}

template <class T>
RowMobility one_row(MatrixView<T> p, Index row, Index n, Extremes wanted, std::vector<double>& others) {
    Index top = 0;
    double total = 0;
    for (Index j = 0; j < n; ++j) {
        if (p(row, j) > p(row, top)) top = j;
        total += static_cast<double>(p(row, j));
    }
    RowMobility out;
    out.largest = static_cast<double>(p(row, top)) / total;
    double next = 0;  // the second largest
    others.clear();
    for (Index j = 0; j < n; ++j) {
        const double x = static_cast<double>(p(row, j)) / total;
        if (j == top || x == 0) continue;
        out.tail += x;
        out.second += x * x;
        out.third += x * x * x;
        next = std::max(next, x);
        others.push_back(x);
    }
    if (wanted == Extremes::none || others.empty()) return out;
    const Side left{others.data(), others.data(), static_cast<Index>(others.size())};
    const Side right{&out.largest, &out.largest, 1};
    out.norm = next == out.largest ? next : solve_gap(left, right, next, out.largest);
    if (wanted == Extremes::both) {
        others.push_back(out.largest);
        out.least = least_eigenvalue(others);
    }
    return out;
}

}  // namespace

template <class T>
void mobility_rows(MatrixView<T> p, Index n_rows, Index n_columns, Extremes wanted, RowMobility* out,
                   const Run& run) {
    constexpr Index block = tuning::mobility_rows;
    parallel_for(run, (n_rows + block - 1) / block, [&](Index task, int worker) {
        std::vector<double> others;
        others.reserve(static_cast<std::size_t>(n_columns));
        const Index last = std::min(n_rows, (task + 1) * block);
        for (Index row = task * block; row < last && !should_stop(run, worker); ++row)
            out[row] = one_row(p, row, n_columns, wanted, others);
    });
}

void secular_roots(const double* poles, const double* weights, Index n, double* roots, const Run& run) {
    constexpr Index block = tuning::secular_roots;
    parallel_for(run, (n - 1 + block - 1) / block, [&](Index task, int worker) {
        const Index last = std::min(n - 1, (task + 1) * block);
        for (Index k = task * block; k < last && !should_stop(run, worker); ++k) {
            const Side left{poles, weights, k + 1};
            const Side right{poles + k + 1, weights + k + 1, n - k - 1};
            roots[k] = solve_gap(left, right, poles[k], poles[k + 1]);
        }
    });
}

template void mobility_rows<float>(MatrixView<float>, Index, Index, Extremes, RowMobility*, const Run&);
template void mobility_rows<double>(MatrixView<double>, Index, Index, Extremes, RowMobility*, const Run&);

}  // namespace qk
