#include <algorithm>

#include <nanobind/nanobind.h>

#include "description.hpp"

namespace qk::cuda {
namespace {

using namespace nb::literals;

void one_problem(const Description& d) {
    if (!d.batch.empty()) raise_value("kernel: wanted one problem, got batch axes; take them one by one");
}

// The arrays of one problem, which the iterations change in place: g, lse, f and columns.
class Sweep {
public:
    Sweep(const nb::tuple& given, Stream stream) : scores_(given[0], stream) {
        one_problem(scores_);
        const Index rows = scores_.n_rows, cols = scores_.n_cols;
        const DType real = scores_.real;
        g_ = output_of(given[1], {"g", real, scores_.device, {cols}}, stream);
        mu_ = contiguous_of(given[2], {"mu", real, scores_.device, {rows}}, stream);
        nu_ = contiguous_of(given[3], {"nu", real, scores_.device, {cols}}, stream);
        lse_ = output_of(given[4], {"lse", real, scores_.device, {rows}}, stream);
        f_ = output_of(given[5], {"f", real, scores_.device, {rows}}, stream);
        columns_ = output_of(given[6], {"columns", real, scores_.device, {cols}}, stream);
    }
    const Description& scores() const { return scores_; }
    template <class T>
    SweepTask<T> task() const {
        SweepTask<T> out;
        out.scores = scores_.scores<T, T>({});
        out.g = out.g_new = pointer<T>(g_);
        out.mu = pointer<T>(mu_);
        out.nu = pointer<T>(nu_);
        out.lse = pointer<T>(lse_);
        out.f = pointer<T>(f_);
        out.columns = pointer<T>(columns_);
        return out;
    }

private:
    Description scores_;
    Array g_, mu_, nu_, lse_, f_, columns_;
};

// `n` iterations of each problem; then the residuals of the last ones, the only thing that comes to the host.
std::vector<double> run_sweeps(const std::vector<Sweep>& problems, const Array& residual, Index n, bool warm,
                               double row_damping, double col_damping, bool store_weights, Stream stream) {
    if (n < 1) raise_value("n: wanted at least 1, got " + std::to_string(n));
    const Description& first = problems.front().scores();
    for (const Sweep& p : problems)
        if (p.scores().real != first.real || p.scores().device != first.device)
            raise_value("problems: wanted one dtype and one device");
    std::vector<double> seen(2 * problems.size());
    for_full_types(first, [&]<class T>(T) {
        std::vector<SweepTask<T>> tasks;
        std::size_t room = 0;
        for (const Sweep& p : problems) {
            SweepTask<T> task = p.task<T>();
            task.row_damping = static_cast<T>(row_damping);
            task.col_damping = static_cast<T>(col_damping);
            task.residual = pointer<double>(residual) + 2 * tasks.size();
            task.store_weights = store_weights;
            room = std::max(room, workspace_bytes(task));
            tasks.push_back(task);
        }
        Scratch scratch(room, stream);  // one after another on one stream: they share it
        Outcome outcome;
        {
            const nb::gil_scoped_release released;
            for (SweepTask<T>& task : tasks)
                for (Index k = 0; k < n && outcome.ok(); ++k) {
                    task.shift = warm || k > 0 ? task.lse : nullptr;
                    outcome = sinkhorn_sweep(task, scratch.room(), stream);
                }
            if (outcome.ok())
                outcome = download(seen.data(), residual.data, seen.size() * sizeof(double), stream);
            if (outcome.ok()) outcome = synchronize(stream);
        }
        check(outcome);
    });
    return seen;
}

nb::tuple sweeps(nb::handle described, nb::handle g, nb::handle mu, nb::handle nu, nb::handle lse,
                 nb::handle f, nb::handle columns, nb::handle residual_given, Index n, bool warm,
                 double row_damping, double col_damping, bool store_weights, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    std::vector<Sweep> problems;
    problems.emplace_back(nb::make_tuple(described, g, mu, nu, lse, f, columns), stream);
    const int device = problems.front().scores().device;
    const DeviceGuard guard(device);
    check(guard.outcome());
    const Array residual = output_of(residual_given, {"residual", DType::float64, device, {2}}, stream);
    const auto seen =
        run_sweeps(problems, residual, n, warm, row_damping, col_damping, store_weights, stream);
    return nb::make_tuple(seen[0], seen[1]);
}

nb::list sweeps_of_many(nb::list given, nb::handle residual_given, Index n, bool warm, double row_damping,
                        double col_damping, bool store_weights, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    nb::list out;
    if (nb::len(given) == 0) return out;
    std::vector<Sweep> problems;
    for (const nb::handle one : given) {
        if (!nb::isinstance<nb::tuple>(one) || nb::len(one) != 7)
            raise_type("problems: wanted tuples (scores, g, mu, nu, lse, f, columns)");
        problems.emplace_back(nb::borrow<nb::tuple>(one), stream);
    }
    const int device = problems.front().scores().device;
    const DeviceGuard guard(device);
    check(guard.outcome());
    const auto count = static_cast<Index>(problems.size());
    const Array residual =
        output_of(residual_given, {"residual", DType::float64, device, {count, 2}}, stream);
    const auto seen =
        run_sweeps(problems, residual, n, warm, row_damping, col_damping, store_weights, stream);
    for (std::size_t k = 0; k < problems.size(); ++k)
        out.append(nb::make_tuple(seen[2 * k], seen[2 * k + 1]));
    return out;
}

nb::tuple scalings(nb::handle kernel_given, nb::handle v_given, nb::handle mu_given, nb::handle nu_given,
                   nb::handle u_given, nb::handle columns_given, nb::handle residual_given, Index n,
                   nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Array kernel = array_of(kernel_given, "kernel", stream);
    if (kernel.shape.size() != 2 || kernel.strides[1] != 1)
        raise_value("kernel: wanted a matrix with contiguous rows, got shape " + kernel.shape_text());
    const Index rows = kernel.shape[0], cols = kernel.shape[1];
    const DeviceGuard guard(kernel.device);
    check(guard.outcome());
    if (n < 1) raise_value("n: wanted at least 1, got " + std::to_string(n));
    const DType real = kernel.dtype;
    const Array v = output_of(v_given, {"v", real, kernel.device, {cols}}, stream);
    const Array mu = contiguous_of(mu_given, {"mu", real, kernel.device, {rows}}, stream);
    const Array nu = contiguous_of(nu_given, {"nu", real, kernel.device, {cols}}, stream);
    const Array u = output_of(u_given, {"u", real, kernel.device, {rows}}, stream);
    const Array columns = output_of(columns_given, {"columns", real, kernel.device, {cols}}, stream);
    const Array residual =
        output_of(residual_given, {"residual", DType::float64, kernel.device, {2}}, stream);
    double seen[2] = {0, 0};
    for_real(real, "kernel", [&]<class T>(T) {
        ScalingTask<T> task;
        task.n_rows = rows;
        task.n_cols = cols;
        task.kernel = pointer<T>(kernel);
        task.row_stride = kernel.strides[0];
        task.v = task.v_new = pointer<T>(v);
        task.mu = pointer<T>(mu);
        task.nu = pointer<T>(nu);
        task.u = pointer<T>(u);
        task.columns = pointer<T>(columns);
        task.residual = pointer<double>(residual);
        Scratch scratch(workspace_bytes(task), stream);
        Outcome outcome;
        {
            const nb::gil_scoped_release released;
            for (Index k = 0; k < n && outcome.ok(); ++k)
                outcome = scaling_sweep(task, scratch.room(), stream);
            if (outcome.ok()) outcome = download(seen, task.residual, sizeof seen, stream);
            if (outcome.ok()) outcome = synchronize(stream);
        }
        check(outcome);
    });
    return nb::make_tuple(seen[0], seen[1]);
}

Array factored(nb::tuple left, nb::tuple right, nb::handle z_given, nb::handle out, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Array z = array_of(z_given, "z", stream);
    if (z.shape.size() != 2) raise_value("z: wanted shape (k, M), got " + z.shape_text());
    if (nb::len(left) != nb::len(right) || nb::len(left) < 1 || nb::len(left) > max_terms)
        raise_value("left, right: wanted one to four factors each, as many on both sides");
    const DeviceGuard guard(z.device);
    check(guard.outcome());
    const Array kept = contiguous_of(z_given, {"z", z.dtype, z.device, z.shape}, stream);
    std::vector<Array> factors;
    const auto read = [&](nb::handle object, const char* name) -> const Array& {
        const Array any = array_of(object, name, stream);
        if (any.shape.size() != 2)
            raise_value(std::string(name) + ": wanted factors (rank, N), got " + any.shape_text());
        factors.push_back(contiguous_of(object, {name, z.dtype, z.device, any.shape}, stream));
        return factors.back();
    };
    std::optional<Array> result;
    for_real(z.dtype, "z", [&]<class T>(T) {
        FactoredTask<T> task;
        task.n_experts = static_cast<int>(nb::len(left));
        for (int e = 0; e < task.n_experts; ++e) {
            const Array l = read(left[static_cast<std::size_t>(e)], "left"),
                        r = read(right[static_cast<std::size_t>(e)], "right");
            if (l.shape[0] != r.shape[0]) raise_value("right: wanted the ranks of left");
            if (e == 0) {
                task.n_left = l.shape[1];
                task.n_right = r.shape[1];
            }
            if (l.shape[1] != task.n_left || r.shape[1] != task.n_right || r.shape[1] != z.shape[1])
                raise_value("z: wanted factors and vectors of matching lengths");
            task.left[e] = {pointer<T>(l), l.shape[0], l.shape[1]};
            task.right[e] = {pointer<T>(r), r.shape[0], r.shape[1]};
        }
        task.z = pointer<T>(kept);
        task.k = z.shape[0];
        result = output_of(out, {"out", z.dtype, z.device, {z.shape[0], task.n_left}}, stream);
        task.out = pointer<T>(*result);
        Scratch scratch(workspace_bytes(task), stream);
        check(factored_product(task, scratch.room(), stream));
    });
    return *result;
}

}  // namespace

void register_bridges(nb::module_& module) {
    module.def("sinkhorn_sweeps", &sweeps, "scores"_a, "g"_a, "mu"_a, "nu"_a, "lse"_a, "f"_a, "columns"_a,
               "residual"_a, "n"_a, "warm"_a, "row_damping"_a = 1.0, "col_damping"_a = 1.0,
               "store_weights"_a = true, "stream"_a.none() = nb::none(),
               "n full iterations in place on g, lse, f; returns (L1 error of the columns, columns that "
               "underflowed).");
    module.def(
        "sinkhorn_sweeps_many", &sweeps_of_many, "problems"_a, "residual"_a, "n"_a, "warm"_a,
        "row_damping"_a = 1.0, "col_damping"_a = 1.0, "store_weights"_a = true,
        "stream"_a.none() = nb::none(),
        "The same of several problems (scores, g, mu, nu, lse, f, columns), with one transfer for all.");
    module.def("scaling_sweeps", &scalings, "kernel"_a, "v"_a, "mu"_a, "nu"_a, "u"_a, "columns"_a,
               "residual"_a, "n"_a, "stream"_a.none() = nb::none(),
               "The same on a stored kernel, in place on u and v.");
    module.def("factored_product", &factored, "left"_a, "right"_a, "z"_a, "out"_a.none() = nb::none(),
               "stream"_a.none() = nb::none(),
               "z (k, M) times the transpose of a product of low-rank factors.");
}

}  // namespace qk::cuda
