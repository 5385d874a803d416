"""Parts shared by the two experiments on Gaussian laws: matrices, fields, coordinates of the cone, counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ._errors import ExperimentError, unknown

Array = npt.NDArray[np.float64]

STATUSES = ("converged", "not settled", "diverged", "blew up", "indefinite", "step limit")
FIELDS = ("softmax", "l2", "multi-head", "sinkhorn")


def generator(published: int, seed: int) -> np.random.RandomState:
    """The random stream of the published code if ``seed`` is 0, and another stream otherwise.

    NumPy never changes the streams of RandomState, so the matrices of the paper can be drawn again.
    """
    return np.random.RandomState(published + 1000 * seed)


@dataclass(frozen=True)
class Matrices:
    """Q, K (k, d) and V (d, d) of a panel, before the scaling that its field needs."""

    Q: Array
    K: Array
    V: Array


def _of_signature(draw: np.random.RandomState, definite: bool) -> tuple[Array, Array]:
    """Q and K, drawn until the symmetric part of A is positive definite, or indefinite."""
    while True:
        Q, K = draw.randn(2, 2), draw.randn(2, 2)
        low, high = np.linalg.eigvalsh(K.T @ Q + Q.T @ K)
        if low > 0 if definite else low * high < 0:
            return Q, K


def _rank_one(seed: int) -> Array:
    q = generator(36, seed).randn(1, 2)
    row: Array = q / np.linalg.norm(q)
    return row


def matrices(name: str, seed: int) -> Matrices:
    """The matrices of the published code's panels (``seed`` 0), or others drawn from the same laws.

    >>> m = matrices("rank one", 0)
    >>> bool(np.allclose(m.Q @ m.Q.T, 1)), bool((m.K == -m.Q).all())
    (True, True)
    """
    identity = np.eye(2)
    if name == "negative":
        draw = generator(35, seed)
        Q, G = draw.rand(2, 2), draw.randn(2, 2)
        return Matrices(Q, -Q, G @ G.T)
    if name == "rank one":
        q = _rank_one(seed)
        return Matrices(q, -q, identity)
    if name == "rank one twice":
        # If the second head is not empty, its row must be parallel to the first, or A is not of rank one.
        q = _rank_one(seed)
        twice = np.vstack([q, 0.7 * q])
        return Matrices(twice, -twice, identity)
    if name == "positive":
        return Matrices(*_of_signature(generator(33, seed), definite=True), identity)
    if name in ("two lines", "mixed"):
        Q, K = _of_signature(generator(36, seed), definite=False)
        draw = generator(32 if name == "two lines" else 35, seed)
        if name == "mixed":
            draw.randn(8, 7)
        return Matrices(Q, K, draw.randn(2, 2))
    raise unknown("matrices", name, MATRICES)


MATRICES = ("negative", "rank one", "rank one twice", "two lines", "positive", "mixed")


def field(name: str, m: Matrices) -> dict[str, Any]:
    """Arguments of :func:`qkcore.gaussian.flow` for a field of the paper's figures.

    Heads are single rows of Q, K and V, with the identity as output matrix: head h has the values
    :math:`e_h e_h^\\top V`. A head whose row is missing is empty.
    """
    d = m.V.shape[-1]
    if name == "multi-head":
        heads = m.Q.shape[-2]
        V = np.stack([np.outer(row, row) @ m.V for row in np.eye(d)[:heads]])
        return {
            "kind": "softmax",
            "Q": m.Q,
            "K": m.K,
            "V": V[0] if heads == 1 else V,
            "heads": heads,
        }
    if name == "sinkhorn":
        return {"kind": name, "Q": m.Q, "K": m.K, "V": m.V}
    if name in ("softmax", "l2"):
        return {"kind": name, "Q": m.Q / math.sqrt(d), "K": m.K, "V": m.V}
    raise unknown("field", name, FIELDS)


def to_cone(cov: Array) -> Array:
    """Coordinates (a - b, 2c, a + b) of 2 x 2 covariances (section 4.5): the cone is z >= |(x, y)|.

    >>> to_cone(np.array([[2.0, 0.5], [0.5, 1.0]]))
    array([1., 1., 3.])
    """
    a, b, c = cov[..., 0, 0], cov[..., 1, 1], cov[..., 0, 1]
    return np.stack([a - b, 2 * c, a + b], axis=-1)


def starts(count: int, half_width: float) -> Array:
    """Covariances of trace 1 on a grid in the (x, y) plane of the cone, inside it.

    >>> starts(3, 1.0).shape  # of nine only the centre is positive definite
    (1, 2, 2)
    """
    axis = np.linspace(-half_width, half_width, count)
    x, y = (g.ravel() for g in np.meshgrid(axis, axis, indexing="ij"))
    inside = x**2 + y**2 < 1
    x, y = x[inside], y[inside]
    half = y / 2
    return np.stack([np.stack([(1 + x) / 2, half], -1), np.stack([half, (1 - x) / 2], -1)], -2)


def count(values: Iterable[Any]) -> dict[str, int]:
    """How often each value occurs: statuses in the order of the list above, other values sorted.

    >>> count(["blew up", "converged", "blew up"])
    {'converged': 1, 'blew up': 2}
    """
    found = [v.item() if isinstance(v, np.generic) else v for v in values]
    order = {name: k for k, name in enumerate(STATUSES)}
    kinds = sorted(set(found), key=lambda v: (order.get(v, len(order)), v))
    return {str(v): found.count(v) for v in kinds}


def in_words(counts: Mapping[str, int]) -> str:
    """The counts as a text such as "3 converged, 1 blew up"."""
    return ", ".join(f"{n} {name}" for name, n in counts.items())


def known(what: str, values: Iterable[str], names: Iterable[str]) -> None:
    """Refuses names that are not in the list."""
    allowed = tuple(names)
    for value in values:
        if value not in allowed:
            raise unknown(what, value, allowed)


def mapping(where: str, given: Any, like: Mapping[str, Any]) -> None:
    """Refuses an entry of a list of settings whose keys or types are not those of ``like``."""
    if not isinstance(given, Mapping):
        raise ExperimentError(f"{where}: wanted a mapping with {', '.join(like)}, got {given!r}")
    for key in given:
        if key not in like:
            raise ExperimentError(f"{where}: {unknown('key', str(key), like)}")
    for key, example in like.items():
        if key not in given:
            raise ExperimentError(
                f"{where}: wanted the key {key}, got {', '.join(map(str, given))}"
            )
        value = given[key]
        fits = isinstance(value, (int, float) if isinstance(example, float) else type(example))
        if isinstance(value, bool) or not fits:
            raise ExperimentError(f"{where}: {key}: wanted a value like {example!r}, got {value!r}")
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(v, (int, float)) and not v > 0 for v in numbers):
            raise ExperimentError(f"{where}: {key}: wanted a number above 0, got {value}")
