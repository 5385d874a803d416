// Summaries and maps of vectors: figures that loops on the host need, and the arithmetic on vectors between sweeps.
#pragma once

#include "checks.hpp"
#include "configs.hpp"

namespace qk::cuda {

// ---- summaries ----------------------------------------------------------------------------------

constexpr Index summary_blocks = 216;

// The figure of two parts together: the sum of theirs, or for extremes the larger or smaller one.
QK_DEVICE double join(int figure, double a, double b) {
    if (figure == static_cast<int>(Figure::largest) || figure == static_cast<int>(Figure::ratio))
        return qk::max(a, b);
    if (figure == static_cast<int>(Figure::smallest)) return a < b ? a : b;
    return a + b;
}
QK_DEVICE double neutral(int figure) {
    return figure == static_cast<int>(Figure::smallest) ? qk::infinity<double>() : 0.0;
}

struct Figures {
    double of[n_figures];

    QK_DEVICE void clear() {
        QK_UNROLL
        for (int k = 0; k < n_figures; ++k) of[k] = neutral(k);
    }
    QK_DEVICE double& operator[](Figure figure) { return of[static_cast<int>(figure)]; }

    QK_DEVICE void add(double a, bool paired, double b) {
        const double infinity = qk::infinity<double>();
        if (a != a) {
            (*this)[Figure::nan] += 1;
        } else if (a == infinity) {
            (*this)[Figure::plus_inf] += 1;
        } else if (a == -infinity) {
            (*this)[Figure::minus_inf] += 1;
        } else {
            double& smallest = (*this)[Figure::smallest];
            smallest = a < smallest ? a : smallest;
            (*this)[Figure::largest] = qk::max((*this)[Figure::largest], a < 0 ? -a : a);
            (*this)[Figure::sum] += a;
            (*this)[Figure::squares] = qk::fma(a, a, (*this)[Figure::squares]);
            if (paired) {
                const double off = a > b ? a - b : b - a;
                (*this)[Figure::difference] += off;
                if (b > 0) {
                    (*this)[Figure::ratio] = qk::max((*this)[Figure::ratio], off / b);
                    (*this)[Figure::dot] = qk::fma(a, b, (*this)[Figure::dot]);
                }
            }
        }
        if (paired) (*this)[Figure::weight] += b;
    }
};

template <class In>
struct SummaryArgs {
    SummaryTask<In> task;
    double* partial;  // gridDim.x x n_figures
};

template <class In, int Threads>
__global__ void QK_BOUNDS(Threads) summary_parts(QK_PARAM SummaryArgs<In> args) {
    constexpr int warps = Threads / 32;
    QK_SHARED(double, parts, warps* n_figures);
    const SummaryTask<In>& task = args.task;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    Figures mine;
    mine.clear();
    const Index n = task.n_rows * task.n_cols, step = static_cast<Index>(gridDim.x) * Threads;
    for (Index at = static_cast<Index>(blockIdx.x) * Threads + threadIdx.x; at < n; at += step) {
        const Index i = at / task.n_cols, j = at % task.n_cols;
        const double a = widen(task.a.data[i * task.a.row_stride + j * task.a.col_stride]);
        const bool paired = task.b != nullptr;
        mine.add(a, paired, paired ? static_cast<double>(widen(task.b[at])) : 0.0);
    }
    QK_UNROLL
    for (int k = 0; k < n_figures; ++k) {
        double value = mine.of[k];
        for (int reach = 16; reach > 0; reach /= 2)
            value = join(k, value, __shfl_xor_sync(full_warp, value, reach, 32));
        if (lane == 0) parts[warp * n_figures + k] = value;
    }
    __syncthreads();
    if (threadIdx.x < n_figures) {
        const int k = static_cast<int>(threadIdx.x);
        double value = parts[k];
        for (int w = 1; w < warps; ++w) value = join(k, value, parts[w * n_figures + k]);
        args.partial[static_cast<Index>(blockIdx.x) * n_figures + k] = value;
    }
}

template <int Threads>
__global__ void QK_BOUNDS(Threads) summary_whole(const double* partial, Index n_parts, double* figures) {
    if (threadIdx.x >= n_figures) return;
    const int k = static_cast<int>(threadIdx.x);
    double value = neutral(k);
    for (Index p = 0; p < n_parts; ++p) value = join(k, value, partial[p * n_figures + k]);
    figures[k] = value;
}

template <class Config, class In>
Index summary_grid(const SummaryTask<In>& task) {
    const Index blocks = ceil_div(task.n_rows * task.n_cols, Index{4} * Config::vector_threads);
    return blocks < 1 ? 1 : blocks < summary_blocks ? blocks : summary_blocks;
}

template <class Config, class In>
std::size_t summary_workspace(const SummaryTask<In>& task) {
    Cutter room(nullptr);
    room.take<double>(summary_grid<Config>(task) * n_figures);
    return room.used();
}

template <class Config, class In>
Outcome run_summary(const SummaryTask<In>& task, Workspace room, Stream stream) {
    if (task.n_rows < 0 || task.n_cols < 0) return bad("a: a size is negative");
    if (task.figures == nullptr) return bad("figures: wanted an array, got a null pointer");
    if (task.n_rows > 0 && task.n_cols > 0 && task.a.data == nullptr)
        return bad("a: wanted an array, got a null pointer");
    QK_TRY(check_room(room, summary_workspace<Config>(task)));
    constexpr int threads = Config::vector_threads;
    const Index blocks = summary_grid<Config>(task);
    Cutter cutter(room.data);
    SummaryArgs<In> args{task, cutter.take<double>(blocks * n_figures)};
    QK_TRY(QK_LAUNCH((summary_parts<In, threads>), static_cast<unsigned>(blocks), threads, 0, stream, args));
    return QK_LAUNCH((summary_whole<32>), 1, 32, 0, stream, args.partial, blocks, task.figures);
}

// ---- maps ---------------------------------------------------------------------------------------

template <class T>
QK_DEVICE T mapped(const VectorTask<T>& task, Index at) {
    const T x = task.x[at], infinity = qk::infinity<T>();
    switch (task.op) {
        case VectorOp::affine: {
            const T rest = task.y == nullptr ? task.c : qk::fma(task.b, task.y[at], task.c);
            return qk::fma(task.a, x, rest);
        }
        case VectorOp::minus_or_zero:
            return x == infinity || x == -infinity ? T(0) : -x;
        case VectorOp::log:
            return qk::log(x);
        case VectorOp::log_minus:
            return x == T(0) ? -infinity : task.a * (qk::log(x) - task.y[at]);
        case VectorOp::tilt:
            return x == T(0) ? T(0) : x * qk::exp(task.a * task.y[at]);
        default: {  // relative
            const T y = task.y[at], z = task.z[at];
            return x / qk::fma(task.b, qk::max(y < 0 ? -y : y, z < 0 ? -z : z), task.a);
        }
    }
}

template <class T, int Threads>
__global__ void QK_BOUNDS(Threads) map_numbers(QK_PARAM VectorTask<T> task) {
    const Index at = static_cast<Index>(blockIdx.x) * Threads + threadIdx.x;
    if (at < task.n) task.out[at] = mapped(task, at);
}

template <class Config, class T>
Outcome run_map(const VectorTask<T>& task, Stream stream) {
    if (task.n < 0) return bad("n: wanted at least 0, got a negative number");
    if (task.n == 0) return {};
    const bool two =
        task.op == VectorOp::log_minus || task.op == VectorOp::tilt || task.op == VectorOp::relative;
    if (task.x == nullptr || task.out == nullptr || (two && task.y == nullptr) ||
        (task.op == VectorOp::relative && task.z == nullptr))
        return bad("x, y, z or out: wanted an array, got a null pointer");
    constexpr int threads = Config::vector_threads;
    const Index blocks = ceil_div(task.n, threads);
    if (blocks > max_grid_x) return {Status::too_large, 0, "n: too many numbers for one launch"};
    return QK_LAUNCH((map_numbers<T, threads>), static_cast<unsigned>(blocks), threads, 0, stream, task);
}

template <class T, int Threads>
__global__ void QK_BOUNDS(Threads) dot_rows(QK_PARAM RowDotTask<T> task) {
    const Index i = static_cast<Index>(blockIdx.x) * Threads + threadIdx.x;
    if (i >= task.n) return;
    T sum = T(0);
    for (Index c = 0; c < task.dim; ++c)
        sum = qk::fma(task.x.data[i * task.x.row_stride + c * task.x.col_stride],
                      task.y.data[i * task.y.row_stride + c * task.y.col_stride], sum);
    task.out[i] = task.scale * sum;
}

template <class Config, class T>
Outcome run_row_dots(const RowDotTask<T>& task, Stream stream) {
    if (task.n < 0 || task.dim < 0) return bad("n or dim: wanted at least 0, got a negative number");
    if (task.n == 0) return {};
    if (task.out == nullptr || (task.dim > 0 && (task.x.data == nullptr || task.y.data == nullptr)))
        return bad("x, y or out: wanted an array, got a null pointer");
    constexpr int threads = Config::vector_threads;
    const Index blocks = ceil_div(task.n, threads);
    if (blocks > max_grid_x) return {Status::too_large, 0, "n: too many rows for one launch"};
    return QK_LAUNCH((dot_rows<T, threads>), static_cast<unsigned>(blocks), threads, 0, stream, task);
}

}  // namespace qk::cuda
