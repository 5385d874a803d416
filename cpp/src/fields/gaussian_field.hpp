// Right-hand sides of the Gaussian flows on packs of trajectories: state = (mean, cov), d + d^2 packs.
#pragma once

#include <algorithm>
#include <memory>

#include "fields/pack_matrices.hpp"
#include "qk/gaussian.hpp"

namespace qk {

// Where mean and covariance are, in packs. For several laws every number is a pack, with a lane for each law. For a
// single law the numbers follow one another; mean and covariance each start at a new pack, and zeros fill the last
// pack.
template <class T>
struct LawLayout {
    static constexpr int width = SimdTraits<T>::width;
    int d = 0;
    bool single = false;

    Index square() const { return Index{d} * d; }
    Index mean() const { return single ? (d + width - 1) / width : d; }
    Index cov() const { return single ? (square() + width - 1) / width : square(); }
    Index length() const { return mean() + cov(); }
};

// The functions that a stepper calls. The stepper is compiled once for all dimensions, the derived classes for each.
template <class T>
class RatesOfLaws {
public:
    using P = Pack<T>;

    RatesOfLaws() = default;
    RatesOfLaws(const RatesOfLaws&) = delete;
    RatesOfLaws& operator=(const RatesOfLaws&) = delete;
    virtual ~RatesOfLaws() = default;

    // rate := (mean', cov') at state, with cov' symmetric to the last bit. matrix() returns M afterwards.
    virtual void operator()(const P* state, P* rate) = 0;
    virtual const P* matrix() const = 0;
    // out := a b
    virtual void multiply(const P* a, const P* b, P* out) = 0;
    // out := a cov a^T, symmetric to the last bit; `product` is scratch memory
    virtual void congruence(const P* a, const P* cov, P* product, P* out) = 0;
};

template <class T, int D>
class GaussianRates final : public RatesOfLaws<T> {
public:
    using P = Pack<T>;

    // The parameters of the trajectories first .. first + lanes - 1; beyond n the last one is repeated.
    GaussianRates(const GaussianProblem<T>& problem, Index first)
        : problem_(problem), d_(static_cast<int>(problem.d)) {
        const Index square = Index{n()} * n(), per_stack = problem.heads * square;
        const bool l2 = problem.field == GaussianField::l2;
        memory_.reserve((per_stack * (l2 ? 3 : 2) + 4 * square + 2 * n()) * lanes);
        P* at = pointer();
        score_ = gather(problem.score, first, per_stack, at);
        value_ = gather(problem.value, first, per_stack, at += per_stack);
        if (l2) query_ = gather(problem.query, first, per_stack, at += per_stack);
        at += per_stack;
        for (P** const matrix : {&one_, &two_, &three_, &matrix_}) {
            *matrix = at;
            at += n() * n();
        }
        for (P** const vector : {&u_, &w_}) {
            *vector = at;
            at += n();
        }
    }

    void operator()(const P* state, P* rate) override {
        const P *mean = state, *cov = state + n();
        std::fill(rate, rate + n(), P{});
        std::fill(matrix_, matrix_ + n() * n(), P{});
        for (Index h = 0; h < problem_.heads; ++h) {
            const Index at = h * n() * n();
            switch (problem_.field) {
                case GaussianField::weighted:
                    weighted(score_ + at, value_ + at, mean, cov, rate);
                    break;
                case GaussianField::l2:
                    l2(score_ + at, query_ + at, value_ + at, mean, cov, rate);
                    break;
                case GaussianField::sinkhorn:
                    sinkhorn(score_ + at, value_ + at, mean, cov, rate);
                    break;
            }
        }
        packs::multiply_vector<T, D, false, true>(d_, matrix_, mean, rate);
        packs::multiply<T, D>(d_, matrix_, cov, one_);
        P* out = rate + n();
        for (int i = 0; i < n(); ++i)
            for (int j = 0; j < n(); ++j) out[i * n() + j] = one_[i * n() + j] + one_[j * n() + i];
    }

    // M of the last call
    const P* matrix() const override { return matrix_; }

    void multiply(const P* a, const P* b, P* out) override { packs::multiply<T, D>(d_, a, b, out); }

