#include "fields/large_rates.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "fields/definite_solve.hpp"

namespace qk {
namespace {

// T T^T is wrong by rounding times its norm. If that is more than this, singular values are computed from T itself.
constexpr double squares_are_exact = 1e-11;

// Matrices are d x d, stored by rows. A library stores matrices by columns, so it sees the transposes of ours.
template <class T>
class LargeRates final : public RatesOfLaws<T> {
public:
    using P = Pack<T>;

    LargeRates(const GaussianProblem<T>& problem, const Run& run)
        : problem_(problem), run_(run), blas_(blas<T>()), d_(static_cast<int>(problem.d)), at_{d_, true} {
        matrix_.reserve(at_.cov() * width);
        for (Buffer<T>* const b : {&one_, &two_, &three_, &root_, &vectors_}) b->reserve(at_.square());
        for (Buffer<T>* const b : {&u_, &w_, &values_}) b->reserve(d_);
        pivots_.resize(static_cast<std::size_t>(d_));
        if (problem.field == GaussianField::sinkhorn) {
            reserve_work();
            return;
        }
        // The factors on the right of products do not change, so they are packed once.
        const bool l2 = problem.field == GaussianField::l2;
        scores_.resize(static_cast<std::size_t>(problem.heads));
        if (l2) queries_.resize(scores_.size());
        for (std::size_t h = 0; h < scores_.size(); ++h) {
            const Index at = static_cast<Index>(h) * at_.square();
            scores_[h].set(problem.score.data + at, d_, l2);
            if (l2) queries_[h].set(problem.query.data + at, d_);
        }
    }

    void operator()(const P* state, P* rate) override {
        const T* mean = numbers(state);
        const T* cov = numbers(state + at_.mean());
        T* b = numbers(rate);
        T* m = matrix_.data();
        std::fill(b, b + d_, T(0));
        std::fill(m, m + at_.square(), T(0));
        cov_.set(cov, d_);
        if (problem_.field == GaussianField::sinkhorn) take_root(cov);
        for (Index h = 0; h < problem_.heads; ++h) {
            const Index at = h * at_.square();
            const T *score = problem_.score.data + at, *value = problem_.value.data + at;
            switch (problem_.field) {
                case GaussianField::weighted:
                    weighted(scores_[static_cast<std::size_t>(h)], value, mean, cov, b);
                    break;
                case GaussianField::l2:
                    l2(h, score, value, mean, b);
                    break;
                case GaussianField::sinkhorn:
                    sinkhorn(score, value, mean, b);
                    break;
            }
        }
        times(m, mean, T(1), T(1), b);
        cov_.multiply(m, one_.data(), false, run_);
        symmetric_sum(one_.data(), numbers(rate + at_.mean()));
    }

    const P* matrix() const override { return reinterpret_cast<const P*>(matrix_.data()); }

    void multiply(const P* a, const P* b, P* out) override {
        right_.set(numbers(b), d_);
        right_.multiply(numbers(a), numbers(out), false, run_);
    }

    void congruence(const P* a, const P* cov, P* scratch, P* out) override {
        multiply(a, cov, scratch);
        right_.set(numbers(a), d_, true);
        right_.multiply(numbers(scratch), numbers(out), false, run_);
        T* x = numbers(out);
        for (int i = 0; i < d_; ++i)
            for (int j = 0; j < i; ++j) x[j * d_ + i] = x[i * d_ + j];
    }

private:
    static constexpr int width = SimdTraits<T>::width;

    static const T* numbers(const P* p) { return reinterpret_cast<const T*>(p); }
    static T* numbers(P* p) { return reinterpret_cast<T*>(p); }

