#include <pybind11/functional.h>

#include "bind.hpp"
#include "qk/controller.hpp"
#include "qk/flow.hpp"

namespace qk::bind {
namespace {

using Indices = py::array_t<Index, py::array::c_style | py::array::forcecast>;

std::vector<double> layer_of(const Doubles& a, Index layer, Index n_layers) {
    const Index size = static_cast<Index>(a.size()) / n_layers;
    return {a.data() + layer * size, a.data() + (layer + 1) * size};
}

// (kind, Q, K, V, starts, ends, weights, renormalise, sphere, epsilon, tol, visits, stored, provider);
// Q, K (layers, heads, k, d), V (layers, heads or 1, d, d). A provider gives (Q, K, V) of one layer at a time.
AttentionSpec spec_of(const py::tuple& s, Index n) {
    AttentionSpec spec;
    spec.kind = static_cast<FieldKind>(s[0].cast<int>());
    const auto Q = s[1].cast<Doubles>(), K = s[2].cast<Doubles>(), V = s[3].cast<Doubles>();
    const auto starts = s[4].cast<Doubles>();
    spec.n = n;
    spec.heads = Q.shape(1);
    spec.k = Q.shape(2);
    spec.d = Q.shape(3);
    spec.n_values = V.shape(1);
    spec.ends = to_vector(s[5].cast<Indices>());
    spec.weights = to_vector(s[6].cast<Doubles>());
    spec.renormalise = s[7].cast<bool>();
    spec.sphere = s[8].cast<bool>();
    spec.epsilon = s[9].cast<double>();
    spec.sinkhorn_tol = s[10].cast<double>();
    spec.sinkhorn_visits = s[11].cast<Index>();
    spec.stored = s[12].cast<bool>();
    const py::object provider = s[13];
    if (provider.is_none()) {
        const Index n_layers = starts.size();
        for (Index layer = 0; layer < n_layers; ++layer)
            spec.layers.push_back({starts.at(layer), layer_of(Q, layer, n_layers),
                                   layer_of(K, layer, n_layers), layer_of(V, layer, n_layers)});
    } else {
        // `provider` stays alive as long as the spec is used, because the caller's frame holds it.
        spec.parameters = [handle = py::handle(provider)](double t) {
            const py::gil_scoped_acquire gil;
            const auto at = handle(t).cast<py::tuple>();
            return AttentionParameters{t, to_vector(at[0].cast<Doubles>()), to_vector(at[1].cast<Doubles>()),
                                       to_vector(at[2].cast<Doubles>())};
        };
    }
    return spec;
}

// A velocity written in Python: (x, t) -> array of the shape and type of x.
template <class T>
class PythonVelocity final : public Velocity<T> {
public:
    PythonVelocity(py::handle function, Index n, Index d) : function_(function), n_(n), d_(d) {}

