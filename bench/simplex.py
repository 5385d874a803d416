"""Mobility of many rows, all eigenvalues of one row, depth diagnostics of a whole stack, and a flow."""

from __future__ import annotations

import numpy as np
from scipy.integrate import solve_ivp

import qkcore as qk
from harness import Array, Call, Group, Options, Row, interleave, max_error, peak_growth_mb
from qkcore.diagnostics import depth

STACK_SECONDS, STACK_MB = 60.0, 2000.0


def rows(n: int, V: int, dtype: str) -> Array:
    z = np.random.default_rng(0).standard_normal((n, V)) * 3
    return qk.simplex.from_logits(z.astype(dtype))


def norms_by_numpy(p: Array) -> Call:
    """Largest eigenvalue by a vectorised, bracketed Newton iteration on the secular equation."""

    def call() -> Array:
        q = p.astype(np.float64)
        top = q.argmax(axis=1)
        largest = np.take_along_axis(q, top[:, None], 1)[:, 0]
        np.put_along_axis(q, top[:, None], 0.0, 1)
        low, high = q.max(axis=1), largest.copy()
        x = (low + high) / 2
        for _ in range(60):
            d = q - x[:, None]
            term = q / d
            left, left_slope = term.sum(axis=1), (term / d).sum(axis=1)
            right, right_slope = largest / (largest - x), largest / (largest - x) ** 2
            g = left + right
            low, high = np.where(g > 0, low, x), np.where(g > 0, x, high)
            new = x - g / (left_slope + right_slope)
            new = np.where((new > low) & (new < high), new, (low + high) / 2)
            if np.abs(new - x).max() < 1e-15:
                break
            x = new
        return x

    return call


def stack(options: Options) -> Array:
    layers, heads, n = (6, 2, 128) if options.quick else (30, 9, 512)
    z = np.random.default_rng(0).standard_normal((layers, heads, n, n), dtype=np.float32)
    z *= np.float32(0.05)
    return np.cumsum(z, axis=0, out=z)


def diagnose(z: Array) -> tuple[depth.DepthBudget, depth.BVDetector, float]:
    """Budget, jumps, and the norms of every row's mobility."""
    budget = depth.budget(z)
    detector = depth.detect(z)
    largest = 0.0
    for layer in z:
        J = qk.simplex.Mobility(qk.simplex.from_logits(layer))
        largest = max(largest, float(J.operator_norm.max()), float(J.frobenius_norm.max()))
    return budget, detector, largest


def whole_stack(options: Options) -> Call:
    """Builds the logits and returns the call whose memory memory.py measures."""
    z = stack(options)
    return lambda: diagnose(z)


def run(options: Options) -> Group:
    group = Group(
        "simplex",
        "Mobility and depth diagnostics",
        "Softmax rows of standard normal logits times 3. Errors of eigenvalues are relative to the largest.",
    )
    n, V = (500, 128) if options.quick else (4608, 512)
    for dtype in ("float32", "float64"):
        p = rows(n, V, dtype)
        exact = norms_by_numpy(p)()
        assert isinstance(exact, np.ndarray)
        check = np.linalg.eigvalsh(
            np.diag(p[0].astype(float)) - np.outer(p[0], p[0]).astype(float)
        )[-1]
        group.check(f"NumPy's norm {dtype}", abs(float(exact[0]) - check), 1e-6)
        contenders: dict[str, Call] = {
            "qkcore": lambda p=p: qk.simplex.Mobility(p).operator_norm,  # type: ignore[misc]
            "NumPy": norms_by_numpy(p),
        }
        error = max_error(qk.simplex.Mobility(p).operator_norm, exact)
        timings = interleave(contenders, rounds=5, budget=10)
        case = f"operator norms of {n} rows, V={V} {dtype}"
        mine = timings["qkcore"].minimum
        for name, timing in timings.items():
            group.add(
                Row(
                    case,
                    name,
                    timing,
                    n * V,
                    timing.minimum / mine,
                    error if name == "qkcore" else None,
                )
            )
        group.check(case, error, 1e-6 if dtype == "float32" else 1e-12)
        group.at_least(f"{case}: speed against NumPy", timings["NumPy"].minimum / mine, 1.0)
    eigenvalues(group, options)
    flow(group, options)
    call = whole_stack(options)
    timing = interleave({"qkcore": call}, rounds=3, budget=30)["qkcore"]
    grown = peak_growth_mb("simplex", "whole_stack", options)
    z = stack(options)
    case = f"budget, jumps and mobility of all rows, stack {'x'.join(map(str, z.shape))} float32"
    group.add(Row(case, "qkcore", timing, z.size, memory_mb=grown))
    group.at_most(f"{case}: time", timing.minimum, STACK_SECONDS, " s")
    group.at_most(f"{case}: memory beyond the logits", grown, STACK_MB, " MB")
    return group


def eigenvalues(group: Group, options: Options) -> None:
    V = 300 if options.quick else 1000
    p = rows(1, V, "float64")[0]
    J = np.diag(p) - np.outer(p, p)
    contenders: dict[str, Call] = {
        "qkcore": lambda: qk.simplex.Mobility(p).eigenvalues(n_threads=options.threads),
        "NumPy eigvalsh": lambda: np.linalg.eigvalsh(J),
    }
    error = max_error(qk.simplex.Mobility(p).eigenvalues(), np.linalg.eigvalsh(J))
    timings = interleave(contenders, rounds=3, budget=15)
    mine = timings["qkcore"].minimum
    case = f"all eigenvalues, V={V} float64"
    for name, timing in timings.items():
        group.add(
            Row(
                case,
                name,
                timing,
                V * V,
                timing.minimum / mine,
                error if name == "qkcore" else None,
            )
        )
    group.check(case, error, 1e-12)
    group.at_least(f"{case}: speed against NumPy", timings["NumPy eigvalsh"].minimum / mine, 3.0)


def flow(group: Group, options: Options) -> None:
    """A drift with a known solution, for which log-ratios decay like exp(-t)."""
    p = rows(1, 64, "float64")[0]
    want = qk.simplex.from_logits(np.exp(-2.0) * np.log(p))

    def ours() -> Array:
        return qk.simplex.pf_ode(p, lambda q, t: -np.log(q), (0, 2)).p[-1]

    def scipy() -> Array:
        def field(t: float, q: Array) -> Array:
            b = -np.log(np.maximum(q, 1e-300))
            return q * (b - q @ b)

        out: Array = solve_ivp(field, (0, 2), p, rtol=1e-5, atol=1e-7).y[:, -1]
        return out

    contenders: dict[str, Call] = {"qkcore": ours, "SciPy RK45, no guards": scipy}
    errors = {"qkcore": max_error(ours(), want), "SciPy RK45, no guards": max_error(scipy(), want)}
    timings = interleave(contenders, rounds=5, budget=5)
    mine = timings["qkcore"].minimum
    case = "probability flow, V=64, rtol 1e-5"
    for name, timing in timings.items():
        group.add(Row(case, name, timing, None, timing.minimum / mine, errors[name]))
    group.check(case, errors["qkcore"], 1e-4)
