r"""
Solvers of a cold bridge
========================

Sinkhorn's iteration slows down as the temperature falls: its rate goes to 1. Whatever a solver
does, its time goes into visits of all entries of the kernel, so that visits are what to compare.
``solver="auto"`` is Anderson's extrapolation, and Newton's method from where that would take long
(EOT-10).
"""

import matplotlib.pyplot as plt
import numpy as np

import qkcore as qk

rng = np.random.default_rng(0)
n = 400
X, Y = rng.normal(size=(n, 3)), rng.normal(size=(n, 3)) + 0.5
C = ((X[:, None] - Y) ** 2).sum(-1)
s = qk.scores.dense(-C / (0.003 * C.max()))
mu = np.full(n, 1 / n)

# %%
# ``callback`` is told the number of visits and the error of every step.
paths: dict[str, list[tuple[int, float]]] = {}
results = {}
for solver in ("alternating", "relaxed", "anderson", "newton", "auto"):
    steps = paths[solver] = []
    results[solver] = qk.bridge(
        s,
        mu,
        mu,
        solver=solver,
        max_iter=3000,
        callback=lambda k, e, steps=steps: steps.append((k, e)),
    )
    print(f"{solver:12s} {results[solver].status:16s} {results[solver].n_visits} visits")

# %%
# The error of the marginal that the last half-step did not fix. Products of Newton's method with
# the Hessian are visits too: its curve has gaps where they are made.
figure, axis = plt.subplots(figsize=(7, 3.8), layout="constrained")
colours = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#222222")
for (solver, steps), colour in zip(paths.items(), colours, strict=True):
    visits, errors = np.array(steps).T
    style = "--" if solver == "auto" else "-"
    axis.loglog(visits, errors, style, color=colour, label=solver, lw=1.6)
axis.axhline(1e-9, color="#999999", lw=0.8)
axis.set(xlabel="visits of the kernel", ylabel="L1 error of a marginal")
_ = axis.legend()
assert results["auto"].converged and results["newton"].converged
assert results["auto"].n_visits < 0.1 * results["alternating"].n_visits
