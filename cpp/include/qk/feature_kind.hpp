// What a term of a score sums over the coordinates of two points.
#pragma once

namespace qk {

// For differences x_k - y_k the number is the power of |x_k - y_k| that is summed, by which Python names the kind.
enum class FeatureKind : int { dot = 0, l1 = 1, distance = 2 };

}  // namespace qk
