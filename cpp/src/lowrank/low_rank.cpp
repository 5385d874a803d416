#include "qk/low_rank.hpp"

#include <algorithm>

#include <Eigen/Core>

#include "qk/few_rows.hpp"
#include "qk/simd.hpp"

namespace qk {
namespace {

// Points are processed in blocks; a row of a block is one component of that many points. Twelve packs of 512
// bits are a whole number of every register tile below, and the factors of a block stay in L1.
constexpr Index block_bytes = 768;
template <class T>
constexpr Index block = block_bytes / static_cast<Index>(sizeof(T));
constexpr Index packs = block_bytes / QK_SIMD_BYTES;

// Register tile: 4 rows by as many packs (or columns) as leave room for the operands.
constexpr int tile_rows = 4;
constexpr int tile_cols = QK_SIMD_REGISTERS >= 32 ? 6 : 3;
static_assert(packs % tile_cols == 0);

// Sums stay in single precision for this many blocks before they are added in double.
constexpr Index flush_blocks = 8;

// The number of multiplications from which another thread is worth waking.
constexpr Index worth_a_thread = 1 << 18;

// Keeps operands that several FMAs share in registers. Otherwise GCC reads them from memory for each FMA, and the
// loads, not the FMAs, limit the speed.
template <class P>
QK_INLINE P in_register(P x) {
#if defined(__SSE2__) && !defined(QK_SIMD_WIDE)
    asm("" : "+v"(x));
#endif
    return x;
}

// Prefetches the rows of the factors that the next block will need, line by line, while this block is
// computed. The processor does not predict them, because there are too many streams and each is too short.
template <class T>
class Ahead {
public:
    explicit Ahead(const FactorSide<T>& side) : side_(side) {}

