#include <nanobind/nanobind.h>

#include "description.hpp"

namespace qk::cuda {
namespace {

using namespace nb::literals;

// `n` iterations of one problem, in place. If memory for a residual is given, that of the last one comes to the host.
nb::object sweeps(nb::handle described, nb::handle g_given, nb::handle mu_given, nb::handle nu_given,
                  nb::handle lse_given, nb::handle f_given, nb::handle columns_given,
                  nb::handle residual_given, Index n, bool warm, double row_damping, double col_damping,
                  bool store_weights, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Description scores(described, stream);
    if (!scores.batch.empty())
        raise_value("kernel: wanted one problem, got batch axes; take them one by one");
    if (n < 1) raise_value("n: wanted at least 1, got " + std::to_string(n));
    const Index rows = scores.n_rows, cols = scores.n_cols;
    const DType real = scores.real;
    const int device = scores.device;
    const DeviceGuard guard(device);
    check(guard.outcome());
    const Array g = output_of(g_given, {"g", real, device, {cols}}, stream);
    const Array mu = contiguous_of(mu_given, {"mu", real, device, {rows}}, stream);
    const Array nu = contiguous_of(nu_given, {"nu", real, device, {cols}}, stream);
    const Array lse = output_of(lse_given, {"lse", real, device, {rows}}, stream);
    const Array f = output_of(f_given, {"f", real, device, {rows}}, stream);
    const Array columns = output_of(columns_given, {"columns", real, device, {cols}}, stream);
    const bool looks = !residual_given.is_none();
    std::optional<Array> residual;
    if (looks) residual = output_of(residual_given, {"residual", DType::float64, device, {2}}, stream);
    double seen[2] = {0, 0};
    for_full_types(scores, [&]<class T>(T) {
        SweepTask<T> task;
        task.scores = scores.scores<T, T>({});
        task.g = task.g_new = pointer<T>(g);
        task.mu = pointer<T>(mu);
        task.nu = pointer<T>(nu);
        task.lse = pointer<T>(lse);
        task.f = pointer<T>(f);
        task.columns = pointer<T>(columns);
        task.row_damping = static_cast<T>(row_damping);
        task.col_damping = static_cast<T>(col_damping);
        task.residual = looks ? pointer<double>(*residual) : nullptr;
        task.store_weights = store_weights;
        Scratch scratch(workspace_bytes(task), stream);
        Outcome outcome;
        {
            const nb::gil_scoped_release released;
            for (Index k = 0; k < n && outcome.ok(); ++k) {
                task.shift = warm || k > 0 ? task.lse : nullptr;
                outcome = sinkhorn_sweep(task, scratch.room(), stream);
            }
            if (looks && outcome.ok()) outcome = download(seen, task.residual, sizeof seen, stream);
            if (looks && outcome.ok()) outcome = synchronize(stream);
        }
        check(outcome);
    });
    return looks ? nb::object(nb::make_tuple(seen[0], seen[1])) : nb::none();
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
               "residual"_a.none(), "n"_a, "warm"_a, "row_damping"_a = 1.0, "col_damping"_a = 1.0,
               "store_weights"_a = true, "stream"_a.none() = nb::none(),
               "n full iterations in place on g, lse, f; returns (L1 error of the columns, columns that "
               "underflowed), or None without room for a residual.");
    module.def("scaling_sweeps", &scalings, "kernel"_a, "v"_a, "mu"_a, "nu"_a, "u"_a, "columns"_a,
               "residual"_a, "n"_a, "stream"_a.none() = nb::none(),
               "The same on a stored kernel, in place on u and v.");
    module.def("factored_product", &factored, "left"_a, "right"_a, "z"_a, "out"_a.none() = nb::none(),
               "stream"_a.none() = nb::none(),
               "z (k, M) times the transpose of a product of low-rank factors.");
}

}  // namespace qk::cuda
