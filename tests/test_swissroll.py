"""AMAP- and DMAP-DDPM on the Swiss roll (DAC-13), against NumPy, laws, and the same run resumed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkcore import experiments
from qkcore.experiments.swissroll import _data, _measures, _show, _verdict

from . import reference_experiments as reference

pytest.importorskip("jax")
pytest.importorskip("optax")

from qkcore.experiments.swissroll import _denoiser

TINY = ["d_model=8", "n_data=60", "n_samples=20", "timesteps=20", "batch=16", "chunk=10",
        "amap_steps=20", "dmap_steps=40", "evaluate_at=[20, 40]"]  # fmt: skip


# ---- data, schedule, measures --------------------------------------------------------------------


def test_the_roll_is_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    theirs = datasets.make_swiss_roll(50, noise=0.1, random_state=3)[0]
    np.testing.assert_allclose(_data.swiss_roll(50, 0.1, 3), theirs, rtol=0, atol=1e-13)


def test_standardized() -> None:
    X = _data.swiss_roll(200, 0.1, 0)
    found = _data.standardize(X, 1e-6)
    np.testing.assert_allclose(found.points.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(found.points.var(axis=0), X.var(0) / (X.var(0) + 1e-6), rtol=1e-12)
    np.testing.assert_allclose(found.apply(X), found.points)


def test_erratum_3_the_schedule() -> None:
    """As printed alpha_bar would exceed 1; with the factor 1/2 it falls at every step."""
    T, s = 200, 0.008
    curve = np.cos((np.arange(T + 1) / T + s) / (1 + s) * np.pi) ** 2
    ratio = 1 - np.minimum(1 - curve[1:] / curve[:-1], 0.02)
    assert np.cumprod(ratio).max() > 1, "as printed, without a lower bound"
    printed = _data.cosine_schedule(T, s, 0.02, "printed")
    assert printed.turned == 101
    assert np.all(printed.beta[-printed.turned :] == 0)
    right = _data.cosine_schedule(T, s, 0.02, "corrected")
    assert right.turned == 0
    half = np.cos((np.arange(T + 1) / T + s) / (1 + s) * np.pi / 2) ** 2
    free = right.beta < 0.02
    np.testing.assert_allclose(right.alpha_bar[free], (half[1:] / half[0])[free], rtol=1e-12)
    for schedule in (printed, right):
        assert schedule.beta.max() == 0.02
        assert np.all(np.diff(schedule.alpha_bar) <= 0)
        assert np.all(schedule.posterior >= 0) and schedule.posterior[0] == 0
    assert printed.alpha_bar[-1] > 0.15 > 0.08 > right.alpha_bar[-1]
    with pytest.raises(ValueError, match="variant: wanted 'corrected' or 'printed', got 'x'"):
        _data.cosine_schedule(T, s, 0.02, "x")


def test_measures_by_brute_force() -> None:
    """Erratum 4: both measures."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, 3)), rng.normal(size=(30, 3)) + 0.5
    sigma = 0.8

    def squares(A: Any, B: Any) -> Any:
        return ((A[:, None] - B[None]) ** 2).sum(-1)

    def kernel(A: Any, B: Any) -> Any:
        return np.exp(-squares(A, B) / (2 * sigma**2))

    xx, yy, xy = kernel(X, X), kernel(Y, Y), kernel(X, Y)
    wanted = (xx.sum() - np.trace(xx)) / (40 * 39) + (yy.sum() - np.trace(yy)) / (30 * 29)
    wanted -= 2 * xy.mean()
    assert _measures.mmd2(X, Y, sigma) == pytest.approx(wanted, rel=1e-12)
    D = squares(X, Y)
    assert _measures.chamfer(X, Y) == pytest.approx((D.min(1).mean(), D.min(0).mean()))


# ---- the network ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "symmetrized"), [("amap", True), ("dmap", True), ("dmap", False)])
def test_the_network_against_numpy(kind: str, symmetrized: bool) -> None:
    """D.2's layers, one pair of tokens at a time; erratum 2's two readings."""
    import jax

    a = _denoiser.Architecture(kind, 16, 4, 2, symmetrized)
    w = _denoiser.initial_weights(1, a)
    rng = np.random.default_rng(2)
    x, heat = rng.normal(size=(5, 3)), rng.uniform(0.3, 1, 5)
    single = [np.asarray(v, np.float32) for v in (x, heat)]
    ours = np.asarray(jax.jit(_denoiser.predict, static_argnums=3)(w, *single, a))
    double = jax.tree.map(lambda v: np.asarray(v, np.float64), w)
    wanted = reference.denoiser(double, x, heat, kind, 4, symmetrized)
    np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


