// Threads: a pool of our own rather than OpenMP, because libgomp hangs in a child forked after a
// parallel region, several OpenMP runtimes in one process clash, and a solve must be stoppable.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

#include "views.hpp"

namespace qk {

// Lets the caller stop a long computation. Only the calling thread calls `poll` (under Python that needs
// the interpreter), at most every few milliseconds; the other threads read a flag.
class StopToken {
public:
    using Clock = std::chrono::steady_clock;

    StopToken() = default;
    explicit StopToken(std::function<bool()> poll) : poll_(std::move(poll)), last_(Clock::now()) {}

    bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

    // Called by the thread that started the computation, between pieces of work.
    bool check() {
        if (stopped() || !poll_) return stopped();
        const auto now = Clock::now();
        if (now - last_ < std::chrono::milliseconds(20)) return false;
        last_ = now;
        if (poll_()) stopped_.store(true, std::memory_order_relaxed);
        return stopped();
    }

private:
    std::function<bool()> poll_;
    Clock::time_point last_{};
    std::atomic<bool> stopped_{false};
};

struct Run {
    int n_threads = 1;
    StopToken* stop = nullptr;
    bool by_caller = true;  // whether the thread that does the work alone may call `stop->check()`
};

// For work inside a task that does not use further threads.
inline Run alone(const Run& run, int worker) { return {1, run.stop, run.by_caller && worker == 0}; }

// Called by a task between tiles; returns true if the computation should end. `worker` 0 is the caller.
inline bool should_stop(const Run& run, int worker) {
    if (run.stop == nullptr) return false;
    return worker == 0 && run.by_caller ? run.stop->check() : run.stop->stopped();
}

// The number of vector entries that are worked on between two checks of the clock. That takes tens of microseconds, or
// up to a good part of a millisecond if each entry takes an exponential. It is here and not in engine/tuning.hpp,
// because the bindings cut their copies by it too.
inline constexpr Index piece_entries = 1 << 15;

// Calls body(first, end) for pieces of [0, n), and checks between them whether to stop. Returns false if it stopped.
template <class Body>
bool in_pieces(const Run& run, int worker, Index n, const Body& body) {
    for (Index first = 0; first < n; first += piece_entries) {
        if (first > 0 && should_stop(run, worker)) return false;
        body(first, first + piece_entries < n ? first + piece_entries : n);
    }
    return true;
}

// Calls body(task, worker) for every task in [0, n_tasks) on up to run.n_threads threads; worker is in
// [0, n_threads). Which worker gets a task is not fixed, so results must not depend on it.
// No more tasks are given out once the token is stopped. The first exception is rethrown here.
// If the system refuses to start a thread (a limit of processes or memory), the others do its
// work, so results must not depend on the number of threads that were started either.
void parallel_for(const Run& run, Index n_tasks, const std::function<void(Index, int)>& body);

// The same for a function of any type. It is passed by reference, because a std::function that holds the function and all
// that it captures would allocate memory, which takes noticeable time in small problems.
template <class Body>
void parallel_for(const Run& run, Index n_tasks, const Body& body) {
    parallel_for(run, n_tasks, std::function<void(Index, int)>(std::cref(body)));
}

// How many threads a computation wanted and had when the system last refused to start one; zeros if it never did.
struct ThreadShortage {
    int wanted = 0, had = 0;
};
ThreadShortage thread_shortage();

// Returns true once after the first refusal, so that the caller can warn.
bool take_thread_shortage_notice();

}  // namespace qk
