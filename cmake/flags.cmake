# qk_flags: the flags with which every target is compiled.
add_library(qk_flags INTERFACE)
target_compile_features(qk_flags INTERFACE cxx_std_20)
target_compile_definitions(qk_flags INTERFACE QKCORE_VERSION="${SKBUILD_PROJECT_VERSION_FULL}")

# No -ffast-math, because inf, NaN and signed zeros carry meaning here (masks, rows in which everything is masked). The
# flags give up only errno, floating-point traps and the rounding between a product and the sum that it feeds.
target_compile_options(
  qk_flags
  INTERFACE $<$<CONFIG:Release,RelWithDebInfo>:$<IF:$<BOOL:$<TARGET_PROPERTY:QK_QUICK_TO_COMPILE>>,-O2,-O3>>
            -ffunction-sections # so that the linker can drop functions that nothing calls
            -fdata-sections
            -fno-math-errno
            -fno-trapping-math
            -ffp-contract=fast
            -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wconversion
            -Wno-sign-conversion # indices are std::ptrdiff_t, sizes of the standard library std::size_t
            -Wcast-align
            -Wnon-virtual-dtor
            -Woverloaded-virtual
            -Wdouble-promotion
            -Wvla)
if(QKCORE_WERROR)
  target_compile_options(qk_flags INTERFACE -Werror)
endif()
# Used by tools/sanitize.sh. The first finding ends the process, so that none can be overlooked.
if(QKCORE_SANITIZE)
  target_compile_options(qk_flags INTERFACE -fsanitize=${QKCORE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(qk_flags INTERFACE -fsanitize=${QKCORE_SANITIZE})
endif()
if(QKCORE_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # Makes a call for each access instead of branches, so that the unrolled kernels compile in seconds instead of minutes.
  target_compile_options(qk_flags INTERFACE --param=asan-instrumentation-with-call-threshold=0)
endif()
if(QKCORE_SANITIZE MATCHES undefined)
  # Converting NaN and inf to integers is undefined too, but not part of "undefined". The checks that are left out put a
  # branch at every address and every reference, and a single file would take twenty minutes. AddressSanitizer, or the
  # processor (for aligned vectors), finds the same mistakes.
  target_compile_options(qk_flags INTERFACE -fsanitize=float-cast-overflow
                                            -fno-sanitize=null,alignment,object-size,pointer-overflow)
endif()

# A module exports its init function and nothing else. Templates of the standard library are instantiated with a
# different -march in each module, and one module must never use those of another.
if(CMAKE_SYSTEM_NAME STREQUAL Linux)
  set(qk_exports ${CMAKE_CURRENT_BINARY_DIR}/exports.map)
  file(CONFIGURE OUTPUT ${qk_exports} CONTENT "{ global: PyInit__cpu_*; PyInit__cpuid; local: *; };\n")
endif()

function(qk_add_module name)
  pybind11_add_module(${name} MODULE NO_EXTRAS ${ARGN}) # NO_EXTRAS: no LTO, which doubles the build time and gains nothing
  target_compile_definitions(${name} PRIVATE QK_MODULE_NAME=${name})
  target_link_libraries(${name} PRIVATE qk_flags)
  if(qk_exports)
    target_link_options(${name} PRIVATE -Wl,--version-script=${qk_exports} -Wl,--gc-sections)
  endif()
  install(TARGETS ${name} LIBRARY DESTINATION qkcore)
endfunction()
