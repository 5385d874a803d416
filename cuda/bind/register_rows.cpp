#include <nanobind/nanobind.h>

#include "description.hpp"

namespace qk::cuda {
namespace {

using namespace nb::literals;

std::vector<Index> with(std::vector<Index> batch, std::initializer_list<Index> core) {
    batch.insert(batch.end(), core);
    return batch;
}

// Launches the problems of a batch with the GIL released. An error is raised after the GIL is taken again.
template <class Body>
void each_problem(const Description& d, Body&& body) {
    Outcome outcome;
    {
        const nb::gil_scoped_release released;
        for (Index b = 0; b < d.problems() && outcome.ok(); ++b) outcome = body(b, d.problem(b));
    }
    check(outcome);
}

nb::tuple reduce_rows_of(nb::handle described, int weight, nb::handle values, bool want_lse, nb::handle lse,
                         nb::handle out, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Description d(described, stream);
    const DeviceGuard guard(d.device);
    check(guard.outcome());
    if (weight < 0 || weight > static_cast<int>(Weight::sigmoid))
        raise_value("weight: wanted 0 to 4, got " + std::to_string(weight));
    std::optional<Batched> v;
    std::optional<Array> lse_out, product;
    Index k = 0;
    if (!values.is_none()) {
        v = d.read(values, "V", d.inputs, {d.n_cols, -1});
        k = v->array.shape.back();
        product = output_of(out, {"out", d.real, d.device, with(d.batch, {d.n_rows, k})}, stream);
    }
    if (want_lse) lse_out = output_of(lse, {"lse", d.real, d.device, with(d.batch, {d.n_rows})}, stream);
    for_types(d, [&]<class T, class In>(T, In) {
        RowTask<T, In> task;
        const auto fill = [&](Index b, const std::vector<Index>& problem) {
            task.scores = d.scores<T, In>(problem);
            task.weight = static_cast<Weight>(weight);
            if (v) {
                task.values = v->matrix<In>(problem);
                task.n_values = k;
                task.product = pointer<T>(*product) + b * d.n_rows * k;
            }
            if (lse_out) task.log_sum_exp = pointer<T>(*lse_out) + b * d.n_rows;
        };
        fill(0, d.problem(0));
        Scratch scratch(workspace_bytes(task),
                        stream);  // all problems share it, one after another on one stream
        each_problem(d, [&](Index b, const std::vector<Index>& problem) {
            fill(b, problem);
            return reduce_rows(task, scratch.room(), stream);
        });
    });
    return nb::make_tuple(lse_out ? nb::cast(*lse_out) : nb::none(),
                          product ? nb::cast(*product) : nb::none());
}

nb::tuple marginals_of(nb::handle described, nb::handle rows, nb::handle cols, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Description d(described, stream);
    const DeviceGuard guard(d.device);
    check(guard.outcome());
    Array row_sums = output_of(rows, {"rows", d.real, d.device, with(d.batch, {d.n_rows})}, stream);
    Array col_sums = output_of(cols, {"cols", d.real, d.device, with(d.batch, {d.n_cols})}, stream);
    for_full_types(d, [&]<class T>(T) {
        MarginalTask<T> task;
        task.scores = d.scores<T, T>(d.problem(0));
        Scratch scratch(workspace_bytes(task), stream);
        each_problem(d, [&](Index b, const std::vector<Index>& problem) {
            task.scores = d.scores<T, T>(problem);
            task.rows = pointer<T>(row_sums) + b * d.n_rows;
            task.cols = pointer<T>(col_sums) + b * d.n_cols;
            return marginals(task, scratch.room(), stream);
        });
    });
    return nb::make_tuple(row_sums, col_sums);
}

Array materialize_of(nb::handle described, bool raw, nb::handle out, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Description d(described, stream);
    const DeviceGuard guard(d.device);
    check(guard.outcome());
    Array result = output_of(out, {"out", d.real, d.device, with(d.batch, {d.n_rows, d.n_cols})}, stream);
    for_full_types(d, [&]<class T>(T) {
        each_problem(d, [&](Index b, const std::vector<Index>& problem) {
            DenseTask<T> task;
            task.scores = d.scores<T, T>(problem);
            task.raw = raw;
            task.out = pointer<T>(result) + b * d.n_rows * d.n_cols;
            task.row_stride = d.n_cols;
            return materialize(task, stream);
        });
    });
    return result;
}

}  // namespace

void register_rows(nb::module_& module) {
    module.def("reduce_rows", &reduce_rows_of, "scores"_a, "weight"_a, "values"_a.none(), "want_lse"_a,
               "lse"_a.none() = nb::none(), "out"_a.none() = nb::none(), "stream"_a.none() = nb::none(),
               "Log-sum-exp of the rows (or None) and the product of their weights with values (or None).");
    module.def("marginals", &marginals_of, "scores"_a, "rows"_a.none() = nb::none(),
               "cols"_a.none() = nb::none(), "stream"_a.none() = nb::none(),
               "Row and column sums of exp(s), in one visit.");
    module.def("materialize", &materialize_of, "scores"_a, "raw"_a, "out"_a.none() = nb::none(),
               "stream"_a.none() = nb::none(), "The scores as an array (raw), or their exponentials.");
}

}  // namespace qk::cuda
