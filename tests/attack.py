"""Random hard bridges, and an oracle in extended precision that uses no code of the library.

``python -m tests.attack 20000`` runs a campaign and prints what it found; tests/test_attack.py runs a
small one.
"""

from __future__ import annotations

import collections
import math
import sys
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import qkcore as qk

Long = np.longdouble
SOLVERS = ("auto", "alternating", "relaxed", "anderson", "accelerated", "newton", "annealed")


@dataclass
class Problem:
    """Scores for the library, the same in extended precision, marginals and options."""

    scores: Any
    exact: list[Any]  # one array (n, m) per problem of the batch
    mu: Any
    nu: Any
    options: dict[str, Any]
    parts: list[tuple[Any, Any]]  # where each problem's rows and columns lie in mu and nu
    label: str


def weights(rng: np.random.Generator, n: int, dtype: str, mass: float) -> Any:
    """Weights of a given mass: uniform, uneven, spread over many orders of magnitude, with zeros.

    The smallest are 1e-300.
    """
    kind = rng.integers(5)
    w = np.ones(n) if kind == 0 else rng.random(n) + 1e-3
    if kind == 2:
        w = 10.0 ** rng.uniform(-12, 0, n)
    if kind == 3:
        w = 10.0 ** rng.uniform(-288 if dtype == "float64" else -25, 0, n)
    if kind == 4 and n > 1:
        w[rng.random(n) < 0.3] = 0
    if not w.any():
        w[0] = 1.0
    return (w / w.sum() * mass).astype(dtype)


def same_mass(mu: Any, nu: Any) -> Any:
    """nu scaled to the mass of mu, in the dtype."""
    return (nu.astype(Long) * (mu.astype(Long).sum() / nu.astype(Long).sum())).astype(nu.dtype)


def one_scores(rng: np.random.Generator, n: int, m: int, dtype: str) -> tuple[Any, Any, str]:
    scale = 10.0 ** rng.uniform(-2, 4 if dtype == "float64" else 2.5)
    kind = str(rng.choice(["dense", "distance", "dot", "sum"]))
    d = int(rng.integers(1, 6))
    X, Y = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(m, d)).astype(dtype)
    beta = float(np.dtype(dtype).type(scale / (4 * d)))
    Z = (scale * rng.normal(size=(n, m))).astype(dtype)
    x, y = X.astype(Long), Y.astype(Long)
    squares = ((x[:, None] - y) ** 2).sum(-1)
    if kind == "dense":
        return qk.scores.dense(Z), Z.astype(Long), kind
    if kind == "distance":
        return qk.scores.distance(X, Y, beta=beta), -Long(beta) * squares, kind
    if kind == "dot":
        return qk.scores.dot(X, Y, beta=beta), Long(beta) * (x @ y.T), kind
    together = qk.scores.distance(X, Y, beta=beta) + qk.scores.dense(Z)
    return together, Z.astype(Long) - Long(beta) * squares, kind


def masked(rng: np.random.Generator, s: Any, exact: Any) -> tuple[Any, Any, str]:
    n, m = exact.shape
    kind = rng.integers(6)
    if kind == 0:
        keep = rng.random((n, m)) < 0.7
        keep[np.arange(n), rng.integers(m, size=n)] = True
        return s.masked(keep), np.where(keep, exact, -np.inf), "masked"
    if kind == 1:
        offset = int(rng.integers(-1, m + 1))
        keep = np.arange(m) <= np.arange(n)[:, None] + offset
        return s.causal(offset), np.where(keep, exact, -np.inf), "causal"
    return s, exact, "full"


