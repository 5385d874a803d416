"""The poster's first experiment: heat flow from ½N(−2,1) + ½N(2,1) by iterated bridges (ISB-5).

The exact law is a normal mixture at every time. Errors against it (W1, W2 and the L1 distance of densities)
are measured over a range of epsilon, for the poster's step, for other surrogates of the same flow and
for the objective as printed (erratum 6). Then they are measured with particles, and split into parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import qkcore as qk

from ..isb import BridgeFlow, Mixture
from . import _bridge_flows as flows
from ._bridge_claims import heat as claims
from ._bridge_flows_show import plot, tables
from ._configs import Config, positive
from ._errors import ExperimentError

if TYPE_CHECKING:
    from ._run import Run

__all__ = ["check", "claims", "compute", "plot", "tables"]

Array = npt.NDArray[np.float64]


def check(config: Config) -> None:
    """Refuses settings with which the flow cannot be computed."""
    flows.check(config)
    positive(config, "variances", "weights")
    sizes = {len(config[k]) for k in ("weights", "means", "variances")}
    if len(sizes) > 1:
        raise ExperimentError(
            "weights: wanted weights, means and variances of one length, got "
            f"{[len(config[k]) for k in ('weights', 'means', 'variances')]}"
        )
    for theta in config["thetas"]:
        if not theta < 0:
            raise ExperimentError(
                f"thetas: wanted numbers below 0, for which ρ^(−θ) can be normalised, got {theta:g}"
            )


def problem(config: Config) -> flows.Problem:
    """The mixture, its heat flow, and the schemes."""
    law = Mixture(config["weights"], config["means"], config["variances"])

    def one_step(epsilons: Sequence[float], against: str) -> Array:
        return qk.isb.one_step_rate(law, epsilons, against=against, n=config["grid"]).errors

    return flows.Problem(
        law,
        law.heat,
        {
            "bridge": bridge,
            **{f"surrogate, θ = {t:g}": _surrogate(law, t) for t in config["thetas"]},
            "cost as printed": _printed,
        },
        {"bridge": bridge},
        one_step,
    )


def compute(config: Config, run: Run) -> None:
    """Computes snapshots, errors against epsilon, and particles."""
    run.write_metrics(flows.study(problem(config), config, run))


def bridge(x: Array, w: Array | None, epsilon: float, n: int) -> tuple[Array, BridgeFlow]:
    """The poster's step, 2x − B(x)."""
    return flows.states_of(qk.isb.heat_flow(x, epsilon, n, weights=w))


def _printed(x: Array, w: Array | None, epsilon: float, n: int) -> tuple[Array, BridgeFlow]:
    """A step by the objective as printed: without the ½ in the cost the kernel is that of epsilon / 2."""
    return flows.states_of(qk.isb.heat_flow(x, epsilon / 2, n, weights=w))


def _surrogate(law: Mixture, theta: float) -> flows.Scheme:
    """A scheme with the same velocity from another surrogate, ρ^(−θ); it carries densities along."""

    def scheme(x: Array, w: Array | None, epsilon: float, n: int) -> tuple[Array, BridgeFlow]:
        found = qk.isb.kl_flow(
            x,
            epsilon,
            n,
            weights=w,
            method="surrogate",
            theta=theta,
            potential=lambda z: np.zeros(len(z)),
            log_density=law.log_pdf(x[:, 0]),
        )
        return flows.states_of(found)

    return scheme
