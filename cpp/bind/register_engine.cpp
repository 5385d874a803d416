#include "qk/scalar_math.hpp"
#include "score_tuple.hpp"

namespace qk::bind {
namespace {

// (log-sum-exp, product, expected score, entropy), with None for what was not asked for. With `in_parts` the first is
// an array of three: log-sum-exp, and its two parts, the maximum and the log of the sum relative to it.
template <class T>
py::tuple reduce_rows_of(const ScoreTuple& scores, Weight weight, const py::object& values, bool want_lse,
                         bool want_moments, int n_threads, bool in_parts) {
    const Batch& batch = scores.batch;
    py::object lse = py::none(), product = py::none(), expected = py::none(), entropy = py::none();
    const auto vector = [&](py::object& out) {
        py::array_t<T> a(batch.output_shape({batch.n_rows}));
        T* data = a.mutable_data();
        out = std::move(a);
        return data;
    };
    T* lse_data = nullptr;
    Index n_lse = 0;  // the number of entries of each part
    if (in_parts) {
        auto shape = batch.output_shape({batch.n_rows});
        shape.insert(shape.begin(), 3);
        py::array_t<T> a(shape);
        lse_data = a.mutable_data();
        n_lse = static_cast<Index>(a.size()) / 3;
        lse = std::move(a);
    } else if (want_lse) {
        lse_data = vector(lse);
    }
    T* expected_data = want_moments ? vector(expected) : nullptr;
    T* entropy_data = want_moments ? vector(entropy) : nullptr;
    T* product_data = nullptr;
    Index n_values = 0;
    py::array v;
    if (!values.is_none()) {
        v = py::reinterpret_borrow<py::array>(values);
        n_values = v.shape(v.ndim() - 1);
        py::array_t<T> a(batch.output_shape({batch.n_rows, n_values}));
        product_data = a.mutable_data();
        product = std::move(a);
    }
    std::vector<RowTask<T>> tasks;
    tasks.reserve(static_cast<std::size_t>(batch.n_problems));
    for (Index b = 0; b < batch.n_problems; ++b) {
        RowTask<T> task;
        task.problem = scores.problem<T>(b);
        const Index base = batch.row_base(b);
        if (lse_data != nullptr) task.log_sum_exp = lse_data + base;
        if (in_parts) {
            task.peak = lse_data + n_lse + base;
            task.log_sum = lse_data + 2 * n_lse + base;
        }
        if (want_moments) task.expected = expected_data + base;
        if (want_moments) task.entropy = entropy_data + base;
        if (n_values > 0) {
            task.values = batch.matrix<T>(v, b, batch.first_col(b), 0);
            task.product = product_data + base * n_values;
        }
        tasks.push_back(std::move(task));
    }
    const Status status =
        without_gil(n_threads, [&](const Run& run) { return reduce_rows(tasks, weight, n_values, run); });
    raise_on_overflow(status, scores.float32);
    return py::make_tuple(lse, product, expected, entropy);
}

template <class T>
py::tuple marginals_of(const ScoreTuple& scores, int n_threads) {
    const Batch& batch = scores.batch;
    py::array_t<T> rows(batch.output_shape({batch.n_rows})), cols(batch.output_shape({batch.n_cols}));
    T* row_data = rows.mutable_data();
    T* col_data = cols.mutable_data();
    std::vector<MarginalTask<T>> tasks;
    tasks.reserve(static_cast<std::size_t>(batch.n_problems));
    for (Index b = 0; b < batch.n_problems; ++b)
        tasks.push_back({scores.problem<T>(b), row_data + batch.row_base(b), col_data + batch.col_base(b)});
    const Status status = without_gil(n_threads, [&](const Run& run) { return marginals(tasks, run); });
    raise_on_overflow(status, scores.float32);
    return py::make_tuple(rows, cols);
}

template <class T>
py::array materialize_of(const ScoreTuple& scores, bool raw, Weight weight, int n_threads) {
    const Batch& batch = scores.batch;
    py::array_t<T> out(batch.output_shape({batch.n_rows, batch.n_cols}));
    T* data = out.mutable_data();
    std::vector<DenseTask<T>> tasks;
    tasks.reserve(static_cast<std::size_t>(batch.n_problems));
    for (Index b = 0; b < batch.n_problems; ++b) {
        T* start = batch.ragged() ? data + batch.first_row(b) * batch.n_cols + batch.first_col(b)
                                  : data + b * batch.n_rows * batch.n_cols;
        tasks.push_back({scores.problem<T>(b), start, batch.n_cols});
    }
    const Status status = without_gil(n_threads, [&](const Run& run) {
        if (batch.ragged()) std::fill(data, data + out.size(), raw ? -infinity<T>() : T(0));
        return materialize(tasks, raw, weight, run);
    });
    raise_on_overflow(status, scores.float32);
    return out;
}

// Sums over j of exp(s_ij) e^{i theta_ij} v_j; complex numbers as pairs of reals along the last axis.
template <class T>
py::array apply_phases_of(const ScoreTuple& scores, const ScoreTuple& phases, const py::array& values,
                          const py::array& turned, int n_threads) {
    const Batch& batch = scores.batch;
    const Index n_values = values.shape(values.ndim() - 1);
    py::array_t<T> out(batch.output_shape({batch.n_rows, n_values}));
    T* data = out.mutable_data();
    std::vector<PhaseTask<T>> tasks;
    tasks.reserve(static_cast<std::size_t>(batch.n_problems));
    for (Index b = 0; b < batch.n_problems; ++b)
        tasks.push_back(
            {scores.problem<T>(b), phases.problem<T>(b), batch.matrix<T>(values, b, batch.first_col(b), 0),
             batch.matrix<T>(turned, b, batch.first_col(b), 0), data + batch.row_base(b) * n_values});
    const Status status =
        without_gil(n_threads, [&](const Run& run) { return apply_phases(tasks, n_values, run); });
    raise_on_overflow(status, scores.float32);
    return out;
}

// (sum |d|, sum d^2, sum d (a - b), the largest d by magnitude, max exp(a), column of that d) of each row, d = exp(a) -
// exp(b).
template <class T>
py::tuple compare_rows_of(const ScoreTuple& a, const ScoreTuple& b, int n_threads) {
    const Batch& batch = a.batch;
    const Index n_rows = batch.ragged() ? batch.n_rows : batch.n_rows * batch.n_problems;
    std::vector<RowComparison> rows(static_cast<std::size_t>(n_rows));
    std::vector<CompareTask<T>> tasks;
    tasks.reserve(static_cast<std::size_t>(batch.n_problems));
    for (Index i = 0; i < batch.n_problems; ++i)
        tasks.push_back({a.problem<T>(i), b.problem<T>(i), rows.data() + batch.row_base(i)});
    const Status status = without_gil(n_threads, [&](const Run& run) { return compare_rows(tasks, run); });
    raise_on_overflow(status, a.float32);
    const auto column = [&](double RowComparison::* member) {
        py::array_t<double> out(batch.output_shape({batch.n_rows}));
        double* data = out.mutable_data();
        for (const RowComparison& row : rows) *data++ = row.*member;
        return out;
    };
    py::array_t<Index> where(batch.output_shape({batch.n_rows}));
    Index* data = where.mutable_data();
    for (const RowComparison& row : rows) *data++ = row.where;
    return py::make_tuple(column(&RowComparison::absolute), column(&RowComparison::squares),
                          column(&RowComparison::tilt), column(&RowComparison::largest),
                          column(&RowComparison::top), where);
}

Weight weight_of(int code) {
    if (code < 0 || code > int(Weight::sigmoid))
        throw py::value_error("weight: unknown code " + std::to_string(code));
    return static_cast<Weight>(code);
}

}  // namespace
}  // namespace qk::bind

