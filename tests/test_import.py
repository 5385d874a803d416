"""What ``import qkcore`` loads at once, and what is loaded only when it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import qkcore as qk

LATE = ("scipy", "tqdm", "matplotlib", "argparse", "sklearn", "torch", "jax", "cupy")
NAMESPACES = ("diagnostics", "diffusion", "divergence", "gaussian", "isb", "magnetic", "measure",
              "observables", "schedule", "simplex")  # fmt: skip


def fresh(code: str) -> str:
    """What the code prints in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout


def test_import_loads_neither_scipy_nor_other_rooms() -> None:
    code = "import sys, qkcore; print(*sys.modules)"
    loaded = fresh(code).split()
    assert "qkcore.operators" in loaded and "numpy" in loaded
    assert [name for name in loaded if name.split(".")[0] in LATE] == []
    rooms = (*NAMESPACES, "experiments", "cli", "_bench", "_plots", "_html")
    assert [name for name in rooms if f"qkcore.{name}" in loaded] == []


def test_softmax_and_bridges_need_no_scipy() -> None:
    code = """
import sys, numpy as np, qkcore as qk
X = np.random.default_rng(0).normal(size=(40, 3))
s = qk.scores.distance(X, beta=1.0)
qk.softmax(s) @ X
assert qk.bridge(s, np.full(40, 1 / 40), np.full(40, 1 / 40)).converged
print(*(name for name in sys.modules if name.startswith("scipy")))
"""
    assert fresh(code).split() == []


@pytest.mark.parametrize("name", NAMESPACES)
def test_each_namespace_comes_by_its_name_alone(name: str) -> None:
    """In any order: none relies on another having been imported before."""
    assert fresh(f"import qkcore as qk; print(qk.{name}.__name__)") == f"qkcore.{name}\n"


def test_star_and_dir_are_complete() -> None:
    assert set(qk.__all__) <= set(dir(qk)) and dir(qk) == sorted(dir(qk))
    code = "import qkcore; print(*dir(qkcore)); from qkcore import *; print(*dir())"
    listed, taken = (set(line.split()) for line in fresh(code).splitlines())
    assert set(qk.__all__) <= listed
    assert set(qk.__all__) <= taken | {"__version__"}
    assert callable(qk.low_rank), "the function; its module is qkcore.factors"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'qkcore' has no attribute 'difusion'"):
        qk.difusion  # noqa: B018
    assert not hasattr(qk, "__wrapped__")
