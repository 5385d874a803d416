"""``python -m qkcore.demo``: a bridge between a circle and a trefoil by the public API."""

from __future__ import annotations

import time

import numpy as np

import qkcore as qk


def curves(n: int) -> tuple[np.ndarray, np.ndarray]:
    """n points on a unit circle in the plane z = 0 and n on a trefoil knot of about its size."""
    t = np.linspace(0.0, 2 * np.pi, n, endpoint=False)
    circle = np.stack([np.cos(t), np.sin(t), np.zeros(n)], axis=1)
    knot = [np.sin(t) + 2 * np.sin(2 * t), np.cos(t) - 2 * np.cos(2 * t), -np.sin(3 * t)]
    return circle, np.stack(knot, axis=1) / 2


def main(n: int = 400, beta: float = 0.5) -> None:
    circle, knot = curves(n)
    qk.show_config()
    print(f"\nBridges from a circle to a trefoil, N = {n}, beta = {beta}, uniform marginals\n")
    print(f"{'scores':10s} {'iterations':>10s} {'error':>10s} {'cost':>9s} {'time':>10s}")
    kernels = {
        "dot": qk.scores.dot(circle, knot, beta=beta),
        "forward": qk.scores.forward(circle, knot, beta=beta),
        # -beta/2 |x - y|^2 is beta <x, y> and shifts
        "distance": qk.scores.distance(circle, knot, beta=beta / 2),
    }
    uniform = np.full(n, 1 / n)
    couplings = []
    for name, s in kernels.items():
        start = time.perf_counter()
        b = qk.bridge(s, uniform, uniform, tol=1e-10)
        elapsed = time.perf_counter() - start
        couplings.append(b.plan())
        print(f"{name:10s} {b.n_iter:10d} {b.error:10.1e} {b.cost:9.4f} {1e3 * elapsed:7.1f} ms")
    # A shift of a row or a column is a gauge: it moves the potentials and not the coupling.
    gap = max(float(np.abs(P - couplings[0]).sum()) for P in couplings)
    print(
        "\nThe scores differ by row and column shifts alone, so the three couplings are one: "
        f"L1 distance {gap:.1e}"
    )


if __name__ == "__main__":
    main()
