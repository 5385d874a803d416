// The weighted means sum_j w(x_i, x_j) x_j of a cloud of particles, for the kinds whose weight is a function
// of the score alone. Works on buffers that it keeps: nothing is allocated from one step to the next.
#pragma once

#include <vector>

#include <Eigen/Core>

#include "engine/cloud_kernels.hpp"
#include "engine/tile_kernels.hpp"
#include "qk/velocity.hpp"

namespace qk {

struct Head {
    using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    Matrix Q, K, V;
};

template <class T>
class AttentionSums {
public:
    explicit AttentionSums(const AttentionSpec& spec);

    // means_i = sum_j w_ij x_j / sum_j w_ij, or factors[i] * sum_j w_ij x_j when factors are given.
    VelocityStatus head(const Head& head, const T* x, const double* factors, std::vector<double>& means,
                        const Run& run);

private:
    struct Scratch {
        Buffer<T> features, row_bias, scores, products;
        std::vector<double> sums, moments, shifts, row;
    };

    bool exponential() const;
    Index end(Index i) const {
        return spec_.ends.empty() ? spec_.n : spec_.ends[static_cast<std::size_t>(i)];
    }
    void prepare(const Head& head, const T* x, const Run& run);
    void pack_cloud(const T* x);
    void pack_panels(const Head& head, const T* x);
    void row_features(const T* x, Index i, double* sums, T* out) const;
    // The shift that brings the scores of a row into the range of the type; NaN: only their maximum will do.
    double safe_shift(const T* features) const;
    void finish(Index i, double shift, double mass, const double* moment, const double* factors,
                double* means) const;

    template <int D, class Weigh, bool Bias>
    void few_rows(Index first, Index last, const T* x, const double* factors, double* means, const Run& run,
                  int worker) const;
    template <class Weigh>
    void few_rows_of_dim(Index first, Index last, const T* x, const double* factors, double* means,
                         const Run& run, int worker) const;
    template <class Weigh>
    void many_rows(Index first, Index last, const T* x, const double* factors, double* means,
                   Scratch& scratch, const Run& run, int worker) const;
    template <class Weigh>
    VelocityStatus all_rows(const T* x, const double* factors, double* means, const Run& run);

    const AttentionSpec& spec_;
    const bool few_;  // few dimensions: cloud_kernels.hpp
    const Index n_padded_;
    const Index n_packs_;  // of a row of products
    Index dim_ = 0;        // of the features
    bool own_keys_ = false;
    Head::Matrix row_map_;             // of a row's features, transposed
    Eigen::VectorXd offset_, centre_;  // row features: row_map x - offset; points and keys: x - centre
    double key_radius_ = 0, bias_bound_ = 0;
    Buffer<T> points_;  // few: [coordinate][n_padded]; many: panels of the keys
    Buffer<T> bias_, mass_, values_;
    std::vector<Scratch> scratch_;
};

}  // namespace qk
