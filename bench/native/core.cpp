// The C++ core at one instruction-set level, by Google Benchmark, without Python: log-sum-exp, attention, iterations of a
// bridge (from points, from a matrix, stored), products with low-rank and symmetric kernels, velocities of particles,
// flows of Gaussian laws. The same program measures the limits of the machine (FMA, exp, read from memory) next to each
// benchmark, at the same level and number of threads, and gives every figure also as a multiple of them:
//   ns_entry   time of one matrix entry (low rank: of one point; Gaussian flow: of one law and step)
//   x_limit    time over what the limits allow; the label says which one that is
//   qk_bench_<level> [--quick] [--benchmark_filter=REGEX] [--benchmark_out=FILE ...]
// Every answer is compared with a plain loop in double precision; a wrong one is an error and exit status 1.
#include "core.hpp"

#include <cstdio>
#include <memory>

#include <qk/gaussian.hpp>
#include <qk/low_rank.hpp>
#include <qk/sweep.hpp>
#include <qk/symmetric.hpp>
#include <qk/velocity.hpp>

namespace bench {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }
double number(Index i) { return static_cast<double>(i); }

template <class T>
void limits_of_the_machine(benchmark::State& state, int threads) {
    for (auto _ : state) benchmark::DoNotOptimize(limits<T>(threads).flops);
    auto all = measured<T>(threads);
    const auto median = [&](double Limits::* rate) {
        std::sort(all.begin(), all.end(),
                  [=](const Limits& a, const Limits& b) { return a.*rate < b.*rate; });
        return all[all.size() / 2].*rate * 1e-9;
    };
    state.counters["GFLOP_s"] = median(&Limits::flops);
    state.counters["Gexp_s"] = median(&Limits::exps);
    state.counters["GB_s"] = median(&Limits::bytes);
}

template <class T>
void log_sum_exp(benchmark::State& state, Index n, Index d, int threads) {
    // The core gets distances in many dimensions as products and biases (python/qkcore/scores.py).
    const Cloud<T> cloud(n, d, d <= 16);
    std::vector<T> out(at(n));
    qk::RowTask<T> task;
    task.problem = cloud.problem();
    task.log_sum_exp = out.data();
    const std::vector<qk::RowTask<T>> tasks{task};
    const qk::Run run{threads, nullptr};
    const double seconds = time_of(state, [&] { qk::reduce_rows(tasks, qk::Weight::softmax, 0, run); });
    std::vector<double> mean;
    for (const Index i : {Index{0}, n / 2, n - 1})
        if (!close<T>(out[at(i)], cloud.row(i, mean))) return fail(state, "wrong answer");
    const double entries = number(n) * number(n);
    count(state, seconds, entries, arithmetic(limits<T>(threads), 2 * number(d) * entries, entries));
}

template <class T>
void attention(benchmark::State& state, Index n, Index d, int threads) {
    const Cloud<T> cloud(n, d, false);
    std::vector<T> out(at(n * d));
    qk::RowTask<T> task;
    task.problem = cloud.problem();
    task.values = {cloud.v.data(), d, 1};
    task.product = out.data();
    const std::vector<qk::RowTask<T>> tasks{task};
    const qk::Run run{threads, nullptr};
    const double seconds = time_of(state, [&] { qk::reduce_rows(tasks, qk::Weight::softmax, d, run); });
    std::vector<double> mean;
    for (const Index i : {Index{0}, n / 2, n - 1}) {
        cloud.row(i, mean);
        for (Index k = 0; k < d; ++k)
            if (!close<T>(out[at(i * d + k)], mean[at(k)])) return fail(state, "wrong answer");
    }
    const double entries = number(n) * number(n);
    count(state, seconds, entries, arithmetic(limits<T>(threads), 4 * number(d) * entries, entries));
}

enum class Kernel { points, dense, stored, stored_single };

