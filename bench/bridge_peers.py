"""Other libraries for the cases of bridges.py: runs with a fixed number of iterations, and whole solves."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from harness import Array, Group, Iterated, LongAndShort, Options, PrintedIterations
from limits import BestRate
from peers import optional

KEOPS = "KeOps, as in GeomLoss"


class OneRead:
    """Seconds that reading so many bytes from memory takes, at the best rate seen in each round."""

    def __init__(self, options: Options, dtype: str, size: int) -> None:
        self.options, self.dtype, self.size = options, dtype, size

    def prepare(self, settle: float) -> None:
        self.sample(settle)

    def sample(self, settle: float) -> float:
        limit = BestRate(self.options, self.dtype, "dram_read")
        limit()  # runs in a separate process, which makes its own pause first
        return self.size / (limit.best * 1e9) if limit.best else 0.0

    def whole(self) -> Callable[[], object]:
        return BestRate(self.options, self.dtype, "dram_read")


def dense_peers(
    group: Group, C: Array, mu: Array, nu: Array, epsilon: float
) -> dict[str, Iterated]:
    """Sinkhorn's iteration on a cost matrix by POT and OTT."""
    found: dict[str, Iterated] = {}
    ot = optional("ot", group)
    if ot is not None:

        def plain(count: int) -> object:
            return ot.sinkhorn(
                mu, nu, C, epsilon, numItermax=count, stopThr=0, warn=False, verbose=True
            )

        def log(count: int) -> object:
            return ot.bregman.sinkhorn_log(
                mu, nu, C, epsilon, numItermax=count, stopThr=0, warn=False, verbose=True
            )

        # Both compute the error in every tenth iteration, and print it.
        found["POT sinkhorn"] = PrintedIterations(plain, 10)
        found["POT sinkhorn_log"] = PrintedIterations(log, 10)
    ott = ott_iterations(group, C, mu, nu, epsilon)
    if ott is not None:
        found["OTT"] = ott
    return found


def ott_iterations(group: Group, C: Array, mu: Array, nu: Array, epsilon: float) -> Iterated | None:
    jax, ott = optional("jax", group), optional("ott", group)
    if jax is None or ott is None:
        return None
    jax.config.update("jax_enable_x64", True)
    geometry = importlib.import_module("ott.geometry.geometry")
    linear = importlib.import_module("ott.problems.linear.linear_problem")
    solver = importlib.import_module("ott.solvers.linear.sinkhorn")
    problem = linear.LinearProblem(geometry.Geometry(cost_matrix=C, epsilon=epsilon), a=mu, b=nu)

    @cache
    def compiled(count: int) -> Any:
        """Computes the error only once, at the end, so that its time cancels in the difference of runs."""
        fixed = solver.Sinkhorn(
            threshold=-1.0, inner_iterations=count, min_iterations=count, max_iterations=count
        )
        return jax.jit(fixed).lower(problem).compile()

    return LongAndShort(
        lambda count: jax.block_until_ready(compiled(count)(problem).f), 1, 1, ready=compiled
    )


def torch_iterations(torch: Any, X: Array, Y: Array, beta: float) -> Any:
    """Row and column log-sum-exp by blocks; the scores of a block are one product of augmented points."""
    one = np.ones((len(X), 1), X.dtype)
    left = np.hstack([2 * beta * X, -beta * (X * X).sum(1, keepdims=True), one])
    right = np.hstack([Y, one, -beta * (Y * Y).sum(1, keepdims=True)])
    A, B = (torch.from_numpy(np.ascontiguousarray(side, dtype=X.dtype)) for side in (left, right))
    n, block = len(X), 256
    buffer = torch.empty((block, n), dtype=A.dtype)

    def half(P: Any, Q: Any, potential: Any) -> Any:
        out = torch.empty(n, dtype=A.dtype)
        for start in range(0, n, block):
            stop = min(start + block, n)
            S = torch.mm(P[start:stop], Q.T, out=buffer[: stop - start])
            S += potential
            torch.logsumexp(S, 1, out=out[start:stop])
        return -math.log(n) - out

    def run(count: int) -> object:
        g = torch.zeros(n, dtype=A.dtype)
        for _ in range(count):
            f = half(A, B, g)
            g = half(B, A, f)
        return g

    return run


def compiles(group: Group, call: Callable[[], object]) -> bool:
    """Whether KeOps, which runs a compiler on the user's machine, works here."""
    try:
        call()
    except Exception as problem:  # the exception depends on what is missing
        text = f"skipped: KeOps cannot compile here ({type(problem).__name__}: {problem})"
        group.notes.append(text.splitlines()[0])
        return False
    return True


def keops_iterations(group: Group, torch: Any, X: Array, Y: Array, beta: float) -> Any:
    """Sinkhorn's iteration as in GeomLoss's online backend: KeOps reductions, compiled at their first call.

    KeOps is called directly, because GeomLoss's public functions anneal eps and cannot run a fixed number of
    iterations. As whole solvers they take part in the case "from points to a solution".
    """
    keops = optional("pykeops", group) if torch is not None else None
    if keops is None:
        return None
    lazy = importlib.import_module("pykeops.torch").LazyTensor
    n = len(X)
    x, y = torch.from_numpy(X), torch.from_numpy(Y)

    def half(a: Any, b: Any, potential: Any) -> Any:
        distance = ((lazy(a[:, None, :]) - lazy(b[None, :, :])) ** 2).sum(-1)
        scores = lazy(potential.view(1, -1, 1)) - beta * distance
        return -math.log(n) - scores.logsumexp(dim=1).view(-1)

    def run(count: int) -> Any:
        g = torch.zeros(n, dtype=x.dtype)
        for _ in range(count):
            f = half(x, y, g)
            g = half(y, x, f)
        return g

    # The compiled formula depends only on the type and d.
    if not compiles(group, lambda: half(x[:2], y[:2], torch.zeros(2, dtype=x.dtype))):
        return None
    return run


def geomloss_solver(
    group: Group, torch: Any, clouds: tuple[Array, ...], blur: float, scaling: float, backend: str
) -> Callable[[], tuple[Array, Array]] | None:
    """GeomLoss's F and G of the plan mu_i nu_j exp((F_i + G_j - |x_i - y_j|^2 / 2) / blur^2)."""
    X, mu, Y, nu = clouds
    geomloss = optional("geomloss", group) if torch is not None else None
    if geomloss is None or (backend == "online" and optional("pykeops", group) is None):
        return None
    loss = geomloss.SamplesLoss(
        "sinkhorn", p=2, blur=blur, scaling=scaling, debias=False, backend=backend,
        potentials=True,
    )  # fmt: skip

    def solve(X: Array, mu: Array, Y: Array, nu: Array) -> tuple[Array, Array]:
        x, a, y, b = (torch.from_numpy(part) for part in (X, mu, Y, nu))
        F, G = loss(a, x, b, y)
        return np.asarray(F).ravel(), np.asarray(G).ravel()

    few, tenths = slice(0, 10), np.full(10, 0.1)
    if not compiles(group, lambda: solve(X[few], tenths, Y[few], tenths)):
        return None
    return partial(solve, X, mu, Y, nu)
