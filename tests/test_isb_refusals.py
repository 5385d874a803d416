"""Flows of bridges: what they refuse, how they end, and that all other flows follow the exact law."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.sparse import diags, identity
from scipy.sparse.linalg import splu

from qkcore import _checks, isb

OU_START = isb.Mixture.gaussian(0.0, 4.0)
SUPPORT = np.linspace(-14, 14, 300)[:, None]


def log_cosh(z: Any) -> Any:
    return (2 * np.abs(z) + 2 * np.log1p(np.exp(-2 * np.abs(z)))).sum(1) - 2 * math.log(2)


def quartic(z: Any) -> Any:
    return (z**4).sum(1) / 4


def second_moment(slope: Callable[[Any], Any], variance: float, T: float) -> float:
    """<x²> at T of the Fokker-Planck equation from N(0, variance), by finite volumes that keep mass."""
    z = np.linspace(-12, 12, 1601)
    h = z[1] - z[0]
    rho = np.exp(-(z**2) / (2 * variance))
    rho /= rho.sum()
    peclet = -slope((z[1:] + z[:-1]) / 2) * h
    weight = np.where(np.abs(peclet) < 1e-10, 1.0, peclet / np.expm1(np.where(peclet, peclet, 1.0)))
    out, back = 0.5 / h**2 * (weight + peclet), 0.5 / h**2 * weight  # Scharfetter and Gummel
    main = np.zeros(len(z))
    main[:-1] -= out
    main[1:] -= back
    A = diags([out, main, back], [-1, 0, 1], format="csc")
    one, dt = identity(len(z), format="csc"), T / 800
    solver = splu((one - dt / 2 * A).tocsc())
    for _ in range(800):
        rho = solver.solve((one + dt / 2 * A) @ rho)
    return float(rho @ z**2)


def test_the_oracle_knows_ornstein_uhlenbeck() -> None:
    assert second_moment(lambda z: z, 4.0, 0.5) == pytest.approx(1 + 3 * math.exp(-0.5), abs=1e-3)


# ---- surrogates on particles -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("potential", "slope"),
    [(log_cosh, lambda z: 2 * np.tanh(z)), (quartic, lambda z: np.clip(z, -8, 8) ** 3)],
)
def test_kl_flow_of_draws_follows_the_law_or_is_refused(potential: Any, slope: Any) -> None:
    """By split, and by a surrogate on a support, <x²> is the law's; held by the draws it cannot be."""
    wanted = second_moment(slope, 4.0, 0.5)
    X = OU_START.quantile_grid(600)[np.random.default_rng(0).permutation(600)]
    split = isb.kl_flow(X, 0.02, T=0.5, potential=potential)
    held = isb.kl_flow(X, 0.02, T=0.5, potential=potential, method="surrogate", support=SUPPORT)
    assert split.converged and (split.X**2).mean() == pytest.approx(wanted, rel=0.03)
    # Silverman's estimate of the density has the variance of the particles plus h².
    assert held.converged and (held.X**2).mean() == pytest.approx(wanted, rel=0.1)
    assert held.unevenness.max() < 1e-6 and np.isnan(split.unevenness).all()
    draws = OU_START.sample(600, np.random.default_rng(0))
    known = OU_START.log_pdf(draws[:, 0])
    for density in (None, known, lambda z, k: OU_START.log_pdf(z[:, 0])):
        with pytest.raises(ValueError, match=r'method="split".*support= a grid'):
            isb.kl_flow(
                draws, 0.02, T=0.5, potential=potential, method="surrogate", log_density=density
            )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kl_flow_of_draws_in_the_plane(dtype: str) -> None:
    X = (2 * np.random.default_rng(0).normal(size=(800, 2))).astype(dtype)
    X *= (2 / np.sqrt((X**2).mean(axis=0))).astype(dtype)
    with pytest.raises(ValueError, match=r'method="split".*support= a grid'):
        isb.kl_flow(X, 0.2, 3, potential=log_cosh, method="surrogate")
    g = np.linspace(-9, 9, 41)
    Z = np.stack(np.meshgrid(g, g), -1).reshape(-1, 2).astype(dtype)
    wanted = second_moment(lambda z: 2 * np.tanh(z), 4.0, 0.6)
    for options in ({}, {"method": "surrogate", "support": Z}):
        flow = isb.kl_flow(X, 0.2, 3, potential=log_cosh, **options)
        assert flow.converged and flow.X.dtype == dtype
        np.testing.assert_allclose((flow.X**2).mean(axis=0), wanted, rtol=0.1)


