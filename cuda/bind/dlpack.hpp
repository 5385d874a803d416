// The binary layout of DLPack (version 1, and the layout before it), by which array libraries share memory.
#pragma once

#include <cstdint>

namespace qk::cuda::dlpack {

enum DeviceType : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, rocm = 10, cuda_managed = 13 };
enum TypeCode : std::uint8_t { integer = 0, unsigned_integer = 1, real = 2, brain_float = 4, boolean = 6 };

struct Device {
    std::int32_t type;
    std::int32_t index;
};
struct DataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};
struct Tensor {
    void* data;
    Device device;
    std::int32_t ndim;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  // in elements; null: row-major
    std::uint64_t byte_offset;
};

struct Managed {
    Tensor tensor;
    void* context;
    void (*deleter)(Managed*);
};
struct Version {
    std::uint32_t major, minor;
};
struct ManagedVersioned {
    Version version;
    void* context;
    void (*deleter)(ManagedVersioned*);
    std::uint64_t flags;
    Tensor tensor;
};

constexpr std::uint64_t read_only = 1;
constexpr Version newest{1, 1};

// Names of the capsules that carry the tensors. A library that takes a tensor over renames its capsule.
constexpr const char* name_old = "dltensor";
constexpr const char* name_old_used = "used_dltensor";
constexpr const char* name_versioned = "dltensor_versioned";
constexpr const char* name_versioned_used = "used_dltensor_versioned";

}  // namespace qk::cuda::dlpack
