"""The answers agree with other libraries; tests with libraries that are not installed are skipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkcore as qk

from .generators import DTYPES
from .reference import Array

pytestmark = pytest.mark.peers


def clouds(n: int, m: int) -> tuple[Array, Array, Array, Array, Array]:
    rng = np.random.default_rng((n, m))
    X, Y = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
    mu, nu = rng.exponential(size=n) + 0.1, rng.exponential(size=m) + 0.1
    C = ((X[:, None] - Y) ** 2).sum(-1)
    return X, Y, C, mu / mu.sum(), nu / nu.sum()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_pytorch(dtype: str, causal: bool) -> None:
    """DAC-4: scaled dot-product attention."""
    torch: Any = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    Q, K, V = rng.normal(size=(3, 2, 3, 50, 16)).astype(dtype)
    want = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(a) for a in (Q, K, V)), is_causal=causal
    ).numpy()
    s = qk.scores.dot(Q, K, beta=16**-0.5)
    got = qk.softmax(s.causal() if causal else s) @ V
    np.testing.assert_allclose(got, want, atol=2e-6 if dtype == "float32" else 1e-14)


@pytest.mark.parametrize("epsilon", [1.0, 0.1])
def test_bridges_of_pot(epsilon: float) -> None:
    """DAC-7, EOT-10: plain scaling and the log domain."""
    ot: Any = pytest.importorskip("ot")
    X, Y, C, mu, nu = clouds(40, 30)
    b = qk.bridge(qk.scores.distance(X, Y, beta=1 / epsilon), mu, nu, tol=1e-12)
    for method in ("sinkhorn", "sinkhorn_log"):
        plan = ot.sinkhorn(
            mu, nu, C, epsilon, method=method, stopThr=1e-14, numItermax=20_000, warn=False
        )
        np.testing.assert_allclose(b.plan(), plan, atol=1e-9)
    assert b.cost * epsilon == pytest.approx(float(np.sum(b.plan() * C)), rel=1e-9)


@pytest.mark.filterwarnings("ignore:If reg_type = entropy")
def test_unbalanced_bridges_of_pot() -> None:
    """KL penalties, in units of the temperature."""
    ot: Any = pytest.importorskip("ot")
    X, Y, C, mu, nu = clouds(25, 20)
    epsilon, strength = 0.5, 1.5
    b = qk.bridge(
        qk.scores.distance(X, Y, beta=1 / epsilon), mu, nu, penalty=strength / epsilon, tol=1e-12
    )
    plan = ot.unbalanced.sinkhorn_unbalanced(
        mu, nu, C, epsilon, strength, reg_type="entropy", stopThr=1e-14, numItermax=20_000
    )
    np.testing.assert_allclose(b.plan(), plan, atol=1e-9)


def test_bridges_of_ott() -> None:
    """DAC-7: OTT's log-domain Sinkhorn."""
    jax: Any = pytest.importorskip("jax")
    pytest.importorskip("ott")
    from ott.geometry import geometry  # type: ignore[import-not-found,unused-ignore]
    from ott.solvers import linear  # type: ignore[import-not-found,unused-ignore]

    jax.config.update("jax_enable_x64", True)
    X, Y, C, mu, nu = clouds(20, 30)
    found = linear.solve(
        geometry.Geometry(cost_matrix=C, epsilon=0.2),
        a=mu,
        b=nu,
        threshold=1e-12,
        max_iterations=20_000,
    )
    b = qk.bridge(qk.scores.distance(X, Y, beta=5.0), mu, nu, tol=1e-12)
    np.testing.assert_allclose(b.plan(), np.asarray(found.matrix), atol=1e-9)
