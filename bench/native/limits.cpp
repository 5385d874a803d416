// The best rates of this machine, printed as JSON. The benchmarks compare their times with these.
//
//   limits [dtype=float32|float64] [threads=N] [probe=NAME] [seconds=S]
//
// Without arguments: every probe, both dtypes, 1 and 2 threads. Rates are in 1e9 per second: bytes
// for the *_read probes, floating-point operations for fma, exponentials for exp_*. Probes that
// this build does not have are left out.
#include "limits.hpp"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

namespace {

using Clock = std::chrono::steady_clock;

#if defined(__AVX512F__)
constexpr std::size_t vector_bytes = 64;
#elif defined(__AVX__)
constexpr std::size_t vector_bytes = 32;
#else
constexpr std::size_t vector_bytes = 16;
#endif

// One specialisation per type: GCC ignores the attribute on a dependent type.
template <class T>
struct Vector;
template <>
struct Vector<float> {
    typedef float type __attribute__((vector_size(vector_bytes)));
};
template <>
struct Vector<double> {
    typedef double type __attribute__((vector_size(vector_bytes)));
};

// Tells the compiler that the memory behind p is read, so that it does not remove the work that filled it.
inline void keep(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

// Hides a value from the optimiser, which would otherwise fold constants into the loop.
template <class V>
inline void opaque(V& v) {
#if defined(__x86_64__)
    asm volatile("" : "+x"(v));
#else
    asm volatile("" : "+m"(v));
#endif
}

struct Options {
    std::string dtype, probe;
    int threads = 0;
    double seconds = 0.5;
};

// One thread's share of a probe. It does work for about a millisecond and returns how many
// units (bytes, flops, exps) it was; 0 means that the probe is not available.
using Work = std::function<double()>;

// Gives each thread a processor of its own: on a busy machine the scheduler may put both on the same one.
void pin(int t) {
#if defined(__linux__)
    cpu_set_t allowed, one;
    CPU_ZERO(&allowed);
    CPU_ZERO(&one);
    sched_getaffinity(0, sizeof(allowed), &allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &allowed) && t-- == 0) CPU_SET(cpu, &one);
    }
    if (CPU_COUNT(&one) == 1) pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
#else
    (void)t;
#endif
}

// Best rate over the slices. The threads start every slice together, and its time is that of the
// slowest. Slices are short so that some run undisturbed on a machine that others use too.
double best_rate(double budget, int threads, const std::function<Work(int)>& make) {
    std::barrier together(threads);
    std::vector<double> units(threads);
    std::vector<Clock::time_point> begin(threads), end(threads);
    double best = 0;
    bool go_on = true;
    auto body = [&](int t) {
        pin(t);
        Work work = make(t);
        work();  // touches the memory and wakes the vector units before the clock starts
        const auto first = Clock::now();
        while (go_on) {
            together.arrive_and_wait();
            begin[t] = Clock::now();
            units[t] = work();
            end[t] = Clock::now();
            together.arrive_and_wait();
            if (t == 0) {
                const std::chrono::duration<double> slice =
                    *std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end());
                const double done = std::accumulate(units.begin(), units.end(), 0.0);
                best = std::max(best, done / slice.count());
                const std::chrono::duration<double> spent = Clock::now() - first;
                go_on = done > 0 && spent.count() < budget;
            }
            together.arrive_and_wait();
        }
    };
    std::vector<std::thread> team;
    for (int t = 0; t < threads; ++t) team.emplace_back(body, t);
    for (auto& member : team) member.join();
    return best / 1e9;
}

// The sum of an array with eight accumulators, which are enough to hide the latency of an addition.
template <class T>
T sum(const T* data, std::size_t n) {
    using V = typename Vector<T>::type;
    constexpr std::size_t lanes = sizeof(V) / sizeof(T), width = 8;
    V acc[width] = {};
    const V* v = reinterpret_cast<const V*>(data);
    const std::size_t blocks = n / (lanes * width);
    for (std::size_t b = 0; b < blocks; ++b)
        for (std::size_t k = 0; k < width; ++k) acc[k] += v[b * width + k];
    for (std::size_t k = 1; k < width; ++k) acc[0] += acc[k];
    T total = 0;
    for (std::size_t k = 0; k < lanes; ++k) total += acc[0][k];
    return total;
}

struct Free {
    void operator()(void* p) const { std::free(p); }
};

template <class T>
using Buffer = std::shared_ptr<T>;

template <class T>
Buffer<T> buffer(std::size_t n, double from, double to) {
    T* p = static_cast<T*>(std::aligned_alloc(4096, (n * sizeof(T) + 4095) / 4096 * 4096));
    if (!p) {
        std::fprintf(stderr, "limits: out of memory for %zu bytes\n", n * sizeof(T));
        std::exit(1);
    }
    for (std::size_t i = 0; i < n; ++i)
        p[i] = static_cast<T>(from + (to - from) * ((i * 7919) % 1024) / 1024);
    return Buffer<T>(p, Free{});
}

