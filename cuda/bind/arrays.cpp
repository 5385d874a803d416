#include "arrays.hpp"

#include <cstring>

#include "dlpack.hpp"

namespace qk::cuda {

namespace {

using namespace nb::literals;

constexpr const char* names[] = {"float32", "float64", "float16", "bfloat16", "bool"};
constexpr std::size_t sizes[] = {4, 8, 2, 2, 1};

std::string device_text(int device) { return "cuda:" + std::to_string(device); }

std::string kind_of(nb::handle object) {
    return nb::cast<std::string>(nb::str(object.type().attr("__name__")));
}

std::string shape_text(const std::vector<Index>& shape) {
    std::string text = "(";
    for (std::size_t k = 0; k < shape.size(); ++k)
        text += (k > 0 ? ", " : "") + std::to_string(shape[k]) + (shape.size() == 1 ? "," : "");
    return text + ")";
}

DType read_dtype(const dlpack::DataType& type, const std::string& name) {
    if (type.lanes == 1) {
        if (type.code == dlpack::real && type.bits == 32) return DType::float32;
        if (type.code == dlpack::real && type.bits == 64) return DType::float64;
        if (type.code == dlpack::real && type.bits == 16) return DType::float16;
        if (type.code == dlpack::brain_float && type.bits == 16) return DType::bfloat16;
        if (type.bits == 8 && (type.code == dlpack::boolean || type.code == dlpack::unsigned_integer))
            return DType::boolean;
    }
    raise_type(name + ": wanted float32, float64, float16, bfloat16 or bool, got DLPack type code " +
               std::to_string(type.code) + " of " + std::to_string(type.bits) + " bits; convert it");
}

dlpack::DataType write_dtype(DType dtype) {
    const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
    const auto code = dtype == DType::boolean    ? dlpack::boolean
                      : dtype == DType::bfloat16 ? dlpack::brain_float
                                                 : dlpack::real;
    return {code, bits, 1};
}

std::vector<Index> row_major(const std::vector<Index>& shape) {
    std::vector<Index> strides(shape.size());
    Index step = 1;
    for (std::size_t k = shape.size(); k-- > 0;) {
        strides[k] = step;
        step *= shape[k];
    }
    return strides;
}

void read_tensor(const dlpack::Tensor& tensor, const std::string& name, Array& out) {
    out.data = static_cast<unsigned char*>(tensor.data) + tensor.byte_offset;
    out.device = tensor.device.index;
    out.dtype = read_dtype(tensor.dtype, name);
    out.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
    if (tensor.strides != nullptr)
        out.strides.assign(tensor.strides, tensor.strides + tensor.ndim);
    else
        out.strides = row_major(out.shape);
}

// The number by which DLPack names a stream: 0 is not allowed, and 1 is the legacy default stream.
std::intptr_t dlpack_stream(Stream stream) {
    const auto handle = reinterpret_cast<std::intptr_t>(stream);
    return handle == 0 ? 1 : handle;
}

nb::object ask_for_capsule(nb::handle object, const std::string& name, Stream stream) {
    const auto handle = dlpack_stream(stream);
    try {
        try {
            return object.attr("__dlpack__")(
                "stream"_a = handle,
                "max_version"_a = nb::make_tuple(dlpack::newest.major, dlpack::newest.minor));
        } catch (nb::python_error& error) {
            if (!error.matches(PyExc_TypeError)) throw;  // the producer does not take max_version
            return object.attr("__dlpack__")("stream"_a = handle);
        }
    } catch (nb::python_error& error) {
        nb::raise_from(error, PyExc_TypeError,
                       "%s: wanted an array that DLPack can share, got a %s that cannot be; see the cause",
                       name.c_str(), kind_of(object).c_str());
    }
}

void refuse_place(nb::handle object, const std::string& name) {
    if (!nb::hasattr(object, "__dlpack__") || !nb::hasattr(object, "__dlpack_device__"))
        raise_type(name + ": wanted an array on a CUDA device (CuPy, PyTorch, JAX), got " + kind_of(object) +
                   "; pass an object with __dlpack__");
    const nb::object place = object.attr("__dlpack_device__")();
    const int type = nb::cast<int>(nb::int_(place[0]));
    if (type == dlpack::cuda || type == dlpack::cuda_managed) return;
    if (type == dlpack::cpu || type == dlpack::cuda_host)
        raise_type(name + ": wanted an array on a CUDA device, got a " + kind_of(object) +
                   " on the CPU; move it, e.g. cupy.asarray(" + name + ") or torch.as_tensor(" + name +
                   ", device='cuda'), or leave all arrays on the CPU");
    raise_type(name + ": wanted an array on a CUDA device, got DLPack device type " + std::to_string(type) +
               "; only CUDA and the CPU are supported");
}

template <class Managed>
std::shared_ptr<void> take_over(Managed* managed) {
    return {managed, [](void* p) {
                auto* const m = static_cast<Managed*>(p);
                if (m->deleter != nullptr) m->deleter(m);
            }};
}

}  // namespace

const char* name_of(DType dtype) { return names[static_cast<int>(dtype)]; }
std::size_t size_of(DType dtype) { return sizes[static_cast<int>(dtype)]; }

Index Array::size() const {
    Index n = 1;
    for (const Index length : shape) n *= length;
    return n;
}

bool Array::contiguous() const {
    Index step = 1;
    for (std::size_t k = shape.size(); k-- > 0;) {
        if (shape[k] > 1 && strides[k] != step) return false;
        step *= shape[k];
    }
    return true;
}

std::string Array::shape_text() const { return cuda::shape_text(shape); }

void raise_type(const std::string& text) { throw nb::type_error(text.c_str()); }
void raise_value(const std::string& text) { throw nb::value_error(text.c_str()); }

void check(const Outcome& outcome) {
    if (outcome.ok()) return;
    std::string text = outcome.what;
    if (outcome.code != 0) text += " (CUDA error " + std::to_string(outcome.code) + ")";
    switch (outcome.status) {
        case Status::out_of_memory:
            PyErr_SetString(
                PyExc_MemoryError,
                ("CUDA: no room on the device: " + text + "; free arrays, or use smaller ones").c_str());
            throw nb::python_error();
        case Status::no_device:
            text = "CUDA: unavailable: " + text;
            break;
        case Status::launch_failed:
            text = "CUDA: a launch failed: " + text;
            break;
        default:
            raise_value(text);
    }
    PyErr_SetString(PyExc_RuntimeError, text.c_str());
    throw nb::python_error();
}

Stream stream_of(nb::handle object) {
    if (object.is_none()) return nullptr;
    nb::object handle = nb::borrow(object);
    if (nb::hasattr(object, "__cuda_stream__")) {
        nb::object pair = object.attr("__cuda_stream__");
        if (PyCallable_Check(pair.ptr())) pair = pair();
        handle = nb::borrow(pair[1]);
    } else if (nb::hasattr(object, "cuda_stream")) {
        handle = object.attr("cuda_stream");
    } else if (nb::hasattr(object, "ptr")) {
        handle = object.attr("ptr");
    }
    const bool number = PyLong_Check(handle.ptr()) && !PyBool_Check(handle.ptr());
    if (!number)
        raise_type(
            "stream: wanted None, an integer handle, or an object with .ptr (CuPy), .cuda_stream (PyTorch) "
            "or __cuda_stream__, got " +
            kind_of(object) + "; pass e.g. stream=torch.cuda.current_stream()");
    const auto value = PyLong_AsLongLong(handle.ptr());
    if (PyErr_Occurred() != nullptr || value < 0) {
        PyErr_Clear();
        raise_value("stream: wanted a handle of 0 or more, got " + nb::cast<std::string>(nb::str(handle)));
    }
    return reinterpret_cast<Stream>(static_cast<std::intptr_t>(value));
}

Array array_of(nb::handle object, const std::string& name, Stream stream) {
    if (nb::isinstance<Array>(object)) return nb::cast<Array>(object);
    refuse_place(object, name);
    const nb::object capsule = ask_for_capsule(object, name, stream);
    Array out;
    out.stream = stream;
    PyObject* const raw = capsule.ptr();
    if (PyCapsule_IsValid(raw, dlpack::name_versioned) != 0) {
        auto* const managed =
            static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(raw, dlpack::name_versioned));
        if (managed->version.major != dlpack::newest.major)
            raise_type(name + ": wanted DLPack of version 1, got version " +
                       std::to_string(managed->version.major) + "; update qkcore-cuda");
        PyCapsule_SetName(raw, dlpack::name_versioned_used);
        out.owner = take_over(managed);
        out.writable = (managed->flags & dlpack::read_only) == 0;
        read_tensor(managed->tensor, name, out);
    } else if (PyCapsule_IsValid(raw, dlpack::name_old) != 0) {
        auto* const managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(raw, dlpack::name_old));
        PyCapsule_SetName(raw, dlpack::name_old_used);
        out.owner = take_over(managed);
        out.writable = true;
        read_tensor(managed->tensor, name, out);
    } else {
        raise_type(name + ": wanted a DLPack capsule from __dlpack__, got something else");
    }
    if (nb::cast<std::string>(nb::str(object.type().attr("__module__"))).starts_with("jax"))
        out.writable = false;  // JAX arrays are values that nobody may write to
    return out;
}

