// Trajectories x' = v(t, x) of n particles in d dimensions: fixed and adaptive steps, dense output, events.
#pragma once

#include <functional>
#include <vector>

#include "integration.hpp"
#include "velocity.hpp"

namespace qk {

struct FlowOptions : IntegrationOptions {
    Index n_steps = 100;         // fixed steps; 0: adaptive
    std::vector<double> breaks;  // times at which the velocity jumps: no step crosses one
    std::vector<double> output;  // rising; empty: every step
    bool every_step = true;
    bool sphere = false;   // rows are scaled to norm 1 after each step
    double radius = 0;     // > 0: ends when a particle is farther than this from 0
    Index n_clusters = 0;  // > 0: ends when there are so few clusters by single linkage
    double linkage = 0;
    std::function<void(double)> report;  // time reached, after each step
};

template <class T>
struct FlowResult {
    std::vector<double> t;
    std::vector<T> x;  // times x n x d
    FlowStatus status = FlowStatus::finished;
    Index n_steps = 0, n_rejected = 0, n_evaluations = 0;
};

// Implicit methods: double only.
template <class T>
FlowResult<T> integrate(Velocity<T>& velocity, Index n, Index d, const T* x0, const FlowOptions& options,
                        const Run& run);

// Clusters by single linkage: particles nearer than `linkage` are joined. Labels count up from 0 in the
// order of each cluster's first particle; returns how many there are.
template <class T>
Index cluster_labels(Index n, Index d, const T* x, double linkage, std::vector<Index>& labels);

}  // namespace qk
