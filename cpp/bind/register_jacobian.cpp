#include "bind.hpp"
#include "qk/jacobian.hpp"

namespace qk::bind {
namespace {

// (rows, columns, shift, normalizer, values, outputs): contiguous and of one dtype, Python sees to that.
template <class T>
AttentionFactors<T> factors_of(const py::tuple& arrays) {
    const auto at = [&](std::size_t k) { return py::reinterpret_borrow<py::array>(arrays[k]); };
    const py::array rows = at(0), columns = at(1), values = at(4);
    return {data_of<T>(rows),  data_of<T>(columns), data_of<T>(at(2)), data_of<T>(at(3)), data_of<T>(values),
            data_of<T>(at(5)), rows.shape(0),       columns.shape(0),  rows.shape(1),     values.shape(1)};
}

template <class T>
py::array push(const py::tuple& arrays, const py::array& left, const py::array& right,
               const py::array& d_values, int n_threads) {
    const AttentionFactors<T> f = factors_of<T>(arrays);
    py::array_t<T> out({f.n_rows, f.n_values});
    T* data = out.mutable_data();
    const T *l = data_of<T>(left), *r = data_of<T>(right), *d = data_of<T>(d_values);
    const Index width = left.shape(1);
    without_gil(n_threads, [&](const Run& run) {
        attention_push(f, l, r, width, d, data, run);
        return 0;
    });
    return out;
}

// (to_rows, to_columns, to_values)
template <class T>
py::tuple pull(const py::tuple& arrays, const py::array& u, int n_threads) {
    const AttentionFactors<T> f = factors_of<T>(arrays);
    py::array_t<T> to_rows({f.n_rows, f.rank}), to_columns({f.n_cols, f.rank}),
        to_values({f.n_cols, f.n_values});
    T *rows = to_rows.mutable_data(), *columns = to_columns.mutable_data(),
      *values = to_values.mutable_data();
    const T* cotangents = data_of<T>(u);
    without_gil(n_threads, [&](const Run& run) {
        attention_pull(f, cotangents, rows, columns, values, run);
        return 0;
    });
    return py::make_tuple(to_rows, to_columns, to_values);
}

}  // namespace
}  // namespace qk::bind

void register_jacobian(py::module_& m) {
    using namespace qk::bind;
    m.def(
        "attention_push",
        [](const py::tuple& factors, const py::array& left, const py::array& right, const py::array& d_values,
           int n_threads) {
            const auto product = is_float32(left) ? &push<float> : &push<double>;
            return product(factors, left, right, d_values, n_threads);
        },
        py::arg("factors"), py::arg("left").noconvert(), py::arg("right").noconvert(),
        py::arg("d_values").noconvert(), py::arg("n_threads"));
    m.def(
        "attention_pull",
        [](const py::tuple& factors, const py::array& u, int n_threads) {
            const auto product = is_float32(u) ? &pull<float> : &pull<double>;
            return product(factors, u, n_threads);
        },
        py::arg("factors"), py::arg("u").noconvert(), py::arg("n_threads"));
}