    void start(Index first) {
        first_ = first;
        left_ = first < side_.n_points ? side_.experts.size() : 0;
        component_ = 0;
    }
    // The next row, as an address to prefetch block_bytes from; a harmless address in the cache if there is none. The
    // rows of the last expert come first, because they are needed first.
    const char* row() {
        if (left_ == 0) return near_;
        const Factor<T>& f = side_.experts[left_ - 1];
        const T* at = f.data + component_ * f.stride + first_;
        if (++component_ == f.rank) {
            --left_;
            component_ = 0;
        }
        // A row may start within a cache line, whose first part came with the block before.
        return reinterpret_cast<const char*>(at) + 63;
    }

private:
    const FactorSide<T>& side_;
    Index first_ = 0, component_ = 0;
    std::size_t left_ = 0;  // the number of experts whose rows are still to come
    char near_[block_bytes] = {};
};

// ---- register tiles -----------------------------------------------------------------------------

// acc(r, c) += a(r, .) b(c, .), lane by lane, over one block
template <class T, int R, int C>
QK_INLINE void gather_tile(const T* a, const T* b, Pack<T>* acc, Index ld, Ahead<T>& ahead) {
    constexpr Index width = SimdTraits<T>::width;
    const char *next = ahead.row(), *second = ahead.row();
    Pack<T> sum[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) sum[r][c] = acc[r * ld + c];
    for (Index p = 0; p < block<T>; p += width) {
        __builtin_prefetch(next + p * static_cast<Index>(sizeof(T)));
        __builtin_prefetch(second + p * static_cast<Index>(sizeof(T)));
        Pack<T> y[C];
#pragma GCC unroll 6
        for (int c = 0; c < C; ++c) y[c] = in_register(load(b + c * block<T> + p));
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Pack<T> x = in_register(load(a + r * block<T> + p));
#pragma GCC unroll 6
            for (int c = 0; c < C; ++c) sum[r][c] = fma(x, y[c], sum[r][c]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) acc[r * ld + c] = sum[r][c];
}

// out(p) += sum_r a(r, p) sum_b h(r, b) y(b, p) for C packs of points
template <class T, int R>
QK_INLINE void apply_tile(const T* a, Index a_ld, const T* h, Index n_b, const T* y, T* out,
                          Ahead<T>& ahead) {
    constexpr int C = tile_cols;
    constexpr Index width = SimdTraits<T>::width;
    const char* next = ahead.row();
    Pack<T> sum[R][C] = {};
    for (Index b = 0; b < n_b; ++b) {
        __builtin_prefetch(next + 64 * (b < block_bytes / 64 ? b : 0));
        Pack<T> x[C];
#pragma GCC unroll 6
        for (int c = 0; c < C; ++c) x[c] = in_register(load(y + b * block<T> + c * width));
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Pack<T> factor = broadcast(h[r * n_b + b]);
#pragma GCC unroll 6
            for (int c = 0; c < C; ++c) sum[r][c] = fma(factor, x[c], sum[r][c]);
        }
    }
#pragma GCC unroll 6
    for (int c = 0; c < C; ++c) {
        Pack<T> total = load(out + c * width);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) total = fma(load(a + r * a_ld + c * width), sum[r][c], total);
        store(out + c * width, total);
    }
}

// value(r, c) *= sum_k l(k, r) y(k, c) for R rows of the kernel and C packs of its columns
template <class T, int R>
QK_INLINE void multiply_entries(const T* l, const T* y, Index rank, Pack<T> (*value)[tile_cols]) {
    constexpr int C = tile_cols;
    constexpr Index width = SimdTraits<T>::width;
    Pack<T> sum[R][C] = {};
    for (Index k = 0; k < rank; ++k) {
        Pack<T> x[C];
#pragma GCC unroll 6
        for (int c = 0; c < C; ++c) x[c] = in_register(load(y + k * block<T> + c * width));
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Pack<T> factor = broadcast(l[k * block<T> + r]);
#pragma GCC unroll 6
            for (int c = 0; c < C; ++c) sum[r][c] = fma(factor, x[c], sum[r][c]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) value[r][c] *= sum[r][c];
}

// Cuts n into pieces of `most`; a short rest is joined with the piece before and halved: 14 is 4 4 3 3. Calls
// visit(start, size) for each piece. Long runs of equal sizes keep the branches predictable.
template <class Visit>
QK_INLINE void in_pieces(Index n, Index most, const Visit& visit) {
    Index start = 0;
    const Index rest = n % most;
    const Index whole = rest > 0 && 2 * rest <= most && n > most ? n - rest - most : n - rest;
    for (; start < whole; start += most) visit(start, most);
    if (const Index half = (n - start + 1) / 2; n - start > most) {
        visit(start, half);
        start += half;
    }
    if (start < n) visit(start, n - start);
}

template <class T, int R>
QK_INLINE void gather_row(Index n_cols, const T* a, const T* b, Pack<T>* acc, Index ld, Ahead<T>& ahead) {
    switch (n_cols) {
        case 1:
            return gather_tile<T, R, 1>(a, b, acc, ld, ahead);
        case 2:
            return gather_tile<T, R, 2>(a, b, acc, ld, ahead);
        case 3:
            return gather_tile<T, R, 3>(a, b, acc, ld, ahead);
#if QK_SIMD_REGISTERS >= 32
        case 4:
            return gather_tile<T, R, 4>(a, b, acc, ld, ahead);
        case 5:
            return gather_tile<T, R, 5>(a, b, acc, ld, ahead);
        default:
            return gather_tile<T, R, 6>(a, b, acc, ld, ahead);
#else
        default:
            return;
#endif
    }
}

template <class T, int R>
void gather_strip(Index n_b, const T* a, const T* b, Pack<T>* acc, Ahead<T>& ahead) {
    in_pieces(n_b, tile_cols, [&](Index start, Index size) {
        gather_row<T, R>(size, a, b + start * block<T>, acc + start, n_b, ahead);
    });
}

// acc (n_a x n_b) += a (n_a rows) times b (n_b rows) transposed, lane by lane
template <class T>
void gather_block(Index n_a, Index n_b, const T* a, const T* b, Pack<T>* acc, Ahead<T>& ahead) {
    in_pieces(n_a, tile_rows, [&](Index start, Index size) {
        const T* rows = a + start * block<T>;
        Pack<T>* at = acc + start * n_b;
        with_few_rows(size, [&](auto some) { gather_strip<T, some()>(n_b, rows, b, at, ahead); });
    });
}

template <class T, int R>
void apply_strip(const T* a, Index a_ld, const T* h, Index n_b, const T* y, T* out, Ahead<T>& ahead) {
    for (Index p = 0; p < block<T>; p += tile_cols * SimdTraits<T>::width)
        apply_tile<T, R>(a + p, a_ld, h, n_b, y + p, out + p, ahead);
}

// out = column sums of a * (h y), for the points of one block
template <class T>
void apply_block(Index n_a, Index n_b, const T* a, Index a_ld, const T* h, const T* y, T* out,
                 Ahead<T>& ahead) {
    std::fill(out, out + block<T>, T(0));
    in_pieces(n_a, tile_rows, [&](Index start, Index size) {
        const T *rows = a + start * a_ld, *c = h + start * n_b;
        with_few_rows(size, [&](auto some) { apply_strip<T, some()>(rows, a_ld, c, n_b, y, out, ahead); });
    });
}

// ---- blocks of points ---------------------------------------------------------------------------

// Copies `from` to `to`, and fills the rest of the block with zeros (or the last value).
template <class T>
QK_INLINE void copy_row(const T* from, Index n, T* to, bool repeat_last = false) {
    if (n == block<T>) {
        constexpr Index width = SimdTraits<T>::width;
#pragma GCC unroll 4
        for (Index p = 0; p < block<T>; p += width) store(to + p, load(from + p));
        return;
    }
    std::copy(from, from + n, to);
    std::fill(to + n, to + block<T>, repeat_last ? from[n - 1] : T(0));
}

template <class T>
QK_INLINE void multiply_row(const T* x, const T* y, T* to) {
    constexpr Index width = SimdTraits<T>::width;
#pragma GCC unroll 4
    for (Index p = 0; p < block<T>; p += width) store(to + p, load(x + p) * load(y + p));
}

template <class T>
void copy_factor(const Factor<T>& f, Index first, Index n, T* to, bool repeat_last = false) {
    for (Index c = 0; c < f.rank; ++c)
        copy_row(f.data + c * f.stride + first, n, to + c * block<T>, repeat_last);
}

// One side of the kernel, block by block. `a` holds the products of the components of all experts but the
// last, a row for each combination; `b` holds the components of the last expert.
template <class T>
class Panels {
public:
    explicit Panels(const FactorSide<T>& side) : side_(side) {
        for (std::size_t e = 0; e + 1 < side.experts.size(); ++e) n_a_ *= side.experts[e].rank;
        n_b_ = side.experts.back().rank;
        a_.reserve(n_a_ * block<T>);
        b_.reserve(n_b_ * block<T>);
    }

    Index n_a() const { return n_a_; }
    Index n_b() const { return n_b_; }

    void read(Index first) {
        const Index n = std::min(block<T>, side_.n_points - first);
        const auto& experts = side_.experts;
        copy_factor(experts.back(), first, n, b_.data());
        const std::size_t many = experts.size() - 1;
        if (many == 1 && n == block<T>) {  // read in place, because each number is read only once
            a_data_ = experts[0].data + first;
            a_ld_ = experts[0].stride;
            return;
        }
        a_data_ = a_.data();
        a_ld_ = block<T>;
        if (many == 0) {
            std::fill(a_.data(), a_.data() + block<T>, T(1));
            return;
        }
        copy_factor(experts[0], first, n, a_.data());
        Index rows = experts[0].rank;
        T next[block<T>];
        for (std::size_t e = 1; e < many; ++e) {
            const Index rank = experts[e].rank;
            // From the last row down, so that a row is overwritten only after its last use, which is
            // its own product with component 0.
            for (Index c = rank; c-- > 0;) {
                copy_row(experts[e].data + c * experts[e].stride + first, n, next);
                for (Index r = 0; r < rows; ++r)
                    multiply_row(a_.data() + r * block<T>, next, a_.data() + (c * rows + r) * block<T>);
            }
            rows *= rank;
        }
    }

    const T* a() const { return a_data_; }
    Index a_ld() const { return a_ld_; }
    const T* b() const { return b_.data(); }

private:
    const FactorSide<T>& side_;
    Index n_a_ = 1, n_b_ = 0;
    Buffer<T> a_, b_;
    const T* a_data_ = nullptr;
    Index a_ld_ = 0;
};

template <class T>
Index n_blocks(Index n) {
    return (n + block<T> - 1) / block<T>;
}

// The number of tasks of the gathering pass. It depends on the sizes alone. Tasks are so long that the final sums over
// lanes cost little, and few enough that the sums of all tasks need a moderate amount of memory.
template <class T>
Index gather_tasks(Index n_points, Index n_sums) {
    const Index blocks = n_blocks<T>(n_points);
    const Index by_length = std::max((n_points + 16383) / 16384, std::min<Index>(32, blocks / 8));
    const Index by_memory = (Index(1) << 23) / n_sums;
    return std::max<Index>(1, std::min({by_length, by_memory, blocks}));
}

// totals (k x n_a x n_b) = sum_j z_j a_j b_j^T
template <class T>
void gather(const FactorSide<T>& side, const T* z, Index k, Index n_a, Index n_b, T* totals, const Run& run) {
    constexpr Index width = SimdTraits<T>::width;
    const Index n = side.n_points, n_sums = k * n_a * n_b;
    const Index blocks = n_blocks<T>(n), tasks = gather_tasks<T>(n, n_sums);
    Buffer<double> partial(tasks * n_sums);
    parallel_for(run, tasks, [&](Index task, int worker) {
        Panels<T> panels(side);
        Ahead<T> ahead(side);
        Buffer<T> lanes(n_sums * width), scaled(n_a * block<T>);
        double* sums = partial.data() + task * n_sums;
        std::fill(sums, sums + n_sums, 0.0);
        std::fill(lanes.data(), lanes.data() + n_sums * width, T(0));
        const auto flush = [&] {
            for (Index s = 0; s < n_sums; ++s)
                for (Index lane = 0; lane < width; ++lane)
                    sums[s] += static_cast<double>(lanes[s * width + lane]);
            std::fill(lanes.data(), lanes.data() + n_sums * width, T(0));
        };
        T weight[block<T>];
        Index pending = 0;
        for (Index at = task * blocks / tasks; at < (task + 1) * blocks / tasks; ++at) {
            if (should_stop(run, worker)) return;
            const Index first = at * block<T>;
            panels.read(first);
            ahead.start(first + block<T>);
            for (Index q = 0; q < k; ++q) {
                copy_row(z + q * n + first, std::min(block<T>, n - first), weight);
                for (Index r = 0; r < n_a; ++r)
                    multiply_row(panels.a() + r * panels.a_ld(), weight, scaled.data() + r * block<T>);
                auto* acc = reinterpret_cast<Pack<T>*>(lanes.data()) + q * n_a * n_b;
                gather_block(n_a, n_b, scaled.data(), panels.b(), acc, ahead);
            }
            if (sizeof(T) < sizeof(double) && ++pending == flush_blocks) {
                flush();
                pending = 0;
            }
        }
        flush();
    });
    for (Index s = 0; s < n_sums; ++s) {
        double sum = 0;
        for (Index task = 0; task < tasks; ++task) sum += partial[task * n_sums + s];
        totals[s] = static_cast<T>(sum);
    }
}

// With one expert the kernel is a product of two matrices, so multiplying it by a vector takes two products of a matrix
// and a vector. Points are taken in runs of a fixed length, and the sums of the runs are added in their order, so the
// result does not depend on the number of threads.
void plain_product(const FactorSide<double>& left, const FactorSide<double>& right, const double* z,
                   double* out, const Run& run) {
    using Rows = Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
                            Eigen::OuterStride<>>;
    static constexpr Index length = 8192;
    const auto runs = [](const FactorSide<double>& side) { return (side.n_points + length - 1) / length; };
    const auto part = [](const FactorSide<double>& side, Index first) {
        const Factor<double>& f = side.experts.front();
        return Rows(f.data + first, f.rank, std::min(length, side.n_points - first),
                    Eigen::OuterStride<>(f.stride));
    };
    Eigen::MatrixXd sums(right.experts.front().rank, runs(right));
    parallel_for(run, runs(right), [&](Index task, int) {
        const Rows rows = part(right, task * length);
        sums.col(task).noalias() = rows * Eigen::Map<const Eigen::VectorXd>(z + task * length, rows.cols());
    });
    for (Index task = 1; task < sums.cols(); ++task) sums.col(0) += sums.col(task);
    parallel_for(run, runs(left), [&](Index task, int) {
        const Rows rows = part(left, task * length);
        Eigen::Map<Eigen::VectorXd>(out + task * length, rows.cols()).noalias() =
            rows.transpose() * sums.col(0);
    });
}

// Right-hand sides are taken in groups whose sums stay near the processor.
Index group_size(Index k, Index n_sums) { return std::max<Index>(1, std::min<Index>(k, 4096 / n_sums)); }

}  // namespace

template <class T>
void factored_product(const FactorSide<T>& left, const FactorSide<T>& right, const T* z, Index k, T* out,
                      const Run& run) {
    if constexpr (sizeof(T) == sizeof(double)) {
        if (k == 1 && left.experts.size() == 1) {
            const Index work = (left.n_points + right.n_points) * left.experts.front().rank;
            return plain_product(left, right, z, out,
                                 work < worth_a_thread ? Run{1, run.stop, run.by_caller} : run);
        }
    }
    const Panels<T> shape(right);
    const Index n_a = shape.n_a(), n_b = shape.n_b();
    const Index n = left.n_points, m = right.n_points, group = group_size(k, n_a * n_b);
    Run team = run;
    if ((n + m) * n_a * n_b * k < worth_a_thread) team.n_threads = 1;
    Buffer<T> totals(group * n_a * n_b);
    for (Index q0 = 0; q0 < k; q0 += group) {
        const Index count = std::min(group, k - q0);
        gather(right, z + q0 * m, count, n_a, n_b, totals.data(), team);
        const Index blocks = n_blocks<T>(n);
        const Index tasks = std::min<Index>(blocks, 8 * team.n_threads);
        parallel_for(team, tasks, [&](Index task, int worker) {
            Panels<T> panels(left);
            Ahead<T> ahead(left);
            T values[block<T>];
            for (Index at = task * blocks / tasks; at < (task + 1) * blocks / tasks; ++at) {
                if (should_stop(team, worker)) return;
                const Index first = at * block<T>;
                panels.read(first);
                ahead.start(first + block<T>);
                for (Index q = 0; q < count; ++q) {
                    apply_block(n_a, n_b, panels.a(), panels.a_ld(), totals.data() + q * n_a * n_b,
                                panels.b(), values, ahead);
                    std::copy(values, values + std::min(block<T>, n - first), out + (q0 + q) * n + first);
                }
            }
        });
    }
}

namespace {

// The entries of one block of rows and one block of columns, whose factors and scales are packed.
template <class T>
struct EntryBlock {
    const T *left, *right;  // the experts one below the other
    const T *u, *row_slack, *v, *col_slack;
};

template <class T, int R>
void count_tile(const std::vector<Factor<T>>& experts, const EntryBlock<T>& e, Index i, Index p,
                typename SimdTraits<T>::Bits& count, Pack<T>& smallest, Pack<T>& mass) {
    using Bits = typename SimdTraits<T>::Bits;
    constexpr Index width = SimdTraits<T>::width;
    const Bits one = in_register(Bits{} + 1);
    Pack<T> value[R][tile_cols];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < tile_cols; ++c) value[r][c] = broadcast(T(1));
    Index at = 0;
    for (const Factor<T>& f : experts) {
        multiply_entries<T, R>(e.left + at * block<T> + i, e.right + at * block<T> + p, f.rank, value);
        at += f.rank;
    }
    for (int r = 0; r < R; ++r) {
        const Pack<T> u = broadcast(e.u[i + r]), slack = broadcast(e.row_slack[i + r]);
        for (int c = 0; c < tile_cols; ++c) {
            const Pack<T> scaled = value[r][c] * u * load(e.v + p + c * width);
            const auto negative =
                (value[r][c] < -slack * load(e.col_slack + p + c * width)) & (scaled < Pack<T>{});
            count += negative ? one : Bits{};
            smallest = -max(-scaled, -smallest);
            mass += select(negative, scaled, Pack<T>{});
        }
    }
}

}  // namespace

