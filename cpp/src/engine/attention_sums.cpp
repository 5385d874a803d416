#include "engine/attention_sums.hpp"

#include <cmath>

#include "engine/cloud_kernels.hpp"

namespace qk {
namespace {

// Weights of the first `seen` of `padded` scores, less the shift, in place; zeros beyond. Returns their sum.
template <class T, class Weigh, bool Shifted>
double weigh_seen(T* s, Index seen, Index padded, T shift) {
    constexpr Index width = SimdTraits<T>::width;
    constexpr int packs = 4;
    const Pack<T> less = broadcast(shift);
    Pack<T> sum[2] = {};
    Index j = 0;
    for (; j + packs * width <= seen; j += packs * width) {
        Pack<T> w[packs];
#pragma GCC unroll 4
        for (int h = 0; h < packs; ++h) {
            w[h] = load(s + j + h * width);
            if constexpr (Shifted) w[h] -= less;
        }
        Weigh::template of<T, packs>(w);
#pragma GCC unroll 4
        for (int h = 0; h < packs; ++h) {
            sum[h % 2] += w[h];
            store(s + j + h * width, w[h]);
        }
    }
    for (; j < padded; j += width) {
        Pack<T> w[1] = {load(s + j)};
        if constexpr (Shifted) w[0] -= less;
        Weigh::template of<T, 1>(w);
        w[0] = select(detail::lanes_below<T>(j, seen), w[0], Pack<T>{});
        sum[0] += w[0];
        store(s + j, w[0]);
    }
    return static_cast<double>(reduce_add<T>(sum[0] + sum[1]));
}

}  // namespace

// What reducers over clouds and over blocks of particles have in common.
template <class T, class Derived>
class ParticleReducer {
public:
    static constexpr bool flushes = true;
    using Local = ParticleLocal<T>;

    Local& local(const Piece&, int worker) { return sums_.locals_[static_cast<std::size_t>(worker)]; }

    void start_block(Local& local, const Block<T>& at) const {
        const auto rows = static_cast<std::size_t>(at.n_rows);
        local.masses.assign(rows, 0.0);
        local.moments.assign(rows * static_cast<std::size_t>(d_), 0.0);
        local.tops.assign(rows, -infinity<double>());
        local.shifted.resize(rows);
        for (std::size_t r = 0; r < rows; ++r)
            local.shifted[r] =
                sums_.needs_shift(local.block.features.data() + static_cast<Index>(r) * sums_.dim_);
    }

    void end_block(Local& local, const Block<T>& at, const Run&, int) const {
        for (Index r = 0; r < at.n_rows; ++r) {
            const auto row = static_cast<std::size_t>(r);
            sums_.finish(at.first_row + r, local.shifted[row] != 0 ? local.tops[row] : 0.0, local.masses[row],
                         &local.moments[static_cast<std::size_t>(r * d_)], factors_, means_);
        }
    }

protected:
    Index seen(const Row<T>& row, const Tile& tile) const {
        return std::clamp<Index>(sums_.end(row.i) - tile.first_col, 0, tile.n_cols);
    }

    // Moves the shift of a row up; what it has gathered is rescaled. False when there is nothing to weigh.
    bool raise(Local& local, Index r, double candidate) const {
        double& top = local.tops[static_cast<std::size_t>(r)];
        if (candidate > top) {
            const double factor = top == -infinity<double>() ? 0.0 : std::exp2(top - candidate);
            local.masses[static_cast<std::size_t>(r)] *= factor;
            for (Index k = 0; k < d_; ++k) local.moments[static_cast<std::size_t>(r * d_ + k)] *= factor;
            top = candidate;
        }
        return top != -infinity<double>();
    }

    AttentionSums<T>& sums_;
    const Index d_;
    const double* factors_;
    double* means_;

private:
    friend Derived;
    ParticleReducer(AttentionSums<T>& sums, const double* factors, double* means)
        : sums_(sums), d_(sums.spec_.d), factors_(factors), means_(means) {}
};

// Few dimensions: everything in registers.
template <class T, int D, class Weigh, bool Bias, bool Values>
class CloudReducer : public ParticleReducer<T, CloudReducer<T, D, Weigh, Bias, Values>> {
public:
    static constexpr Keeps keeps = Keeps::nothing;
    using Local = ParticleLocal<T>;

    CloudReducer(AttentionSums<T>& sums, const double* factors, double* means)
        : ParticleReducer<T, CloudReducer>(sums, factors, means) {}

