#include "qk/threads.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define QK_HAS_FORK 1
#endif

namespace qk {
namespace {

struct Job {
    const std::function<void(Index, int)>* body = nullptr;
    const Run* run = nullptr;
    Index n_tasks = 0;
    std::atomic<Index> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;
    std::mutex error_mutex;

    void work(int worker) {
        while (!failed.load(std::memory_order_relaxed)) {
            const Index task = next.fetch_add(1, std::memory_order_relaxed);
            if (task >= n_tasks || should_stop(*run, worker)) return;
            try {
                (*body)(task, worker);
            } catch (...) {
                const std::lock_guard<std::mutex> lock(error_mutex);
                if (!error) error = std::current_exception();
                failed.store(true);
            }
        }
    }
};

// Tells the processor that this loop only waits.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Waits for `ready` without sleeping, but not for long, because waking a thread costs several microseconds, as much as
// a small job. Returns false if it gave up.
template <class Ready>
bool spin_until(const Ready& ready) {
    constexpr auto patience = std::chrono::microseconds(30);
    const auto start = StopToken::Clock::now();
    do {
        for (int i = 0; i < 16; ++i) {
            if (ready()) return true;
            relax();
        }
    } while (StopToken::Clock::now() - start < patience);
    return false;
}

// Locks a mutex without sleeping. It is held for nanoseconds at a time, and a sleeping thread would lose microseconds.
std::unique_lock<std::mutex> lock_awake(std::mutex& mutex) {
    std::unique_lock<std::mutex> lock(mutex, std::defer_lock);
    if (!spin_until([&] { return lock.try_lock(); })) lock.lock();
    return lock;
}

std::atomic<int> refused_wanted{0}, refused_had{0};
std::atomic<bool> refused_notice{false};

// Workers wait until a job is posted, and join it if a place is free. The caller works too, then
// closes the job and waits only for the workers that joined, so a small job never waits for a sleeping thread.
class Pool {
public:
    // Returns false if another thread is using the pool; the caller then does the work alone.
    bool run(Job& job, int n_threads) {
        const std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
        if (!turn.owns_lock()) return false;
        {
            const auto lock = lock_awake(mutex_);
            start_threads(n_threads - 1);
            job_ = &job;
            places_ = std::min(n_threads - 1, static_cast<int>(threads_.size()));
            next_worker_ = 1;
            posted_.fetch_add(1, std::memory_order_relaxed);
        }
        wake_.notify_all();
        job.work(0);
        {
            const auto lock = lock_awake(mutex_);
            job_ = nullptr;
        }
        spin_until([this] { return active_.load(std::memory_order_relaxed) == 0; });
        auto lock = lock_awake(mutex_);
        done_.wait(lock, [this] { return active_.load(std::memory_order_relaxed) == 0; });
        return true;
    }

private:
    // Starts the workers that are wanted, or as many as the system allows. After a refusal it asks again, but at most
    // once a second, so that many small jobs do not pay for it.
    void start_threads(int wanted) {
        if (std::cmp_greater_equal(threads_.size(), wanted)) return;
        const auto now = StopToken::Clock::now();
        if (refused_ && now - refused_at_ < std::chrono::seconds(1)) return;
        refused_ = false;
        try {
            threads_.reserve(static_cast<std::size_t>(wanted));
            while (std::cmp_less(threads_.size(), wanted)) threads_.emplace_back([this] { loop(); });
            return;
        } catch (const std::system_error&) {
            refused_ = true;
        } catch (const std::bad_alloc&) {
            refused_ = true;
        }
        refused_at_ = now;
        refused_had.store(static_cast<int>(threads_.size()) + 1);
        if (refused_wanted.exchange(wanted + 1) == 0) refused_notice.store(true);
    }

    [[noreturn]] void loop() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [this] { return job_ != nullptr && places_ > 0; });
            Job& job = *job_;
            const int worker = next_worker_++;
            --places_;
            ++active_;
            const unsigned seen = posted_.load(std::memory_order_relaxed);
            lock.unlock();
            job.work(worker);
            lock = lock_awake(mutex_);
            if (--active_ == 0) done_.notify_one();
            // The worker does not return its place, so no job is joined more often than it has places.
            lock.unlock();
            spin_until([&] { return posted_.load(std::memory_order_relaxed) != seen; });
            lock = lock_awake(mutex_);
        }
    }

    std::mutex turn_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable done_;
    std::vector<std::thread> threads_;
    bool refused_ = false;
    StopToken::Clock::time_point refused_at_{};
    Job* job_ = nullptr;
    int places_ = 0;
    int next_worker_ = 1;
    // Written under the mutex; threads that spin read them without it.
    std::atomic<int> active_{0};
    std::atomic<unsigned> posted_{0};
};

// Never destroyed, because at exit the workers still sleep on its condition variable.
std::atomic<Pool*> the_pool{nullptr};
std::once_flag pool_once;

#ifdef QK_HAS_FORK
// A forked child has no workers, and its mutexes may be locked, so it starts with a new pool.
void forget_pool_in_child() { the_pool.store(new Pool); }
#endif

Pool& pool() {
    std::call_once(pool_once, [] {
        the_pool.store(new Pool);
#ifdef QK_HAS_FORK
        pthread_atfork(nullptr, nullptr, forget_pool_in_child);
#endif
    });
    return *the_pool.load();
}

}  // namespace

void parallel_for(const Run& run, Index n_tasks, const std::function<void(Index, int)>& body) {
    Job job;
    job.body = &body;
    job.run = &run;
    job.n_tasks = n_tasks;
    const Index wanted = run.n_threads < n_tasks ? run.n_threads : n_tasks;
    if (wanted <= 1 || !pool().run(job, static_cast<int>(wanted))) job.work(0);
    if (job.error) std::rethrow_exception(job.error);
}

ThreadShortage thread_shortage() { return {refused_wanted.load(), refused_had.load()}; }

bool take_thread_shortage_notice() {
    return refused_notice.load(std::memory_order_relaxed) && refused_notice.exchange(false);
}

}  // namespace qk
