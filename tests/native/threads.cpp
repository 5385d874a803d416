// The pool and the engine without Python, for sanitizers (make tsan-native, asan-native): several threads that call at
// the same time, exceptions, stops, nested calls; and reductions, which must give the same bits however they are
// computed.
#include "qk/threads.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

#include "qk/engine.hpp"

namespace {

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::abort();
}

// Calls `work(k)` on each of `n` threads, all started at once.
template <class Work>
void at_once(int n, const Work& work) {
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (int k = 0; k < n; ++k)
        threads.emplace_back([&, k] {
            ready.fetch_add(1);
            while (ready.load() < n) std::this_thread::yield();
            work(k);
        });
    for (auto& thread : threads) thread.join();
}

// Plain memory, written by the thread that gets the task and read by the caller afterwards.
void every_task_is_done_once(int n_threads, qk::Index n_tasks) {
    std::vector<int> done(static_cast<std::size_t>(n_tasks), 0);
    std::vector<qk::Index> by_worker(static_cast<std::size_t>(n_threads), 0);
    const qk::Run run{n_threads, nullptr};
    qk::parallel_for(run, n_tasks, [&](qk::Index task, int worker) {
        ++done[static_cast<std::size_t>(task)];
        ++by_worker[static_cast<std::size_t>(worker)];
    });
    for (const int count : done) require(count == 1, "every task once");
    qk::Index all = 0;
    for (const qk::Index count : by_worker) all += count;
    require(all == n_tasks, "every task by a worker");
}

void exceptions_come_back(int n_threads) {
    bool caught = false;
    try {
        qk::parallel_for({n_threads, nullptr}, 100, [](qk::Index task, int) {
            if (task % 7 == 3) throw std::runtime_error("task");
        });
    } catch (const std::runtime_error&) {
        caught = true;
    }
    require(caught, "the exception of a task");
}

void a_stop_ends_it(int n_threads) {
    int asked = 0;
    qk::StopToken stop([&] { return ++asked > 1; });
    const qk::Run run{n_threads, &stop};
    qk::parallel_for(run, 1 << 30, [&](qk::Index, int worker) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        qk::should_stop(run, worker);
    });
    require(stop.stopped() && asked == 2, "a stop");
}

void nested(int n_threads) {
    std::atomic<int> total{0};
    qk::parallel_for({n_threads, nullptr}, 8, [&](qk::Index, int) {
        qk::parallel_for({n_threads, nullptr}, 8, [&](qk::Index, int) { total.fetch_add(1); });
    });
    require(total.load() == 64, "nested calls");
}

template <class T>
struct Points {
    qk::Index n, m, d;
    std::vector<T> x, y;

    Points(qk::Index rows, qk::Index cols, qk::Index dim, unsigned seed) : n(rows), m(cols), d(dim) {
        std::mt19937 random(seed);
        std::normal_distribution<double> normal;
        x.resize(static_cast<std::size_t>(n * d));
        y.resize(static_cast<std::size_t>(m * d));
        for (T& v : x) v = static_cast<T>(normal(random));
        for (T& v : y) v = static_cast<T>(normal(random));
    }
    qk::Problem<T> problem() const {
        qk::Problem<T> p;
        p.n_rows = n;
        p.n_cols = m;
        p.distances.push_back({{x.data(), d, 1}, {y.data(), d, 1}, d, 0, T(0.5)});
        return p;
    }
};

template <class T>
struct Reduced {
    std::vector<T> lse, product, rows, cols, dense;
};

template <class T>
Reduced<T> reduce(const Points<T>& points, int n_threads) {
    const auto n = static_cast<std::size_t>(points.n), m = static_cast<std::size_t>(points.m),
               d = static_cast<std::size_t>(points.d);
    Reduced<T> out{std::vector<T>(n), std::vector<T>(n * d), std::vector<T>(n), std::vector<T>(m),
                   std::vector<T>(n * m)};
    const qk::Run run{n_threads, nullptr};
    qk::RowTask<T> task;
    task.problem = points.problem();
    task.values = {points.y.data(), points.d, 1};
    task.log_sum_exp = out.lse.data();
    task.product = out.product.data();
    // Two problems at once take another path than one.
    require(qk::reduce_rows<T>({task}, qk::Weight::softmax, points.d, run) == qk::Status::ok, "reduce_rows");
    require(qk::reduce_rows<T>({task, task}, qk::Weight::softmax, points.d, {1, nullptr}) == qk::Status::ok,
            "reduce_rows");
    require(qk::marginals<T>({{points.problem(), out.rows.data(), out.cols.data()}}, run) == qk::Status::ok,
            "marginals");
    require(qk::materialize<T>({{points.problem(), out.dense.data(), points.m}}, false, qk::Weight::exp,
                               run) == qk::Status::ok,
            "materialize");
    return out;
}

template <class T>
void engine(qk::Index n, qk::Index m, qk::Index d) {
    const Points<T> points(n, m, d, 1);
    const Reduced<T> want = reduce(points, 1);
    at_once(3, [&](int k) {
        for (int repeat = 0; repeat < 5; ++repeat) {
            const Reduced<T> got = reduce(points, 1 + (k + repeat) % 4);
            require(got.lse == want.lse && got.product == want.product && got.dense == want.dense,
                    "the same bits for any number of threads");
        }
    });
}

}  // namespace

int main() {
    for (const int n_threads : {1, 2, 3, 7}) {
        for (const qk::Index n_tasks : {0, 1, 2, 5, 1000}) every_task_is_done_once(n_threads, n_tasks);
        exceptions_come_back(n_threads);
        a_stop_ends_it(n_threads);
        nested(n_threads);
    }
    at_once(4, [](int k) {
        for (int repeat = 0; repeat < 200; ++repeat) {
            every_task_is_done_once(1 + (k + repeat) % 4, 40);
            exceptions_come_back(3);
        }
    });
    engine<float>(517, 300, 3);
    engine<double>(300, 517, 20);
    engine<float>(3, 40000, 2);  // the columns are cut among tasks
    std::puts("threads: all fine");
    return 0;
}
