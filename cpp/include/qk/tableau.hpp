// One-step methods as data. An explicit Runge-Kutta step from (t, x) of size h takes
//     k_s = f(t + c_s h, x + h sum_r a_sr k_r),   x + h sum_s b_s k_s.
// A Rosenbrock step (gamma > 0) solves one linear system per stage, all with the same matrix:
//     (1 / (gamma h) - J) k_s = f(t + c_s h, x + sum_r a_sr k_r) + sum_r coupling_sr k_r / h + rate_s h df/dt,
//     x + sum_s b_s k_s,
// with the Jacobian J = df/dx at (t, x). Its k_s are increments, so their coefficients have no factor h.
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
    // b minus the weights of the embedded method; all zero if there is none.
    std::array<double, max_stages> error{};
    // The last stage is the slope at the end of the step (first same as last).
    bool last_is_next = false;
    bool adaptive = false;
    // Dense output: x + h sum_s (sum_p dense[s][p] theta^(p+1)) k_s; cubic Hermite if there is none.
    bool has_dense = false;
    std::array<std::array<double, 4>, max_stages> dense{};
    // Rosenbrock methods only.
    double gamma = 0;
    std::array<std::array<double, max_stages>, max_stages> coupling{};
    std::array<double, max_stages> rate{};

    bool implicit() const { return gamma > 0; }
    // The factor of the stages in a step of size h.
    double scale(double h) const { return implicit() ? 1.0 : h; }
};

enum class Method { euler, heun, rk4, dopri5, rodas4 };
inline constexpr int n_methods = 5;

const Tableau& tableau(Method method);

}  // namespace qk
