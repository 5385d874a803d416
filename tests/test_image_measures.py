"""Track I (EOT-16): samplers, scores, parity, weak error, rotation and network, against closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from qkcore.diagnostics import duality
from qkcore.diagnostics import score as known
from qkcore.experiments.image_diffusion import _measures, _sampling, _scores
from qkcore.experiments.image_diffusion._schedule import VP, grid, steps

from . import reference_images as reference

pytest.importorskip("sklearn")
pytest.importorskip("jax")
pytest.importorskip("optax")

from qkcore.experiments.image_diffusion import _network

VP_ = VP(0.1, 20.0)
T_END = 1e-3


def small_axes(d: int = 6, n: int = 400, seed: int = 0) -> tuple[_scores.Axes, Any]:
    """Axes of a cloud of small "images" with correlated pixels."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(d, d)) / np.sqrt(d)
    images = np.clip(0.5 * rng.normal(size=(n, d)) @ mix - 0.3, -1, 1).astype(np.float32)
    return _scores.Axes.of(images), images


def gaussian(axes: _scores.Axes) -> _scores.GaussianScore:
    return _scores.GaussianScore(axes.mean, axes.variance, VP_)


# ---- schedule and samplers -----------------------------------------------------------------------


def test_schedule_against_quadrature() -> None:
    for t in (0.001, 0.1, 0.7, 1.0):
        integral = scipy.integrate.quad(lambda s: float(VP_.beta(s)), 0, t)[0]
        assert float(VP_.alpha(t)) == pytest.approx(math.exp(-integral / 2), rel=1e-12)
        assert float(VP_.sigma(t)) ** 2 == pytest.approx(-math.expm1(-integral), rel=1e-12)


@pytest.mark.parametrize("flow", ["sde", "ode"])
def test_euler_is_the_drift_of_the_diagnostics(flow: str) -> None:
    """EOT-7: the tables are eq 4 and the reverse-time drift, one Euler step."""
    axes, _ = small_axes()
    score = gaussian(axes)
    x = np.random.default_rng(1).normal(size=(5, 6))
    table = steps(VP_, grid(20, T_END), flow, "euler")

    def F(y: Any, t: float) -> Any:
        return -0.5 * VP_.beta(t) * y

    def a(y: Any, t: float) -> Any:
        return np.full(len(y), float(VP_.beta(t)))

    def exact(y: Any, t: float) -> Any:
        m, v = score.law(t)
        return known.gaussian_score(y, m, np.diag(v))

    drift = duality.reverse_drift if flow == "sde" else duality.velocity
    u = drift(F, a, exact, divergence=lambda y, t: np.zeros_like(y))
    for k in (0, 7, 19):
        t, h = float(table.t[k]), float(table.t[k + 1] - table.t[k])
        wanted = x + h * u(x, t)
        ours = _sampling.advance(x.astype(np.float32), score, table, k, None)
        np.testing.assert_allclose(ours, wanted, rtol=2e-4, atol=2e-4)
        spread = math.sqrt(float(VP_.beta(t)) * -h) if flow == "sde" else 0.0
        assert table.noise[k] == pytest.approx(spread)


def test_ddim_is_exact_for_a_single_image() -> None:
    """D stands still: with any number of steps the flow keeps the noise, the SDE its variance."""
    y, noise = 0.4, -1.3
    for K in (1, 3, 50):
        flow, random = (steps(VP_, grid(K, T_END), f, "ddim") for f in ("ode", "sde"))
        x = float(VP_.alpha(1.0)) * y + float(VP_.sigma(1.0)) * noise
        mean, variance = float(VP_.alpha(1.0)) * y, float(VP_.sigma(1.0)) ** 2
        for k in range(K):
            x = flow.keep[k] * x + flow.pull[k] * y
            mean = random.keep[k] * mean + random.pull[k] * y
            variance = random.keep[k] ** 2 * variance + random.noise[k] ** 2
        a, s = float(VP_.alpha(T_END)), float(VP_.sigma(T_END))
        assert x == pytest.approx(a * y + s * noise, abs=1e-12)
        assert mean == pytest.approx(a * y, abs=1e-12)
        assert variance == pytest.approx(s * s, rel=1e-9)


@pytest.mark.parametrize("scheme", ["ddim", "euler"])
def test_noise_of_small_steps_adds_up_to_that_of_large_ones(scheme: str) -> None:
    """The variance carried over is the large step's own: coupling changes no law."""
    small, large = (steps(VP_, grid(K, T_END), "sde", scheme) for K in (32, 8))
    for k in range(8):
        held = 0.0
        for f in range(4 * k, 4 * k + 4):
            held = small.carry[f] ** 2 * held + small.gain[f] ** 2
        total = large.release[k] ** 2 * held
        assert total == pytest.approx(large.noise[k] ** 2, rel=1e-9)