    void row(Local& local, const Block<T>& at, const Tile& tile, const Row<T>& row) const {
        const Index seen = this->seen(row, tile);
        if (seen == 0) return;
        const PackedColumns<T>& columns = at.walked.columns;
        const Cloud<T> cloud{columns.panels.data() + tile.first_col * D, columns.bias.data() + tile.first_col,
                             columns.values.data() + tile.first_col, columns.n_padded};
        const T* x = local.block.features.data() + row.r * D;
        CloudSums sums;
        if (local.shifted[static_cast<std::size_t>(row.r)] == 0) {
            cloud_sums<T, D, Weigh, Bias, Values>(x, T(0), cloud, seen, sums);
        } else {
            if (!this->raise(local, row.r, static_cast<double>(cloud_max<T, D, Bias>(x, cloud, seen))))
                return;
            const auto shift = static_cast<T>(local.tops[static_cast<std::size_t>(row.r)]);
            cloud_sums<T, D, Clamped<Weigh>, Bias, Values>(x, shift, cloud, seen, sums);
        }
        local.masses[static_cast<std::size_t>(row.r)] += sums.mass;
        for (int k = 0; k < D; ++k) local.moments[static_cast<std::size_t>(row.r * D + k)] += sums.moment[k];
    }
};

// Many dimensions: scores and products by blocks.
template <class T, class Weigh>
class BlockReducer : public ParticleReducer<T, BlockReducer<T, Weigh>> {
public:
    static constexpr Keeps keeps = Keeps::tile;
    using Local = ParticleLocal<T>;

    BlockReducer(AttentionSums<T>& sums, const double* factors, double* means)
        : ParticleReducer<T, BlockReducer>(sums, factors, means) {}

    void row(Local& local, const Block<T>&, const Tile& tile, const Row<T>& row) const {
        const Index seen = this->seen(row, tile);
        const auto r = static_cast<std::size_t>(row.r);
        if (local.shifted[r] == 0) {
            local.masses[r] += weigh_seen<T, Weigh, false>(row.s, seen, row.padded, T(0));
            return;
        }
        std::fill(row.s + seen, row.s + row.padded, -infinity<T>());
        if (!this->raise(local, row.r, static_cast<double>(row_max(row.s, row.padded)))) {
            std::fill(row.s, row.s + row.padded, T(0));
            return;
        }
        local.masses[r] +=
            weigh_seen<T, Clamped<Weigh>, true>(row.s, seen, row.padded, static_cast<T>(local.tops[r]));
    }

