#include "qk/velocity.hpp"

#include <algorithm>
#include <cmath>

#include <Eigen/Core>

#include "engine/attention_sums.hpp"
#include "fields/sinkhorn_velocity.hpp"

namespace qk {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Eigen::VectorXd;

Matrix matrix_at(const std::vector<double>& values, Index which, Index rows, Index cols) {
    return Eigen::Map<const Matrix>(values.data() + which * rows * cols, rows, cols);
}

template <class T>
bool all_finite(const T* v, Index n) {
    T sum = T(0);
    for (Index i = 0; i < n; ++i) sum += v[i] * T(0);  // NaN if one of them is not finite
    return sum == T(0);
}

template <class T>
class AttentionVelocity final : public Velocity<T> {
public:
    explicit AttentionVelocity(AttentionSpec spec) : spec_(std::move(spec)), sums_(spec_), sinkhorn_(spec_) {
        if (!spec_.layers.empty()) use(spec_.layers.front());
        visible_mass();
    }

    void enter(double t0, double t1) override {
        if (spec_.layers.size() < 2) return;
        const double middle = t0 + 0.5 * (t1 - t0);
        const auto after = std::ranges::upper_bound(spec_.layers, middle, {}, &AttentionParameters::start);
        const auto at = after == spec_.layers.begin()
                            ? std::size_t{0}
                            : static_cast<std::size_t>(std::distance(spec_.layers.begin(), after) - 1);
        if (at == layer_) return;
        layer_ = at;
        use(spec_.layers[at]);
    }

    VelocityStatus operator()(double t, const T* x, T* out, const Run& run) override {
        if (spec_.parameters && !(t == asked_)) {
            use(spec_.parameters(t));
            asked_ = t;
        }
        const VelocityStatus status = evaluate(x, out, run);
        if (status != VelocityStatus::ok) return status;
        if (!all_finite(out, spec_.n * spec_.d)) return VelocityStatus::not_finite;
        if (spec_.sphere) project_tangent(spec_.n, spec_.d, x, out);
        return status;
    }

private:
    VelocityStatus evaluate(const T* x, T* out, const Run& run) {
        std::fill(out, out + spec_.n * spec_.d, T(0));
        if (spec_.kind == FieldKind::linear || spec_.kind == FieldKind::linear_centred) {
            linear(x, out);
            return VelocityStatus::ok;
        }
        for (Index h = 0; h < spec_.heads; ++h) {
            const auto& head = heads_[static_cast<std::size_t>(h)];
            if (spec_.kind != FieldKind::sinkhorn) {
                const VelocityStatus status =
                    sums_.head(head, x, unnormalised() ? factors_.data() : nullptr, out, run);
                if (status != VelocityStatus::ok) return status;
                continue;
            }
            const VelocityStatus status = sinkhorn_.head(h, head.Q, head.K, x, means_, run);
            if (status != VelocityStatus::ok) return status;
            head.values.each(means_.data(), spec_.n, nullptr, scratch_, [&](Index i, const double* y) {
                for (Index a = 0; a < spec_.d; ++a) out[i * spec_.d + a] += static_cast<T>(y[a]);
            });
        }
        return VelocityStatus::ok;
    }

    bool unnormalised() const {
        return spec_.kind == FieldKind::exp || spec_.kind == FieldKind::relu ||
               spec_.kind == FieldKind::sigmoid;
    }

    void use(const AttentionParameters& p) {
        heads_.clear();
        for (Index h = 0; h < spec_.heads; ++h) {
            Head head;
            head.Q = matrix_at(p.Q, h, spec_.k, spec_.d);
            head.K = matrix_at(p.K, h, spec_.k, spec_.d);
            head.V = matrix_at(p.V, spec_.n_values == 1 ? 0 : h, spec_.d, spec_.d);
            if (spec_.kind == FieldKind::sinkhorn) head.V /= spec_.epsilon;
            head.rows = sums_.row_map(head);
            head.values = RowMap(head.V);
            heads_.push_back(std::move(head));
        }
        means_.resize(static_cast<std::size_t>(spec_.n * spec_.d));
    }

    Index end(Index i) const {
        return spec_.ends.empty() ? spec_.n : spec_.ends[static_cast<std::size_t>(i)];
    }
    double weight(Index j) const {
        return spec_.weights.empty() ? 1.0 / static_cast<double>(spec_.n)
                                     : spec_.weights[static_cast<std::size_t>(j)];
    }