    // out := alpha op(a) op(b) + beta out, in the library's storage order
    void product(char op_a, char op_b, const T* a, const T* b, T* out, T alpha = T(1), T beta = T(0)) const {
        int n = d_;
        blas_.gemm(&op_a, &op_b, &n, &n, &n, &alpha, const_cast<T*>(a), &n, const_cast<T*>(b), &n, &beta, out,
                   &n);
    }
    // y := alpha X x + beta y
    void times(const T* matrix, const T* x, T alpha, T beta, T* y) const {
        for (int i = 0; i < d_; ++i) {
            const T* row = matrix + Index{i} * d_;
            P sum[2] = {};
            int k = 0;
            for (; k + 2 * width <= d_; k += 2 * width) {
                sum[0] = fma(load(row + k), load(x + k), sum[0]);
                sum[1] = fma(load(row + k + width), load(x + k + width), sum[1]);
            }
            T total = reduce_add<T>(sum[0] + sum[1]);
            for (; k < d_; ++k) total += row[k] * x[k];
            y[i] = beta == T(0) ? alpha * total : alpha * total + beta * y[i];  // y may be uninitialised
        }
    }

    // out := x + x^T, by tiles that stay in cache
    void symmetric_sum(const T* x, T* out) const {
        constexpr int tile = 16;
        for (int i0 = 0; i0 < d_; i0 += tile)
            for (int j0 = 0; j0 <= i0; j0 += tile)
                for (int i = i0; i < std::min(d_, i0 + tile); ++i)
                    for (int j = j0; j < std::min(i + 1, j0 + tile); ++j)
                        out[i * d_ + j] = out[j * d_ + i] = x[i * d_ + j] + x[j * d_ + i];
    }

    // M += V G A, b += gain V mean
    void weighted(const RightFactor<T>& A, const T* V, const T* mean, const T* cov, T* b) {
        const RightFactor<T>* G = &cov_;
        if (problem_.raw_moment) {
            for (int i = 0; i < d_; ++i)
                for (int j = 0; j < d_; ++j) two_[i * d_ + j] = cov[i * d_ + j] + mean[i] * mean[j];
            right_.set(two_.data(), d_);
            G = &right_;
        }
        G->multiply(V, one_.data(), false, run_);
        A.multiply(one_.data(), matrix_.data(), true, run_);
        times(V, mean, problem_.gain, T(1), b);
    }

    // X = (I + 2 K cov K^T)^-1 K cov: M += 2 V X^T Q, b += V (mean - 2 X^T K mean). cov is not inverted.
    void l2(Index h, const T* K, const T* V, const T* mean, T* b) {
        const auto head = static_cast<std::size_t>(h);
        cov_.multiply(K, one_.data(), false, run_);
        scores_[head].multiply(one_.data(), two_.data(), false, run_);
        for (Index e = 0; e < at_.square(); ++e) two_[e] *= T(2);
        for (int i = 0; i < d_; ++i) two_[i * (d_ + 1)] += T(1);
        if (!solve_(two_.data(), one_.data(), d_)) return fail();
        for (Index e = 0; e < at_.square(); ++e) one_[e] *= T(2);
        times(K, mean, T(1), T(0), u_.data());
        std::copy_n(mean, d_, w_.data());
        for (int i = 0; i < d_; ++i)
            for (int j = 0; j < d_; ++j) w_[j] -= u_[i] * one_[i * d_ + j];
        times(V, w_.data(), T(1), T(1), b);
        right_.set(one_.data(), d_, true);
        right_.multiply(V, three_.data(), false, run_);
        queries_[head].multiply(three_.data(), matrix_.data(), true, run_);
    }

    // root := L by columns with L L^T = cov, by Cholesky's method with pivots, because cov may be singular.
    void take_root(const T* cov) {
        std::copy_n(cov, at_.square(), one_.data());
        char lower = 'L';
        int n = d_, rank = 0, info = 0;
        T default_bound = T(-1);
        blas_.pstrf(&lower, &n, one_.data(), &n, pivots_.data(), &rank, &default_bound, work_.data(), &info);
        std::fill(root_.data(), root_.data() + at_.square(), T(0));
        for (int c = 0; c < rank; ++c)
            for (int r = c; r < d_; ++r)
                root_[c * d_ + pivots_[static_cast<std::size_t>(r)] - 1] = one_[c * d_ + r];
    }