@pytest.mark.parametrize("scheme", ["ddim", "euler"])
def test_the_finest_level_is_the_plain_sampler(scheme: str) -> None:
    axes, _ = small_axes()
    score = gaussian(axes)
    levels = _sampling.on_one_path(
        score, VP_, [32, 64], scheme=scheme, t_end=T_END, n=50, d=6, seed=3
    )
    *_, plain = _sampling.side_by_side(
        score, VP_, scheme=scheme, n_times=64, refine=1, t_end=T_END, n=50, d=6, seed=3
    )
    np.testing.assert_allclose(levels[64], plain.sde, rtol=1e-4, atol=1e-5)
    both = np.stack([(v - v.mean(axis=0)).ravel() for v in levels.values()])
    assert np.corrcoef(both)[0, 1] > 0.6, "one path drives both"


@pytest.mark.parametrize("scheme", ["ddim", "euler"])
def test_samplers_have_the_moments_of_their_recursion(scheme: str) -> None:
    """The closed-form control: means and variances of both flows at coarse steps."""
    axes, _ = small_axes()
    score = gaussian(axes)
    n, K = 20000, 12
    *_, last = _sampling.side_by_side(
        score, VP_, scheme=scheme, n_times=4, refine=K // 4, t_end=T_END, n=n, d=6, seed=0
    )
    for flow, x in (("sde", last.sde), ("ode", last.ode)):
        m, v = score.sampled(steps(VP_, grid(K, T_END), flow, scheme))
        np.testing.assert_allclose(x.mean(axis=0), m, atol=5 * np.sqrt(v.max() / n))
        np.testing.assert_allclose(x.var(axis=0), v, rtol=6 * np.sqrt(2 / n))


def test_the_gaussian_control_reaches_its_law() -> None:
    """EOT-7: with an exact score and small steps both flows end in the true law."""
    axes, _ = small_axes()
    score = gaussian(axes)
    for flow in ("sde", "ode"):
        m, v = score.sampled(steps(VP_, grid(4000, T_END), flow, "ddim"))
        mean, variance = score.law(T_END)
        np.testing.assert_allclose(m, mean, atol=2e-3)
        np.testing.assert_allclose(v, variance, rtol=0.03)


# ---- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [0.001, 0.05, 0.5, 1.0])
def test_exact_scores(t: float) -> None:
    """Against the diagnostics' Gaussian score, and a sum over images one by one."""
    axes, images = small_axes(n=40)
    a, s = float(VP_.alpha(t)), float(VP_.sigma(t))
    x = np.random.default_rng(2).normal(size=(7, 6)).astype(np.float32)
    score = gaussian(axes)
    wanted = known.gaussian_score(x, a * axes.mean, a * a * np.diag(axes.variance), sigma=s)
    ours = _scores.score_of(score.denoise(x, t), x, t, VP_)
    np.testing.assert_allclose(ours, wanted, rtol=1e-3, atol=1e-3 / s)
    points = axes.enter(images)
    found = _scores.EmpiricalScore(points, VP_).denoise(x, t)
    naive = reference.empirical_denoiser(x.astype(float), points.astype(float), a, s)
    np.testing.assert_allclose(found, naive, rtol=2e-3, atol=2e-3)


