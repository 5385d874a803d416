"""The probability-flow ODE (EOT-5) against exact solutions, and its checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore.simplex import entropy_rate, pf_ode, project_to_simplex
from qkcore.simplex._flow import _Path
from tests import reference_simplex as ref

P0 = np.array([0.2, 0.5, 0.3])
B = np.array([1.0, -0.5, 0.25])


def exact(p0: ref.Array, change: ref.Array, tau: float = 1.0) -> ref.Array:
    """Logits that changed by ``change`` in all."""
    with np.errstate(divide="ignore"):
        return ref.softmax(tau * np.log(p0) + change, tau)


@pytest.mark.parametrize("coordinates", ["p", "logits"])
@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_a_constant_drift_is_exponential_tilting(coordinates: str, tau: float) -> None:
    """EOT-5: p(t) is softmax((z0 + t b)/tau)."""
    times = np.linspace(0, 2, 7)
    sol = pf_ode(P0, lambda p, t: B, (0, 2), tau=tau, t_eval=times, coordinates=coordinates)
    assert sol.success and sol.status == "finished" and sol.t.tolist() == times.tolist()
    for t, p in zip(sol.t, sol.p, strict=True):
        np.testing.assert_allclose(p, exact(P0, t * B, tau), atol=2e-5)
    np.testing.assert_allclose(sol.entropy, ref.entropy(sol.p), atol=1e-14)
    assert sol.max_mass_error < 1e-12 and sol.warnings == ()


def test_defaults_are_those_of_the_text() -> None:
    """EOT-5, H.1: rtol 1e-5, atol 1e-7, 2000 steps."""
    import inspect

    given = inspect.signature(pf_ode).parameters
    assert (given["rtol"].default, given["atol"].default, given["max_steps"].default) == (
        1e-5,
        1e-7,
        2000,
    )


@pytest.mark.parametrize("tol", [1e-4, 1e-6, 1e-8])
def test_error_follows_the_tolerance(tol: float) -> None:
    """Replicator dynamics with two strategies: the logistic equation."""
    p0 = np.array([0.1, 0.9])
    sol = pf_ode(p0, lambda p, t: np.array([2.0, 0.0]), (0, 4), rtol=tol, atol=tol * 1e-2)
    logistic = 1 / (1 + 9 * np.exp(-2 * sol.t))
    assert np.abs(sol.p[:, 0] - logistic).max() < 20 * tol


def test_a_state_dependent_drift() -> None:
    """b = -log p relaxes log-ratios as exp(-t): p(t) is softmax(exp(-t) log p0)."""
    sol = pf_ode(P0, lambda p, t: -np.log(p), (0, 3), rtol=1e-9, atol=1e-11, t_eval=[1.0, 2.5, 3.0])
    for t, p in zip(sol.t, sol.p, strict=True):
        np.testing.assert_allclose(p, ref.softmax(np.exp(-t) * np.log(P0)), atol=1e-8)
    again = pf_ode(P0, lambda z, t: -z, (0, 3), rtol=1e-9, atol=1e-11, drift_of="logits")
    np.testing.assert_allclose(again.p[-1], sol.p[-1], atol=1e-8)
    assert sol.entropy[-1] > sol.entropy[0]


def test_a_time_dependent_drift_and_its_tables() -> None:
    """Tables: linear when there are as many values as times, constant on intervals with one less."""
    sol = pf_ode(P0, lambda p, t: np.cos(t) * B, (0, 2), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(sol.p[-1], exact(P0, np.sin(2.0) * B), atol=1e-8)
    times = np.array([0.0, 0.5, 2.0])
    lines = pf_ode(P0, (times, np.stack([0 * B, B, -B])), (0, 2), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(lines.p[-1], exact(P0, (0.25 + 0.0) * B), atol=1e-8)
    steps = pf_ode(P0, (times, np.stack([2 * B, -B])), (0.25, 2), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(steps.p[-1], exact(P0, (0.5 - 1.5) * B), atol=1e-8)
    assert 0.5 in steps.t  # a step ends where the table jumps


@pytest.mark.parametrize("with_time", [False, True])
def test_a_fitted_model_is_a_drift(with_time: bool) -> None:
    class Model:
        n_features_in_ = 3 + with_time

        def predict(self, X: ref.Array) -> ref.Array:
            assert X.shape[1] == self.n_features_in_
            return np.tile(B, (len(X), 1)) * (X[:, 3:] if with_time else 1.0)

    sol = pf_ode(np.stack([P0, P0[::-1]]), Model(), (0, 2), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(sol.p[-1, 1], exact(P0[::-1], 2 * B), atol=1e-7)


def test_batches_share_steps() -> None:
    rng = np.random.default_rng(0)
    p0 = rng.dirichlet(np.ones(5), size=(2, 3))
    b = rng.normal(size=(2, 3, 5))
    sol = pf_ode(p0, lambda p, t: b, (0, 1), rtol=1e-8, atol=1e-10)
    assert sol.p.shape[1:] == (2, 3, 5) and sol.entropy.shape == sol.p.shape[:-1]
    np.testing.assert_allclose(sol.p[-1], exact(p0, b), atol=1e-7)
    single = pf_ode(p0.astype(np.float32), lambda p, t: b, (0, 1))
    assert single.p.dtype == np.float32


def test_faces_are_invariant() -> None:
    """Q.1 step 4: entries without mass stay so, exactly."""
    for coordinates in ("p", "logits"):
        sol = pf_ode(np.array([0.5, 0.0, 0.5]), lambda p, t: 5 * B, (0, 1), coordinates=coordinates)
        assert (sol.p[:, 1] == 0).all()
        np.testing.assert_allclose(sol.p[-1], exact(np.array([0.5, 0, 0.5]), 5 * B), atol=1e-4)


# ---- guards and monitors (H.1) ------------------------------------------------------------------


def test_positivity_guard() -> None:
    """Loose tolerances let an entry dip below 0: it is projected, and said; the logits need no guard."""
    drift = np.array([20.0, -60.0, 5.0])
    sol = pf_ode(P0, lambda p, t: drift * np.cos(7 * t), (0, 0.25), rtol=1e-2, atol=1e-2)
    assert sol.success and sol.coordinates == "p" and (sol.p >= 0).all()
    np.testing.assert_allclose(sol.p.sum(axis=-1), 1, atol=1e-12)
    assert sol.n_projected > 0 and -1e-2 <= sol.most_negative < 0
    assert "projected" in str(sol) and any("logits" in w for w in sol.warnings)
    drain = np.array([0.0, -60.0, 0.0])
    safe = pf_ode(P0, lambda p, t: drain, (0, 2), rtol=1e-6, coordinates="logits")
    assert safe.n_projected == 0 and safe.warnings == ()
    assert safe.p[-1, 1] == pytest.approx(exact(P0, 2 * drain)[1], rel=1e-5)  # 1e-53, relatively


def test_mass_guard() -> None:
    """H.1: a mass that is off by more than 1e-12 is repaired and reported."""
    run = _Path(P0, 0.0, (1.0, 1e-5, 1e-7), False, False, None)
    run.next = P0 * (1 + 1e-9)
    assert run._repair()
    assert (run.n_renormalized, run.n_projected) == (1, 0)
    assert run.max_mass_error == pytest.approx(1e-9, rel=1e-3)
    np.testing.assert_allclose(run.next, P0, rtol=1e-15)


def test_projection() -> None:
    """H.1: Euclidean projection, against bisection on its multiplier."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        y = rng.normal(size=(3, 6))
        got = project_to_simplex(y)
        for k in range(3):
            np.testing.assert_allclose(got[k], ref.simplex_projection(y[k]), atol=1e-12)
    np.testing.assert_allclose(project_to_simplex(P0), P0, atol=1e-16)


