# qk_levels: the instruction-set levels to build; qk_march_<level>: the flags of each.
set(qk_march_v2 -march=x86-64-v2)
set(qk_march_v3 -march=x86-64-v3)
set(qk_march_v4 -march=x86-64-v4)
set(qk_march_native -march=native)
set(qk_march_baseline)
# The tile shapes of v4 on a processor without AVX-512: slow, for tests only (-DQKCORE_ISA_LEVELS=wide).
set(qk_march_wide -march=x86-64-v3 -DQK_SIMD_WIDE -Wno-psabi)

set(qk_levels ${QKCORE_ISA_LEVELS})
if(qk_levels STREQUAL auto)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    set(qk_levels v2 v3 v4)
  else()
    set(qk_levels baseline)
  endif()
endif()
foreach(level IN LISTS qk_levels)
  if(NOT DEFINED qk_march_${level})
    message(FATAL_ERROR "QKCORE_ISA_LEVELS: '${level}' is none of auto, native, baseline, v2, v3, v4, wide")
  endif()
endforeach()
message(STATUS "Instruction-set levels: ${qk_levels}")

# GCC < 13 takes the deliberately undefined operands inside its own AVX-512 headers for a mistake (its bug 105593).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND qk_march_v4 -Wno-uninitialized -Wno-maybe-uninitialized)
  list(APPEND qk_march_native -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
