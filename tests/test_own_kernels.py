"""Kernels that are given as Python objects: the arguments of their calls, and the effects of mistakes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any

import numpy as np
import pytest

import qkcore as qk

from .own_kernels import Array, Dense
from .processes import command, environment, no_sanitizer

N, M = 12, 9


def problem(dtype: str = "float64") -> tuple[Dense, Array, Array]:
    rng = np.random.default_rng(0)
    mu, nu = rng.uniform(0.5, 1.5, N), rng.uniform(0.5, 1.5, M)
    logs = rng.normal(size=(N, M)).astype(dtype)
    return Dense(logs), (mu / mu.sum()).astype(dtype), (nu / nu.sum()).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_of_given_kernels(dtype: str) -> None:
    K, mu, nu = problem(dtype)
    b = qk.bridge(K, mu, nu)
    calls = len(K.calls)
    want = qk.bridge(qk.scores.dense(K.logs), mu.astype(float), nu.astype(float))
    assert b.converged and b.f.dtype == b.plan().dtype == dtype
    assert b.n_visits + 1 == calls  # and the final check
    loose = 1e-8 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(b.plan(), want.plan(), atol=loose)
    np.testing.assert_allclose(b.marginals()[0], mu, atol=loose)
    np.testing.assert_allclose(b.marginals()[1], nu, atol=loose)
    V = np.random.default_rng(1).normal(size=(M, 3)).astype(dtype)
    np.testing.assert_allclose(b.project(V), want.project(V.astype(float)), atol=10 * loose)
    np.testing.assert_allclose(b.project(V[:, 1]), b.project(V)[:, 1])
    assert b.dual == pytest.approx(want.dual, abs=loose)
    assert "over Dense" in str(b) and "given" in b.method
    with pytest.raises(ValueError, match=r"V: wanted shape \(9,\) or \(9, k\), got \(12,\)"):
        b.project(np.ones(N, dtype))


def test_what_methods_are_called_with() -> None:
    K, mu, nu = problem()
    nu[3] = 0
    nu /= nu.sum()
    seen: list[tuple[Any, ...]] = []

    class Watched(Dense):
        def rows(self, g: Array, mass: Any) -> Any:
            assert g.dtype == np.float64 and g.shape == (M,) and g.flags.owndata
            assert np.isneginf(g[3])
            lse, columns = super().rows(g, lambda lse: seen.append((lse,)) or mass(lse))
            return lse, columns

        def columns(self, f: Array) -> Array:
            raise AssertionError("no column vanishes here")

    b = qk.bridge(Watched(K.logs), mu, nu, solver="newton")
    assert b.converged and len(seen) >= b.n_iter
    # For a symmetric problem only rows are called.
    square = Dense(np.minimum(K.logs[:M], K.logs[:M].T), symmetric=True)
    b = qk.bridge(square, nu, nu)
    assert b.converged and b.method == "symmetric, given"


def test_columns_that_vanish_are_asked_for() -> None:
    """A column far out gets its potential from an exact log-sum-exp."""
    K, mu, nu = problem()
    K.logs[:, 2] -= 2000
    b = qk.bridge(K, mu, nu)
    assert b.converged and "columns" in K.calls
    np.testing.assert_allclose(np.exp(K.logs + b.f[:, None] + b.g).sum(0), nu, atol=1e-9)


class Answers(Dense):
    """One that answers as told."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(problem()[0].logs)
        self.answers = answers

    def rows(self, g: Array, mass: Any) -> Any:
        lse, columns = super().rows(g, mass if "no_mass" not in self.answers else np.zeros_like)
        return self.answers.get("rows", lambda *pair: pair)(lse, columns)

    def columns(self, f: Array) -> Any:
        return self.answers["columns"](super().columns(f))

    def _curvature(self, x: Array, mass: Array) -> Any:
        return self.answers["curvature"](super()._curvature(x, mass))


