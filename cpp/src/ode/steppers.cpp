#include "qk/steppers.hpp"

namespace qk {
namespace {

Tableau euler() {
    Tableau t;
    t.name = "euler";
    t.b = {1.0};
    return t;
}

// Explicit trapezoidal rule.
Tableau heun() {
    Tableau t;
    t.name = "heun";
    t.order = 2;
    t.n_stages = 2;
    t.a[1] = {1.0};
    t.b = {0.5, 0.5};
    t.c = {0.0, 1.0};
    return t;
}

Tableau rk4() {
    Tableau t;
    t.name = "rk4";
    t.order = 4;
    t.n_stages = 4;
    t.a[1] = {0.5};
    t.a[2] = {0.0, 0.5};
    t.a[3] = {0.0, 0.0, 1.0};
    t.b = {1.0 / 6, 1.0 / 3, 1.0 / 3, 1.0 / 6};
    t.c = {0.0, 0.5, 0.5, 1.0};
    return t;
}

// Dormand and Prince 1980, RK5(4)7M; dense output of order 4 (Hairer, Norsett and Wanner, II.6).
Tableau dopri5() {
    Tableau t;
    t.name = "dopri5";
    t.order = 5;
    t.n_stages = 7;
    t.a[1] = {1.0 / 5};
    t.a[2] = {3.0 / 40, 9.0 / 40};
    t.a[3] = {44.0 / 45, -56.0 / 15, 32.0 / 9};
    t.a[4] = {19372.0 / 6561, -25360.0 / 2187, 64448.0 / 6561, -212.0 / 729};
    t.a[5] = {9017.0 / 3168, -355.0 / 33, 46732.0 / 5247, 49.0 / 176, -5103.0 / 18656};
    t.a[6] = {35.0 / 384, 0.0, 500.0 / 1113, 125.0 / 192, -2187.0 / 6784, 11.0 / 84};
    t.b = t.a[6];
    t.c = {0.0, 1.0 / 5, 3.0 / 10, 4.0 / 5, 8.0 / 9, 1.0, 1.0};
    t.error = {71.0 / 57600, 0.0, -71.0 / 16695, 71.0 / 1920, -17253.0 / 339200, 22.0 / 525.0, -1.0 / 40};
    t.last_is_next = true;
    t.adaptive = true;
    t.has_dense = true;
    // theta (b_s theta + (1 - theta)(1_{s=1} - 1_{s=7} theta) + ...) multiplied out, with the last
    // coefficients d_s of the interpolant: see dense_from below.
    const double d[max_stages] = {-12715105075.0 / 11282082432,  0.0,
                                  87487479700.0 / 32700410799,   -10690763975.0 / 1880347072,
                                  701980252875.0 / 199316789632, -1453857185.0 / 822651844,
                                  69997945.0 / 29380423};
    for (int s = 0; s < max_stages; ++s) {
        // y = x + theta (D + (1-theta) (k1 h - D + theta (D - h k7 - (h k1 - D) + (1-theta) E)))
        // with D = h sum b_s k_s, E = h sum d_s k_s; powers of theta collected.
        const double b = t.b[s], first = s == 0 ? 1.0 : 0.0, last = s == 6 ? 1.0 : 0.0;
        const double r2 = first - b;      // k1 h - D
        const double r3 = b - last - r2;  // D - h k7 - (h k1 - D)
        t.dense[s] = {b + r2, -r2 + r3 + d[s], -r3 - 2 * d[s], d[s]};
    }
    return t;
}

}  // namespace

const Tableau& tableau(Method method) {
    static const Tableau all[] = {euler(), heun(), rk4(), dopri5()};
    return all[static_cast<int>(method)];
}

}  // namespace qk
