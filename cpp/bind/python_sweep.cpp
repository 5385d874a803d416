#include "python_sweep.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "qk/scalar_math.hpp"

namespace qk::bind {
namespace {

// Large entries are asked for in strips of about this many entries. A call costs microseconds, so strips should not be
// small; a kernel may form a whole strip, so they should not take more than these 8 MB in double precision.
constexpr Index strip_size = Index{1} << 20;

std::string shape_of(const py::array& a) { return py::str(a.attr("shape")).cast<std::string>(); }

// Reads a vector that a method of the kernel returned, or passed to `mass`, and checks its dtype, length and entries.
void take(const py::handle& given, const char* method, const char* what, Index n, double* out) {
    const std::string name = std::string("kernel.") + method + ": ";
    const std::string wanted =
        "wanted " + std::string(what) + " as a float64 array of shape (" + std::to_string(n) + ",)";
    if (!py::isinstance<py::array>(given))
        throw py::type_error(name + wanted + ", got " +
                             std::string(py::str(py::type::handle_of(given).attr("__name__"))));
    const auto array = py::reinterpret_borrow<py::array>(given);
    const int number = array.dtype().num();
    if (number != py::dtype::num_of<double>() && number != py::dtype::num_of<float>())
        throw py::type_error(name + wanted + ", got dtype " + std::string(py::str(array.dtype())));
    if (array.ndim() != 1 || array.shape(0) != n)
        throw py::value_error(name + wanted + ", got shape " + shape_of(array));
    const Doubles values = Doubles::ensure(array);
    if (!values) throw py::error_already_set();
    const double* data = values.data();
    for (Index i = 0; i < n; ++i) {
        if (std::isnan(data[i]) || data[i] == infinity<double>())
            throw py::value_error(name + "wanted " + what + " without NaN or +inf, got " +
                                  (std::isnan(data[i]) ? "NaN" : "+inf") + " at index " + std::to_string(i));
        out[i] = data[i];
    }
}

// Appends what `entries` returned for rows [first, end) to `out`. It checks that the entries come row by row, and in the
// order of the columns in each.
void take_entries(const py::object& given, Index first, Index end, Index n_cols, SparseRows& out) {
    const std::string name = "kernel.entries: ";
    if (!py::isinstance<py::tuple>(given) || py::len(given) != 3)
        throw py::type_error(name + "wanted (rows, columns, shares), got " +
                             std::string(py::str(py::type::handle_of(given).attr("__name__"))));
    const auto three = py::reinterpret_borrow<py::tuple>(given);
    const auto integers = [&](std::size_t at, const char* what) {
        if (!py::isinstance<py::array>(three[at]) ||
            std::string("iu").find(py::reinterpret_borrow<py::array>(three[at]).dtype().kind()) ==
                std::string::npos)
            throw py::type_error(name + "wanted " + what + " as an array of integers");
        const auto array = py::array_t<Index, py::array::c_style | py::array::forcecast>::ensure(three[at]);
        if (!array) throw py::error_already_set();
        return array;
    };
    const auto rows = integers(0, "rows"), columns = integers(1, "columns");
    const Index count = rows.size();
    if (rows.ndim() != 1 || columns.ndim() != 1 || columns.size() != count)
        throw py::value_error(name + "wanted rows and columns as vectors of the same length, got shapes " +
                              shape_of(rows) + " and " + shape_of(columns));
    const auto before = out.share.size();
    out.share.resize(before + static_cast<std::size_t>(count));
    take(three[2], "entries", "shares", count, out.share.data() + before);
    const Index *i = rows.data(), *j = columns.data();
    Index row = 0;
    for (Index k = 0; k < count; ++k) {
        const bool inside = i[k] >= 0 && i[k] < end - first && j[k] >= 0 && j[k] < n_cols;
        if (!inside || (k > 0 && (i[k] < i[k - 1] || (i[k] == i[k - 1] && j[k] <= j[k - 1]))))
            throw py::value_error(name + "wanted rows below " + std::to_string(end - first) +
                                  " and columns below " + std::to_string(n_cols) +
                                  ", in the order of rows and of columns in each, got (" +
                                  std::to_string(i[k]) + ", " + std::to_string(j[k]) + ") at index " +
                                  std::to_string(k) + "; rows count from the first that is asked for");
        for (; row < i[k]; ++row) out.start.push_back(static_cast<Index>(out.column.size()));
        out.column.push_back(static_cast<std::int32_t>(j[k]));
    }
    for (; row < end - first; ++row) out.start.push_back(static_cast<Index>(out.column.size()));
}

py::array_t<double> vector_of(const double* data, Index n) {
    return py::array_t<double>(static_cast<py::ssize_t>(n), data);
}

// The function that a kernel's `rows` gets as `mass`. It is called once, with all log-sum-exps, and returns all masses.
class Masses {
public:
    explicit Masses(Index n_rows) : n_rows_(n_rows) {}

    py::array_t<double> operator()(const py::object& lse) {
        if (mass_ == nullptr)
            throw py::value_error(
                "kernel.rows: wanted mass to be called once, within rows; keep its result, not mass");
        const RowMass& mass = *mass_;
        mass_ = nullptr;
        take(lse, "rows", "lse, for mass(lse),", n_rows_, lse_);
        py::array_t<double> out(static_cast<py::ssize_t>(n_rows_));
        double* to = out.mutable_data();
        for (Index i = 0; i < n_rows_; ++i) to[i] = lse_[i] == log_of_nothing ? 0.0 : mass(i, lse_[i]);
        return out;
    }

