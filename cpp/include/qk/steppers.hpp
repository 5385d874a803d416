// Explicit Runge-Kutta methods as data. A step from (t, x) of size h takes
//     k_s = f(t + c_s h, x + h sum_r a_sr k_r),   x + h sum_s b_s k_s.
#pragma once

#include <array>

namespace qk {

inline constexpr int max_stages = 7;

struct Tableau {
    const char* name = "";
    int order = 1;
    int n_stages = 1;
    std::array<std::array<double, max_stages>, max_stages> a{};
    std::array<double, max_stages> b{};
    std::array<double, max_stages> c{};
    // b minus the weights of the embedded method; all zero when there is none.
    std::array<double, max_stages> error{};
    // The last stage is the slope at the end of the step (first same as last).
    bool last_is_next = false;
    bool adaptive = false;
    // Dense output: x + h sum_s (sum_p dense[s][p] theta^(p+1)) k_s; cubic Hermite when there is none.
    bool has_dense = false;
    std::array<std::array<double, 4>, max_stages> dense{};
};

enum class Method { euler, heun, rk4, dopri5 };

const Tableau& tableau(Method method);

}  // namespace qk
