// Velocities of particles that attend to one another (TPDE 2.1-2.9): x_i' = sum_h V_h sum_j w_h(x_i, x_j) x_j.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "threads.hpp"

namespace qk {

enum class FieldKind { softmax, l2, linear, linear_centred, sinkhorn, exp, relu, sigmoid };

enum class VelocityStatus {
    ok,
    interrupted,
    not_finite,      // a velocity left the range of the type
    no_convergence,  // Sinkhorn's iteration did not reach its tolerance
};

// Q, K: heads x k x d; V: n_values x d x d, where n_values is heads, or 1 when the heads share V.
struct AttentionParameters {
    double start = 0;  // for layers: the parameters hold from this time on
    std::vector<double> Q, K, V;
};

struct AttentionSpec {
    FieldKind kind = FieldKind::softmax;
    Index n = 0, d = 0, k = 0, heads = 1, n_values = 1;
    // Particle i sees the first ends[i] particles. `ends` increases and is at least i + 1; empty: all are seen.
    std::vector<Index> ends;
    std::vector<double> weights;  // sum to 1; empty: 1/n each
    bool renormalise = true;      // unnormalised kinds: whether the visible particles count as mass 1
    bool sphere = false;          // whether velocities are projected on the tangent space at x
    double epsilon = 1.0;
    double sinkhorn_tol = 1e-10;
    Index sinkhorn_visits = 10000;
    bool stored = true;  // Sinkhorn: whether the n x n kernel is kept in memory
    // Exactly one of the two is set: layers in the order of their start, or a function that returns the parameters at a
    // time.
    std::vector<AttentionParameters> layers;
    std::function<AttentionParameters(double)> parameters;
};

template <class T>
class Velocity {
public:
    Velocity() = default;
    Velocity(const Velocity&) = delete;
    Velocity& operator=(const Velocity&) = delete;
    virtual ~Velocity() = default;

    // Called before a step from t0 to t1. Where parameters jump, those inside the step are used.
    virtual void enter(double /*t0*/, double /*t1*/) {}

    // out = velocity at (t, x), both n x d row-major.
    virtual VelocityStatus operator()(double t, const T* x, T* out, const Run& run) = 0;
};

template <class T>
std::unique_ptr<Velocity<T>> attention_velocity(AttentionSpec spec);

// Removes from each of the n rows of v its component along x.
template <class T>
void project_tangent(Index n, Index d, const T* x, T* v);

}  // namespace qk
