// Flows of many small Gaussian laws under attention. D lanes work on a trajectory, and lane r holds row r of every
// matrix; matrices that other lanes need lie in shared memory. Smaller dimensions are padded with zeros.
#pragma once

#include "checks.hpp"
#include "configs.hpp"

namespace qk::cuda {

template <class T, int D>
struct GaussianSpace {
    static constexpr int ld = D + 1;
    static constexpr int matrix = D * ld;
    static constexpr int state = matrix + D;  // a covariance and a mean
    // A start, a stage and the derivatives; three matrices for intermediate results; one vector.
    static constexpr int size = (2 + max_gaussian_stages) * state + 3 * matrix + D;
};

// Row r of the left factor times a matrix in shared memory.
template <class T, int D>
QK_DEVICE void times(const T (&row)[D], const T* matrix, T (&out)[D]) {
    QK_UNROLL
    for (int c = 0; c < D; ++c) {
        T sum = T(0);
        QK_UNROLL
        for (int k = 0; k < D; ++k) sum = qk::fma(row[k], matrix[k * (D + 1) + c], sum);
        out[c] = sum;
    }
}
template <class T, int D>
QK_DEVICE void put_row(T* matrix, int r, const T (&row)[D]) {
    QK_UNROLL
    for (int c = 0; c < D; ++c) matrix[r * (D + 1) + c] = row[c];
}
template <class T, int D>
QK_DEVICE void get_row(const T* matrix, int r, T (&row)[D]) {
    QK_UNROLL
    for (int c = 0; c < D; ++c) row[c] = matrix[r * (D + 1) + c];
}
// Row r of a d x d matrix in global memory, padded with zeros.
template <class T, int D>
QK_DEVICE void load_row(const T* data, int r, int d, T (&row)[D]) {
    QK_UNROLL
    for (int c = 0; c < D; ++c) row[c] = r < d && c < d ? data[r * d + c] : T(0);
}

// Solves S X = W for symmetric positive definite S by elimination without pivoting, all lanes together. X overwrites
// W, and S is destroyed.
template <class T, int D>
QK_DEVICE void solve(T* S, T* W, int r) {
    for (int p = 0; p < D; ++p) {
        const T factor = S[r * (D + 1) + p] / S[p * (D + 1) + p];
        __syncwarp(full_warp);
        if (r != p) {
            QK_UNROLL
            for (int c = 0; c < D; ++c) {
                S[r * (D + 1) + c] = qk::fnma(factor, S[p * (D + 1) + c], S[r * (D + 1) + c]);
                W[r * (D + 1) + c] = qk::fnma(factor, W[p * (D + 1) + c], W[r * (D + 1) + c]);
            }
        }
        __syncwarp(full_warp);
    }
    const T pivot = S[r * (D + 1) + r];
    QK_UNROLL
    for (int c = 0; c < D; ++c) W[r * (D + 1) + c] /= pivot;
    __syncwarp(full_warp);
}

// Writes the derivative of the state (covariance, mean) to `out`. All lanes of a warp call this together.
template <class T, int D>
QK_DEVICE void derivative(const GaussianTask<T>& task, Index trajectory, const T* state, T* out, T* work,
                          int r) {
    constexpr int ld = D + 1, matrix = GaussianSpace<T, D>::matrix;
    T *const W = work, *const S = work + matrix, *const U = work + 2 * matrix, *const vec = work + 3 * matrix;
    const T* const cov = state;
    const T* const mean = state + matrix;
    const Index dd = static_cast<Index>(task.d) * task.d;
    const Index at = task.shared ? 0 : trajectory * task.heads * dd;

    T M[D] = {};  // row r of the linear part
    T b = T(0);
    for (int h = 0; h < task.heads; ++h) {
        T row[D], product[D];
        if (task.field == GaussianField::weighted) {
            T second[D];
            get_row<T, D>(cov, r, second);
            if (task.raw_moment) {
                QK_UNROLL
                for (int c = 0; c < D; ++c) second[c] = qk::fma(mean[r], mean[c], second[c]);
            }
            load_row<T, D>(task.score + at + h * dd, r, task.d, row);
            put_row<T, D>(W, r, row);
            __syncwarp(full_warp);
            times<T, D>(second, W, product);
            put_row<T, D>(U, r, product);
            vec[r] = task.gain * mean[r];
            __syncwarp(full_warp);
        } else {
            T key[D];
            load_row<T, D>(task.score + at + h * dd, r, task.d, key);
            put_row<T, D>(U, r, key);
            times<T, D>(key, cov, product);
            put_row<T, D>(W, r, product);  // K cov
            T turned = T(0);
            QK_UNROLL
            for (int k = 0; k < D; ++k) turned = qk::fma(key[k], mean[k], turned);
            vec[r] = turned;  // K mean
            __syncwarp(full_warp);
            QK_UNROLL
            for (int c = 0; c < D; ++c) {
                T sum = T(0);
                QK_UNROLL
                for (int k = 0; k < D; ++k) sum = qk::fma(product[k], U[c * ld + k], sum);
                S[r * ld + c] = (r == c ? T(1) : T(0)) + T(2) * sum;
            }
            __syncwarp(full_warp);
            solve<T, D>(S, W, r);  // W = B^T
            load_row<T, D>(task.query + at + h * dd, r, task.d, row);
            put_row<T, D>(S, r, row);
            T moved = T(0), B[D];
            QK_UNROLL
            for (int k = 0; k < D; ++k) {
                B[k] = W[k * ld + r];
                moved = qk::fma(B[k], vec[k], moved);
            }
            __syncwarp(full_warp);
            times<T, D>(B, S, product);
            QK_UNROLL
            for (int c = 0; c < D; ++c) product[c] *= T(2);
            put_row<T, D>(U, r, product);
            vec[r] = mean[r] - T(2) * moved;
            __syncwarp(full_warp);
        }
        load_row<T, D>(task.value + at + h * dd, r, task.d, row);
        times<T, D>(row, U, product);
        QK_UNROLL
        for (int k = 0; k < D; ++k) {
            M[k] += product[k];
            b = qk::fma(row[k], vec[k], b);
        }
        __syncwarp(full_warp);  // the next head overwrites U and vec
    }
    T product[D];
    times<T, D>(M, cov, product);
    put_row<T, D>(W, r, product);
    QK_UNROLL
    for (int k = 0; k < D; ++k) b = qk::fma(M[k], mean[k], b);
    __syncwarp(full_warp);
    QK_UNROLL
    for (int c = 0; c < D; ++c) out[r * ld + c] = W[r * ld + c] + W[c * ld + r];
    out[matrix + r] = b;
    __syncwarp(full_warp);
}

template <class T, int D, int Warps>
__global__ void QK_BOUNDS(32 * Warps) gaussian_flow(QK_PARAM GaussianTask<T> task) {
    constexpr int groups = 32 * Warps / D;
    using Space = GaussianSpace<T, D>;
    QK_SHARED(T, memory, groups * Space::size);
    const int group = static_cast<int>(threadIdx.x) / D, r = static_cast<int>(threadIdx.x) % D;
    const Index trajectory = static_cast<Index>(blockIdx.x) * groups + group;
    const bool live = trajectory < task.n;
    const int d = task.d;
    T* const start = memory + group * Space::size;
    T* const stage = start + Space::state;
    T* const slopes = stage + Space::state;
    T* const work = slopes + max_gaussian_stages * Space::state;

    // Groups beyond the last trajectory step a law of zeros, because they must take part in every synchronisation.
    QK_UNROLL
    for (int c = 0; c < D; ++c)
        start[r * Space::ld + c] =
            live && r < d && c < d ? task.cov[trajectory * d * d + static_cast<Index>(r) * d + c] : T(0);
    start[Space::matrix + r] = live && r < d ? task.mean[trajectory * d + r] : T(0);
    __syncwarp(full_warp);

    for (Index step = 0; step < task.n_steps; ++step) {
        for (int s = 0; s <= task.tableau.n_stages; ++s) {
            const bool last = s == task.tableau.n_stages;
            const double* const a = last ? task.tableau.b : task.tableau.a[s];
            T* const to = last ? start : stage;
            // Each lane forms its row and its entry of the mean, which no other lane reads before the synchronisation.
            for (int c = 0; c <= D; ++c) {
                const int at = c < D ? r * Space::ld + c : Space::matrix + r;
                T sum = T(0);
                for (int k = 0; k < (last ? task.tableau.n_stages : s); ++k)
                    sum = qk::fma(static_cast<T>(a[k]), slopes[k * Space::state + at], sum);
                to[at] = qk::fma(task.h, sum, start[at]);
            }
            __syncwarp(full_warp);
            if (!last)
                derivative<T, D>(task, live ? trajectory : 0, stage, slopes + s * Space::state, work, r);
        }
    }

    if (live && r < d) {
        for (int c = 0; c < d; ++c)
            task.cov[trajectory * d * d + static_cast<Index>(r) * d + c] = start[r * Space::ld + c];
        task.mean[trajectory * d + r] = start[Space::matrix + r];
    }
}

template <class Config, class T>
Outcome run_gaussian(const GaussianTask<T>& task, Stream stream) {
    if (task.n < 0 || task.n_steps < 0) return bad("n or n_steps: wanted at least 0, got a negative number");
    if (task.d < 1 || task.d > max_gaussian_dim) return bad("d: wanted 1 to 8");
    if (task.heads < 1) return bad("heads: wanted at least 1");
    if (task.tableau.n_stages < 1 || task.tableau.n_stages > max_gaussian_stages)
        return bad("tableau: wanted 1 to 4 stages");
    if (task.n == 0 || task.n_steps == 0) return {};
    if (task.score == nullptr || task.value == nullptr || task.mean == nullptr || task.cov == nullptr)
        return bad("score, value, mean or cov: wanted an array, got a null pointer");
    if (task.field == GaussianField::l2 && task.query == nullptr)
        return bad("query: wanted an array, got a null pointer");
    constexpr int warps = Config::group_warps;
    const Index per_block = 32 * warps / (task.d <= 4 ? 4 : 8);
    const Index blocks = ceil_div(task.n, per_block);
    if (blocks > max_grid_x) return {Status::too_large, 0, "n: too many trajectories for one launch"};
    const auto grid = static_cast<unsigned>(blocks);
    if (task.d <= 4) return QK_LAUNCH((gaussian_flow<T, 4, warps>), grid, 32 * warps, 0, stream, task);
    return QK_LAUNCH((gaussian_flow<T, 8, warps>), grid, 32 * warps, 0, stream, task);
}

}  // namespace qk::cuda
