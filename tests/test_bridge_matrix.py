"""Every bridge solver over every family of kernels, against Sinkhorn's iteration in extended precision."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

import qkcore as qk
from qkcore._device import _backend
from qkcore.factors import LowRank, nystrom

from . import fake_cuda
from .factors import DTYPES, Array, factors
from .own_kernels import Dense

N, M = 23, 17
SOLVERS = (
    "auto",
    "alternating",
    "relaxed",
    "anderson",
    "newton",
    "accelerated",
    "symmetric",
    "annealed",
)


class Family(NamedTuple):
    kernel: Any  # scores, factors, steps of a chain, an object
    logs: Array  # the scores of the kernel, in extended precision
    mu: Array
    nu: Array
    options: Mapping[str, Any] = MappingProxyType({})
    on_device: bool = False

    def solve(self, mu: Array | None = None, nu: Array | None = None, **options: Any) -> Any:
        call: Any = qk.bridge_chain if isinstance(self.kernel, list) else qk.bridge
        ends = (self.mu if mu is None else mu), (self.nu if nu is None else nu)
        moved: Any = map(fake_cuda.asarray, ends) if self.on_device else ends
        return call(self.kernel, *moved, **self.options, **options)


def potentials(b: Any) -> tuple[Array, Array]:
    return tuple(
        fake_cuda.numpy(x) if isinstance(x, fake_cuda.FakeArray) else x for x in (b.f, b.g)
    )  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    if not fake_cuda.built():
        yield
        return
    before = _backend._use(fake_cuda.module())
    fake_cuda.module().simt_clear()
    yield
    assert fake_cuda.module().simt_reports() == ""
    _backend._use(before)


def law(n: int, dtype: str, seed: int) -> Array:
    weights = np.random.default_rng(seed).uniform(0.5, 1.5, n)
    out: Array = (weights / weights.sum()).astype(dtype)
    return out


def extended(*arrays: Array) -> list[Array]:
    return [x.astype(np.longdouble) for x in arrays]


def squares(x: Array, y: Array) -> Array:
    out: Array = np.square(x[:, None] - y).sum(-1)
    return out


def points(dtype: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(N, 2)).astype(dtype), rng.normal(size=(M, 2)).astype(dtype)


def ends(n: int, m: int, dtype: str) -> tuple[Array, Array]:
    mu, nu = law(n, dtype, 1), law(m, dtype, 2)
    return mu, (nu * (mu.sum() / nu.sum())).astype(dtype)


def dense(dtype: str) -> Family:
    Z = (2 * np.random.default_rng(0).normal(size=(N, M))).astype(dtype)
    return Family(qk.scores.dense(Z), *extended(Z), *ends(N, M, dtype))


def from_points(dtype: str) -> Family:
    x, y = points(dtype)
    s = qk.scores.distance(x, y, beta=0.5)
    return Family(s, -0.5 * squares(*extended(x, y)), *ends(N, M, dtype))


def masked(dtype: str) -> Family:
    one = dense(dtype)
    keep = np.random.default_rng(5).random((N, M)) < 0.7
    return one._replace(kernel=one.kernel.masked(keep), logs=np.where(keep, one.logs, -np.inf))


def summed(dtype: str) -> Family:
    one, other = dense(dtype), from_points(dtype)
    x, y = points(dtype)
    s = one.kernel + other.kernel + qk.scores.dot(x, y, beta=0.25)
    wide = extended(x, y)
    return one._replace(kernel=s, logs=one.logs + other.logs + 0.25 * (wide[0] @ wide[1].T))


def symmetric(dtype: str) -> Family:
    x, _ = points(dtype)
    mu = law(N, dtype, 1)
    return Family(qk.scores.distance(x), -squares(*extended(x, x)), mu, mu)


def symmetric_products(dtype: str) -> Family:
    """Inner products: symmetric, and stored in full."""
    x, _ = points(dtype)
    mu = law(N, dtype, 1)
    (wide,) = extended(x)
    return Family(qk.scores.dot(x), wide @ wide.T, mu, mu)


def factored(dtype: str) -> Family:
    (K,) = factors(N, M, (3,), dtype, positive=True)
    left, right = extended(K.left, K.right)
    return Family(K, np.log(left @ right), *ends(N, M, dtype))


def product_of_factors(dtype: str) -> Family:
    experts = factors(N, M, (3, 2), dtype, positive=True)
    parts = [np.log(np.matmul(*extended(K.left, K.right))) for K in experts]
    return Family(qk.poe(*experts), sum(parts), *ends(N, M, dtype))


def signed_factors(dtype: str) -> Family:
    """Factors with both signs, of a kernel without negative entries."""
    (K,) = factors(N, M, (3,), dtype)
    left = np.c_[K.left, np.full(N, 12, dtype)]
    right = np.r_[K.right, np.ones((1, M), dtype)]
    wide = np.matmul(*extended(left, right))
    assert wide.min() > 0 and K.left.min() < 0
    return Family(LowRank(left, right), np.log(wide), *ends(N, M, dtype))


def from_landmarks(dtype: str) -> Family:
    x, _ = points(dtype)
    K = nystrom(qk.scores.distance(x, beta=0.05), N)
    wide = np.matmul(*extended(K.left, K.right))
    mu, nu = ends(N, N, dtype)
    return Family(K, np.log(wide), mu, nu)


def chained(dtype: str) -> Family:
    rng = np.random.default_rng(9)
    steps = [rng.normal(size=shape).astype(dtype) for shape in ((N, 9), (9, 13), (13, M))]
    wide = np.exp(extended(steps[0])[0])
    for Z in extended(*steps[1:]):
        wide = wide @ np.exp(Z)
    return Family([qk.scores.dense(Z) for Z in steps], np.log(wide), *ends(N, M, dtype))


def given(dtype: str) -> Family:
    one = dense(dtype)
    return one._replace(kernel=Dense(one.kernel.to_numpy()))


def given_symmetric(dtype: str) -> Family:
    one = symmetric(dtype)
    return one._replace(kernel=Dense(one.kernel.to_numpy(), symmetric=True))


def given_with_entries(dtype: str) -> Family:
    one = given(dtype)
    one.kernel.entries = one.kernel._entries
    return one


def given_without_curvature(dtype: str) -> Family:
    one = given(dtype)
    one.kernel.curvature = None
    return one


def given_without_scaled(dtype: str) -> Family:
    one = given(dtype)
    one.kernel.scaled = None
    return one


def on_device(family: Callable[[str], Family]) -> Callable[[str], Family]:
    def moved(dtype: str) -> Family:
        one = family(dtype)
        return one._replace(kernel=to_device(one.kernel), on_device=True)

    return moved


def to_device(s: Any) -> Any:
    """Scores of the same terms on the pretended device."""
    parts = [qk.scores.dense(fake_cuda.asarray(z)) * c for z, c in s.terms.dense]
    for terms, make in ((s.terms.dots, qk.scores.dot), (s.terms.distances, qk.scores.distance)):
        for x, y, c, *_ in terms:
            here = fake_cuda.asarray(x)
            there = here if np.shares_memory(x, y) else fake_cuda.asarray(y)
            parts.append(make(here, there, beta=c))
    out = sum(parts[1:], parts[0])
    for mask in s.terms.masks:
        out = out.masked(fake_cuda.asarray(mask.astype(bool)))
    return out


def on_the_fly(family: Callable[[str], Family]) -> Callable[[str], Family]:
    return lambda dtype: family(dtype)._replace(options={"max_memory": 0})


FAMILIES: dict[str, Callable[[str], Family]] = {
    "dense": dense,
    "points": from_points,
    "masked": masked,
    "sum": summed,
    "symmetric": symmetric,
    "inner products": symmetric_products,
    "dense, on the fly": on_the_fly(dense),
    "points, on the fly": on_the_fly(from_points),
    "masked, on the fly": on_the_fly(masked),
    "sum, on the fly": on_the_fly(summed),
    "symmetric, on the fly": on_the_fly(symmetric),
    "factored": factored,
    "product of factors": product_of_factors,
    "signed factors": signed_factors,
    "nystrom": from_landmarks,
    "chain": chained,
    "given": given,
    "given, symmetric": given_symmetric,
    "given, with entries": given_with_entries,
    "given, without curvature": given_without_curvature,
    "given, without scaled": given_without_scaled,
}
DEVICE = {
    f"{name}, on a device{at}": on_device(family)
    for at, change in (("", lambda family: family), ("; two exps", on_the_fly))
    for name, family in {
        "dense": change(dense),
        "points": change(from_points),
        "masked": change(masked),
        "sum": change(summed),
        "symmetric": change(symmetric),
        "inner products": change(symmetric_products),
    }.items()
}
FAMILIES |= DEVICE
NAMES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name in DEVICE and not fake_cuda.built(), reason="not built: make simt"
        ),
    )
    for name in FAMILIES
]
ZEROS = ("factored", "product of factors", "chain", "given", "dense", "dense, on a device")


def refusal(name: str, solver: str) -> str | None:
    """What a solver says of a family that it cannot do anything with."""
    if solver == "annealed" and name == "given, without scaled":
        return re.escape("kernel: wanted a method scaled(factor)")
    if solver == "symmetric" and not ("symmetric" in name or name.startswith("inner products")):
        return "solver: wanted symmetric scores and mu = nu"
    if solver in ("newton", "accelerated", "annealed") and name == "given, without curvature":
        return re.escape("kernel: wanted a method curvature(x, mass)")
    return None


def sinkhorn(logs: Array, mu: Array, nu: Array) -> Array:
    """The coupling, by Sinkhorn's iteration in extended precision."""
    mu, nu = extended(mu, nu)
    nu = nu * (mu.sum() / nu.sum())
    K = np.exp(logs - logs.max(axis=1, keepdims=True))
    v = np.ones_like(nu)
    for _ in range(100_000):
        u = mu / (K @ v)
        reached = v * (K.T @ u)
        if np.abs(reached - nu).sum() < 1e-15:
            break
        v = nu / (K.T @ u)
    plan: Array = u[:, None] * K * v
    np.testing.assert_allclose(np.asarray(plan.sum(0), float), np.asarray(nu, float), atol=1e-14)
    return plan


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", NAMES)
def test_every_solver_reaches_every_kernel(name: str, solver: str, dtype: str) -> None:
    one = FAMILIES[name](dtype)
    if (message := refusal(name, solver)) is not None:
        with pytest.raises(ValueError, match=message):
            one.solve(solver=solver)
        return
    b = one.solve(solver=solver)
    f, g = potentials(b)
    assert b.converged and b.status == "converged"
    assert f.dtype == g.dtype == dtype
    assert b.method.startswith("" if solver == "auto" else solver)
    want = sinkhorn(one.logs, one.mu, one.nu)
    with np.errstate(divide="ignore"):
        got = np.exp(one.logs + f.astype(np.longdouble)[:, None] + g)
    # The conditions are met to within tol; what remains is how far rounded potentials are from the solution.
    assert float(np.abs(got - want).sum()) <= 30 * b.tol
    assert abs(float(one.nu.astype(float) @ g.astype(float))) < (
        1e-5 if dtype == "float32" else 1e-12
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_starts_from_a_result_and_reports(name: str) -> None:
    one = FAMILIES[name]("float64")
    seen: list[tuple[int, float]] = []
    b = one.solve(callback=lambda *now: seen.append(now))
    assert len(seen) == b.n_iter and seen[-1][0] <= b.n_visits
    assert seen[-1][1] == b.errors[-1]
    again = one.solve(init=b)
    assert again.converged and again.n_iter <= 2
    pair = one.solve(init=(b.f, b.g))
    assert pair.converged and pair.n_iter <= 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_penalties_reach_every_kernel(name: str, dtype: str) -> None:
    """Row sums mu exp(-f / a), column sums nu exp(-g / b), from marginals of different mass."""
    one = FAMILIES[name](dtype)
    a, b = 0.7, 2.0
    mu, nu = one.mu, (3 * one.nu).astype(dtype)
    found = one.solve(mu, nu, penalty=(a, b))
    assert found.converged
    f, g = extended(*potentials(found))
    plan = np.exp(one.logs + f[:, None] + g)
    off = (
        np.abs(plan.sum(1) - mu * np.exp(-f / a)).sum()
        + np.abs(plan.sum(0) - nu * np.exp(-g / b)).sum()
    )
    assert float(off / plan.sum()) <= 2 * found.tol * 1.01


@pytest.mark.parametrize("name", [one for one in NAMES if one.values[0] in ZEROS])
@pytest.mark.parametrize("solver", ["newton", "anderson", "relaxed"])
def test_weights_of_zero_are_exact_for_every_kernel(name: str, solver: str) -> None:
    one = FAMILIES[name]("float64")
    mu, nu = one.mu.copy(), one.nu.copy()
    mu[4] = nu[2] = 0
    mu, nu = mu / mu.sum(), nu / nu.sum()
    b = one.solve(mu, nu, solver=solver)
    f, g = potentials(b)
    assert b.converged and np.isneginf(f[4]) and np.isneginf(g[2])
    rows, cols = np.delete(np.arange(N), 4), np.delete(np.arange(M), 2)
    want = sinkhorn(one.logs[np.ix_(rows, cols)], mu[rows], nu[cols])
    got = np.exp(one.logs + f[:, None] + g)
    assert float(np.abs(got[np.ix_(rows, cols)] - want).sum()) <= 30 * b.tol
    assert not got[4].any() and not got[:, 2].any()


def test_chains_are_annealed_by_the_scores_of_every_step() -> None:
    """Potentials of some hundreds: the stages come near, where thousands of plain visits do not arrive."""
    rng = np.random.default_rng(4)
    steps = [100 * rng.random(shape) for shape in ((N, 9), (9, N))]
    u = np.full(N, 1 / N)
    chain = [qk.scores.dense(Z) for Z in steps]
    b = qk.bridge_chain(chain, u, u, solver="annealed")
    whole = np.logaddexp.reduce(steps[0][:, :, None] + steps[1], axis=1)
    want = qk.bridge(qk.scores.dense(whole), u, u)
    assert b.converged and want.converged and b.method == "annealed, 2 steps"
    np.testing.assert_allclose(np.exp(b.f[:, None] + whole + b.g), want.plan(), atol=1e-8)
    plain = qk.bridge_chain(
        chain, u, u, solver="alternating", max_iter=b.n_visits, on_fail="ignore"
    )
    assert not plain.converged


def test_batches_tell_what_each_problem_took() -> None:
    hard = 60 * np.random.default_rng(0).random((N, N))
    u = np.full(N, 1 / N)
    b = qk.bridge(qk.scores.dense(np.stack([hard / 100, hard])), u, u)
    assert np.all(b.converged)
    assert b.method.tolist() == ["anderson, stored", "anderson, then newton, stored"]
    assert [one.method for one in b] == b.method.tolist()
    assert "(anderson, stored, or anderson, then newton, stored)" in str(b)
    few = qk.bridge(qk.scores.dense(np.stack([hard, hard])), u, u, max_memory=0, solver="newton")
    assert few.method.tolist() == ["newton, on the fly"] * 2


def test_entries_live_where_memory_allows() -> None:
    """One decision for all: the triangle where it fits, nothing stored where nothing may be."""
    x = np.random.default_rng(0).normal(size=(64, 2))
    u = np.full(64, 1 / 64)
    s = qk.scores.distance(x)
    whole, half = 64 * 64 * 8, 64 * 65 // 2 * 8 + 64 * 64
    assert qk.bridge(s, u, u).method == "symmetric, stored"
    assert qk.bridge(s, u, u, max_memory=whole * 1.5).method == "symmetric, stored"
    assert qk.bridge(s, u, u, max_memory=half // 4).method == "symmetric, on the fly"
    assert qk.bridge(s, u, u, max_memory=whole, solver="newton").method == "newton, stored"
    assert qk.bridge(s, u, u, max_memory=whole - 1, solver="newton").method == "newton, on the fly"
    far = x * 40  # in single precision some entries vanish next to others
    for dtype in DTYPES:
        for memory in (None, 0):
            found = qk.bridge(
                qk.scores.distance(far.astype(dtype)),
                u.astype(dtype),
                u.astype(dtype),
                max_memory=memory,
            )
            assert found.converged
            np.testing.assert_allclose(found.plan().sum(0), u, rtol=1e-3)
