#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "bridge/scaled_problem.hpp"
#include "qk/bridge_kernels.hpp"
#include "qk/scalar_math.hpp"

namespace qk {
namespace {

// With h_n = g and h_{k-1} = log sum exp over the columns of s_k + h_k, step k of the bridge is the row softmax of
// s_k + h_k, and the row softmax of the whole kernel at g is the product of these.
template <class T>
class Chain final : public Sweep {
public:
    explicit Chain(const std::vector<Problem<T>>& steps) : Chain(steps, {}) {}
    // `biases` holds the arrays that the steps refer to.
    Chain(const std::vector<Problem<T>>& steps, std::vector<std::vector<T>> biases)
        : steps_(steps), biases_(std::move(biases)), h_(steps.size() + 1) {
        h_[0].resize(static_cast<std::size_t>(steps.front().n_rows));
        for (std::size_t k = 0; k < steps.size(); ++k)
            h_[k + 1].resize(static_cast<std::size_t>(steps[k].n_cols));
    }

    Status rows(const double* g, const RowMass& mass, double* lse, double* columns, const Run& run) override {
        assign(h_.back(), g);
        for (std::size_t k = steps_.size(); k-- > 0;) {
            const Status status = log_sums(steps_[k], h_[k + 1], h_[k], run);
            if (status != Status::ok) return status;
        }
        std::copy(h_[0].begin(), h_[0].end(), lse);
        if (columns == nullptr) return Status::ok;
        std::vector<double> start(h_[0].size(), log_of_nothing);
        for (std::size_t i = 0; i < start.size(); ++i)
            if (lse[i] != log_of_nothing) start[i] = std::log(mass(static_cast<Index>(i), lse[i])) - lse[i];
        const Status status = this->columns(start.data(), columns, run);
        if (status != Status::ok) return status;
        for (std::size_t j = 0; j < h_.back().size(); ++j)
            columns[j] =
                g[j] == log_of_nothing || columns[j] == log_of_nothing ? 0.0 : std::exp(columns[j] + g[j]);
        return Status::ok;
    }

    Status columns(const double* f, double* lse, const Run& run) override {
        std::vector<T> from(h_[0].size()), to;
        assign(from, f);
        for (std::size_t k = 0; k < steps_.size(); ++k) {
            to.resize(h_[k + 1].size());
            const Status status = log_sums(transposed(steps_[k]), from, to, run);
            if (status != Status::ok) return status;
            from.swap(to);
        }
        std::copy(from.begin(), from.end(), lse);
        return Status::ok;
    }

    Status curvature(const double* x, const double* mass, double* out, bool, const Run& run) override {
        std::vector<T> values(h_.back().size()), next;
        assign(values, x);
        for (std::size_t k = steps_.size(); k-- > 0;) {
            Problem<T> step = steps_[k];
            step.col_bias.push_back(bias(step, h_[k + 1]));
            next.resize(h_[k].size());
            const Status status = multiply(step, Weight::softmax, values, next, run);
            if (status != Status::ok) return status;
            values.swap(next);
        }
        for (std::size_t i = 0; i < values.size(); ++i) values[i] *= static_cast<T>(mass[i]);
        for (std::size_t k = 0; k < steps_.size(); ++k) {
            // Column sums of the weighted row softmax exp(s_ij + h_j - lse_i), which is at most 1.
            Problem<T> step = transposed(steps_[k]);
            std::vector<T> minus(h_[k].size());
            for (std::size_t i = 0; i < minus.size(); ++i) {
                const bool seen = h_[k][i] != -infinity<T>();
                minus[i] = seen ? -h_[k][i] : -infinity<T>();
            }
            step.row_bias.push_back(bias(step, h_[k + 1]));
            step.col_bias.push_back(bias(step, minus));
            next.resize(h_[k + 1].size());
            const Status status = multiply(step, Weight::exp, values, next, run);
            if (status != Status::ok) return status;
            values.swap(next);
        }
        std::copy(values.begin(), values.end(), out);
        return Status::ok;
    }

    // The scores of every step times the factor: the same law of paths at another temperature.
    EasierKernel easier(double factor, const Run&) override {
        std::vector<Problem<T>> steps;
        std::vector<std::vector<T>> biases;
        for (const Problem<T>& step : steps_) {
            ScaledProblem<T> one = scaled_problem(step, factor);
            steps.push_back(std::move(one.problem));
            std::ranges::move(one.biases, std::back_inserter(biases));
        }
        return {std::make_unique<Chain>(steps, std::move(biases)), factor};
    }

private:
    static void assign(std::vector<T>& to, const double* from) {
        for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<T>(from[i]);
    }

    // Scores may be normalised already. Potentials shift them, and are therefore added after all late biases.
    static Bias<T> bias(const Problem<T>& problem, const std::vector<T>& values) {
        return {values.data(), 1, problem.has_late_biases() ? Stage::late : Stage::early};
    }

    // to_i = log sum_j exp(s_ij + from_j)
    static Status log_sums(Problem<T> step, const std::vector<T>& from, std::vector<T>& to, const Run& run) {
        step.col_bias.push_back(bias(step, from));
        RowTask<T> task;
        task.problem = std::move(step);
        task.log_sum_exp = to.data();
        return reduce_rows<T>({task}, Weight::softmax, 0, run);
    }

    static Status multiply(const Problem<T>& step, Weight weight, const std::vector<T>& values,
                           std::vector<T>& out, const Run& run) {
        RowTask<T> task;
        task.problem = step;
        task.values = {values.data(), 1, 1};
        task.product = out.data();
        return reduce_rows<T>({task}, weight, 1, run);
    }

    std::vector<Problem<T>> steps_;
    std::vector<std::vector<T>> biases_;
    std::vector<std::vector<T>> h_;  // the h_k of the last visit
};

}  // namespace

template <class T>
std::unique_ptr<Sweep> sweep_chain(const std::vector<Problem<T>>& steps) {
    return std::make_unique<Chain<T>>(steps);
}

template std::unique_ptr<Sweep> sweep_chain(const std::vector<Problem<float>>&);
template std::unique_ptr<Sweep> sweep_chain(const std::vector<Problem<double>>&);

}  // namespace qk
