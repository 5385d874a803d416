#include "engine/attention_sums.hpp"

#include <cmath>

#include "engine/cloud_kernels.hpp"

namespace qk {
namespace {

// Replaces the first `seen` of `padded` scores by their weights relative to the shift, and the rest by zeros. Returns
// the sum.
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

// The common part of the reducers over clouds and over blocks of particles.
template <class T, class Derived>
class ParticleReducer {
public:
    static constexpr bool flushes = true;
    using Local = ParticleLocal<T>;

    Local& local(const Piece&, int worker) { return sums_.locals_[static_cast<std::size_t>(worker)]; }

    void pack_rows(Local& local, const Block<T>& at) const {
        RowBlock<T>& block = local.block;
        const Index dim = sums_.dim_;
        block.first_row = at.first_row;
        block.n_rows = at.n_rows;
        block.features.reserve(at.n_rows * dim);
        block.bias.reserve(at.n_rows);
        std::fill(block.bias.data(), block.bias.data() + at.n_rows, T(0));
        sums_.head_->rows.each(sums_.x_ + at.first_row * d_, at.n_rows, sums_.start_.data(), local.map,
                               [&](Index r, const double* y) {
                                   T* to = block.features.data() + r * dim;
                                   for (Index a = 0; a < dim; ++a) to[a] = static_cast<T>(y[a]);
                               });
    }

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
                         &local.moments[static_cast<std::size_t>(r * d_)]);
        }
        T* out = sums_.out_ + at.first_row * d_;
        sums_.head_->values.each(local.moments.data(), at.n_rows, nullptr, local.map,
                                 [&](Index r, const double* y) {
                                     for (Index a = 0; a < d_; ++a) out[r * d_ + a] += static_cast<T>(y[a]);
                                 });
    }

protected:
    Index seen(const Row<T>& row, const Tile& tile) const {
        return std::clamp<Index>(sums_.end(row.i) - tile.first_col, 0, tile.n_cols);
    }

    // Raises the shift of a row to `candidate` and rescales the row's sums. Returns false if all scores so far are
    // -inf.
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

private:
    friend Derived;
    explicit ParticleReducer(AttentionSums<T>& sums) : sums_(sums), d_(sums.spec_.d) {}
};

// For few dimensions: everything stays in registers.
template <class T, int D, class Weigh, bool Bias, bool Values>
class CloudReducer : public ParticleReducer<T, CloudReducer<T, D, Weigh, Bias, Values>> {
public:
    static constexpr Keeps keeps = Keeps::nothing;
    using Local = ParticleLocal<T>;

    explicit CloudReducer(AttentionSums<T>& sums) : ParticleReducer<T, CloudReducer>(sums) {}

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

// For many dimensions: scores and products are computed by blocks.
template <class T, class Weigh>
class BlockReducer : public ParticleReducer<T, BlockReducer<T, Weigh>> {
public:
    static constexpr Keeps keeps = Keeps::tile;
    using Local = ParticleLocal<T>;

    explicit BlockReducer(AttentionSums<T>& sums) : ParticleReducer<T, BlockReducer>(sums) {}

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

