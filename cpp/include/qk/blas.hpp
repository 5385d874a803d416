// Matrix products and factorisations of a library that the caller brings: the addresses of BLAS and LAPACK routines with the
// Fortran interface and 32-bit integers. Without one nothing is lost but speed.
#pragma once

#include "views.hpp"

namespace qk {

template <class T>
struct Blas {
    void (*gemm)(char*, char*, int*, int*, int*, T*, T*, int*, T*, int*, T*, T*, int*) = nullptr;
    void (*gemv)(char*, int*, int*, T*, T*, int*, T*, int*, T*, T*, int*) = nullptr;
    void (*syrk)(char*, char*, int*, int*, T*, T*, int*, T*, T*, int*) = nullptr;
    void (*potrf)(char*, int*, T*, int*, int*) = nullptr;
    void (*potrs)(char*, int*, int*, T*, int*, T*, int*, int*) = nullptr;
    void (*pstrf)(char*, int*, T*, int*, int*, int*, T*, T*, int*) = nullptr;
    void (*syevd)(char*, char*, int*, T*, int*, T*, T*, int*, int*, int*, int*) = nullptr;
    void (*gesdd)(char*, int*, int*, T*, int*, T*, T*, int*, T*, int*, T*, int*, int*, int*) = nullptr;

    bool ready() const {
        return gemm != nullptr && gemv != nullptr && syrk != nullptr && potrf != nullptr &&
               potrs != nullptr && pstrf != nullptr && syevd != nullptr && gesdd != nullptr;
    }
};

// The library of this process; empty until somebody fills it.
template <class T>
Blas<T>& blas();

// Laws of this many dimensions and more go through the library, each alone, rather than in the lanes of packs.
inline constexpr Index blas_dimensions = 32;
// From here on the library uses threads of its own, and laws follow one another.
inline constexpr Index blas_threads_dimensions = 80;

}  // namespace qk
