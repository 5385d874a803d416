// Arrays as the module sees them: device memory that another library shares by DLPack, or that is ours.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "qk_cuda/api.hpp"
#include "qk_cuda/memory.hpp"

namespace qk::cuda {

namespace nb = nanobind;

enum class DType : int { float32, float64, float16, bfloat16, boolean };
const char* name_of(DType dtype);
std::size_t size_of(DType dtype);

template <class T>
constexpr DType dtype_of = DType::boolean;
template <>
inline constexpr DType dtype_of<float> = DType::float32;
template <>
inline constexpr DType dtype_of<double> = DType::float64;
template <>
inline constexpr DType dtype_of<Half> = DType::float16;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bfloat16;

struct Array {
    std::shared_ptr<void> owner;  // gives the memory back
    void* data = nullptr;
    int device = 0;
    DType dtype = DType::float32;
    std::vector<Index> shape, strides;  // strides in elements
    bool writable = false;
    Stream stream = nullptr;  // the last stream that wrote to it, as far as we know

    Index size() const;
    std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype); }
    bool contiguous() const;
    std::string shape_text() const;
};

// ---- errors, as Python exceptions ---------------------------------------------------------------
[[noreturn]] void raise_type(const std::string& text);
[[noreturn]] void raise_value(const std::string& text);
void check(const Outcome& outcome);  // raises the Python exception for a failed outcome

// ---- arguments ----------------------------------------------------------------------------------
// A stream: None (the default stream), an integer handle, or an object with .ptr (CuPy), .cuda_stream (PyTorch) or
// __cuda_stream__ (CUDA Python).
Stream stream_of(nb::handle object);

// The array that `object` shares; nothing is copied. `stream`, which DLPack is told, is where it will be used.
Array array_of(nb::handle object, const std::string& name, Stream stream);

// The same, and raises an error if the array is not as wanted.
struct Wanted {
    const char* name;
    DType dtype;
    int device;                // -1: any
    std::vector<Index> shape;  // empty: any
};
Array contiguous_of(nb::handle object, const Wanted& wanted, Stream stream);
// An output: given by the caller (contiguous and writable), or allocated when None.
Array output_of(nb::handle object, const Wanted& wanted, Stream stream);

Array new_array(DType dtype, int device, std::vector<Index> shape, Stream stream);
nb::object to_dlpack(const Array& array, nb::handle stream, nb::handle max_version);

template <class T>
T* pointer(const Array& array) {
    return static_cast<T*>(array.data);
}

// Scratch memory of one call.
class Scratch {
public:
    Scratch(std::size_t bytes, Stream stream) : bytes_(bytes), buffer_(stream) {
        check(buffer_.reserve(bytes));
    }
    Workspace room() { return {buffer_.data(), bytes_}; }

private:
    std::size_t bytes_;
    StreamBuffer buffer_;
};

// Calls body(T{}) for the real type of 32 or 64 bits.
template <class Body>
auto for_real(DType dtype, const char* name, Body&& body) {
    if (dtype == DType::float32) return body(float{});
    if (dtype == DType::float64) return body(double{});
    raise_type(std::string(name) + ": wanted float32 or float64, got " + name_of(dtype) + "; convert it");
}

void register_arrays(nb::module_& module);
void register_rows(nb::module_& module);
void register_bridges(nb::module_& module);
void register_flows(nb::module_& module);
void register_vectors(nb::module_& module);

}  // namespace qk::cuda
