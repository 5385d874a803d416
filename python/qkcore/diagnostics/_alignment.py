"""P4: is the flow of the states through depth a gradient flow? (EOT-13, theorem 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _mean_flow
from ._arrays import Float
from ._layer_map import Asymmetry, LayerMap, jacobian_asymmetry
from ._tensor import TensorLike
from ._verdict import ABSTAIN, FAIL, PASS, Check, Thresholds, abstain, check

_FEWEST = 20  # samples
_CONTROLS = 5  # gradient fields at the same states
_CONTROL_SAMPLES = 500
_NOTHING = (
    1e-4  # a mean flow that is a multiple of the state but for this share has no rest to judge
)
_SMALLEST = 1e-70  # activations from here to its inverse: their fourth powers are numbers


def alignment(
    H: Float,
    diffusion: TensorLike | None,
    n_components: int,
    reference: float | None,
    layer_map: LayerMap | Sequence[LayerMap] | None,
    limits: Thresholds,
    rng: np.random.Generator,
) -> Check:
    """P4 of activations (layers, n, d), with the layers' own Jacobians where they are given."""
    jacobians = [] if layer_map is None else _jacobians(layer_map, H, rng)
    sampled = _from_samples(H, diffusion, n_components, reference, limits, rng)
    return sampled if layer_map is None else _together(sampled, jacobians, limits)


def _jacobians(
    layer_map: LayerMap | Sequence[LayerMap], H: Float, rng: np.random.Generator
) -> list[Asymmetry]:
    steps = len(H) - 1
    maps = list(layer_map) if isinstance(layer_map, list) else [layer_map] * steps
    if len(maps) != steps:
        raise ValueError(
            f"layer_map: wanted one map or a list of {steps}, one per transition, got {len(maps)}"
        )
    return [
        jacobian_asymmetry(f, x, rng=rng)  # type: ignore[arg-type]
        for f, x in zip(maps, H, strict=False)
    ]


def _together(sampled: Check, jacobians: list[Asymmetry], limits: Thresholds) -> Check:
    """Both readings: a gradient flow must pass both that speak, and a rotation in either fails."""
    known = [j for j in jacobians if np.isfinite(j.share)]
    details = sampled.details | {
        "jacobian": [j.share for j in jacobians],
        "jacobian_intervals": [j.interval for j in jacobians],
    }
    if not known:
        text = "the Jacobians of the layers are multiples of the identity"
        return check(
            "P4", limits, sampled.verdict, sampled.value, f"{sampled.reason}; {text}", **details
        )
    share = float(np.mean([j.share for j in known]))
    half = float(np.sqrt(np.sum([(j.interval[1] - j.share) ** 2 for j in known]))) / len(known)
    text = f"antisymmetric share of the layers' Jacobians {share:.3g} ± {half:.2g} (0: gradient, 0.5: chance)"
    if share - half > limits.rotation:
        verdict = FAIL
    elif share + half > limits.rotation:
        verdict = FAIL if sampled.verdict == FAIL else ABSTAIN
    else:
        verdict = FAIL if sampled.verdict == FAIL else PASS
    value = share if sampled.value is None else sampled.value
    return check("P4", limits, verdict, value, f"{text}; {sampled.reason}", **details)


