"""What the library reports about itself, and the global number of threads."""

from __future__ import annotations

import os

import numpy as np
import pytest

import qkcore as qk

from .processes import run_ok

KEYS = {
    "version",
    "isa",
    "isa_available",
    "cpu",
    "threads",
    "thread_shortage",
    "compiler",
    "eigen",
    "cuda",
}


def test_config_has_every_key() -> None:
    config = qk.config()
    assert set(config) >= KEYS
    for key in ("version", "isa", "cpu", "compiler", "eigen"):
        assert isinstance(config[key], str) and config[key], key
    assert config["version"] == qk.__version__
    assert config["threads"] == qk.get_num_threads()
    assert set(config["cuda"]) >= {"available", "reason"}
    assert isinstance(config["cuda"]["available"], bool)
    assert config["cuda"]["available"] or config["cuda"]["reason"]


def test_config_is_a_copy() -> None:
    qk.config()["isa"] = "changed"
    qk.config()["isa_available"].clear()
    assert qk.config()["isa"] != "changed"
    assert qk.config()["isa_available"]


def test_show_config_prints_every_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert qk.show_config() is None  # type: ignore[func-returns-value]
    text = capsys.readouterr().out
    config = qk.config()
    for key in KEYS - {"cuda", "isa_available"}:
        assert str(config[key]) in text, key
    assert all(level in text for level in config["isa_available"])
    assert "cuda" in text.lower()


@pytest.mark.usefixtures("restore_threads")
def test_the_thread_count_is_kept_and_shown() -> None:
    for n in (1, 3, 2):
        qk.set_num_threads(n)
        assert qk.get_num_threads() == n == qk.config()["threads"]


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("n", [0, -1, 10**6, 2**70])
def test_a_thread_count_out_of_range_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=rf"n: wanted an integer from 1 .*got {n}"):
        qk.set_num_threads(n)


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("n", [1.5, "2", None, True])
def test_a_thread_count_that_is_no_integer_is_refused(n: object) -> None:
    with pytest.raises(TypeError, match=r"n.*int"):
        qk.set_num_threads(n)  # type: ignore[arg-type]


def test_a_numpy_integer_is_a_thread_count() -> None:
    s = qk.scores.dense(np.zeros((3, 3)))
    assert s.logsumexp(n_threads=np.int64(2)).shape == (3,)


def test_the_default_is_what_the_process_may_use() -> None:
    code = "import qkcore as qk; print(qk.get_num_threads())"
    may_use = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert int(run_ok(code)) == may_use
    if hasattr(os, "sched_setaffinity"):
        code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" + code
        assert int(run_ok(code)) == 1


def test_importing_is_quiet_and_light() -> None:
    """Nothing is printed, no heavy package is pulled in, no thread is started."""
    code = """
    import sys, threading, os
    import qkcore
    heavy = {"scipy", "torch", "cupy", "matplotlib", "pandas", "jax"} & set(sys.modules)
    assert not heavy, heavy
    assert threading.active_count() == 1
    if os.path.isdir("/proc/self/task"):
        import numpy  # its own BLAS threads are not ours
        own = len(os.listdir("/proc/self/task"))
        assert own <= 1 + (os.cpu_count() or 1), own
    """
    assert run_ok(code, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1") == ""


def test_public_names() -> None:
    for name in ("Scores", "scores", "softmax", "kernel", "config", "show_config"):
        assert name in qk.__all__, name
    for name in qk.__all__:
        assert hasattr(qk, name), name
