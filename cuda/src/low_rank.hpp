// Products with Hadamard products of low-rank matrices, through their factors: H = sum_j z_j prod_e R_e(c_e, j), then
// out_i = sum over (c_0, c_1, ...) of prod_e L_e(c_e, i) H(c_0, c_1, ...).
#pragma once

#include "checks.hpp"
#include "configs.hpp"

namespace qk::cuda {

constexpr int combos_per_thread = 4;
constexpr Index staging_bytes = 32 * 1024;

template <class T>
struct FactoredArgs {
    int n_experts;
    Factor<T> side[max_terms];
    Index n_points, n_combos;
    int n_components;  // of all experts together
    int tile_points;
    Index chunk_points;
    const T* z;     // k x n_points
    T* partial;     // k x chunks x n_combos
    const T* core;  // k x n_combos
    T* out;         // k x n_points
};

// The part of H that comes from one chunk of points, with one thread per combination of components.
template <class T, int Threads>
__global__ void QK_BOUNDS(Threads) gather_core(QK_PARAM FactoredArgs<T> args) {
    QK_SHARED_DYN(T,
                  staged);  // tile_points x n_components: neighbouring threads read neighbouring components
    const Index first = static_cast<Index>(blockIdx.x) * args.chunk_points;
    const Index end = first + args.chunk_points < args.n_points ? first + args.chunk_points : args.n_points;
    const T* const z = args.z + static_cast<Index>(blockIdx.y) * args.n_points;
    T* const out = args.partial + (static_cast<Index>(blockIdx.y) * gridDim.x + blockIdx.x) * args.n_combos;

    for (Index combo0 = 0; combo0 < args.n_combos; combo0 += Threads * combos_per_thread) {
        T sum[combos_per_thread] = {};
        for (Index tile = first; tile < end; tile += args.tile_points) {
            const int points =
                static_cast<int>(end - tile < args.tile_points ? end - tile : args.tile_points);
            __syncthreads();  // the tile before has been read
            int component = 0;
            for (int e = 0; e < args.n_experts; ++e) {
                const Factor<T>& factor = args.side[e];
                const int rank = static_cast<int>(factor.rank);
                for (int idx = static_cast<int>(threadIdx.x); idx < rank * points; idx += Threads) {
                    const int p = idx % points, c = idx / points;
                    const T weight = e == 0 ? z[tile + p] : T(1);
                    staged[p * args.n_components + component + c] =
                        factor.data[c * factor.stride + tile + p] * weight;
                }
                component += rank;
            }
            __syncthreads();
            QK_UNROLL
            for (int q = 0; q < combos_per_thread; ++q) {
                Index combo = combo0 + q * Threads + threadIdx.x;
                if (combo < args.n_combos) {
                    int at[max_terms] = {};
                    int base = args.n_components;
                    QK_UNROLL
                    for (int e = max_terms - 1; e >= 0; --e)
                        if (e < args.n_experts) {
                            const Index rank = args.side[e].rank;
                            base -= static_cast<int>(rank);
                            at[e] = base + static_cast<int>(combo % rank);
                            combo /= rank;
                        }
                    for (int p = 0; p < points; ++p) {
                        T product = staged[p * args.n_components + at[0]];
                        QK_UNROLL
                        for (int e = 1; e < max_terms; ++e)
                            if (e < args.n_experts) product *= staged[p * args.n_components + at[e]];
                        sum[q] += product;
                    }
                }
            }
        }
        QK_UNROLL
        for (int q = 0; q < combos_per_thread; ++q) {
            const Index combo = combo0 + q * Threads + threadIdx.x;
            if (combo < args.n_combos) out[combo] = sum[q];
        }
    }
}

// Adds the chunks in their order, in double for both types.
template <class T, int Threads>
__global__ void QK_BOUNDS(Threads)
    join_core(const T* partial, Index chunks, Index n_combos, Index numbers, T* core) {
    const Index at = static_cast<Index>(blockIdx.x) * Threads + threadIdx.x;
    if (at >= numbers) return;
    const Index k = at / n_combos, combo = at % n_combos;
    double sum = 0;
    for (Index chunk = 0; chunk < chunks; ++chunk)
        sum += static_cast<double>(partial[(k * chunks + chunk) * n_combos + combo]);
    core[at] = static_cast<T>(sum);
}

// One thread per point. The last expert is the inner loop; the indices of the others advance like an odometer.
template <class T, int Threads>
__global__ void QK_BOUNDS(Threads) apply_core(QK_PARAM FactoredArgs<T> args) {
    const Index i = static_cast<Index>(blockIdx.x) * Threads + threadIdx.x;
    if (i >= args.n_points) return;
    const T* const core = args.core + static_cast<Index>(blockIdx.y) * args.n_combos;
    const Factor<T>& inner = args.side[args.n_experts - 1];
    T sum = T(0);
    for (Index outer = 0; outer < args.n_combos / inner.rank; ++outer) {
        T inside = T(0);
        for (Index c = 0; c < inner.rank; ++c)
            inside = qk::fma(inner.data[c * inner.stride + i], core[outer * inner.rank + c], inside);
        Index rest = outer;
        for (int e = args.n_experts - 2; e >= 0; --e) {
            inside *= args.side[e].data[rest % args.side[e].rank * args.side[e].stride + i];
            rest /= args.side[e].rank;
        }
        sum += inside;
    }
    args.out[static_cast<Index>(blockIdx.y) * args.n_points + i] = sum;
}

template <class T>
struct FactoredPlan {
    Index n_combos = 1, n_components = 0, chunk_points, chunks;
    int tile_points;

