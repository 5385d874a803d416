// Reads the tuple by which Python describes scores (python/qkcore/scores.py, Scores._spec):
//   (float32?, batch shape, n_rows, n_cols, row_offsets | None, col_offsets | None,
//    dots ((X, Y, scale), ...), distances ((X, Y, scale, n_negative, power), ...), dense ((Z, scale), ...),
//    row_bias (r, ...), col_bias (c, ...), masks (M, ...), band_lo, band_hi,
//    rounding (scale on the columns? of each dot, stage of each row_bias, stage of each col_bias) | None)
// Arrays are broadcast over the batch axes here by strides of zero, so nothing is copied.
#pragma once

#include "bind.hpp"

namespace qk::bind {

// The batch of problems that one tuple describes: leading axes, or ragged blocks.
struct Batch {
    std::vector<Index> shape;
    Index n_rows = 0, n_cols = 0;
    std::vector<Index> row_offsets, col_offsets;  // for ragged blocks only
    Index n_problems = 1;

    bool ragged() const { return !row_offsets.empty(); }
    Index rows_of(Index b) const {
        const auto i = static_cast<std::size_t>(b);
        return ragged() ? row_offsets[i + 1] - row_offsets[i] : n_rows;
    }
    Index cols_of(Index b) const {
        const auto i = static_cast<std::size_t>(b);
        return ragged() ? col_offsets[i + 1] - col_offsets[i] : n_cols;
    }
    Index first_row(Index b) const { return ragged() ? row_offsets[static_cast<std::size_t>(b)] : 0; }
    Index first_col(Index b) const { return ragged() ? col_offsets[static_cast<std::size_t>(b)] : 0; }
    // Where the rows (columns) of problem b start in an output that holds the rows of all problems one after another.
    Index row_base(Index b) const { return ragged() ? first_row(b) : b * n_rows; }
    Index col_base(Index b) const { return ragged() ? first_col(b) : b * n_cols; }

    // Shape of an output with the batch axes in front.
    std::vector<py::ssize_t> output_shape(std::initializer_list<Index> core) const {
        std::vector<py::ssize_t> out(shape.begin(), shape.end());
        out.insert(out.end(), core.begin(), core.end());
        return out;
    }

    // Refuses an array whose own axes are not `core` (-1: any length), whose other axes are not the batch's, or whose
    // entries have another size. Its owner can change an array's shape at any time, and it would then be read beyond
    // its end.
    void require_shape(const py::array& a, std::initializer_list<Index> core, py::ssize_t itemsize) const;

    // Pointer to problem b of an array, whose last `core` axes belong to one problem.
    template <class T>
    const T* start(const py::array& a, Index b, py::ssize_t core) const {
        const char* data = static_cast<const char*>(a.data());
        const py::ssize_t lead = a.ndim() - core;
        for (py::ssize_t k = static_cast<py::ssize_t>(shape.size()) - 1; k >= 0; --k) {
            const Index size = shape[static_cast<std::size_t>(k)];
            const Index at = b % size;
            b /= size;
            const py::ssize_t axis = k - static_cast<py::ssize_t>(shape.size()) + lead;
            if (axis >= 0 && a.shape(axis) != 1) data += at * a.strides(axis);
        }
        return reinterpret_cast<const T*>(data);
    }

    // The matrix of problem b. `rows` and `cols` say along which sides of the scores its axes run, so that
    // axes of length 1 broadcast and ragged blocks start at their offsets.
    template <class T>
    MatrixView<T> matrix(const py::array& a, Index b, Index row_start, Index col_start) const {
        const py::ssize_t r = a.ndim() - 2, c = a.ndim() - 1;
        MatrixView<T> v{start<T>(a, b, 2), element_stride<T>(a, r), element_stride<T>(a, c)};
        v.data += row_start * v.row_stride + col_start * v.col_stride;
        return v;
    }
};

struct ScoreTuple {
    explicit ScoreTuple(py::tuple spec);

    bool float32 = false;
    Batch batch;

    template <class T>
    Problem<T> problem(Index b) const;

private:
    void require_shapes() const;

    py::tuple spec_;
};

}  // namespace qk::bind
