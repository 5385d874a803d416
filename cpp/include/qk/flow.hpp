// Trajectories x' = v(t, x) of n particles in d dimensions: fixed and adaptive steps, dense output, events.
#pragma once

#include <functional>
#include <vector>

#include "integration.hpp"
#include "velocity.hpp"

namespace qk {

struct FlowOptions : IntegrationOptions {
    Index n_steps = 100;         // number of equal steps; 0: adaptive
    std::vector<double> breaks;  // times at which the velocity jumps: no step crosses one
    std::vector<double> output;  // times to store, increasing; empty: every step
    bool every_step = true;
    bool sphere = false;   // rows are scaled to norm 1 after each step
    double radius = 0;     // if > 0, the flow ends when a particle is farther than this from 0
    Index n_clusters = 0;  // if > 0, the flow ends when single linkage finds so many clusters or fewer
    double linkage = 0;
    std::function<void(double)> report;  // called with the time reached, after each step
};

template <class T>
struct FlowResult {
    std::vector<double> t;
    std::vector<T> x;  // times x n x d
    FlowStatus status = FlowStatus::finished;
    Index n_steps = 0, n_rejected = 0, n_evaluations = 0;
};

// Implicit methods work for double only.
template <class T>
FlowResult<T> integrate(Velocity<T>& velocity, Index n, Index d, const T* x0, const FlowOptions& options,
                        const Run& run);

// Clusters by single linkage: particles nearer than `linkage` are joined. Labels are numbered from 0 in the
// order of each cluster's first particle; returns the number of clusters.
template <class T>
Index cluster_labels(Index n, Index d, const T* x, double linkage, std::vector<Index>& labels);

}  // namespace qk
