"""Velocity fields of attention particles (TPDE-1), against explicit loops and the laws they obey."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkcore as qk
from tests import reference_particles as reference

KINDS = ("softmax", "l2", "linear", "sinkhorn", "exp", "relu", "sigmoid")
PLAIN = tuple(k for k in KINDS if k != "sinkhorn")
TOLERANCE = {np.float64: 2e-13, np.float32: 4e-5}


def draw(seed: int, n: int, d: int, k: int, heads: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    Q, K = rng.normal(size=(2, heads * k, d)) / d**0.5
    return {
        "X": rng.normal(size=(n, d)),
        "Q": Q,
        "K": K,
        "V": rng.normal(size=(heads, d, d)),
        "heads": heads,
    }


def close(got: Any, want: Any, dtype: Any = np.float64) -> None:
    scale = max(1e-300, float(np.abs(want).max()))
    assert got.dtype == dtype
    assert np.abs(got - want).max() <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize(
    ("d", "k", "heads"),
    [(1, 1, 1), (2, 2, 1), (3, 1, 3), (4, 7, 1), (5, 5, 1), (16, 4, 4), (17, 3, 2)],
)
def test_every_kind_is_its_formula(kind: str, d: int, k: int, heads: int, dtype: Any) -> None:
    """TPDE-1, sizes around the width of SIMD packs and tiles, all masks, weighted or not."""
    for n in (1, 2, 7, 8, 9, 33, 100):
        p = draw(n + d, n, d, k, heads)
        X = p.pop("X")
        rng = np.random.default_rng(n)
        positions = np.round(rng.uniform(size=n), 1)  # with ties
        weights = rng.uniform(0.1, 1.0, size=n)
        for mask in (None, "causal", positions):
            for w in (None, weights):
                field = qk.AttentionField(kind, **p, mask=mask, weights=w)
                want = reference.velocity(kind, X, **p, mask=mask, weights=w)
                close(field(X.astype(dtype)), want, dtype)


def test_long_columns_and_large_blocks() -> None:
    """Several tiles and chunks of columns, several blocks of rows."""
    for d in (2, 6):
        p = draw(d, 2500, d, d)
        X = p.pop("X")
        field = qk.AttentionField("softmax", **p)
        s = (X @ p["Q"].T) @ (X @ p["K"].T).T
        e = np.exp(s - s.max(axis=1, keepdims=True))
        want = (e / e.sum(axis=1, keepdims=True)) @ X @ p["V"][0].T
        close(field(X), want)
        close(field(X.astype(np.float32)), want, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [2, 6])
@pytest.mark.parametrize("kind", ["softmax", "l2"])
def test_scores_beyond_the_range_of_exp(kind: str, d: int, dtype: Any) -> None:
    """Scores of 1e4 and more: the maximum is taken out exactly."""
    p = draw(3, 50, d, d)
    X = (60 * p.pop("X")).astype(dtype)
    want = reference.velocity(kind, X.astype(np.float64), **p)
    got = qk.AttentionField(kind, **p)(X)
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= (1e-10 if dtype == np.float64 else 0.02) * np.abs(want).max()


def test_both_linear_forms() -> None:
    """TPDE 2.2: the plain one, and the expansion of softmax, which it is for small A."""
    p = draw(1, 40, 3, 3)
    X = p.pop("X")
    got = qk.AttentionField("linear", **p, centred=True, epsilon=0.25)(X)
    close(got, reference.velocity("linear", X, **p, centred=True, epsilon=0.25))
    eps = 1e-5
    small = qk.AttentionField("softmax", Q=eps * p["Q"], K=p["K"], V=p["V"] / eps)(X)
    expansion = qk.AttentionField("linear", **p, centred=True, epsilon=eps)(X)
    assert np.abs(small - expansion).max() < 1e-3  # o(eps) beside 1/eps


def test_far_from_the_origin_nothing_is_lost() -> None:
    """Softmax only sees differences of keys: a cloud at 1e6 keeps the digits its points have."""
    rng = np.random.default_rng(0)
    d, shift = 2, 2.0**20
    X = rng.integers(-512, 512, size=(30, d)) / 256  # exact after the shift
    A = np.eye(d) / 1024
    got = qk.AttentionField("softmax", Q=A / 1024, K=np.eye(d), V=np.eye(d))(X + shift)
    s = (X + shift) @ (A / 1024) @ X.T
    e = np.exp(s - s.max(axis=1, keepdims=True))
    want = (e / e.sum(axis=1, keepdims=True)) @ X
    assert np.abs(got - shift - want).max() < 1e-9


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_sinkhorn(symmetric: bool, weighted: bool) -> None:
    """TPDE 2.4 against the plain iteration; 1/epsilon in front; depends on Q, K through A alone."""
    rng = np.random.default_rng(4)
    n, d, eps = 25, 2, 0.7
    X = rng.normal(size=(n, d))
    Q = np.eye(d) + 0.3 * rng.normal(size=(d, d))
    K = Q.copy() if symmetric else np.eye(d)
    V = rng.normal(size=(d, d))
    w = rng.uniform(0.2, 1, n) if weighted else None
    mass = np.full(n, 1 / n) if w is None else w / w.sum()
    kappa = reference.sinkhorn_kernel(X, Q, K, eps, mass)
    want = (kappa * mass) @ X @ V.T / eps
    field = qk.AttentionField("sinkhorn", Q=Q, K=K, V=V, epsilon=eps, weights=w)
    assert np.abs(field(X) - want).max() < 1e-9
    assert np.abs(field(X.astype(np.float32)) - want).max() < 2e-3
    same_A = qk.AttentionField("sinkhorn", Q=K.T @ Q, K=np.eye(d), V=V, epsilon=eps, weights=w)
    assert np.abs(same_A(X) - want).max() < 1e-8


@pytest.mark.parametrize("kind", KINDS)
def test_masked_is_the_unmasked_field_of_what_is_seen(kind: str) -> None:
    """TPDE 2.6: f(X)_i is the field of the particles that i sees, at i; ties see each other."""
    rng = np.random.default_rng(5)
    n, d = 12, 2
    X = rng.normal(size=(n, d))
    positions = np.round(rng.uniform(size=n), 1)
    p: dict[str, Any] = {"Q": np.eye(d), "K": 0.5 * np.eye(d), "V": rng.normal(size=(d, d))}
    plain = qk.AttentionField(kind, **p)
    for mask, s in (("causal", np.arange(n)), (positions, positions)):
        got = qk.AttentionField(kind, **p, mask=mask)(X)
        for i in range(n):
            seen = np.flatnonzero(s <= s[i])
            want = plain(X[seen])[list(seen).index(i)]
            assert np.abs(got[i] - want).max() < 1e-9


def test_masked_softmax_is_a_causal_loop() -> None:
    """TPDE-1, 2.6, written out pair by pair."""
    rng = np.random.default_rng(6)
    X, Q, K, V = rng.normal(size=(9, 3)), *rng.normal(size=(3, 3, 3))
    want = reference.causal_loop(X, K.T @ Q, V)
    for mask in ("causal", (1 + np.arange(9)) / 9):
        close(qk.AttentionField("softmax", Q=Q, K=K, V=V, mask=mask)(X), want)


def test_measure_that_is_not_renormalised() -> None:
    """TPDE 2.7 read literally for an unnormalised kind: less is seen, less is felt."""
    p = draw(8, 10, 2, 2)
    X = p.pop("X")
    field = qk.AttentionField("sigmoid", **p, mask="causal", renormalise=False)
    close(field(X), reference.velocity("sigmoid", X, **p, mask="causal", renormalise=False))


@pytest.mark.parametrize("kind", KINDS)
def test_multi_head_is_the_sum_of_heads(kind: str) -> None:
    """TPDE 2.7, 2.9."""
    p = draw(9, 15, 4, 2, heads=2)
    X, V = p["X"], p["V"]
    p["Q"] = 0.5 * p["Q"]
    got = qk.AttentionField(kind, Q=p["Q"], K=p["K"], V=V, heads=2)(X)
    parts = [
        qk.AttentionField(kind, Q=p["Q"][2 * h : 2 * h + 2], K=p["K"][2 * h : 2 * h + 2], V=V[h])(X)
        for h in range(2)
    ]
    assert np.abs(got - sum(parts)).max() < 1e-9 * np.abs(got).max()
    shared = qk.AttentionField(kind, Q=p["Q"], K=p["K"], V=V[0], heads=2)(X)
    both = qk.AttentionField(kind, Q=p["Q"], K=p["K"], V=np.stack([V[0], V[0]]), heads=2)(X)
    assert np.abs(shared - both).max() < 1e-12 * np.abs(both).max()


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(PLAIN), n=st.integers(1, 40), d=st.integers(1, 6), seed=st.integers(0, 999)
)
def test_permutations_and_rotations(kind: str, n: int, d: int, seed: int) -> None:
    """Renaming particles renames velocities; turning the space, with its matrices, turns them."""
    p = draw(seed, n, d, d)
    X = p.pop("X")
    field = qk.AttentionField(kind, **p)
    v = field(X)
    scale = np.abs(v).max() + 1e-12
    order = np.random.default_rng(seed).permutation(n)
    assert np.abs(field(X[order]) - v[order]).max() <= 1e-12 * scale
    R, _ = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(d, d)))
    turned = qk.AttentionField(kind, Q=p["Q"] @ R.T, K=p["K"] @ R.T, V=R @ p["V"][0] @ R.T)
    assert np.abs(turned(X @ R.T) - v @ R.T).max() <= 1e-11 * scale


def test_translations_of_l2() -> None:
    """With Q = K the l2 score depends on differences: a shift of all adds V c to the velocity."""
    rng = np.random.default_rng(2)
    X, Q, V = rng.normal(size=(20, 3)), rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    c = np.array([3.0, -2.0, 5.0])
    field = qk.AttentionField("l2", Q=Q, K=Q, V=V)
    assert np.abs(field(X + c) - field(X) - V @ c).max() < 1e-11


def test_layouts_threads_and_inputs_left_alone() -> None:
    p = draw(10, 300, 3, 3)
    X = p.pop("X")
    field = qk.AttentionField("softmax", **p)
    want = field(X, n_threads=1)
    assert (field(X, n_threads=2) == want).all()  # bitwise: rows do not depend on the threads
    wide = np.zeros((600, 6))
    wide[::2, ::2] = X
    view = wide[::2, ::2]
    view.flags.writeable = False
    assert (field(view) == want).all()
    assert (field(np.asfortranarray(X)) == want).all()
    assert (wide[::2, ::2] == X).all()


def test_duplicated_particles_are_weights() -> None:
    """Two at the same place count as one of twice the weight; weight 0 is seen by none."""
    p = draw(11, 6, 2, 2)
    X = p.pop("X")
    for kind in PLAIN:
        doubled = qk.AttentionField(kind, **p)(np.concatenate([X, X[:1]]))
        weighted = qk.AttentionField(kind, **p, weights=[2.0, 1, 1, 1, 1, 1])(X)
        assert np.abs(doubled[:6] - weighted).max() < 1e-12 * np.abs(weighted).max()
        without = qk.AttentionField(kind, **p)(X[:5])
        zero = qk.AttentionField(kind, **p, weights=[1.0, 1, 1, 1, 1, 0])(X)
        assert np.abs(zero[:5] - without).max() < 1e-12 * np.abs(without).max()


def test_parameters_that_change_in_time() -> None:
    """Callables and layers give the same velocities; layers hold from their time on."""
    p = draw(12, 8, 2, 2)
    X, V = p["X"], p["V"][0]
    Q2 = np.stack([p["Q"], -p["Q"]])
    layers = qk.AttentionField("softmax", Q=Q2, K=p["K"], V=V, times=[0.0, 1.0])
    called = qk.AttentionField("softmax", Q=lambda t: Q2[int(t >= 1)], K=p["K"], V=lambda t: V)
    for t in (-1.0, 0.0, 0.99, 1.0, 7.0):
        want = reference.velocity("softmax", X, Q2[int(t >= 1)], p["K"], V)
        close(layers(X, t), want)
        close(called(X, t=t), want)
    assert "2 layers" in repr(layers) and "time-dependent" in repr(called)


def test_sphere_velocities_are_tangent() -> None:
    p = draw(13, 20, 3, 3)
    X = p.pop("X")
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    free = qk.AttentionField("softmax", **p)(X)
    bound = qk.AttentionField("softmax", **p, sphere=True)(X)
    assert np.abs((bound * X).sum(axis=1)).max() < 1e-14
    assert np.abs(bound - (free - (free * X).sum(1, keepdims=True) * X)).max() < 1e-14


# ---- bad input ----------------------------------------------------------------------------------

I2 = np.eye(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"V": np.ones((2, 3))}, r"V: wanted square matrices"),
        ({"V": np.ones((3, 3))}, r"V: wanted square matrices \(2, 2\)"),
        ({"V": np.ones((3, 2, 2))}, r"V: wanted shape"),
        ({"heads": 3}, r"heads: wanted a divisor of the 2 rows of Q, got 3"),
        ({"heads": 0}, r"heads: wanted at least 1"),
        ({"K": np.ones((1, 2))}, r"K: wanted the shape of Q"),
        ({"Q": np.ones((2, 2, 2))}, r"Q: .*layers need times="),
        ({"Q": I2 * np.nan}, r"Q: wanted finite numbers, got NaN"),
        ({"mask": [0.0, 1.5]}, r"mask: wanted positions in \[0, 1\], got values from 0 to 1.5"),
        ({"mask": [[0.0]]}, r"mask: wanted positions of shape"),
        ({"mask": "future"}, r"mask: wanted None"),
        ({"epsilon": 0.0, "kind": "sinkhorn"}, r"epsilon: wanted a finite number > 0"),
        ({"epsilon": 0.5}, r"epsilon: softmax attention has none"),
        ({"centred": True}, r"centred: wanted kind \"linear\""),
        ({"weights": [-1.0, 2.0]}, r"weights: wanted numbers >= 0"),
        ({"weights": [0.0, 1.0], "mask": [0.0, 1.0]}, r"weights: wanted every particle to see"),
        ({"times": [1.0, 0.0]}, r"times: wanted rising times"),
        ({"times": [0.0, 1.0], "Q": np.ones((3, 2, 2))}, r"Q: wanted 2 layers"),
        ({"times": [0.0, 1.0], "Q": lambda t: I2}, r"times: wanted None for parameters"),
        ({"times": [0.0, 1.0], "heads": 2, "V": np.ones((2, 2, 2))}, r"layers or heads"),
        ({"kind": "cosine"}, r"kind: wanted one of 'softmax'"),
    ],
)
def test_bad_fields(arguments: dict[str, Any], message: str) -> None:
    options = {"kind": "softmax", "Q": I2, "K": I2, "V": I2} | arguments
    with pytest.raises(ValueError, match=message):
        qk.AttentionField(options.pop("kind"), **options)


def test_bad_particles() -> None:
    field = qk.AttentionField("softmax", Q=I2, K=I2, V=I2)
    with pytest.raises(ValueError, match="X: wanted finite numbers, got NaN"):
        field(np.full((3, 2), np.nan))
    with pytest.raises(ValueError, match="X: wanted particles of dimension 2"):
        field(np.ones((3, 3)))
    with pytest.raises(TypeError, match="X: wanted float32 or float64"):
        field(np.ones((3, 2), int))
    with pytest.raises(ValueError, match="mask: wanted 3 entries"):
        qk.AttentionField("softmax", Q=I2, K=I2, V=I2, mask=[0.0, 1.0])(np.ones((3, 2)))
    with pytest.raises(ValueError, match="X: wanted unit rows"):
        qk.AttentionField("softmax", Q=I2, K=I2, V=I2, sphere=True)(np.ones((3, 2)))
    with pytest.raises(OverflowError, match="velocities of exp attention overflow"):
        qk.AttentionField("exp", Q=I2, K=I2, V=I2)(np.full((3, 2), 100.0))
    with pytest.raises(RuntimeError, match="raise sinkhorn_tol"):
        qk.AttentionField("sinkhorn", Q=I2, K=I2 + 0.1, V=I2, epsilon=0.01, sinkhorn_max_visits=1)(
            np.random.default_rng(0).normal(size=(20, 2))
        )
