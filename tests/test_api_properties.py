"""Every public function accepts valid input and does not change it, and refuses invalid input by its name.

The calls are in api_cases.py, the wrong values in api_faults.py. A public name without a case fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkcore as qk

from .api_cases import CASES, Draw
from .api_faults import TAKES, faults

# Classes that the library makes and callers only read, and protocols and base classes.
RESULTS = {
    "measure.Domain", "measure.Lookup", "measure.Potential", "measure.PotentialConstants",
    "measure.ConditionedKernel", "measure.ConditionedTransformer", "measure.ExponentialFamily",
    "measure.ExponentialMember", "measure.Gaussian", "measure.GaussianMixture",
    "simplex.FittedDrift", "Scores", "Batch", "LargestWeights", "LinearMap",
    "Status", "Solver", "Weight", "RegimeName",
}  # fmt: skip
# Trains a network: minutes, and JAX. tests/test_score.py has its errors.
ELSEWHERE = {"diagnostics.drift.MLPDrift", "diagnostics.score.fit"}


def public(module: types.ModuleType = qk, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            yield from public(value, f"{prefix}{name}.")
        elif callable(value):
            yield f"{prefix}{name}", value


def needs_a_case(name: str, value: Any) -> bool:
    if name in RESULTS or name in ELSEWHERE:
        return False
    if inspect.isclass(value) and issubclass(value, Exception):
        return False
    made_by_callers = name in CASES
    return made_by_callers or not (inspect.isclass(value) and dataclasses.is_dataclass(value))


def test_every_public_name_has_a_case() -> None:
    names = dict(public())
    missing = [
        name for name, value in names.items() if needs_a_case(name, value) and name not in CASES
    ]
    assert not missing, f"write a case in tests/api_cases.py for {missing}"
    assert not [name for name in CASES if name not in names], (
        "a case of something that is not public"
    )
    assert not (RESULTS | ELSEWHERE) - set(names), "no longer public"


def numbers(value: Any, where: str = "result", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every float array in a result, its own fields included."""
    if isinstance(value, np.ndarray | float | np.floating):
        array = np.asarray(value)
        if array.dtype.kind in "fc":
            yield where, array
    elif isinstance(value, tuple | list) and depth < 3:
        for k, item in enumerate(value):
            yield from numbers(item, f"{where}[{k}]", depth + 1)
    elif dataclasses.is_dataclass(value) and depth < 3:
        for item in dataclasses.fields(value):
            yield from numbers(getattr(value, item.name, None), f"{where}.{item.name}", depth + 1)


def check_result(result: Any) -> None:
    """An array is finite; so are the potentials and states of a result that says it is good."""
    if isinstance(result, np.ndarray | float | tuple):
        for where, array in numbers(result):
            assert not np.isnan(array).any(), f"{where} has NaN"
    good = getattr(result, "converged", getattr(result, "success", None))
    if good is True or (isinstance(good, np.ndarray) and good.all()):
        for where, array in numbers(result):
            if where.rsplit(".", 1)[-1] in (
                "f",
                "g",
                "x",
                "X",
                "p",
                "values",
                "error",
                "mean",
                "cov",
            ):
                assert np.isfinite(array).all(), f"{where} is not finite, yet marked as converged"


draws = st.builds(
    Draw,
    seed=st.integers(0, 2**16),
    n=st.sampled_from((3, 4, 7, 8, 9)),
    m=st.sampled_from((3, 5, 8, 9)),
    d=st.sampled_from((1, 2, 3)),
    dtype=st.sampled_from(("float64", "float32")),
)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=4)
@given(draw=draws)
def test_valid_input_works_and_is_not_written_to(name: str, draw: Draw) -> None:
    call = CASES[name](draw)
    with contextlib.redirect_stdout(io.StringIO()):
        result = call()
    check_result(result)
    str(result)
    draw.unchanged()


@pytest.mark.parametrize("name", CASES)
def test_invalid_input_is_refused(name: str) -> None:
    draw = Draw()
    call = CASES[name](draw)
    wrong = []
    for argument, fault, value in faults(call):
        if fault in TAKES.get((name, argument), ()):
            continue
        try:
            call(**{argument: value})
        except (TypeError, ValueError) as error:
            if not str(error):
                wrong.append(f"{argument} = {fault}: an error without a message")
        except Exception as error:
            wrong.append(f"{argument} = {fault}: {type(error).__name__}: {error}")
        else:
            wrong.append(f"{argument} = {fault}: accepted")
    assert not wrong, "\n".join(wrong)
    draw.unchanged()