def draw(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["float32", "float64"]))
    n, m = (int(x) for x in rng.integers(1, 9 if rng.random() < 0.7 else 40, 2))
    mass = 10.0 ** float(rng.choice([0, 0, 0, -12, 12, -6, 6]))
    unbalanced = rng.random() < 0.35
    solver = "auto" if unbalanced or rng.random() < 0.3 else str(rng.choice(SOLVERS))
    options: dict[str, Any] = {"solver": solver, "max_iter": 2000}
    if rng.random() < 0.3:
        options["max_memory"] = 0
    if rng.random() < 0.3:
        options["tol"] = float(10.0 ** rng.uniform(-6 if dtype == "float32" else -13, -2))
    if unbalanced:
        pair = [float(10.0 ** rng.uniform(-2, 3)) if rng.random() < 0.8 else math.inf for _ in "ab"]
        if all(map(math.isinf, pair)):
            pair[0] = 1.0
        options["penalty"] = tuple(pair)
    count = int(rng.integers(2, 5)) if rng.random() < 0.2 and solver != "annealed" else 0
    if count:
        Z = (10.0 ** rng.uniform(-1, 2) * rng.normal(size=(count, n, m))).astype(dtype)
        s, exact, label = qk.scores.dense(Z), list(Z.astype(Long)), "batch"
        mu = np.stack([weights(rng, n, dtype, mass) for _ in range(count)])
        nu = np.stack([weights(rng, m, dtype, mass) for _ in range(count)])
        if not unbalanced:
            nu = np.stack([same_mass(a, b) for a, b in zip(mu, nu, strict=True)])
        parts = [(k, k) for k in range(count)]
        return Problem(s, exact, mu, nu, options, parts, f"{label} {dtype}")
    s, one, kind = one_scores(rng, n, m, dtype)
    s, one, mask = masked(rng, s, one)
    mu, nu = weights(rng, n, dtype, mass), weights(rng, m, dtype, mass)
    if not unbalanced:
        nu = same_mass(mu, nu)
    every = (slice(None), slice(None))
    return Problem(s, [one], mu, nu, options, [every], f"{kind} {mask} {dtype}")


def true_residual(p: Problem, k: int, f: Any, g: Any) -> float:
    """L1 error of the worse side of problem k as a share of the mass, in extended precision."""
    at = p.parts[k]
    mu, nu = (w[where].astype(Long) for w, where in zip((p.mu, p.nu), at, strict=True))
    f, g = f[at[0]].astype(Long), g[at[1]].astype(Long)
    penalty = p.options.get("penalty", (math.inf, math.inf))
    with np.errstate(invalid="ignore"):
        log = np.where(np.isneginf(p.exact[k]), -np.inf, p.exact[k] + f[:, None] + g)
    log[np.isneginf(f)] = -np.inf
    log[:, np.isneginf(g)] = -np.inf
    balanced = all(map(math.isinf, penalty))
    top = Long(0) if balanced else log.max()
    if np.isneginf(top):  # the empty plan, which is right only if no entry with weights is left
        seen = ~np.isneginf(p.exact[k]) & (mu > 0)[:, None] & (nu > 0)
        return math.inf if seen.any() else 0.0
    with np.errstate(over="ignore"):  # potentials of a problem without a solution may diverge
        plan = np.exp(log - top)
    worst = Long(0)
    for sums, w, potential, strength, axis in (
        (plan.sum(1), mu, f, penalty[0], 1),
        (plan.sum(0), nu, g, penalty[1], 0),
    ):
        if math.isinf(strength):
            wanted = w * np.exp(-top)
        else:
            # A row without entries has no mass, whatever the penalty is.
            reached = (~np.isneginf(p.exact[k]) & _live(nu if axis else mu, axis)).any(axis=axis)
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                wanted = np.exp(np.log(w) - potential / Long(strength) - top)
            wanted = np.where((w > 0) & (reached | ~np.isneginf(potential)), wanted, 0)
        mass = wanted.sum() if math.isinf(strength) else sums.sum()
        worst = max(worst, np.abs(sums - wanted).sum() / mass)
    return float(worst)


def _live(other: Any, axis: int) -> Any:
    return (other > 0)[None, :] if axis else (other > 0)[:, None]


@dataclass
class Outcome:
    status: str
    error: float
    true: float
    tol: float
    label: str
    seed: int

    @property
    def false_claim(self) -> bool:
        return self.status == "converged" and not self.true <= self.tol

    @property
    def misreported(self) -> bool:
        """An error that is said to be far from what it is."""
        if self.status != "converged":
            return False
        return abs(self.error - self.true) > 0.1 * self.tol + 1e-3 * self.true


