// Decompositions and products from a library that the caller brings, as addresses of BLAS and LAPACK routines with
// the Fortran interface and 32-bit integers. Without such a library everything still works, only more slowly.
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

// The library of this process; its addresses are null until a caller sets them.
template <class T>
Blas<T>& blas();

}  // namespace qk