    // The factors of unnormalised kinds. Their sums get the factor 1/n (with weights the masses are in the sums
    // already), and are divided by the visible mass if that is to count as 1.
    void visible_mass() {
        factors_.assign(static_cast<std::size_t>(spec_.n), 1.0);
        double mass = 0;
        Index seen = 0;
        for (Index i = 0; i < spec_.n; ++i) {
            for (; seen < end(i); ++seen) mass += weight(seen);
            const double each = spec_.weights.empty() ? 1.0 / static_cast<double>(spec_.n) : 1.0;
            factors_[static_cast<std::size_t>(i)] = spec_.renormalise ? each / mass : each;
        }
    }

    // V M A x, with M the second moment or the covariance of the visible particles; O(n d^2) by running moments.
    void linear(const T* x, T* out) {
        const Index n = spec_.n, d = spec_.d;
        const bool centred = spec_.kind == FieldKind::linear_centred;
        std::vector<Matrix> A;
        A.reserve(heads_.size());
        for (const auto& head : heads_) A.emplace_back(head.K.transpose() * head.Q);
        // Moments about the first particle, so that nothing cancels when the cloud is far from 0.
        VectorXd origin(d), first = VectorXd::Zero(d), point(d), mean(d);
        for (Index a = 0; a < d; ++a) origin[a] = static_cast<double>(x[a]);
        Matrix second = Matrix::Zero(d, d), moment(d, d), total = Matrix::Zero(d, d);
        VectorXd constant = VectorXd::Zero(d);
        double mass = 0;
        Index seen = 0;
        for (Index i = 0; i < n; ++i) {
            if (seen < end(i)) {
                for (; seen < end(i); ++seen) {
                    const double w = weight(seen);
                    for (Index a = 0; a < d; ++a) point[a] = static_cast<double>(x[seen * d + a]) - origin[a];
                    mass += w;
                    first += w * point;
                    second.noalias() += w * point * point.transpose();
                }
                mean = origin + first / mass;
                moment = second / mass - first * first.transpose() / (mass * mass);
                if (!centred) {
                    moment += mean * mean.transpose();
                    if (!spec_.renormalise) moment *= mass;
                }
                total.setZero();
                constant.setZero();
                for (std::size_t h = 0; h < heads_.size(); ++h) {
                    total += heads_[h].V * moment * A[h];
                    if (centred) constant += heads_[h].V * mean / spec_.epsilon;
                }
            }
            for (Index a = 0; a < d; ++a) point[a] = static_cast<double>(x[i * d + a]);
            const VectorXd v = constant + total * point;
            for (Index a = 0; a < d; ++a) out[i * d + a] = static_cast<T>(v[a]);
        }
    }

    AttentionSpec spec_;
    AttentionSums<T> sums_;
    SinkhornVelocity<T> sinkhorn_;
    std::vector<Head> heads_;
    std::vector<double> means_;  // n x d, of Sinkhorn attention: sum_j w_ij x_j
    RowMap::Scratch scratch_;
    std::vector<double> factors_;  // the factors of unnormalised kinds, see visible_mass()
    std::size_t layer_ = 0;
    double asked_ = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace

template <class T>
std::unique_ptr<Velocity<T>> attention_velocity(AttentionSpec spec) {
    return std::make_unique<AttentionVelocity<T>>(std::move(spec));
}

template <class T>
void project_tangent(Index n, Index d, const T* x, T* v) {
    for (Index i = 0; i < n; ++i) {
        double xx = 0, xv = 0;
        for (Index a = 0; a < d; ++a) {
            xx += static_cast<double>(x[i * d + a]) * static_cast<double>(x[i * d + a]);
            xv += static_cast<double>(x[i * d + a]) * static_cast<double>(v[i * d + a]);
        }
        if (xx == 0) continue;
        for (Index a = 0; a < d; ++a) v[i * d + a] -= static_cast<T>(xv / xx) * x[i * d + a];
    }
}

template std::unique_ptr<Velocity<float>> attention_velocity(AttentionSpec);
template std::unique_ptr<Velocity<double>> attention_velocity(AttentionSpec);
template void project_tangent(Index, Index, const float*, float*);
template void project_tangent(Index, Index, const double*, double*);

}  // namespace qk
