// Reads the tuple by which Python describes scores (python/qkcore/_device/_scores.py) into the structs of the kernels.
//   (real dtype, device, batch, n_rows, n_cols, dots, distances, dense, row_bias, col_bias, masks, lo, hi)
#pragma once

#include <optional>

#include "arrays.hpp"
#include "qk_cuda/api.hpp"

namespace qk::cuda {

// An array whose last axes belong to one problem. The axes before are the batch; each has the batch's length, or 1.
struct Batched {
    Array array;
    std::vector<Index> batch_strides;  // of every axis of the batch; 0 where it is broadcast

    template <class T>
    const T* at(const std::vector<Index>& problem) const {
        Index offset = 0;
        for (std::size_t k = 0; k < problem.size(); ++k) offset += problem[k] * batch_strides[k];
        return pointer<const T>(array) + offset;
    }
    Index stride(int from_the_end) const {
        return array.strides[array.strides.size() - static_cast<std::size_t>(from_the_end)];
    }
    template <class T>
    Matrix<T> matrix(const std::vector<Index>& problem) const {
        return {at<T>(problem), stride(2), stride(1)};
    }
};

class Description {
public:
    Description(nb::handle described, Stream stream);

    // Reads an array whose last axes have the lengths `core` (-1: any length) and belong to one problem.
    Batched read(nb::handle object, const char* name, DType dtype, const std::vector<Index>& core) const;

    DType real = DType::float32;    // of the results
    DType inputs = DType::float32;  // of features, dense terms and values
    int device = 0;
    std::vector<Index> batch;
    Index n_rows = 0, n_cols = 0;

    Index problems() const;
    std::vector<Index> problem(Index number) const;  // the number of a problem as an index of each batch axis

    template <class T, class In>
    Scores<T, In> scores(const std::vector<Index>& problem) const {
        Scores<T, In> s;
        s.n_rows = n_rows;
        s.n_cols = n_cols;
        s.band.lo = lo_;
        s.band.hi = hi_;
        for (const Feature& f : features_) {
            Matrix<In> rows = f.rows.matrix<In>(problem), cols = f.cols.matrix<In>(problem);
            rows.data += f.first * rows.col_stride;
            cols.data += f.first * cols.col_stride;
            s.features[s.n_features++] = {f.kind, rows, cols, f.dim, static_cast<T>(f.scale)};
        }
        for (const Dense& d : dense_)
            s.dense[s.n_dense++] = {d.values.matrix<In>(problem), static_cast<T>(d.scale)};
        for (const Batched& b : row_bias_) s.row_bias[s.n_row_bias++] = b.at<T>(problem);
        for (const Batched& b : col_bias_) s.col_bias[s.n_col_bias++] = b.at<T>(problem);
        for (const Batched& m : masks_) {
            s.masks[s.n_masks].data = m.at<unsigned char>(problem);
            s.masks[s.n_masks].row_stride = m.stride(2);
            s.masks[s.n_masks++].col_stride = m.stride(1);
        }
        return s;
    }

private:
    struct Feature {
        FeatureKind kind;
        Batched rows, cols;
        Index first, dim;  // a range of coordinates
        double scale;
    };
    struct Dense {
        Batched values;
        double scale;
    };
    void add_features(nb::handle terms, bool dots);
    void add_biases(nb::handle terms, const char* name, Index length, std::vector<Batched>& to) const;
    void find_inputs(nb::handle terms);

    Stream stream_;
    std::vector<Feature> features_;
    std::vector<Dense> dense_;
    std::vector<Batched> row_bias_, col_bias_, masks_;
    Index lo_ = -Band::unbounded, hi_ = Band::unbounded;
    bool inputs_known_ = false;
};

// Calls body(T{}, In{}) for the types of the results and of the inputs.
template <class Body>
void for_types(const Description& d, Body&& body) {
    if (d.real == DType::float64 && d.inputs == DType::float64) return body(double{}, double{});
    if (d.real == DType::float32 && d.inputs == DType::float32) return body(float{}, float{});
    if (d.real == DType::float32 && d.inputs == DType::float16) return body(float{}, Half{});
    if (d.real == DType::float32 && d.inputs == DType::bfloat16) return body(float{}, BFloat16{});
    raise_type(std::string("scores: wanted inputs and results of one dtype, got ") + name_of(d.inputs) +
               " and " + name_of(d.real));
}
template <class Body>
void for_full_types(const Description& d, Body&& body) {
    if (d.inputs != d.real)
        raise_type(std::string("scores: wanted float32 or float64 for this, got ") + name_of(d.inputs) +
                   "; inputs of 16 bits are for products and log-sum-exp");
    for_real(d.real, "scores", body);
}

}  // namespace qk::cuda
