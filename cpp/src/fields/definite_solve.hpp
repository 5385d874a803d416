// Linear systems with a positive definite matrix and as many right-hand sides as rows, by strips of rows. The
// contributions of other strips are products, computed by the register-blocked kernel.
#pragma once

#include <cmath>

#include "fields/square_product.hpp"

namespace qk {

template <class T>
class DefiniteSolve {
public:
    // b := a^-1 b; both n x n, by rows. Returns false if a is not positive definite.
    bool operator()(const T* a, T* b, Index n) {
        n_ = n;
        half_ = round_up(n, width);
        ld_ = 2 * half_;
        rows_.reserve(n * ld_);  // [a | b], padded by zeros; then [U | U^-T b]; then [U | a^-1 b]; a = U^T U
        packed_.reserve(n * ld_);
        negative_.reserve(n * n);  // -U above the strips of the diagonal, -U^T below
        for (Index i = 0; i < n; ++i)
            for (const T* from : {a, static_cast<const T*>(b)}) {
                T* to = row(i) + (from == a ? 0 : half_);
                std::copy_n(from + i * n, n, to);
                std::fill(to + n, to + half_, T(0));
            }
        for (Index first = 0; first < n; first += strip)
            if (!eliminate(first, std::min(first + strip, n))) return false;
        for (Index first = (n - 1) / strip * strip; first >= 0; first -= strip)
            substitute(first, std::min(first + strip, n));
        for (Index i = 0; i < n; ++i) std::copy_n(row(i) + half_, n, b + i * n);
        return true;
    }

private:
    static constexpr Index width = RightFactor<T>::width, strip = tuning::product_rows;

    T* row(Index i) { return rows_.data() + i * ld_; }

    // row_i -= factor row_j, from column `from` on
    void subtract(Index i, Index j, T factor, Index from) {
        T* to = row(i);
        const T* of = row(j);
        for (Index c = from; c < ld_; ++c) to[c] -= factor * of[c];
    }

    void pack(Index first, Index end, Index from) {
        for (Index c = from; c < ld_; c += width)
            for (Index j = first; j < end; ++j)
                std::copy_n(row(j) + c, width, packed_.data() + c * n_ + j * width);
    }

    // rows [first, end) += left times the packed rows [k, k + depth), from column `from` on
    void add_product(Index first, Index end, Index k, Index depth, Index from) {
        if (depth > 0)
            product_tile(negative_.data() + first * n_ + k, n_, end - first, depth,
                         packed_.data() + from * n_, n_, k, (ld_ - from) / SimdTraits<T>::width,
                         row(first) + from, ld_);
    }

    bool eliminate(Index first, Index end) {
        const Index from = first / width * width;
        add_product(first, end, 0, first, from);
        for (Index j = first; j < end; ++j) {
            const T pivot = row(j)[j];
            if (!(pivot > T(0))) return false;
            const T inverse = T(1) / std::sqrt(pivot);
            for (Index c = from; c < ld_; ++c) row(j)[c] *= inverse;
            for (Index i = j + 1; i < end; ++i) subtract(i, j, row(j)[i], from);
            for (Index i = end; i < n_; ++i) negative_[j * n_ + i] = negative_[i * n_ + j] = -row(j)[i];
        }
        pack(first, end, from);
        return true;
    }

    void substitute(Index first, Index end) {
        add_product(first, end, end, n_ - end, half_);
        for (Index j = end - 1; j >= first; --j) {
            const T inverse = T(1) / row(j)[j];
            for (Index c = half_; c < ld_; ++c) row(j)[c] *= inverse;
            for (Index i = first; i < j; ++i) subtract(i, j, row(i)[j], half_);
        }
        pack(first, end, half_);
    }

    Index n_ = 0, half_ = 0, ld_ = 0;
    Buffer<T> rows_, packed_, negative_;
};

}  // namespace qk
