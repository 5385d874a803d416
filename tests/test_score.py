"""Score estimation (EOT-14, M.2) on laws with known scores; skipped without JAX and optax."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from qkcore.diagnostics import score

from .reference_diagnostics import Array

needs_jax = pytest.mark.skipif(not score.available(), reason="JAX and optax are not installed")

QUICK: dict[str, Any] = {
    "width": 32,
    "epochs": 40,
    "batch": 128,
    "learning_rate": 3e-3,
    "patience": 40,
    "preconditioned": True,
}


def relative_error(fit: score.ScoreFit, x: Array, truth: Array, sigma: float) -> float:
    return float(np.sqrt(((fit(x, sigma=sigma) - truth) ** 2).sum() / (truth**2).sum()))


@needs_jax
@pytest.mark.slow
def test_gaussian() -> None:
    """EOT-14: an anisotropic Gaussian; the score of the smoothed law is linear and known."""
    rng = np.random.default_rng(0)
    m, C = np.array([0.5, -1.0]), np.array([[1.0, 0.6], [0.6, 0.8]])
    X = rng.multivariate_normal(m, C, size=4000)
    fit = score.fit(X, sigmas=(0.2, 0.5), **QUICK)
    assert fit.validation_loss[fit.best_epoch] < fit.validation_loss[0]
    for sigma in fit.sigmas:
        x = X[:1000] + sigma * rng.normal(size=(1000, 2))
        truth = score.gaussian_score(x, m, C, sigma=float(sigma))
        assert relative_error(fit, x, truth, float(sigma)) < 0.3
    moments = fit.moments(
        X + float(fit.sigmas[-1]) * rng.normal(size=X.shape), sigma=fit.sigmas[-1]
    )
    assert moments.stein < 0.5 and moments.rank == 2
    information = np.linalg.eigvalsh(np.linalg.inv(C + fit.sigmas[-1] ** 2 * np.eye(2)))
    np.testing.assert_allclose(moments.eigenvalues, information, rtol=0.4)
    assert "2 noise levels" in str(fit)


@needs_jax
@pytest.mark.slow
def test_mixture() -> None:
    rng = np.random.default_rng(1)
    w, means = [0.4, 0.6], np.array([[-1.5], [1.0]])
    covs = np.array([[[0.2]], [[0.4]]])
    side = rng.choice(2, size=4000, p=w)
    X = means[side] + np.sqrt(covs[side, 0]) * rng.normal(size=(4000, 1))
    fit = score.fit(X, sigmas=(0.2, 0.5), **QUICK)
    sigma = float(fit.sigmas[-1])
    x = X[:1000] + sigma * rng.normal(size=(1000, 1))
    truth = score.mixture_score(x, w, means, covs, sigma=sigma)
    assert relative_error(fit, x, truth, sigma) < 0.35


@needs_jax
@pytest.mark.slow
def test_printed_form_is_repeatable() -> None:
    X = np.random.default_rng(2).normal(size=(300, 2))
    options: dict[str, Any] = {
        "width": 16,
        "epochs": 2,
        "batch": 64,
        "sigmas": (0.2, 0.4),
        "depth": 3,
    }
    a, b = (score.fit(X, np.linspace(0, 1, 300), rng=3, **options) for _ in range(2))
    np.testing.assert_array_equal(a(X, 0.5), b(X, 0.5))
    assert a(X, 0.0).shape == (300, 2) and not np.array_equal(a(X, 0.0), a(X, 1.0))
    assert np.isfinite(a(X)).all() and not a.preconditioned
    with pytest.raises(ValueError, match="2 dimensions as the samples, got 3"):
        a(np.zeros((1, 3)))


@needs_jax
@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: score.fit(np.ones((20, 2))), "h:.*differ"),
        (lambda: score.fit(np.full((20, 2), np.nan)), "h.*NaN"),
        (lambda: score.fit(np.zeros((3, 2))), "h:.*at least 10"),
        (lambda: score.fit(np.eye(20), sigmas=(0.0,)), "sigmas.*> 0"),
        (lambda: score.fit(np.eye(20), validation=1.0), "validation.*between 0 and 1"),
    ],
)
def test_bad_input(call: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call()


def test_without_jax_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    assert not score.available()
    with pytest.raises(ImportError, match=r"pip install 'qkcore\[train\]'"):
        score.fit(np.zeros((20, 2)))


def test_known_scores_are_gradients_of_log_densities() -> None:
    """The yardstick itself, by differences of the log density."""
    w, means = np.array([0.3, 0.7]), np.array([[-1.0, 0.0], [1.0, 0.5]])
    covs = np.array([np.eye(2) * 0.3, [[0.4, 0.1], [0.1, 0.2]]])
    sigma = 0.3

    def log_density(x: Array) -> float:
        total = 0.0
        for weight, m, C in zip(w, means, covs, strict=True):
            S = C + sigma**2 * np.eye(2)
            total += (
                weight
                * np.exp(-0.5 * (x - m) @ np.linalg.solve(S, x - m))
                / np.sqrt(np.linalg.det(S))
            )
        return float(np.log(total))

    x = np.array([0.2, -0.4])
    h = 1e-6
    wanted = [(log_density(x + h * e) - log_density(x - h * e)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(
        score.mixture_score(x[None], w, means, covs, sigma=sigma)[0], wanted, rtol=1e-8
    )
    with pytest.raises(ValueError, match="singular"):
        score.mixture_score(x[None], [1.0], means[:1], np.zeros((1, 2, 2)))


def test_noise_scaled_by_the_sample_gives_its_norm_away() -> None:
    """Erratum (EOT M.2): sigma = 0.1 |h| is an input of the network, so the network knows |h|.

    For h ~ N(0, 1) what minimises the loss at (x, sigma) is (E[h | x, |h| = 10 sigma] - x) / sigma^2: at
    x = 1.1, sigma = 0.1 that is -10, where the score of the smoothed law is -1.09.
    """
    x, sigma = 1.1, 0.1
    sides = np.array([1.0, -1.0]) * sigma / 0.1
    weights = np.exp(-((x - sides) ** 2) / (2 * sigma**2))
    learnt = float((weights @ sides / weights.sum() - x) / sigma**2)
    wanted = float(score.gaussian_score(np.array([[x]]), [0.0], [[1.0]], sigma=sigma)[0, 0])
    assert learnt == pytest.approx(-10) and wanted == pytest.approx(-1.089, abs=1e-3)


def test_the_printed_consistency_check_is_not_one() -> None:
    """Erratum (EOT M.2, step 5): div(p s) is the Laplacian of p: -0.4 at the top of N(0, 1)."""
    h = 1e-4
    p = [np.exp(-(y**2) / 2) / np.sqrt(2 * np.pi) for y in (-h, 0.0, h)]
    s = [-y for y in (-h, 0.0, h)]
    divergence = (p[2] * s[2] - p[0] * s[0]) / (2 * h)
    assert divergence == pytest.approx(-0.3989, abs=1e-3)
