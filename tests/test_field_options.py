"""Every combination of a field's options is obeyed (as loops show) or refused, never ignored (TPDE-1)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from tests import reference_particles as reference

N, D = 6, 2
KINDS = ["softmax", "l2", "linear", "centred", "exp", "relu", "sigmoid", "sinkhorn"]


def by_sinkhorn(
    X: Any, Q: Any, K: Any, V: Any, heads: int, mask: Any, w: Any, epsilon: float
) -> Any:
    """The bistochastic field (2.4) of what each particle sees."""
    out = np.zeros_like(X)
    sees = reference.visible(len(X), mask)
    V = np.broadcast_to(V, (heads, D, D))
    for h, (q, k) in enumerate(zip(Q.reshape(heads, -1, D), K.reshape(heads, -1, D), strict=True)):
        for i in range(len(X)):
            Y, mass = X[sees[i]], w[sees[i]] / w[sees[i]].sum()
            s = -(((Y @ q.T)[:, None] - Y @ k.T) ** 2).sum(-1) / (2 * epsilon)
            kernel, b = np.exp(s), np.ones(len(Y))
            for _ in range(1500):
                a = 1 / (kernel @ (mass * b))
                b = 1 / ((mass * a) @ kernel)
            at = int(np.flatnonzero(sees[i]).tolist().index(i))
            out[i] += V[h] @ ((a[at] * kernel[at] * b * mass) @ Y) / epsilon
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_combination_of_options(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(N, D))
    positions = np.array([0.5, 0.0, 0.5, 1.0, 0.2, 0.0])
    w = rng.random(N) + 0.1
    checked = 0
    for mask, weights, heads, renormalise, epsilon in itertools.product(
        (None, "causal", positions), (None, w), (1, 2), (True, False), (1.0, 0.7)
    ):
        centred = kind == "centred"
        name = "linear" if centred else kind
        Q, K = 0.5 * rng.normal(size=(2, 2 * heads, D))
        V = rng.normal(size=(heads, D, D) if heads > 1 else (D, D))
        given: dict[str, Any] = {
            "Q": Q,
            "K": K,
            "V": V,
            "heads": heads,
            "mask": mask,
            "weights": weights,
            "renormalise": renormalise,
            "epsilon": epsilon,
            "centred": centred,
        }
        if centred and not renormalise:
            with pytest.raises(ValueError, match="renormalise: wanted True for the centred"):
                qk.AttentionField(name, **given)
            continue
        if epsilon != 1.0 and kind not in ("centred", "sinkhorn"):
            with pytest.raises(ValueError, match=r"epsilon: .* has none"):
                qk.AttentionField(name, **given)
            continue
        got = qk.AttentionField(name, **given)(X.astype(dtype))
        at = X.astype(dtype).astype(float)
        if kind == "sinkhorn":
            mass = np.ones(N) if weights is None else w
            wanted = by_sinkhorn(at, Q, K, V, heads, mask, mass, epsilon)
        else:
            # Softmax and l2 divide by the mass that the mask leaves, so its size does not matter.
            scaled = renormalise or kind in ("softmax", "l2")
            wanted = reference.velocity(name, at, **{**given, "renormalise": scaled})
        tol = 2e-4 if dtype == "float32" else 1e-8
        np.testing.assert_allclose(got, wanted, atol=tol * (1 + np.abs(wanted).max()))
        checked += 1
    assert checked >= 12


def test_options_of_other_kinds_are_refused() -> None:
    given: dict[str, Any] = {"Q": np.eye(2), "K": np.eye(2), "V": np.eye(2)}
    for option, value in (("sinkhorn_tol", 1e-8), ("sinkhorn_max_visits", 5)):
        with pytest.raises(ValueError, match=rf"{option}: only sinkhorn attention"):
            qk.AttentionField("softmax", **given, **{option: value})
        qk.AttentionField("sinkhorn", **given, **{option: value})
    for option in ("centred", "sphere", "renormalise"):
        with pytest.raises(TypeError, match=rf"{option}: wanted True or False, got 'False'"):
            qk.AttentionField("linear", **given, **{option: "False"})
