// The function that CPython looks for in the module of one instruction-set level, PyInit__cpu_v3 for example. It
// returns the definition from module.cpp. The import machinery names the module after its file, so one definition
// serves all levels.
#include <Python.h>

#define QK_JOIN(a, b) a##b
#define QK_INIT(name) QK_JOIN(PyInit_, name)

// NOLINTNEXTLINE(bugprone-reserved-identifier): CPython's way of naming it
extern "C" PyObject* PyInit__cpu();
PyMODINIT_FUNC QK_INIT(QK_MODULE_NAME)() { return PyInit__cpu(); }
