// What nearly every file of the core reads, parsed once for each instruction-set level: the compiler's intrinsics
// alone take two seconds a file otherwise. Files still include what they use, so they compile without this too.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "qk/vector_math.hpp"
