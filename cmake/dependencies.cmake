set(PYBIND11_FINDPYTHON ON)
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(pybind11 3 CONFIG QUIET)
if(NOT pybind11_FOUND) # a plain `cmake` run: the interpreter knows where its pybind11 is
  execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
                  OUTPUT_VARIABLE pybind11_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_package(pybind11 3 CONFIG REQUIRED HINTS ${pybind11_dir})
endif()

# Eigen's headers come from PyPI (cmeel-eigen), which puts them in <site-packages>/cmeel.prefix. That folder is
# found through the interpreter, because only sys.path knows where pip's isolated build environment is.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
          "import os, sys; print(*(p for d in sys.path if os.path.isdir(p := os.path.join(d, 'cmeel.prefix'))), sep=';')"
  OUTPUT_VARIABLE cmeel_prefixes OUTPUT_STRIP_TRAILING_WHITESPACE)
find_package(Eigen3 CONFIG REQUIRED HINTS ${cmeel_prefixes})
if(Eigen3_VERSION VERSION_LESS 3.4) # checked here, because Eigen 5 works but tells find_package that it does not match 3.4
  message(FATAL_ERROR "Eigen >= 3.4 is needed, found ${Eigen3_VERSION} in ${Eigen3_DIR}")
endif()
message(STATUS "Eigen ${Eigen3_VERSION}: ${Eigen3_DIR}")

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
