#include "qk/symmetric.hpp"
#include "score_tuple.hpp"

namespace qk::bind {
namespace {

// The weights of one problem as upper tiles, (tiles, side, side).
template <class T>
py::array pack_of(const ScoreTuple& scores, int n_threads) {
    const Problem<T> problem = scores.problem<T>(0);
    py::array_t<T> out({symmetric_tile_count(problem.n_rows), symmetric_tile, symmetric_tile});
    T* data = out.mutable_data();
    const Status status =
        without_gil(n_threads, [&](const Run& run) { return pack_symmetric(problem, data, run); });
    raise_on_overflow(status, scores.float32);
    return out;
}

// x (k, n) is contiguous, and so is the product.
template <class T>
py::array product_of(const py::array& tiles, const py::array& x, int n_threads) {
    py::array_t<T> out({x.shape(0), x.shape(1)});
    T* data = out.mutable_data();
    without_gil(n_threads, [&](const Run& run) {
        return symmetric_product(x.shape(1), static_cast<const T*>(tiles.data()), x.shape(0),
                                 static_cast<const T*>(x.data()), data, run);
    });
    return out;
}

// The factor (max_rank, n), of which the first `rank` rows are set, the rank, and the trace of the rest.
template <class T>
py::tuple factor_of(const ScoreTuple& scores, py::ssize_t max_rank, double enough, int n_threads) {
    const Problem<T> problem = scores.problem<T>(0);
    py::array_t<T> out({max_rank, problem.n_rows});
    T* data = out.mutable_data();
    PartialFactor found;
    const Status status = without_gil(n_threads, [&](const Run& run) {
        return partial_cholesky(problem, max_rank, enough, data, found, run);
    });
    raise_on_overflow(status, scores.float32);
    return py::make_tuple(out, found.rank, found.rest);
}

}  // namespace
}  // namespace qk::bind

void register_symmetric(py::module_& m) {
    using namespace qk::bind;
    m.attr("SYMMETRIC_TILE") = qk::symmetric_tile;
    m.def(
        "pack_symmetric",
        [](const py::tuple& spec, int n_threads) {
            const ScoreTuple scores(spec);
            return scores.float32 ? pack_of<float>(scores, n_threads) : pack_of<double>(scores, n_threads);
        },
        py::arg("spec"), py::arg("n_threads"));
    m.def(
        "symmetric_product",
        [](const py::array& tiles, const py::array& x, int n_threads) {
            return is_float32(x) ? product_of<float>(tiles, x, n_threads)
                                 : product_of<double>(tiles, x, n_threads);
        },
        py::arg("tiles").noconvert(), py::arg("x").noconvert(), py::arg("n_threads"));
    m.def(
        "partial_cholesky",
        [](const py::tuple& spec, py::ssize_t max_rank, double enough, int n_threads) {
            const ScoreTuple scores(spec);
            return scores.float32 ? factor_of<float>(scores, max_rank, enough, n_threads)
                                  : factor_of<double>(scores, max_rank, enough, n_threads);
        },
        py::arg("spec"), py::arg("max_rank"), py::arg("enough"), py::arg("n_threads"));
}
