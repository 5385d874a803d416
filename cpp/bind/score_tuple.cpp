#include "score_tuple.hpp"

namespace qk::bind {
namespace {

py::array array_at(const py::tuple& t, std::size_t i) { return py::reinterpret_borrow<py::array>(t[i]); }

constexpr py::ssize_t n_entries = 15;

// Calls body(item) for every item of entry `at` of a description. Such entries are tuples, most of them empty.
template <class Body>
void each_item(const py::tuple& spec, py::ssize_t at, const Body& body) {
    PyObject* items = PyTuple_GET_ITEM(spec.ptr(), at);
    if (!PyTuple_Check(items)) throw py::type_error("scores: wanted a tuple for every kind of term");
    const py::ssize_t n = PyTuple_GET_SIZE(items);
    for (py::ssize_t k = 0; k < n; ++k) body(py::handle(PyTuple_GET_ITEM(items, k)));
}

std::vector<Index> offsets(const py::handle& h) {
    std::vector<Index> out;
    if (h.is_none()) return out;
    const auto a = py::reinterpret_borrow<py::array_t<Index>>(h);
    out.assign(a.data(), a.data() + a.size());
    return out;
}

}  // namespace

void Batch::require_shape(const py::array& a, std::initializer_list<Index> core, py::ssize_t itemsize) const {
    const py::ssize_t lead = a.ndim() - static_cast<py::ssize_t>(core.size());
    const auto n_axes = static_cast<py::ssize_t>(shape.size());
    bool fits = lead >= 0 && lead <= n_axes && a.itemsize() == itemsize;
    for (py::ssize_t k = 0; fits && k < lead; ++k)
        fits = a.shape(k) == 1 || a.shape(k) == shape[static_cast<std::size_t>(n_axes - lead + k)];
    py::ssize_t axis = lead;
    for (const Index length : core) {
        fits = fits && (length < 0 || a.shape(axis) == length);
        ++axis;
    }
    if (!fits)
        throw py::value_error(
            "scores: wanted the arrays as they were when the scores were made, got one with another shape or "
            "dtype; "
            "make the scores again");
}

ScoreTuple::ScoreTuple(py::tuple spec) : spec_(std::move(spec)) {
    if (static_cast<py::ssize_t>(spec_.size()) != n_entries)
        throw py::type_error("scores: wanted a description of 15 entries");
    float32 = spec_[0].cast<bool>();
    each_item(spec_, 1, [&](const py::handle& size) { batch.shape.push_back(size.cast<Index>()); });
    batch.n_rows = spec_[2].cast<Index>();
    batch.n_cols = spec_[3].cast<Index>();
    batch.row_offsets = offsets(spec_[4]);
    batch.col_offsets = offsets(spec_[5]);
    if (batch.ragged()) batch.n_problems = static_cast<Index>(batch.row_offsets.size()) - 1;
    for (const Index size : batch.shape) batch.n_problems *= size;
    require_shapes();
}

void ScoreTuple::require_shapes() const {
    const py::ssize_t item = float32 ? 4 : 8;
    const auto points = [&](const py::handle& term) {
        const auto pair = py::reinterpret_borrow<py::tuple>(term);
        const py::array x = array_at(pair, 0);
        batch.require_shape(x, {batch.n_rows, -1}, item);
        batch.require_shape(array_at(pair, 1), {batch.n_cols, x.shape(x.ndim() - 1)}, item);
    };
    each_item(spec_, 6, points);
    each_item(spec_, 7, points);
    each_item(spec_, 8, [&](const py::handle& term) {
        const py::array z = array_at(py::reinterpret_borrow<py::tuple>(term), 0);
        batch.require_shape(z, {batch.n_rows, batch.n_cols}, item);
    });
    each_item(spec_, 9, [&](const py::handle& shift) {
        batch.require_shape(py::reinterpret_borrow<py::array>(shift), {batch.n_rows}, item);
    });
    each_item(spec_, 10, [&](const py::handle& shift) {
        batch.require_shape(py::reinterpret_borrow<py::array>(shift), {batch.n_cols}, item);
    });
    each_item(spec_, 11, [&](const py::handle& mask) {
        batch.require_shape(py::reinterpret_borrow<py::array>(mask), {batch.n_rows, batch.n_cols}, 1);
    });
}

template <class T>
Problem<T> ScoreTuple::problem(Index b) const {
    Problem<T> p;
    p.n_rows = batch.rows_of(b);
    p.n_cols = batch.cols_of(b);
    const Index row = batch.first_row(b), col = batch.first_col(b);
    const auto features = [&](const py::tuple& t) {
        FeatureTerm<T> term;
        const py::array x = array_at(t, 0), y = array_at(t, 1);
        term.rows = batch.matrix<T>(x, b, row, 0);
        term.cols = batch.matrix<T>(y, b, col, 0);
        term.dim = x.shape(x.ndim() - 1);
        term.scale = static_cast<T>(t[2].cast<double>());
        return term;
    };
    // How the sum is rounded (python/qkcore/_rounding.py). Items that a tuple does not list are False, or the first stage.
    const py::handle rounding = spec_[14];
    const auto said = [&](Py_ssize_t what, std::size_t i) {
        if (rounding.is_none()) return 0;
        const py::handle given = PyTuple_GET_ITEM(rounding.ptr(), what);
        const auto at = static_cast<Py_ssize_t>(i);
        return at < PyTuple_GET_SIZE(given.ptr()) ? py::handle(PyTuple_GET_ITEM(given.ptr(), at)).cast<int>()
                                                  : 0;
    };
    each_item(spec_, 6, [&](const py::handle& item) {
        p.dots.push_back(features(py::reinterpret_borrow<py::tuple>(item)));
        p.dots.back().scale_cols = said(0, p.dots.size() - 1) != 0;
    });
    each_item(spec_, 7, [&](const py::handle& item) {
        const auto t = py::reinterpret_borrow<py::tuple>(item);
        p.distances.push_back(features(t));
        p.distances.back().n_negative = t[3].cast<Index>();
        p.distances.back().kind = static_cast<FeatureKind>(t[4].cast<int>());
    });
    each_item(spec_, 8, [&](const py::handle& item) {
        const auto t = py::reinterpret_borrow<py::tuple>(item);
        p.dense.push_back(
            {batch.matrix<T>(array_at(t, 0), b, row, col), static_cast<T>(t[1].cast<double>())});
    });
    const auto biases = [&](py::ssize_t at, Py_ssize_t stages, Index start, std::vector<Bias<T>>& out) {
        each_item(spec_, at, [&](const py::handle& item) {
            const auto a = py::reinterpret_borrow<py::array>(item);
            const Index stride = element_stride<T>(a, a.ndim() - 1);
            const auto stage = static_cast<Stage>(said(stages, out.size()));
            out.push_back({batch.start<T>(a, b, 1) + start * stride, stride, stage});
        });
    };
    biases(9, 1, row, p.row_bias);
    biases(10, 2, col, p.col_bias);
    each_item(spec_, 11, [&](const py::handle& item) {
        const auto a = py::reinterpret_borrow<py::array>(item);
        const auto v = batch.matrix<unsigned char>(a, b, row, col);
        p.masks.push_back({v.data, v.row_stride, v.col_stride});
    });
    p.band.lo = spec_[12].cast<Index>();
    p.band.hi = spec_[13].cast<Index>();
    return p;
}

template Problem<float> ScoreTuple::problem(Index) const;
template Problem<double> ScoreTuple::problem(Index) const;

}  // namespace qk::bind
