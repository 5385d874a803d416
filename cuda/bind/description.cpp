#include "description.hpp"

#include <cmath>

namespace qk::cuda {

namespace {

nb::tuple tuple_of(nb::handle object, std::size_t length, const char* name) {
    if (!nb::isinstance<nb::tuple>(object) || nb::len(object) != length)
        raise_type(std::string(name) + ": wanted a tuple of " + std::to_string(length) +
                   " as qkcore describes scores; use qk.scores");
    return nb::borrow<nb::tuple>(object);
}

Index index_of(nb::handle object, const char* name) {
    if (!PyLong_Check(object.ptr())) raise_type(std::string(name) + ": wanted an integer");
    return nb::cast<Index>(object);
}

DType real_of(nb::handle object) {
    const auto text = nb::cast<std::string>(nb::str(object));
    if (text == "float32") return DType::float32;
    if (text == "float64") return DType::float64;
    raise_type("scores: wanted float32 or float64, got " + text);
}

}  // namespace

Description::Description(nb::handle described, Stream stream) : stream_(stream) {
    const nb::tuple given = tuple_of(described, 13, "scores");
    real = real_of(given[0]);
    inputs = real;
    device = static_cast<int>(index_of(given[1], "device"));
    for (const nb::handle length : nb::borrow<nb::tuple>(given[2]))
        batch.push_back(index_of(length, "batch"));
    n_rows = index_of(given[3], "n_rows");
    n_cols = index_of(given[4], "n_cols");
    if (n_rows < 1 || n_cols < 1 || problems() < 1) raise_value("scores: wanted no axis of length 0");
    add_features(given[5], FeatureKind::dot);
    add_features(given[6], FeatureKind::distance);
    if (features_.size() > max_terms)
        raise_value("scores: wanted at most " + std::to_string(max_terms) + " terms from points, got " +
                    std::to_string(features_.size()) + "; add them up before");
    for (const nb::handle term : nb::borrow<nb::tuple>(given[7])) {
        const nb::tuple pair = tuple_of(term, 2, "dense");
        find_inputs(pair[0]);
        dense_.push_back({read(pair[0], "Z", inputs, {n_rows, n_cols}), nb::cast<double>(pair[1])});
    }
    add_biases(given[8], "rows", n_rows, row_bias_);
    add_biases(given[9], "columns", n_cols, col_bias_);
    for (const nb::handle mask : nb::borrow<nb::tuple>(given[10]))
        masks_.push_back(read(mask, "M", DType::boolean, {n_rows, n_cols}));
    if (dense_.size() > max_terms || masks_.size() > max_terms)
        raise_value("scores: wanted at most " + std::to_string(max_terms) +
                    " dense terms and as many masks; add them up before");
    if (row_bias_.size() > max_biases || col_bias_.size() > max_biases)
        raise_value("scores: wanted at most " + std::to_string(max_biases) +
                    " shifts per side; add them up before");
    lo_ = index_of(given[11], "lo");
    hi_ = index_of(given[12], "hi");
}

// The dtype of the inputs is that of the first array.
void Description::find_inputs(nb::handle object) {
    if (inputs_known_) return;
    inputs = array_of(object, "X", stream_).dtype;
    inputs_known_ = true;
}

void Description::add_features(nb::handle terms, FeatureKind kind) {
    for (const nb::handle term : nb::borrow<nb::tuple>(terms)) {
        const nb::tuple parts = tuple_of(term, kind == FeatureKind::dot ? 3 : 4, "term");
        find_inputs(parts[0]);
        const Batched rows = read(parts[0], "X", inputs, {n_rows, -1});
        const Index dim = rows.array.shape.back();
        const Batched cols = read(parts[1], "Y", inputs, {n_cols, dim});
        const auto scale = nb::cast<double>(parts[2]);
        // The last coordinates belong to the negative directions of an indefinite metric; their scale is negated.
        const Index negative = kind == FeatureKind::dot ? 0 : index_of(parts[3], "n_negative");
        if (negative < 0 || negative > dim) raise_value("n_negative: wanted 0 to the dimension");
        if (dim > negative) features_.push_back({kind, rows, cols, 0, dim - negative, scale});
        if (negative > 0) features_.push_back({kind, rows, cols, dim - negative, negative, -scale});
    }
}

void Description::add_biases(nb::handle terms, const char* name, Index length,
                             std::vector<Batched>& to) const {
    for (const nb::handle term : nb::borrow<nb::tuple>(terms)) {
        to.push_back(read(term, name, real, {length}));
        if (length > 1 && to.back().stride(1) != 1)
            raise_value(
                std::string(name) +
                ": wanted shifts whose last axis is contiguous, got a strided array; pass a contiguous copy");
    }
}

Batched Description::read(nb::handle object, const char* name, DType dtype,
                          const std::vector<Index>& core) const {
    Batched out;
    out.array = array_of(object, name, stream_);
    const Array& array = out.array;
    if (array.dtype != dtype)
        raise_type(std::string(name) + ": wanted " + name_of(dtype) + ", got " + name_of(array.dtype) +
                   "; convert one of the arrays");
    if (array.device != device)
        raise_value(std::string(name) + ": wanted an array on cuda:" + std::to_string(device) +
                    " like the others, got one on cuda:" + std::to_string(array.device) + "; copy it there");
    const std::size_t n = array.shape.size(), n_core = core.size();
    bool fits = n >= n_core && n - n_core <= batch.size();
    for (std::size_t k = 0; fits && k < n_core; ++k)
        fits = core[k] < 0 || array.shape[n - n_core + k] == core[k];
    out.batch_strides.assign(batch.size(), 0);
    for (std::size_t k = 0; fits && k < n - n_core; ++k) {
        const std::size_t axis = batch.size() - (n - n_core) + k;
        fits = array.shape[k] == batch[axis] || array.shape[k] == 1;
        if (fits && array.shape[k] > 1) out.batch_strides[axis] = array.strides[k];
    }
    if (!fits) {
        std::string wanted = "(...";
        for (const Index length : core)
            wanted += ", " + (length < 0 ? std::string("d") : std::to_string(length));
        raise_value(std::string(name) + ": wanted shape " + wanted +
                    "), batch axes like the scores' or 1, got " + array.shape_text());
    }
    return out;
}

Index Description::problems() const {
    Index n = 1;
    for (const Index length : batch) n *= length;
    return n;
}

std::vector<Index> Description::problem(Index number) const {
    std::vector<Index> at(batch.size());
    for (std::size_t k = batch.size(); k-- > 0;) {
        at[k] = number % batch[k];
        number /= batch[k];
    }
    return at;
}

}  // namespace qk::cuda