def test_axes_are_a_rotation() -> None:
    axes, images = small_axes()
    z = axes.enter(images)
    np.testing.assert_allclose(axes.pixels(z), (images + 1) / 2, atol=1e-5)
    np.testing.assert_allclose(np.cov(z.T, bias=True), np.diag(axes.variance), atol=1e-5)
    assert np.all(np.diff(axes.variance) <= 0)
    seen = _measures.observe(z, axes)
    np.testing.assert_allclose(seen["brightness"], ((images + 1) / 2).mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(seen["square"], (images**2).mean(axis=1), atol=1e-5)


def test_pooled_law_against_samples() -> None:
    """The true law of a pixel at time t: images noised, a Gaussian noised."""
    axes, images = small_axes()
    rng = np.random.default_rng(5)
    z = axes.mean + np.sqrt(axes.variance) * rng.normal(size=(60000, 6))
    laws = {
        "images": (_scores.PooledLaw.of_images(images), np.tile(images, (150, 1))),
        "gaussian": (_scores.PooledLaw.of_gaussian(axes), z @ axes.axes.T.astype(float)),
    }
    for t in (0.02, 0.4):
        a, s = float(VP_.alpha(t)), float(VP_.sigma(t))
        for law, x0 in laws.values():
            masses = law.masses(VP_, t, 16)
            assert masses.sum() == pytest.approx(1, abs=1e-12) and masses.min() >= 0
            noisy = (a * x0 + s * rng.normal(size=x0.shape) + 1) / 2
            seen = np.bincount(reference.pooled_cells(noisy, 16), minlength=18) / noisy.size
            np.testing.assert_allclose(masses, seen, atol=4e-3)


# ---- pooled parity -------------------------------------------------------------------------------


def test_pooled_parity_against_scipy_and_numpy() -> None:
    """EOT-16: KS is SciPy's of the bins' numbers, TV half the L1 distance of the counts."""
    rng = np.random.default_rng(0)
    x = rng.normal(0.4, 0.4, size=(60, 5, 4))
    y = rng.normal(0.5, 0.3, size=(60, 5, 4)).astype(np.float32).astype(float)
    for bins in (2, 7, 256):
        found = duality.pooled_parity(x, y, bins=bins)
        p, q = reference.pooled_cells(x, bins), reference.pooled_cells(y, bins)
        assert found.ks == pytest.approx(scipy.stats.ks_2samp(p, q).statistic, abs=1e-7)
        counts = [np.bincount(c, minlength=bins + 2) / c.size for c in (p, q)]
        assert found.tv == pytest.approx(0.5 * np.abs(counts[0] - counts[1]).sum(), abs=1e-7)
        np.testing.assert_allclose(found.masses, counts, atol=1e-7)
    # with many bins it approaches the KS distance of the values themselves from below
    fine = duality.pooled_parity(x, y, bins=20000, value_range=(-2, 3), n_resamples=10)
    whole = scipy.stats.ks_2samp(x.ravel(), y.ravel()).statistic
    assert whole - 2e-3 < fine.ks <= whole + 1e-6
    assert duality.pooled_parity(x, x).tv == 0 and duality.pooled_parity(x, x).agree
    low, high = found.ks_interval
    assert 0 <= low < high <= 1
    assert "the histograms differ" in str(duality.pooled_parity(x, y + 1))


@pytest.mark.parametrize("paired", [True, False])
def test_chance_is_that_of_images_not_of_pixels(paired: bool) -> None:
    """Pixels of an image share its brightness: the critical value is exceeded about as often as it says."""
    rng = np.random.default_rng(1)
    above, means, chance = 0, [], []
    for k in range(60):
        light = rng.normal(0.5, 0.15, size=(2, 200, 1))
        if paired:  # pairs that start from the same noise
            light[1] = 0.5 + 0.8 * (light[0] - 0.5) + math.sqrt(1 - 0.64) * (light[1] - 0.5)
        x, y = light + 0.05 * rng.normal(size=(2, 200, 30))
        found = duality.pooled_parity(x, y, bins=32, paired=paired, rng=k)
        above += found.ks > found.ks_critical
        means.append(found.ks)
        chance.append(found.ks_chance)
    assert above <= 9  # 3 expected
    assert np.mean(means) == pytest.approx(np.mean(chance), rel=0.2)
    naive = scipy.stats.kstwobign.isf(0.05) * math.sqrt(2 / (200 * 30))
    assert np.mean(means) > naive, "counting pixels as independent would call this a difference"


def test_pooled_parity_refuses() -> None:
    x = np.zeros((4, 3))
    with pytest.raises(ValueError, match="second: wanted 3 values per sample like first, got 2"):
        duality.pooled_parity(x, np.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"second: wanted 4 samples, .* pass paired=False"):
        duality.pooled_parity(x, np.zeros((5, 3)))
    with pytest.raises(ValueError, match="first: wanted finite numbers"):
        duality.pooled_parity(x + np.nan, x)
    with pytest.raises(ValueError, match=r"first: wanted at least two samples \(n, ...\)"):
        duality.pooled_parity(np.zeros(3), x)
    with pytest.raises(ValueError, match="value_range: wanted low < high"):
        duality.pooled_parity(x, x, value_range=(1.0, 0.0))


# ---- weak error ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "observable"), [("ddim", "square"), ("euler", "square"), ("euler", "brightness")]
)
def test_the_order_is_one_without_sampling_error(scheme: str, observable: str) -> None:
    """EOT-9: weak order 1 of both schemes on the Gaussian, far enough out; the slope finds it."""
    axes, _ = small_axes()
    K = [1024, 2048, 4096]
    level = {
        k: _measures.expectations(gaussian(axes), axes, VP_, scheme, k, T_END)[observable]
        for k in (*K, 8192)
    }
    errors = [abs(level[k] - level[2 * k]) for k in K]
    assert duality.weak_error_slope(K, errors).slope == pytest.approx(-1, abs=0.12)


