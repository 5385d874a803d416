// Fibers and their scheduler. The blocks of a grid run one after another, and the threads of a block take turns at
// barriers and warp operations; both orders are drawn from the seed.
#include "simt.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "watch.hpp"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

Now now;
Machine machine;

// ---- context switches ---------------------------------------------------------------------------

#if defined(__x86_64__)
// Saves the registers that the calling convention preserves. ucontext would make two system calls per switch.
extern "C" void qk_simt_switch(void** save, void* load);
asm(R"(
.text
.globl qk_simt_switch
.hidden qk_simt_switch
.type qk_simt_switch, @function
qk_simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size qk_simt_switch, .-qk_simt_switch
)");
struct Context {
    void* sp = nullptr;
};
static void switch_to(Context& from, Context& to) { qk_simt_switch(&from.sp, to.sp); }
static void prepare(Context& context, unsigned char* stack, std::size_t bytes, void (*entry)()) {
    auto* top =
        reinterpret_cast<void**>((reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t{15});
    *--top =
        nullptr;  // a return address for `entry`, which never returns; it aligns the stack as after a call
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    context.sp = top;
}
#else
struct Context {
    ucontext_t c;
};
static void switch_to(Context& from, Context& to) { swapcontext(&from.c, &to.c); }
static void prepare(Context& context, unsigned char* stack, std::size_t bytes, void (*entry)()) {
    getcontext(&context.c);
    context.c.uc_stack.ss_sp = stack;
    context.c.uc_stack.ss_size = bytes;
    context.c.uc_link = nullptr;
    makecontext(&context.c, entry, 0);
}
#endif

// ---- reports ------------------------------------------------------------------------------------

namespace {
std::string report_text;
std::set<std::string> report_lines;
std::uint64_t random_state = 0;
bool random_order = false;

std::uint64_t draw() {  // xorshift64*
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545F4914F6CDD1DULL;
}
}  // namespace

void report(const std::string& line) {
    if (report_lines.size() >= 20 || !report_lines.insert(line).second) return;
    report_text += line + "\n";
}
const char* reports() { return report_text.c_str(); }
void clear_reports() {
    report_text.clear();
    report_lines.clear();
}
void set_seed(std::uint64_t seed) {
    random_order = seed != 0;
    random_state = seed * 0x9E3779B97F4A7C15ULL + 1;
}

static std::string ask_source_line(const void* pc) {
    Dl_info info;
    if (pc == nullptr || dladdr(pc, &info) == 0 || info.dli_fname == nullptr) return "";
    std::ostringstream command;
    const auto offset =
        reinterpret_cast<std::uintptr_t>(pc) - reinterpret_cast<std::uintptr_t>(info.dli_fbase) - 1;
    command << "addr2line -s -e '" << info.dli_fname << "' 0x" << std::hex << offset << " 2>/dev/null";
    FILE* pipe = popen(command.str().c_str(), "r");
    if (pipe == nullptr) return "";
    char line[256] = "";
    const char* got = std::fgets(line, sizeof line, pipe);
    pclose(pipe);
    std::string out = got == nullptr ? "" : line;
    while (!out.empty() && (out.back() == '\n' || out.back() == ' ')) out.pop_back();
    return out;
}

std::string source_line(const void* pc) {
    static std::map<const void*, std::string> known;
    const auto it = known.find(pc);
    return it != known.end() ? it->second : known[pc] = ask_source_line(pc);
}

// ---- the block that runs ------------------------------------------------------------------------

namespace {

constexpr std::size_t stack_bytes = 128 * 1024;

enum class State { ready, at_barrier, in_warp_op, done };

struct Fiber {
    Context context;
    std::unique_ptr<unsigned char[]> stack;
    State state = State::done;
    WarpOp op = WarpOp::none;
    unsigned mask = 0;
    std::uint64_t value = 0;  // the argument of a warp operation, then its result
    int operand = 0, width = 32;
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<int> ready;
    std::vector<std::uint32_t> warp_syncs;
    Context scheduler;
    int n_threads = 0, running = -1, at_barrier = 0, n_done = 0, predicate = 0, result = 0;
    Body body = nullptr;
    const void* arguments = nullptr;
    const char* name = "";
    bool broken = false;  // the block cannot continue
    // Static shared arrays, identified by the place in the source that declares them.
    struct Array {
        const void* site;
        std::size_t at, bytes;
    };
    std::vector<Array> arrays;
    std::size_t shared_used = 0;
};
Block block;
unsigned char* shared_memory = nullptr;

std::string where() {
    std::ostringstream out;
    out << block.name << " block (" << blockIdx.x << "," << blockIdx.y << "," << blockIdx.z << ")";
    return out.str();
}

void entry() {
    block.body(block.arguments);
    Fiber& self = block.fibers[static_cast<std::size_t>(block.running)];
    self.state = State::done;
    ++block.n_done;
    switch_to(self.context, block.scheduler);
    std::abort();  // a finished thread is never resumed
}

void wait() {
    Fiber& self = block.fibers[static_cast<std::size_t>(block.running)];
    now.in_kernel = false;
    switch_to(self.context, block.scheduler);
}

void release_barrier() {
    if (block.n_done > 0) {
        report("barrier that some threads never reach (they have returned): " + where());
        block.broken = true;
        return;
    }
    block.result = block.predicate;
    block.predicate = 0;
    block.at_barrier = 0;
    ++now.barriers;
    for (int t = 0; t < block.n_threads; ++t) {
        block.fibers[static_cast<std::size_t>(t)].state = State::ready;
        block.ready.push_back(t);
    }
}

// Completes the warp operation that the running thread has joined, if all lanes that it names have arrived.
void try_warp_op() {
    const int first = block.running / 32 * 32;
    const Fiber& self = block.fibers[static_cast<std::size_t>(block.running)];
    for (int lane = 0; lane < 32; ++lane) {
        if ((self.mask >> lane & 1) == 0) continue;
        if (first + lane >= block.n_threads) {
            report("mask names lanes that do not exist: " + where());
            block.broken = true;
            return;
        }
        const Fiber& other = block.fibers[static_cast<std::size_t>(first + lane)];
        if (other.state != State::in_warp_op) return;
        if (other.op != self.op || other.mask != self.mask || other.width != self.width) {
            report("lanes of one warp meet in different operations or with different masks: " + where());
            block.broken = true;
            return;
        }
    }
    std::uint64_t given[32] = {}, ballot = 0;
    for (int lane = 0; lane < 32; ++lane)
        if ((self.mask >> lane & 1) != 0) {
            given[lane] = block.fibers[static_cast<std::size_t>(first + lane)].value;
            if (given[lane] != 0) ballot |= std::uint64_t{1} << lane;
        }
    const WarpOp op = self.op;
    const unsigned mask = self.mask;
    for (int lane = 0; lane < 32; ++lane) {
        if ((mask >> lane & 1) == 0) continue;
        Fiber& fiber = block.fibers[static_cast<std::size_t>(first + lane)];
        int source = lane;
        const int segment = lane / fiber.width * fiber.width;
        if (op == WarpOp::shuffle_xor) {
            source = lane ^ fiber.operand;
            if (source >= segment + fiber.width) source = lane;
        } else if (op == WarpOp::shuffle_down) {
            source = lane + fiber.operand < segment + fiber.width ? lane + fiber.operand : lane;
        } else if (op == WarpOp::shuffle) {
            source = segment + (fiber.operand & (fiber.width - 1));
        }
        if ((mask >> source & 1) == 0) report("shuffle reads a lane that its mask does not name: " + where());
        fiber.value = op == WarpOp::ballot ? ballot : given[source];
        fiber.state = State::ready;
        fiber.op = WarpOp::none;
        block.ready.push_back(first + lane);
    }
    if (op == WarpOp::sync && mask == 0xffffffffu) ++block.warp_syncs[static_cast<std::size_t>(first / 32)];
}

void explain_deadlock() {
    int at_barrier = 0, in_warp = 0;
    for (const Fiber& fiber : block.fibers) {
        at_barrier += fiber.state == State::at_barrier;
        in_warp += fiber.state == State::in_warp_op;
    }
    std::ostringstream out;
    out << "deadlock: " << at_barrier << " threads wait at a barrier, " << in_warp
        << " for lanes of their warp, " << block.n_done << " have returned: " << where();
    report(out.str());
}

void run_block(int n_threads, std::size_t dynamic_bytes) {
    block.n_threads = n_threads;
    block.fibers.resize(static_cast<std::size_t>(n_threads));
    block.warp_syncs.assign(static_cast<std::size_t>(n_threads + 31) / 32, 0);
    block.ready.clear();
    block.arrays.clear();
    block.at_barrier = block.n_done = block.predicate = 0;
    block.broken = false;
    block.arrays.push_back({nullptr, 0, dynamic_bytes});
    block.shared_used = dynamic_bytes;
    std::memset(shared_memory, 0xFF,
                shared_capacity);  // NaN, so that reading what was never written spoils the result
    watch_reset_shared();
    for (int t = 0; t < n_threads; ++t) {
        Fiber& fiber = block.fibers[static_cast<std::size_t>(t)];
        if (!fiber.stack) fiber.stack.reset(new unsigned char[stack_bytes]);
        prepare(fiber.context, fiber.stack.get(), stack_bytes, entry);
        fiber.state = State::ready;
        fiber.op = WarpOp::none;
        block.ready.push_back(t);
    }
    std::reverse(block.ready.begin(), block.ready.end());
    while (block.n_done < n_threads && !block.broken) {
        if (block.ready.empty()) {
            explain_deadlock();
            break;
        }
        if (random_order) std::swap(block.ready[draw() % block.ready.size()], block.ready.back());
        block.running = block.ready.back();
        block.ready.pop_back();
        threadIdx = dim3(static_cast<unsigned>(block.running), 0, 0);
        now.thread = static_cast<std::uint32_t>(block.running);
        now.warp_syncs = block.warp_syncs[static_cast<std::size_t>(block.running / 32)];
        now.in_kernel = true;
        switch_to(block.scheduler, block.fibers[static_cast<std::size_t>(block.running)].context);
        now.in_kernel = false;
        if (block.n_done > 0 && block.at_barrier + block.n_done == n_threads && block.at_barrier > 0)
            release_barrier();
    }
}

}  // namespace

unsigned char* shared_base() { return shared_memory; }
bool inside_shared_array(std::size_t at, std::size_t bytes) {
    return std::any_of(block.arrays.begin(), block.arrays.end(),
                       [&](const auto& a) { return at >= a.at && at + bytes <= a.at + a.bytes; });
}

int barrier(int predicate) {
    Fiber& self = block.fibers[static_cast<std::size_t>(block.running)];
    block.predicate |= predicate;
    self.state = State::at_barrier;
    if (++block.at_barrier == block.n_threads) release_barrier();
    wait();
    return block.result;
}

std::uint64_t warp_op(WarpOp op, unsigned mask, std::uint64_t value, int operand, int width) {
    Fiber& self = block.fibers[static_cast<std::size_t>(block.running)];
    if ((mask >> (block.running % 32) & 1) == 0)
        report("a lane calls a warp operation whose mask does not name it: " + where());
    self.op = op;
    self.mask = mask;
    self.value = value;
    self.operand = operand;
    self.width = width;
    self.state = State::in_warp_op;
    try_warp_op();
    wait();
    return self.value;
}

void* shared_array(const void* site, std::size_t bytes, std::size_t alignment) {
    for (const auto& array : block.arrays)
        if (array.site == site) return shared_memory + array.at;
    // Gaps between arrays, so that running over the end of one does not reach the next.
    const std::size_t at = (block.shared_used + 64 + alignment - 1) / alignment * alignment;
    block.arrays.push_back({site, at, bytes});
    block.shared_used = at + bytes;
    if (block.shared_used > shared_capacity) {
        report("more shared memory than any device has: " + where());
        std::abort();
    }
    return shared_memory + at;
}
void* dynamic_shared() { return shared_memory; }

template <class T>
static T add_atomically(T* at, T x) {
    watch_access(at, sizeof(T), true, true, nullptr);
    const T before = *at;
    *at = before + x;
    return before;
}
float atomic_add(float* at, float x) { return add_atomically(at, x); }
double atomic_add(double* at, double x) { return add_atomically(at, x); }
int atomic_add(int* at, int x) { return add_atomically(at, x); }

bool run(Body body, const void* arguments, dim3 grid, dim3 threads, std::size_t dynamic_bytes,
         const char* name) {
    if (shared_memory == nullptr)
        shared_memory = static_cast<unsigned char*>(
            mmap(nullptr, shared_capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    block.body = body;
    block.arguments = arguments;
    block.name = name;
    blockDim = threads;
    gridDim = grid;
    ++now.launch;
    if (threads.x % 32 != 0 || threads.x == 0 || threads.x > 1024 || grid.x == 0 || grid.y == 0 ||
        grid.z == 0 || grid.y > 65535 || grid.z > 65535 || dynamic_bytes > 48 * 1024) {
        report(std::string("a launch that a device refuses: ") + name);
        return false;
    }
    const std::size_t before = report_lines.size();
    std::vector<std::uint64_t> order(std::size_t{grid.x} * grid.y * grid.z);
    for (std::size_t b = 0; b < order.size(); ++b) order[b] = b;
    for (std::size_t b = order.size(); random_order && b > 1; --b) std::swap(order[b - 1], order[draw() % b]);
    for (const std::uint64_t b : order) {
        blockIdx = dim3(static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                        static_cast<unsigned>(b / grid.x / grid.y));
        ++now.block;
        now.barriers = 0;
        run_block(static_cast<int>(threads.x), dynamic_bytes);
        if (block.broken) break;
    }
    return report_lines.size() == before;
}

}  // namespace simt
