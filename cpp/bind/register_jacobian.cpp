#include "qk/jacobian.hpp"
#include "score_tuple.hpp"

namespace qk::bind {
namespace {

// (rows, columns, shift, normalizer, values, outputs), contiguous and of one dtype; Python checks this.
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

// (G Y, G^T X, w^T U, G 1, G^T 1) for w = exp(scores) and G = w t, both given as score tuples. `kept` is None, or the
// blocks that are kept and their size.
template <class T>
py::tuple pull_back(const ScoreTuple& scores, const ScoreTuple& cotangent, const py::array& Y,
                    const py::array& X, const py::array& U, const py::object& kept, int n_threads) {
    const auto view = [](const py::array& a) {
        return MatrixView<T>{data_of<T>(a), element_stride<T>(a, 0), element_stride<T>(a, 1)};
    };
    PullTask<T> task;
    task.scores = scores.problem<T>(0);
    task.cotangent = cotangent.problem<T>(0);
    const Index n = task.scores.n_rows, m = task.scores.n_cols;
    task.col_points = view(Y), task.row_points = view(X), task.row_values = view(U);
    task.n_y = Y.shape(1), task.n_x = X.shape(1), task.n_u = U.shape(1);
    py::array_t<T> to_rows({n, task.n_y}), to_cols({m, task.n_x}), to_values({m, task.n_u}), row_sums(n),
        col_sums(m);
    task.to_rows = to_rows.mutable_data(), task.to_cols = to_cols.mutable_data();
    task.to_values = to_values.mutable_data();
    task.row_sums = row_sums.mutable_data(), task.col_sums = col_sums.mutable_data();
    KeptBlocks blocks;
    py::array_t<unsigned char> keep;
    if (!kept.is_none()) {
        const auto [mask, rows, cols] =
            kept.cast<std::tuple<py::array_t<unsigned char, py::array::c_style>, Index, Index>>();
        keep = mask;
        blocks = {keep.data(), rows, cols, keep.shape(1)};
    }
    const Status status = without_gil(n_threads, [&](const Run& run) { return pull(task, blocks, run); });
    raise_on_overflow(status, scores.float32);
    return py::make_tuple(to_rows, to_cols, to_values, row_sums, col_sums);
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
    m.def(
        "pull",
        [](const py::tuple& scores, const py::tuple& cotangent, const py::array& Y, const py::array& X,
           const py::array& U, const py::object& kept, int n_threads) {
            const ScoreTuple s(scores), t(cotangent);
            const auto work = s.float32 ? &pull_back<float> : &pull_back<double>;
            return work(s, t, Y, X, U, kept, n_threads);
        },
        py::arg("scores"), py::arg("cotangent"), py::arg("Y").noconvert(), py::arg("X").noconvert(),
        py::arg("U").noconvert(), py::arg("kept"), py::arg("n_threads"));
}
