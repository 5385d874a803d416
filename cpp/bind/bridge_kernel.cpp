#include "bridge_kernel.hpp"

#include <string>

#include "python_sweep.hpp"
#include "score_tuple.hpp"

namespace qk::bind {
namespace {

template <class T>
class ScoresKernel final : public Kernel {
public:
    ScoresKernel(ScoreTuple scores, double max_memory, py::object scratch)
        : Kernel(scores.batch.n_rows, scores.batch.n_cols),
          scores_(std::move(scores)),
          problem_(scores_.template problem<T>(0)),
          max_memory_(max_memory),
          scratch_(std::move(scratch)) {
        if (scratch_.is_none()) return;
        auto array = py::reinterpret_borrow<py::array>(scratch_);
        if (array.size() < triangle_size<T>(n_rows))
            throw py::value_error("scratch: too small for the points");
        room_ = static_cast<T*>(array.mutable_data());
    }

    Sweep& sweep(const std::vector<double>& mu, const std::vector<double>& nu, BridgeOptions& options,
                 const Run& run) override {
        options.positive_semidefinite = positive_semidefinite(problem_);
        const Storage storage = where_entries_live(problem_, max_memory_, mu, nu, options, run);
        if (!sweep_ || storage != storage_) {
            sweep_.reset();
            sweep_ = sweep_of(problem_, storage, room_, run);
            storage_ = storage;
        }
        return *sweep_;
    }
    bool stored() const override { return storage_ != Storage::on_the_fly; }

private:
    ScoreTuple scores_;
    Problem<T> problem_;
    double max_memory_;
    py::object scratch_;
    T* room_ = nullptr;
    std::unique_ptr<Sweep> sweep_;
    Storage storage_ = Storage::on_the_fly;
};

// A kernel with one sweep for every solve. `arrays` keeps the arrays alive that the sweep reads.
template <class S>
class OneSweep : public Kernel {
public:
    OneSweep(Index rows, Index cols, std::unique_ptr<S> sweep, py::object arrays)
        : Kernel(rows, cols), arrays_(std::move(arrays)), sweep_(std::move(sweep)) {}