def test_erratum_2_the_two_readings_differ() -> None:
    import jax

    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 3)).astype(np.float32)
    heat = np.ones(4, np.float32)
    predict = jax.jit(_denoiser.predict, static_argnums=3)
    both = [
        predict(_denoiser.initial_weights(0, a), x, heat, a)
        for a in (_denoiser.Architecture("dmap", 16, 4, 2, s) for s in (True, False))
    ]
    assert np.abs(np.asarray(both[0]) - np.asarray(both[1])).max() > 1e-3


def test_the_sampler_draws_the_law_whose_noise_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """For data N(0, I) the best prediction is sqrt(1 - alpha_bar) x: samples must be nearly
    that, as the variances of the steps add up."""
    T = 50
    schedule = _data.cosine_schedule(T, 0.008, 0.2, "corrected")
    heat = _data.temperatures(T, 0.3, 1.0)

    def exact(w: Any, x: Any, temperature: Any, a: Any) -> Any:
        import jax.numpy as jnp

        t = jnp.round((temperature - 0.3) / 0.7 * (T - 1)).astype(int)
        return jnp.sqrt(1 - jnp.asarray(schedule.alpha_bar, jnp.float32))[t][:, None] * x

    monkeypatch.setattr(_denoiser, "predict", exact)
    # A new size, for which nothing was compiled before.
    a = _denoiser.Architecture("amap", 24, 4, 1)
    trainer = _denoiser.Trainer(a, schedule, heat, np.zeros((2, 3)), _denoiser.Recipe(4, 1e-3, 0.9))
    X = trainer.sample(trainer.start(0), 0, 4000)
    # Its variance, step by step: sqrt(alpha) x plus the posterior's spread. Not quite 1 for few steps.
    variance = 1.0
    for beta, posterior in zip(schedule.beta[::-1], schedule.posterior[::-1], strict=True):
        variance = (1 - beta) * variance + posterior
    assert 0.85 < variance < 0.95
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=0.06)
    np.testing.assert_allclose(np.cov(X.T), variance * np.eye(3), atol=0.06)


def test_adam_and_the_average_against_numpy() -> None:
    """One step from the same gradient: Adam's first step is the sign of the gradient, times the rate."""
    import jax

    a = _denoiser.Architecture("dmap", 8, 4, 1)
    schedule = _data.cosine_schedule(20, 0.008, 0.02, "corrected")
    data = _data.standardize(_data.swiss_roll(50, 0.1, 0), 1e-6).points
    recipe = _denoiser.Recipe(32, 1e-2, 0.75)
    trainer = _denoiser.Trainer(a, schedule, _data.temperatures(20, 0.3, 1), data, recipe)
    before = trainer.start(0)
    after, loss = trainer.advance(before, 0, 0, 1)
    assert np.isfinite(loss)
    old, new, mean = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)])
        for t in (before.weights, after.weights, after.average)
    )
    # Weights with gradients of the size of rounding errors move less.
    assert np.mean(np.abs(np.abs(new - old) - 1e-2) < 5e-4) > 0.9
    np.testing.assert_allclose(mean, 0.75 * old + 0.25 * new, rtol=1e-5, atol=1e-7)
    # The same steps in two calls give the same result.
    whole, _ = trainer.advance(before, 0, 0, 6)
    half, _ = trainer.advance(before, 0, 0, 2)
    half, _ = trainer.advance(half, 0, 2, 6)
    for x, y in zip(jax.tree.leaves(whole), jax.tree.leaves(half), strict=True):
        np.testing.assert_array_equal(x, y)


# ---- the experiment ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> experiments.Outcome:
    return experiments.run("swissroll", tmp_path_factory.mktemp("roll"), overrides=TINY)