Array contiguous_of(nb::handle object, const Wanted& wanted, Stream stream) {
    Array out = array_of(object, wanted.name, stream);
    const std::string name = wanted.name;
    if (out.dtype != wanted.dtype)
        raise_type(name + ": wanted " + name_of(wanted.dtype) + ", got " + name_of(out.dtype) +
                   "; convert one of the arrays");
    if (wanted.device >= 0 && out.device != wanted.device)
        raise_value(name + ": wanted an array on " + device_text(wanted.device) +
                    " like the others, got one on " + device_text(out.device) + "; copy it there");
    if (!wanted.shape.empty() && out.shape != wanted.shape)
        raise_value(name + ": wanted shape " + shape_text(wanted.shape) + ", got " + out.shape_text());
    if (!out.contiguous())
        raise_value(name + ": wanted a contiguous array, got strides " + shape_text(out.strides) +
                    " for shape " + out.shape_text() + "; pass a contiguous copy");
    return out;
}

Array output_of(nb::handle object, const Wanted& wanted, Stream stream) {
    if (object.is_none()) return new_array(wanted.dtype, wanted.device, wanted.shape, stream);
    Array out = contiguous_of(object, wanted, stream);
    if (!out.writable)
        raise_value(std::string(wanted.name) +
                    ": wanted an array that may be written to, got a read-only one; pass another, or None");
    out.stream = stream;
    return out;
}