    Sweep& sweep(const std::vector<double>&, const std::vector<double>&, BridgeOptions&,
                 const Run&) override {
        return *sweep_;
    }
    std::pair<std::vector<double>, std::vector<double>> signs() const override {
        if constexpr (std::is_same_v<S, FactoredSweep>) return {sweep_->row_signs(), sweep_->column_signs()};
        return {};
    }

private:
    py::object arrays_;
    std::unique_ptr<S> sweep_;
};

// `max_memory` is negative for the default; `scratch` is memory for a triangle, or None.
std::unique_ptr<Kernel> of_scores(const py::tuple& spec, double max_memory, const py::object& scratch) {
    ScoreTuple scores(spec);
    if (scores.float32) return std::make_unique<ScoresKernel<float>>(std::move(scores), max_memory, scratch);
    return std::make_unique<ScoresKernel<double>>(std::move(scores), max_memory, scratch);
}

// Tuples of float64 arrays (rank, n) with contiguous rows.
std::unique_ptr<Kernel> of_factors(const py::tuple& left, const py::tuple& right, int signs) {
    const auto side_of = [](const py::tuple& factors) {
        FactorSide<double> side;
        for (const py::handle item : factors) {
            const auto a = py::reinterpret_borrow<py::array>(item);
            side.n_points = a.shape(1);
            side.experts.push_back(
                {static_cast<const double*>(a.data()), a.shape(0), element_stride<double>(a, 0)});
        }
        return side;
    };
    const FactorSide<double> rows = side_of(left), cols = side_of(right);
    return std::make_unique<OneSweep<FactoredSweep>>(rows.n_points, cols.n_points,
                                                     sweep_factored(rows, cols, static_cast<Signs>(signs)),
                                                     py::make_tuple(left, right));
}

template <class T>
std::unique_ptr<Kernel> chain_of(const std::vector<ScoreTuple>& steps, const py::tuple& specs) {
    std::vector<Problem<T>> problems;
    problems.reserve(steps.size());
    for (const ScoreTuple& step : steps) problems.push_back(step.problem<T>(0));
    const Index rows = problems.front().n_rows, cols = problems.back().n_cols;
    return std::make_unique<OneSweep<Sweep>>(rows, cols, sweep_chain(problems), specs);
}

std::unique_ptr<Kernel> of_chain(const py::tuple& specs) {
    std::vector<ScoreTuple> steps;
    for (const py::handle spec : specs) steps.emplace_back(py::reinterpret_borrow<py::tuple>(spec));
    return steps.front().float32 ? chain_of<float>(steps, specs) : chain_of<double>(steps, specs);
}

std::unique_ptr<Kernel> of_object(const py::object& kernel, Index n_rows, Index n_cols, double epsilon) {
    return std::make_unique<OneSweep<Sweep>>(n_rows, n_cols, sweep_of_python(kernel, n_rows, n_cols, epsilon),
                                             kernel);
}

// Calls `visit` with a sweep whose entries are exact. A penalty is set to get it, because with penalties no entries are
// stored in single precision.
template <class Visit>
void visited(Kernel& kernel, int n_threads, const Visit& visit) {
    BridgeOptions options;
    options.row_penalty = 1;
    const Status status = without_gil(
        n_threads, [&](const Run& run) { return visit(kernel.sweep({1.0}, {1.0}, options, run), run); });
    raise_on_overflow(status, false);
}

// One visit with the given masses of the rows: (log-sum-exps of the rows, column sums).
py::tuple visit_rows(Kernel& kernel, const Doubles& g, const std::function<double(Index, double)>& mass,
                     int n_threads) {
    py::array_t<double> lse(static_cast<py::ssize_t>(kernel.n_rows)),
        columns(static_cast<py::ssize_t>(kernel.n_cols));
    double *to_lse = lse.mutable_data(), *to_columns = columns.mutable_data();
    const double* from = g.data();
    visited(kernel, n_threads,
            [&](Sweep& sweep, const Run& run) { return sweep.rows(from, mass, to_lse, to_columns, run); });
    return py::make_tuple(lse, columns);
}

// Row and column sums of exp(f + s + g), by one visit of the kernel.
py::tuple sums(Kernel& kernel, const Doubles& f, const Doubles& g, int n_threads) {
    py::array_t<double> rows(static_cast<py::ssize_t>(kernel.n_rows));
    double* to = rows.mutable_data();
    std::fill(to, to + kernel.n_rows, 0.0);
    const double* potential = f.data();
    const auto mass = [&](Index i, double lse) { return to[i] = std::exp(potential[i] + lse); };
    const py::tuple found = visit_rows(kernel, g, mass, n_threads);
    return py::make_tuple(rows, found[1]);
}

// log-sum-exps of the rows of s + g
py::array_t<double> row_sums(Kernel& kernel, const Doubles& g, int n_threads) {
    py::array_t<double> lse(static_cast<py::ssize_t>(kernel.n_rows));
    double* to = lse.mutable_data();
    const double* from = g.data();
    const RowMass nothing = [](Index, double) { return 0.0; };
    visited(kernel, n_threads,
            [&](Sweep& sweep, const Run& run) { return sweep.rows(from, nothing, to, nullptr, run); });
    return lse;
}

// log-sum-exps of the columns of f + s
py::array_t<double> column_sums(Kernel& kernel, const Doubles& f, int n_threads) {
    py::array_t<double> lse(static_cast<py::ssize_t>(kernel.n_cols));
    double* to = lse.mutable_data();
    const double* from = f.data();
    visited(kernel, n_threads, [&](Sweep& sweep, const Run& run) { return sweep.columns(from, to, run); });
    return lse;
}

}  // namespace

void register_bridge_kernels(py::module_& m) {
    register_python_sweep(m);
    py::class_<Kernel>(m, "BridgeKernel")
        .def_property_readonly("stored", &Kernel::stored)
        .def_property_readonly("signs",
                               [](const Kernel& kernel) {
                                   const auto [rows, columns] = kernel.signs();
                                   return py::make_tuple(to_array(rows), to_array(columns));
                               })
        .def("sums", &sums, py::arg("f"), py::arg("g"), py::arg("n_threads"))
        .def("row_sums", &row_sums, py::arg("g"), py::arg("n_threads"))
        .def("column_sums", &column_sums, py::arg("f"), py::arg("n_threads"))
        .def(
            "rows",
            [](Kernel& kernel, const Doubles& g, const Doubles& mass, int n_threads) {
                const double* masses = mass.data();
                return visit_rows(kernel, g, [=](Index i, double) { return masses[i]; }, n_threads);
            },
            py::arg("g"), py::arg("mass"), py::arg("n_threads"));
    m.def("bridge_scores", &of_scores, py::arg("spec"), py::arg("max_memory"), py::arg("scratch"));
    m.def("bridge_factors", &of_factors, py::arg("left"), py::arg("right"), py::arg("signs"));
    m.def("bridge_chain", &of_chain, py::arg("specs"));
    m.def("bridge_object", &of_object, py::arg("kernel"), py::arg("n_rows"), py::arg("n_cols"),
          py::arg("epsilon"));
    m.def("device_keeps_weights", &device_keeps_weights, py::arg("n_rows"), py::arg("n_cols"),
          py::arg("entry_bytes"), py::arg("max_memory"));
    m.def(
        "triangle_scratch",
        [](Index n, bool float32, double max_memory) {
            return float32 ? triangle_scratch<float>(n, max_memory) : triangle_scratch<double>(n, max_memory);
        },
        py::arg("n"), py::arg("float32"), py::arg("max_memory"));
}

}  // namespace qk::bind
