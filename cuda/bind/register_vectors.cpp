#include <algorithm>

#include <nanobind/nanobind.h>

#include "arrays.hpp"
#include "qk_cuda/api.hpp"

namespace qk::cuda {
namespace {

using namespace nb::literals;

constexpr const char* figure_names[n_figures] = {"nan",        "plus_inf", "minus_inf", "largest",
                                                 "smallest",   "sum",      "squares",   "weight",
                                                 "difference", "ratio",    "dot"};
constexpr const char* op_names[] = {"affine", "minus_or_zero", "log", "log_minus", "tilt", "relative"};

// The last two axes as rows and columns. Batch axes without gaps between them become more rows.
template <class In>
SummaryTask<In> summary_task(const Array& a) {
    SummaryTask<In> task;
    const std::size_t n = a.shape.size();
    task.n_cols = n > 0 ? a.shape[n - 1] : 1;
    task.n_rows = 1;
    for (std::size_t k = 0; k + 1 < n; ++k) task.n_rows *= a.shape[k];
    task.a = {pointer<In>(a), n > 1 ? a.strides[n - 2] : 0, n > 0 ? a.strides[n - 1] : 1};
    return task;
}

bool without_gaps(const Array& a) {
    const std::size_t n = a.shape.size();
    if (n < 3) return true;
    Index step = a.strides[n - 2] * a.shape[n - 2];
    for (std::size_t k = n - 2; k-- > 0;) {
        if (a.shape[k] > 1 && a.strides[k] != step) return false;
        step *= a.shape[k];
    }
    return true;
}

// The matrices of an array whose batch axes have gaps between them, one by one.
std::vector<Array> pieces(const Array& a) {
    if (without_gaps(a)) return {a};
    std::vector<Array> out{a};
    while (out.front().shape.size() > 2) {
        std::vector<Array> next;
        for (const Array& whole : out)
            for (Index i = 0; i < whole.shape[0]; ++i) {
                Array part = whole;
                part.data = static_cast<unsigned char*>(whole.data) +
                            static_cast<std::size_t>(i * whole.strides[0]) * size_of(whole.dtype);
                part.shape.erase(part.shape.begin());
                part.strides.erase(part.strides.begin());
                next.push_back(std::move(part));
            }
        out = std::move(next);
    }
    return out;
}

template <class In>
void one_summary(const Array& a, const Array* b, double* figures, Stream stream) {
    SummaryTask<In> task = summary_task<In>(a);
    task.b = b == nullptr ? nullptr : pointer<In>(*b);
    task.figures = figures;
    Scratch scratch(workspace_bytes(task), stream);
    check(summarize(task, scratch.room(), stream));
}

void any_summary(const Array& a, const std::string& name, const Array* b, double* figures, Stream stream) {
    switch (a.dtype) {
        case DType::float32:
            return one_summary<float>(a, b, figures, stream);
        case DType::float64:
            return one_summary<double>(a, b, figures, stream);
        case DType::float16:
            return one_summary<Half>(a, b, figures, stream);
        case DType::bfloat16:
            return one_summary<BFloat16>(a, b, figures, stream);
        default:
            raise_type(name + ": wanted numbers, got bool");
    }
}

double joined(Figure figure, double a, double b) {
    if (figure == Figure::smallest) return std::min(a, b);
    if (figure == Figure::largest || figure == Figure::ratio) return std::max(a, b);
    return a + b;
}

struct Job {
    std::string name;
    std::vector<Array> parts;
    std::optional<Array> pair;
};

// Figures of several arrays, brought to the host by one transfer. `given` is a list of tuples (name, a, b or None).
nb::list summaries(nb::list given, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    nb::list out;
    std::vector<Job> jobs;
    std::size_t count = 0;
    int device = 0;
    for (const nb::handle entry : given) {
        const nb::tuple one = nb::cast<nb::tuple>(entry);
        const auto name = nb::cast<std::string>(one[0]);
        const Array a = array_of(one[1], name, stream);
        if (jobs.empty()) device = a.device;
        if (a.device != device)
            raise_value(name + ": wanted an array on cuda:" + std::to_string(device) +
                        " like the others, got one on cuda:" + std::to_string(a.device) + "; copy it there");
        Job job{name, {}, {}};
        if (one[2].is_none()) {
            job.parts = pieces(a);
        } else {
            job.parts = {contiguous_of(one[1], {job.name.c_str(), a.dtype, device, a.shape}, stream)};
            job.pair = contiguous_of(one[2], {"b", a.dtype, device, a.shape}, stream);
        }
        count += job.parts.size();
        jobs.push_back(std::move(job));
    }
    if (jobs.empty()) return out;
    const DeviceGuard guard(device);
    check(guard.outcome());
    std::vector<double> host(count * n_figures);
    Scratch figures(host.size() * sizeof(double), stream);
    auto* at = static_cast<double*>(figures.room().data);
    for (const Job& job : jobs)
        for (const Array& part : job.parts) {
            any_summary(part, job.name, job.pair ? &*job.pair : nullptr, at, stream);
            at += n_figures;
        }
    Outcome outcome;
    {
        const nb::gil_scoped_release released;
        outcome = download(host.data(), figures.room().data, host.size() * sizeof(double), stream);
        if (outcome.ok()) outcome = synchronize(stream);
    }
    check(outcome);
    const double* row = host.data();
    for (const Job& job : jobs) {
        nb::dict found;
        for (int i = 0; i < n_figures; ++i) {
            double value = row[i];
            for (std::size_t p = 1; p < job.parts.size(); ++p)
                value =
                    joined(static_cast<Figure>(i), value, row[p * n_figures + static_cast<std::size_t>(i)]);
            found[figure_names[i]] = value;
        }
        row += job.parts.size() * n_figures;
        out.append(found);
    }
    return out;
}

Array map_of(const std::string& op, nb::handle x_given, nb::handle y_given, nb::handle z_given, double a,
             double b, double c, nb::handle out, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    int code = -1;
    for (int k = 0; k < 6; ++k)
        if (op == op_names[k]) code = k;
    if (code < 0) raise_value("op: unknown operation " + op);
    const Array any = array_of(x_given, "x", stream);
    const Wanted like{"x", any.dtype, any.device, any.shape};
    const Array x = contiguous_of(x_given, like, stream);
    std::optional<Array> y, z;
    if (!y_given.is_none()) y = contiguous_of(y_given, {"y", any.dtype, any.device, any.shape}, stream);
    if (!z_given.is_none()) z = contiguous_of(z_given, {"z", any.dtype, any.device, any.shape}, stream);
    const DeviceGuard guard(any.device);
    check(guard.outcome());
    Array result = output_of(out, {"out", any.dtype, any.device, any.shape}, stream);
    for_real(any.dtype, "x", [&]<class T>(T) {
        VectorTask<T> task;
        task.op = static_cast<VectorOp>(code);
        task.n = x.size();
        task.x = pointer<T>(x);
        task.y = y ? pointer<T>(*y) : nullptr;
        task.z = z ? pointer<T>(*z) : nullptr;
        task.a = static_cast<T>(a);
        task.b = static_cast<T>(b);
        task.c = static_cast<T>(c);
        task.out = pointer<T>(result);
        check(map_vector(task, stream));
    });
    return result;
}

Array row_dots_of(nb::handle x_given, nb::handle y_given, double scale, nb::handle out,
                  nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Array x = array_of(x_given, "x", stream), y = array_of(y_given, "y", stream);
    if (x.shape.size() != 2 || x.shape != y.shape || x.dtype != y.dtype || x.device != y.device)
        raise_value("y: wanted the shape, dtype and device of x, " + x.shape_text() + ", got " +
                    y.shape_text());
    const DeviceGuard guard(x.device);
    check(guard.outcome());
    Array result = output_of(out, {"out", x.dtype, x.device, {x.shape[0]}}, stream);
    for_real(x.dtype, "x", [&]<class T>(T) {
        RowDotTask<T> task;
        task.n = x.shape[0];
        task.dim = x.shape[1];
        task.x = {pointer<T>(x), x.strides[0], x.strides[1]};
        task.y = {pointer<T>(y), y.strides[0], y.strides[1]};
        task.scale = static_cast<T>(scale);
        task.out = pointer<T>(result);
        check(row_dots(task, stream));
    });
    return result;
}

}  // namespace

void register_vectors(nb::module_& module) {
    module.def("summaries", &summaries, "arrays"_a, "stream"_a.none() = nb::none(),
               "Figures of arrays (name, a, b or None) as dictionaries: sums, extremes, NaN and infinities.");
    module.def("map_vector", &map_of, "op"_a, "x"_a, "y"_a.none() = nb::none(), "z"_a.none() = nb::none(),
               "a"_a = 1.0, "b"_a = 0.0, "c"_a = 0.0, "out"_a.none() = nb::none(),
               "stream"_a.none() = nb::none(), "One of a few operations, entry by entry.");
    module.def("row_dots", &row_dots_of, "x"_a, "y"_a, "scale"_a = 1.0, "out"_a.none() = nb::none(),
               "stream"_a.none() = nb::none(), "scale <x_i, y_i> for each row.");
}

}  // namespace qk::cuda