def attack(seed: int) -> list[Outcome]:
    """One problem in five is of another family than `qk.bridge` on scores."""
    families = (symmetric, one_sided, factored, chain, self_bridge)
    if seed % 5 == 0:
        return families[seed // 5 % len(families)](seed)
    return of_scores(seed)


def of_scores(seed: int) -> list[Outcome]:
    p = draw(seed)
    try:
        b = quietly(qk.bridge, p.scores, p.mu, p.nu, on_fail="ignore", **p.options)
    except OverflowError:
        status = "out of range" if out_of_range(p) else "OverflowError"
        return [Outcome(status, math.inf, math.inf, 0.0, p.label, seed)]
    return outcomes(p, b, seed)


def out_of_range(p: Problem) -> bool:
    """Whether the mass of the solution leaves the range of the dtype, as small penalties allow."""
    a, b = p.options.get("penalty", (math.inf, math.inf))
    if math.isinf(a) and math.isinf(b):
        return False
    (rows, columns), Z = p.parts[0], p.exact[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        mu, nu = np.log(p.mu[rows].astype(Long)), np.log(p.nu[columns].astype(Long))
        damping = [1.0 if math.isinf(x) else x / (1 + x) for x in (a, b)]
        f, g = np.zeros_like(mu), np.where(np.isneginf(nu), -np.inf, 0)
        for _ in range(2000):
            f = np.where(np.isneginf(mu), -np.inf, damping[0] * (mu - log_sum(Z + g, 1)))
            f[np.isposinf(f)] = -np.inf  # a row whose entries are all masked
            g = np.where(np.isneginf(nu), -np.inf, damping[1] * (nu - log_sum(Z + f[:, None], 0)))
            g[np.isposinf(g)] = -np.inf
        log_mass = log_sum((f[:, None] + Z + g).ravel(), 0)
    range_of = np.finfo(p.mu.dtype)
    return not math.log(range_of.tiny) < log_mass < math.log(range_of.max)


def log_sum(x: Any, axis: int) -> Any:
    return np.logaddexp.reduce(np.where(np.isnan(x), -np.inf, x), axis=axis)


def quietly(call: Any, *args: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call(*args, **options)


def outcomes(p: Problem, b: Any, seed: int) -> list[Outcome]:
    out = []
    for k in range(len(p.exact)):
        status, error = (str(np.ravel(b.status)[k]), float(np.ravel(b.error)[k]))
        out.append(Outcome(status, error, true_residual(p, k, b.f, b.g), b.tol, p.label, seed))
    return out


# ---- other families ------------------------------------------------------------------------------


def start(seed: int) -> tuple[np.random.Generator, str, float]:
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["float32", "float64"]))
    return rng, dtype, 10.0 ** float(rng.choice([0, 0, -12, 12]))


def symmetric(seed: int) -> list[Outcome]:
    """A cloud to itself, by the averaged update or any other solver."""
    rng, dtype, mass = start(seed)
    n, d = int(rng.integers(1, 30)), int(rng.integers(1, 4))
    X = rng.normal(size=(n, d)).astype(dtype)
    beta = float(np.dtype(dtype).type(10.0 ** rng.uniform(-1, 3 if dtype == "float64" else 1.5)))
    x = X.astype(Long)
    exact = -Long(beta) * ((x[:, None] - x) ** 2).sum(-1)
    mu = weights(rng, n, dtype, mass)
    solver = str(rng.choice(["auto", "symmetric", "newton"]))
    b = quietly(
        qk.bridge, qk.scores.distance(X, beta=beta), mu, mu, solver=solver, on_fail="ignore"
    )
    every = (slice(None), slice(None))
    return outcomes(Problem(None, [exact], mu, mu, {}, [every], f"symmetric {dtype}"), b, seed)


def one_sided(seed: int) -> list[Outcome]:
    """Rows met in one step; columns are free."""
    rng, dtype, mass = start(seed)
    n, m = (int(x) for x in rng.integers(1, 30, 2))
    s, exact, label = one_scores(rng, n, m, dtype)
    s, exact, mask = masked(rng, s, exact)
    mu = weights(rng, n, dtype, mass)
    b = quietly(qk.semi_relaxed, s, mu, reference=weights(rng, m, dtype, 1.0))
    with np.errstate(invalid="ignore"):
        log = exact + b.f.astype(Long)[:, None] + b.g.astype(Long)
    rows = np.exp(np.where(np.isnan(log), -np.inf, log)).sum(1)
    true = float(np.abs(rows - mu.astype(Long)).sum() / mu.astype(Long).sum())
    return [Outcome(b.status, b.error, true, b.tol, f"one-sided {label} {mask} {dtype}", seed)]


def factored(seed: int) -> list[Outcome]:
    """Products of one or two experts, positive or of both signs."""
    rng, dtype, mass = start(seed)
    n, m = (int(x) for x in rng.integers(1, 30, 2))
    experts, kernel = [], np.ones((n, m), Long)
    for _ in range(int(rng.integers(1, 3))):
        r = int(rng.integers(1, 5))
        left, right = (10.0 ** rng.uniform(-3, 1, k) for k in ((n, r), (r, m)))
        if rng.random() < 0.3:
            left, right = left * rng.normal(size=left.shape), right + 0.1
        left, right = left.astype(dtype), right.astype(dtype)
        experts.append(qk.LowRank(left, right))
        kernel *= left.astype(Long) @ right.astype(Long)
    mu, nu = weights(rng, n, dtype, mass), weights(rng, m, dtype, mass)
    K = experts[0] if len(experts) == 1 else qk.poe(*experts)
    b = quietly(qk.bridge, K, mu, same_mass(mu, nu), max_iter=2000, on_fail="ignore")
    plan = b.u.astype(Long)[:, None] * kernel * b.v.astype(Long)
    pairs = ((plan.sum(1), b.mu), (plan.sum(0), b.nu))
    true = max(float(np.abs(x - w.astype(Long)).sum() / w.astype(Long).sum()) for x, w in pairs)
    if b.converged and plan.min() < -1e-4 * plan.max():
        true = math.inf  # a coupling has no negative entries
    return [Outcome(b.status, b.error, true, b.tol, f"factored {dtype}", seed)]


def chain(seed: int) -> list[Outcome]:
    """Two or three steps; products of the kernels in extended precision."""
    rng, dtype, mass = start(seed)
    sizes = [int(x) for x in rng.integers(1, 12, int(rng.integers(3, 5)))]
    steps = [
        (10.0 ** rng.uniform(-1, 1.5) * rng.normal(size=pair)).astype(dtype)
        for pair in pairwise(sizes)
    ]
    mu, nu = weights(rng, sizes[0], dtype, mass), weights(rng, sizes[-1], dtype, mass)
    dense = [qk.scores.dense(z) for z in steps]
    b = quietly(qk.bridge_chain, dense, mu, same_mass(mu, nu), max_iter=2000, on_fail="ignore")
    exact = steps[0].astype(Long)
    for z in steps[1:]:
        exact = np.logaddexp.reduce(exact[:, :, None] + z.astype(Long), axis=1)
    every = (slice(None), slice(None))
    return outcomes(Problem(None, [exact], b.mu, b.nu, {}, [every], f"chain {dtype}"), b, seed)


def self_bridge(seed: int) -> list[Outcome]:
    """The bridge behind barycentric projections."""
    rng, dtype, _ = start(seed)
    n, d = int(rng.integers(1, 30)), int(rng.integers(1, 4))
    X = rng.normal(size=(n, d)).astype(dtype)
    epsilon = float(np.dtype(dtype).type(10.0 ** rng.uniform(-3 if dtype == "float64" else -1, 1)))
    w = weights(rng, n, dtype, 1.0)
    b = quietly(qk.isb.barycentric, X, epsilon, w, on_fail="ignore")
    x, g = X.astype(Long), b.potential.astype(Long)
    log = g[:, None] + g - Long(1 / (2 * epsilon)) * ((x[:, None] - x) ** 2).sum(-1)
    true = float(np.abs(np.exp(log).sum(1) - b.weights.astype(Long)).sum())
    return [Outcome(b.status, b.error, true, b.tol, f"self bridge {dtype}", seed)]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    seen: collections.Counter[str] = collections.Counter()
    bad = 0
    for seed in range(first, first + count):
        for one in attack(seed):
            seen[one.status] += 1
            if one.false_claim or one.misreported or one.status == "OverflowError":
                bad += 1
                print(one)
    print(f"{count} problems from seed {first}: {dict(seen)}; {bad} to look at")


if __name__ == "__main__":
    main()
