#include <algorithm>
#include <string>

#include "bridge_kernel.hpp"
#include "qk/anderson.hpp"
#include "qk/scalar_math.hpp"
#include "qk/transport_flow.hpp"
#include "score_tuple.hpp"

namespace qk::bind {
namespace {

// Copies in pieces; returns false if the run was stopped.
bool from_vector(const std::vector<double>& from, double* to, const Run& run) {
    return in_pieces(run, 0, static_cast<Index>(from.size()), [&](Index first, Index end) {
        std::copy(from.data() + first, from.data() + end, to + first);
    });
}

BridgeOptions options_of(int method, double tol, Index max_iterations, Index max_visits, double row_penalty,
                         double col_penalty) {
    BridgeOptions options;
    options.method = static_cast<BridgeMethod>(method);
    options.tol = tol;
    options.max_iterations = max_iterations;
    options.max_visits = max_visits;
    options.row_penalty = row_penalty;
    options.col_penalty = col_penalty;
    return options;
}

// The methods of a solve, in the order in which they were used.
std::string in_words(const BridgeState& state) {
    std::string words;
    for (const std::string& name : state.methods) words += (words.empty() ? "" : ", then ") + name;
    return words;
}

// Returns (f, g, errors, visits, relaxation, status, methods in words).
py::tuple solve(Kernel& kernel, const Doubles& mu, const Doubles& nu, const Doubles& f, const Doubles& g,
                int method, double tol, Index max_iterations, Index max_visits, double row_penalty,
                double col_penalty, const py::object& report, int n_threads, Index memory, Index period,
                const py::object& observe) {
    BridgeOptions options = options_of(method, tol, max_iterations, max_visits, row_penalty, col_penalty);
    options.memory = memory;
    options.period = period;
    // An exception from a callback, or from a kernel that is given from Python, travels through the solver. This is safe,
    // because the solver owns nothing but memory.
    if (!report.is_none())
        options.report = [&](Index visits, double error) {
            const py::gil_scoped_acquire gil;
            report(visits, error);
        };
    if (!observe.is_none())
        options.observe = [&](const std::vector<double>& at_f, const std::vector<double>& at_g) {
            const py::gil_scoped_acquire gil;
            return observe(to_array(at_f), to_array(at_g)).cast<bool>();
        };
    BridgeState state;
    py::array_t<double> f_out(f.size()), g_out(g.size());
    double *f_data = f_out.mutable_data(), *g_data = g_out.mutable_data();
    without_gil(n_threads, [&](const Run& run) {
        state.f = to_vector(f.data(), f.size(), run);
        state.g = to_vector(g.data(), g.size(), run);
        const std::vector<double> rows = to_vector(mu.data(), mu.size(), run),
                                  cols = to_vector(nu.data(), nu.size(), run);
        if (run.stop->stopped()) return false;
        solve_bridge(kernel.sweep(rows, cols, options, run), rows, cols, options, state, run);
        return from_vector(state.f, f_data, run) && from_vector(state.g, g_data, run);
    });
    return py::make_tuple(f_out, g_out, to_array(state.errors), state.n_visits, state.relaxation,
                          static_cast<int>(state.status), in_words(state));
}

// Solves many problems, each on one thread. Returns (f, g, last error, iterations, visits, status, methods in words,
// whether entries were stored), with the batch in front; ragged problems lie one after the other. mu and nu, and f and g
// as given, have the layout of the result.
template <class T>
py::tuple solve_batch_of(const ScoreTuple& scores, const Doubles& mu, const Doubles& nu, const Doubles& f,
                         const Doubles& g, const BridgeOptions& options, double max_memory, int n_threads) {
    const Batch& batch = scores.batch;
    const auto n = static_cast<std::size_t>(batch.n_problems);
    std::vector<Problem<T>> problems;
    problems.reserve(n);
    for (Index b = 0; b < batch.n_problems; ++b) problems.push_back(scores.problem<T>(b));
    std::vector<BridgeState> states(n);
    std::vector<Storage> storages(n, Storage::on_the_fly);
    const double *mu_data = mu.data(), *nu_data = nu.data(), *f_data = f.data(), *g_data = g.data();
    without_gil(n_threads, [&](const Run& run) {
        parallel_for(run, batch.n_problems, [&](Index b, int worker) {
            const auto at = static_cast<std::size_t>(b);
            const Index row = batch.row_base(b), n_rows = batch.rows_of(b);
            const Index col = batch.col_base(b), n_cols = batch.cols_of(b);
            BridgeState& state = states[at];
            const Run one = alone(run, worker);
            state.f = to_vector(f_data + row, n_rows, one);
            state.g = to_vector(g_data + col, n_cols, one);
            const std::vector<double> rows = to_vector(mu_data + row, n_rows, one),
                                      cols = to_vector(nu_data + col, n_cols, one);
            if (run.stop->stopped()) return;
            BridgeOptions own = options;
            own.positive_semidefinite = positive_semidefinite(problems[at]);
            storages[at] = where_entries_live(problems[at], max_memory, rows, cols, own, one);
            const auto sweep = sweep_of(problems[at], storages[at], static_cast<T*>(nullptr), one);
            solve_bridge(*sweep, rows, cols, own, state, one);
        });
        return true;
    });
    py::array_t<double> f_out(f.size()), g_out(g.size()), errors(batch.n_problems);
    py::array_t<Index> visits(batch.n_problems), status(batch.n_problems);
    py::array_t<Index> iterations(batch.n_problems);
    py::list words, stored;
    for (Index b = 0; b < batch.n_problems; ++b) {
        const BridgeState& state = states[static_cast<std::size_t>(b)];
        std::ranges::copy(state.f, f_out.mutable_data() + batch.row_base(b));
        std::ranges::copy(state.g, g_out.mutable_data() + batch.col_base(b));
        errors.mutable_at(b) = state.errors.empty() ? infinity<double>() : state.errors.back();
        iterations.mutable_at(b) = static_cast<Index>(state.errors.size());
        visits.mutable_at(b) = state.n_visits;
        status.mutable_at(b) = static_cast<Index>(state.status);
        words.append(in_words(state));
        stored.append(storages[static_cast<std::size_t>(b)] != Storage::on_the_fly);
    }
    return py::make_tuple(f_out, g_out, errors, iterations, visits, status, words, stored);
}

// (rows, columns) of exp(scores + dense terms), for one problem. `rest` is in double precision; `dense` holds pairs of
// a matrix in single precision and its scale.
py::tuple sums_in_double(const py::tuple& rest, const py::tuple& dense, int n_threads) {
    const ScoreTuple scores(rest);
    const Problem<double> problem = scores.problem<double>(0);
    std::vector<SingleTerm> terms;
    for (const py::handle item : dense) {
        const auto pair = py::reinterpret_borrow<py::tuple>(item);
        const auto values = py::reinterpret_borrow<py::array>(pair[0]);
        scores.batch.require_shape(values, {problem.n_rows, problem.n_cols}, sizeof(float));
        terms.push_back({scores.batch.matrix<float>(values, 0, 0, 0), pair[1].cast<double>()});
    }
    py::array_t<double> rows(problem.n_rows), columns(problem.n_cols);
    double *to_rows = rows.mutable_data(), *to_columns = columns.mutable_data();
    raise_on_overflow(without_gil(n_threads,
                                  [&](const Run& run) {
                                      return widened_marginals(problem, terms, to_rows, to_columns, run);
                                  }),
                      false);
    return py::make_tuple(rows, columns);
}

template <class E>
py::tuple coupling_sums_of(const py::array& z, double scale, const Doubles& f, const Doubles& g,
                           int n_threads) {
    const Index n = z.shape(0), m = z.shape(1);
    const MatrixView<E> view{data_of<E>(z), element_stride<E>(z, 0), element_stride<E>(z, 1)};
    if (f.size() != n || g.size() != m)
        throw py::value_error("f, g: wanted an entry for every row and column");
    if (view.row_stride != 1 && view.col_stride != 1)
        throw py::value_error("z: wanted contiguous rows or columns");
    py::array_t<double> rows(n), columns(m);
    double *to_rows = rows.mutable_data(), *to_columns = columns.mutable_data();
    const double *f_data = f.data(), *g_data = g.data();
    raise_on_overflow(without_gil(n_threads,
                                  [&](const Run& run) {
                                      return coupling_sums(view, n, m, scale, f_data, g_data, to_rows,
                                                           to_columns, run);
                                  }),
                      false);
    return py::make_tuple(rows, columns);
}

// (rows, columns) of exp(f_i + scale z_ij + g_j) in double precision; z has two axes and either type.
py::tuple coupling_sums_in_double(const py::array& z, double scale, const Doubles& f, const Doubles& g,
                                  int n_threads) {
    if (z.ndim() != 2) throw py::value_error("z: wanted a matrix");
    return is_float32(z) ? coupling_sums_of<float>(z, scale, f, g, n_threads)
                         : coupling_sums_of<double>(z, scale, f, g, n_threads);
}

// (sum of got, sum of wanted, sum of |got - wanted|, largest |got - wanted| / wanted)
py::tuple deviation_of(const Doubles& got, const Doubles& wanted) {
    if (got.ndim() != 1 || got.size() != wanted.size() || wanted.ndim() != 1)
        throw py::value_error("got, wanted: wanted two vectors of one length");
    const double *a = got.data(), *b = wanted.data();
    const Index n = got.size();
    const Deviation found = without_gil(1, [&](const Run& run) { return deviation(a, b, n, run); });
    return py::make_tuple(found.got, found.wanted, found.off, found.worst);
}

// (rows, columns, amounts, rest of rows, rest of columns); `allowed` (n, m) is C-contiguous and of one byte per entry
py::tuple transport_flow(const py::array& allowed, const Doubles& mu, const Doubles& nu) {
    const Index n = allowed.shape(0), m = allowed.shape(1);
    const auto* entries = data_of<std::uint8_t>(allowed);
    const double *mu_data = mu.data(), *nu_data = nu.data();
    const TransportFlow found =
        without_gil(1, [&](const Run& run) { return largest_flow(entries, n, m, mu_data, nu_data, run); });
    const auto array = [](const auto& v) { return py::array(static_cast<py::ssize_t>(v.size()), v.data()); };
    return py::make_tuple(array(found.rows), array(found.cols), array(found.amounts), array(found.row_rest),
                          array(found.col_rest));
}

py::array_t<double> extrapolated(Anderson& anderson, const Doubles& point, const Doubles& step) {
    if (point.size() != anderson.size() || step.size() != anderson.size())
        throw py::value_error("point, step: wanted as many entries as weights");
    py::array_t<double> out(point.size());
    anderson.next(point.data(), step.data(), out.mutable_data());
    return out;
}

}  // namespace
}  // namespace qk::bind

