#include "bind.hpp"
#include "qk/mobility.hpp"

namespace qk::bind {
namespace {

// p (n, V) with any strides; returns (n, 6), the fields of RowMobility.
template <class T>
py::array mobility_of(const py::array& p, int extremes, int n_threads) {
    static_assert(sizeof(RowMobility) == 6 * sizeof(double));
    py::array_t<double> out({p.shape(0), py::ssize_t(6)});
    auto* rows = reinterpret_cast<RowMobility*>(out.mutable_data());
    const MatrixView<T> view{static_cast<const T*>(p.data()), element_stride<T>(p, 0),
                             element_stride<T>(p, 1)};
    without_gil(n_threads, [&](const Run& run) {
        mobility_rows(view, p.shape(0), p.shape(1), static_cast<Extremes>(extremes), rows, run);
        return 0;
    });
    return out;
}

py::array roots_of(const Doubles& poles, const Doubles& weights, int n_threads) {
    py::array_t<double> out(poles.size() - 1);
    double* roots = out.mutable_data();
    without_gil(n_threads, [&](const Run& run) {
        secular_roots(poles.data(), weights.data(), poles.size(), roots, run);
        return 0;
    });
    return out;
}

}  // namespace
}  // namespace qk::bind

void register_simplex(py::module_& m) {
    using namespace qk::bind;
    m.def(
        "mobility_rows",
        [](const py::array& p, int extremes, int n_threads) {
            const bool single = p.dtype().num() == py::dtype::num_of<float>();
            return single ? mobility_of<float>(p, extremes, n_threads)
                          : mobility_of<double>(p, extremes, n_threads);
        },
        py::arg("p").noconvert(), py::arg("extremes"), py::arg("n_threads"));
    m.def("secular_roots", &roots_of, py::arg("poles").noconvert(), py::arg("weights").noconvert(),
          py::arg("n_threads"));
}