    void congruence(const P* a, const P* cov, P* product, P* out) override {
        multiply(a, cov, product);
        for (int i = 0; i < n(); ++i)
            for (int j = 0; j <= i; ++j) {
                P sum{};
                for (int k = 0; k < n(); ++k) sum = fma(product[i * n() + k], a[j * n() + k], sum);
                out[i * n() + j] = out[j * n() + i] = sum;
            }
    }

private:
    static constexpr int lanes = SimdTraits<T>::width;

    int n() const { return packs::size_of<D>(d_); }
    P* pointer() { return reinterpret_cast<P*>(memory_.data()); }

    const P* gather(const MatrixStack<T>& stack, Index first, Index size, P* to) const {
        for (Index e = 0; e < size; ++e) {
            T lane[lanes];
            for (int l = 0; l < lanes; ++l) {
                const Index which = stack.shared ? 0 : std::min(first + l, problem_.n - 1);
                lane[l] = stack.data[which * size + e];
            }
            to[e] = load(lane);
        }
        return to;
    }

    // M += V G A, b += gain V mean
    void weighted(const P* A, const P* V, const P* mean, const P* cov, P* b) {
        const P* G = cov;
        if (problem_.raw_moment) {
            for (int i = 0; i < n(); ++i)
                for (int j = 0; j < n(); ++j) one_[i * n() + j] = fma(mean[i], mean[j], cov[i * n() + j]);
            G = one_;
        }
        packs::multiply<T, D>(d_, V, G, two_);
        packs::multiply<T, D, false, true>(d_, two_, A, matrix_);
        const P gain = broadcast(problem_.gain);
        for (int i = 0; i < n(); ++i) u_[i] = gain * mean[i];
        packs::multiply_vector<T, D, false, true>(d_, V, u_, b);
    }

    // B = (K cov)^T (I + 2 K cov K^T)^-1: M += 2 V B Q, b += V (mean - 2 B K mean). cov is not inverted.
    void l2(const P* K, const P* Q, const P* V, const P* mean, const P* cov, P* b) {
        packs::multiply<T, D>(d_, K, cov, one_);
        const P two = broadcast(T(2));
        for (int i = 0; i < n(); ++i)
            for (int j = 0; j <= i; ++j) {
                P sum{};
                for (int k = 0; k < n(); ++k) sum = fma(one_[i * n() + k], K[j * n() + k], sum);
                two_[i * n() + j] = i == j ? fma(two, sum, broadcast(T(1))) : two * sum;
            }
        packs::factor_ldl<T, D>(d_, two_);
        for (int e = 0; e < n() * n(); ++e) one_[e] = two * one_[e];
        packs::multiply_vector<T, D>(d_, K, mean, u_);
        packs::solve_ldl<T, D, 1>(d_, two_, u_);
        packs::multiply_vector<T, D, true>(d_, one_, u_, w_);
        for (int i = 0; i < n(); ++i) w_[i] = mean[i] - w_[i];
        packs::multiply_vector<T, D, false, true>(d_, V, w_, b);
        packs::solve_ldl<T, D, D>(d_, two_, one_);  // the transpose of 2 B
        for (int i = 0; i < n(); ++i)               // V (2 B), the second factor transposed
            for (int j = 0; j < n(); ++j) {
                P sum{};
                for (int k = 0; k < n(); ++k) sum = fma(V[i * n() + k], one_[j * n() + k], sum);
                three_[i * n() + j] = sum;
            }
        packs::multiply<T, D, false, true>(d_, three_, Q, matrix_);
    }

