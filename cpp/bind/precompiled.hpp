// Headers that every file of the bindings includes, parsed once.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