template <class T>
std::unique_ptr<qk::Sweep> sweep_of(Kernel kind, const qk::Problem<T>& problem, const qk::Run& run) {
    if (kind == Kernel::stored) return qk::sweep_stored<T>(problem, run);
    if constexpr (sizeof(T) == sizeof(double))
        if (kind == Kernel::stored_single) return qk::sweep_stored_single(problem, run);
    return qk::sweep_on_the_fly<T>(problem, run);
}

// Row log-sum-exps and column sums in one visit: a full iteration of a bridge, except for O(n) work.
template <class T>
void sweep(benchmark::State& state, Index n, Kernel kind, int threads) {
    const Cloud<T> cloud(n, 3, true);
    const qk::Run run{threads, nullptr};
    qk::Problem<T> problem = cloud.problem();
    std::vector<T> matrix;
    if (kind == Kernel::dense) {
        matrix.resize(at(n * n));
        qk::materialize<T>({{problem, matrix.data(), n}}, true, qk::Weight::exp, run);
        problem = qk::Problem<T>{};
        problem.n_rows = problem.n_cols = n;
        problem.dense.push_back({{matrix.data(), n, 1}, T(1)});
    }
    const auto kernel = sweep_of<T>(kind, problem, run);
    std::vector<double> g(at(n)), lse(g), columns(g);
    const double mass = 1 / number(n);
    const qk::RowMass uniform = [mass](Index, double) { return mass; };
    const auto visit = [&] { kernel->rows(g.data(), uniform, lse.data(), columns.data(), run); };
    visit();  // the first visit fills the store
    const double seconds = time_of(state, visit);
    std::vector<double> mean;
    for (const Index i : {Index{0}, n / 2, n - 1})
        if (!close<T>(lse[at(i)], cloud.row(i, mean))) return fail(state, "wrong answer");
    double total = 0;
    for (const double c : columns) total += c;
    if (!close<T>(total, 1)) return fail(state, "the columns do not sum to the mass of the rows");
    const auto& l = limits<T>(threads);
    const double entries = number(n) * number(n);
    const Floor read = reading(l, entries * (kind == Kernel::stored_single ? sizeof(float) : sizeof(T)));
    if (kind == Kernel::points)
        count(state, seconds, entries, arithmetic(l, 6 * entries, entries));
    else if (kind == Kernel::dense)
        count(state, seconds, entries, longer(read, {entries / l.exps, "exp"}));
    else
        count(state, seconds, entries, read);
}

// Two experts: K_ij = (sum_c L0(c, i) R0(c, j)) (sum_c L1(c, i) R1(c, j)), times one vector.
template <class T>
void low_rank(benchmark::State& state, Index n, Index rank, int threads) {
    const std::vector<T> l0 = points<T>(rank * n, 1), r0 = points<T>(rank * n, 2),
                         l1 = points<T>(rank * n, 3), r1 = points<T>(rank * n, 4), z = points<T>(n, 5);
    const qk::FactorSide<T> left{{{l0.data(), rank, n}, {l1.data(), rank, n}}, n};
    const qk::FactorSide<T> right{{{r0.data(), rank, n}, {r1.data(), rank, n}}, n};
    std::vector<T> out(at(n));
    const qk::Run run{threads, nullptr};
    const double seconds =
        time_of(state, [&] { qk::factored_product(left, right, z.data(), 1, out.data(), run); });
    for (const Index i : {Index{0}, n / 2, n - 1}) {
        double sum = 0, size = 0;
        for (Index j = 0; j < n; ++j) {
            double a = 0, b = 0;
            for (Index c = 0; c < rank; ++c) {
                a += static_cast<double>(l0[at(c * n + i)]) * static_cast<double>(r0[at(c * n + j)]);
                b += static_cast<double>(l1[at(c * n + i)]) * static_cast<double>(r1[at(c * n + j)]);
            }
            sum += a * b * static_cast<double>(z[at(j)]);
            size += std::abs(a * b * static_cast<double>(z[at(j)]));
        }
        if (!close<T>(static_cast<double>(out[at(i)]) / size, sum / size)) return fail(state, "wrong answer");
    }
    const auto& l = limits<T>(threads);
    const double square = number(rank * rank);
    // Both passes multiply all pairs of components. The factors, the vector and the result are each read or written
    // once.
    count(
        state, seconds, number(n),
        longer(arithmetic(l, 4 * square * number(n), 0), reading(l, number((4 * rank + 2) * n) * sizeof(T))));
}