    // Prepares for one visit; `lse` is where the log-sum-exps are written.
    void open(const RowMass& mass, double* lse) {
        mass_ = &mass;
        lse_ = lse;
    }
    bool called() const { return mass_ == nullptr; }
    void close() { mass_ = nullptr; }

private:
    Index n_rows_;
    const RowMass* mass_ = nullptr;
    double* lse_ = nullptr;
};

class PythonSweep final : public Sweep {
public:
    PythonSweep(py::object kernel, Index n_rows, Index n_cols, double epsilon)
        : kernel_(std::move(kernel)),
          n_rows_(n_rows),
          n_cols_(n_cols),
          epsilon_(epsilon),
          masses_(py::cast(Masses(n_rows))) {}

    // The solver, which runs without the GIL, destroys scaled kernels.
    ~PythonSweep() override {
        const py::gil_scoped_acquire gil;
        kernel_ = py::object();
        masses_ = py::object();
    }
    PythonSweep(const PythonSweep&) = delete;
    PythonSweep& operator=(const PythonSweep&) = delete;

    Status rows(const double* g, const RowMass& mass, double* lse, double* columns, const Run& run) override {
        bool negative = false;
        const Status status = call(run, [&] {
            const py::object rows = kernel_.attr("rows");
            if (columns == nullptr) {
                take(first_of_two(rows(vector_of(g, n_cols_), py::none())), "rows", "lse", n_rows_, lse);
                return;
            }
            auto& masses = masses_.cast<Masses&>();
            masses.open(mass, lse);
            const struct Close {
                Masses& masses;
                ~Close() { masses.close(); }
            } close{masses};
            const py::object found = rows(vector_of(g, n_cols_), masses_);
            if (!masses.called())
                throw py::value_error(
                    "kernel.rows: wanted mass(lse) to be called, once, for the masses of the rows");
            (void)first_of_two(found);  // the values that mass was called with are used instead
            take(py::reinterpret_borrow<py::tuple>(found)[1], "rows", "columns", n_cols_, columns);
            for (Index j = 0; j < n_cols_; ++j) {
                if (g[j] == log_of_nothing) columns[j] = 0;
                negative = negative || columns[j] < 0;
            }
        });
        return negative ? Status::negative : status;
    }

    Status columns(const double* f, double* lse, const Run& run) override {
        return call(run, [&] {
            take(kernel_.attr("columns")(vector_of(f, n_rows_)), "columns", "lse", n_cols_, lse);
        });
    }

    Status curvature(const double* x, const double* mass, double* out, bool, const Run& run) override {
        return call(run, [&] {
            take(kernel_.attr("curvature")(vector_of(x, n_cols_), vector_of(mass, n_rows_)), "curvature",
                 "out", n_cols_, out);
        });
    }

    Status gather(double least, Index most, SparseRows& out, const Run& run) override {
        out = {};
        if (!has("entries")) return Status::ok;
        SparseRows found;
        found.start.push_back(0);
        const Index height = std::clamp<Index>(strip_size / n_cols_, 1, n_rows_);
        for (Index first = 0; first < n_rows_; first += height) {
            const Index end = std::min(n_rows_, first + height);
            const Status status = call(run, [&] {
                take_entries(kernel_.attr("entries")(first, end, least), first, end, n_cols_, found);
            });
            if (status != Status::ok) return status;
            if (std::cmp_greater(found.share.size(), most)) return Status::ok;
        }
        out = std::move(found);
        return Status::ok;
    }

    bool curved() const override { return has("curvature"); }
    double epsilon() const override { return epsilon_; }

    EasierKernel easier(double factor, const Run&) override {
        if (!has("scaled")) return {};
        const py::gil_scoped_acquire gil;
        return {std::make_unique<PythonSweep>(kernel_.attr("scaled")(factor), n_rows_, n_cols_, epsilon_),
                factor};
    }

private:
    static py::object first_of_two(const py::object& found) {
        if (!py::isinstance<py::tuple>(found) || py::len(found) != 2)
            throw py::type_error("kernel.rows: wanted a pair (lse, columns), got " +
                                 std::string(py::str(py::type::handle_of(found).attr("__name__"))));
        return py::reinterpret_borrow<py::tuple>(found)[0];
    }

    // Calls a method of the kernel with the GIL held. OverflowError means that the potentials are out of the method's
    // range.
    template <class Method>
    Status call(const Run& run, const Method& method) const {
        if (should_stop(run, 0)) return Status::interrupted;
        const py::gil_scoped_acquire gil;
        try {
            method();
        } catch (const py::error_already_set& error) {
            if (!error.matches(PyExc_OverflowError)) throw;
            return Status::overflow;
        }
        return Status::ok;
    }

    bool has(const char* method) const {
        const py::gil_scoped_acquire gil;
        return PyCallable_Check(py::object(py::getattr(kernel_, method, py::none())).ptr()) != 0;
    }

    py::object kernel_;
    Index n_rows_, n_cols_;
    double epsilon_;
    py::object masses_;
};

}  // namespace

std::unique_ptr<Sweep> sweep_of_python(const py::object& kernel, Index n_rows, Index n_cols, double epsilon) {
    return std::make_unique<PythonSweep>(kernel, n_rows, n_cols, epsilon);
}

void register_python_sweep(py::module_& m) {
    py::class_<Masses>(m, "RowMasses").def("__call__", &Masses::operator(), py::arg("lse"));
}

}  // namespace qk::bind
