"""Weight-shared depth (MTA-3, section 6.2, theorem 26): fixed points, and when they are guaranteed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from qkcore.measure import (
    AttentionKernel,
    Ball,
    Box,
    DotPotential,
    FeedForward,
    GaussianPotential,
    LinearLookup,
    Measure,
    TransformerKernel,
    fixed_point,
    tau_bound,
    w1,
)

from .generators import DTYPES
from .reference import Array


def contractive(dtype: str = "float64") -> tuple[AttentionKernel, Array]:
    """A kernel with tau < 1 on the ball of radius 0.4, and its fixed point x = x M + b."""
    M = np.array([[0.2, -0.05], [0.1, 0.15]])
    b = np.array([0.05, -0.1])
    point = np.linalg.solve((np.eye(2) - M).T, b)
    return AttentionKernel(DotPotential(0.5), LinearLookup(M.astype(dtype), b.astype(dtype))), point


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["anderson", "picard"])
def test_one_fixed_point_from_many_starts(dtype: str, method: str) -> None:
    """MTA-3, theorem 26 and remark 27: tau < 1, so every start of every length ends at one measure."""
    A, point = contractive(dtype)
    domain = Ball(0.4, dim=2)
    assert tau_bound(A, domain) < 1
    rng = np.random.default_rng(0)
    for trial in range(25):
        X = domain.sample(1 + trial % 9, rng).astype(dtype)
        found = fixed_point(A, X, method=method, domain=domain)
        assert found.status == "converged" and found.converged and found.theorem == "applies"
        tol = 1e-4 if dtype == "float32" else 1e-8
        # delta_x A_{delta_x} = delta_{l(x)}: the fixed point is the Dirac measure at x = l(x).
        assert w1(found.measure, Measure.dirac(point.astype(dtype))) < tol
        assert found.residuals[0] > found.residual >= 0
        assert found.contraction <= found.tau * (1 + 1e-6) < 1
        assert found.X.dtype == dtype


def test_distances_shrink_as_promised() -> None:
    """MTA-3, theorem 26: W1 between two starts falls at least by tau in every layer."""
    A, _ = contractive()
    domain = Ball(0.4, dim=2)
    tau = tau_bound(A, domain)
    rng = np.random.default_rng(1)
    mu, nu = Measure(domain.sample(6, rng)), Measure(domain.sample(4, rng))
    before = w1(mu, nu)
    for _ in range(6):
        mu, nu = A.step(mu), A.step(nu)
        after = w1(mu, nu)
        assert after <= tau * before * (1 + 1e-9) + 1e-15
        before = after


def test_anderson_is_faster_and_agrees() -> None:
    """MTA-3: an affine map: Anderson ends within d + 1 steps or so, at the solution of the system."""
    rng = np.random.default_rng(2)
    M = rng.normal(size=(4, 4))
    M *= 0.97 / np.abs(np.linalg.eigvals(M)).max()
    b = rng.normal(size=4)
    want = np.linalg.solve((np.eye(4) - M).T, b)
    X = rng.normal(size=(1, 4))
    fast = fixed_point(lambda x: x @ M + b, X, tol=1e-9)
    slow = fixed_point(lambda x: x @ M + b, X, tol=1e-9, method="picard", max_iter=5000)
    assert fast.converged and slow.converged
    np.testing.assert_allclose(fast.X[0], want, atol=1e-6)
    assert fast.n_iter < slow.n_iter / 10
    np.testing.assert_allclose(fast.local_rate, 0.97, atol=0.08)
    assert fast.theorem == "unknown" and math.isnan(fast.tau)
    assert "converged after" in str(fast)


def test_extrapolation_is_taken_back() -> None:
    """MTA-3: a kinked map on which extrapolation goes wrong: steps are rejected, and it still ends."""

    def kinked(x: Array) -> Array:
        return 0.95 * np.abs(np.sin(3 * x)) + 0.05 * np.sign(x)

    rng = np.random.default_rng(3)
    total = 0
    for _ in range(10):
        found = fixed_point(kinked, rng.normal(size=(3, 2)), max_iter=400)
        total += found.rejected
        assert found.residual == found.residuals.min()
        assert found.status in ("converged", "stagnated", "iteration limit")
    assert total > 0


def test_divergence_and_limits_are_told() -> None:
    """MTA-3: growth without end, a cycle, too few iterations: each has its status."""
    X = np.ones((3, 2))
    assert fixed_point(lambda x: 3 * x + 1, X, method="picard").status == "diverged"
    assert fixed_point(lambda x: 1 - x + 0 * x, X * 0.1, method="picard").status == "stagnated"
    short = fixed_point(lambda x: 0.9 * x + 1, X, method="picard", max_iter=3)
    assert short.status == "iteration limit" and not short.converged and short.n_iter == 3


def test_when_the_theorem_applies() -> None:
    """MTA-3, theorem 26: tau >= 1, a domain that is left, residuals: said, not guessed."""
    X = np.full((2, 2), 0.1)
    steep = AttentionKernel(DotPotential(5.0))
    assert fixed_point(steep, X, domain=Ball(1, dim=2), max_iter=5).theorem == "does not apply"
    leaves = AttentionKernel(DotPotential(0.1), LinearLookup(0.3 * np.eye(2), np.ones(2)))
    found = fixed_point(leaves, X, domain=Ball(0.2, dim=2))
    assert found.tau < 1 and found.theorem == "does not apply"
    roomy = fixed_point(leaves, X, domain=Box([-2, -2.0], [2, 2]))
    assert roomy.theorem == ("applies" if roomy.tau < 1 else "does not apply")
    W = 0.05 * np.random.default_rng(4).normal(size=(4, 2, 2, 2))
    T = TransformerKernel(*W)
    inside = fixed_point(T, X, domain=Ball(0.5, dim=2))
    assert inside.theorem == "applies" and inside.converged
    np.testing.assert_allclose(inside.X, 0, atol=1e-8)
    residual = TransformerKernel(*W, residual=True)
    assert tau_bound(residual, Ball(0.5, dim=2)) == math.inf
    assert fixed_point(residual, X, domain=Ball(0.5, dim=2), max_iter=3).theorem == "unknown"
    ffn = FeedForward(0.5 * np.eye(2), np.eye(2), activation="gelu")
    both = TransformerKernel(*W, ffn=ffn)
    assert math.isclose(
        tau_bound(both, Ball(0.5, dim=2)), 0.5 * 1.129 * tau_bound(T, Ball(0.5, dim=2))
    )
    assert fixed_point(both, X, domain=Ball(0.5, dim=2)).theorem == "unknown"


def test_transformer_bound_holds() -> None:
    """MTA-3: tau of a multi-head block with a feed-forward network, above random pairs of measures."""
    rng = np.random.default_rng(5)
    domain = Ball(0.6, dim=2)
    for _ in range(30):
        W = rng.normal(size=(4, 2, 2, 2)) * rng.uniform(0.2, 1.5)
        h = rng.normal(size=(2, 5))
        for activation in ("relu", "gelu", "tanh"):
            ffn = FeedForward(h, rng.normal(size=(5, 2)), rng.normal(size=5), activation=activation)
            T = TransformerKernel(*W, ffn=ffn)
            tau = tau_bound(T, domain)
            X = domain.sample(4, rng)
            Y = domain.project(X + 0.05 * rng.normal(size=X.shape))
            out = w1(T.step(X), T.step(Y))
            assert out <= tau * w1(X, Y) * (1 + 1e-9)


def test_real_block_runs_to_rest() -> None:
    """MTA-3: attention without lookup collapses to one point: found, without a theorem."""
    X = np.random.default_rng(6).normal(size=(20, 3))
    found = fixed_point(AttentionKernel(GaussianPotential(0.1)), X)
    assert found.converged
    again = AttentionKernel(GaussianPotential(0.1)).self_attention(found.X)
    np.testing.assert_allclose(again, found.X, atol=1e-8)


BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: fixed_point(np.ones(3), np.ones((2, 2))), TypeError, r"block.*function"),  # type: ignore[arg-type]
    (
        lambda: fixed_point(lambda x: x[:1], np.ones((2, 2))),
        ValueError,
        r"block.*\(2, 2\).*\(1, 2\)",
    ),
    (
        lambda: fixed_point(np.sin, np.ones((2, 2)), method="newton"),
        ValueError,
        r"method.*anderson",
    ),
    (lambda: fixed_point(np.sin, np.empty((0, 2))), ValueError, r"X0.*at least one"),
    (lambda: fixed_point(np.sin, np.ones((2, 2)), tol=-1.0), ValueError, r"tol.*> 0"),
    (lambda: fixed_point(np.sin, np.ones((2, 2)), memory=0), ValueError, r"memory.*got 0"),
    (
        lambda: fixed_point(np.sin, Measure(np.ones((2, 1)), np.array([0.25, 0.75]))),
        ValueError,
        r"X0.*equal weight",
    ),
]


@pytest.mark.parametrize(("call", "error", "pattern"), BAD)
def test_bad_input(call: Callable[[], object], error: type[Exception], pattern: str) -> None:
    """MTA-3: what has no fixed point to look for is refused with a reason."""
    with pytest.raises(error, match=pattern):
        call()
