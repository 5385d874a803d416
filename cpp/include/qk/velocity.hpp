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

// Q, K: heads x k x d; V: n_values x d x d, with n_values = heads, or 1 when the heads share it.
struct AttentionParameters {
    double start = 0;  // layers: in force from this time on
    std::vector<double> Q, K, V;
};

struct AttentionSpec {
    FieldKind kind = FieldKind::softmax;
    Index n = 0, d = 0, k = 0, heads = 1, n_values = 1;
    // Particle i sees the first ends[i] particles; empty: all. Rising, and at least i + 1.
    std::vector<Index> ends;
    std::vector<double> weights;  // sum to 1; empty: 1/n each
    bool renormalise = true;      // unnormalised kinds: the particles that are seen have mass 1
    bool sphere = false;          // velocities projected on the tangent space at x
    double epsilon = 1.0;
    double sinkhorn_tol = 1e-10;
    Index sinkhorn_visits = 10000;
    bool stored = true;  // Sinkhorn: keep the n x n kernel in memory
    // Exactly one of the two: layers in the order of their start, or parameters asked for at each time.
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

    // A step between t0 and t1 is about to be taken: where parameters jump, they are those inside.
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