// Half of a symmetric matrix: either its weights are computed, or it is multiplied by k vectors.
template <class T>
void symmetric(benchmark::State& state, Index n, Index k, int threads) {
    const Cloud<T> cloud = Cloud<T>::alone(n, 3, true);
    const qk::Run run{threads, nullptr};
    qk::Buffer<T> tiles(qk::symmetric_tile_count(n) * qk::symmetric_tile * qk::symmetric_tile);
    const auto pack = [&] { qk::pack_symmetric(cloud.problem(), tiles.data(), run); };
    pack();
    const std::vector<T> x = points<T>(n * std::max<Index>(k, 1), 6);
    std::vector<T> out(x.size());
    const auto product = [&] {
        qk::symmetric_product(n, tiles.data(), std::max<Index>(k, 1), x.data(), out.data(), run);
    };
    const double seconds = k == 0 ? time_of(state, pack) : time_of(state, product);
    product();
    for (const Index i : {Index{0}, n / 2, n - 1}) {
        double sum = 0, size = 0;
        for (Index j = 0; j < n; ++j) {
            double square = 0;
            for (Index c = 0; c < 3; ++c) {
                const double step = static_cast<double>(cloud.x[at(i * 3 + c)] - cloud.x[at(j * 3 + c)]);
                square += step * step;
            }
            sum += std::exp(-square) * static_cast<double>(x[at(j)]);
            size += std::exp(-square) * std::abs(static_cast<double>(x[at(j)]));
        }
        if (!close<T>(static_cast<double>(out[at(i)]) / size, sum / size)) return fail(state, "wrong answer");
    }
    const auto& l = limits<T>(threads);
    const double half = number(n) * number(n) / 2;
    if (k == 0)
        count(state, seconds, half, arithmetic(l, 6 * half, half));
    else  // each stored entry is used for its row and for its column
        count(state, seconds, half,
              longer(arithmetic(l, 4 * number(k) * half, 0), reading(l, half * sizeof(T))));
}

// Velocities of particles with softmax weights: x_i' = sum_j p_ij x_j.
template <class T>
void velocity(benchmark::State& state, Index n, Index d, int threads) {
    Cloud<T> cloud = Cloud<T>::alone(n, d, false);
    std::vector<double> unit(at(d * d), 0.0);
    for (Index k = 0; k < d; ++k) unit[at(k * d + k)] = 1;
    qk::AttentionSpec spec;
    spec.n = n;
    spec.d = spec.k = d;
    spec.layers = {{0.0, unit, unit, unit}};
    const auto field = qk::attention_velocity<T>(spec);
    std::vector<T> out(at(n * d));
    const qk::Run run{threads, nullptr};
    const double seconds = time_of(state, [&] { (*field)(0.0, cloud.x.data(), out.data(), run); });
    std::vector<double> mean;
    for (const Index i : {Index{0}, n / 2, n - 1}) {
        cloud.row(i, mean);
        for (Index k = 0; k < d; ++k)
            if (!close<T>(out[at(i * d + k)], mean[at(k)])) return fail(state, "wrong answer");
    }
    const double entries = number(n) * number(n);
    count(state, seconds, entries, arithmetic(limits<T>(threads), 4 * number(d) * entries, entries));
}