def test_the_ancestral_step_has_the_mean_of_a_gaussian_exactly() -> None:
    """Whatever the number of steps: there is no weak error of the mean to see."""
    axes, _ = small_axes()
    found = [
        _measures.expectations(gaussian(axes), axes, VP_, "ddim", K, T_END)["brightness"]
        for K in (2, 16, 300)
    ]
    assert np.ptp(found) < 1e-12


def weak_settings(**more: Any) -> dict[str, Any]:
    return {"weak_steps": [8, 16, 32], "weak_images": 4000, "weak_blocks": 40, "t_end": T_END,
            "seed": 0, "bca_resamples": 300} | more  # fmt: skip


@pytest.mark.parametrize("scheme", ["ddim", "euler"])
def test_the_measured_slope_is_that_of_the_recursion(scheme: str) -> None:
    """EOT-16: sampled differences against the exact ones, and the interval holds the exact slope."""
    axes, _ = small_axes()
    rows, slopes = _measures.weak_error(gaussian(axes), axes, VP_, scheme, weak_settings())
    for row in rows:
        assert abs(row["error"] - row["exact"]) < 5 * row["standard_error"] + 1e-6
    square = slopes["square"]
    assert square["low"] - 0.1 <= square["exact_slope"] <= square["high"] + 0.1
    assert square["method"].startswith("BCa")


# ---- rotational energy ---------------------------------------------------------------------------


class Turning:
    """A field whose flow turns in the plane of the first two axes, and does nothing else."""

    def __init__(self, speed: float) -> None:
        self.speed = speed

    def denoise(self, x: Any, t: float) -> Any:
        beta, a, s = (float(f(t)) for f in (VP_.beta, VP_.alpha, VP_.sigma))
        u = np.zeros_like(x)
        u[:, 0], u[:, 1] = self.speed * x[:, 1], -self.speed * x[:, 0]
        score = -2 * u / beta - x  # of u = -beta (x + score) / 2
        return ((score * s * s + x) / a).astype(np.float32)


def rotation_settings(**more: Any) -> dict[str, Any]:
    return {"components_rotation": 2, "degree": 4, "seed": 0} | more


def test_rotational_energy_of_known_fields() -> None:
    """EOT-11, EOT-16: a turning field keeps all its energy, an exact Gaussian score has none."""
    x0 = np.random.default_rng(0).normal(size=(4000, 5)).astype(np.float32)
    t, speed = 0.3, 0.7
    row = _measures.rotation_at(Turning(speed), x0, t, VP_, rotation_settings())
    wanted = speed**2 * 2 / float(VP_.beta(t))  # unit variance at every time
    assert row["rotation"] == pytest.approx(wanted, rel=0.06)
    assert row["scatter"] < 1e-6 * wanted
    flat = _scores.GaussianScore(np.zeros(5), np.array([2.0, 1.0, 0.5, 0.2, 0.1]), VP_)
    x0 = x0 * np.sqrt(flat.variance).astype(np.float32)
    row = _measures.rotation_at(flat, x0, t, VP_, rotation_settings())
    assert row["energy"] < 1e-8 * row["kinetic"] + 1e-10


def test_energy_is_scatter_and_rotation() -> None:
    """Gradients of polynomials are polynomial fields of one degree less: the parts add up."""
    axes, images = small_axes(d=6, n=300)
    score = _scores.EmpiricalScore(axes.enter(images[:20]), VP_)
    x0 = axes.enter(images[np.arange(1500) % 20])
    row = _measures.rotation_at(score, x0, 0.2, VP_, rotation_settings())
    assert row["scatter"] > 0.1 * row["energy"] > 0
    assert row["energy"] == pytest.approx(row["scatter"] + row["rotation"], rel=1e-6)
    rows = [row | {"asymmetry": 0.1, "t": t} for t in (0.1, 0.2, 0.3)]
    rows[1]["energy"] *= 2
    found = _measures.over_times(rows, {"seed": 0, "bca_resamples": 200})
    assert found["energy"]["mean"] == pytest.approx(np.mean([r["energy"] for r in rows]))
    assert found["energy"]["low"] <= found["energy"]["mean"] <= found["energy"]["high"]
    np.testing.assert_allclose(_measures.middle_times(2, 0.2), [0.4, 0.8])