@pytest.mark.parametrize(
    "support", [np.linspace(-14, 14, 140)[:, None], np.linspace(-4, 4, 200)[:, None]]
)
def test_a_support_too_coarse_or_too_short_is_refused(support: Any) -> None:
    """At ε = 0.01 cells of 0.2 hold the particles fast: <x²> stays at 3.78 of 3.91, the law's is 3.17."""
    X = OU_START.sample(500, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"support: wanted equal cells not wider"):
        isb.kl_flow(X, 0.01, T=0.5, potential=log_cosh, method="surrogate", support=support)


def test_unevenness_is_the_error_of_the_displacement() -> None:
    """Against a direct sum over the cells, and growing until the flow ends where it passes the limit."""
    X = OU_START.sample(400, np.random.default_rng(2))
    logs, eps = OU_START.log_pdf(X[:, 0]), 0.05
    flow = isb.ornstein_uhlenbeck(
        X, eps, 1, method="surrogate", log_density=lambda z, k: logs, max_unevenness=math.inf
    )
    near = np.exp(-((X - X.T) ** 2) / (2 * eps) - logs)
    pull = near @ X[:, 0] / near.sum(1) - X[:, 0]
    moved = (flow.X - X)[:, 0] * flow.theta[0]
    wanted = math.sqrt((pull**2).mean() / (moved**2).mean())
    assert flow.unevenness[0] == pytest.approx(wanted, rel=1e-8) and wanted > 0.5
    x, w = OU_START.grid(400)
    near_grid = x + 1e-4 * np.sin(20 * x)  # a ripple that the step amplifies
    ended = isb.kl_flow(
        near_grid,
        0.005,
        400,
        weights=w,
        potential=lambda z: (z**2).sum(1) / 2,
        method="surrogate",
        log_density=OU_START.log_pdf(x[:, 0]),
        max_unevenness=0.3,
    )
    assert not ended.converged and 0 < ended.n_steps < 400
    assert "clustered" in ended.message and 'method="split"' in ended.message
    assert ended.unevenness[-1] <= 0.3 and np.isfinite(ended.X).all()


def test_a_negative_theta_needs_no_support() -> None:
    """From a narrow law to a wide one particles move apart, and may hold the surrogate themselves."""
    law = isb.Mixture.gaussian(0.0, 0.25)
    X = law.sample(800, np.random.default_rng(1))
    flow = isb.ornstein_uhlenbeck(X, 0.02, 50, method="surrogate")
    assert flow.converged and (flow.theta < 0).all() and np.isnan(flow.unevenness).all()
    assert law.ornstein_uhlenbeck(1.0).w2(flow.X) < max(1.5 * law.w2(X), 0.05)


def test_particles_that_see_no_other_are_refused() -> None:
    X = np.linspace(-50, 50, 20)[:, None]
    with pytest.raises(ValueError, match=r"unevenness of (inf|1)"):
        isb.ornstein_uhlenbeck(X, 1e-3, 2, method="surrogate", log_density=np.zeros(20), theta=0.1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("theta", 1.0),
        ("support", SUPPORT),
        ("log_density", np.zeros(300)),
        ("bandwidth", 0.1),
    ],
)
def test_split_refuses_options_of_the_surrogate(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf'{option}: wanted None for method="split"') as caught:
        isb.ornstein_uhlenbeck(SUPPORT, 0.1, 1, **{option: value})
    assert len(str(caught.value)) < 200


