r"""
Schrödinger bridges from warm to cold
=====================================

The coupling :math:`P_{ij} = e^{f_i + s_{ij} + g_j}` with marginals :math:`\mu, \nu` and scores
:math:`s = -\lvert x_i - y_j\rvert^2 / \varepsilon` (DAC-7). As :math:`\varepsilon` falls it narrows
onto the map that transports mass at least cost, which on a line is the monotone one.
"""

import matplotlib.pyplot as plt
import numpy as np

import qkcore as qk

x = np.linspace(0, 1, 300)


def bumps(*of: tuple[float, float]) -> np.ndarray:
    mass = sum(np.exp(-(((x - centre) / width) ** 2)) for centre, width in of)
    return np.asarray(mass / mass.sum())


mu, nu = bumps((0.25, 0.12)), bumps((0.3, 0.06), (0.75, 0.1))

# %%
# Each solve starts where the warmer one ended; ``print`` says how it went.
bridges, last = {}, None
for epsilon in (0.3, 0.03, 0.001):
    s = qk.scores.distance(x[:, None], beta=1 / epsilon)
    last = bridges[epsilon] = qk.bridge(s, mu, nu, init=last)
print(last)
assert all(b.converged for b in bridges.values())

# %%
# The couplings with the monotone map on them, and the mean of the target as seen from each point.
monotone = np.interp(np.cumsum(mu), np.cumsum(nu), x)
figure, axes = plt.subplots(1, 3, figsize=(9, 3.3), sharey=True, layout="constrained")
for axis, (epsilon, b) in zip(axes, bridges.items(), strict=True):
    plan = b.plan()
    axis.imshow(plan.T / plan.max(), origin="lower", extent=(0, 1, 0, 1), cmap="Blues", vmax=0.7)
    seen = mu > 1e-3 * mu.max()
    axis.plot(x[seen], monotone[seen], color="#D55E00", lw=1, label="monotone map")
    axis.plot(x[seen], b.project(x[:, None])[seen, 0], "--", color="#222222", lw=1, label="mean")
    axis.set(title=f"ε = {epsilon:g}", xlabel="source x")
axes[0].set_ylabel("target y")
_ = axes[0].legend(loc="lower right", fontsize=8)
off = [np.abs(b.project(x[:, None])[:, 0] - monotone) @ mu for b in bridges.values()]
assert off == sorted(off, reverse=True) and off[-1] < 0.01
