"""Wrong values of arguments, made from right ones, which every public function must refuse."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from .api_cases import Call


def of_array(a: np.ndarray[Any, Any]) -> Iterator[tuple[str, Any]]:
    if a.dtype.kind == "f":
        for name, value in (("NaN", np.nan), ("inf", np.inf)):
            wrong = a.copy()
            wrong.flat[-1] = value
            yield name, wrong
    yield "complex", a + 1j
    yield "object", a.astype(object)
    yield "text", "abc"
    yield "array of text", a.astype(str)
    yield "dates", np.zeros(a.shape, "datetime64[s]")
    yield "empty", np.empty((0, *a.shape[1:]), a.dtype)
    yield "ragged", [[1.0], [1.0, 2.0]]
    yield "a dictionary", {}


def of_float(x: float) -> Iterator[tuple[str, Any]]:
    yield from (("NaN", np.nan), ("text", "abc"), ("complex", 1 + 2j))
    yield from (("NumPy complex", np.complex128(1 + 2j)), ("huge", 10**400), ("object", object()))


def of_int(n: int) -> Iterator[tuple[str, Any]]:
    yield from (("text", "abc"), ("NaN", np.nan), ("fraction", n + 0.5), ("huge", 2**70))
    yield from (("minus huge", -(2**70)), ("object", object()), ("list", [n, n]))


def of_text(_: str) -> Iterator[tuple[str, Any]]:
    yield from (("nonsense", "nonsense"), ("a number", 3.5), ("bytes", b"abc"), ("list", ["abc"]))


def of_object(_: object) -> Iterator[tuple[str, Any]]:
    yield from (("text", "abc"), ("NaN", np.nan), ("object", object()), ("a dictionary", {}))


def faults(call: Call) -> Iterator[tuple[str, str, Any]]:
    """(argument, what is wrong, value) for every argument of a call."""
    for name, value in call.arguments.items():
        if name in call.free:
            continue
        if isinstance(value, np.ndarray):
            wrong = of_array(value)
        elif isinstance(value, bool):
            continue
        elif isinstance(value, float):
            wrong = of_float(value)
        elif isinstance(value, int):
            wrong = of_int(value)
        elif isinstance(value, str):
            wrong = of_text(value)
        else:
            wrong = of_object(value)
        for fault, bad in wrong:
            if name in ("seed", "rng") and fault in ("huge", "list"):
                continue  # NumPy accepts both
            yield name, fault, bad
        if _required(call, name):
            yield name, "None", None


def _required(call: Call, name: str) -> bool:
    parameter = inspect.signature(call.function).parameters.get(name)
    return parameter is not None and parameter.default is inspect.Parameter.empty


# Values that look wrong but have a meaning, by case and argument.
TAKES: dict[tuple[str, str], tuple[str, ...]] = {
    # numbers in object arrays are converted, which scikit-learn requires of estimators
    **{
        (name, argument): ("object",)
        for name in (
            "diagnostics.drift.KNNDrift",
            "diagnostics.drift.RidgeDrift",
            "diffusion.DiffusionMap",
            "magnetic.MagneticMap",
        )
        for argument in ("X", "y", "new")
    },
    # indices: one or many
    ("diffusion.diffusion_distance", "i"): ("list",),
    ("diffusion.diffusion_distance", "j"): ("list",),
    # any real power of the operator
    ("diffusion.DiffusionMap", "t"): ("fraction", "huge"),
    # no matrix: the identity, or no phases
    ("magnetic.phases", "W"): ("None",),
    ("gaussian.sinkhorn_energy", "Q"): ("None",),
    ("gaussian.sinkhorn_energy", "K"): ("None",),
    ("gaussian.sinkhorn_gradient", "Q"): ("None",),
    ("gaussian.sinkhorn_gradient", "K"): ("None",),
    # no mean: zero
    **{
        (f"gaussian.{case}", name): ("None",)
        for case, name in (
            ("entropic_ot", "mean_x"),
            ("entropic_ot", "mean_y"),
            ("flow", "mean"),
            ("velocity", "mean"),
            ("sinkhorn_energy", "mean"),
            ("twisted_energy", "mean"),
        )
    },
    # no times at all; integration without end
    **{
        (f"gaussian.{case}", "t"): ("empty", "inf")
        for case in ("l2_line", "sinkhorn_line", "softmax_line")
    },
    ("gaussian.softmax_blow_up_line", "v"): ("empty",),
    # a band that is so far from the diagonal keeps everything or nothing
    ("Scores", "offset"): ("huge", "minus huge"),
    # complex operators
    ("magnetic.gauge_transform", "E"): ("complex",),
    ("magnetic.MagneticOperator", "V"): ("complex",),
    ("magnetic.MagneticLaplacian", "V"): ("complex",),
    ("magnetic.MagneticOperator", "rho"): ("None",),
    # an infinite cost masks
    ("simplex.free_energy", "cost"): ("inf",),
    ("simplex.jko", "energy"): ("inf",),
    ("simplex.kl_prox", "cost"): ("inf",),
}