def _from_samples(
    H: Float,
    diffusion: TensorLike | None,
    n_components: int,
    reference: float | None,
    limits: Thresholds,
    rng: np.random.Generator,
) -> Check:
    n = H.shape[1]
    if n < _FEWEST:
        return abstain(
            "P4",
            limits,
            f"{n} samples are too few for a rotational energy; pass at least {_FEWEST}",
        )
    if not np.diff(H, axis=0).any():
        return abstain("P4", limits, "the activations do not move")
    largest = float(np.abs(H).max())
    if not _SMALLEST < largest < 1 / _SMALLEST:
        return abstain(
            "P4",
            limits,
            f"the powers of the activations, up to {largest:.2g}, leave the range of float64: scale them",
        )
    states = H[:-1] - H[:-1].mean(axis=1, keepdims=True)
    rounding = n * float(np.finfo(np.float64).eps) * largest
    if float(np.abs(states).max(axis=(1, 2)).min()) <= rounding:
        return abstain("P4", limits, "the activations of all samples of a layer are equal")
    velocities = np.diff(H, axis=0)
    velocities -= velocities.mean(axis=1, keepdims=True)
    if float(np.abs(velocities).max()) <= rounding:
        return abstain("P4", limits, "all samples move alike: a common drift has no rotation")
    velocities *= len(velocities)
    try:
        found = _mean_flow.measure(states, velocities, n_components, diffusion, rng)
    except ValueError as problem:
        if "positive definite" not in str(problem):
            raise
        return abstain("P4", limits, str(problem))
    except np.linalg.LinAlgError as problem:
        return abstain("P4", limits, f"the mean flow cannot be fitted: {problem}")
    return _judged(found, states, velocities, H.shape[2], reference, limits, rng)


def _judged(
    found: _mean_flow.MeanFlow,
    states: Float,
    velocities: Float,
    d: int,
    reference: float | None,
    limits: Thresholds,
    rng: np.random.Generator,
) -> Check:
    low, high = found.interval
    details: dict[str, Any] = {
        "energy": found.energy,
        "interval": found.energy_interval,
        "share_interval": found.interval,
        "explained": found.explained,
        "scaling": found.scaling,
        "beyond": found.beyond,
        "beyond_interval": found.beyond_interval,
        "by_layer": found.by_layer,
        "error_by_layer": found.error_by_layer,
        "explained_by_layer": found.explained_by_layer,
        "kinetic_by_layer": found.kinetic_by_layer,
    }
    kept = ""
    if found.n_components < d:
        kept = f", in {found.n_components} of {d} components with {100 * found.held:.3g} % of the variance"
    explained = (
        f"a linear mean flow explains {100 * max(found.explained, 0.0):.3g} % of the motion{kept}"
    )
    if not (np.isfinite([low, high]).all() and found.explained >= limits.explained):
        return abstain(
            "P4", limits, f"{explained}: the rest is scatter, which cannot be judged", **details
        )
    chosen = rng.permutation(states.shape[1])[:_CONTROL_SAMPLES]
    control = _mean_flow.gradient_control(
        states[:, chosen], velocities[:, chosen], found.n_components, _CONTROLS, rng
    )
    known = control[np.isfinite(control)]
    worst = max(float(known.max()), 0.0) if known.size else float("nan")
    details["control"] = control
    energy = (
        f"R = {found.energy:.4g} [{found.energy_interval[0]:.3g}, {found.energy_interval[1]:.3g}]"
    )
    if reference is not None:
        bottom, top = found.energy_interval
        verdict = PASS if top < reference else FAIL if bottom >= reference else ABSTAIN
        reason = f"{energy}; compared with {reference:.4g}; {explained}"
        return check("P4", limits, verdict, found.share, reason, **details)
    text = (
        f"rotation is {found.share:.3g} [{low:.3g}, {high:.3g}] of the mean flow (gradient fields at these "
        f"states read up to {worst:.2g}); {explained}; {energy}"
    )
    bottom = found.beyond_interval[0]
    hidden = 1 - found.scaling > _NOTHING and np.isfinite(bottom) and bottom > limits.rotation
    if hidden:
        text += (
            f"; {100 * found.scaling:.3g} % of the mean flow is a multiple of the state, and rotation is "
            f"{found.beyond:.3g} of the rest"
        )
    if high <= limits.rotation and not hidden:
        return check("P4", limits, PASS, found.share, text, **details)
    if low > max(limits.rotation, worst if known.size else limits.rotation):
        return check("P4", limits, FAIL, found.share, text, **details)
    return check("P4", limits, ABSTAIN, found.share, f"undecided: {text}", **details)
