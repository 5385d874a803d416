// Products of square matrices that are stored by rows, computed by the register-blocked kernel of the engine.
#pragma once

#include <algorithm>

#include "engine/tile_kernels.hpp"
#include "engine/tuning.hpp"
#include "qk/threads.hpp"

namespace qk {

// The right factor of a product: panels of two packs of columns, as product_tile reads them.
template <class T>
class RightFactor {
public:
    static constexpr Index width = MicroTile<T>::cols;

    // Packs b (n x n), or its transpose.
    void set(const T* b, Index n, bool transposed = false) {
        n_ = n;
        packed_.reserve(round_up(n, width) * n);
        T* to = packed_.data();
        for (Index c = 0; c < n; c += width) {
            const Index live = std::min(width, n - c);
            for (Index k = 0; k < n; ++k, to += width) {
                if (transposed)
                    for (Index j = 0; j < live; ++j) to[j] = b[(c + j) * n + k];
                else
                    std::copy_n(b + k * n + c, live, to);
                std::fill(to + live, to + width, T(0));
            }
        }
    }

    // out := a b, or out += a b; the threads of the run share the rows.
    void multiply(const T* a, T* out, bool add, const Run& run) const {
        const Index n = n_, rows = tuning::product_rows;
        parallel_for(scaled(run), (n + rows - 1) / rows, [&](Index task, int) {
            const Index first = task * rows, n_rows = std::min(rows, n - first);
            multiply_rows(a + first * n, n_rows, out + first * n, add);
        });
    }

private:
    Run scaled(const Run& run) const {
        Run out = run;
        if (n_ < tuning::product_threads) out.n_threads = 1;
        return out;
    }

    void multiply_rows(const T* a, Index n_rows, T* out, bool add) const {
        constexpr Index packs = MicroTile<T>::packs;
        const Index n = n_, whole = n / width * width, rest = n - whole;
        T edge[tuning::product_rows * width];  // the last panel, some columns of which lie outside the matrix
        for (Index r = 0; r < n_rows; ++r) {
            if (!add) std::fill(out + r * n, out + (r + 1) * n, T(0));
            std::copy_n(out + r * n + whole, rest, edge + r * width);
            std::fill(edge + r * width + rest, edge + (r + 1) * width, T(0));
        }
        for (Index k = 0; k < n; k += tuning::product_depth) {
            const Index depth = std::min(tuning::product_depth, n - k);
            if (whole > 0)
                product_tile(a + k, n, n_rows, depth, packed_.data(), n, k, whole / width * packs, out, n);
            if (rest > 0)
                product_tile(a + k, n, n_rows, depth, packed_.data() + whole * n, n, k, packs, edge, width);
        }
        for (Index r = 0; r < n_rows; ++r) std::copy_n(edge + r * width, rest, out + r * n + whole);
    }

    Index n_ = 0;
    Buffer<T> packed_;
};

}  // namespace qk