# ---- the network ---------------------------------------------------------------------------------


def recipe(**more: Any) -> _network.Recipe:
    plain: dict[str, Any] = {
        "width": 24, "blocks": 2, "batch": 32, "steps": 60, "learning_rate": 3e-3, "ema": 0.9,
        "t_end": T_END, "beta_min": 0.1, "beta_max": 20.0,
    }  # fmt: skip
    return _network.Recipe(**(plain | more))


def stirred(weights: Any, seed: int = 0) -> Any:
    """All weights at random: nothing is zero any more."""
    import jax

    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: np.asarray(x) + rng.normal(size=x.shape).astype(np.float32) / np.sqrt(len(x)),
        weights,
    )


def test_the_untrained_model_is_the_gaussian_score() -> None:
    axes, _ = small_axes()
    model = _network.NetworkScore(
        _network.initial_weights(0, 6, recipe()), _network.law_of(axes), VP_
    )
    x = np.random.default_rng(0).normal(size=(2 * _network.ROWS + 3, 6)).astype(np.float32)
    for t in (0.001, 0.3, 1.0):
        np.testing.assert_allclose(
            model.denoise(x, t), gaussian(axes).denoise(x, t), rtol=1e-4, atol=2e-5
        )
    assert model.asymmetry(x, 0.3, 0) < 1e-12


def test_the_network_against_numpy() -> None:
    axes, _ = small_axes()
    w = stirred(_network.initial_weights(0, 6, recipe()))
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    model = _network.NetworkScore(w, _network.law_of(axes), VP_)
    for t in (0.01, 0.4):
        a, s = float(VP_.alpha(t)), float(VP_.sigma(t))
        total = a * a * axes.variance + s * s
        y = (x - a * axes.mean) / np.sqrt(total)
        pixels = x @ axes.axes.T
        c = np.tanh(np.concatenate([pixels + a, pixels - a], axis=1) / (2 * s))
        F = reference.network(w, y, c, math.log(a * a / (s * s)), _network.WAVES)
        exact = gaussian(axes).denoise(x, t)
        wanted = exact + np.sqrt(axes.variance * s * s / total) * F
        np.testing.assert_allclose(model.denoise(x, t), wanted, rtol=1e-3, atol=1e-4)


def test_asymmetry_against_the_whole_jacobian() -> None:
    import jax

    axes, _ = small_axes()
    law = _network.law_of(axes)
    w = stirred(_network.initial_weights(0, 6, recipe()))
    x = np.random.default_rng(0).normal(size=(1, 6)).astype(np.float32)
    t = 0.3
    log_alpha = np.float32(VP_.log_alpha(t))[None]
    J = np.asarray(jax.jacfwd(lambda z: _network.denoise(w, z[None], log_alpha, law)[0])(x[0]))
    turning, stretching = (np.square(J - J.T).sum(), np.square(J + J.T).sum())
    ours = _network.NetworkScore(w, law, VP_).asymmetry(np.repeat(x, 20000, axis=0), t, 0)
    assert ours == pytest.approx(turning / (turning + stretching), rel=0.05)


def test_the_gaussian_loss() -> None:
    """Closed form against the loss itself: the untrained model on Gaussian data."""
    axes = _scores.Axes(np.eye(3, dtype=np.float32), np.zeros(3), np.array([1.0, 0.3, 0.01]))
    images = (np.random.default_rng(0).normal(size=(40000, 3)) * np.sqrt(axes.variance)).astype(
        np.float32
    )
    trainer = _network.Trainer(images, axes, recipe())
    measured = trainer.validate(trainer.start(0).average, images, 0)
    assert measured == pytest.approx(_network.gaussian_loss(axes, recipe()), rel=0.02)


def test_training_learns_and_is_the_same_in_two_calls() -> None:
    import jax

    rng = np.random.default_rng(0)
    images = np.sign(rng.normal(size=(500, 4))).astype(np.float32)  # corners: far from Gaussian
    axes = _scores.Axes.of(images)
    r = recipe(steps=400, batch=128)
    trainer = _network.Trainer(axes.enter(images), axes, r)
    first = trainer.start(0)
    whole, _ = trainer.advance(first, 0, 0, 400)
    half, _ = trainer.advance(first, 0, 0, 150)
    packed = trainer.pack(half)
    again, _ = trainer.advance(trainer.unpack(packed, first), 0, 150, 400)
    for x, y in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(x, y)
    loss = trainer.validate(whole.average, axes.enter(images), 0)
    assert loss < 0.6 * _network.gaussian_loss(axes, r)
