// The weighted means sum_j w(x_i, x_j) x_j of a cloud of particles, for kinds of attention whose weight is a function
// of the score alone. This is a problem like others, with the particles as points and as values. It is packed into
// memory that is kept from step to step, so that a step allocates nothing.
#pragma once

#include <vector>

#include "engine/row_map.hpp"
#include "engine/walk.hpp"
#include "qk/velocity.hpp"

namespace qk {

struct Head {
    using Matrix = RowMap::Matrix;
    Matrix Q, K, V;
    RowMap rows;    // from a particle to the features of its row of scores
    RowMap values;  // V
};

// The memory of one thread. Where the scores of a row need a shift, `tops` holds the largest scores so far.
template <class T>
struct ParticleLocal : WalkLocal<T> {
    std::vector<double> masses, moments, tops;
    std::vector<char> shifted;
    Buffer<T> products;
    RowMap::Scratch map;
};

template <class T>
class AttentionSums {
public:
    explicit AttentionSums(const AttentionSpec& spec);

    // The map from particles to row features, which follows from Q and K.
    RowMap row_map(const Head& head) const;
    // out_i += V m_i with m_i = sum_j w_ij x_j / sum_j w_ij, or factors[i] * sum_j w_ij x_j when factors are given.
    VelocityStatus head(const Head& head, const T* x, const double* factors, T* out, const Run& run);

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
    void set_centre(const Head& head, const T* x);
    void set_columns(const Head& head, const T* x);
    // Whether the scores of a row might leave the range of the type, so that they need a shift.
    bool needs_shift(const T* features) const;
    // Turns the weighted sum of a row into the weighted mean, in place.
    void finish(Index i, double shift, double mass, double* moment) const;

    template <class Reducer>
    VelocityStatus go(Reducer&& reducer, const Run& run);
    template <class Weigh>
    VelocityStatus of_kind(const Run& run);
    template <int D, class Weigh>
    VelocityStatus of_dim(const Run& run);

    const AttentionSpec& spec_;
    const bool few_;       // few dimensions, for which cloud_kernels.hpp is used
    const bool own_keys_;  // keys are K x and not x
    const Index dim_;      // the dimension of the features
    Eigen::VectorXd start_,
        centre_;  // row features are rows(x) + start; points and keys are relative to centre
    double key_radius_ = 0, bias_bound_ = 0;
    std::vector<double>
        log_mass_;  // log2 of the weights relative to the largest of them; empty without weights
    Buffer<T> keys_, values_, bias_;
    Problem<T> problem_;
    Walked<T> walked_;
    std::vector<Piece> pieces_;
    std::vector<ParticleLocal<T>> locals_;
    // The arguments of the present call.
    const Head* head_ = nullptr;
    const T* x_ = nullptr;
    const double* factors_ = nullptr;
    T* out_ = nullptr;
};

}  // namespace qk