def test_a_bandwidth_beside_a_known_density_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bandwidth: wanted None where log_density"):
        isb.ornstein_uhlenbeck(
            SUPPORT, 0.1, 1, method="surrogate", log_density=np.zeros(300), bandwidth=0.1
        )
    for value in (0.0, -1.0, math.nan, "x"):
        with pytest.raises(ValueError, match=r"max_unevenness: wanted a number > 0"):
            isb.ornstein_uhlenbeck(SUPPORT, 0.1, 1, method="surrogate", max_unevenness=value)  # type: ignore[arg-type]


# ---- how a flow ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("target", "what"),
    [
        ({"score": lambda z: -(z**3)}, "score is not a finite number at"),
        ({"potential": quartic}, "(potential|score) is not a finite number at"),
        ({"score": lambda z: -1e30 * z}, "overflows|left the range"),
        ({"score": lambda z: np.where(np.abs(z) > 18.5, np.nan, 40 * np.sign(z))}, "score is not"),
    ],
)
def test_kl_flow_ends_with_a_status_when_it_blows_up(target: Any, what: str, dtype: str) -> None:
    x, w = (a.astype(dtype) for a in OU_START.grid(300))
    flow = isb.kl_flow(x, 0.02, T=0.5, weights=w, **target)
    assert not flow.converged and 0 < flow.n_steps < 25
    assert flow.message.startswith(
        f"ended at step {flow.n_steps + 1} of 25 (t = {flow.n_steps * 0.02:g}): "
    )
    assert re.search(what, flow.message) and len(flow.message) < 250
    assert len(flow.x) == len(flow.t) == flow.n_steps + 1 == len(flow.theta) + 1
    assert np.isfinite(flow.x).all()


def test_what_is_wrong_from_the_start_raises() -> None:
    """With no step taken there is nothing to keep: the argument is named."""
    x, w = OU_START.grid(300)
    with pytest.raises(ValueError, match=r"score: wanted finite numbers, got .* at 300 of 300"):
        isb.kl_flow(x, 0.02, 3, weights=w, score=lambda z: np.nan * z)
    with pytest.raises(ValueError, match=r"potential: wanted finite numbers"):
        isb.kl_flow(x, 0.02, 3, weights=w, potential=lambda z: np.inf * z[:, 0])
    with pytest.raises(ValueError, match=r"log_density: wanted finite numbers"):
        isb.ornstein_uhlenbeck(
            x, 0.02, 3, weights=w, method="surrogate", log_density=np.full(300, np.nan)
        )
    with pytest.raises(ValueError, match=r"velocity: wanted finite numbers"):
        isb.euler_step(x, 0.1, lambda z: np.inf * z)


def test_surrogate_flow_ends_with_a_status_when_its_density_fails() -> None:
    x, w = OU_START.grid(300)
    flow = isb.ornstein_uhlenbeck(
        x,
        0.05,
        10,
        weights=w,
        method="surrogate",
        log_density=lambda z, k: OU_START.log_pdf(z[:, 0]) if k < 2 else np.full(len(z), np.nan),
        max_unevenness=math.inf,
    )
    assert flow.n_steps == 2 and "log_density is not a finite number" in flow.message


# ---- messages -----------------------------------------------------------------------------------------

BIG = np.full((500, 3), np.nan)


