"""DiffusionMap on the full kernel against a NumPy kernel with SciPy's eigsh."""

from __future__ import annotations

import numpy as np
from scipy.sparse.linalg import eigsh

import qkcore as qk
from harness import Array, Call, Group, Options, Row, interleave, peak_growth_mb
from qkcore import diffusion

K = 10
WANTED = 3.0
MEMORY_MB = 1000.0
BOUND = 1e-12  # largest error of an eigenvalue; all are at most 1


def points(n: int) -> Array:
    """A Swiss roll of 28 by 21 by 28."""
    rng = np.random.default_rng(n)
    angle = 1.5 * np.pi * (1 + 2 * rng.random(n))
    return np.column_stack([angle * np.cos(angle), 21 * rng.random(n), angle * np.sin(angle)])


def ours(options: Options, n: int, beta: float, lazy: bool = False) -> Call:
    X = points(n)
    model = diffusion.DiffusionMap(K, beta=beta, n_threads=options.threads)
    if lazy:
        model.set_params(max_memory=0)

    def call() -> Array:
        values: Array = model.fit(X).eigenvalues_
        return values

    return call


def numpy_eigsh(options: Options, n: int, beta: float) -> Call:
    """NumPy in place: one product of augmented points, exp and two scalings, followed by ARPACK."""
    X = points(n)

    def call() -> Array:
        norm = beta * (X * X).sum(axis=1)
        one = np.ones(n)
        S = np.column_stack([2 * beta * X, -norm, one]) @ np.column_stack([X, one, -norm]).T
        np.exp(S, out=S)
        Z = S @ one
        root = 1 / np.sqrt(Z)
        S *= root[:, None]
        S *= root
        # ARPACK must not start from the known leading eigenvector, as it would find little else then.
        start = np.sqrt(Z) * (1 + 0.5 * np.cos(np.arange(n)))
        values, vectors = eigsh(S, k=K + 1, which="LA", v0=start)
        vectors *= root[:, None]
        return np.asarray(values[::-1][1:])

    return call


def exact_eigenvalues(n: int, beta: float) -> Array:
    S = diffusion.symmetric_conjugate(diffusion.operator(points(n), beta=beta)).to_numpy()
    return np.asarray(np.linalg.eigvalsh(S)[::-1][1 : K + 1])


def run_case(group: Group, options: Options, n: int, rule: str) -> None:
    beta = diffusion.choose_beta(points(n), rule).beta
    calls = {
        "qkcore": ours(options, n, beta),
        "qkcore, nothing formed": ours(options, n, beta, lazy=True),
        "NumPy and eigsh": numpy_eigsh(options, n, beta),
    }
    exact = exact_eigenvalues(n, beta)
    errors = {name: float(np.abs(call() - exact).max()) for name, call in calls.items()}
    rounds, budget = (5, 5.0) if options.quick else (9, 20.0)
    timings = interleave(calls, rounds=rounds, budget=budget)
    case = f'N={n}, beta "{rule}"'
    mine = timings["qkcore"].minimum
    for name, timing in timings.items():
        job = "numpy_eigsh" if name.startswith("NumPy") else "ours"
        lazy = {"lazy": True} if "formed" in name else {}
        memory = peak_growth_mb("diffusion", job, options, n=n, beta=beta, **lazy)
        group.add(Row(case, name, timing, n * n, timing.minimum / mine, errors[name], memory))
    for name in ("qkcore", "qkcore, nothing formed"):
        group.check(f"{case}: {name}", errors[name], BOUND)
    speed = timings["NumPy and eigsh"].minimum / mine
    group.at_least(f"{case}: speed against NumPy and eigsh", speed, WANTED)


def run(options: Options) -> Group:
    group = Group(
        "diffusion",
        f"Diffusion maps, {K} eigenvectors",
        "`DiffusionMap` on the full kernel of a Swiss roll (d = 3, float64), with beta by the two rules "
        '(the kernel of "dimension" is narrower and takes more iterations), against '
        "`exp(-β D²)` by NumPy with SciPy's `eigsh`. Errors are of the eigenvalues, against LAPACK.",
    )
    qk.set_num_threads(options.threads)
    for rule in ("median", "dimension"):
        run_case(group, options, 1000 if options.quick else 4000, rule)
    if not options.quick:
        n = 30_000
        beta = diffusion.choose_beta(points(n)).beta
        grown = peak_growth_mb("diffusion", "ours", options, n=n, beta=beta)
        group.at_most(f"N={n}: peak memory growth", grown, MEMORY_MB, " MB")
    return group
