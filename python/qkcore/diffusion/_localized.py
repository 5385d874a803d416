"""Warnings of coordinates that tell a few points from the rest instead of showing the shape of the data."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

Double = npt.NDArray[np.float64]

# An eigenvalue this close to 1 (by the item size of the dtype) means parts with no weights between them.
_ONE = {4: 1e-5, 8: 1e-8}
# A coordinate is localised if it is concentrated on at most this share of the points, and the walk leaves
# them with a probability below 1 - _SLOW per step. With the default beta none of 680 clouds of 17 kinds
# (normal laws in 1 to 50 dimensions, uniform ones, rolls, moons, rings, clusters) had such a coordinate; see
# docs/diffusion.md.
_SHARE, _SLOW = 0.02, 0.99
_FEWEST = 10  # among fewer points, a coordinate of a single point is normal
_MOST_PARTS = 50
_SHOWN = 6


class DisconnectedWarning(UserWarning):
    """The points of a diffusion map fall into parts, or a coordinate belongs to a few points only.

    Such a map is correct for its kernel, but of little use: coordinates that tell an outlier from the rest
    take the places of those that show the shape of the data.
    """


def effective_points(law: npt.NDArray[Any], vectors: npt.NDArray[Any]) -> Double:
    """On how many points each vector is concentrated: :math:`1/\\sum_i w_i^2`, :math:`w = \\pi|\\psi|^2`."""
    weight = law.astype(np.float64)[:, None] * np.abs(vectors.astype(np.complex128)) ** 2
    weight /= weight.sum(axis=0)
    out: Double = 1 / (weight**2).sum(axis=0)
    return out


def part_sizes(vectors: npt.NDArray[Any]) -> list[int]:
    """The sizes of the disconnected parts, from all vectors (n, k) of eigenvalue 1, constants included.

    The rows of points in different parts are orthogonal, and those of points in one part are parallel.
    """
    rows = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)
    free = np.ones(len(rows), bool)
    sizes: list[int] = []
    while free.any() and len(sizes) < _MOST_PARTS:
        leader = rows[np.argmax(free)]
        part = free & (np.abs(rows @ leader.conj()) > 0.9)
        sizes.append(int(part.sum()))
        free &= ~part
    sizes += [1] * int(free.sum())
    return sorted(sizes, reverse=True)


def warn_of_parts(
    name: str,
    values: npt.NDArray[Any],
    vectors: npt.NDArray[Any],
    law: npt.NDArray[Any],
    remedy: str,
    stacklevel: int,
    *,
    with_constant: bool,
) -> None:
    """Warns of parts with no weights between them, and of coordinates concentrated on a few points.

    ``with_constant``: the constant vector, of eigenvalue 1, is known and not among the vectors.
    """
    n = len(vectors)
    texts = []
    ones = np.abs(1 - values) <= _ONE[values.real.itemsize]
    found = int(ones.sum()) - (not with_constant)
    if found > 0:
        chosen = vectors[:, ones].astype(np.complex128)
        if with_constant:
            chosen = np.column_stack([np.ones(n), chosen])
        sizes = part_sizes(chosen)
        many = f"{found + 1}"
        if ones.all():  # there may be more such vectors than were asked for
            many = f"at least {max(found + 1, len(sizes))}"
        else:
            sizes = sizes[: found + 1]
        texts.append(
            f"the points fall into {many} parts with almost no weight between them, of {_listed(sizes)} "
            f"points ({_plural(found, 'eigenvalue')} besides the first {'is' if found == 1 else 'are'} 1)"
        )
    lives_on = effective_points(law, vectors)
    few = (lives_on <= max(1.5, _SHARE * n)) & (np.abs(values) > _SLOW)
    if few.any() and n >= _FEWEST:
        numbers = np.flatnonzero(few)
        weight = law[:, None] * np.abs(vectors[:, numbers]) ** 2
        culprits = list(dict.fromkeys(int(i) for i in np.argmax(weight, axis=0)))
        texts.append(
            f"of {_plural(len(values), 'coordinate')}, {len(numbers)} ({_listed(numbers)}) "
            f"{'lives' if len(numbers) == 1 else 'live'} on at most {round(float(lives_on[few].max()))} of "
            f"the {n} points, around {'index' if len(culprits) == 1 else 'indices'} {_listed(culprits)}"
        )
    if texts:
        warnings.warn(
            f"{name}: {'; '.join(texts)}. {remedy}", DisconnectedWarning, stacklevel=stacklevel + 1
        )


def _plural(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _listed(numbers: Any) -> str:
    shown = ", ".join(str(int(x)) for x in numbers[:_SHOWN])
    return shown + (", ..." if len(numbers) > _SHOWN else "")