def test_entropy_balance() -> None:
    """L.1: dH/dt = -sum (Jb)_i log p_i, against differences; the solver's own balance closes."""
    rng = np.random.default_rng(2)
    p, b, h, tau = rng.dirichlet(np.ones(6)), rng.normal(size=6), 1e-5, 0.7
    ahead, behind = (ref.entropy(exact(p, s * h * b, tau)) for s in (1, -1))
    assert entropy_rate(p, b, tau) == pytest.approx((ahead - behind) / (2 * h), rel=1e-6)
    sol = pf_ode(p, lambda q, t: np.sin(5 * t) * b, (0, 2), rtol=1e-8, atol=1e-10)
    assert sol.entropy_residual < 1e-6
    assert pf_ode(p, lambda q, t: b, (0, 2), coordinates="logits").entropy_residual < 1e-3


def test_entropy_statements_of_the_text() -> None:
    """Erratum 7f: of L.1's two sums, (17) is right and (16), with its half, is not."""
    rng = np.random.default_rng(3)
    p, b = rng.dirichlet(np.ones(5)), rng.normal(size=5)
    J, ratios = ref.mobility(p), np.log(p[:, None] / p[None, :])
    double_sum = -(J * b[None, :] * ratios).sum()
    assert entropy_rate(p, b) == pytest.approx(double_sum)
    assert entropy_rate(p, b) != pytest.approx(double_sum / 2)
    # b = -grad H = log p + 1 lowers the entropy, b = -log p raises it
    assert entropy_rate(p, np.log(p) + 1) < 0 < entropy_rate(p, -np.log(p))


