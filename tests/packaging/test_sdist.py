"""The source distribution has all files that a build needs, and (on request) can be installed."""

import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
in_tree = pytest.mark.skipif(
    not (ROOT / "CMakeLists.txt").exists(), reason="runs away from the source tree"
)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("sdist")
    code = f"import scikit_build_core.build as b; b.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("qkcore-*.tar.gz")
    return found


@in_tree
def test_sdist_holds_what_a_build_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    needed = {"CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "PKG-INFO"}
    for pattern in ("cmake/*.cmake", "cpp/**/*.[ch]pp", "python/qkcore/**/*.py*"):
        needed |= {
            str(p.relative_to(ROOT))
            for p in ROOT.glob(pattern)
            if p.suffix in (".py", ".pyi", ".hpp", ".cpp", ".cmake")
        }
    assert not needed - names
    assert not [
        name for name in names if name.endswith((".so", ".o", ".pyc")) or name.startswith("build/")
    ]
    assert sdist.stat().st_size < 3e6


@in_tree
@pytest.mark.slow
@pytest.mark.skipif("QKCORE_SDIST" not in os.environ, reason="compiles everything: QKCORE_SDIST=1")
def test_sdist_installs_in_an_empty_environment(sdist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", str(sdist)], check=True)
    code = (
        "import numpy as np, qkcore as qk\n"
        "print((qk.softmax(qk.scores.dense(np.eye(3))) @ np.ones(3)).sum())"
    )
    done = subprocess.run(
        [python, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert float(done.stdout) == pytest.approx(3.0)
