"""Schrödinger bridges on a device: the solver runs on the host, and the kernels stay on the device."""

from __future__ import annotations

from typing import Any

from .._bridge_fields import Vectors, each_solved, solved_fields
from .._bridge_problem import penalties
from .._bridge_report import Callback
from .._bridge_solve import ask
from .._lazy_scores import Scores
from ._bridge_kernel import DeviceKernel

__all__ = ["solved"]


def solved(
    s: Scores,
    mu: Any,
    nu: Any,
    *,
    penalty: Any,
    init: Any,
    max_memory: float | None,
    callback: Callback | None,
    progress: bool,
    **options: Any,
) -> dict[str, Any]:
    """The fields of the result, with vectors on the device; the problems of a batch are solved in turn."""
    c: Any = s.backend
    given = Vectors(s, mu, nu, init)

    def one(index: tuple[int, ...]) -> dict[str, Any]:
        own_mu, own_nu, start = given.of(index)
        k = 0
        for i, n in zip(index, s.batch, strict=True):
            k = k * n + i
        kernel = DeviceKernel(s._problem(k), own_mu, penalties(penalty)[0], max_memory)
        asked = ask(kernel, own_mu, own_nu, penalty=penalty, init=start, **options)
        return solved_fields(asked, not s.batch, callback, progress)

    fields = each_solved(s.batch, one)
    for name in ("f", "g"):
        fields[name] = c.give(c.from_host(fields[name]))
    return fields | {"mu": mu, "nu": nu}
