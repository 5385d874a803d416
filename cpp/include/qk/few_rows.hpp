// Turns a number of rows that is known at run time into a constant, for kernels that keep so many rows in registers.
#pragma once

#include <type_traits>

#include "views.hpp"

namespace qk {

// Calls body(std::integral_constant<int, n>{}) for n from 1 to 4.
template <class Body>
inline void with_few_rows(Index n, const Body& body) {
    switch (n) {
        case 4:
            return body(std::integral_constant<int, 4>{});
        case 3:
            return body(std::integral_constant<int, 3>{});
        case 2:
            return body(std::integral_constant<int, 2>{});
        default:
            return body(std::integral_constant<int, 1>{});
    }
}

}  // namespace qk
