#include <nanobind/nanobind.h>

#include "arrays.hpp"
#include "dlpack.hpp"

namespace qk::cuda {
namespace {

using namespace nb::literals;

nb::tuple tuple_of(const std::vector<Index>& numbers) {
    nb::list out;
    for (const Index n : numbers) out.append(n);
    return nb::tuple(out);
}

std::vector<Index> shape_of(nb::handle object) {
    std::vector<Index> out;
    for (const nb::handle length : nb::borrow<nb::tuple>(object)) {
        out.push_back(nb::cast<Index>(length));
        if (out.back() < 0) raise_value("shape: wanted no negative length");
    }
    return out;
}

DType dtype_named(const std::string& name) {
    for (const DType dtype :
         {DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::boolean})
        if (name == name_of(dtype)) return dtype;
    raise_type("dtype: wanted float32, float64, float16, bfloat16 or bool, got " + name);
}

// A contiguous view through Python's buffer protocol (of a NumPy array or a memoryview).
class HostBuffer {
public:
    HostBuffer(nb::handle object, int flags) {
        if (PyObject_GetBuffer(object.ptr(), &view_, flags | PyBUF_C_CONTIGUOUS) != 0)
            throw nb::python_error();
    }
    HostBuffer(const HostBuffer&) = delete;
    HostBuffer& operator=(const HostBuffer&) = delete;
    ~HostBuffer() { PyBuffer_Release(&view_); }
    void* data() const { return view_.buf; }
    std::size_t bytes() const { return static_cast<std::size_t>(view_.len); }

private:
    Py_buffer view_{};
};

Array empty(nb::handle shape, const std::string& dtype, int device, nb::handle stream) {
    return new_array(dtype_named(dtype), device, shape_of(shape), stream_of(stream));
}

// Copies the bytes of a host array to the device, whatever the host calls their dtype: bfloat16 comes as 16-bit
// integers.
Array upload_of(nb::handle host, nb::handle shape, const std::string& dtype, int device,
                nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    Array out = new_array(dtype_named(dtype), device, shape_of(shape), stream);
    const HostBuffer buffer(host, PyBUF_SIMPLE);
    if (buffer.bytes() != out.bytes())
        raise_value("host: wanted " + std::to_string(out.bytes()) + " bytes, got " +
                    std::to_string(buffer.bytes()));
    const DeviceGuard guard(device);
    check(guard.outcome());
    check(upload(out.data, buffer.data(), out.bytes(), stream));
    check(synchronize(stream));  // the caller may change the host's memory as soon as this returns
    return out;
}

void download_to(nb::handle array_given, nb::handle host, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Array any = array_of(array_given, "array", stream);
    const Array array = contiguous_of(array_given, {"array", any.dtype, any.device, any.shape}, stream);
    const HostBuffer buffer(host, PyBUF_WRITABLE);
    if (buffer.bytes() != array.bytes())
        raise_value("host: wanted " + std::to_string(array.bytes()) + " bytes, got " +
                    std::to_string(buffer.bytes()));
    const DeviceGuard guard(array.device);
    check(guard.outcome());
    Outcome outcome;
    {
        const nb::gil_scoped_release released;
        outcome = download(buffer.data(), array.data, array.bytes(), stream);
        if (outcome.ok()) outcome = synchronize(stream);
    }
    check(outcome);
}

void copy_to(nb::handle from_given, nb::handle to_given, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const Array any = array_of(from_given, "from", stream);
    const Array from = contiguous_of(from_given, {"from", any.dtype, any.device, any.shape}, stream);
    const Array to = output_of(to_given, {"to", any.dtype, any.device, any.shape}, stream);
    const DeviceGuard guard(any.device);
    check(guard.outcome());
    check(copy(to.data, from.data, from.bytes(), stream));
}

// Entry `index` of the first axis; shares the memory.
Array entry_of(const Array& array, Index index) {
    if (array.shape.empty() || index < 0 || index >= array.shape[0])
        throw nb::index_error("index: outside of the first axis");
    Array out = array;
    const auto offset = static_cast<std::size_t>(index * array.strides[0]) * size_of(array.dtype);
    out.data = static_cast<unsigned char*>(array.data) + offset;
    out.shape.erase(out.shape.begin());
    out.strides.erase(out.strides.begin());
    return out;
}

// Entries `first` to `last` (exclusive) of an axis that is counted from the end (-1 is the last); shares the memory.
Array cut_of(const Array& array, Index axis, Index first, Index last) {
    const auto n = static_cast<Index>(array.shape.size());
    if (axis >= 0 || axis < -n) throw nb::index_error("axis: wanted -1, -2, ... up to the number of axes");
    const auto at = static_cast<std::size_t>(n + axis);
    if (first < 0 || last < first || last > array.shape[at])
        throw nb::index_error("first, last: outside of the axis");
    Array out = array;
    const auto offset = static_cast<std::size_t>(first * array.strides[at]) * size_of(array.dtype);
    out.data = static_cast<unsigned char*>(array.data) + offset;
    out.shape[at] = last - first;
    return out;
}

// The same entries in another shape; shares the memory.
Array reshape_of(const Array& array, nb::handle shape) {
    Array out = array;
    out.shape = shape_of(shape);
    if (!array.contiguous() || out.size() != array.size())
        raise_value("shape: wanted as many entries as a contiguous array of shape " + array.shape_text() +
                    " has, got " + out.shape_text());
    out.strides.assign(out.shape.size(), 1);
    for (std::size_t k = out.shape.size(); k-- > 1;) out.strides[k - 1] = out.strides[k] * out.shape[k];
    return out;
}

void synchronize_on(int device, nb::handle stream_given) {
    const Stream stream = stream_of(stream_given);
    const DeviceGuard guard(device);
    check(guard.outcome());
    Outcome outcome;
    {
        const nb::gil_scoped_release released;
        outcome = synchronize(stream);
    }
    check(outcome);
}

// {"available", "reason", "devices", "driver", "runtime"}. This initialises the driver, and never raises.
nb::dict status() {
    int count = 0, driver = 0, runtime = 0;
    const Outcome outcome = device_count(count);
    versions(driver, runtime);
    nb::list devices;
    for (int k = 0; k < count; ++k) {
        DeviceInfo info;
        if (!device_info(k, info).ok()) continue;
        nb::dict one;
        one["name"] = info.name;
        one["capability"] = std::to_string(info.major) + "." + std::to_string(info.minor);
        one["memory"] = info.bytes;
        devices.append(one);
    }
    nb::dict out;
    out["available"] = outcome.ok() && count > 0;
    out["reason"] = outcome.ok() ? (count > 0 ? "" : "no CUDA device") : outcome.what;
    out["devices"] = devices;
    out["driver"] = driver;
    out["runtime"] = runtime;
    return out;
}

}  // namespace

void register_arrays(nb::module_& module) {
    nb::class_<Array>(module, "Array",
                      "Memory on a device; shared with other libraries by DLPack, never copied.")
        .def_prop_ro("shape", [](const Array& a) { return tuple_of(a.shape); })
        .def_prop_ro(
            "strides", [](const Array& a) { return tuple_of(a.strides); }, "in elements")
        .def_prop_ro("dtype", [](const Array& a) { return std::string(name_of(a.dtype)); })
        .def_ro("device", &Array::device)
        .def_ro("writable", &Array::writable)
        .def_prop_ro("ndim", [](const Array& a) { return a.shape.size(); })
        .def_prop_ro("contiguous", &Array::contiguous)
        .def_prop_ro("pointer", [](const Array& a) { return reinterpret_cast<std::uintptr_t>(a.data); })
        .def_prop_ro(
            "T",
            [](const Array& a) {
                Array out = a;
                if (a.shape.size() > 1) {
                    std::swap(out.shape[a.shape.size() - 1], out.shape[a.shape.size() - 2]);
                    std::swap(out.strides[a.shape.size() - 1], out.strides[a.shape.size() - 2]);
                }
                return out;
            },
            "the last two axes exchanged; shares the memory")
        .def("entry", &entry_of, "index"_a, "entry of the first axis; shares the memory")
        .def("cut", &cut_of, "axis"_a, "first"_a, "last"_a,
             "entries first to last (exclusive) of an axis counted from the end; shares the memory")
        .def("reshape", &reshape_of, "shape"_a,
             "the entries of a contiguous array in another shape; shares the memory")
        .def(
            "expand",
            [](const Array& a) {
                Array out = a;
                out.shape.push_back(1);
                out.strides.push_back(1);
                return out;
            },
            "with one more axis of length 1 at the end; shares the memory")
        .def(
            "broadcast_rows",
            [](const Array& a, Index n_rows) {
                Array out = a;
                out.shape.insert(out.shape.end() - 1, n_rows);
                out.strides.insert(out.strides.end() - 1, 0);
                return out;
            },
            "n_rows"_a, "a vector (..., m) as (..., n_rows, m), by a stride of 0")
        .def(
            "squeeze",
            [](const Array& a) {
                Array out = a;
                if (a.shape.empty() || a.shape.back() != 1)
                    raise_value("squeeze: wanted a last axis of length 1");
                out.shape.pop_back();
                out.strides.pop_back();
                return out;
            },
            "without its last axis, of length 1; shares the memory")
        .def("__dlpack_device__", [](const Array& a) { return nb::make_tuple(int{dlpack::cuda}, a.device); })
        .def(
            "__dlpack__",
            [](const Array& a, nb::handle stream, nb::handle max_version, nb::handle, nb::handle) {
                return to_dlpack(a, stream, max_version);
            },
            nb::kw_only(), "stream"_a.none() = nb::none(), "max_version"_a.none() = nb::none(),
            "dl_device"_a.none() = nb::none(), "copy"_a.none() = nb::none());

    module.def(
        "asarray",
        [](nb::handle object, const std::string& name, nb::handle stream) {
            return array_of(object, name, stream_of(stream));
        },
        "array"_a, "name"_a = "array", "stream"_a.none() = nb::none(),
        "The memory that an array shares by DLPack.");
    module.def("empty", &empty, "shape"_a, "dtype"_a, "device"_a, "stream"_a.none() = nb::none());
    module.def("upload", &upload_of, "host"_a, "shape"_a, "dtype"_a, "device"_a,
               "stream"_a.none() = nb::none(), "A copy of the host's memory on the device.");
    module.def("download", &download_to, "array"_a, "host"_a, "stream"_a.none() = nb::none(),
               "Copies to the host's memory, and waits.");
    module.def("copy", &copy_to, "from"_a, "to"_a, "stream"_a.none() = nb::none());
    module.def("synchronize", &synchronize_on, "device"_a, "stream"_a.none() = nb::none());
    module.def(
        "stream_handle", [](nb::handle stream) { return reinterpret_cast<std::intptr_t>(stream_of(stream)); },
        "stream"_a.none(), "The handle of whatever stands for a stream.");
    module.def("live_allocations", &live_allocations, "Allocations that are alive.");
    module.def("status", &status);
}

}  // namespace qk::cuda