    // Adds the sums of the tile in double.
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
    keys_.reserve(n * dim_);
    values_.reserve(n * d);
    bias_.reserve(n);
    problem_.dots.push_back({{nullptr, dim_, 1}, {keys_.data(), dim_, 1}, dim_});  // pack_rows makes the rows
    if (spec.kind == FieldKind::l2 || !log_mass_.empty()) problem_.col_bias.push_back({bias_.data(), 1});
    Tiling& t = walked_.tiling;
    t.block_rows = t.task_rows = few_ ? tuning::cloud_rows : tuning::particle_block_rows;
    t.tile_cols = few_ ? tuning::cloud_chunk * Cloud<T>::strip : tuning::tile_cols;
    t.split_cols = n;
    walked_.problem = &problem_;
    // With a mask the last rows see the most particles, so they come first.
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

// Scores as <rows(x_i) + start, key_j> + bias_j.
template <class T>
RowMap AttentionSums<T>::row_map(const Head& head) const {
    const double scale = (exponential() ? log2_e : 1.0) * (spec_.kind == FieldKind::l2 ? 2.0 : 1.0);
    return own_keys_ ? RowMap(scale * head.Q) : RowMap(scale * (head.K.transpose() * head.Q));
}

// A normalised weight does not change when a function of i alone is added to its score. So points may be taken
// relative to their mean, and clouds far from 0 lose no digits.
template <class T>
void AttentionSums<T>::set_centre(const Head& head, const T* x) {
    const Index n = spec_.n, d = spec_.d;
    centre_.setZero(d);
    start_.setZero(dim_);
    if (!normalised()) return;
    for (Index j = 0; j < n; ++j)
        for (Index a = 0; a < d; ++a) centre_[a] += static_cast<double>(x[j * d + a]);
    centre_ /= static_cast<double>(n);
    for (Index a = 0; a < d; ++a) centre_[a] = static_cast<double>(static_cast<T>(centre_[a]));
    if (!centre_.allFinite()) centre_.setZero();
    if (spec_.kind != FieldKind::l2) return;
    start_ = -2 * log2_e * (head.K * centre_);
    if (!own_keys_) start_ = head.K.transpose() * start_;
}

// The keys, their biases and the values, relative to the mean of the particles. For normalised kinds the particles'
// weights become biases, relative to the largest; for the others they multiply the values.
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
bool AttentionSums<T>::needs_shift(const T* features) const {
    if (!exponential()) return false;
    double square = 0;
    for (Index a = 0; a < dim_; ++a)
        square += static_cast<double>(features[a]) * static_cast<double>(features[a]);
    return !(std::sqrt(square) * key_radius_ + bias_bound_ <= tuning::safe_exponent<T>);
}

template <class T>
void AttentionSums<T>::finish(Index i, double shift, double mass, double* moment) const {
    const Index d = spec_.d;
    if (factors_ == nullptr) {
        for (Index a = 0; a < d; ++a) moment[a] = moment[a] / mass + centre_[a];
        return;
    }
    const double factor = factors_[i] * (spec_.kind == FieldKind::exp ? std::exp2(shift) : 1.0);
    for (Index a = 0; a < d; ++a) moment[a] = moment[a] == 0.0 ? 0.0 : moment[a] * factor;
}

template <class T>
template <class Reducer>
VelocityStatus AttentionSums<T>::go(Reducer&& reducer, const Run& run) {
    return walk<T>({&walked_, 1}, pieces_, reducer, run) ? VelocityStatus::ok : VelocityStatus::interrupted;
}

template <class T>
template <int D, class Weigh>
VelocityStatus AttentionSums<T>::of_dim(const Run& run) {
    if constexpr (std::is_same_v<Weigh, PowerOfTwo>)  // other weights have no bias
        if (!problem_.col_bias.empty()) return go(CloudReducer<T, D, Weigh, true, false>(*this), run);
    if (!spec_.weights.empty()) return go(CloudReducer<T, D, Weigh, false, true>(*this), run);
    return go(CloudReducer<T, D, Weigh, false, false>(*this), run);
}

template <class T>
template <class Weigh>
VelocityStatus AttentionSums<T>::of_kind(const Run& run) {
    if (!few_) return go(BlockReducer<T, Weigh>(*this), run);
    static_assert(cloud_max_dim == 4);
    switch (spec_.d) {
        case 1:
            return of_dim<1, Weigh>(run);
        case 2:
            return of_dim<2, Weigh>(run);
        case 3:
            return of_dim<3, Weigh>(run);
        default:
            return of_dim<4, Weigh>(run);
    }
}

template <class T>
VelocityStatus AttentionSums<T>::head(const Head& head, const T* x, const double* factors, T* out,
                                      const Run& run) {
    const auto n = static_cast<double>(spec_.n);
    const Run scaled = scaled_run(run, n * n * (tuning::entry_operations + static_cast<double>(spec_.d)) / 2);
    if (locals_.size() < static_cast<std::size_t>(scaled.n_threads))
        locals_.resize(static_cast<std::size_t>(scaled.n_threads));
    head_ = &head;
    x_ = x;
    factors_ = factors;
    out_ = out;
    set_centre(head, x);
    set_columns(head, x);
    repack_columns(problem_, {values_.data(), spec_.d, 1}, spec_.d, scaled, !few_, walked_.columns);
    switch (spec_.kind) {
        case FieldKind::relu:
            return of_kind<EachPack<ReluWeight>>(scaled);
        case FieldKind::sigmoid:
            return of_kind<EachPack<SigmoidWeight>>(scaled);
        default:
            return of_kind<PowerOfTwo>(scaled);
    }
}

template class AttentionSums<float>;
template class AttentionSums<double>;

}  // namespace qk
