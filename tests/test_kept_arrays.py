"""If a caller changes an array object later, results made from it neither change nor crash."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qkcore as qk

N = 6


def set_attribute(x: Any, name: str, value: Any) -> None:
    with warnings.catch_warnings():  # newer versions of NumPy deprecate it, but it must do no harm
        warnings.simplefilter("ignore", DeprecationWarning)
        setattr(x, name, value)


def spoil_shape(x: Any) -> None:
    set_attribute(x, "shape", (1, x.size))


def spoil_long_shape(x: Any) -> None:
    set_attribute(x, "shape", (x.size,))


def spoil_dtype(x: Any) -> None:
    set_attribute(x, "dtype", np.dtype("u1"))


def spoil_strides(x: Any) -> None:
    set_attribute(x, "strides", (0,) * x.ndim)


SPOILERS = [spoil_shape, spoil_long_shape, spoil_dtype, spoil_strides]


@pytest.fixture
def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "X": rng.normal(size=(N, 2)),
        "Y": rng.normal(size=(N, 2)),
        "W": rng.normal(size=(2, 2)),
        "Z": rng.normal(size=(N, N)),
        "L": rng.random((N, 2)),
        "R": rng.random((2, N)),
        "r": rng.normal(size=N),
        "mu": np.full(N, 1 / N),
        "keep": rng.random((N, N)) < 2,
        "padding": np.ones(N, bool),
        "offsets": np.array([0, 2, N]),
        "cov": np.eye(2),
        "mean": np.zeros(2),
    }


# Objects made from arrays, and what is computed from them later.
Case = tuple[Callable[[dict[str, Any]], Any], Callable[[Any], Any]]
CASES: dict[str, Case] = {
    "dense": (lambda a: qk.scores.dense(a["Z"]), lambda s: s.logsumexp()),
    "dot": (lambda a: qk.scores.dot(a["X"], a["Y"], W=a["W"]), lambda s: s.to_numpy()),
    "dot of one set": (lambda a: qk.scores.dot(a["X"]), lambda s: s.to_numpy()),
    "distance": (lambda a: qk.scores.distance(a["X"], a["Y"]), lambda s: s.logsumexp()),
    "forward": (lambda a: qk.scores.forward(a["X"], W=a["W"]), lambda s: s.marginals()),
    "backward": (lambda a: qk.scores.backward(a["X"], a["Y"]), lambda s: s.logsumexp(0)),
    "mask": (lambda a: qk.scores.dense(a["Z"]).masked(a["keep"]), lambda s: s.logsumexp()),
    "key padding": (
        lambda a: qk.scores.dot(a["X"]).key_padding(a["padding"]),
        lambda s: s.to_numpy(),
    ),
    "shift": (
        lambda a: qk.scores.dot(a["X"]).shift(rows=a["r"], columns=a["r"]),
        lambda s: s.to_numpy(),
    ),
    "ragged": (lambda a: qk.scores.dense(a["Z"]).ragged(a["offsets"]), lambda s: s.logsumexp()),
    "ragged softmax": (
        lambda a: qk.softmax(qk.scores.dense(a["Z"]).ragged(a["offsets"], a["offsets"])),
        lambda A: A.to_numpy(),
    ),
    "softmax": (lambda a: qk.softmax(qk.scores.dot(a["X"], a["Y"])), lambda A: A @ np.eye(N)),
    "kernel": (
        lambda a: qk.kernel(qk.scores.dot(a["X"]), "relu"),
        lambda A: A @ np.eye(N),
    ),
    "stationary": (lambda a: qk.softmax(qk.scores.dense(a["Z"])), lambda A: A.stationary()),
    "bridge": (
        lambda a: qk.bridge(qk.scores.dense(a["Z"]), a["mu"], a["mu"]),
        lambda b: (b.plan(), b.cost, b.primal, b.dual),
    ),
    "penalised bridge": (
        lambda a: qk.bridge(qk.scores.dense(a["Z"]), a["mu"], a["mu"], penalty=1.0),
        lambda b: (b.plan(), b.primal, b.dual),
    ),
    "low rank": (lambda a: qk.LowRank(a["L"], a["R"]), lambda K: (K @ np.ones(N), K.to_numpy())),
    "factored bridge": (
        lambda a: qk.bridge(qk.LowRank(a["L"], a["R"]), a["mu"], a["mu"]),
        lambda b: (b.plan(), b.project(np.eye(N)), b.cost),
    ),
    "attention field": (
        lambda a: qk.AttentionField("softmax", Q=a["W"], K=a["cov"], V=a["W"]),
        lambda field: field(np.arange(8.0).reshape(4, 2)),
    ),
    "masked field": (
        lambda a: qk.AttentionField(
            "softmax", Q=a["W"], K=a["W"], V=a["W"], mask=np.linspace(0, 1, N)
        ),
        lambda field: field(np.arange(12.0).reshape(N, 2)),
    ),
    "measure": (
        lambda a: qk.measure.Measure(a["X"], a["mu"]),
        lambda m: qk.measure.w1(m, qk.measure.Measure(np.zeros((N, 2)))),
    ),
    "mobility": (lambda a: qk.simplex.Mobility(a["mu"]), lambda J: (J @ np.arange(6.0), J.frobenius_norm)),
    "diffusion map": (
        lambda a: qk.diffusion.DiffusionMap(2).fit(a["X"]),
        lambda m: (m.transform(np.zeros((1, 2))), m.eigenvalues_),
    ),
    "magnetic map": (
        lambda a: qk.magnetic.MagneticMap(2, W=a["W"]).fit(a["X"]),
        lambda m: m.eigenvalues_,
    ),
}  # fmt: skip


def flat(found: Any) -> list[Any]:
    parts = found if isinstance(found, tuple) else (found,)
    return [np.array(p() if callable(p) else p) for p in parts]


@pytest.mark.parametrize("spoil", SPOILERS)
@pytest.mark.parametrize("name", CASES)
def test_array_objects_may_change_afterwards(
    name: str, spoil: Callable[[Any], None], arrays: dict[str, Any]
) -> None:
    build, use = CASES[name]
    want = flat(use(build({k: v.copy() for k, v in arrays.items()})))
    made = build(arrays)
    for array in arrays.values():
        spoil(array)
    for got, expected in zip(flat(use(made)), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_offsets_may_be_overwritten(arrays: dict[str, Any]) -> None:
    """Offsets steer memory access, so they are copied: values beyond the array are never followed."""
    s = qk.scores.dense(arrays["Z"]).ragged(arrays["offsets"])
    want = s.logsumexp()
    arrays["offsets"][1] = 10**6
    np.testing.assert_array_equal(s.logsumexp(), want)
    with pytest.raises(ValueError, match="read-only"):
        s.terms.offsets[0][1] = 3  # type: ignore[index]


def test_masks_may_be_overwritten(arrays: dict[str, Any]) -> None:
    """Masks and points are not copied: new values are seen, whatever bytes a mask holds."""
    s = qk.scores.dense(arrays["Z"]).masked(arrays["keep"])
    arrays["keep"].view(np.uint8)[:] = 255
    assert np.isfinite(s.logsumexp()).all()
    arrays["keep"][:] = False
    assert np.isneginf(s.logsumexp()).all()


def test_arrays_are_not_copied(arrays: dict[str, Any]) -> None:
    s = qk.scores.dense(arrays["Z"])
    arrays["Z"] += 1
    np.testing.assert_array_equal(s.to_numpy(), arrays["Z"])


def test_masked_arrays_are_refused() -> None:
    """Their mask would be ignored without a word."""
    with pytest.raises(TypeError, match=r"Z: wanted a plain array, got a masked array"):
        qk.scores.dense(np.ma.masked_invalid(np.zeros((2, 2))))
    with pytest.raises(TypeError, match=r"X: wanted a plain array, got a masked array"):
        qk.scores.distance(np.ma.masked_invalid(np.zeros((2, 2))))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "kind", ["points", "others", "distance", "matrix", "rows", "columns", "mask"]
)
def test_arrays_of_the_terms_may_be_reshaped(kind: str, dtype: str) -> None:
    """Who takes an array out of the terms holds that very array: a shape or a dtype that no longer fits is
    refused wherever the scores are used, not read beyond its end."""
    n, m = 600, 400

    def build() -> tuple[qk.Scores, Any]:
        X, Y, Z = (np.ones(shape, dtype) for shape in ((n, 2), (m, 2), (n, m)))
        keep = np.ones((n, m), bool)
        s = {
            "points": lambda: qk.scores.dot(X, Y),
            "others": lambda: qk.scores.dot(X, Y),
            "distance": lambda: qk.scores.distance(X, Y),
            "matrix": lambda: qk.scores.dense(Z),
            "rows": lambda: qk.scores.dot(X, Y).shift(rows=X[:, 0].copy()),
            "columns": lambda: qk.scores.dot(X, Y).shift(columns=Y[:, 0].copy()),
            "mask": lambda: qk.scores.dot(X, Y).masked(keep),
        }[kind]()
        t = s.terms
        of = {"points": t.dots, "others": t.dots, "distance": t.distances, "matrix": t.dense}
        held = of[kind][0][1 if kind == "others" else 0] if kind in of else None
        shifts = {"rows": t.row_bias, "columns": t.col_bias, "mask": t.masks}
        return s, shifts[kind][0] if held is None else held

    def reshape(a: Any) -> None:
        a.shape = a.shape[::-1] if a.ndim == 2 else (1, a.size, 1)

    def flatten(a: Any) -> None:
        a.shape = (a.size,)

    def retype(a: Any) -> None:
        a.dtype = np.int16

    uses: list[Any] = [
        lambda s: s.logsumexp(),
        lambda s: s.to_numpy(),
        lambda s: s.marginals(),
        lambda s: qk.softmax(s) @ np.ones((m, 2), dtype),
        lambda s: qk.bridge(s, max_iter=3, on_fail="ignore"),
    ]
    for spoil in (reshape, flatten, retype):
        for use in uses:
            s, held = build()
            before = held.shape, held.itemsize
            try:
                spoil(held)
            except (AttributeError, ValueError):  # NumPy does not allow it
                continue
            if (held.shape, held.itemsize) == before:
                continue
            with pytest.raises(ValueError, match="another shape or dtype; make the scores again"):
                use(s)
