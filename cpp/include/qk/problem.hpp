// One score matrix in normal form. Every sum of scores (a product of experts) is
//     s_ij = sum dot terms + sum distance terms + sum dense terms + r_i + c_j,   masked to -inf,
// so one description and one engine serve them all. Nothing here owns memory.
//
// The order of the additions is part of the description, because normalised weights depend on it. If the log-sum-exp of a
// row of scores near 1e4 were rounded to the type and subtracted, every weight would be off by 1e4 eps. The row's maximum,
// however, is exactly one of the rounded scores, so subtracting it is exact wherever the weight matters, and the log of
// the sum relative to the maximum is small. Therefore a bias may be added late, after everything else has been rounded.
#pragma once

#include <utility>
#include <vector>

#include "feature_kind.hpp"
#include "masks.hpp"
#include "views.hpp"

namespace qk {

// dot:      scale * <x_i, y_j>
// distance: -scale * (sum_{k < dim - n_negative} |x_ik - y_jk|^p - sum_{the rest} |x_ik - y_jk|^p), p the number of `kind`
template <class T>
struct FeatureTerm {
    MatrixView<T> rows;
    MatrixView<T> cols;
    Index dim = 0;
    Index n_negative = 0;
    T scale = T(1);
    // Dot terms: whether the scale multiplies the features of the columns instead of those of the rows. Transposed
    // scores have it on the other side, so that both have the same bits.
    bool scale_cols = false;
    FeatureKind kind = FeatureKind::distance;  // distance terms
};

template <class T>
struct DenseTerm {
    MatrixView<T> values;
    T scale = T(1);
};

enum class Stage {
    early,      // added together with the terms
    reference,  // added to the rounded score, rows before columns: minus the maximum of a row or column
    late,       // added after that: minus the log of a sum, and other shifts of normalised scores
};

template <class T>
struct Bias {
    const T* data = nullptr;
    Index stride = 0;
    Stage stage = Stage::early;

    const T& operator[](Index i) const { return data[i * stride]; }
};

template <class T>
struct Problem {
    Index n_rows = 0;
    Index n_cols = 0;
    std::vector<FeatureTerm<T>> dots;
    std::vector<FeatureTerm<T>> distances;
    std::vector<DenseTerm<T>> dense;
    std::vector<Bias<T>> row_bias;
    std::vector<Bias<T>> col_bias;
    std::vector<DenseMask> masks;
    Band band;

    Index dot_dim() const { return total_dim(dots); }
    Index distance_dim() const { return total_dim(distances); }

    // Whether a bias is to be added after the score has been rounded.
    bool has_late_rows() const { return any_late(row_bias); }
    bool has_late_cols() const { return any_late(col_bias); }
    bool has_late_biases() const { return has_late_rows() || has_late_cols(); }

private:
    static bool any_late(const std::vector<Bias<T>>& biases) {
        for (const auto& bias : biases)
            if (bias.stage != Stage::early) return true;
        return false;
    }
    static Index total_dim(const std::vector<FeatureTerm<T>>& terms) {
        Index d = 0;
        for (const auto& term : terms) d += term.dim;
        return d;
    }
};

// The same scores with rows and columns exchanged.
template <class T>
Problem<T> transposed(const Problem<T>& problem) {
    Problem<T> out = problem;
    std::swap(out.n_rows, out.n_cols);
    for (auto* terms : {&out.dots, &out.distances})
        for (auto& term : *terms) {
            std::swap(term.rows, term.cols);
            term.scale_cols = !term.scale_cols;
        }
    for (auto& term : out.dense) std::swap(term.values.row_stride, term.values.col_stride);
    std::swap(out.row_bias, out.col_bias);
    for (auto& mask : out.masks) std::swap(mask.row_stride, mask.col_stride);
    out.band.lo = -problem.band.hi;
    out.band.hi = -problem.band.lo;
    return out;
}

// Rows [row, row + n_rows) against columns [col, col + n_cols) of the same scores.
template <class T>
Problem<T> rectangle(const Problem<T>& problem, Index row, Index n_rows, Index col, Index n_cols) {
    Problem<T> out = problem;
    out.n_rows = n_rows;
    out.n_cols = n_cols;
    for (auto* terms : {&out.dots, &out.distances})
        for (auto& term : *terms) {
            term.rows.data += row * term.rows.row_stride;
            term.cols.data += col * term.cols.row_stride;
        }
    for (auto& term : out.dense)
        term.values.data += row * term.values.row_stride + col * term.values.col_stride;
    for (auto& bias : out.row_bias) bias.data += row * bias.stride;
    for (auto& bias : out.col_bias) bias.data += col * bias.stride;
    for (auto& mask : out.masks) mask.data += row * mask.row_stride + col * mask.col_stride;
    if (!problem.band.everything()) {
        out.band.lo -= col - row;
        out.band.hi -= col - row;
    }
    return out;
}

}  // namespace qk