def change(x: Array, at: int, value: float) -> Array:
    out = x.copy()
    out[at] = value
    return out


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        (
            {"rows": lambda a, b: a},
            TypeError,
            r"kernel.rows: wanted a pair \(lse, columns\), got ndarray",
        ),
        (
            {"rows": lambda a, b: (a, b[1:])},
            ValueError,
            r"kernel.rows: wanted columns as a float64 array of shape \(9,\), got shape \(8,\)",
        ),
        (
            {"rows": lambda a, b: (a, b.astype(int))},
            TypeError,
            r"kernel.rows: wanted columns as a float64 array of shape \(9,\), got dtype int64",
        ),
        (
            {"rows": lambda a, b: (a, list(b))},
            TypeError,
            r"kernel.rows: wanted columns as a float64 array of shape \(9,\), got list",
        ),
        (
            {"rows": lambda a, b: (a, change(b, 5, np.nan))},
            ValueError,
            r"kernel.rows: wanted columns without NaN or \+inf, got NaN at index 5",
        ),
        ({"no_mass": True}, ValueError, r"kernel.rows: wanted mass\(lse\) to be called, once"),
        (
            {"rows": lambda a, b: (a, 0 * b), "columns": lambda lse: lse[:, None]},
            ValueError,
            r"kernel.columns: wanted lse as a float64 array of shape \(9,\), got shape \(9, 1\)",
        ),
        (
            {"rows": lambda a, b: (a, 0 * b), "columns": lambda lse: change(lse, 0, np.inf)},
            ValueError,
            r"kernel.columns: wanted lse without NaN or \+inf, got \+inf at index 0",
        ),
        (
            {"curvature": lambda out: out[:-1]},
            ValueError,
            r"kernel.curvature: wanted out as a float64 array of shape \(9,\), got shape \(8,\)",
        ),
    ],
)
def test_wrong_answers_name_the_method(
    answers: dict[str, Any], error: type[Exception], message: str
) -> None:
    _, mu, nu = problem()
    with pytest.raises(error, match=message):
        qk.bridge(Answers(**answers), mu, nu, solver="newton")


def test_mass_is_for_one_call_with_all_rows() -> None:
    _, mu, nu = problem()

    class Short(Dense):
        def rows(self, g: Array, mass: Any) -> Any:
            mass(np.zeros(N - 1))

    class Twice(Dense):
        def rows(self, g: Array, mass: Any) -> Any:
            mass(np.zeros(N))
            mass(np.zeros(N))

    kept: list[Any] = []

    class Kept(Dense):
        def rows(self, g: Array, mass: Any) -> Any:
            kept.append(mass)
            return super().rows(g, mass)

    logs = np.zeros((N, M))
    with pytest.raises(ValueError, match=r"kernel.rows: wanted lse, for mass\(lse\), as a float64"):
        qk.bridge(Short(logs), mu, nu)
    with pytest.raises(ValueError, match="wanted mass to be called once, within rows"):
        qk.bridge(Twice(logs), mu, nu)
    assert qk.bridge(Kept(logs), mu, nu).converged
    with pytest.raises(ValueError, match="wanted mass to be called once, within rows"):
        kept[0](np.zeros(N))


class OfTheirOwn(Exception):
    pass


@pytest.mark.parametrize("method", ["rows", "columns", "curvature"])
def test_errors_of_the_kernel_reach_the_caller_unchanged(method: str) -> None:
    K, mu, nu = problem()
    if method == "columns":
        K.logs[:, 2] -= 2000
    trouble = OfTheirOwn(method)

    def fail(*_: Any) -> Any:
        raise trouble

    setattr(K, method, fail)
    before = mu.copy(), nu.copy()
    with pytest.raises(OfTheirOwn) as caught:
        qk.bridge(K, mu, nu, solver="newton")
    assert caught.value is trouble
    assert "fail" in [entry.name for entry in caught.traceback]
    np.testing.assert_array_equal(mu, before[0])
    np.testing.assert_array_equal(nu, before[1])
    # Bridges can also be solved inside a method of the kernel.
    assert qk.bridge(problem()[0], mu, nu).converged