// Reads `chunk` elements `times` times, then moves on to the next chunk of the n elements.
template <class T>
Work reader(Buffer<T> data, std::size_t n, std::size_t chunk, std::size_t times) {
    auto at = std::make_shared<std::size_t>(0);
    return [=] {
        for (std::size_t k = 0; k < times; ++k) {
            T total = sum(data.get() + *at, chunk);
            keep(&total);
        }
        *at = (*at + 2 * chunk <= n) ? *at + chunk : 0;
        return static_cast<double>(times * chunk * sizeof(T));
    };
}

template <class T>
Work fma_work() {
    return [] {
        using V = typename Vector<T>::type;
        constexpr int chains = 12;  // they cover a latency of 4 on two units, and fit 16 registers
        constexpr int steps = 1 << 18;
        V acc[chains];
        V a, b;
        for (std::size_t k = 0; k < sizeof(V) / sizeof(T); ++k) a[k] = T(0.999), b[k] = T(1e-3);
        for (int c = 0; c < chains; ++c) acc[c] = b * T(c);
        opaque(a), opaque(b);
        for (int s = 0; s < steps; ++s)
            for (int c = 0; c < chains; ++c) acc[c] = acc[c] * a + b;
        for (int c = 1; c < chains; ++c) acc[0] += acc[c];
        keep(&acc[0]);
        return 2.0 * chains * steps * (sizeof(V) / sizeof(T));
    };
}

template <class T>
Work exp_work(bool (*run)(const T*, T*, std::size_t)) {
    // Input and output lie side by side in one page, so they are certainly in L1.
    constexpr std::size_t n = 2048 / sizeof(T);
    auto both = buffer<T>(2 * n, -20, 0);
    return [=] {
        const T* x = both.get();
        T* y = both.get() + n;
        double done = 0;
        for (int k = 0; k < 2000; ++k) {
            if (run(x, y, n)) done += n;
            keep(y);
        }
        return done;
    };
}

template <class T>
std::map<std::string, double> probes(const Options& options, int threads) {
    const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    const std::size_t in_l2 = (l2 > 0 ? static_cast<std::size_t>(l2) : 262144) / 2 / sizeof(T);
    const std::size_t in_dram = (std::size_t{256} << 20) / sizeof(T);  // beyond any shared cache
    const std::size_t chunk = (std::size_t{8} << 20) / sizeof(T);
    const std::vector<std::pair<std::string, std::function<Work(int)>>> makers = {
        {"dram_read", [=](int) { return reader(buffer<T>(in_dram, 0, 1), in_dram, chunk, 1); }},
        {"l2_read", [=](int) { return reader(buffer<T>(in_l2, 0, 1), in_l2, in_l2, 256); }},
        {"fma", [](int) { return fma_work<T>(); }},
        {"exp_libmvec", [](int) { return exp_work<T>(limits::exp_libmvec); }},
        {"exp_qkcore", [](int) { return exp_work<T>(limits::exp_qkcore); }},
    };
    std::map<std::string, double> rates;
    for (const auto& [name, make] : makers) {
        if (!options.probe.empty() && options.probe != name) continue;
        const double rate = best_rate(options.seconds, threads, make);
        if (rate > 0) rates[name] = rate;
    }
    return rates;
}

[[noreturn]] void usage(const std::string& word) {
    std::fprintf(stderr,
                 "limits: cannot use '%s'\nusage: limits [dtype=float32|float64] [threads=N] [probe=NAME] "
                 "[seconds=S]\n",
                 word.c_str());
    std::exit(2);
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const auto cut = word.find('=');
        if (cut == std::string::npos) usage(word);
        const std::string key = word.substr(0, cut), value = word.substr(cut + 1);
        if (key == "dtype" && (value == "float32" || value == "float64"))
            options.dtype = value;
        else if (key == "probe")
            options.probe = value;
        else if (key == "threads" && std::atoi(value.c_str()) > 0)
            options.threads = std::atoi(value.c_str());
        else if (key == "seconds" && std::atof(value.c_str()) > 0)
            options.seconds = std::atof(value.c_str());
        else
            usage(word);
    }
    return options;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    std::vector<int> teams = options.threads ? std::vector<int>{options.threads} : std::vector<int>{1, 2};
    std::printf("{\"vector_bytes\": %zu", vector_bytes);
    for (const char* dtype : {"float32", "float64"}) {
        if (!options.dtype.empty() && options.dtype != dtype) continue;
        std::printf(", \"%s\": {", dtype);
        for (std::size_t k = 0; k < teams.size(); ++k) {
            const auto rates = std::string(dtype) == "float32" ? probes<float>(options, teams[k])
                                                               : probes<double>(options, teams[k]);
            std::printf("%s\"%d\": {", k ? ", " : "", teams[k]);
            const char* comma = "";
            for (const auto& [name, rate] : rates) {
                std::printf("%s\"%s\": %.4g", comma, name.c_str(), rate);
                comma = ", ";
            }
            std::printf("}");
        }
        std::printf("}");
    }
    std::printf("}\n");
}
