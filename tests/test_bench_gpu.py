"""bench/gpu.py: its message without a GPU, and its checks and its record on the imitated device."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore._device import _backend
from tests import fake_cuda

BENCH = Path(__file__).resolve().parents[1] / "bench"
pytestmark = pytest.mark.skipif(
    not BENCH.is_dir(), reason="the benchmarks are not part of the wheel"
)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    module = importlib.import_module("gpu")
    yield module
    for name in ("gpu", "environment"):
        sys.modules.pop(name, None)


class Pretended:
    name = "simt"

    def asarray(self, host: Any) -> Any:
        return fake_cuda.asarray(host)

    def numpy(self, x: Any) -> Any:
        return fake_cuda.numpy(x)

    def synchronize(self) -> None:
        fake_cuda.module().synchronize(0)


@pytest.fixture
def device() -> Iterator[Pretended]:
    if not fake_cuda.built():
        pytest.skip("not built: make simt")
    before = _backend._use(fake_cuda.module())
    fake_cuda.module().simt_clear()
    yield Pretended()
    _backend._use(before)


def test_without_a_device_it_says_so_in_one_line(
    gpu: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if qk.config()["cuda"]["available"]:
        pytest.skip("there is a device")
    assert gpu.main([]) == 2
    said = capsys.readouterr().out
    assert said.startswith("no CUDA device: ") and said.count("\n") == 1


def test_the_whole_run(
    gpu: Any,
    device: Pretended,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every check passes, peers that cannot run are told, the JSON holds it all."""
    small = [("attention", {"qkcore": lambda: lambda: None, "peer": _missing, "other": _broken})]
    monkeypatch.setattr(
        gpu, "time_all", lambda d, quick: [t for c in small for t in gpu.measure(*c, d, 2)]
    )
    out = tmp_path / "deep" / "gpu.json"
    assert gpu.run(device, quick=True, out=out, n=20) == 0
    found = json.loads(out.read_text())
    assert found["all_right"] and len(found["checks"]) == 54
    assert found["library"] == "simt" and found["cuda"]["devices"][0]["name"] == "SIMT layer"
    times = {t["contender"]: t for t in found["times"]}
    assert times["qkcore"]["seconds"] >= 0
    assert times["peer"] == {
        "case": "attention",
        "contender": "peer",
        "seconds": None,
        "note": "not installed: No module named 'peer'",
    }
    assert times["other"]["note"] == "failed: ValueError: wrong shape"
    assert "54 of 54 computations agree with the CPU" in capsys.readouterr().out


def _missing() -> Any:
    raise ModuleNotFoundError("No module named 'peer'")


def _broken() -> Any:
    raise ValueError("wrong shape")


def test_contenders_of_ours_run(gpu: Any, device: Pretended) -> None:
    rng = np.random.default_rng(0)
    X, Y, V = (rng.normal(size=(12, 3)).astype(np.float32) for _ in range(3))
    wanted = qk.softmax(qk.scores.dot(X, Y, beta=3**-0.5)) @ V
    found = fake_cuda.numpy(gpu._attention(device, [X, Y, V], 3)())
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert gpu._sinkhorn(device, [X, Y])().n_iter == 10
    assert gpu._lse(device, [X, Y])().shape == (12,)


def test_a_wrong_answer_fails_the_run(
    gpu: Any, device: Pretended, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Wrong(Pretended):
        def numpy(self, x: Any) -> Any:
            return super().numpy(x) * 1.01

    out = tmp_path / "gpu.json"
    assert gpu.run(Wrong(), quick=True, out=out, n=20) == 1
    found = json.loads(out.read_text())
    assert not found["all_right"] and found["times"] == []
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e-3])
def test_what_counts_as_right(gpu: Any, bad: float) -> None:
    wanted = np.array([1.0, 2.0, -np.inf])
    assert gpu.compare("case", wanted + 1e-15, wanted).ok
    found = wanted.copy()
    found[0] += bad
    assert not gpu.compare("case", found, wanted).ok
    assert not gpu.compare("case", wanted[:2], wanted).ok
