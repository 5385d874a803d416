// Headers that nearly every file of the core includes, parsed once for each instruction-set level. Otherwise the
// compiler's intrinsics alone take two seconds a file. Files still include what they use, so they also compile without
// this one.
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