def test_files(done: experiments.Outcome, tmp_path: Path) -> None:
    names = {p.stem for p in done.folder.glob("*.csv")}
    samples = {f"samples_{m}_{v}" for m in ("amap", "dmap") for v in ("corrected", "printed")}
    assert names == {"data", "evaluations", "schedule"} | samples
    assert done.metrics["complete"] is True
    assert set(done.metrics["variants"]) == {"corrected", "printed"}
    for found in done.metrics["variants"].values():
        assert list(found["amap"]) == ["20"] and list(found["dmap"]) == ["20", "40"]
        assert found["dmap"]["40"]["seeds"] == 3
        assert len(found["comparison"]) == 3 * 2
    claims = experiments.get("swissroll").claims(done.metrics)
    assert {c.verdict for c in claims} == {"not tested"}, "20 steps are no test of the claim"
    assert all(t.rows for t in experiments.get("swissroll").tables(done.folder))
    for path in [*done.folder.glob("*.csv"), done.folder / "metrics.json"]:
        shutil.copy(path, tmp_path)
    assert [p.name for p in experiments.get("swissroll").plot(tmp_path)] == [
        "curves.png",
        "samples.png",
    ]


@pytest.mark.usefixtures("no_figures")
def test_an_interrupted_training_resumes_bit_for_bit(
    done: experiments.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EOT-17: interrupted between two chunks, then extended by nothing."""
    calls = 0
    advance = _denoiser.Trainer.advance

    def stop(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return advance(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(_denoiser.Trainer, "advance", stop)
        with pytest.raises(KeyboardInterrupt):
            experiments.run("swissroll", tmp_path, overrides=TINY)
    again = experiments.run("swissroll", tmp_path, overrides=TINY)
    assert again.resumed
    assert again.metrics == done.metrics
    # More seeds or steps use what is there; an evaluation in between is the same as in one go.
    more = [*TINY[:-1], "evaluate_at=[10, 20, 40]"]
    longer = experiments.run("swissroll", tmp_path, overrides=more)
    assert longer.resumed
    old = done.metrics["variants"]["corrected"]["dmap"]["40"]
    assert longer.metrics["variants"]["corrected"]["dmap"]["40"] == old
    fresh = experiments.run("swissroll", tmp_path / "fresh", overrides=more)
    assert fresh.metrics == longer.metrics


def test_training_learns() -> None:
    """The loss goes well below that of predicting nothing (3)."""
    a = _denoiser.Architecture("amap", 16, 4, 2)
    schedule = _data.cosine_schedule(50, 0.008, 0.05, "corrected")
    data = _data.standardize(_data.swiss_roll(300, 0.1, 0), 1e-6).points
    trainer = _denoiser.Trainer(
        a, schedule, _data.temperatures(50, 0.3, 1), data, _denoiser.Recipe(64, 3e-3, 0.99)
    )
    state, first = trainer.advance(trainer.start(0), 0, 0, 300)
    _, last = trainer.advance(state, 0, 300, 400)
    assert last < first
    assert last < 2.0


# ---- the verdict ---------------------------------------------------------------------------------


def rows(amap: float, dmap: dict[int, float], seeds: int = 3) -> list[dict[str, Any]]:
    made = []
    for seed in range(seeds):
        for model, curve in (("amap", {30000: amap}), ("dmap", dmap)):
            made += [
                {"model": model, "variant": "corrected", "seed": seed, "step": s, "loss": 1.0,
                 "mmd2": v, "chamfer": v}
                for s, v in curve.items()
            ]  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("curve", "seeds", "verdict"),
    [
        ({30000: 2.0, 60000: 1.5, 180000: 0.9}, 3, "holds"),
        ({30000: 2.0, 180000: 1.5}, 3, "holds"),
        ({30000: 0.8, 180000: 0.5}, 3, "does not hold"),
        ({30000: 2.0, 60000: 0.9, 180000: 0.9}, 3, "holds in part"),
        ({30000: 0.8, 180000: 0.5}, 2, "not tested"),
    ],
)
def test_verdicts(curve: dict[int, float], seeds: int, verdict: str) -> None:
    config = {"d_model": 32, "amap_steps": 30000, "dmap_steps": 180000, "variants": ["corrected"]}
    floor = {"mmd2": 0.0, "chamfer": 0.1}
    metrics = _verdict.summarize(rows(1.0, curve, seeds), floor, config)
    assert _show.claims(metrics)[0].verdict == verdict
