#include "bridge/iterate.hpp"
#include "qk/sinkhorn.hpp"

namespace qk {

void solve_bridge(Sweep& sweep, const std::vector<double>& mu, const std::vector<double>& nu,
                  const BridgeOptions& options, BridgeState& state, const Run& run) {
    Iterate at(sweep, mu, nu, options, state, run);
    switch (options.method) {
        case BridgeMethod::alternating:
            alternate(at, false);
            break;
        case BridgeMethod::relaxed:
            alternate(at, true);
            break;
        case BridgeMethod::anderson:
            if (options.period > 1)
                periodic(at);
            else
                anderson(at, false);
            break;
        case BridgeMethod::accelerated:
            if (anderson(at, true)) newton(at, false);
            break;
        case BridgeMethod::newton:
            newton(at, false);
            break;
        case BridgeMethod::symmetric:
            symmetric(at);
            break;
        case BridgeMethod::annealed:
            if (anneal(at)) newton(at, false);
            break;
        case BridgeMethod::automatic:
            automatic(at);
            break;
    }
    at.finish();
}

}  // namespace qk
