// The stages of Rosenbrock methods, for stiff problems, in which explicit steps must be short only to be stable.
#pragma once

#include <memory>

#include "qk/tableau.hpp"
#include "qk/velocity.hpp"

namespace qk::ode {

// What a Rosenbrock method needs of a state, which is one problem in double precision. `whole` arrays have all numbers
// of the state. Unknowns are the independent ones among them (for a symmetric matrix, one triangle).
class StiffSystem {
public:
    StiffSystem() = default;
    StiffSystem(const StiffSystem&) = delete;
    StiffSystem& operator=(const StiffSystem&) = delete;
    virtual ~StiffSystem() = default;

    virtual Index unknowns() const = 0;
    virtual Index length() const = 0;  // the length of whole arrays
    virtual void gather(const double* whole, double* unknowns) const = 0;
    virtual void scatter(const double* unknowns, double* whole) const = 0;
    virtual bool autonomous() const = 0;
    virtual VelocityStatus rate(double t, const double* whole, double* out) = 0;

    virtual const double* state() const = 0;
    virtual const double* slope() const = 0;  // the slope at the state
    virtual double* increment(int s) = 0;     // the array that stage s is written to
};

class Rosenbrock {
public:
    // `system` is null for methods that are not implicit; then nothing is done.
    Rosenbrock(const Tableau& method, StiffSystem* system);
    ~Rosenbrock();
    Rosenbrock(const Rosenbrock&) = delete;
    Rosenbrock& operator=(const Rosenbrock&) = delete;

    // Computes all stages of a step h from the state at t, into the system's increments.
    VelocityStatus stages(double t, double h);

private:
    struct Workspace;

    const Tableau& method_;
    StiffSystem* system_;
    std::unique_ptr<Workspace> at_;
};

}  // namespace qk::ode