// One Euler step of mean' = V (I + S A) mean, S' = M S + S M^T with M = V S A, by plain loops.
void plain_step(Index d, double h, const std::vector<double>& A, const std::vector<double>& V,
                std::vector<double>& mean, std::vector<double>& S) {
    const auto times = [d](const std::vector<double>& a, const std::vector<double>& b) {
        std::vector<double> out(at(d * d), 0.0);
        for (Index i = 0; i < d; ++i)
            for (Index j = 0; j < d; ++j)
                for (Index k = 0; k < d; ++k) out[at(i * d + j)] += a[at(i * d + k)] * b[at(k * d + j)];
        return out;
    };
    const auto M = times(times(V, S), A), MS = times(M, S);
    std::vector<double> next(mean);
    for (Index i = 0; i < d; ++i)
        for (Index k = 0; k < d; ++k) next[at(i)] += h * (V[at(i * d + k)] + M[at(i * d + k)]) * mean[at(k)];
    mean = next;
    for (Index i = 0; i < d; ++i)
        for (Index j = 0; j < d; ++j) S[at(i * d + j)] += h * (MS[at(i * d + j)] + MS[at(j * d + i)]);
}

// Euler steps of n Gaussian laws under softmax attention.
template <class T>
void gaussian_flow(benchmark::State& state, Index n, Index d, int threads) {
    constexpr Index steps = 20;
    const double h = 0.05;
    const std::vector<T> mean = points<T>(n * d, 1), X = points<T>(n * d * d, 2), noise = points<T>(d * d, 3);
    std::vector<T> cov(X.size(), T(0)), A(at(d * d)), V(A);
    for (Index e = 0; e < d * d; ++e) {  // scores for which the laws contract
        const bool diagonal = e % (d + 1) == 0;
        A[at(e)] = (diagonal ? T(-0.3) : T(0)) + T(0.02) * noise[at(e)];
        V[at(e)] = diagonal ? T(1) : T(0);
    }
    for (Index law = 0; law < n; ++law)
        for (Index i = 0; i < d; ++i)
            for (Index j = 0; j < d; ++j) {
                const T *a = &X[at((law * d + i) * d)], *b = &X[at((law * d + j) * d)];
                T& entry = cov[at((law * d + i) * d + j)];
                for (Index k = 0; k < d; ++k) entry += a[k] * b[k] / static_cast<T>(d);
            }
    qk::GaussianProblem<T> problem;
    problem.d = d;
    problem.n = n;
    problem.score.data = A.data();
    problem.value.data = V.data();
    problem.mean = mean.data();
    problem.cov = cov.data();
    qk::GaussianOptions options;
    options.t1 = h * number(steps);
    options.n_steps = options.store_every = steps;
    std::vector<T> means(at(2 * n * d)), covs(at(2 * n * d * d)), mean_rate(at(n * d)),
        cov_rate(at(n * d * d));
    std::vector<qk::GaussianOutcome> outcome(at(n));
    const qk::GaussianResult<T> result{means.data(), covs.data(), mean_rate.data(), cov_rate.data(),
                                       outcome.data()};
    const qk::Run run{threads, nullptr};
    const double seconds = time_of(state, [&] { qk::gaussian_flow(problem, options, result, run); });
    for (const Index law : {Index{0}, n / 2, n - 1}) {
        const auto whole = [&](const std::vector<T>& from, Index size) {
            return std::vector<double>(from.begin() + law * size, from.begin() + (law + 1) * size);
        };
        std::vector<double> m = whole(mean, d), S = whole(cov, d * d);
        const std::vector<double> scores(A.begin(), A.end()), values(V.begin(), V.end());
        for (Index s = 0; s < steps; ++s) plain_step(d, h, scores, values, m, S);
        for (Index e = 0; e < d * d; ++e)
            if (!close<T>(covs[at((n + law) * d * d + e)], S[at(e)])) return fail(state, "wrong answer");
        for (Index e = 0; e < d; ++e)
            if (!close<T>(means[at((n + law) * d + e)], m[at(e)])) return fail(state, "wrong answer");
    }
    // Three products of matrices and two of a matrix with the mean in each step.
    const double flops = 2 * (3 * number(d * d * d) + 2 * number(d * d)), laws = number(n * steps);
    count(state, seconds, laws, arithmetic(limits<T>(threads), flops * laws, 0));
}