@pytest.mark.parametrize(
    "call",
    [
        lambda: _checks.doubles("x", BIG),
        lambda: _checks.doubles("x", BIG.astype(object)),
        lambda: _checks.number("x", BIG),
        lambda: _checks.positive("x", BIG),
        lambda: _checks.integer("x", BIG),
        lambda: _checks.time_span("x", BIG),
        lambda: isb.kl_flow(SUPPORT, 0.1, 1, score=SUPPORT),  # type: ignore[arg-type]
        lambda: isb.kl_flow(SUPPORT, 0.1, 1, score=lambda z: z, method=BIG),  # type: ignore[arg-type]
        lambda: isb.fit_rate(BIG[0], BIG[1]),
        lambda: OU_START.heat(BIG),  # type: ignore[arg-type]
        lambda: OU_START.quantile(np.linspace(-1, 1, 1000)),
    ],
)
def test_no_message_holds_an_array(call: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert len(str(caught.value)) < 300


# ---- exact laws -----------------------------------------------------------------------------------

LAW = isb.Mixture([0.3, 0.7], [-1.0, 2.0], [0.5, 1.5])


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: LAW.heat(-0.1), "t"),
        (lambda: LAW.heat(math.nan), "t"),
        (lambda: LAW.heat(math.inf), "t"),
        (lambda: LAW.ornstein_uhlenbeck(1.0, variance=-1.0), "variance"),
        (lambda: LAW.ornstein_uhlenbeck(1.0, variance=0.0), "variance"),
        (lambda: LAW.ornstein_uhlenbeck(1.0, variance=math.inf), "variance"),
        (lambda: LAW.ornstein_uhlenbeck(1.0, mean=math.nan), "mean"),
        (lambda: LAW.ornstein_uhlenbeck(-1.0), "t"),
        (lambda: LAW.log_pdf(np.nan), "x"),
        (lambda: LAW.log_pdf(np.inf), "x"),
        (lambda: LAW.score("a"), "x"),
        (lambda: LAW.cdf(np.nan), "x"),
        (lambda: LAW.sf([np.nan]), "x"),
        (lambda: LAW.quantile(np.nan), "u"),
        (lambda: LAW.quantile(-0.1), "u"),
        (lambda: LAW.transport(0.0, 1.0), "target"),  # type: ignore[arg-type]
        (lambda: LAW.w2_to(1.0), "other"),  # type: ignore[arg-type]
        (lambda: LAW.w2_to(LAW, 1), "n"),
        (lambda: LAW.grid(10, -1.0), "width"),
        (lambda: LAW.quantile_grid(0), "n"),
        (lambda: LAW.sample(0, np.random.default_rng(0)), "n"),
        (lambda: LAW.w2([np.nan]), "X"),
        (lambda: isb.Mixture.gaussian(0.0, -1.0), "variances"),
        (lambda: isb.Mixture.gaussian(math.inf, 1.0), "means"),
        (lambda: isb.gaussian_w2([0.0], [[-1.0]], [0.0], [[1.0]]), "cov_x"),
        (
            lambda: isb.gaussian_w2([0.0, 0.0], np.eye(2), [0.0, 0.0], [[1.0, 1.0], [0.0, 1.0]]),
            "cov_y",
        ),
        (lambda: isb.gaussian_slope(-1.0, 0.1), "variance"),
        (lambda: isb.gaussian_entropy_gap(-1.0, 0.1), "variance"),
        (lambda: isb.gaussian_variances(1.0, 0.1, 1, target=-1.0), "target"),
        (lambda: isb.gaussian_variances(1.0, 0.1, 1, theta=2.0), "theta"),
        (lambda: isb.one_step_rate(LAW, [0.1, 0.2], target=-1.0), "target"),
        (lambda: isb.one_step_rate(LAW, [0.1, 0.2], theta=2.0), "theta"),
        (lambda: isb.uniform_rate(LAW, [0.1, 0.2], 1.0, target=0.0), "target"),
        (lambda: isb.uniform_rate(LAW, [0.1, 0.2], 1.0, method="best"), "method"),
    ],
)
def test_exact_laws_check_every_parameter(call: Callable[[], Any], name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: wanted"):
        call()


def test_ornstein_uhlenbeck_law_solves_its_equation() -> None:
    """Moments against dm/dt = (mu - m)/2v and ds/dt = 1 - s/v, for short and very long times."""
    for t, mean, v in ((1e-9, 0.5, 2.0), (0.7, -1.0, 0.3), (5.0, 2.0, 4.0), (1e6, 2.0, 1.0)):
        law = LAW.ornstein_uhlenbeck(t, mean=mean, variance=v)
        np.testing.assert_allclose(
            law.means, mean + math.exp(-t / (2 * v)) * (LAW.means - mean), rtol=1e-14
        )
        decay = math.exp(-t / v)
        np.testing.assert_allclose(law.variances, v + decay * (LAW.variances - v), rtol=1e-12)
    np.testing.assert_array_equal(LAW.ornstein_uhlenbeck(0.0).means, LAW.means)
