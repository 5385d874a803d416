// Functions by which the tests control the machine that the SIMT layer imitates.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "simt.hpp"

namespace qk::cuda {

void register_simt(nb::module_& module) {
    using namespace nb::literals;
    module.def("simt_seed", &simt::set_seed, "seed"_a,
               "The order of threads and blocks; 0: the natural one.");
    module.def("simt_reports", &simt::reports, "What was found since simt_clear.");
    module.def("simt_clear", &simt::clear_reports);
    module.def(
        "simt_devices",
        [](int n) {
            simt::machine.devices = n;
            simt::machine.current = 0;
        },
        "n"_a, "So many devices; 0: as without a driver.");
    module.def(
        "simt_fail_allocation", [](long long n) { simt::machine.allocations_left = n; }, "n"_a,
        "One allocation fails after n have not; negative: none does.");
    module.def(
        "simt_readonly",
        [](Array array) {
            array.writable = false;
            return array;
        },
        "array"_a, "The same memory, not to be written to.");
    module.def(
        "simt_view",
        [](Array array, const std::vector<Index>& shape, const std::vector<Index>& strides, Index offset) {
            array.data =
                static_cast<unsigned char*>(array.data) + offset * static_cast<Index>(size_of(array.dtype));
            array.shape = shape;
            array.strides = strides;
            return array;
        },
        "array"_a, "shape"_a, "strides"_a, "offset"_a = 0, "Any view of the memory; strides in elements.");
    module.def("simt_counts", [] {
        nb::dict out;
        out["launches"] = simt::machine.launches;
        out["waits"] = simt::machine.waits;
        out["orders"] = simt::machine.orders;
        out["current"] = simt::machine.current;
        out["last_device"] = simt::machine.last_device;
        out["last_stream"] = reinterpret_cast<std::intptr_t>(simt::machine.last_stream);
        return out;
    });
}

}  // namespace qk::cuda