template <class T>
void add_all(bool quick) {
    const Index n = quick ? 200 : 4000, points = quick ? 2000 : 100000, particles = quick ? 200 : 2000,
                laws = quick ? 64 : 10000;
    const std::string type = name_of<T>();
    const auto add = [&](const std::string& name, Index size, Index d, int threads, const auto& body) {
        const std::string full = name + "/N:" + std::to_string(size) + (d ? "/d:" + std::to_string(d) : "") +
                                 "/" + type + "/threads:" + std::to_string(threads);
        auto* one = benchmark::RegisterBenchmark(full.c_str(), body);
        one->UseRealTime()->Unit(benchmark::kMillisecond);
        if (quick)
            one->MinTime(0.02);
        else
            one->MinTime(0.2)->Repetitions(3)->DisplayAggregatesOnly(true);
    };
    using State = benchmark::State;
    for (const int threads : {1, 2}) {
        const int t = threads;
        for (const Index d : {Index{3}, Index{64}})
            add("log_sum_exp", n, d, t, [=](State& s) { log_sum_exp<T>(s, n, d, t); });
        add("attention", n, 64, t, [=](State& s) { attention<T>(s, n, 64, t); });
        add("sweep_points", n, 3, t, [=](State& s) { sweep<T>(s, n, Kernel::points, t); });
        add("sweep_dense", n, 0, t, [=](State& s) { sweep<T>(s, n, Kernel::dense, t); });
        add("sweep_stored", n, 0, t, [=](State& s) { sweep<T>(s, n, Kernel::stored, t); });
        if (sizeof(T) == sizeof(double))
            add("sweep_stored_single", n, 0, t, [=](State& s) { sweep<T>(s, n, Kernel::stored_single, t); });
        add("low_rank_14x14", points, 0, t, [=](State& s) { low_rank<T>(s, points, 14, t); });
        add("symmetric_pack", n, 3, t, [=](State& s) { symmetric<T>(s, n, 0, t); });
        for (const Index k : {Index{1}, Index{8}})
            add("symmetric_times_" + std::to_string(k), n, 0, t, [=](State& s) { symmetric<T>(s, n, k, t); });
        for (const Index d : {Index{2}, Index{16}})
            add("velocity", particles, d, t, [=](State& s) { velocity<T>(s, particles, d, t); });
        add("gaussian_flow", laws, 5, t, [=](State& s) { gaussian_flow<T>(s, laws, 5, t); });
        const std::string end = "/" + type + "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(("limits" + end).c_str(), [=](State& s) {
            limits_of_the_machine<T>(s, t);
        })->Iterations(1);
    }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
    bool quick = false;
    std::vector<char*> words;
    for (int i = 0; i < argc; ++i) {
        if (std::strcmp(argv[i], "--quick") == 0)
            quick = true;
        else
            words.push_back(argv[i]);
    }
    if (quick) bench::limit_seconds = 0.02;
    int count = static_cast<int>(words.size());
    words.push_back(nullptr);
    benchmark::Initialize(&count, words.data());
    if (benchmark::ReportUnrecognizedArguments(count, words.data())) return 2;
    benchmark::AddCustomContext("isa", QK_ISA_NAME);
    benchmark::AddCustomContext("simd_bits", std::to_string(8 * sizeof(qk::Pack<float>)));
    benchmark::AddCustomContext("quick", quick ? "yes" : "no");
    bench::add_all<float>(quick);
    bench::add_all<double>(quick);
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    if (bench::wrong_answer) std::fprintf(stderr, "qk_bench: WRONG ANSWER\n");
    return bench::wrong_answer ? 1 : 0;
}
