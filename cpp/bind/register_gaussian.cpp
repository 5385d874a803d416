#include <cstring>
#include <string>

#include "bind.hpp"
#include "qk/blas.hpp"
#include "qk/gaussian.hpp"

namespace qk::bind {
namespace {

// (n or 1, heads, d, d), contiguous; Python checks this.
template <class T>
MatrixStack<T> stack_of(const py::array& a) {
    return {static_cast<const T*>(a.data()), a.shape(0) == 1};
}

struct FieldArguments {
    int field = 0;
    double gain = 1, epsilon = 1;
    bool raw_moment = false;
};

// (means, covs, mean rates, cov rates, figures (n, 12), counts (n, 4))
template <class T>
py::tuple flow_of(const FieldArguments& field, const py::array& mean, const py::array& cov,
                  const py::array& score, const py::array& query, const py::array& value,
                  const GaussianOptions& options, int n_threads) {
    GaussianProblem<T> p;
    p.field = static_cast<GaussianField>(field.field);
    p.gain = static_cast<T>(field.gain);
    p.raw_moment = field.raw_moment;
    p.epsilon = static_cast<T>(field.epsilon);
    p.n = mean.shape(0);
    p.d = mean.shape(1);
    p.heads = value.shape(1);
    p.score = stack_of<T>(score);
    p.query = stack_of<T>(query);
    p.value = stack_of<T>(value);
    p.mean = static_cast<const T*>(mean.data());
    p.cov = static_cast<const T*>(cov.data());
    const Index n_stored = gaussian_stored(options);
    py::array_t<T> means({n_stored, p.n, p.d}), covs({n_stored, p.n, p.d, p.d});
    py::array_t<T> mean_rates({p.n, p.d}), cov_rates({p.n, p.d, p.d});
    std::vector<GaussianOutcome> outcomes(static_cast<std::size_t>(p.n));
    const GaussianResult<T> result{means.mutable_data(), covs.mutable_data(), mean_rates.mutable_data(),
                                   cov_rates.mutable_data(), outcomes.data()};
    without_gil(n_threads, [&](const Run& run) {
        gaussian_flow(p, options, result, run);
        return true;
    });
    py::array_t<double> figures({p.n, Index(12)});
    py::array_t<Index> counts({p.n, Index(4)});
    for (Index i = 0; i < p.n; ++i) {
        const GaussianOutcome& o = outcomes[static_cast<std::size_t>(i)];
        Index column = 0;
        for (const double x : {o.t, o.start_size, o.size, o.growth, o.mark_t, o.mark_size, o.mark_growth,
                               o.earlier_size, o.earlier_growth, o.first_t, o.first_size, o.earlier_t})
            figures.mutable_at(i, column++) = x;
        counts.mutable_at(i, 0) = static_cast<Index>(o.end);
        counts.mutable_at(i, 1) = o.n_steps;
        counts.mutable_at(i, 2) = o.n_rejected;
        counts.mutable_at(i, 3) = o.positive ? 1 : 0;
    }
    return py::make_tuple(means, covs, mean_rates, cov_rates, figures, counts);
}

// A routine from a capsule of scipy.linalg.cython_blas or cython_lapack. The capsule's name is the routine's signature; the
// result is null if that has other integers than ours.
template <class Routine>
void fetch(const py::dict& routines, const std::string& name, Routine& out) {
    const auto found = routines[name.c_str()].cast<py::capsule>();
    const char* signature = PyCapsule_GetName(found.ptr());
    const bool fits = signature != nullptr && std::strstr(signature, ", int *") != nullptr;
    out = fits ? reinterpret_cast<Routine>(PyCapsule_GetPointer(found.ptr(), signature)) : nullptr;
}

template <class T>
void fetch_all(const py::dict& routines, const std::string& letter) {
    Blas<T>& to = blas<T>();
    fetch(routines, letter + "gemm", to.gemm);
    fetch(routines, letter + "syrk", to.syrk);
    fetch(routines, letter + "pstrf", to.pstrf);
    fetch(routines, letter + "syevd", to.syevd);
    fetch(routines, letter + "gesdd", to.gesdd);
}

// Returns whether laws in many dimensions use these routines from now on.
bool use_blas(const py::dict& routines) {
    fetch_all<float>(routines, "s");
    fetch_all<double>(routines, "d");
    return blas<float>().ready() && blas<double>().ready();
}

}  // namespace
}  // namespace qk::bind

void register_gaussian(py::module_& m) {
    using namespace qk::bind;
    m.def("use_blas", &use_blas, py::arg("routines"));
    m.def(
        "gaussian_wants_blas",
        [](int field, qk::Index d) {
            return qk::gaussian_wants_blas(static_cast<qk::GaussianField>(field), d);
        },
        py::arg("field"), py::arg("d"));
    m.def(
        "gaussian_flow",
        [](int field, double gain, bool raw_moment, double epsilon, const py::array& mean,
           const py::array& cov, const py::array& score, const py::array& query, const py::array& value,
           int method, bool pushforward, double t0, double t1, qk::Index n_steps, qk::Index store_every,
           const Doubles& output, double rtol, double atol, qk::Index max_steps, double max_growth,
           bool judge_mean, const py::object& report, int n_threads) {
            qk::GaussianOptions options;
            options.method = static_cast<qk::Method>(method);
            options.pushforward = pushforward;
            options.t0 = t0;
            options.t1 = t1;
            options.n_steps = n_steps;
            options.store_every = store_every;
            options.output = to_vector(output);
            options.rtol = rtol;
            options.atol = atol;
            options.max_steps = max_steps;
            options.max_growth = max_growth;
            options.judge_mean = judge_mean;
            if (!report.is_none())
                options.report = [&](double fraction) {
                    const py::gil_scoped_acquire gil;
                    report(fraction);
                };
            const bool single = mean.dtype().num() == py::dtype::num_of<float>();
            const auto flow = single ? &flow_of<float> : &flow_of<double>;
            return flow({field, gain, epsilon, raw_moment}, mean, cov, score, query, value, options,
                        n_threads);
        },
        py::arg("field"), py::arg("gain"), py::arg("raw_moment"), py::arg("epsilon"),
        py::arg("mean").noconvert(), py::arg("cov").noconvert(), py::arg("score").noconvert(),
        py::arg("query").noconvert(), py::arg("value").noconvert(), py::arg("method"), py::arg("pushforward"),
        py::arg("t0"), py::arg("t1"), py::arg("n_steps"), py::arg("store_every"), py::arg("output"),
        py::arg("rtol"), py::arg("atol"), py::arg("max_steps"), py::arg("max_growth"), py::arg("judge_mean"),
        py::arg("report"), py::arg("n_threads"));
}