def test_a_solve_within_a_solve() -> None:
    K, mu, nu = problem()

    class Nested(Dense):
        def rows(self, g: Array, mass: Any) -> Any:
            assert qk.bridge(K, mu, nu, tol=1e-3).converged
            return super().rows(g, mass)

    assert qk.bridge(Nested(K.logs), mu, nu).converged


def test_negative_columns_are_said_to_be() -> None:
    _, mu, nu = problem()
    b = qk.bridge(Answers(rows=lambda a, b: (a, change(b, 1, -0.1))), mu, nu, on_fail="ignore")
    assert b.status == "negative kernel" and not b.converged


def test_rows_that_see_nothing_are_infeasible() -> None:
    K, mu, nu = problem()
    K.logs[3] = -np.inf
    b = qk.bridge(K, mu, nu, on_fail="ignore")
    assert b.status == "infeasible" and not b.converged
    with pytest.warns(qk.ConvergenceWarning, match="infeasible"):
        qk.bridge(K, mu, nu).plan()


def test_wrong_objects() -> None:
    K, mu, nu = problem()
    for name, value, error, message in (
        ("shape", (N, M, 1), ValueError, r"kernel: wanted .shape as a pair \(N, M\)"),
        ("shape", [N, M], ValueError, r"kernel: wanted .shape as a pair \(N, M\)"),
        ("shape", (0, M), ValueError, r"kernel: wanted .shape of at least \(1, 1\)"),
        ("dtype", "int32", TypeError, "kernel: wanted .dtype float32 or float64, got int32"),
    ):
        wrong = Dense(K.logs)
        setattr(wrong, name, value)
        with pytest.raises(error, match=message):
            qk.bridge(wrong, mu, nu)
    with pytest.raises(ValueError, match=r"mu: wanted shape \(12,\) as the rows of the kernel"):
        qk.bridge(K, nu, nu)
    with pytest.raises(
        ValueError, match=r"nu: wanted the total mass of mu, 1, got 1, which is off by .*e-0[89]"
    ):
        qk.bridge(K, mu.astype("float32"), nu)
    with pytest.raises(TypeError, match=r"kernel|s: wanted"):
        qk.bridge(object(), mu, nu)  # type: ignore[call-overload]


CTRL_C = """
import numpy as np, qkcore as qk, time
n = 400
class Slow:
    shape, dtype = (n, n), np.float64
    def rows(self, g, mass):
        BODY
        mass(np.zeros(n))
        return np.zeros(n), np.full(n, 0.5 / n)
    def columns(self, f):
        return np.zeros(n)
u = np.full(n, 1 / n)
f = g = np.zeros(n)
print("ready", flush=True)
try:
    qk.bridge(Slow(), u, u, solver="alternating", tol=1e-12, max_iter=10**9, init=(f, g))
except KeyboardInterrupt:
    assert not f.any() and (u == 1 / n).all()
    print("interrupted")
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@no_sanitizer
@pytest.mark.parametrize("body", ["time.sleep(0.01)", "sum(range(1000))"])
def test_ctrl_c_in_a_kernel(body: str) -> None:
    code = CTRL_C.replace("BODY", body)
    with subprocess.Popen(
        command(code), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "ready"
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        try:
            out, err = child.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
    assert child.returncode == 0, err
    assert out.strip() == "interrupted"


def test_scaled_objects_are_annealed() -> None:
    """Near an assignment, where Sinkhorn's iteration takes thousands of visits: as scores of the same entries
    are. Each stage is an object of its own, which the solver frees."""
    K, u = Dense(100 * np.random.default_rng(2).random((16, 16))), np.full(16, 1 / 16)
    b = qk.bridge(K, u, u, solver="annealed")
    want = qk.bridge(qk.scores.dense(K.logs), u, u)
    assert b.converged and b.n_visits < 300 and K.calls.count("scaled") > 3
    np.testing.assert_allclose(b.plan(), want.plan(), atol=1e-8)


def test_an_overflow_of_a_method_is_one_of_the_bridge() -> None:
    K, mu, nu = problem()

    class Narrow(Dense):
        def rows(self, g: Array, mass: Any) -> Any:
            raise OverflowError

    with pytest.raises(OverflowError, match=r"kernel: the potentials overflow float64"):
        qk.bridge(Narrow(K.logs), mu, nu)


class Few(Dense):
    """Lists its large entries, so that Newton's method need not multiply."""

    def __init__(self, logs: Array) -> None:
        super().__init__(logs)
        self.entries = self._entries


