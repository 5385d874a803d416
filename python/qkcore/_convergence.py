"""Warnings and errors for results that did not converge."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, TypeVar

import numpy as np

__all__ = [
    "ConvergenceError",
    "ConvergenceWarning",
    "WarnsOnUse",
    "failure",
    "on_fail_option",
    "settle",
]

_CHOICES = ("warn", "raise", "ignore")


class ConvergenceWarning(UserWarning):
    """A result was used whose solver did not converge; ``status`` of the result says why."""


class ConvergenceError(RuntimeError):
    """A solver did not converge, and the caller asked for an error (``on_fail="raise"``)."""


def on_fail_option(value: object) -> str:
    """The caller's ``on_fail``, checked."""
    if value not in _CHOICES:
        raise ValueError(
            f'on_fail: wanted "warn" (when the result is used), "raise" or "ignore", got {value!r}'
        )
    return str(value)


def failure(result: Any) -> str:
    """A phrase that says how a solve failed."""
    if isinstance(result.status, str):
        reason = result.status
        if reason == "stagnated" and hasattr(result, "f"):
            reason += f" at the precision of {result.f.dtype}"
        iterations = reason == "iteration limit"
        work = f"{result.n_iter} iterations" if iterations else f"{result.n_visits} visits"
        return (
            f"not converged ({reason} after {work}, error {result.error:.2g}, "
            f"wanted {result.tol:.2g})"
        )
    bad = ~np.asarray(result.converged)
    reasons = ", ".join(sorted(set(np.asarray(result.status)[bad].tolist())))
    return f"{int(bad.sum())} of {bad.size} problems not converged ({reasons})"


def limit_named(status: Any) -> str:
    """The limits to increase after one or several solves that ended with this status."""
    seen = set(np.ravel(status).tolist())
    if "visit limit" in seen:
        return "max_iter, max_visits" if "iteration limit" in seen else "max_visits"
    return "max_iter"


class WarnsOnUse:
    """Base class of results that warn when they are used although their solver did not converge.

    They have ``converged``, ``status``, ``n_iter``, ``n_visits``, ``error``, ``tol`` and ``on_fail``.
    """

    converged: Any
    status: Any
    on_fail: str

    def _used(self) -> None:
        """Warns once, at the caller's line that uses a result whose solver did not converge."""
        if self.on_fail == "ignore" or np.all(self.converged) or self.__dict__.get("_warned"):
            return
        self.__dict__["_warned"] = True
        warnings.warn(
            f"{_NAMES.get(type(self).__name__, 'bridge')}: {failure(self)}; look at converged and status "
            f"before using the result, raise {limit_named(self.status)} or tol, or pass "
            'on_fail="raise" or "ignore"',
            ConvergenceWarning,
            stacklevel=3,
        )


# The functions that return these results; the others come from `bridge`.
_NAMES = {
    "BridgeChain": "bridge_chain",
    "AdaptiveIPF": "adaptive_ipf",
    "BarycentricMap": "barycentric",
}

_Result = TypeVar("_Result", bound=WarnsOnUse)


def settle(found: _Result, on_fail: str) -> _Result:
    """The result with this ``on_fail``; raises ConvergenceError if it is "raise" and the solve failed."""
    if on_fail == "raise" and not np.all(found.converged):
        name = _NAMES.get(type(found).__name__, "bridge")
        raise ConvergenceError(
            f"{name}: {failure(found)}; raise {limit_named(found.status)} or tol, lower beta, or pass "
            'on_fail="warn" to get the result as it is'
        )
    if found.on_fail == on_fail:
        return found
    settled: Any = dataclasses.replace(found, on_fail=on_fail)  # type: ignore[type-var]
    return settled  # type: ignore[no-any-return]
