#include "bind.hpp"
#include "qk/arrays.hpp"

namespace qk::bind {
namespace {

template <class T>
MatrixView<T> matrix(const py::array& a) {
    return {static_cast<const T*>(a.data()), element_stride<T>(a, 0), element_stride<T>(a, 1)};
}

// The kinds of non-finite entries, as the sum of 1 (NaN), 2 (+inf), 4 (-inf), and the largest finite magnitude.
template <class T>
py::tuple scan_array(const py::array& a, int n_threads) {
    ArrayView<T> view;
    view.data = static_cast<const T*>(a.data());
    for (py::ssize_t k = 0; k < a.ndim(); ++k) {
        view.shape.push_back(a.shape(k));
        view.strides.push_back(element_stride<T>(a, k));
    }
    if (view.shape.empty()) {
        view.shape.push_back(1);
        view.strides.push_back(1);
    }
    Scan found;
    // Scanning a small array takes less time than releasing the GIL.
    if (a.size() < 4096)
        found = scan(view, Run{});
    else
        found = without_gil(n_threads, [&](const Run& run) { return scan(view, run); });
    const int kinds = int(found.nan) + 2 * int(found.plus_inf) + 4 * int(found.minus_inf);
    return py::make_tuple(kinds, found.max_abs);
}

// The largest magnitude of a small array in the usual form (C-contiguous, aligned, float32 or float64 in native order,
// not empty, finite). For any other array it returns -1, and the checks then examine the array one property at a time.
double plain_magnitude(const py::array& a) {
    using Api = py::detail::npy_api;
    constexpr int wanted = Api::NPY_ARRAY_C_CONTIGUOUS_ | Api::NPY_ARRAY_ALIGNED_;
    constexpr double unusual = -1.0;
    const Index n = a.size();
    if ((a.flags() & wanted) != wanted || n == 0 || n > (Index{1} << 14)) return unusual;
    const py::dtype dtype = a.dtype();
    if (dtype.byteorder() != '=') return unusual;
    const auto of = [&](auto zero) {
        using T = decltype(zero);
        const ArrayView<T> view{static_cast<const T*>(a.data()), {n}, {1}};
        const Scan found = scan(view, Run{});
        return found.nan || found.plus_inf || found.minus_inf ? unusual : found.max_abs;
    };
    if (dtype.num() == py::dtype::num_of<float>()) return of(0.0F);
    return dtype.num() == py::dtype::num_of<double>() ? of(0.0) : unusual;
}

template <class T>
py::array project_array(const py::array& x, const py::array& w, int n_threads) {
    py::array_t<T> out({x.shape(0), w.shape(1)});
    T* data = out.mutable_data();
    without_gil(n_threads, [&](const Run& run) {
        project(x.shape(0), x.shape(1), w.shape(1), matrix<T>(x), matrix<T>(w), data, run);
        return 0;
    });
    return out;
}

template <class T>
py::array row_dots_array(const py::array& a, const py::array& b) {
    py::array_t<T> out(a.shape(0));
    row_dots(a.shape(0), a.shape(1), matrix<T>(a), matrix<T>(b), out.mutable_data());
    return out;
}

template <class T>
py::array elementwise(const py::array_t<T, py::array::c_style>& x, void (*function)(const T*, Index, T*)) {
    py::array_t<T> out(x.size());
    function(x.data(), x.size(), out.mutable_data());
    return out;
}

template <class T>
py::tuple sincos_of(const py::array_t<T, py::array::c_style>& x) {
    py::array_t<T> sine(x.size()), cosine(x.size());
    sincos_array(x.data(), x.size(), sine.mutable_data(), cosine.mutable_data());
    return py::make_tuple(sine, cosine);
}

}  // namespace
}  // namespace qk::bind

void register_arrays(py::module_& m) {
    using namespace qk::bind;
    m.def(
        "scan",
        [](const py::array& a, int n_threads) {
            return is_float32(a) ? scan_array<float>(a, n_threads) : scan_array<double>(a, n_threads);
        },
        py::arg("array").noconvert(), py::arg("n_threads"));
    m.def(
        "thread_shortage",
        [] {
            const qk::ThreadShortage found = qk::thread_shortage();
            return py::make_tuple(found.wanted, found.had);
        },
        "How many threads a computation wanted and had when the system last refused some; (0, 0) if never.");
    m.def("plain_magnitude", &plain_magnitude, py::arg("array").noconvert());
    m.def(
        "project",
        [](const py::array& x, const py::array& w, int n_threads) {
            return is_float32(x) ? project_array<float>(x, w, n_threads)
                                 : project_array<double>(x, w, n_threads);
        },
        py::arg("x").noconvert(), py::arg("w").noconvert(), py::arg("n_threads"));
    m.def(
        "row_dots",
        [](const py::array& a, const py::array& b) {
            return is_float32(a) ? row_dots_array<float>(a, b) : row_dots_array<double>(a, b);
        },
        py::arg("a").noconvert(), py::arg("b").noconvert());
    constexpr const char* exp_doc =
        "exp(x), at most EXP_MAX_ULP ulp off; results below the smallest normal number are flushed to 0.";
    constexpr const char* log_doc = "log(x), at most LOG_MAX_ULP ulp off, subnormal arguments included.";
    using Singles = py::array_t<float, py::array::c_style>;
    using Doubles = py::array_t<double, py::array::c_style>;
    m.def(
        "exp", [](const Singles& x) { return elementwise<float>(x, &qk::exp_array); }, py::arg("x"), exp_doc);
    m.def(
        "exp", [](const Doubles& x) { return elementwise<double>(x, &qk::exp_array); }, py::arg("x"),
        exp_doc);
    constexpr const char* exp2_doc =
        "2^x for x <= 0, at most EXP_MAX_ULP ulp off where that is a normal number: weights of particles.";
    m.def(
        "exp2_nonpos", [](const Singles& x) { return elementwise<float>(x, &qk::exp2_nonpos_array); },
        py::arg("x"), exp2_doc);
    m.def(
        "exp2_nonpos", [](const Doubles& x) { return elementwise<double>(x, &qk::exp2_nonpos_array); },
        py::arg("x"), exp2_doc);
    constexpr const char* weight_doc =
        "exp(x) for x <= 0, the softmax's weights: at most EXP_MAX_ULP + |x| / 2 ulp off where that is a "
        "normal number.";
    m.def(
        "weight_exp", [](const Singles& x) { return elementwise<float>(x, &qk::weight_exp_array); },
        py::arg("x"), weight_doc);
    m.def(
        "weight_exp", [](const Doubles& x) { return elementwise<double>(x, &qk::weight_exp_array); },
        py::arg("x"), weight_doc);
    m.def(
        "log", [](const Singles& x) { return elementwise<float>(x, &qk::log_array); }, py::arg("x"), log_doc);
    m.def(
        "log", [](const Doubles& x) { return elementwise<double>(x, &qk::log_array); }, py::arg("x"),
        log_doc);
    constexpr const char* sincos_doc = "(sin x, cos x), at most SINCOS_MAX_ERROR eps off, absolutely.";
    m.def("sincos", [](const Singles& x) { return sincos_of<float>(x); }, py::arg("x"), sincos_doc);
    m.def("sincos", [](const Doubles& x) { return sincos_of<double>(x); }, py::arg("x"), sincos_doc);
}
