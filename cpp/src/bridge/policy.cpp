// What the method "auto" tries, in which order, and when it changes the method.
#include <algorithm>

#include "bridge/iterate.hpp"
#include "bridge/long_vectors.hpp"

namespace qk {
namespace {

bool may_go_on(const Iterate& at) {
    const BridgeStatus status = at.state.status;
    return (status == BridgeStatus::stagnated || status == BridgeStatus::overflow) && !at.out_of_budget();
}

// The error that rounding of potentials and scores leaves; no method makes progress below it.
double precision(const Iterate& at) {
    double largest = 32;
    for (const auto* potential : {&at.f, &at.g})
        each(at.run, potential->size(), [&](Index k) {
            const double size = std::abs((*potential)[k]);
            if (std::isfinite(size)) largest = std::max(largest, size);
        });
    return 16 * at.sweep.epsilon() * 2 * largest;
}

}  // namespace

void automatic(Iterate& at) {
    // If the error is larger than this, annealing needs fewer visits than Newton's method.
    constexpr double far = 0.3;
    Iterate::Vector start;
    set(at.run, start, at.g);
    at.state.methods.emplace_back("anderson");
    if (!at.sweep.curved()) {
        anderson(at, false);
        return;
    }
    const bool slow = anderson(at, true);
    if (!slow && !may_go_on(at)) return;
    if (slow && at.state.errors.back() < far) {
        at.state.methods.emplace_back("newton");
        const bool gave_up = newton(at, true);
        if (!gave_up && (!may_go_on(at) || at.column_error() < precision(at))) return;
    }
    if (at.state.status == BridgeStatus::overflow) set(at.run, at.g, start);
    at.state.methods.emplace_back("annealed");
    if (!anneal(at)) return;
    at.state.methods.back() = "newton";
    newton(at, false);
}

}  // namespace qk
