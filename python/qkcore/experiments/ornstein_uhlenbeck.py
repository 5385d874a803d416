"""The poster's second experiment: the Ornstein-Uhlenbeck process from N(0, 4) by iterated bridges (ISB-5).

The laws of the process and of all schemes stay normal, so everything has a closed form, including theorem 1's
relative entropies. The poster's step needs a surrogate, (ρ/ν)^(−θ), and therefore a density. The scheme
`split` needs none: it takes the score of ρ from the bridge of the particles, and the score of ν is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import qkcore as qk

from ..isb import BridgeFlow, Mixture
from . import _bridge_flows as flows
from ._bridge_claims import ornstein_uhlenbeck as claims
from ._bridge_flows_show import plot, tables
from ._configs import Config, positive
from ._errors import ExperimentError
from ._files import columns

if TYPE_CHECKING:
    from ._run import Run

__all__ = ["check", "claims", "compute", "plot", "tables"]

Array = npt.NDArray[np.float64]


def check(config: Config) -> None:
    """Refuses settings with which the flow cannot be computed."""
    flows.check(config)
    positive(config, "variance", "target_variance", "support_half_width")
    positive(config, "support_points", least=2)
    sign = 1 / config["target_variance"] - 1 / config["variance"]
    if sign == 0:
        raise ExperimentError(
            "variance: wanted a value other than target_variance; with equal ones nothing moves"
        )
    for theta in config["thetas"]:
        if not theta * sign > 0:
            raise ExperimentError(
                f"thetas: wanted numbers of the sign of {sign:+.3g}, for which (ρ/ν)^(−θ) can be "
                f"normalised, got {theta:g}"
            )


def problem(config: Config) -> flows.Problem:
    """The normal law, its exact flow, and the schemes."""
    law = Mixture.gaussian(0.0, config["variance"])
    target = config["target_variance"]

    def one_step(epsilons: Sequence[float], against: str) -> Array:
        n = config["grid"]
        return qk.isb.one_step_rate(law, epsilons, target=target, against=against, n=n).errors

    schemes = {"surrogate, θ chosen": _surrogate(law, target, None)}
    schemes |= {f"surrogate, θ = {t:g}": _surrogate(law, target, t) for t in config["thetas"]}
    half = config["support_half_width"]
    support = np.linspace(-half, half, config["support_points"])[:, None]
    return flows.Problem(
        law,
        lambda t: law.ornstein_uhlenbeck(t, variance=target),
        {**schemes, "split": _particles(target, "split"), "explicit Euler": _euler(law, target)},
        {
            "split": _particles(target, "split"),
            "surrogate on a support": _particles(target, "surrogate", support=support),
            "surrogate on the particles": _particles(target, "surrogate", max_unevenness=math.inf),
        },
        one_step,
    )


def compute(config: Config, run: Run) -> None:
    """Computes snapshots, errors against epsilon, particles, and theorem 1."""
    p = problem(config)
    metrics = flows.study(p, config, run)
    metrics["closed_form"] = _closed_form(p, config, metrics)
    metrics["theorem_1"] = _theorem_1(config, run)
    run.write_metrics(metrics)


def _closed_form(p: flows.Problem, config: Config, metrics: dict[str, Any]) -> dict[str, float]:
    """The largest difference between the poster's scheme on the grid and the recursion of its variances."""
    worst = 0.0
    for key in metrics["schemes"][p.poster]["errors"]:
        epsilon = float(key)
        steps = round(config["T"] / epsilon)
        scheme = np.sqrt(
            qk.isb.gaussian_variances(
                config["variance"], epsilon, steps, target=config["target_variance"]
            )
        )
        exact = np.sqrt([p.exact(k * epsilon).variance for k in range(steps + 1)])
        sup = float(np.abs(scheme - exact).max())
        worst = max(worst, abs(sup - metrics["schemes"][p.poster]["errors"][key]["w2"]))
    return {"largest_difference_of_w2": worst}


def _theorem_1(config: Config, run: Run) -> dict[str, Any]:
    """Relative entropies between the bridge and the Langevin coupling, in both orders, against epsilon."""
    epsilons = config["epsilons"]
    gaps = [qk.isb.gaussian_entropy_gap(config["variance"], e) for e in epsilons]
    leading = [(e / (2 * config["variance"])) ** 4 / 72 for e in epsilons]
    run.write_csv("theorem1", columns(epsilon=epsilons, entropies=gaps, leading_term=leading))
    return flows.slope(epsilons, gaps)


def _surrogate(law: Mixture, target: float, theta: float | None) -> flows.Scheme:
    """The poster's step, with the points themselves as support; it carries densities along."""

    def scheme(x: Array, w: Array | None, epsilon: float, n: int) -> tuple[Array, BridgeFlow]:
        found = qk.isb.ornstein_uhlenbeck(
            x,
            epsilon,
            n,
            variance=target,
            weights=w,
            method="surrogate",
            theta=theta,
            log_density=law.log_pdf(x[:, 0]),
        )
        return flows.states_of(found)

    return scheme


def _particles(target: float, method: str, **options: Any) -> flows.Scheme:
    """A scheme that knows only the points; "surrogate" estimates their density."""

    def scheme(
        x: Array, w: Array | None, epsilon: float, n: int
    ) -> tuple[Array, BridgeFlow | None]:
        found = qk.isb.ornstein_uhlenbeck(
            x, epsilon, n, variance=target, weights=w, method=method, **options
        )
        states, flow = flows.states_of(found)
        # With a separate support the bridge, and so its self weight, is not that of the particles.
        return states, None if "support" in options else flow

    return scheme


def _euler(law: Mixture, target: float) -> flows.Scheme:
    """Explicit Euler steps: each scales N(0, s²) by 1 + ε/2 (1/s² − 1/v)."""

    def scheme(x: Array, w: Array | None, epsilon: float, n: int) -> tuple[Array, None]:
        factors, s2 = [1.0], law.variance
        for _ in range(n):
            factor = 1 + 0.5 * epsilon * (1 / s2 - 1 / target)
            factors.append(factors[-1] * factor)
            s2 *= factor * factor
        if not all(math.isfinite(f) for f in factors):
            raise ArithmeticError(
                f"explicit Euler at epsilon {epsilon:g}: the variance left the range of a float"
            )
        return np.array(factors)[:, None] * x[:, 0], None

    return scheme
