"""All of particle flows on a device: weights, positions, sphere, output times, events (TPDE-1, TPDE-2).

Results are compared with the CPU, which has independent references, and with closed forms.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import expm

import qkcore as qk
from tests.device_libraries import Library
from tests.test_device import DTYPES, close, rng

Array = NDArray[Any]
METHODS = ("euler", "heun", "rk4", "dopri5")


def parameters(heads: int = 2, d: int = 3) -> dict[str, Any]:
    r = rng()
    return {
        "Q": 0.5 * r.normal(size=(2 * heads, d)),
        "K": 0.5 * r.normal(size=(2 * heads, d)),
        "V": r.normal(size=(heads, d, d)),
        "heads": heads,
    }


def masks(n: int) -> dict[str, Any]:
    r = rng()
    return {
        "none": None,
        "causal": "causal",
        "ties": r.integers(0, 5, n) / 5,
        "shuffled": r.permutation(n) / n,
        "rising": np.arange(n) / n,
    }


# ---- velocities -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["softmax", "l2", "linear", "exp", "relu", "sigmoid"])
def test_weights_and_masks(xp: Library, kind: str, dtype: str) -> None:
    """TPDE-1, 2.6 and 2.7: every kind under every mask, weights that are 0 among them, clouds away from 0."""
    n = 14
    X = (rng().normal(size=(n, 3)) + 1).astype(dtype)
    w = rng().random(n)
    w[4] = 0
    for weights, mask, renormalise in itertools.product(
        (None, w), masks(n).values(), (True, False)
    ):
        if not renormalise and (mask is None or kind in ("softmax", "l2")):
            continue
        field = qk.AttentionField(
            kind, mask=mask, weights=weights, renormalise=renormalise, **parameters()
        )
        close(xp.numpy(field(xp.asarray(X))), field(X), 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_centred_linear_form(xp: Library, dtype: str) -> None:
    """TPDE 2.2: mean over epsilon and covariance, far from 0, where moments about 0 would cancel."""
    n = 11
    w = rng().random(n)
    for weights, mask in itertools.product((None, w), masks(n).values()):
        field = qk.AttentionField(
            "linear", mask=mask, weights=weights, centred=True, epsilon=0.5, **parameters()
        )
        X = (rng().normal(size=(n, 3)) + 20).astype(dtype)
        close(xp.numpy(field(xp.asarray(X))), field(X), 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 7, 9])
def test_few_particles(xp: Library, n: int, dtype: str) -> None:
    X = rng().normal(size=(n, 2)).astype(dtype)
    for mask in (None, "causal", np.zeros(n)):
        field = qk.AttentionField(
            "relu", mask=mask, weights=np.arange(1.0, n + 1), **parameters(d=2)
        )
        close(xp.numpy(field(xp.asarray(X))), field(X), 4)


def test_weights_are_particles_counted_more_than_once(xp: Library) -> None:
    """A particle of weight 2/3 beside one of 1/3 is two particles beside one: no CPU in between."""
    X = rng().normal(size=(2, 3))
    for kind in ("softmax", "exp", "linear"):
        two = qk.AttentionField(kind, weights=np.array([2.0, 1.0]), **parameters())
        three = qk.AttentionField(kind, **parameters())
        found = xp.numpy(two(xp.asarray(X)))
        wanted = xp.numpy(three(xp.asarray(X[[0, 0, 1]])))
        close(found, wanted[[0, 2]], 4)


def test_layers_by_time(xp: Library) -> None:
    """field(X, t): the layer that is in force at t."""
    X = rng().normal(size=(5, 2))
    field = qk.AttentionField(
        "softmax",
        Q=np.eye(2),
        K=np.eye(2),
        V=rng().normal(size=(3, 1, 2, 2)),
        times=[0.0, 0.5, 2.0],
    )
    for t in (-1.0, 0.0, 0.7, 2.0, 9.0):
        close(xp.numpy(field(xp.asarray(X), t)), field(X, t), 4)


# ---- Sinkhorn attention -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_bistochastic_attention(xp: Library, dtype: str) -> None:
    """TPDE 2.4: two heads, Q and K that differ, weights with a 0; against a dense Sinkhorn iteration too."""
    X = rng().normal(size=(9, 3)).astype(dtype)
    w = np.arange(9.0)
    given = parameters()
    for weights in (None, w):
        field = qk.AttentionField("sinkhorn", weights=weights, epsilon=0.5, **given)
        v = xp.numpy(field(xp.asarray(X)))
        accuracy = 1e-3 if dtype == "float32" else 1e-8
        np.testing.assert_allclose(v, field(X), rtol=0, atol=accuracy)
        mu = np.full(9, 1 / 9) if weights is None else w / w.sum()
        wanted = np.zeros((9, 3))
        for h in range(2):
            Q, K = (given[m][2 * h : 2 * h + 2] for m in "QK")
            kernel = np.exp(-np.square((X @ Q.T)[:, None] - X @ K.T).sum(-1) / (2 * 0.5))
            g = np.ones(9)
            for _ in range(2000):
                f = 1 / (kernel @ (mu * g))
                g = 1 / (kernel.T @ (mu * f))
            rows = kernel * (mu * g)
            wanted += rows / rows.sum(1, keepdims=True) @ X @ given["V"][h].T / 0.5
        np.testing.assert_allclose(v, wanted, rtol=0, atol=accuracy)


def test_flows_of_bistochastic_attention(xp: Library) -> None:
    """Potentials are kept from stage to stage; what does not converge is a status, and an error of a call."""
    X = rng().normal(size=(8, 2))
    eye = np.eye(2)
    field = qk.AttentionField("sinkhorn", Q=eye, K=eye, V=-eye, epsilon=1.0)
    a = qk.flow(field, X, (0.0, 0.5), "rk4", n_steps=3, t_eval=[0.1, 0.5])
    b = qk.flow(field, xp.asarray(X), (0.0, 0.5), "rk4", n_steps=3, t_eval=[0.1, 0.5])
    assert (b.status, b.n_evaluations) == (a.status, a.n_evaluations) == ("finished", 12)
    np.testing.assert_allclose(xp.numpy(b.x), a.x, rtol=0, atol=1e-8)

    short = qk.AttentionField("sinkhorn", Q=eye, K=eye, V=eye, epsilon=0.1, sinkhorn_max_visits=1)
    for options in ({"method": "euler", "n_steps": 2}, {"method": "dopri5"}):
        c = qk.flow(short, xp.asarray(X), (0.0, 0.5), **options)  # type: ignore[arg-type]
        assert (c.status, c.n_steps, len(c.t)) == ("no convergence", 0, 1)
    with pytest.raises(RuntimeError, match=r"sinkhorn: the marginals did not reach sinkhorn_tol"):
        short(xp.asarray(X))
    with pytest.raises(ValueError, match=r"mask: wanted None for sinkhorn attention on a device"):
        qk.AttentionField("sinkhorn", Q=eye, K=eye, V=eye, mask="causal")(xp.asarray(X))


# ---- the sphere -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_velocities_along_the_sphere(xp: Library, dtype: str) -> None:
    X = rng().normal(size=(9, 3))
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(dtype)
    field = qk.AttentionField("softmax", sphere=True, weights=np.arange(1.0, 10), **parameters())
    v = xp.numpy(field(xp.asarray(X)))
    close(v, field(X), 4)
    assert np.abs((v * X).sum(axis=1)).max() < 30 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_flows_on_the_sphere(xp: Library, method: str, dtype: str) -> None:
    """TPDE-2: rows of norm 1 after each step, and at times in between."""
    X = rng().normal(size=(8, 3))
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(dtype)
    field = qk.AttentionField("softmax", sphere=True, mask=masks(8)["ties"], **parameters())
    for t_eval in (None, np.linspace(0, 1, 6)):
        a = qk.flow(field, X, (0.0, 1.0), method, n_steps=4, t_eval=t_eval)
        b = qk.flow(field, xp.asarray(X), (0.0, 1.0), method, n_steps=4, t_eval=t_eval)
        x = xp.numpy(b.x)
        close(x, a.x, 8)
        assert np.abs(np.linalg.norm(x, axis=2) - 1).max() < 10 * np.finfo(dtype).eps
        np.testing.assert_array_equal(b.t, a.t)
        assert b.n_evaluations == a.n_evaluations


# ---- times in between -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_states_at_given_times(xp: Library, method: str, dtype: str) -> None:
    """t_eval with fixed steps: both ends, repeated times, several in one step, none in another, layers."""
    r = rng()
    X = r.normal(size=(6, 2)).astype(dtype)
    field = qk.AttentionField(
        "l2", Q=r.normal(size=(2, 2, 2)), K=np.eye(2), V=-np.eye(2), times=np.array([0.0, 0.4])
    )
    for t_eval in ([0.0, 0.1, 0.2, 0.2, 0.4, 0.41, 0.9, 1.0], [0.3], [1.0], [0.0], [0.5, 0.99]):
        a = qk.flow(field, X, (0.0, 1.0), method, n_steps=4, t_eval=t_eval)
        b = qk.flow(field, xp.asarray(X), (0.0, 1.0), method, n_steps=4, t_eval=t_eval)
        np.testing.assert_array_equal(b.t, t_eval)
        assert (b.status, b.n_steps, b.n_evaluations) == (a.status, a.n_steps, a.n_evaluations)
        close(xp.numpy(b.x), a.x, 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_states_at_given_times_of_steps_that_adapt(xp: Library, dtype: str) -> None:
    """Against a closed form: with Q = 0 the mean m moves by exp(V t) and every particle as the mean does."""
    X = rng().normal(size=(7, 2)).astype(dtype)
    V = np.array([[0.3, -2.0], [2.0, -0.1]])
    w = np.arange(1.0, 8) / 28
    field = qk.AttentionField("softmax", Q=np.zeros((2, 2)), K=np.eye(2), V=V, weights=w)
    t_eval = np.linspace(0.0, 3.0, 17)
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if dtype == "float64" else {}
    b = qk.flow(field, xp.asarray(X), (0.0, 3.0), t_eval=t_eval, **tolerance)
    m = w @ X.astype(float)
    wanted = X + np.array([expm(V * t) @ m - m for t in t_eval])[:, None, :]
    assert b.status == "finished" and b.n_steps < 200
    np.testing.assert_allclose(
        xp.numpy(b.x), wanted, rtol=0, atol=2e-8 if dtype == "float64" else 1e-3
    )


# ---- events -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{"method": "rk4", "n_steps": 10}, {"method": "dopri5"}])
def test_a_radius_ends_the_flow(xp: Library, options: dict[str, Any], dtype: str) -> None:
    """blow_up: the time at which the farthest particle passes R, by bisection; with t_eval too."""
    X = rng().normal(size=(6, 2)).astype(dtype)
    field = qk.AttentionField("softmax", Q=np.eye(2), K=np.eye(2), V=np.eye(2))
    eps = 1e-5 if dtype == "float32" else 1e-9
    for t_eval in (None, np.linspace(0, 3, 13)):
        a = qk.flow(field, X, (0.0, 3.0), blow_up=5.0, t_eval=t_eval, **options)
        b = qk.flow(field, xp.asarray(X), (0.0, 3.0), blow_up=5.0, t_eval=t_eval, **options)
        assert a.status == b.status == "blew up"
        # With adaptive steps in float32, rounding may change the number of steps by one.
        slack = 0 if "n_steps" in options or dtype == "float64" else 1
        assert abs(b.n_steps - a.n_steps) <= slack
        assert len(b.t) == len(a.t) or (slack and t_eval is None)
        np.testing.assert_allclose(b.t[-1], a.t[-1], rtol=100 * eps)
        radius = np.linalg.norm(xp.numpy(b.x)[-1], axis=1).max()
        np.testing.assert_allclose(radius, 5.0, rtol=100 * eps)
    early = qk.flow(field, xp.asarray(X), (0.0, 3.0), blow_up=0.01, **options)
    assert (early.status, early.n_steps, len(early.t)) == ("blew up", 0, 1)
    np.testing.assert_array_equal(xp.numpy(early.x)[0], X)
    radius = np.linalg.norm(X.astype(float), axis=1).max()
    assert str(early).splitlines()[-1] == f"  last radius {radius:.6g}, on cuda:0"


@pytest.mark.parametrize("options", [{"method": "heun", "n_steps": 20}, {"method": "dopri5"}])
def test_clusters_end_the_flow(xp: Library, options: dict[str, Any]) -> None:
    """Attention with V = I on the sphere draws particles together; the time is found inside of a step."""
    X = rng().normal(size=(8, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    field = qk.AttentionField("softmax", Q=np.eye(3), K=np.eye(3), V=np.eye(3), sphere=True)
    a = qk.flow(field, X, (0.0, 8.0), clusters=(1, 0.2), **options)
    b = qk.flow(field, xp.asarray(X), (0.0, 8.0), clusters=(1, 0.2), **options)
    assert b.status == a.status == "clustered" and b.n_steps == a.n_steps and 0 < b.t[-1] < 8
    np.testing.assert_allclose(b.t[-1], a.t[-1], rtol=1e-6)
    np.testing.assert_allclose(xp.numpy(b.x)[-1], a.x[-1], rtol=1e-5)


def test_a_flow_that_ends_early_keeps_its_last_state(xp: Library) -> None:
    """A step limit between two requested times: the time and state that it came to are there."""
    X = rng().normal(size=(5, 2))
    field = qk.AttentionField("softmax", Q=np.eye(2), K=np.eye(2), V=-np.eye(2))
    a = qk.flow(field, X, (0.0, 9.0), t_eval=[0.0, 9.0], max_steps=4)
    b = qk.flow(field, xp.asarray(X), (0.0, 9.0), t_eval=[0.0, 9.0], max_steps=4)
    assert (b.status, len(b.t)) == (a.status, len(a.t)) == ("step limit", 2)
    # Step sizes depend on an error estimate near rounding, so they agree to fewer digits than states.
    np.testing.assert_allclose(b.t, a.t, rtol=1e-6)
    np.testing.assert_allclose(xp.numpy(b.x), a.x, atol=1e-6)


def test_what_only_the_cpu_has_is_refused(xp: Library) -> None:
    X = xp.asarray(np.ones((3, 2)))
    field = qk.AttentionField("softmax", Q=np.eye(2), K=np.eye(2), V=np.eye(2))
    with pytest.raises(ValueError, match=r"method: wanted an explicit one for particles on a dev"):
        qk.flow(field, X, (0.0, 1.0), "rodas4")
    for call in (lambda: qk.flow(field, X, (0.0, 1.0), n_threads=2), lambda: field(X, n_threads=2)):
        with pytest.raises(TypeError, match=r"n_threads: wanted None for arrays on cuda:0"):
            call()
    with pytest.raises(TypeError, match=r"field: .* got one that takes 1 argument"):
        qk.flow(lambda x: x, X, (0.0, 1.0))


# ---- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "options", "match"),
    [
        ({"weights": np.ones(4)}, {}, r"weights: wanted 5 entries"),
        ({"mask": np.ones(4)}, {}, r"mask: wanted 5 entries"),
        (
            {"weights": np.array([0.0, 1, 1, 1, 1]), "mask": "causal"},
            {},
            r"weights: wanted every particle to see a positive mass",
        ),
        ({"sphere": True}, {}, r"X0: wanted unit rows for a field on the sphere, got norms off"),
        ({}, {"t_eval": [0.0, 2.0]}, r"t_eval: wanted times within t_span"),
        ({}, {"blow_up": -1.0}, r"blow_up: wanted a finite number > 0"),
        ({}, {"clusters": (0, 1.0)}, r"clusters\[0\]: wanted a count of at least 1"),
    ],
)
def test_wrong_fields_and_events(
    xp: Library, field: dict[str, Any], options: dict[str, Any], match: str
) -> None:
    X = rng().normal(size=(5, 2))
    attention = qk.AttentionField("softmax", Q=np.eye(2), K=np.eye(2), V=np.eye(2), **field)
    with pytest.raises(ValueError, match=match):
        qk.flow(attention, xp.asarray(X), (0.0, 1.0), "euler", n_steps=1, **options)