    explicit FactoredPlan(const FactoredTask<T>& task) {
        for (int e = 0; e < task.n_experts; ++e) {
            n_combos *= task.right[e].rank;
            n_components += task.right[e].rank;
        }
        const Index most = 512;  // the largest number of chunks
        chunk_points = ceil_div(task.n_right, most) < 256 ? 256 : ceil_div(task.n_right, most);
        chunks = ceil_div(task.n_right, chunk_points);
        const Index fits =
            staging_bytes / (static_cast<Index>(sizeof(T)) * (n_components > 0 ? n_components : 1));
        tile_points = static_cast<int>(fits < 32 ? fits : 32);
    }
    T* cut_partial(Cutter& room, Index k) const { return room.take<T>(k * chunks * n_combos); }
    T* cut_core(Cutter& room, Index k) const { return room.take<T>(k * n_combos); }
};

template <class T>
Outcome check(const FactoredTask<T>& task) {
    if (task.n_experts < 1 || task.n_experts > max_terms) return bad("n_experts: wanted 1 to max_terms");
    if (task.n_left < 0 || task.n_right < 0 || task.k < 0)
        return bad("n_left, n_right or k: wanted at least 0, got a negative number");
    if (task.k > 65535) return {Status::too_large, 0, "k: more than 65535 vectors"};
    for (int e = 0; e < task.n_experts; ++e) {
        if (task.left[e].rank != task.right[e].rank || task.left[e].rank < 1)
            return bad("rank: wanted at least 1, and the same rank left and right");
        if ((task.n_left > 0 && task.left[e].data == nullptr) ||
            (task.n_right > 0 && task.right[e].data == nullptr))
            return bad("left or right: wanted an array, got a null pointer");
    }
    return {};
}

template <class T>
std::size_t factored_workspace(const FactoredTask<T>& task) {
    if (!check(task).ok()) return 0;
    const FactoredPlan<T> plan(task);
    Cutter room(nullptr);
    plan.cut_partial(room, task.k);
    plan.cut_core(room, task.k);
    return room.used();
}

template <class Config, class T>
Outcome run_factored(const FactoredTask<T>& task, Workspace room, Stream stream) {
    QK_TRY(check(task));
    if (task.n_left == 0 || task.k == 0) return {};
    if (task.out == nullptr || (task.n_right > 0 && task.z == nullptr))
        return bad("z or out: wanted an array, got a null pointer");
    const FactoredPlan<T> plan(task);
    if (plan.tile_points < 1 || plan.n_combos > Index{1} << 31)
        return {Status::too_large, 0, "rank: too large for the shared memory of a block"};
    QK_TRY(check_room(room, factored_workspace(task)));
    constexpr int threads = Config::vector_threads;
    const auto k = static_cast<unsigned>(task.k);

    Cutter cutter(room.data);
    FactoredArgs<T> args{};
    args.n_experts = task.n_experts;
    args.n_combos = plan.n_combos;
    args.n_components = static_cast<int>(plan.n_components);
    args.tile_points = plan.tile_points;
    args.chunk_points = plan.chunk_points;
    args.z = task.z;
    args.partial = plan.cut_partial(cutter, task.k);
    T* const core = plan.cut_core(cutter, task.k);
    for (int e = 0; e < task.n_experts; ++e) args.side[e] = task.right[e];
    args.n_points = task.n_right;
    if (plan.chunks > 0) {
        const std::size_t shared = sizeof(T) * static_cast<std::size_t>(plan.n_components * plan.tile_points);
        const dim3 grid(static_cast<unsigned>(plan.chunks), k);
        QK_TRY(QK_LAUNCH((gather_core<T, threads>), grid, threads, shared, stream, args));
    }
    const Index numbers = task.k * plan.n_combos;
    QK_TRY(QK_LAUNCH((join_core<T, threads>), static_cast<unsigned>(ceil_div(numbers, threads)), threads, 0,
                     stream, static_cast<const T*>(args.partial), plan.chunks, plan.n_combos, numbers, core));
    for (int e = 0; e < task.n_experts; ++e) args.side[e] = task.left[e];
    args.n_points = task.n_left;
    args.core = core;
    args.out = task.out;
    const dim3 grid(static_cast<unsigned>(ceil_div(task.n_left, threads)), k);
    return QK_LAUNCH((apply_core<T, threads>), grid, threads, 0, stream, args);
}

}  // namespace qk::cuda