Array new_array(DType dtype, int device, std::vector<Index> shape, Stream stream) {
    Array out;
    out.dtype = dtype;
    out.device = device;
    out.strides = row_major(shape);
    out.shape = std::move(shape);
    out.writable = true;
    out.stream = stream;
    const DeviceGuard guard(device);
    check(guard.outcome());
    void* memory = nullptr;
    check(allocate(out.bytes() > 0 ? out.bytes() : 1, memory));
    out.owner = {memory, [device](void* p) {
                     const DeviceGuard there(device);
                     release(p);
                 }};
    out.data = memory;
    return out;
}

// ---- export -------------------------------------------------------------------------------------

namespace {

// What an exported tensor needs to stay alive.
template <class Managed>
struct Export {
    Managed managed{};
    Array array;

    static void free(Managed* managed) { delete static_cast<Export*>(managed->context); }
};

template <class Managed>
nb::object capsule_of(const Array& array, const char* name) {
    auto* const out = new Export<Managed>;
    out->array = array;
    out->managed.context = out;
    out->managed.deleter = Export<Managed>::free;
    dlpack::Tensor& tensor = out->managed.tensor;
    tensor.data = array.data;
    tensor.device = {dlpack::cuda, array.device};
    tensor.ndim = static_cast<std::int32_t>(array.shape.size());
    tensor.dtype = write_dtype(array.dtype);
    tensor.shape = out->array.shape.data();
    tensor.strides = out->array.strides.data();
    tensor.byte_offset = 0;
    if constexpr (std::is_same_v<Managed, dlpack::ManagedVersioned>) {
        out->managed.version = dlpack::newest;
        out->managed.flags = array.writable ? 0 : dlpack::read_only;
    }
    PyObject* const capsule = PyCapsule_New(&out->managed, name, [](PyObject* c) {
        const char* const now = PyCapsule_GetName(c);
        if (std::strcmp(now, dlpack::name_old) != 0 && std::strcmp(now, dlpack::name_versioned) != 0)
            return;  // another library has taken it over
        auto* const left = static_cast<Managed*>(PyCapsule_GetPointer(c, now));
        left->deleter(left);
    });
    if (capsule == nullptr) {
        delete out;
        throw nb::python_error();
    }
    return nb::steal(capsule);
}

}  // namespace

nb::object to_dlpack(const Array& array, nb::handle stream, nb::handle max_version) {
    const bool told = !stream.is_none() && nb::cast<std::int64_t>(stream) == -1;
    if (!told) {  // the consumer works on `stream`, which must wait for ours
        const DeviceGuard guard(array.device);
        check(guard.outcome());
        const Stream theirs = stream.is_none() ? nullptr : stream_of(stream);
        if (theirs != array.stream) check(wait_for(theirs, array.stream));
    }
    const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1;
    if (versioned) return capsule_of<dlpack::ManagedVersioned>(array, dlpack::name_versioned);
    return capsule_of<dlpack::Managed>(array, dlpack::name_old);
}

}  // namespace qk::cuda
