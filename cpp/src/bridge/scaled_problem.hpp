// The scores of a problem times a number, for annealing.
#pragma once

#include <vector>

#include "qk/problem.hpp"

namespace qk {

template <class T>
struct ScaledProblem {
    Problem<T> problem;
    std::vector<std::vector<T>>
        biases;  // the arrays that `problem` refers to; moving this struct does not move them
};

// Terms have a factor and are scaled when they are computed. Biases have none, so they are copied and multiplied.
template <class T>
ScaledProblem<T> scaled_problem(const Problem<T>& problem, double factor) {
    ScaledProblem<T> out{problem, {}};
    const T by = static_cast<T>(factor);
    for (auto* terms : {&out.problem.dots, &out.problem.distances})
        for (auto& term : *terms) term.scale *= by;
    for (auto& term : out.problem.dense) term.scale *= by;
    const auto scale = [&](std::vector<Bias<T>>& biases, Index n) {
        for (Bias<T>& bias : biases) {
            std::vector<T>& copy = out.biases.emplace_back(static_cast<std::size_t>(n));
            for (Index i = 0; i < n; ++i) copy[static_cast<std::size_t>(i)] = bias[i] * by;
            bias = {copy.data(), 1, bias.stage};
        }
    };
    scale(out.problem.row_bias, problem.n_rows);
    scale(out.problem.col_bias, problem.n_cols);
    return out;
}

}  // namespace qk
