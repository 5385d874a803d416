// Many short rows times one small matrix, in double, by the register-blocked kernel of products.
#pragma once

#include <algorithm>

#include <Eigen/Core>

#include "engine/tile_kernels.hpp"

namespace qk {

class RowMap {
public:
    using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

    struct Scratch {
        Buffer<double> in, out;
    };

    RowMap() = default;
    explicit RowMap(const Matrix& m) : inputs_(m.cols()), outputs_(m.rows()) {
        constexpr Index width = MicroTile<double>::width;
        n_packs_ = (outputs_ + width - 1) / width;
        packed_.reserve(n_packs_ * width * inputs_);
        double* to = packed_.data();
        for (Index q = 0; q < n_packs_; q += MicroTile<double>::packs) {
            const Index wide = width * std::min<Index>(MicroTile<double>::packs, n_packs_ - q);
            for (Index k = 0; k < inputs_; ++k)
                for (Index a = q * width; a < q * width + wide; ++a) *to++ = a < outputs_ ? m(a, k) : 0.0;
        }
    }

    Index outputs() const { return outputs_; }

    // Calls put(i, y) with y = M x_i + start for each of n_rows rows x_i, which follow one another; start may be null.
    template <class T, class Put>
    void each(const T* x, Index n_rows, const double* start, Scratch& scratch, const Put& put) const {
        const Index ld = n_packs_ * MicroTile<double>::width;
        scratch.in.reserve(n_rows * inputs_);
        scratch.out.reserve(n_rows * ld);
        double *in = scratch.in.data(), *out = scratch.out.data();
        for (Index e = 0; e < n_rows * inputs_; ++e) in[e] = static_cast<double>(x[e]);
        for (Index i = 0; i < n_rows; ++i, out += ld) {
            std::fill(out, out + ld, 0.0);
            if (start != nullptr) std::copy_n(start, outputs_, out);
        }
        out = scratch.out.data();
        product_tile(in, inputs_, n_rows, inputs_, packed_.data(), inputs_, 0, n_packs_, out, ld);
        for (Index i = 0; i < n_rows; ++i) put(i, out + i * ld);
    }

private:
    Index inputs_ = 0, outputs_ = 0, n_packs_ = 0;
    Buffer<double> packed_;
};

}  // namespace qk
