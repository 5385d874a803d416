// What the benchmarks of the core share: the limits of the machine, the floors that follow from them, and problems
// whose answer a plain loop computes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <qk/engine.hpp>
#include <qk/vector_math.hpp>

namespace bench {

using qk::Index;
using Clock = std::chrono::steady_clock;

inline bool wrong_answer = false;

template <class T>
constexpr const char* name_of() {
    return sizeof(T) == 4 ? "float32" : "float64";
}

// ---- limits ------------------------------------------------------------------------------------

// The best rate over many short slices, in units per second; `work(worker)` returns the number of units that it did.
template <class Work>
double best_rate(int threads, double seconds, const Work& work) {
    const qk::Run run{threads, nullptr};
    std::vector<double> units(static_cast<std::size_t>(threads));
    double best = 0;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (Clock::now() < end) {
        const auto begin = Clock::now();
        qk::parallel_for(run, threads,
                         [&](Index task, int) { units[static_cast<std::size_t>(task)] = work(task); });
        const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
        double total = 0;
        for (const double u : units) total += u;
        best = std::max(best, total / spent);
    }
    return best;
}

template <class T>
double fma_work(Index) {
    constexpr int chains = 10, steps = 1 << 17;
    qk::Pack<T> acc[chains];
    const auto a = qk::broadcast(T(0.999)), b = qk::broadcast(T(1e-3));
    for (int c = 0; c < chains; ++c) acc[c] = qk::broadcast(T(c));
    for (int s = 0; s < steps; ++s)
        for (int c = 0; c < chains; ++c) acc[c] = qk::fma(acc[c], a, b);
    for (int c = 0; c < chains; ++c) benchmark::DoNotOptimize(acc[c]);
    return 2.0 * chains * steps * qk::SimdTraits<T>::width;
}

template <class T>
double exp_work(Index) {
    constexpr int width = qk::SimdTraits<T>::width;
    constexpr int packs = 2048 / static_cast<int>(sizeof(T)) / width;
    alignas(64) T x[packs * width], y[packs * width];
    for (int i = 0; i < packs * width; ++i) x[i] = T(-20) * T(i) / T(packs * width);
    constexpr int rounds = 1000;
    for (int r = 0; r < rounds; ++r) {
        for (int p = 0; p < packs; p += 2) {
            qk::Pack<T> e[2] = {qk::load<T>(x + p * width), qk::load<T>(x + (p + 1) * width)};
            qk::detail::exp_nonpos_packs<T, 2>(e);
            qk::store<T>(y + p * width, e[0]);
            qk::store<T>(y + (p + 1) * width, e[1]);
        }
        benchmark::DoNotOptimize(y);
        benchmark::ClobberMemory();
    }
    return 1.0 * rounds * packs * width;
}

struct Limits {
    double flops = 0, exps = 0, bytes = 0;  // per second
};

inline double limit_seconds = 0.1;  // for each of the three

// All limits that were measured, the latest last. They are measured again with every benchmark, because the speed of a
// shared machine changes within minutes.
template <class T>
std::vector<Limits>& measured(int threads) {
    static std::map<int, std::vector<Limits>> all;
    return all[threads];
}

template <class T>
const Limits& limits(int threads) {
    static std::map<int, Clock::time_point> when;
    auto& all = measured<T>(threads);
    if (!all.empty() && Clock::now() - when[threads] < std::chrono::seconds(2)) return all.back();
    Limits out;
    out.flops = best_rate(threads, limit_seconds, fma_work<T>);
    out.exps = best_rate(threads, limit_seconds, exp_work<T>);
    constexpr Index count = Index{128} << 20;  // bytes, beyond the caches
    static const std::vector<T> memory(static_cast<std::size_t>(count) / sizeof(T), T(1));
    const auto share = static_cast<Index>(memory.size()) / threads;
    out.bytes = best_rate(threads, limit_seconds, [&](Index task) {
        constexpr int width = qk::SimdTraits<T>::width;
        const T* p = memory.data() + task * share;
        qk::Pack<T> sum[4] = {};
        for (Index i = 0; i + 4 * width <= share; i += 4 * width)
            for (int k = 0; k < 4; ++k) {
                qk::Pack<T> x;
                std::memcpy(&x, p + i + k * width, sizeof(x));
                sum[k] += x;
            }
        for (auto& s : sum) benchmark::DoNotOptimize(s);
        return static_cast<double>(share * static_cast<Index>(sizeof(T)));
    });
    when[threads] = Clock::now();
    all.push_back(out);
    return all.back();
}

// ---- floors ------------------------------------------------------------------------------------

// The shortest time that the limits allow a kernel, and the limit that decides it.
struct Floor {
    double seconds = 0;
    const char* what = "";
};

// Flops and exponentials use the same execution ports, so their times are added.
inline Floor arithmetic(const Limits& l, double flops, double exps) {
    return {flops / l.flops + exps / l.exps, exps > 0 ? "FMA + exp" : "FMA"};
}

inline Floor reading(const Limits& l, double bytes) { return {bytes / l.bytes, "read"}; }

// Two kinds of work that overlap take as long as the longer one.
inline Floor longer(const Floor& a, const Floor& b) { return a.seconds > b.seconds ? a : b; }

// Seconds of one call of the body.
template <class Body>
double time_of(benchmark::State& state, const Body& body) {
    const auto begin = Clock::now();
    for (auto _ : state) body();
    const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
    return spent / static_cast<double>(state.iterations());
}

inline void count(benchmark::State& state, double seconds, double entries, const Floor& floor) {
    state.counters["ns_entry"] = seconds * 1e9 / entries;
    state.counters["x_limit"] = seconds / floor.seconds;
    state.SetLabel(floor.what);
}

template <class T>
bool close(double got, double want) {
    return std::abs(got - want) <= (sizeof(T) == 4 ? 2e-5 : 1e-12) * std::max(1.0, std::abs(want));
}

inline void fail(benchmark::State& state, const char* what) {
    wrong_answer = true;
    state.SkipWithError(what);
}

// ---- problems ----------------------------------------------------------------------------------

template <class T>
std::vector<T> points(Index n, unsigned seed) {
    std::vector<T> out(static_cast<std::size_t>(n));
    for (auto& x : out) {
        seed = seed * 1664525U + 1013904223U;
        x = static_cast<T>(static_cast<double>(seed >> 8) / (1 << 24) - 0.5) * T(3);
    }
    return out;
}

template <class T>
struct Cloud {
    Index n, d;
    T scale;
    bool distance;
    std::vector<T> x, y, v;