void register_bridge(py::module_& m) {
    using namespace qk::bind;
    m.attr("BRIDGE_METHODS") = py::make_tuple("alternating", "relaxed", "anderson", "newton", "symmetric",
                                              "accelerated", "annealed", "auto");
    m.attr("BRIDGE_STATUS") = py::make_tuple("converged", "iteration limit", "visit limit", "stagnated",
                                             "infeasible", "interrupted", "overflow", "negative kernel");
    register_bridge_kernels(m);
    m.def("solve_bridge", &solve, py::arg("kernel"), py::arg("mu"), py::arg("nu"), py::arg("f"), py::arg("g"),
          py::arg("method"), py::arg("tol"), py::arg("max_iterations"), py::arg("max_visits"),
          py::arg("row_penalty"), py::arg("col_penalty"), py::arg("report"), py::arg("n_threads"),
          py::arg("memory") = 5, py::arg("period") = 1, py::arg("observe") = py::none());
    m.def(
        "solve_bridges",
        [](const py::tuple& spec, const Doubles& mu, const Doubles& nu, const Doubles& f, const Doubles& g,
           int method, double tol, qk::Index max_iterations, qk::Index max_visits, double row_penalty,
           double col_penalty, double max_memory, int n_threads) {
            const ScoreTuple scores(spec);
            const auto solver = scores.float32 ? &solve_batch_of<float> : &solve_batch_of<double>;
            return solver(scores, mu, nu, f, g,
                          options_of(method, tol, max_iterations, max_visits, row_penalty, col_penalty),
                          max_memory, n_threads);
        },
        py::arg("spec"), py::arg("mu"), py::arg("nu"), py::arg("f"), py::arg("g"), py::arg("method"),
        py::arg("tol"), py::arg("max_iterations"), py::arg("max_visits"), py::arg("row_penalty"),
        py::arg("col_penalty"), py::arg("max_memory"), py::arg("n_threads"));
    py::class_<qk::Anderson>(m, "Anderson")
        .def(py::init([](const Doubles& weights, qk::Index memory) {
                 return std::make_unique<qk::Anderson>(weights.data(), weights.size(), memory);
             }),
             py::arg("weights"), py::arg("memory"))
        .def_property_readonly("empty", &qk::Anderson::empty)
        .def("forget", &qk::Anderson::forget)
        .def("next", &extrapolated, py::arg("point"), py::arg("step"));
    m.def("widened_marginals", &sums_in_double, py::arg("rest"), py::arg("dense"), py::arg("n_threads"));
    m.def("coupling_sums", &coupling_sums_in_double, py::arg("z"), py::arg("scale"), py::arg("f"),
          py::arg("g"), py::arg("n_threads"));
    m.def("deviation", &deviation_of, py::arg("got"), py::arg("wanted"));
    m.def("transport_flow", &transport_flow, py::arg("allowed").noconvert(), py::arg("mu"), py::arg("nu"));
}
