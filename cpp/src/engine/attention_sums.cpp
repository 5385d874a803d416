#include "engine/attention_sums.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "engine/flush_subnormals.hpp"
#include "engine/row_kernels.hpp"

namespace qk {
namespace {

constexpr Index few_rows_per_task = 32;
constexpr Index block_rows = 48, tile_cols = 256;

// Scores (in units of log 2) up to this size, added up over any number of particles, stay in the range of the
// type without a shift, and so does the sum of those that matter beside the largest.
template <class T>
constexpr double safe_exponent = std::is_same_v<T, float> ? 80.0 : 900.0;

// Weights of the first `seen` of `padded` scores, in place; zeros beyond. Returns their sum.
template <class T, class Weigh>
double weigh_tile_row(T* s, Index seen, Index padded, const T* mass) {
    constexpr Index width = SimdTraits<T>::width;
    constexpr int packs = 4;
    Pack<T> sum[2] = {};
    Index j = 0;
    for (; j + packs * width <= seen; j += packs * width) {
        Pack<T> w[packs];
#pragma GCC unroll 4
        for (int h = 0; h < packs; ++h) w[h] = load(s + j + h * width);
        Weigh::template of<T, packs>(w);
        if (mass != nullptr)
            for (int h = 0; h < packs; ++h) w[h] *= load(mass + j + h * width);
#pragma GCC unroll 4
        for (int h = 0; h < packs; ++h) {
            sum[h % 2] += w[h];
            store(s + j + h * width, w[h]);
        }
    }
    for (; j < padded; j += width) {
        Pack<T> w[1] = {load(s + j)};
        Weigh::template of<T, 1>(w);
        if (mass != nullptr) w[0] *= load(mass + j);
        w[0] = select(detail::lanes_below<T>(j, seen), w[0], Pack<T>{});
        sum[0] += w[0];
        store(s + j, w[0]);
    }
    return static_cast<double>(reduce_add<T>(sum[0] + sum[1]));
}

}  // namespace

template <class T>
AttentionSums<T>::AttentionSums(const AttentionSpec& spec)
    : spec_(spec),
      few_(spec.d <= cloud_max_dim),
      n_padded_(round_up(spec.n, few_ ? Cloud<T>::strip : static_cast<Index>(MicroTile<T>::cols))),
      n_packs_((spec.d + SimdTraits<T>::width - 1) / SimdTraits<T>::width) {
    if (spec_.weights.empty()) return;
    mass_.reserve(n_padded_);
    std::fill(mass_.data(), mass_.data() + n_padded_, T(0));
    for (Index j = 0; j < spec_.n; ++j) mass_[j] = static_cast<T>(spec_.weights[static_cast<std::size_t>(j)]);
}

template <class T>
bool AttentionSums<T>::exponential() const {
    return spec_.kind == FieldKind::softmax || spec_.kind == FieldKind::l2 || spec_.kind == FieldKind::exp;
}

// Scores as <row_map x_i - offset, key_j> + bias_j. A normalised weight does not change when a function of i
// alone is added to its score, so points may be taken about their mean: clouds far from 0 lose nothing.
template <class T>
void AttentionSums<T>::prepare(const Head& head, const T* x, const Run& run) {
    const Index n = spec_.n, d = spec_.d;
    const bool l2 = spec_.kind == FieldKind::l2;
    own_keys_ = !few_ && spec_.k < d;
    dim_ = own_keys_ ? spec_.k : d;
    const double scale = (exponential() ? log2_e : 1.0) * (l2 ? 2.0 : 1.0);
    if (own_keys_)
        row_map_ = scale * head.Q.transpose();
    else
        row_map_ = scale * (head.Q.transpose() * head.K);
    centre_ = Eigen::VectorXd::Zero(d);
    if (spec_.kind == FieldKind::softmax || l2) {
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
    bias_bound_ = 0;
    if (l2) {
        bias_.reserve(n_padded_);
        std::fill(bias_.data() + n, bias_.data() + n_padded_, T(0));
        Eigen::VectorXd y(d);
        for (Index j = 0; j < n; ++j) {
            for (Index a = 0; a < d; ++a) y[a] = static_cast<double>(x[j * d + a]) - centre_[a];
            const double b = -log2_e * (head.K * y).squaredNorm();
            bias_[j] = static_cast<T>(b);
            bias_bound_ = std::max(bias_bound_, -b);
        }
    }
    key_radius_ = 0;
    if (few_)
        pack_cloud(x);
    else
        pack_panels(head, x);
    if (scratch_.size() < static_cast<std::size_t>(run.n_threads))
        scratch_.resize(static_cast<std::size_t>(run.n_threads));
}

template <class T>
void AttentionSums<T>::pack_cloud(const T* x) {
    const Index n = spec_.n, d = spec_.d;
    points_.reserve(d * n_padded_);
    double radius = 0;
    for (Index a = 0; a < d; ++a)
        std::fill(points_.data() + a * n_padded_ + n, points_.data() + (a + 1) * n_padded_, T(0));
    for (Index j = 0; j < n; ++j) {
        double square = 0;
        for (Index a = 0; a < d; ++a) {
            const double y = static_cast<double>(x[j * d + a]) - centre_[a];
            points_[a * n_padded_ + j] = static_cast<T>(y);
            square += y * y;
        }
        radius = std::max(radius, square);
    }
    key_radius_ = std::sqrt(radius);
}

// Keys as panels for score_tile, values for product_tile.
template <class T>
void AttentionSums<T>::pack_panels(const Head& head, const T* x) {
    constexpr Index cols = MicroTile<T>::cols, width = MicroTile<T>::width;
    const Index n = spec_.n, d = spec_.d;
    points_.reserve(dim_ * n_padded_);
    values_.reserve(n_packs_ * width * n_padded_);
    bias_.reserve(n_padded_);
    if (spec_.kind != FieldKind::l2) std::fill(bias_.data(), bias_.data() + n_padded_, T(0));
    double radius = 0;
    Eigen::VectorXd y(d), key(dim_);
    for (Index j = 0; j < n_padded_; ++j) {
        if (j < n)
            for (Index a = 0; a < d; ++a) y[a] = static_cast<double>(x[j * d + a]) - centre_[a];
        else
            y.setZero();
        if (own_keys_)
            key.noalias() = head.K * y;
        else
            key = y;
        radius = std::max(radius, key.squaredNorm());
        T* panel = points_.data() + j / cols * cols * dim_ + j % cols;
        for (Index a = 0; a < dim_; ++a) panel[a * cols] = static_cast<T>(key[a]);
        for (Index q = 0; q < n_packs_; q += MicroTile<T>::packs) {
            const Index wide = width * std::min<Index>(MicroTile<T>::packs, n_packs_ - q);
            T* value = values_.data() + q * width * n_padded_ + j * wide;
            for (Index a = 0; a < wide; ++a)
                value[a] = q * width + a < d ? static_cast<T>(y[q * width + a]) : T(0);
        }
    }
    key_radius_ = std::sqrt(radius);
}

template <class T>
void AttentionSums<T>::row_features(const T* x, Index i, double* sums, T* out) const {
    const Index d = spec_.d;
    // Coordinates outside, features inside: sums side by side, which the compiler puts into packs.
    for (Index a = 0; a < dim_; ++a) sums[a] = -offset_[a];
    for (Index b = 0; b < d; ++b) {
        const auto coordinate = static_cast<double>(x[i * d + b]);
        const double* column = row_map_.data() + b * dim_;
        for (Index a = 0; a < dim_; ++a) sums[a] += column[a] * coordinate;
    }
    for (Index a = 0; a < dim_; ++a) out[a] = static_cast<T>(sums[a]);
}

template <class T>
double AttentionSums<T>::safe_shift(const T* features) const {
    if (!exponential()) return 0.0;
    double square = 0;
    for (Index a = 0; a < dim_; ++a)
        square += static_cast<double>(features[a]) * static_cast<double>(features[a]);
    const double bound = std::sqrt(square) * key_radius_ + bias_bound_;
    return bound <= safe_exponent<T> ? 0.0 : std::numeric_limits<double>::quiet_NaN();
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
template <int D, class Weigh, bool Bias>
void AttentionSums<T>::few_rows(Index first, Index last, const T* x, const double* factors, double* means,
                                const Run& run, int worker) const {
    Cloud<T> cloud{points_.data(), Bias ? bias_.data() : nullptr,
                   spec_.weights.empty() ? nullptr : mass_.data(), n_padded_};
    // Only long rows are worth a look at the clock each; short ones are looked at task by task.
    const bool look = spec_.n >= 4096;
    for (Index i = first; i < last; ++i) {
        if (look && should_stop(run, worker)) return;
        T features[D];
        double sums_of_row[D];
        row_features(x, i, sums_of_row, features);
        double shift = safe_shift(features);
        CloudSums sums;
        const auto add = [&]<class Function>() {
            if (cloud.mass == nullptr)
                cloud_sums<T, D, Function, Bias, false>(features, static_cast<T>(shift), cloud, end(i), sums);
            else
                cloud_sums<T, D, Function, Bias, true>(features, static_cast<T>(shift), cloud, end(i), sums);
        };
        if (std::isnan(shift)) {
            shift = static_cast<double>(cloud_max<T, D, Bias>(features, cloud, end(i)));
            add.template operator()<Clamped<Weigh>>();
        } else {
            add.template operator()<Weigh>();
        }
        finish(i, shift, sums.mass, sums.moment, factors, means);
    }
}

template <class T>
template <class Weigh>
void AttentionSums<T>::few_rows_of_dim(Index first, Index last, const T* x, const double* factors,
                                       double* means, const Run& run, int worker) const {
    const auto rows = [&]<int D>() {
        if constexpr (std::is_same_v<Weigh, PowerOfTwo>)  // the others have no bias
            if (spec_.kind == FieldKind::l2)
                return few_rows<D, Weigh, true>(first, last, x, factors, means, run, worker);
        few_rows<D, Weigh, false>(first, last, x, factors, means, run, worker);
    };
    static_assert(cloud_max_dim == 4);
    switch (spec_.d) {
        case 1:
            return rows.template operator()<1>();
        case 2:
            return rows.template operator()<2>();
        case 3:
            return rows.template operator()<3>();
        default:
            return rows.template operator()<4>();
    }
}

template <class T>
template <class Weigh>
void AttentionSums<T>::many_rows(Index first, Index last, const T* x, const double* factors, double* means,
                                 Scratch& scratch, const Run& run, int worker) const {
    constexpr Index cols = MicroTile<T>::cols, width = MicroTile<T>::width;
    const Index rows = last - first, d = spec_.d, ld = tile_cols, ld_products = n_packs_ * width;
    scratch.features.reserve(block_rows * dim_);
    scratch.row_bias.reserve(block_rows);
    scratch.scores.reserve(block_rows * ld);
    scratch.products.reserve(block_rows * ld_products);
    scratch.sums.assign(static_cast<std::size_t>(rows), 0.0);
    scratch.shifts.assign(static_cast<std::size_t>(rows), 0.0);
    scratch.moments.assign(static_cast<std::size_t>(rows * d), 0.0);
    scratch.row.resize(static_cast<std::size_t>(dim_));
    bool exact = false;
    for (Index r = 0; r < rows; ++r) {
        T* features = scratch.features.data() + r * dim_;
        row_features(x, first + r, scratch.row.data(), features);
        const double shift = safe_shift(features);
        scratch.shifts[static_cast<std::size_t>(r)] = shift;
        exact = exact || std::isnan(shift);
    }
    const Index last_col = end(last - 1);
    const FeatureDims dims{0, 0, dim_};
    // Scores of columns [j, j + padded), whether a row sees them or not.
    const auto score = [&](Index j) {
        const Index padded = round_up(std::min(tile_cols, last_col - j), cols);
        score_tile(scratch.features.data(), rows, points_.data() + j * dim_, padded / cols, dims, T(1),
                   scratch.row_bias.data(), bias_.data() + j, scratch.scores.data(), ld);
        return padded;
    };
    const auto set_shifts = [&](bool use) {
        for (Index r = 0; r < rows; ++r) {
            const double shift = scratch.shifts[static_cast<std::size_t>(r)];
            scratch.row_bias[r] = use && !std::isnan(shift) ? static_cast<T>(-shift) : T(0);
        }
    };
    if (exact) {
        set_shifts(false);
        std::vector<double> top(static_cast<std::size_t>(rows), -infinity<double>());
        for (Index j = 0; j < last_col; j += tile_cols) {
            if (should_stop(run, worker)) return;
            const Index padded = score(j);
            for (Index r = 0; r < rows; ++r) {
                T* s = scratch.scores.data() + r * ld;
                std::fill(s + std::clamp<Index>(end(first + r) - j, 0, padded), s + padded, -infinity<T>());
                auto& t = top[static_cast<std::size_t>(r)];
                t = std::max(t, static_cast<double>(row_max(s, padded)));
            }
        }
        for (std::size_t r = 0; r < top.size(); ++r)
            if (std::isnan(scratch.shifts[r])) scratch.shifts[r] = top[r];
    }
    set_shifts(true);
    for (Index j = 0; j < last_col; j += tile_cols) {
        if (should_stop(run, worker)) return;
        const Index padded = score(j);
        const T* mass = spec_.weights.empty() ? nullptr : mass_.data() + j;
        for (Index r = 0; r < rows; ++r) {
            T* s = scratch.scores.data() + r * ld;
            const Index seen = std::clamp<Index>(end(first + r) - j, 0, padded);
            scratch.sums[static_cast<std::size_t>(r)] +=
                exact ? weigh_tile_row<T, Clamped<Weigh>>(s, seen, padded, mass)
                      : weigh_tile_row<T, Weigh>(s, seen, padded, mass);
        }
        std::fill(scratch.products.data(), scratch.products.data() + rows * ld_products, T(0));
        product_tile(scratch.scores.data(), ld, rows, padded, values_.data(), n_padded_, j, n_packs_,
                     scratch.products.data(), ld_products);
        for (Index r = 0; r < rows; ++r)
            for (Index a = 0; a < d; ++a)
                scratch.moments[static_cast<std::size_t>(r * d + a)] +=
                    static_cast<double>(scratch.products[r * ld_products + a]);
    }
    for (Index r = 0; r < rows; ++r)
        finish(first + r, scratch.shifts[static_cast<std::size_t>(r)],
               scratch.sums[static_cast<std::size_t>(r)], &scratch.moments[static_cast<std::size_t>(r * d)],
               factors, means);
}

template <class T>
template <class Weigh>
VelocityStatus AttentionSums<T>::all_rows(const T* x, const double* factors, double* means, const Run& run) {
    const Index per_task = few_ ? few_rows_per_task : block_rows;
    const Index n_tasks = (spec_.n + per_task - 1) / per_task;
    parallel_for(run, n_tasks, [&](Index task, int worker) {
        // The last rows see the most when there is a mask: they come first.
        const Index first = (n_tasks - 1 - task) * per_task, last = std::min(first + per_task, spec_.n);
        const FlushSubnormals flush;
        if (few_)
            few_rows_of_dim<Weigh>(first, last, x, factors, means, run, worker);
        else
            many_rows<Weigh>(first, last, x, factors, means, scratch_[static_cast<std::size_t>(worker)], run,
                             worker);
    });
    return run.stop != nullptr && run.stop->stopped() ? VelocityStatus::interrupted : VelocityStatus::ok;
}

template <class T>
VelocityStatus AttentionSums<T>::head(const Head& head, const T* x, const double* factors,
                                      std::vector<double>& means, const Run& run) {
    Run scaled = run;
    // Waking another thread costs microseconds.
    const auto entries = static_cast<double>(spec_.n) * static_cast<double>(spec_.n);
    if (entries * static_cast<double>(20 + spec_.d) < 4e5) scaled.n_threads = 1;
    prepare(head, x, scaled);
    switch (spec_.kind) {
        case FieldKind::relu:
            return all_rows<EachPack<ReluWeight>>(x, factors, means.data(), scaled);
        case FieldKind::sigmoid:
            return all_rows<EachPack<SigmoidWeight>>(x, factors, means.data(), scaled);
        default:
            return all_rows<PowerOfTwo>(x, factors, means.data(), scaled);
    }
}

template class AttentionSums<float>;
template class AttentionSums<double>;

}  // namespace qk
