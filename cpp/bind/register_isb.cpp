#include "qk/self_bridge.hpp"
#include "score_tuple.hpp"

namespace qk::bind {
namespace {

// (g, errors, visits, status). `scratch` is a writable array of the scores' type, or None.
template <class T>
py::tuple solve_of(const ScoreTuple& scores, const Doubles& mu, const Doubles& g, double tol,
                   Index max_visits, const py::object& scratch, int n_threads) {
    const Problem<T> problem = scores.problem<T>(0);
    const std::vector<double> weights(mu.data(), mu.data() + mu.size());
    const SelfBridgeOptions options{tol, max_visits};
    BridgeState state;
    state.g.assign(g.data(), g.data() + g.size());
    T* room = nullptr;
    if (!scratch.is_none()) {
        auto array = py::reinterpret_borrow<py::array>(scratch);
        if (array.size() < triangle_size<T>(problem.n_rows))
            throw py::value_error("scratch: too small for the points");
        room = static_cast<T*>(array.mutable_data());
    }
    without_gil(n_threads, [&](const Run& run) {
        solve_self_bridge(problem, weights, options, room, state, run);
        return true;
    });
    return py::make_tuple(
        py::array_t<double>(static_cast<py::ssize_t>(state.g.size()), state.g.data()),
        py::array_t<double>(static_cast<py::ssize_t>(state.errors.size()), state.errors.data()),
        state.n_visits, static_cast<int>(state.status));
}

}  // namespace
}  // namespace qk::bind

void register_isb(py::module_& m) {
    using namespace qk::bind;
    m.def(
        "triangle_size",
        [](qk::Index n, bool float32) {
            return float32 ? qk::triangle_size<float>(n) : qk::triangle_size<double>(n);
        },
        py::arg("n"), py::arg("float32"));
    m.def(
        "solve_self_bridge",
        [](const py::tuple& spec, const Doubles& mu, const Doubles& g, double tol, qk::Index max_visits,
           const py::object& scratch, int n_threads) {
            const ScoreTuple scores(spec);
            const auto solver = scores.float32 ? &solve_of<float> : &solve_of<double>;
            return solver(scores, mu, g, tol, max_visits, scratch, n_threads);
        },
        py::arg("spec"), py::arg("mu"), py::arg("g"), py::arg("tol"), py::arg("max_visits"),
        py::arg("scratch"), py::arg("n_threads"));
}
