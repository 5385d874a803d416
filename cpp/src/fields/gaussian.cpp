#include "qk/gaussian.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>

#include "engine/tuning.hpp"
#include "fields/gaussian_laws.hpp"
#include "fields/large_rates.hpp"

namespace qk {
namespace {

// Reports to the caller from time to time how far the work has come; only the calling thread does so.
class Progress {
public:
    Progress(const std::function<void(double)>& report, Index n_tasks) : report_(report), n_tasks_(n_tasks) {}

    void finished_task() { done_.fetch_add(1, std::memory_order_relaxed); }
    void say(int worker, double part_of_task) {
        if (!report_ || worker != 0) return;
        const auto now = std::chrono::steady_clock::now();
        if (now - last_ < std::chrono::milliseconds(100)) return;
        last_ = now;
        report_((static_cast<double>(done_.load(std::memory_order_relaxed)) + part_of_task) /
                static_cast<double>(n_tasks_));
    }

private:
    const std::function<void(double)>& report_;
    Index n_tasks_;
    std::atomic<Index> done_{0};
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Integrates the laws of one task from start to end, or until the computation is stopped.
template <class Some>
void flow_of(Some& laws, const GaussianOptions& options, const Run& run, int worker, Progress& progress) {
    constexpr Index poll_steps = 16;
    ode::Integrator<Some> integrator(laws, options, run, worker);
    laws.begin(integrator.lane.data());
    laws.write(0);
    const bool adaptive = options.n_steps == 0;
    const double span = options.t1 - options.t0;
    const Index n_ends = adaptive ? static_cast<Index>(options.output.size()) : options.n_steps;
    const auto n = static_cast<double>(n_ends);
    Index stored = 1;
    for (Index step = 0; step < n_ends; ++step) {
        if (step % poll_steps == 0) {
            if (should_stop(run, worker)) return;
            progress.say(worker, static_cast<double>(step) / n);
        }
        const bool last = step + 1 == n_ends;
        const double to = adaptive ? options.output[static_cast<std::size_t>(step)]
                          : last   ? options.t1
                                   : options.t0 + span * (static_cast<double>(step + 1) / n);
        if (integrator.moving()) {
            if (!adaptive)
                integrator.fixed_step(to);
            else if (!integrator.advance(to))
                return;
        }
        if (adaptive || last || (step + 1) % options.store_every == 0) laws.write(stored++);
    }
    laws.close(integrator.lane.data());
    progress.finished_task();
}

template <class T>
std::unique_ptr<RatesOfLaws<T>> packed_rates(const GaussianProblem<T>& problem, Index first) {
    switch (problem.d) {
        case 1:
            return std::make_unique<GaussianRates<T, 1>>(problem, first);
        case 2:
            return std::make_unique<GaussianRates<T, 2>>(problem, first);
        case 3:
            return std::make_unique<GaussianRates<T, 3>>(problem, first);
        case 4:
            return std::make_unique<GaussianRates<T, 4>>(problem, first);
        case 5:
            return std::make_unique<GaussianRates<T, 5>>(problem, first);
        case 6:
            return std::make_unique<GaussianRates<T, 6>>(problem, first);
        default:
            return std::make_unique<GaussianRates<T, 0>>(problem, first);
    }
}

// The problem of one trajectory.
template <class T>
GaussianProblem<T> only(const GaussianProblem<T>& problem, Index which) {
    GaussianProblem<T> one = problem;
    for (MatrixStack<T>* const stack : {&one.score, &one.query, &one.value})
        if (!stack->shared && stack->data != nullptr)
            stack->data += which * problem.heads * problem.d * problem.d;
    one.n = 1;
    return one;
}

// Whether each law is computed alone, by products of whole matrices, and not in a lane of packs.
template <class T>
bool whole_matrices(const GaussianProblem<T>& problem) {
    return problem.d >= tuning::whole_matrix_dimensions && has_large_rates<T>(problem.field);
}

template <class T>
std::unique_ptr<RatesOfLaws<T>> rates_of_one(const GaussianProblem<T>& problem, Index which, const Run& run) {
    const GaussianProblem<T> one = only(problem, which);
    if (whole_matrices(problem)) return large_rates(one, run);
    return std::make_unique<RatesOfOneLaw<T>>(static_cast<int>(one.d), packed_rates(one, 0));
}

}  // namespace

bool gaussian_wants_blas(GaussianField field, Index d) {
    return field == GaussianField::sinkhorn && d >= tuning::whole_matrix_dimensions;
}

template <class T>
void gaussian_flow(const GaussianProblem<T>& problem, const GaussianOptions& options,
                   const GaussianResult<T>& result, const Run& run) {
    const bool large = whole_matrices(problem);
    const bool single = large || tableau(options.method).implicit();
    const Index lanes = single ? 1 : SimdTraits<T>::width;
    const Index n_tasks = (problem.n + lanes - 1) / lanes;
    Progress progress(options.report, n_tasks);
    // If there are fewer laws than threads, the laws follow one another and the threads share the rows of products. The
    // same holds if a library is used that has threads of its own.
    const bool library = problem.field == GaussianField::sinkhorn && problem.d >= tuning::library_threads;
    const bool in_turn = large && (problem.n < run.n_threads || library);
    const Run mine = in_turn ? Run{1, run.stop, run.by_caller} : run;
    parallel_for(mine, n_tasks, [&](Index task, int worker) {
        if (single) {
            const auto rates = rates_of_one(problem, task, in_turn ? run : alone(run, worker));
            Laws<T, true> laws(problem, options, result, task, *rates);
            flow_of(laws, options, run, worker, progress);
        } else {
            const auto rates = packed_rates(problem, task * lanes);
            Laws<T, false> laws(problem, options, result, task * lanes, *rates);
            flow_of(laws, options, run, worker, progress);
        }
    });
}

template void gaussian_flow(const GaussianProblem<float>&, const GaussianOptions&,
                            const GaussianResult<float>&, const Run&);
template void gaussian_flow(const GaussianProblem<double>&, const GaussianOptions&,
                            const GaussianResult<double>&, const Run&);

}  // namespace qk