    Cloud(Index n_, Index d_, bool distance_)
        : n(n_),
          d(d_),
          scale(T(1) / static_cast<T>(std::sqrt(static_cast<double>(d_)))),
          distance(distance_),
          x(points<T>(n_ * d_, 1)),
          y(points<T>(n_ * d_, 2)),
          v(points<T>(n_ * d_, 3)) {}

    // One set of points that attends to itself, with plain dot products as scores.
    static Cloud alone(Index n, Index d, bool distance) {
        Cloud out(n, d, distance);
        out.scale = T(1);
        out.y = out.v = out.x;
        return out;
    }

    qk::Problem<T> problem() const {
        qk::Problem<T> p;
        p.n_rows = p.n_cols = n;
        qk::FeatureTerm<T> term;
        term.rows = {x.data(), d, 1};
        term.cols = {y.data(), d, 1};
        term.dim = d;
        term.scale = scale;
        (distance ? p.distances : p.dots).push_back(term);
        return p;
    }

    // Row i by a plain loop: its log-sum-exp and the mean of v.
    double row(Index i, std::vector<double>& mean) const {
        std::vector<double> s(static_cast<std::size_t>(n));
        for (Index j = 0; j < n; ++j) {
            double total = 0;
            for (Index k = 0; k < d; ++k) {
                const double a = x[static_cast<std::size_t>(i * d + k)],
                             b = y[static_cast<std::size_t>(j * d + k)];
                total += distance ? -(a - b) * (a - b) : a * b;
            }
            s[static_cast<std::size_t>(j)] = total * static_cast<double>(scale);
        }
        const double top = *std::max_element(s.begin(), s.end());
        double sum = 0;
        mean.assign(static_cast<std::size_t>(d), 0);
        for (Index j = 0; j < n; ++j) {
            const double e = std::exp(s[static_cast<std::size_t>(j)] - top);
            sum += e;
            for (Index k = 0; k < d; ++k)
                mean[static_cast<std::size_t>(k)] +=
                    e * static_cast<double>(v[static_cast<std::size_t>(j * d + k)]);
        }
        for (auto& m : mean) m /= sum;
        return top + std::log(sum);
    }
};

}  // namespace bench
