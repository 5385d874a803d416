# The distribution qkcore-cuda (packaging/cuda): nvcc compiles the kernels, the C++ compiler the module; the result is one
# shared library that contains the CUDA runtime. Nothing of the CPU library is needed.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_dir
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED HINTS ${nanobind_dir})

set(QKCORE_CUDA_BUILD ${CMAKE_CURRENT_BINARY_DIR}/kernels CACHE PATH "where the Makefile puts the kernels' objects")
set(root ${CMAKE_CURRENT_SOURCE_DIR})

# The kernels are compiled by the same script as in the Makefile, which also checks their resources (make cuda).
file(GLOB kernels CONFIGURE_DEPENDS cuda/src/*.cu)
foreach(kernel IN LISTS kernels)
  get_filename_component(name ${kernel} NAME_WE)
  list(APPEND objects ${QKCORE_CUDA_BUILD}/cuda/${name}.o)
endforeach()
add_custom_target(qk_kernels BYPRODUCTS ${objects} USES_TERMINAL
                  COMMAND make --no-print-directory -C ${root} BUILD=${QKCORE_CUDA_BUILD} cuda-objects)

execute_process(COMMAND ${CMAKE_COMMAND} -E env BUILD=${QKCORE_CUDA_BUILD} ${root}/tools/nvcc.sh --toolkit
                WORKING_DIRECTORY ${root} OUTPUT_VARIABLE toolkit OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
find_library(QKCORE_CUDART cudart_static HINTS ${toolkit}/lib64 ${toolkit}/lib ${toolkit}/targets/x86_64-linux/lib
             NO_DEFAULT_PATH REQUIRED)
find_package(Threads REQUIRED)

file(GLOB bind_sources CONFIGURE_DEPENDS cuda/bind/*.cpp)
nanobind_add_module(_module NB_STATIC NOMINSIZE ${bind_sources})
add_dependencies(_module qk_kernels)
target_compile_features(_module PRIVATE cxx_std_20)
target_compile_definitions(_module PRIVATE QK_MODULE_NAME=_module QKCORE_VERSION="${SKBUILD_PROJECT_VERSION_FULL}")
target_compile_options(_module PRIVATE -Wall -Wextra $<$<BOOL:${QKCORE_WERROR}>:-Werror>)
target_include_directories(_module PRIVATE cpp/include cuda/include cuda/bind)
target_link_libraries(_module PRIVATE ${objects} ${QKCORE_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt)
target_link_options(_module PRIVATE -Wl,--exclude-libs,ALL)
install(TARGETS _module LIBRARY DESTINATION qkcore_cuda)
