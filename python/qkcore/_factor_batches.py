"""Factors that were computed on the host, problem by problem, joined into one kernel on their backend."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ._backend import Backend
from ._factors import LowRank
from ._lazy_scores import Real

__all__ = ["Found", "together"]


class Found(NamedTuple):
    """The factors of one problem, components first: (r, N) and (r, M)."""

    left: Real
    right: Real
    method: str
    singular_values: Real | None = None
    cut_gap: Any = math.nan
    error: Any = math.nan


def together(found: list[Found], batch: tuple[int, ...], b: Backend, source: object) -> LowRank:
    """The kernel of all problems, with arrays of the backend ``b``."""
    one = _joined(found, batch) if batch else found[0]
    left, right = (b.give(b.streamed(b.from_host(x))) for x in (one.left, one.right))
    return LowRank(
        b.turned(left),
        right,
        method=one.method,
        singular_values=one.singular_values,
        cut_gap=one.cut_gap,
        error=one.error,
        source=source,
    )


def _joined(found: list[Found], batch: tuple[int, ...]) -> Found:
    """The factors of a batch. Ranks that differ are made equal by components of 0."""
    rank = max(len(one.left) for one in found)

    def padded(parts: list[Real]) -> Real:
        out = np.zeros((len(parts), rank, *parts[0].shape[1:]), parts[0].dtype)
        for to, part in zip(out, parts, strict=True):
            to[: len(part)] = part
        return out.reshape(*batch, *out.shape[1:])

    values = [one.singular_values for one in found if one.singular_values is not None]
    return Found(
        padded([one.left for one in found]),
        padded([one.right for one in found]),
        found[0].method,
        padded(values) if values else None,
        np.array([one.cut_gap for one in found]).reshape(batch),
        np.array([one.error for one in found]).reshape(batch),
    )
