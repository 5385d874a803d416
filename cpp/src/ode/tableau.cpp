#include "qk/tableau.hpp"

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
    // The last coefficients of the interpolant.
    const double d[max_stages] = {-12715105075.0 / 11282082432,  0.0,
                                  87487479700.0 / 32700410799,   -10690763975.0 / 1880347072,
                                  701980252875.0 / 199316789632, -1453857185.0 / 822651844,
                                  69997945.0 / 29380423};
    for (int s = 0; s < max_stages; ++s) {
        // y = x + theta (D + (1-theta) (k1 h - D + theta (D - h k7 - (h k1 - D) + (1-theta) E)))
        // with D = h sum b_s k_s, E = h sum d_s k_s, sorted by powers of theta.
        const double b = t.b[s], first = s == 0 ? 1.0 : 0.0, last = s == 6 ? 1.0 : 0.0;
        const double r2 = first - b;      // k1 h - D
        const double r3 = b - last - r2;  // D - h k7 - (h k1 - D)
        t.dense[s] = {b + r2, -r2 + r3 + d[s], -r3 - 2 * d[s], d[s]};
    }
    return t;
}

// RODAS, a Rosenbrock method of order 4 with an embedded one of order 3. Both are L-stable and stiffly accurate, and
// the dense output has order 3 (Hairer and Wanner, Solving Ordinary Differential Equations II, IV.7).
Tableau rodas4() {
    Tableau t;
    t.name = "rodas4";
    t.order = 4;
    t.n_stages = 6;
    t.gamma = 0.25;
    t.a[1] = {1.544};
    t.a[2] = {0.9466785280815826, 0.2557011698983284};
    t.a[3] = {3.314825187068521, 2.896124015972201, 0.9986419139977817};
    t.a[4] = {1.221224509226641, 6.019134481288629, 12.53708332932087, -0.687886036105895};
    t.a[5] = t.a[4];
    t.a[5][4] = 1.0;
    t.coupling[1] = {-5.6688};
    t.coupling[2] = {-2.430093356833875, -0.2063599157091915};
    t.coupling[3] = {-0.1073529058151375, -9.594562251023355, -20.47028614809616};
    t.coupling[4] = {7.496443313967647, -10.24680431464352, -33.99990352819905, 11.7089089320616};
    t.coupling[5] = {8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136,
                     -6.058818238834054};
    t.b = t.a[5];
    t.b[5] = 1.0;
    t.c = {0.0, 0.386, 0.21, 0.63, 1.0, 1.0};
    t.rate = {0.25, -0.1043, 0.1035, -0.0362};
    t.error[5] = 1.0;
    t.adaptive = true;
    t.has_dense = true;
    // x + theta (y - x) + theta (1 - theta) sum_s (p_s + theta q_s) k_s, y the end of the step, sorted by powers of
    // theta.
    const double p[max_stages] = {10.12623508344586, -7.487995877610167, -34.80091861555747,
                                  -7.992771707568823, 1.025137723295662};
    const double q[max_stages] = {-0.6762803392801253, 6.087714651680015, 16.43084320892478,
                                  24.76722511418386, -6.594389125716872};
    for (int s = 0; s < max_stages; ++s) t.dense[s] = {t.b[s] + p[s], q[s] - p[s], -q[s], 0.0};
    return t;
}

}  // namespace

const Tableau& tableau(Method method) {
    static const Tableau all[n_methods] = {euler(), heun(), rk4(), dopri5(), rodas4()};
    return all[static_cast<int>(method)];
}

}  // namespace qk
