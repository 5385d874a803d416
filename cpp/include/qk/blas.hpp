// Decompositions (and what goes with them) of a library that the caller brings: the addresses of BLAS and LAPACK routines with
// the Fortran interface and 32-bit integers. Without one nothing is lost but speed.
#pragma once

#include "views.hpp"

namespace qk {

template <class T>
struct Blas {
    void (*gemm)(char*, char*, int*, int*, int*, T*, T*, int*, T*, int*, T*, T*, int*) = nullptr;
    void (*syrk)(char*, char*, int*, int*, T*, T*, int*, T*, T*, int*) = nullptr;
    void (*pstrf)(char*, int*, T*, int*, int*, int*, T*, T*, int*) = nullptr;
    void (*syevd)(char*, char*, int*, T*, int*, T*, T*, int*, int*, int*, int*) = nullptr;
    void (*gesdd)(char*, int*, int*, T*, int*, T*, T*, int*, T*, int*, T*, int*, int*, int*) = nullptr;

    bool ready() const {
        return gemm != nullptr && syrk != nullptr && pstrf != nullptr && syevd != nullptr && gesdd != nullptr;
    }
};

// The library of this process; empty until somebody fills it.
template <class T>
Blas<T>& blas();

}  // namespace qk