@pytest.mark.parametrize("shape", [(24, 24), (70, 90), (1500, 1100)])
def test_entries_of_the_kernel_are_gathered(shape: tuple[int, int]) -> None:
    """In strips of about a million entries; the result is that of products, to more digits."""
    x, y = (np.random.default_rng(k).random((n, 2)) for k, n in enumerate(shape))
    logs = -np.square(x[:, None] - y).sum(-1) / 1e-3
    mu, nu = (np.full(n, 1 / n) for n in shape)
    kernel, plain = Few(logs), Dense(logs)
    found, want = (qk.bridge(k, mu, nu, tol=1e-9, max_visits=1000) for k in (kernel, plain))
    assert found.converged and found.n_visits <= want.n_visits
    assert kernel.calls.count("entries") >= (2 if shape[0] > 1000 else 1)
    assert kernel.calls.count("curvature") < max(1, plain.calls.count("curvature"))
    plans = (np.exp(logs + b.f[:, None] + b.g) for b in (found, want))
    np.testing.assert_allclose(*plans, atol=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_logits_up_to_700_of_the_kernels_own(seed: int) -> None:
    """Products of Newton's method lose the weak connections that decide the last digits."""
    n = 24
    logs = np.random.default_rng(seed).uniform(-700, 700, (n, n))
    u = np.full(n, 1 / n)
    found = qk.bridge(Few(logs), u, u, tol=1e-12)
    assert found.converged and found.n_visits < 300
    plan = np.exp(logs + found.f[:, None] + found.g)
    assert max(np.abs(plan.sum(k) - u).sum() for k in (0, 1)) <= 1e-12
    without = qk.bridge(Dense(logs), u, u, tol=1e-12, max_visits=1000, on_fail="ignore")
    assert not without.converged


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        (lambda i, j, p: (i, j), TypeError, r"wanted \(rows, columns, shares\), got tuple"),
        (lambda i, j, p: p, TypeError, r"wanted \(rows, columns, shares\), got ndarray"),
        (lambda i, j, p: (i * 1.0, j, p), TypeError, "wanted rows as an array of integers"),
        (lambda i, j, p: (i, list(j), p), TypeError, "wanted columns as an array of integers"),
        (
            lambda i, j, p: (i[1:], j, p),
            ValueError,
            "wanted rows and columns as vectors of the same",
        ),
        (lambda i, j, p: (i, j, p[1:]), ValueError, r"wanted shares as a float64 array of shape"),
        (lambda i, j, p: (i, j, p * np.nan), ValueError, "wanted shares without NaN"),
        (lambda i, j, p: (i[::-1], j[::-1], p), ValueError, "in the order of rows and of columns"),
        (lambda i, j, p: (i, j * 0, p), ValueError, "in the order of rows and of columns"),
        (lambda i, j, p: (i + 1, j, p), ValueError, r"wanted rows below 12 and .*got \(12, "),
        (lambda i, j, p: (i, j - 1, p), ValueError, r"columns below 9.*got \(0, -1\) at index 0"),
    ],
)
def test_wrong_entries_are_told(entries: Any, error: type[Exception], message: str) -> None:
    kernel, mu, nu = problem()
    kernel.entries = lambda *asked: entries(*kernel._entries(*asked))
    with pytest.raises(error, match=r"kernel\.entries: .*" + message):
        qk.bridge(kernel, mu, nu, solver="newton")