    // Sums over tiles go on in double.
    void end_tile(Local& local, const Block<T>& at, const Tile& tile) const {
        const PackedColumns<T>& columns = at.walked.columns;
        const Index ld = columns.n_packs * SimdTraits<T>::width;
        local.products.reserve(at.n_rows * ld);
        std::fill(local.products.data(), local.products.data() + at.n_rows * ld, T(0));
        product_tile(local.block.scores.data(), tile.ld, at.n_rows, tile.padded, columns.values.data(),
                     columns.n_padded, tile.first_col, columns.n_packs, local.products.data(), ld);
        for (Index r = 0; r < at.n_rows; ++r) {
            const T* from = local.products.data() + r * ld;
            double* to = local.moments.data() + r * this->d_;
            for (Index k = 0; k < this->d_; ++k) to[k] += static_cast<double>(from[k]);
        }
    }
};

template <class T>
AttentionSums<T>::AttentionSums(const AttentionSpec& spec)
    : spec_(spec),
      few_(spec.d <= cloud_max_dim),
      own_keys_(!few_ && spec.k < spec.d),
      dim_(own_keys_ ? spec.k : spec.d) {
    const Index n = spec.n, d = spec.d;
    problem_.n_rows = problem_.n_cols = n;
    if (!spec.weights.empty() && normalised()) {
        const double largest = *std::ranges::max_element(spec.weights);
        for (const double w : spec.weights) log_mass_.push_back(std::log2(w / largest));
    }
    features_.reserve(n * dim_);
    keys_.reserve(n * dim_);
    values_.reserve(n * d);
    bias_.reserve(n);
    problem_.dots.push_back({{features_.data(), dim_, 1}, {keys_.data(), dim_, 1}, dim_});
    if (spec.kind == FieldKind::l2 || !log_mass_.empty()) problem_.col_bias.push_back({bias_.data(), 1});
    Tiling& t = walked_.tiling;
    t.block_rows = t.task_rows = few_ ? tuning::cloud_rows : tuning::particle_block_rows;
    t.tile_cols = few_ ? tuning::cloud_chunk * Cloud<T>::strip : tuning::tile_cols;
    t.split_cols = n;
    walked_.problem = &problem_;
    // The last rows see the most when there is a mask: they come first.
    for (Index first = (n - 1) / t.block_rows * t.block_rows; first >= 0; first -= t.block_rows) {
        const Index last = std::min(first + t.block_rows, n);
        const Index seen = std::min(n, round_up(end(last - 1), MicroTile<T>::cols));
        pieces_.push_back({0, first, last, 0, seen, 0});
    }
}

template <class T>
bool AttentionSums<T>::exponential() const {
    return normalised() || spec_.kind == FieldKind::exp;
}
template <class T>
bool AttentionSums<T>::normalised() const {
    return spec_.kind == FieldKind::softmax || spec_.kind == FieldKind::l2;
}

// Scores as <row_map x_i - offset, key_j> + bias_j. A normalised weight does not change when a function of i
// alone is added to its score, so points may be taken about their mean: clouds far from 0 lose nothing.
template <class T>
void AttentionSums<T>::map_rows(const Head& head, const T* x) {
    const Index n = spec_.n, d = spec_.d;
    const bool l2 = spec_.kind == FieldKind::l2;
    const double scale = (exponential() ? log2_e : 1.0) * (l2 ? 2.0 : 1.0);
    if (own_keys_)
        row_map_ = scale * head.Q.transpose();
    else
        row_map_ = scale * (head.Q.transpose() * head.K);
    centre_ = Eigen::VectorXd::Zero(d);
    if (normalised()) {
        for (Index j = 0; j < n; ++j)
            for (Index a = 0; a < d; ++a) centre_[a] += static_cast<double>(x[j * d + a]);
        centre_ /= static_cast<double>(n);
        for (Index a = 0; a < d; ++a) centre_[a] = static_cast<double>(static_cast<T>(centre_[a]));
        if (!centre_.allFinite()) centre_.setZero();
    }
    offset_ = Eigen::VectorXd::Zero(dim_);
    if (l2)
        offset_ = own_keys_ ? Eigen::VectorXd(scale * (head.K * centre_))
                            : Eigen::VectorXd(scale * (head.K.transpose() * (head.K * centre_)));
}

// Keys, their biases, and the values: particles about their mean. Weights of normalised kinds are biases too, relative to
// the largest; in the others they multiply the values.
template <class T>
void AttentionSums<T>::set_columns(const Head& head, const T* x) {
    const Index n = spec_.n, d = spec_.d;
    const bool l2 = spec_.kind == FieldKind::l2, weighted_values = !spec_.weights.empty() && !normalised();
    double radius = 0;
    bias_bound_ = 0;
    Eigen::VectorXd y(d), key(dim_);
    for (Index j = 0; j < n; ++j) {
        for (Index a = 0; a < d; ++a) y[a] = static_cast<double>(x[j * d + a]) - centre_[a];
        if (own_keys_)
            key.noalias() = head.K * y;
        else
            key = y;
        radius = std::max(radius, key.squaredNorm());
        const double mass = weighted_values ? spec_.weights[static_cast<std::size_t>(j)] : 1.0;
        for (Index a = 0; a < dim_; ++a) keys_[j * dim_ + a] = static_cast<T>(key[a]);
        for (Index a = 0; a < d; ++a) values_[j * d + a] = static_cast<T>(mass * y[a]);
        double bias = l2 ? -log2_e * (head.K * y).squaredNorm() : 0.0;
        if (!log_mass_.empty()) bias += log_mass_[static_cast<std::size_t>(j)];
        bias_[j] = static_cast<T>(bias);
        bias_bound_ = std::max(bias_bound_, -bias);
    }
    key_radius_ = std::sqrt(radius);
}

template <class T>
void AttentionSums<T>::set_rows(const T* x, const Run& run) {
    const Index n = spec_.n, d = spec_.d, dim = dim_;
    const double *map = row_map_.data(), *offset = offset_.data();
    constexpr Index rows = 256;
    parallel_for(run, (n + rows - 1) / rows, [&](Index task, int worker) {
        auto& row = locals_[static_cast<std::size_t>(worker)].row;
        row.resize(static_cast<std::size_t>(dim_));
        double* sums = row.data();
        for (Index i = task * rows; i < std::min(n, (task + 1) * rows); ++i) {
            // Coordinates outside, features inside: sums side by side, which the compiler puts into packs.
            for (Index a = 0; a < dim; ++a) sums[a] = -offset[a];
            for (Index b = 0; b < d; ++b) {
                const auto coordinate = static_cast<double>(x[i * d + b]);
                const double* column = map + b * dim;
                for (Index a = 0; a < dim; ++a) sums[a] += column[a] * coordinate;
            }
            for (Index a = 0; a < dim; ++a) features_[i * dim + a] = static_cast<T>(sums[a]);
        }
    });
}

template <class T>
bool AttentionSums<T>::needs_shift(const T* features) const {
    if (!exponential()) return false;
    double square = 0;
    for (Index a = 0; a < dim_; ++a)
        square += static_cast<double>(features[a]) * static_cast<double>(features[a]);
    return !(std::sqrt(square) * key_radius_ + bias_bound_ <= tuning::safe_exponent<T>);
}

template <class T>
void AttentionSums<T>::finish(Index i, double shift, double mass, const double* moment, const double* factors,
                              double* means) const {
    const Index d = spec_.d;
    double* out = means + i * d;
    if (factors == nullptr) {
        for (Index a = 0; a < d; ++a) out[a] = moment[a] / mass + centre_[a];
        return;
    }
    const double factor = factors[i] * (spec_.kind == FieldKind::exp ? std::exp2(shift) : 1.0);
    for (Index a = 0; a < d; ++a) out[a] = moment[a] == 0.0 ? 0.0 : moment[a] * factor;
}

template <class T>
template <class Reducer>
VelocityStatus AttentionSums<T>::go(Reducer&& reducer, const Run& run) {
    return walk<T>({&walked_, 1}, pieces_, reducer, run) ? VelocityStatus::ok : VelocityStatus::interrupted;
}

template <class T>
template <int D, class Weigh>
VelocityStatus AttentionSums<T>::of_dim(const double* factors, double* means, const Run& run) {
    if constexpr (std::is_same_v<Weigh, PowerOfTwo>)  // the others have no bias
        if (!problem_.col_bias.empty())
            return go(CloudReducer<T, D, Weigh, true, false>(*this, factors, means), run);
    if (!spec_.weights.empty()) return go(CloudReducer<T, D, Weigh, false, true>(*this, factors, means), run);
    return go(CloudReducer<T, D, Weigh, false, false>(*this, factors, means), run);
}

template <class T>
template <class Weigh>
VelocityStatus AttentionSums<T>::of_kind(const double* factors, double* means, const Run& run) {
    if (!few_) return go(BlockReducer<T, Weigh>(*this, factors, means), run);
    static_assert(cloud_max_dim == 4);
    switch (spec_.d) {
        case 1:
            return of_dim<1, Weigh>(factors, means, run);
        case 2:
            return of_dim<2, Weigh>(factors, means, run);
        case 3:
            return of_dim<3, Weigh>(factors, means, run);
        default:
            return of_dim<4, Weigh>(factors, means, run);
    }
}

template <class T>
VelocityStatus AttentionSums<T>::head(const Head& head, const T* x, const double* factors,
                                      std::vector<double>& means, const Run& run) {
    const auto n = static_cast<double>(spec_.n);
    const Run scaled = scaled_run(run, n * n * (tuning::entry_operations + static_cast<double>(spec_.d)) / 2);
    if (locals_.size() < static_cast<std::size_t>(scaled.n_threads))
        locals_.resize(static_cast<std::size_t>(scaled.n_threads));
    map_rows(head, x);
    set_columns(head, x);
    set_rows(x, scaled);
    repack_columns(problem_, {values_.data(), spec_.d, 1}, spec_.d, scaled, !few_, walked_.columns);
    switch (spec_.kind) {
        case FieldKind::relu:
            return of_kind<EachPack<ReluWeight>>(factors, means.data(), scaled);
        case FieldKind::sigmoid:
            return of_kind<EachPack<SigmoidWeight>>(factors, means.data(), scaled);
        default:
            return of_kind<PowerOfTwo>(factors, means.data(), scaled);
    }
}

template class AttentionSums<float>;
template class AttentionSums<double>;

}  // namespace qk
