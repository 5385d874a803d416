#include "score_tuple.hpp"

namespace qk::bind {
namespace {

py::array array_at(const py::tuple& t, std::size_t i) { return py::reinterpret_borrow<py::array>(t[i]); }

std::vector<Index> offsets(const py::handle& h) {
    std::vector<Index> out;
    if (h.is_none()) return out;
    const auto a = py::reinterpret_borrow<py::array_t<Index>>(h);
    out.assign(a.data(), a.data() + a.size());
    return out;
}

}  // namespace

ScoreTuple::ScoreTuple(py::tuple spec) : float32(spec[0].cast<bool>()), spec_(std::move(spec)) {
    for (const auto size : spec_[1].cast<py::tuple>()) batch.shape.push_back(size.cast<Index>());
    batch.n_rows = spec_[2].cast<Index>();
    batch.n_cols = spec_[3].cast<Index>();
    batch.row_offsets = offsets(spec_[4]);
    batch.col_offsets = offsets(spec_[5]);
    if (batch.ragged()) batch.n_problems = static_cast<Index>(batch.row_offsets.size()) - 1;
    for (const Index size : batch.shape) batch.n_problems *= size;
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
    // How the sum is rounded (python/qkcore/_rounding.py); what is not said is False, or the first stage.
    const py::handle rounding = spec_[14];
    const auto said = [&](Py_ssize_t what, std::size_t i) {
        if (rounding.is_none()) return 0;
        const py::handle given = PyTuple_GET_ITEM(rounding.ptr(), what);
        const auto at = static_cast<Py_ssize_t>(i);
        return at < PyTuple_GET_SIZE(given.ptr()) ? py::handle(PyTuple_GET_ITEM(given.ptr(), at)).cast<int>()
                                                  : 0;
    };
    for (const auto item : spec_[6].cast<py::tuple>()) {
        p.dots.push_back(features(item.cast<py::tuple>()));
        p.dots.back().scale_cols = said(0, p.dots.size() - 1) != 0;
    }
    for (const auto item : spec_[7].cast<py::tuple>()) {
        const auto t = item.cast<py::tuple>();
        p.distances.push_back(features(t));
        p.distances.back().n_negative = t[3].cast<Index>();
    }
    for (const auto item : spec_[8].cast<py::tuple>()) {
        const auto t = item.cast<py::tuple>();
        p.dense.push_back(
            {batch.matrix<T>(array_at(t, 0), b, row, col), static_cast<T>(t[1].cast<double>())});
    }
    const auto biases = [&](std::size_t at, Py_ssize_t stages, Index start, std::vector<Bias<T>>& out) {
        for (const auto item : spec_[at].cast<py::tuple>()) {
            const auto a = py::reinterpret_borrow<py::array>(item);
            const Index stride = element_stride<T>(a, a.ndim() - 1);
            const auto stage = static_cast<Stage>(said(stages, out.size()));
            out.push_back({batch.start<T>(a, b, 1) + start * stride, stride, stage});
        }
    };
    biases(9, 1, row, p.row_bias);
    biases(10, 2, col, p.col_bias);
    for (const auto item : spec_[11].cast<py::tuple>()) {
        const auto a = py::reinterpret_borrow<py::array>(item);
        const auto v = batch.matrix<unsigned char>(a, b, row, col);
        p.masks.push_back({v.data, v.row_stride, v.col_stride});
    }
    p.band.lo = spec_[12].cast<Index>();
    p.band.hi = spec_[13].cast<Index>();
    return p;
}

template Problem<float> ScoreTuple::problem(Index) const;
template Problem<double> ScoreTuple::problem(Index) const;

}  // namespace qk::bind