    // As GaussianRates::sinkhorn: L^T A L / epsilon = U diag(t) W^T,
    // N = L U diag(2 / (1 + sqrt(1 + 4 t^2))) U^T L^T A / epsilon.
    void sinkhorn(const T* A, const T* V, const T* mean, T* b) {
        const T inverse = T(1) / problem_.epsilon;
        product('T', 'N', A, root_.data(), one_.data(), inverse);
        product('T', 'N', root_.data(), one_.data(), two_.data());
        decompose();
        product('N', 'N', root_.data(), vectors_.data(), one_.data());  // L U by columns
        for (int c = 0; c < d_; ++c) {
            const T ratio = T(2) / (T(1) + std::sqrt(T(1) + T(4) * values_[c]));
            for (int r = 0; r < d_; ++r) two_[c * d_ + r] = inverse * inverse * ratio * one_[c * d_ + r];
        }
        product('N', 'T', one_.data(), two_.data(), three_.data());  // Cov(y | x) / epsilon^2
        product('N', 'N', three_.data(), V, one_.data());            // V Cov, stored by rows
        product('N', 'N', A, one_.data(), two_.data());              // V Cov A, stored by rows
        times(V, mean, inverse, T(1), b);
        times(two_.data(), mean, T(-1), T(1), b);
        for (Index e = 0; e < at_.square(); ++e) matrix_[e] += two_[e];
    }

    // vectors := U and values := t^2 of the matrix in two_.
    void decompose() {
        char lower = 'L', none = 'N', vectors = 'V';
        int n = d_, info = 0;
        int work = static_cast<int>(work_size_), integers = static_cast<int>(integers_.size());
        T one = T(1), zero = T(0), norm = T(0);
        for (Index e = 0; e < at_.square(); ++e) norm += two_[e] * two_[e];
        const auto rounding = static_cast<double>(std::numeric_limits<T>::epsilon());
        if (static_cast<double>(norm) * rounding < std::max(squares_are_exact, 10 * rounding)) {
            blas_.syrk(&lower, &none, &n, &n, &one, two_.data(), &n, &zero, vectors_.data(), &n);
            blas_.syevd(&vectors, &lower, &n, vectors_.data(), &n, values_.data(), work_.data(), &work,
                        integers_.data(), &integers, &info);
            for (int c = 0; c < d_; ++c) values_[c] = std::max(values_[c], T(0));
        } else {
            char all = 'A';
            blas_.gesdd(&all, &n, &n, two_.data(), &n, values_.data(), vectors_.data(), &n, three_.data(), &n,
                        work_.data(), &work, integers_.data(), &info);
            for (int c = 0; c < d_; ++c) values_[c] *= values_[c];
        }
        if (info != 0) fail();
    }

    // Marks the step as failed, by NaN: the state is so far off that it is no law, so the step is too long.
    void fail() { std::fill_n(matrix_.data(), at_.square(), std::numeric_limits<T>::quiet_NaN()); }

    void reserve_work() {
        const Index n = d_;
        work_size_ = std::max(1 + 6 * n + 2 * n * n, 7 * n + 4 * n * n) + 64 * n;
        work_.reserve(work_size_);
        integers_.resize(static_cast<std::size_t>(8 * n + 3));
    }

    const GaussianProblem<T> problem_;
    const Run run_;
    const Blas<T>& blas_;
    const int d_;
    const LawLayout<T> at_;
    Buffer<T> matrix_, one_, two_, three_, root_, vectors_, u_, w_, values_, work_;
    RightFactor<T> cov_, right_;
    DefiniteSolve<T> solve_;
    std::vector<RightFactor<T>> scores_, queries_;  // of each head: A, or K^T and Q
    std::vector<int> pivots_, integers_;
    Index work_size_ = 0;
};

}  // namespace

template <class T>
Blas<T>& blas() {
    static Blas<T> here;
    return here;
}

template <class T>
bool has_large_rates(GaussianField field) {
    return field != GaussianField::sinkhorn || blas<T>().ready();
}

template <class T>
std::unique_ptr<RatesOfLaws<T>> large_rates(const GaussianProblem<T>& problem, const Run& run) {
    return std::make_unique<LargeRates<T>>(problem, run);
}

#define QK_INSTANTIATE(T)                                  \
    template Blas<T>& blas();                              \
    template bool has_large_rates<T>(GaussianField field); \
    template std::unique_ptr<RatesOfLaws<T>> large_rates(const GaussianProblem<T>&, const Run&);
QK_INSTANTIATE(float)
QK_INSTANTIATE(double)
#undef QK_INSTANTIATE

}  // namespace qk
