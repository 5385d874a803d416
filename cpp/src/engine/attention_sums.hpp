// The weighted means sum_j w(x_i, x_j) x_j of a cloud of particles, for the kinds whose weight is a function
// of the score alone: a problem like others, with the particles as points and as values. It is packed into memory that is
// kept: nothing is allocated from one step to the next.
#pragma once

#include <vector>

#include <Eigen/Core>

#include "engine/walk.hpp"
#include "qk/velocity.hpp"

namespace qk {

struct Head {
    using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    Matrix Q, K, V;
};

// What a thread keeps. The scores of a row may be shifted: `tops` are the largest so far, where they have to be.
template <class T>
struct ParticleLocal : WalkLocal<T> {
    std::vector<double> masses, moments, tops, row;
    std::vector<char> shifted;
    Buffer<T> products;
};

template <class T>
class AttentionSums {
public:
    explicit AttentionSums(const AttentionSpec& spec);

    // means_i = sum_j w_ij x_j / sum_j w_ij, or factors[i] * sum_j w_ij x_j when factors are given.
    VelocityStatus head(const Head& head, const T* x, const double* factors, std::vector<double>& means,
                        const Run& run);

private:
    template <class, class>
    friend class ParticleReducer;
    template <class, int, class, bool, bool>
    friend class CloudReducer;
    template <class, class>
    friend class BlockReducer;

    bool exponential() const;
    bool normalised() const;
    Index end(Index i) const {
        return spec_.ends.empty() ? spec_.n : spec_.ends[static_cast<std::size_t>(i)];
    }
    void map_rows(const Head& head, const T* x);
    void set_columns(const Head& head, const T* x);
    void set_rows(const T* x, const Run& run);
    // Whether the scores of a row might leave the range of the type.
    bool needs_shift(const T* features) const;
    void finish(Index i, double shift, double mass, const double* moment, const double* factors,
                double* means) const;

    template <class Reducer>
    VelocityStatus go(Reducer&& reducer, const Run& run);
    template <class Weigh>
    VelocityStatus of_kind(const double* factors, double* means, const Run& run);
    template <int D, class Weigh>
    VelocityStatus of_dim(const double* factors, double* means, const Run& run);

    const AttentionSpec& spec_;
    const bool few_;                   // few dimensions: cloud_kernels.hpp
    const bool own_keys_;              // keys K x and not x
    const Index dim_;                  // of the features
    Head::Matrix row_map_;             // of a row's features, transposed
    Eigen::VectorXd offset_, centre_;  // row features: row_map x - offset; points and keys: x - centre
    double key_radius_ = 0, bias_bound_ = 0;
    std::vector<double> log_mass_;  // log2 of the weights over the largest of them; empty without weights
    Buffer<T> features_, keys_, values_, bias_;
    Problem<T> problem_;
    Walked<T> walked_;
    std::vector<Piece> pieces_;
    std::vector<ParticleLocal<T>> locals_;
};

}  // namespace qk
