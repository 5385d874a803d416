// The module _cpuid, which says what the processor can do. It is called before any module that needs more than the
// baseline is loaded. It uses CPython's own interface, because pybind11's headers would make this small file compile
// for 8 seconds.
#include <Python.h>

#include "cpu_level.hpp"

namespace {

PyObject* text(const std::string& value) {
    return PyUnicode_FromStringAndSize(value.data(), static_cast<Py_ssize_t>(value.size()));
}
PyObject* level(PyObject*, PyObject*) { return text(qk::cpu::level()); }
PyObject* brand(PyObject*, PyObject*) { return text(qk::cpu::brand()); }

PyMethodDef functions[] = {
    {"level", level, METH_NOARGS,
     "Highest x86-64 level that processor and system support: v1, v2, v3, v4; baseline elsewhere."},
    {"brand", brand, METH_NOARGS, "Name of the processor."},
    {nullptr, nullptr, 0, nullptr},
};

// `version` is that of the distribution, as written in pyproject.toml.
int fill(PyObject* module) { return PyModule_AddStringConstant(module, "version", QKCORE_VERSION); }

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(&fill)},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_cpuid",
    "What the processor can do; runs on every processor.",
    0,
    functions,
    slots,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

// The name that CPython looks for.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
PyMODINIT_FUNC PyInit__cpuid() { return PyModuleDef_Init(&definition); }