template <class T>
NegativeEntries negative_entries(const FactorSide<T>& left, const FactorSide<T>& right,
                                 const EntryScales<T>& scales, const Run& run) {
    constexpr Index width = SimdTraits<T>::width;
    Index rank = 0;
    for (const Factor<T>& f : left.experts) rank += f.rank;
    const Index n = left.n_points, m = right.n_points, tasks = n_blocks<T>(n);
    std::vector<NegativeEntries> found(static_cast<std::size_t>(tasks));
    parallel_for(run, tasks, [&](Index task, int worker) {
        Buffer<T> l(rank * block<T>), r(rank * block<T>);
        T u[block<T>], row_slack[block<T>], v[block<T>], col_slack[block<T>];
        const EntryBlock<T> entries{l.data(), r.data(), u, row_slack, v, col_slack};
        const Index first = task * block<T>, rows = std::min(block<T>, n - first);
        const auto pack = [](const FactorSide<T>& side, Index start, Index count, T* to) {
            for (const Factor<T>& f : side.experts) {
                copy_factor(f, start, count, to, true);
                to += f.rank * block<T>;
            }
        };
        pack(left, first, rows, l.data());
        copy_row(scales.u + first, rows, u, true);
        copy_row(scales.row_slack + first, rows, row_slack, true);
        NegativeEntries& here = found[static_cast<std::size_t>(task)];
        here.smallest = infinity<double>();
        for (Index j = 0; j < m; j += block<T>) {
            if (should_stop(run, worker)) return;
            const Index cols = std::min(block<T>, m - j);
            pack(right, j, cols, r.data());
            copy_row(scales.v + j, cols, v, true);
            copy_row(scales.col_slack + j, cols, col_slack);
            // Beyond the last column the last one is repeated, which changes no minimum. An infinite slack
            // keeps the copies from being counted.
            std::fill(col_slack + cols, col_slack + block<T>, infinity<T>());
            typename SimdTraits<T>::Bits count = {};
            Pack<T> smallest = infinity<Pack<T>>(), mass = {};
            for (Index p = 0; p < round_up(cols, tile_cols * width); p += tile_cols * width) {
                Index i = 0;
                for (; i + tile_rows <= rows; i += tile_rows)
                    count_tile<T, tile_rows>(left.experts, entries, i, p, count, smallest, mass);
                for (; i < rows; ++i) count_tile<T, 1>(left.experts, entries, i, p, count, smallest, mass);
            }
            for (Index lane = 0; lane < width; ++lane) {
                here.count += static_cast<Index>(count[lane]);
                here.smallest = std::min(here.smallest, static_cast<double>(smallest[lane]));
                here.mass += static_cast<double>(mass[lane]);
            }
        }
    });
    NegativeEntries total;
    total.smallest = infinity<double>();
    for (const NegativeEntries& here : found) {
        total.count += here.count;
        total.smallest = std::min(total.smallest, here.smallest);
        total.mass += here.mass;
    }
    return total;
}

#define QK_INSTANTIATE(T)                                                                           \
    template void factored_product(const FactorSide<T>&, const FactorSide<T>&, const T*, Index, T*, \
                                   const Run&);                                                     \
    template NegativeEntries negative_entries(const FactorSide<T>&, const FactorSide<T>&,           \
                                              const EntryScales<T>&, const Run&);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)

}  // namespace qk
