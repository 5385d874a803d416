#include <nanobind/nanobind.h>

#include "arrays.hpp"
#include "qk_cuda/api.hpp"

namespace qk::cuda {
namespace {

using namespace nb::literals;

Array points_of(nb::handle object, const char* name, Stream stream) {
    const Array any = array_of(object, name, stream);
    if (any.shape.size() != 2)
        raise_value(std::string(name) + ": wanted points (N, d), got shape " + any.shape_text());
    return contiguous_of(object, {name, any.dtype, any.device, any.shape}, stream);
}

Array project_points(nb::handle x_given, nb::handle matrix_given, double scale, nb::handle out,
                     nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Array x = points_of(x_given, "x", stream);
    const Array any = array_of(matrix_given, "matrix", stream);
    if (any.shape.size() != 2 || any.shape[1] != x.shape[1])
        raise_value("matrix: wanted shape (d_out, " + std::to_string(x.shape[1]) + "), got " +
                    any.shape_text());
    const Array matrix = contiguous_of(matrix_given, {"matrix", x.dtype, x.device, any.shape}, stream);
    const DeviceGuard guard(x.device);
    check(guard.outcome());
    Array result = output_of(out, {"out", x.dtype, x.device, {x.shape[0], any.shape[0]}}, stream);
    for_real(x.dtype, "x", [&]<class T>(T) {
        ProjectTask<T> task;
        task.n = x.shape[0];
        task.d_in = x.shape[1];
        task.d_out = matrix.shape[0];
        task.x = pointer<T>(x);
        task.matrix = pointer<T>(matrix);
        task.scale = static_cast<T>(scale);
        task.out = pointer<T>(result);
        check(project(task, stream));
    });
    return result;
}

Array combine_stages(nb::handle x_given, nb::tuple slopes, nb::tuple weights, double h, nb::handle out,
                     nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Array any = array_of(x_given, "x", stream);
    const Array x = contiguous_of(x_given, {"x", any.dtype, any.device, any.shape}, stream);
    if (nb::len(slopes) != nb::len(weights) || nb::len(slopes) > max_stages)
        raise_value("k: wanted at most 8 slopes and as many weights");
    const DeviceGuard guard(x.device);
    check(guard.outcome());
    Array result = output_of(out, {"out", x.dtype, x.device, x.shape}, stream);
    for_real(x.dtype, "x", [&]<class T>(T) {
        CombineTask<T> task;
        task.n = x.size();
        task.x = pointer<T>(x);
        std::vector<Array> kept;
        for (std::size_t s = 0; s < nb::len(slopes); ++s) {
            const auto weight = nb::cast<double>(weights[s]);
            if (weight == 0) continue;
            kept.push_back(contiguous_of(slopes[s], {"k", x.dtype, x.device, x.shape}, stream));
            task.k[task.n_stages] = pointer<T>(kept.back());
            task.a[task.n_stages++] = static_cast<T>(weight);
        }
        task.h = static_cast<T>(h);
        task.out = pointer<T>(result);
        check(combine(task, stream));
    });
    return result;
}

Array velocity_of(nb::handle x_given, nb::handle Q_given, nb::handle K_given, nb::handle V_given, int weight,
                  bool distance, double scale, bool mean, Index lo, Index hi, nb::handle out,
                  nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Array x = points_of(x_given, "x", stream);
    const Array any = array_of(Q_given, "Q", stream);
    const Index n = x.shape[0], d = x.shape[1];
    if (any.shape.size() != 3 || any.shape[2] != d)
        raise_value("Q: wanted shape (heads, k, " + std::to_string(d) + "), got " + any.shape_text());
    if (weight < 0 || weight > static_cast<int>(Weight::sigmoid))
        raise_value("weight: wanted 0 to 4, got " + std::to_string(weight));
    const Index heads = any.shape[0];
    const Array Q = contiguous_of(Q_given, {"Q", x.dtype, x.device, any.shape}, stream);
    const Array K = contiguous_of(K_given, {"K", x.dtype, x.device, any.shape}, stream);
    const Array V = contiguous_of(V_given, {"V", x.dtype, x.device, {heads, d, d}}, stream);
    const DeviceGuard guard(x.device);
    check(guard.outcome());
    Array result = output_of(out, {"out", x.dtype, x.device, x.shape}, stream);
    for_real(x.dtype, "x", [&]<class T>(T) {
        VelocityTask<T> task;
        task.n = n;
        task.d = d;
        task.d_head = any.shape[1];
        task.heads = heads;
        task.x = pointer<T>(x);
        task.Q = pointer<T>(Q);
        task.K = pointer<T>(K);
        task.V = pointer<T>(V);
        task.weight = static_cast<Weight>(weight);
        task.kind = distance ? FeatureKind::distance : FeatureKind::dot;
        task.scale = static_cast<T>(scale);
        task.mean = mean;
        task.band.lo = lo;
        task.band.hi = hi;
        task.out = pointer<T>(result);
        Scratch scratch(workspace_bytes(task), stream);
        Outcome outcome;
        {
            const nb::gil_scoped_release released;
            outcome = velocity(task, scratch.room(), stream);
        }
        check(outcome);
    });
    return result;
}

// n_steps steps, in place on mean (n, d) and cov (n, d, d).
void gaussian_of(nb::handle mean_given, nb::handle cov_given, nb::handle score_given, nb::handle query_given,
                 nb::handle value_given, bool l2, double gain, bool raw_moment, nb::tuple a, nb::tuple b,
                 double h, Index n_steps, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Array any = points_of(mean_given, "mean", stream);
    const Index n = any.shape[0], d = any.shape[1];
    const Array mean = output_of(mean_given, {"mean", any.dtype, any.device, {n, d}}, stream);
    const Array cov = output_of(cov_given, {"cov", any.dtype, any.device, {n, d, d}}, stream);
    const Array matrices = array_of(score_given, "score", stream);
    const auto& shape = matrices.shape;
    const bool shared = shape.size() == 3;
    if ((shape.size() != 3 && shape.size() != 4) || (!shared && shape[0] != n) ||
        shape[shape.size() - 1] != d || shape[shape.size() - 2] != d)
        raise_value("score: wanted shape (heads, d, d) or (n, heads, d, d), got " + matrices.shape_text());
    const Array score = contiguous_of(score_given, {"score", any.dtype, any.device, shape}, stream);
    const Array query = contiguous_of(query_given, {"query", any.dtype, any.device, shape}, stream);
    const Array value = contiguous_of(value_given, {"value", any.dtype, any.device, shape}, stream);
    const auto stages = nb::len(b);
    if (stages < 1 || stages > max_gaussian_stages || nb::len(a) != stages)
        raise_value("a, b: wanted a tableau of one to four stages");
    const DeviceGuard guard(any.device);
    check(guard.outcome());
    for_real(any.dtype, "mean", [&]<class T>(T) {
        GaussianTask<T> task;
        task.field = l2 ? GaussianField::l2 : GaussianField::weighted;
        task.n = n;
        task.d = static_cast<int>(d);
        task.heads = static_cast<int>(shape[shape.size() - 3]);
        task.score = pointer<T>(score);
        task.query = pointer<T>(query);
        task.value = pointer<T>(value);
        task.shared = shared;
        task.gain = static_cast<T>(gain);
        task.raw_moment = raw_moment;
        task.tableau.n_stages = static_cast<int>(stages);
        for (std::size_t s = 0; s < stages; ++s) {
            task.tableau.b[s] = nb::cast<double>(b[s]);
            const nb::tuple row = nb::cast<nb::tuple>(a[s]);
            for (std::size_t k = 0; k < nb::len(row) && k < stages; ++k)
                task.tableau.a[s][k] = nb::cast<double>(row[k]);
        }
        task.h = static_cast<T>(h);
        task.n_steps = n_steps;
        task.mean = pointer<T>(mean);
        task.cov = pointer<T>(cov);
        check(gaussian_steps(task, stream));
    });
}

}  // namespace

void register_flows(nb::module_& module) {
    module.def("project", &project_points, "x"_a, "matrix"_a, "scale"_a = 1.0, "out"_a.none() = nb::none(),
               "stream"_a.none() = nb::none(), "scale * x @ matrix.T");
    module.def("combine", &combine_stages, "x"_a, "k"_a, "weights"_a, "h"_a, "out"_a.none() = nb::none(),
               "stream"_a.none() = nb::none(), "x + h sum_s weights_s k_s: a Runge-Kutta stage, or a step.");
    module.def("velocity", &velocity_of, "x"_a, "Q"_a, "K"_a, "V"_a, "weight"_a = 0, "distance"_a = false,
               "scale"_a = 1.0, "mean"_a = false, "lo"_a = -Band::unbounded, "hi"_a = Band::unbounded,
               "out"_a.none() = nb::none(), "stream"_a.none() = nb::none(),
               "The velocities of particles that attend to one another.");
    module.def("gaussian_steps", &gaussian_of, "mean"_a, "cov"_a, "score"_a, "query"_a, "value"_a,
               "l2"_a = false, "gain"_a = 1.0, "raw_moment"_a = false, "a"_a, "b"_a, "h"_a, "n_steps"_a = 1,
               "stream"_a.none() = nb::none(), "Steps of Gaussian laws, in place on mean and cov.");
}

}  // namespace qk::cuda