void register_engine(py::module_& m) {
    using namespace qk::bind;
    m.attr("WEIGHTS") = py::make_tuple("softmax", "exp", "linear", "relu", "sigmoid");
    m.def(
        "reduce_rows",
        [](const py::tuple& spec, int weight, const py::object& values, bool want_lse, bool want_moments,
           int n_threads, bool in_parts) {
            const ScoreTuple scores(spec);
            const auto f = scores.float32 ? &reduce_rows_of<float> : &reduce_rows_of<double>;
            return f(scores, weight_of(weight), values, want_lse, want_moments, n_threads, in_parts);
        },
        py::arg("spec"), py::arg("weight"), py::arg("values"), py::arg("want_lse"), py::arg("want_moments"),
        py::arg("n_threads"), py::arg("in_parts") = false);
    m.def(
        "marginals",
        [](const py::tuple& spec, int n_threads) {
            const ScoreTuple scores(spec);
            return scores.float32 ? marginals_of<float>(scores, n_threads)
                                  : marginals_of<double>(scores, n_threads);
        },
        py::arg("spec"), py::arg("n_threads"));
    m.def(
        "materialize",
        [](const py::tuple& spec, bool raw, int weight, int n_threads) {
            const ScoreTuple scores(spec);
            const auto f = scores.float32 ? &materialize_of<float> : &materialize_of<double>;
            return f(scores, raw, weight_of(weight), n_threads);
        },
        py::arg("spec"), py::arg("raw"), py::arg("weight"), py::arg("n_threads"));
    m.def(
        "apply_phases",
        [](const py::tuple& spec, const py::tuple& phases, const py::array& values, const py::array& turned,
           int n_threads) {
            const ScoreTuple scores(spec), angles(phases);
            const auto f = scores.float32 ? &apply_phases_of<float> : &apply_phases_of<double>;
            return f(scores, angles, values, turned, n_threads);
        },
        py::arg("spec"), py::arg("phases"), py::arg("values"), py::arg("turned"), py::arg("n_threads"));
    m.def(
        "compare_rows",
        [](const py::tuple& a, const py::tuple& b, int n_threads) {
            const ScoreTuple first(a), second(b);
            const auto f = first.float32 ? &compare_rows_of<float> : &compare_rows_of<double>;
            return f(first, second, n_threads);
        },
        py::arg("a"), py::arg("b"), py::arg("n_threads"));
}