def test_failures_are_passed_through() -> None:
    few = pf_ode(P0, lambda p, t: 50 * np.sin(40 * t) * B, (0, 5), max_steps=20)
    assert not few.success and few.status == "step limit" and 0 < few.t[-1] < 5
    assert len(few.t) == len(few.p) == few.n_steps + 1 and few.n_steps + few.n_rejected == 20

    def broken(p: ref.Array, t: float) -> ref.Array:
        return B if t < 0.5 else B * np.nan

    nan = pf_ode(P0, broken, (0, 1))
    assert nan.status == "blew up" and np.isfinite(nan.p).all()
    # A trial step that goes too far is repeated with a shorter step.
    assert 0.5 - 1e-12 < nan.t[-1] < 0.5
    np.testing.assert_allclose(nan.p[-1], exact(P0, 0.5 * B), atol=1e-5)
    assert "NaN" in nan.message and "NaN" in str(nan)
    first = pf_ode(P0, lambda p, t: B * np.inf, (0, 1))
    assert first.status == "blew up" and len(first.t) == 1
    huge = pf_ode(P0, lambda p, t: 1e300 * B, (1, 2))
    assert huge.status == "step underflow" and huge.t.tolist() == [1.0] and huge.t_reached == 1.0
    early = pf_ode(P0, broken, (0, 1), t_eval=[0.75])
    assert len(early.t) == 0 and 0.49 < early.t_reached < 0.5 and "blew up" in str(early)
    for coordinates in (
        "p",
        "logits",
    ):  # even the first trial evaluation may be where there is no value
        soon = pf_ode(
            P0, lambda p, t: B if t < 1e-9 else B * np.inf, (0, 1), coordinates=coordinates
        )
        assert soon.status == "blew up" and 0.9e-9 < soon.t_reached < 1e-9


def test_a_drift_without_value_outside_the_simplex() -> None:
    """Loose tolerances let stages dip below 0; there the step is shortened, and the flow goes on."""
    b = np.array([0.0, -300.0, 0.0])
    sol = pf_ode(P0, lambda p, t: b if (p >= 0).all() else b * np.nan, (0, 0.2), rtol=0.1, atol=0.1)
    assert sol.success and sol.n_rejected > 10
    np.testing.assert_allclose(sol.p[-1], exact(P0, 0.2 * b), atol=0.02)


@pytest.mark.parametrize("entry", [1e-9, 1e-40, 1e-100, 1e-300])
@pytest.mark.parametrize("tolerance", [1e-5, 1e-8])
def test_small_entries_that_grow(entry: float, tolerance: float) -> None:
    """Entries far below atol may end near 1: closed form, softmax(log p0 + b)."""
    p0 = np.array([[entry, entry, 1 - 2 * entry], [0.2, 0.3, 0.5]])
    b = np.array([-1.2 * np.log(entry), 0.0, 1.0])
    wanted = np.stack([exact(row, b) for row in p0])
    sol = pf_ode(p0, lambda p, t: b, (0, 1), rtol=tolerance, atol=tolerance / 100)
    assert sol.success
    np.testing.assert_allclose(sol.p[-1], wanted, atol=1100 * tolerance)
    if entry < 1e-30:
        assert sol.coordinates == "logits" and sol.logit_residual > 1000 * tolerance
        assert any("integrated in logits" in w for w in sol.warnings)
        assert pf_ode(p0, lambda p, t: b, (0, 1), coordinates="logits").warnings == ()


