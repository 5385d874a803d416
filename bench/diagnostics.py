"""The diagnostics P0-P3 of a deep stack of attention logits: time, memory, and the numbers they must give."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Array, Call, Group, Options, Row, interleave, peak_growth_mb
from qkcore import diagnostics

SECONDS = 60.0  # 30 layers, 9 heads, 512 tokens
MEMORY_MB = 2000.0


def stack(layers: int, heads: int, n: int) -> Array:
    """Logits in single precision that change slowly with depth, as in a trained transformer."""
    rng = np.random.default_rng(0)
    z = np.empty((layers, heads, n, n), np.float32)
    z[0] = 3 * rng.standard_normal((heads, n, n), dtype=np.float32)
    for k in range(1, layers):
        z[k] = z[k - 1] + np.float32(0.01) * rng.standard_normal((heads, n, n), dtype=np.float32)
    return z


def suite(options: Options, layers: int, heads: int, n: int) -> Call:
    z = stack(layers, heads, n)
    return lambda: diagnostics.run(z)


def by_numpy(z: Array) -> Call:
    """P0 and the motion of P1 on the whole array in double precision, as a first attempt would have it."""

    def call() -> tuple[float, float]:
        wide = z.astype(np.float64)
        p = np.exp(wide - wide.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        dz, dp = np.diff(wide, axis=0), np.diff(p, axis=0)
        dz -= dz.mean(axis=-1, keepdims=True)
        variation = float((dz**2).sum(axis=0).mean(axis=(1, 2)).max())
        return variation, float(0.5 * np.abs(dp).sum(axis=-1).mean())

    return call


def run(options: Options) -> Group:
    group = Group(
        "diagnostics",
        "Diagnostics P0-P3",
        "`qk.diagnostics.run(logits)` on a stack in single precision, computed in double. The NumPy "
        "contender does P0 and the motion of the rows only, on whole arrays.",
    )
    layers, heads, n = (6, 2, 128) if options.quick else (30, 9, 512)
    compare(group, stack(layers, 2, n))
    if not options.quick:
        deep(group, options, layers, heads, n)
    return group


def compare(group: Group, z: Array) -> None:
    """Compares numbers of P0 and P1, and the time, with NumPy on whole arrays."""
    report = diagnostics.run(z)
    variation, motion = by_numpy(z)()
    found: dict[str, tuple[Any, float]] = {
        "P0": (report["P0"].value, variation),
        "motion": (np.mean(report["P1"].details["realised"]), motion),
    }
    error = 0.0
    for name, (ours, value) in found.items():
        group.check(f"{name} against NumPy", abs(ours / value - 1), 1e-9)
        error = max(error, abs(ours / value - 1))
    calls: dict[str, Call] = {
        "qkcore, P0-P3": lambda: diagnostics.run(z),
        "NumPy, P0 and motion": by_numpy(z),
    }
    timings = interleave(calls, rounds=3, budget=10, sample=0.05)
    mine = timings["qkcore, P0-P3"].minimum
    for name, timing in timings.items():
        shown = error if name.startswith("qkcore") else None
        group.add(
            Row(" x ".join(map(str, z.shape)), name, timing, z.size, timing.minimum / mine, shown)
        )


def deep(group: Group, options: Options, layers: int, heads: int, n: int) -> None:
    """Time and memory for the whole stack."""
    call = suite(options, layers, heads, n)
    timing = interleave({"qkcore, P0-P3": call}, rounds=3, budget=30)["qkcore, P0-P3"]
    del call
    case = f"{layers} x {heads} x {n} x {n}"
    entries = layers * heads * n * n
    grown = peak_growth_mb("diagnostics", "suite", options, layers=layers, heads=heads, n=n)
    group.add(Row(case, "qkcore, P0-P3", timing, entries, 1.0, None, grown))
    group.at_most(f"{case}: seconds", timing.minimum, SECONDS, " s")
    group.at_most(f"{case}: memory beyond the logits", grown, MEMORY_MB - 4e-6 * entries, " MB")
