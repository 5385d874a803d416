#include "bind.hpp"
#include "qk/low_rank.hpp"

namespace qk::bind {
namespace {

// A tuple of arrays (rank, n), each with contiguous rows; Python checks this.
template <class T>
FactorSide<T> side_of(const py::tuple& factors) {
    FactorSide<T> side;
    for (const py::handle item : factors) {
        const auto a = py::reinterpret_borrow<py::array>(item);
        side.n_points = a.shape(1);
        side.experts.push_back({static_cast<const T*>(a.data()), a.shape(0), element_stride<T>(a, 0)});
    }
    return side;
}

// z (k, m) contiguous; the product is (k, n).
template <class T>
py::array product_of(const py::tuple& left, const py::tuple& right, const py::array& z, int n_threads) {
    const FactorSide<T> l = side_of<T>(left), r = side_of<T>(right);
    const Index k = z.shape(0);
    py::array_t<T> out({k, l.n_points});
    T* data = out.mutable_data();
    const T* values = data_of<T>(z);
    without_gil(n_threads, [&](const Run& run) {
        factored_product(l, r, values, k, data, run);
        return 0;
    });
    return out;
}

// (count, smallest, mass)
template <class T>
py::tuple negative_of(const py::tuple& left, const py::tuple& right, const py::array& u, const py::array& v,
                      const py::array& row_slack, const py::array& col_slack, int n_threads) {
    const FactorSide<T> l = side_of<T>(left), r = side_of<T>(right);
    const EntryScales<T> scales{data_of<T>(u), data_of<T>(v), data_of<T>(row_slack), data_of<T>(col_slack)};
    const NegativeEntries found =
        without_gil(n_threads, [&](const Run& run) { return negative_entries(l, r, scales, run); });
    return py::make_tuple(found.count, found.smallest, found.mass);
}

}  // namespace
}  // namespace qk::bind

void register_low_rank(py::module_& m) {
    using namespace qk::bind;
    m.def(
        "factored_product",
        [](const py::tuple& left, const py::tuple& right, const py::array& z, int n_threads) {
            const auto product = is_float32(z) ? &product_of<float> : &product_of<double>;
            return product(left, right, z, n_threads);
        },
        py::arg("left"), py::arg("right"), py::arg("z").noconvert(), py::arg("n_threads"));
    m.def(
        "negative_entries",
        [](const py::tuple& left, const py::tuple& right, const py::array& u, const py::array& v,
           const py::array& row_slack, const py::array& col_slack, int n_threads) {
            const auto count = is_float32(u) ? &negative_of<float> : &negative_of<double>;
            return count(left, right, u, v, row_slack, col_slack, n_threads);
        },
        py::arg("left"), py::arg("right"), py::arg("u").noconvert(), py::arg("v").noconvert(),
        py::arg("row_slack").noconvert(), py::arg("col_slack").noconvert(), py::arg("n_threads"));
}
