// The C++ core at one instruction-set level, by Google Benchmark, without Python: log-sum-exp, attention, one sweep
// of a bridge on the fly and stored. The limits of the machine (FMA, exp, read from memory) are measured first, by
// the same program at the same level and number of threads, and every figure is also a multiple of them:
//   ns_entry   time of one matrix entry          x_limit   time over what the limits allow
//   qk_bench_<level> [--quick] [--benchmark_filter=REGEX] [--benchmark_out=FILE ...]
// Every answer is compared with a plain loop in double precision; a wrong one is an error and exit status 1.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <qk/engine.hpp>
#include <qk/sweep.hpp>
#include <qk/vector_math.hpp>

namespace {

using qk::Index;
using Clock = std::chrono::steady_clock;

bool wrong_answer = false;

template <class T>
constexpr const char* name_of() {
    return sizeof(T) == 4 ? "float32" : "float64";
}

// ---- limits ------------------------------------------------------------------------------------

// Best rate of many short slices, in units per second; `work(worker)` returns the units it did.
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

double limit_seconds = 0.5;

template <class T>
const Limits& limits(int threads) {
    static std::map<int, Limits> known;
    const auto found = known.find(threads);
    if (found != known.end()) return found->second;
    Limits out;
    out.flops = best_rate(threads, limit_seconds, fma_work<T>);
    out.exps = best_rate(threads, limit_seconds, exp_work<T>);
    constexpr Index count = Index{128} << 20;  // bytes, beyond the caches
    const auto memory = std::make_unique<std::vector<T>>(static_cast<std::size_t>(count) / sizeof(T), T(1));
    const auto share = static_cast<Index>(memory->size()) / threads;
    out.bytes = best_rate(threads, limit_seconds, [&](Index task) {
        constexpr int width = qk::SimdTraits<T>::width;
        const T* p = memory->data() + task * share;
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
    return known[threads] = out;
}

template <class T>
void limits_of_the_machine(benchmark::State& state, int threads) {
    for (auto _ : state) benchmark::DoNotOptimize(limits<T>(threads).flops);
    const auto& l = limits<T>(threads);
    state.counters["GFLOP_s"] = l.flops * 1e-9;
    state.counters["Gexp_s"] = l.exps * 1e-9;
    state.counters["GB_s"] = l.bytes * 1e-9;
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

    // Row i by a plain loop: log-sum-exp and the mean of v.
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

template <class T>
bool close(double got, double want) {
    return std::abs(got - want) <= (sizeof(T) == 4 ? 2e-5 : 1e-12) * std::max(1.0, std::abs(want));
}

void fail(benchmark::State& state, const char* what) {
    wrong_answer = true;
    state.SkipWithError(what);
}

void count(benchmark::State& state, double entries, double floor_seconds) {
    const auto total = entries * static_cast<double>(state.iterations());
    state.counters["ns_entry"] =
        benchmark::Counter(total * 1e-9, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
    // kIsRate divides by the time, kInvert turns it over: time / (iterations * floor).
    state.counters["x_limit"] = benchmark::Counter(floor_seconds * static_cast<double>(state.iterations()),
                                                   benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// ---- benchmarks --------------------------------------------------------------------------------

template <class T>
void log_sum_exp(benchmark::State& state, Index n, Index d, int threads) {
    const Cloud<T> cloud(n, d, true);
    std::vector<T> out(static_cast<std::size_t>(n));
    qk::RowTask<T> task;
    task.problem = cloud.problem();
    task.log_sum_exp = out.data();
    const std::vector<qk::RowTask<T>> tasks{task};
    const qk::Run run{threads, nullptr};
    for (auto _ : state) qk::reduce_rows(tasks, qk::Weight::softmax, 0, run);
    std::vector<double> mean;
    for (const Index i : {Index{0}, n / 2, n - 1})
        if (!close<T>(out[static_cast<std::size_t>(i)], cloud.row(i, mean)))
            return fail(state, "wrong answer");
    const auto& l = limits<T>(threads);
    const double entries = static_cast<double>(n) * static_cast<double>(n);
    count(state, entries, entries * (2.0 * static_cast<double>(d) / l.flops + 1 / l.exps));
}

template <class T>
void attention(benchmark::State& state, Index n, Index d, int threads) {
    const Cloud<T> cloud(n, d, false);
    std::vector<T> out(static_cast<std::size_t>(n * d));
    qk::RowTask<T> task;
    task.problem = cloud.problem();
    task.values = {cloud.v.data(), d, 1};
    task.product = out.data();
    const std::vector<qk::RowTask<T>> tasks{task};
    const qk::Run run{threads, nullptr};
    for (auto _ : state) qk::reduce_rows(tasks, qk::Weight::softmax, d, run);
    std::vector<double> mean;
    for (const Index i : {Index{0}, n / 2, n - 1}) {
        cloud.row(i, mean);
        for (Index k = 0; k < d; ++k)
            if (!close<T>(out[static_cast<std::size_t>(i * d + k)], mean[static_cast<std::size_t>(k)]))
                return fail(state, "wrong answer");
    }
    const auto& l = limits<T>(threads);
    const double entries = static_cast<double>(n) * static_cast<double>(n);
    count(state, entries, entries * (4.0 * static_cast<double>(d) / l.flops + 1 / l.exps));
}

// Row log-sum-exps and column sums in one visit: a full iteration of a bridge but for O(n) work.
template <class T>
void sweep(benchmark::State& state, Index n, bool stored, int threads) {
    const Cloud<T> cloud(n, 3, true);
    const qk::Run run{threads, nullptr};
    const auto kernel =
        stored ? qk::sweep_stored<T>(cloud.problem(), run) : qk::sweep_on_the_fly<T>(cloud.problem(), run);
    std::vector<double> g(static_cast<std::size_t>(n)), lse(g), columns(g);
    const double mass = 1 / static_cast<double>(n);
    const qk::RowMass uniform = [mass](Index, double) { return mass; };
    for (auto _ : state) kernel->rows(g.data(), uniform, lse.data(), columns.data(), run);
    std::vector<double> mean;
    for (const Index i : {Index{0}, n / 2, n - 1})
        if (!close<T>(lse[static_cast<std::size_t>(i)], cloud.row(i, mean)))
            return fail(state, "wrong answer");
    double total = 0;
    for (const double c : columns) total += c;
    if (!close<T>(total, 1)) return fail(state, "the columns do not sum to the mass of the rows");
    const auto& l = limits<T>(threads);
    const double entries = static_cast<double>(n) * static_cast<double>(n);
    count(state, entries, stored ? entries * sizeof(T) / l.bytes : entries * (6 / l.flops + 1 / l.exps));
}

template <class T>
void add_all(bool quick) {
    const Index n = quick ? 200 : 4000;
    const std::string type = name_of<T>();
    const auto add = [](const std::string& name, const auto& body) {
        benchmark::RegisterBenchmark(name.c_str(), body)->UseRealTime()->Unit(benchmark::kMillisecond);
    };
    for (const int threads : {1, 2}) {
        const std::string end = "/" + type + "/threads:" + std::to_string(threads);
        add("limits" + end, [=](benchmark::State& s) { limits_of_the_machine<T>(s, threads); });
        const std::string size = "/N:" + std::to_string(n);
        for (const Index d : {Index{3}, Index{64}}) {
            const std::string dim = "/d:" + std::to_string(d);
            add("log_sum_exp" + size + dim + end,
                [=](benchmark::State& s) { log_sum_exp<T>(s, n, d, threads); });
        }
        add("attention" + size + "/d:64" + end,
            [=](benchmark::State& s) { attention<T>(s, n, 64, threads); });
        add("sweep_on_the_fly" + size + "/d:3" + end,
            [=](benchmark::State& s) { sweep<T>(s, n, false, threads); });
        add("sweep_stored" + size + "/d:3" + end,
            [=](benchmark::State& s) { sweep<T>(s, n, true, threads); });
    }
}

}  // namespace

int main(int argc, char** argv) {
    bool quick = false;
    std::vector<char*> words;
    for (int i = 0; i < argc; ++i) {
        if (std::strcmp(argv[i], "--quick") == 0)
            quick = true;
        else
            words.push_back(argv[i]);
    }
    if (quick) limit_seconds = 0.02;
    int count = static_cast<int>(words.size());
    words.push_back(nullptr);
    benchmark::Initialize(&count, words.data());
    if (benchmark::ReportUnrecognizedArguments(count, words.data())) return 2;
    benchmark::AddCustomContext("isa", QK_ISA_NAME);
    benchmark::AddCustomContext("simd_bits", std::to_string(8 * sizeof(qk::Pack<float>)));
    add_all<float>(quick);
    add_all<double>(quick);
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    if (wrong_answer) std::fprintf(stderr, "qk_bench: WRONG ANSWER\n");
    return wrong_answer ? 1 : 0;
}
