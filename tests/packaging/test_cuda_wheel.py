"""The wheel of qkcore-cuda, on a machine with or without a driver; `make cuda-wheel` puts it on the path."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import qkcore

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("qkcore_cuda") is None,
    reason="qkcore-cuda is not installed (make cuda)",
)


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def module() -> Path:
    spec = importlib.util.find_spec("qkcore_cuda._module")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)


def has_device() -> bool:
    return bool(qkcore.config()["cuda"]["available"])


def test_metadata() -> None:
    import qkcore_cuda

    metadata = importlib.metadata.metadata("qkcore-cuda")
    assert metadata["Version"] == qkcore.__version__ == qkcore_cuda.__version__
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert importlib.metadata.requires("qkcore-cuda") == ["qkcore"]
    assert all(hasattr(qkcore_cuda, name) for name in qkcore_cuda.__all__)


def test_types_are_there() -> None:
    assert all((module().parent / name).is_file() for name in ("py.typed", "_module.pyi"))


def test_import_initialises_nothing() -> None:
    """No driver is loaded by the import, of qkcore or of the module: the first question does that."""
    code = (
        "import qkcore, sys; assert 'qkcore_cuda' not in sys.modules\n"
        "import qkcore_cuda; maps = open('/proc/self/maps').read(); print('libcuda.so' in maps)\n"
    )
    assert python(code).split() == ["False"]


def test_without_a_device_everything_is_explained() -> None:
    """CUDA_VISIBLE_DEVICES hides what there may be; without a driver there is nothing to hide."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    shown = python("import qkcore; qkcore.show_config()", **hidden)
    line = next(line for line in shown.splitlines() if line.startswith("cuda"))
    assert re.search(r"unavailable: .*(driver|device)", line), line
    code = (
        "import qkcore_cuda\n"
        "try: qkcore_cuda.empty((3,), 'float32', 0)\n"
        "except RuntimeError as error: print(error)\n"
        "print(qkcore_cuda.live_allocations())\n"
    )
    said = python(code, **hidden).splitlines()
    assert said[0].startswith("CUDA: unavailable: ") and said[1] == "0"


@pytest.mark.skipif(
    importlib.util.find_spec("qkcore_cuda") is not None and has_device(), reason="a device is there"
)
def test_asking_for_what_is_not_there() -> None:
    from qkcore._device import _backend

    with pytest.raises(
        RuntimeError, match=r"CUDA: wanted CUDA, which is unavailable: .*driver|device"
    ):
        _backend.require()


def test_cpu_arrays_are_refused_with_advice() -> None:
    import numpy as np
    import qkcore_cuda

    with pytest.raises(
        TypeError, match=r"x: wanted an array on a CUDA device, got a ndarray on the CPU"
    ):
        qkcore_cuda.row_dots(np.zeros((2, 2)), np.zeros((2, 2)))


def test_the_runtime_is_inside() -> None:
    """Nothing of CUDA is needed to load it."""
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf (binutils) is not installed")
    shown = subprocess.run(
        [readelf, "-d", str(module())], capture_output=True, text=True, check=True
    )
    needed = re.findall(r"NEEDED.*\[(.+)\]", shown.stdout)
    assert needed and not any("cuda" in name or "nv" in name for name in needed)


def test_every_architecture_is_there() -> None:
    """The fat binary: code for what exists, PTX for what comes after."""
    tool = shutil.which("cuobjdump") or shutil.which("/usr/local/cuda/bin/cuobjdump")
    if tool is None:
        pytest.skip("cuobjdump (CUDA toolkit) is not installed")
    listed = subprocess.run(
        [tool, "--list-elf", "--list-ptx", str(module())],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"):
        assert f"{name}.cubin" in listed
    assert "sm_75.ptx" in listed or "compute_75.ptx" in listed
