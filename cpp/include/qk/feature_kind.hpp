// What a term of a score sums over the coordinates of two points.
#pragma once

namespace qk {

// Of differences x_k - y_k the number is the power of their sizes. Python describes them by it.
enum class FeatureKind : int { dot = 0, l1 = 1, distance = 2 };

}  // namespace qk
