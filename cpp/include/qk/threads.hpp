// Threads: a pool of our own rather than OpenMP, because libgomp hangs in a child forked after a
// parallel region, several OpenMP runtimes in one process clash, and a solve must be stoppable.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

#include "views.hpp"

namespace qk {

// Lets the caller stop a long computation. Only the calling thread asks `poll` (under Python it needs
// the interpreter), at most every few milliseconds; the others read a flag.
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
};

// Called by a task between tiles: true when the computation should end. `worker` 0 is the caller.
inline bool should_stop(const Run& run, int worker) {
    if (run.stop == nullptr) return false;
    return worker == 0 ? run.stop->check() : run.stop->stopped();
}

// Calls body(task, worker) for every task in [0, n_tasks) on up to run.n_threads threads; worker is in
// [0, n_threads). Which worker gets a task is not fixed, so bodies must not let it change results.
// Stops handing out tasks once the token is stopped. The first exception is rethrown here.
void parallel_for(const Run& run, Index n_tasks, const std::function<void(Index, int)>& body);

}  // namespace qk
