"""Iterated bridges: the errors for bad input (ISB-1 to ISB-4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qkcore import isb

GAUSS = isb.Mixture.gaussian(0.0, 1.0)


ONE = np.zeros((3, 1)) + np.arange(3.0)[:, None]

BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: isb.barycentric(np.zeros(3), 1.0), ValueError, r"X: wanted points of shape"),
    (
        lambda: isb.barycentric(np.zeros((0, 3, 1)), 1.0),
        ValueError,
        r"X: wanted no axis of length 0",
    ),
    (
        lambda: isb.barycentric(np.zeros((2, 3, 1)), 1.0, np.ones((3, 3))),
        ValueError,
        r"weights: wanted batch axes that broadcast to \(2,\)",
    ),
    (
        lambda: isb.barycentric(np.zeros((2, 3, 1)), 1.0, np.array([[1.0, 1, 1], [0, 0, 0]])),
        ValueError,
        r"weights: wanted some mass in every cloud",
    ),
    (
        lambda: isb.heat_flow(np.zeros((2, 3, 1)), 1.0, 1, progress=True),
        ValueError,
        r"X: wanted one cloud for a progress bar",
    ),
    (
        lambda: isb.kl_flow(
            np.zeros((2, 3, 1)), 1.0, 1, potential=lambda x: x[:, 0], method="surrogate"
        ),
        ValueError,
        r'X: wanted one cloud for method="surrogate", got a batch \(2,\)',
    ),
    (lambda: isb.silverman(np.zeros((2, 3, 1))), ValueError, r"X: wanted one problem"),
    (
        lambda: isb.barycentric(np.zeros((3, 1)), 1.0)[0],
        TypeError,
        r"index: wanted a batch of maps",
    ),
    (lambda: isb.barycentric(np.array([[np.nan]]), 1.0), ValueError, r"X: wanted finite"),
    (lambda: isb.barycentric(ONE, 0.0), ValueError, r"epsilon: wanted a finite number > 0"),
    (lambda: isb.barycentric(ONE, "1"), TypeError, r"epsilon: wanted"),  # type: ignore[arg-type]
    (lambda: isb.barycentric(1e200 * ONE, 1.0), OverflowError, r"epsilon: .* overflows float64"),
    (
        lambda: isb.barycentric(ONE.astype(np.float32) * np.float32(1e10), 1e-25),
        OverflowError,
        r"epsilon: .* or use float64",
    ),
    (
        lambda: isb.barycentric(ONE, 1.0, np.ones(4)),
        ValueError,
        r"weights: wanted .*one weight per",
    ),
    (lambda: isb.barycentric(ONE, 1.0, -np.ones(3)), ValueError, r"weights: wanted weights >= 0"),
    (lambda: isb.barycentric(ONE, 1.0, np.zeros(3)), ValueError, r"weights: wanted some mass"),
    (
        lambda: isb.barycentric(ONE, 1.0, np.ones(3, np.float32)),
        TypeError,
        r"weights: wanted float64",
    ),
    (lambda: isb.barycentric(ONE, 1.0, max_iter=0), ValueError, r"max_iter: wanted at least 1"),
    (lambda: isb.barycentric(ONE, 1.0, tol=-1.0), ValueError, r"tol: wanted"),
    (lambda: isb.barycentric(ONE, 1.0, max_memory=-1), ValueError, r"max_memory: wanted a number"),
    (
        lambda: isb.barycentric(ONE, 1.0, init=np.ones(2)),
        ValueError,
        r"init: wanted .*one potential",
    ),
    (
        lambda: isb.barycentric(ONE, 1.0, init=np.full(3, np.nan)),
        ValueError,
        r"init: wanted finite",
    ),
    (lambda: isb.barycentric(ONE, 1.0)(np.zeros((1, 2))), ValueError, r"Y: wanted points in 1 dim"),
    (lambda: isb.step(ONE, 1.0, theta=0.0), ValueError, r"theta: wanted a number other than 0"),
    (
        lambda: isb.step(ONE, 1.0, surrogate=np.ones(2)),
        ValueError,
        r"surrogate: wanted .*one weight",
    ),
    (
        lambda: isb.step(ONE, 1.0, surrogate=isb.barycentric(ONE, 2.0)),
        ValueError,
        r"surrogate: wanted a map for epsilon 1, got one for 2",
    ),
    (lambda: isb.euler_step(ONE, 1.0, np.ones((2, 1))), ValueError, r"velocity: wanted one vector"),
    (lambda: isb.heat_flow(ONE, 1.0), ValueError, r"n_steps: wanted n_steps or T, got neither"),
    (lambda: isb.heat_flow(ONE, 1.0, 2, T=1.0), ValueError, r"n_steps: wanted .* got both"),
    (lambda: isb.heat_flow(ONE, 1.0, 0), ValueError, r"n_steps: wanted at least 1, got 0"),
    (lambda: isb.heat_flow(ONE, 1.0, 2.0), TypeError, r"n_steps: wanted an integer"),  # type: ignore[arg-type]
    (lambda: isb.heat_flow(ONE, 1.0, T=-1.0), ValueError, r"T: wanted a finite number > 0"),
    (lambda: isb.heat_flow(ONE, 1.0, 1, save_every=-1), ValueError, r"save_every: wanted 0"),
    (lambda: isb.kl_flow(ONE, 1.0, 1), ValueError, r"score: wanted the target's score or its"),
    (lambda: isb.kl_flow(ONE, 1.0, 1, score=ONE), TypeError, r"score: wanted a function"),  # type: ignore[arg-type]
    (
        lambda: isb.kl_flow(ONE, 1.0, 1, score=lambda x: x, method="best"),
        ValueError,
        r"method: wanted 'split' or 'surrogate'",
    ),
    (
        lambda: isb.kl_flow(ONE, 1.0, 1, score=lambda x: x, method="surrogate"),
        ValueError,
        r"potential: wanted the target's potential",
    ),
    (
        lambda: isb.kl_flow(ONE, 1.0, 1, score=lambda x: x[:, 0]),
        ValueError,
        r"score: wanted one vector per particle",
    ),
    (
        lambda: isb.kl_flow(ONE, 1.0, 1, potential=lambda x: x),
        ValueError,
        r"potential: wanted one value per particle",
    ),
    (
        lambda: isb.ornstein_uhlenbeck(
            ONE, 1.0, 1, method="surrogate", support=ONE, log_density=np.zeros(3)
        ),
        ValueError,
        r"log_density: wanted a function of points",
    ),
    (
        lambda: isb.ornstein_uhlenbeck(ONE, 1.0, 1, method="surrogate", support=np.zeros((2, 2))),
        ValueError,
        r"support: wanted points \(M, 1\)",
    ),
    (lambda: isb.Mixture([1.0], [0.0], [0.0]), ValueError, r"variances: wanted variances > 0"),
    (lambda: isb.Mixture([1.0], [0.0, 1.0], [1.0]), ValueError, r"weights: wanted weights, means"),
    (lambda: isb.Mixture([-1.0], [0.0], [1.0]), ValueError, r"weights: wanted weights >= 0"),
    (lambda: GAUSS.quantile(1.5), ValueError, r"u: wanted probabilities"),
    (lambda: GAUSS.w2(np.zeros((2, 2))), ValueError, r"X: wanted points on the line"),
    (lambda: GAUSS.grid(1), ValueError, r"n: wanted 2 to"),
    (lambda: isb.silverman(np.ones((4, 1))), ValueError, r"X: wanted points that differ"),
    (lambda: isb.surrogate_weights(np.zeros((2, 2)), 1.0), ValueError, r"psi: wanted .*one value"),
    (lambda: isb.fit_rate([0.1], [1.0]), ValueError, r"errors: wanted two or more"),
    (lambda: isb.fit_rate([0.1, 0.2], [0.0, 1.0]), ValueError, r"errors: wanted positive"),
    (
        lambda: isb.gaussian_variances(4.0, 0.1, 2, target=1.0, theta=-1.0),
        ValueError,
        r"theta: wanted the sign of",
    ),
    (lambda: isb.one_step_rate(GAUSS, (0.1, 0.2), against="x"), ValueError, r"against: wanted"),
    (
        lambda: isb.gaussian_w2([0.0], [[1.0]], [0.0, 1.0], [[1.0]]),
        ValueError,
        r"mean_x: wanted means \(d,\) and covariances",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), BAD, ids=range(len(BAD)))
def test_isb_bad_input(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