def test_entries_that_vanish_and_return() -> None:
    """An entry that falls to e^-200 and comes back: in p it is lost on the way."""
    b = np.array([0.0, -400.0, 0.0])
    sol = pf_ode(P0, lambda p, t: b * np.cos(np.pi * t), (0, 1), rtol=1e-6)
    np.testing.assert_allclose(sol.p[-1], P0, atol=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_ordinary_flows_stay_in_their_coordinates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A, p0 = rng.normal(size=(6, 6)), rng.dirichlet(np.ones(6))
    sol = pf_ode(p0, lambda p, t: 3 * A @ p * np.cos(t), (0, 2))
    assert sol.success and sol.coordinates == "p" and sol.logit_residual < 1e-3


def test_the_drift_raises() -> None:

    def raises(p: ref.Array, t: float) -> ref.Array:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pf_ode(P0, raises, (0, 1))


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    pf_ode(P0, lambda p, t: B, (0, 1), progress=True)
    assert "pf_ode: 100%" in capsys.readouterr().err


def b(p: ref.Array, t: float) -> ref.Array:
    return B


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: pf_ode(np.array([0.5, 0.6]), b, (0, 1)), ValueError, r"p0: wanted rows that sum to 1"),
    (lambda: pf_ode(P0, b, (1, 0)), ValueError, r"t_span: wanted t0 < t1"),
    (lambda: pf_ode(P0, b, (0, np.nan)), ValueError, r"t_span\[1\]: wanted a finite"),
    (lambda: pf_ode(P0, b, (0, 1, 2)), ValueError, r"t_span: wanted a pair \(t0, t1\)"),  # type: ignore[arg-type]
    (lambda: pf_ode(P0, b, (0, 1), tau=0), ValueError, r"tau: wanted"),
    (lambda: pf_ode(P0, b, (0, 1), rtol=-1), ValueError, r"rtol: wanted"),
    (lambda: pf_ode(P0, b, (0, 1), max_steps=0), ValueError, r"max_steps: wanted"),
    (
        lambda: pf_ode(P0, b, (0, 1), coordinates="z"),
        ValueError,
        r"coordinates: wanted 'p' or 'logits'",
    ),
    (
        lambda: pf_ode(P0, b, (0, 1), t_eval=[0.5, 2.0]),
        ValueError,
        r"t_eval: wanted times within t_span",
    ),
    (lambda: pf_ode(P0, b, (0, 1), t_eval=[]), ValueError, r"t_eval: wanted"),
    (lambda: pf_ode(P0, "b", (0, 1)), TypeError, r"drift: wanted a function"),  # type: ignore[arg-type]
    (
        lambda: pf_ode(P0, lambda p, t: np.ones(4), (0, 1)),
        ValueError,
        r"drift: wanted values of shape \(3,\)",
    ),
    (
        lambda: pf_ode(P0, ([0, 1], np.ones((4, 3))), (0, 1)),
        ValueError,
        r"drift: wanted 2 values .* or 1",
    ),
    (
        lambda: pf_ode(P0, ([0, 0.5], np.ones((2, 3))), (0, 1)),
        ValueError,
        r"drift: wanted times that cover",
    ),
    (lambda: pf_ode(P0, ([1, 0], np.ones((2, 3))), (0, 1)), ValueError, r"drift: .*rising times"),
    (
        lambda: pf_ode(P0, ([0, 1], np.full((2, 3), np.nan)), (0, 1)),
        ValueError,
        r"drift: wanted finite",
    ),
    (lambda: qk.simplex.entropy_rate(P0, np.ones(2)), ValueError, r"b: wanted shape"),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_input(index: int) -> None:
    call, kind, pattern = BAD[index]
    with pytest.raises(kind, match=pattern):
        call()


def test_a_model_of_the_wrong_size() -> None:
    class Model:
        n_features_in_ = 7

        def predict(self, X: ref.Array) -> ref.Array:
            return X

    with pytest.raises(ValueError, match=r"drift: wanted a model of states \(3\).*fitted on 7"):
        pf_ode(P0, Model(), (0, 1))