    // cov = L L^T, L^T A L / epsilon = U diag(t) W^T: the mean of y given x is mean + N (x - mean) with
    // N = L U diag(rho / t) U^T L^T A / epsilon, rho / t = 2 / (1 + sqrt(1 + 4 t^2)); cov and A may be singular.
    // M += V N / epsilon, b += V (mean - N mean) / epsilon.
    void sinkhorn(const P* A, const P* V, const P* mean, const P* cov, P* b) {
        P *L = one_, *rows = two_, *directions = three_;
        packs::factor_cholesky<T, D>(d_, cov, L);
        const P inverse = broadcast(T(1) / problem_.epsilon);
        packs::multiply<T, D>(d_, A, L, directions);
        for (int e = 0; e < n() * n(); ++e) directions[e] = inverse * directions[e];
        packs::multiply<T, D, true>(d_, L, directions, rows);
        for (int i = 0; i < n(); ++i)
            for (int j = 0; j < n(); ++j) directions[j * n() + i] = L[i * n() + j];
        packs::orthogonalize_rows<T, D>(d_, rows, directions, u_);  // `directions` becomes (L U)^T
        const P unit = broadcast(T(1));
        for (int c = 0; c < n(); ++c) {
            const P ratio = broadcast(T(2)) / (unit + packs::root(fma(broadcast(T(4)), u_[c], unit)));
            for (int k = 0; k < n(); ++k)
                rows[c * n() + k] = inverse * inverse * ratio * directions[c * n() + k];
        }
        packs::multiply<T, D, true>(d_, directions, rows, one_);  // Cov(y | x) / epsilon^2
        packs::multiply<T, D>(d_, V, one_, two_);
        packs::multiply<T, D>(d_, two_, A, one_);
        for (int i = 0; i < n(); ++i) w_[i] = inverse * mean[i];
        packs::multiply_vector<T, D, false, true>(d_, V, w_, b);
        packs::multiply_vector<T, D>(d_, one_, mean, w_);
        for (int i = 0; i < n(); ++i) b[i] -= w_[i];
        for (int e = 0; e < n() * n(); ++e) matrix_[e] += one_[e];
    }

    const GaussianProblem<T> problem_;
    int d_;
    Buffer<T> memory_;
    const P *score_ = nullptr, *value_ = nullptr, *query_ = nullptr;
    P *one_ = nullptr, *two_ = nullptr, *three_ = nullptr, *matrix_ = nullptr;
    P *u_ = nullptr, *w_ = nullptr;
};

// The rates of one law by the rates of packs, in which all lanes hold that law.
template <class T>
class RatesOfOneLaw final : public RatesOfLaws<T> {
public:
    using P = Pack<T>;

    RatesOfOneLaw(int d, std::unique_ptr<RatesOfLaws<T>> packed)
        : at_{d, true}, packed_(std::move(packed)), memory_(4 * at_.square() * width + 2 * d * width) {
        auto* p = reinterpret_cast<P*>(memory_.data());
        one_ = p;
        two_ = one_ + d + at_.square();
        three_ = two_ + d + at_.square();
        four_ = three_ + at_.square();
        matrix_.reserve(at_.cov() * width);
    }

    void operator()(const P* state, P* rate) override {
        spread(state, at_.d, one_);
        spread(state + at_.mean(), at_.square(), one_ + at_.d);
        (*packed_)(one_, two_);
        collect(two_, at_.d, rate);
        collect(two_ + at_.d, at_.square(), rate + at_.mean());
        collect(packed_->matrix(), at_.square(), reinterpret_cast<P*>(matrix_.data()));
    }
    const P* matrix() const override { return reinterpret_cast<const P*>(matrix_.data()); }
    void multiply(const P* a, const P* b, P* out) override {
        spread(a, at_.square(), one_);
        spread(b, at_.square(), two_);
        packed_->multiply(one_, two_, three_);
        collect(three_, at_.square(), out);
    }
    void congruence(const P* a, const P* cov, P*, P* out) override {
        spread(a, at_.square(), one_);
        spread(cov, at_.square(), two_);
        packed_->congruence(one_, two_, three_, four_);
        collect(four_, at_.square(), out);
    }

private:
    static constexpr int width = SimdTraits<T>::width;

    static void spread(const P* from, Index n, P* to) {
        const auto* numbers = reinterpret_cast<const T*>(from);
        for (Index e = 0; e < n; ++e) to[e] = broadcast(numbers[e]);
    }
    static void collect(const P* from, Index n, P* to) {
        auto* numbers = reinterpret_cast<T*>(to);
        for (Index e = 0; e < n; ++e) numbers[e] = from[e][0];
    }

    LawLayout<T> at_;
    std::unique_ptr<RatesOfLaws<T>> packed_;
    Buffer<T> memory_, matrix_;
    P *one_ = nullptr, *two_ = nullptr, *three_ = nullptr, *four_ = nullptr;
};

}  // namespace qk