    VelocityStatus operator()(double t, const T* x, T* out, const Run&) override {
        const py::gil_scoped_acquire gil;
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        const py::array_t<T> at({n_, d_}, x);
        const auto v = function_(at, t).template cast<py::array_t<T, py::array::c_style>>();
        std::copy(v.data(), v.data() + n_ * d_, out);
        bool finite = true;
        for (Index i = 0; i < n_ * d_; ++i) finite = finite && std::isfinite(out[i]);
        return finite ? VelocityStatus::ok : VelocityStatus::not_finite;
    }

private:
    py::handle function_;
    Index n_, d_;
};

template <class T>
std::unique_ptr<Velocity<T>> velocity_of(const py::object& field, Index n, Index d) {
    if (py::isinstance<py::tuple>(field)) return attention_velocity<T>(spec_of(field.cast<py::tuple>(), n));
    return std::make_unique<PythonVelocity<T>>(field, n, d);
}

template <class T>
py::tuple velocity_at(const py::object& field, const py::array_t<T, py::array::c_style>& x, double t,
                      int n_threads) {
    const Index n = x.shape(0), d = x.shape(1);
    const auto velocity = velocity_of<T>(field, n, d);
    py::array_t<T> out({n, d});
    T* to = out.mutable_data();
    const T* from = x.data();
    const auto status = without_gil(n_threads, [&](const Run& run) {
        velocity->enter(t, t);
        return (*velocity)(t, from, to, run);
    });
    return py::make_tuple(static_cast<int>(status), out);
}

struct FlowArguments {
    FlowOptions options;
    py::object report;
};

FlowArguments arguments_of(const py::dict& o) {
    FlowArguments a;
    FlowOptions& f = a.options;
    f.method = static_cast<Method>(o["method"].cast<int>());
    f.t0 = o["t0"].cast<double>();
    f.t1 = o["t1"].cast<double>();
    f.n_steps = o["n_steps"].cast<Index>();
    f.rtol = o["rtol"].cast<double>();
    f.atol = o["atol"].cast<double>();
    f.first_step = o["first_step"].cast<double>();
    f.min_step = o["min_step"].cast<double>();
    f.max_step = o["max_step"].cast<double>();
    f.max_steps = o["max_steps"].cast<Index>();
    f.breaks = to_vector(o["breaks"].cast<Doubles>());
    f.every_step = o["t_eval"].is_none();
    if (!f.every_step) f.output = to_vector(o["t_eval"].cast<Doubles>());
    f.sphere = o["sphere"].cast<bool>();
    f.radius = o["radius"].cast<double>();
    f.n_clusters = o["n_clusters"].cast<Index>();
    f.linkage = o["linkage"].cast<double>();
    a.report = o["report"];
    return a;
}

template <class T>
py::tuple integrate_of(const py::object& field, const py::array_t<T, py::array::c_style>& x0,
                       const py::dict& options, int n_threads) {
    const Index n = x0.shape(0), d = x0.shape(1);
    FlowArguments arguments = arguments_of(options);
    if (!arguments.report.is_none())
        arguments.options.report = [&](double t) {
            const py::gil_scoped_acquire gil;
            arguments.report(t);
        };
    const auto velocity = velocity_of<T>(field, n, d);
    const T* from = x0.data();
    const FlowResult<T> result = without_gil(n_threads, [&](const Run& run) {
        return integrate<T>(*velocity, n, d, from, arguments.options, run);
    });
    const auto times = static_cast<py::ssize_t>(result.t.size());
    py::array_t<T> x({times, static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(d)}, result.x.data());
    return py::make_tuple(py::array_t<double>(times, result.t.data()), x, static_cast<int>(result.status),
                          result.n_steps, result.n_rejected, result.n_evaluations);
}

template <class T>
py::array_t<Index> labels_of(const py::array_t<T, py::array::c_style>& x, double linkage) {
    std::vector<Index> labels;
    const Index n = x.shape(0), d = x.shape(1);
    const T* from = x.data();
    {
        const py::gil_scoped_release release;
        cluster_labels(n, d, from, linkage, labels);
    }
    return py::array_t<Index>(static_cast<py::ssize_t>(labels.size()), labels.data());
}

py::tuple method_names() {
    py::tuple names(n_methods);
    for (int k = 0; k < n_methods; ++k)
        names[static_cast<std::size_t>(k)] = py::str(tableau(static_cast<Method>(k)).name);
    return names;
}

template <std::size_t N>
py::tuple numbers_of(const std::array<double, N>& x, int count) {
    py::tuple out(count);
    for (int k = 0; k < count; ++k)
        out[static_cast<std::size_t>(k)] = py::float_(x[static_cast<std::size_t>(k)]);
    return out;
}

template <std::size_t N>
py::tuple rows_of(const std::array<std::array<double, N>, max_stages>& x, int rows, bool triangle) {
    py::tuple out(rows);
    for (int s = 0; s < rows; ++s)
        out[static_cast<std::size_t>(s)] =
            numbers_of(x[static_cast<std::size_t>(s)], triangle ? s : static_cast<int>(N));
    return out;
}

// The coefficients of all methods by name; they are written only in tableau.cpp.
py::dict tableaux() {
    py::dict all;
    for (int k = 0; k < n_methods; ++k) {
        const Tableau& t = tableau(static_cast<Method>(k));
        py::dict one;
        one["order"] = t.order;
        one["a"] = rows_of(t.a, t.n_stages, true);
        one["b"] = numbers_of(t.b, t.n_stages);
        one["c"] = numbers_of(t.c, t.n_stages);
        one["error"] = numbers_of(t.error, t.adaptive ? t.n_stages : 0);
        one["dense"] = rows_of(t.dense, t.has_dense ? t.n_stages : 0, false);
        one["last_is_next"] = t.last_is_next;
        one["adaptive"] = t.adaptive;
        one["gamma"] = t.gamma;
        one["coupling"] = rows_of(t.coupling, t.implicit() ? t.n_stages : 0, true);
        one["rate"] = numbers_of(t.rate, t.implicit() ? t.n_stages : 0);
        all[t.name] = one;
    }
    return all;
}

template <class Call>
auto by_type(const py::array& x, const Call& call) {
    if (is_float32(x)) return call(x.cast<py::array_t<float, py::array::c_style>>());
    return call(x.cast<py::array_t<double, py::array::c_style>>());
}

}  // namespace
}  // namespace qk::bind

void register_particles(py::module_& m) {
    using namespace qk::bind;
    m.attr("FIELD_KINDS") =
        py::make_tuple("softmax", "l2", "linear", "linear centred", "sinkhorn", "exp", "relu", "sigmoid");
    m.attr("FLOW_METHODS") = method_names();
    m.def("tableaux", &tableaux);
    py::class_<qk::StepController>(m, "StepController")
        .def(py::init([](int order, bool elementary) {
                 return qk::StepController(order, elementary ? qk::elementary_rules : qk::pi_rules);
             }),
             py::arg("order"), py::arg("elementary"))
        .def("accepted", &qk::StepController::accepted, py::arg("error"))
        .def("rejected", &qk::StepController::rejected, py::arg("error"))
        .def("reset", &qk::StepController::reset)
        .def_static("probe", &qk::StepController::probe, py::arg("size"), py::arg("speed"),
                    py::arg("longest"))
        .def("first", &qk::StepController::first, py::arg("probe"), py::arg("speed"), py::arg("change"),
             py::arg("longest"));
    m.attr("FLOW_STATUS") = py::make_tuple("finished", "blew up", "clustered", "step limit", "step underflow",
                                           "no convergence", "interrupted");
    m.attr("VELOCITY_STATUS") = py::make_tuple("ok", "interrupted", "not finite", "no convergence");
    m.def(
        "velocity",
        [](const py::object& field, const py::array& x, double t, int n_threads) {
            return by_type(x, [&](const auto& a) { return velocity_at(field, a, t, n_threads); });
        },
        py::arg("field"), py::arg("x"), py::arg("t"), py::arg("n_threads"));
    m.def(
        "integrate",
        [](const py::object& field, const py::array& x0, const py::dict& options, int n_threads) {
            return by_type(x0, [&](const auto& a) { return integrate_of(field, a, options, n_threads); });
        },
        py::arg("field"), py::arg("x0"), py::arg("options"), py::arg("n_threads"));
    m.def(
        "cluster_labels",
        [](const py::array& x, double linkage) {
            return by_type(x, [&](const auto& a) { return labels_of(a, linkage); });
        },
        py::arg("x"), py::arg("linkage"));
}
