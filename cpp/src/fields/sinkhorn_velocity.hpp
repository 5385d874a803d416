// Means under the bistochastic kernel of Sinkhorn attention (TPDE 2.4). The potentials are kept from call to call.
#pragma once

#include <cmath>
#include <vector>

#include "engine/attention_sums.hpp"
#include "qk/sinkhorn.hpp"

namespace qk {

template <class T>
class SinkhornVelocity {
public:
    explicit SinkhornVelocity(const AttentionSpec& spec)
        : spec_(spec), states_(static_cast<std::size_t>(spec.heads)) {}

    // means_i = sum_j kappa_ij w_j x_j.
    VelocityStatus head(Index h, const Head::Matrix& Q, const Head::Matrix& K, const T* x,
                        std::vector<double>& means, const Run& run) {
        const bool symmetric = same_kernel(Q, K);
        project(symmetric && !(Q == K) ? Head::Matrix(K.transpose() * Q) : Q,
                symmetric && !(Q == K) ? Head::Matrix(Head::Matrix::Identity(spec_.d, spec_.d)) : K, x);
        dots_ = symmetric && !(Q == K);
        if (spec_.ends.empty())
            return prefix(states_[static_cast<std::size_t>(h)], spec_.n, 0, spec_.n, symmetric, x, means,
                          run);
        // (2.6): particle i moves like the last of the particles that it sees, so each prefix is a problem of its own.
        BridgeState state;
        for (Index i = 0; i < spec_.n;) {
            const Index n = spec_.ends[static_cast<std::size_t>(i)];
            Index last = i;
            while (last < spec_.n && spec_.ends[static_cast<std::size_t>(last)] == n) ++last;
            const VelocityStatus status = prefix(state, n, i, last, symmetric, x, means, run);
            if (status != VelocityStatus::ok) return status;
            i = last;
        }
        return VelocityStatus::ok;
    }

private:
    // Whether s_ij = s_ji for some choice of the terms that depend on i or j alone: A = A^T.
    static bool same_kernel(const Head::Matrix& Q, const Head::Matrix& K) {
        const Head::Matrix A = K.transpose() * Q;
        return Q == K || (A - A.transpose()).cwiseAbs().maxCoeff() == 0.0;
    }

    // Stagnation means that the precision of the type is reached. It is accepted if the error is near the tolerance.
    static bool good(const BridgeState& state, double tol) {
        const double error = state.errors.empty() ? infinity<double>() : state.errors.back();
        return state.status == BridgeStatus::converged ||
               (state.status == BridgeStatus::stagnated && error <= 100 * tol);
    }

    void project(const Head::Matrix& rows, const Head::Matrix& cols, const T* x) {
        dim_ = rows.rows();
        map(rows, x, rows_);
        map(cols, x, cols_);
    }
    void map(const Head::Matrix& m, const T* x, Buffer<T>& to) {
        to.reserve(spec_.n * dim_);
        RowMap(m).each(x, spec_.n, nullptr, scratch_, [&](Index i, const double* y) {
            for (Index a = 0; a < dim_; ++a) to[i * dim_ + a] = static_cast<T>(y[a]);
        });
    }

    // Solves the bridge of the first n particles, and computes the means of rows [first, last).
    VelocityStatus prefix(BridgeState& state, Index n, Index first, Index last, bool symmetric, const T* x,
                          std::vector<double>& means, const Run& run) {
        Problem<T> problem;
        problem.n_rows = problem.n_cols = n;
        const FeatureTerm<T> term{{rows_.data(), dim_, 1},
                                  {cols_.data(), dim_, 1},
                                  dim_,
                                  0,
                                  static_cast<T>((dots_ ? 1.0 : 0.5) / spec_.epsilon)};
        (dots_ ? problem.dots : problem.distances).push_back(term);
        std::vector<double> mu(static_cast<std::size_t>(n), 1.0 / static_cast<double>(n));
        if (!spec_.weights.empty()) {
            double total = 0;
            for (std::size_t j = 0; j < mu.size(); ++j) total += mu[j] = spec_.weights[j];
            for (auto& m : mu) m /= total;
        }
        BridgeOptions options;
        options.method = symmetric ? BridgeMethod::symmetric : BridgeMethod::relaxed;
        options.positive_semidefinite = symmetric && !dots_;  // squared distances: a Gaussian kernel
        options.tol = spec_.sinkhorn_tol;
        options.max_iterations = options.max_visits = spec_.sinkhorn_visits;
        if (symmetric && state.g.size() == mu.size())
            for (std::size_t j = 0; j < mu.size(); ++j) {
                // The averaged update keeps f = g (see "gauge" in docs/engine.md).
                state.g[j] = state.f[j] = 0.5 * (state.f[j] + state.g[j]);
            }
        state.f.resize(mu.size(), 0.0);
        state.g.resize(mu.size(), 0.0);
        state.errors.clear();
        state.n_visits = 0;
        const auto sweep = spec_.stored ? sweep_stored(problem, run) : sweep_on_the_fly(problem, run);
        solve_bridge(*sweep, mu, mu, options, state, run);
        if (!good(state, options.tol) && state.status != BridgeStatus::interrupted) {
            options.method = BridgeMethod::newton;
            state.n_visits = 0;
            solve_bridge(*sweep, mu, mu, options, state, run);
        }
        if (state.status == BridgeStatus::interrupted) return VelocityStatus::interrupted;
        if (!good(state, options.tol))
            return state.status == BridgeStatus::overflow ? VelocityStatus::not_finite
                                                          : VelocityStatus::no_convergence;
        // The row softmax of s + g gives rows of the bistochastic kernel that are normalised exactly.
        g_.reserve(n);
        for (Index j = 0; j < n; ++j) g_[j] = static_cast<T>(state.g[static_cast<std::size_t>(j)]);
        problem.col_bias.push_back({g_.data(), 1});
        problem.n_rows = last - first;
        auto& features = dots_ ? problem.dots.front() : problem.distances.front();
        features.rows.data += first * dim_;
        products_.reserve((last - first) * spec_.d);
        RowTask<T> task;
        task.problem = problem;
        task.values = {x, spec_.d, 1};
        task.product = products_.data();
        const Status status = reduce_rows<T>({task}, Weight::softmax, spec_.d, run);
        if (status == Status::interrupted) return VelocityStatus::interrupted;
        if (status == Status::overflow) return VelocityStatus::not_finite;
        for (Index i = 0; i < (last - first) * spec_.d; ++i)
            means[static_cast<std::size_t>(first * spec_.d + i)] = static_cast<double>(products_[i]);
        return VelocityStatus::ok;
    }

    const AttentionSpec& spec_;
    std::vector<BridgeState> states_;
    Index dim_ = 0;
    bool dots_ = false;
    Buffer<T> rows_, cols_, g_, products_;
    RowMap::Scratch scratch_;
};

}  // namespace qk
