r"""
The heat flow from iterated Schrödinger bridges
===============================================

The bridge of a cloud with itself has the barycentric projection
:math:`B(x) = x + \tfrac{\varepsilon}{2} \nabla\log\rho(x) + o(\varepsilon)`, so the step
:math:`x \leftarrow 2x - B(x)` follows :math:`\partial_t\rho = \tfrac12\Delta\rho` (ISB-3).
**One step advances the time by** :math:`\varepsilon`. No noise is drawn and no density estimated.
"""

import matplotlib.pyplot as plt
import numpy as np

import qkcore as qk

# %%
# Two clouds of 400 particles stand for ½N(−2, 1) + ½N(2, 1): the law's quantiles, and random draws.
# With ε = 0.05, sixty steps reach t = 3.

epsilon, n_steps = 0.05, 60
law = qk.isb.Mixture([0.5, 0.5], [-2.0, 2.0], [1.0, 1.0])
quantiles = qk.isb.heat_flow(law.quantile_grid(400), epsilon, n_steps)
draws = qk.isb.heat_flow(law.sample(400, np.random.default_rng(0)), epsilon, n_steps)
print(quantiles)

# %%
# The exact law at time t is the mixture with t added to both variances. Quantiles stay within 0.06
# of it in W2. Draws start further off, with their sampling error, and are never worse than then.

w2 = {
    name: np.array([law.heat(t).w2(x) for t, x in zip(flow.t[::4], flow.x[::4], strict=True)])
    for name, flow in (("quantiles", quantiles), ("random draws", draws))
}
growth = quantiles.x[:, :, 0].var(axis=1) - quantiles.x[0].var()
assert quantiles.status == draws.status == "finished"
assert np.allclose(quantiles.t, epsilon * np.arange(n_steps + 1))
assert np.abs(growth - quantiles.t).max() < 0.02  # the variance grows by t: one step is worth ε
assert w2["quantiles"].max() < 0.06 and w2["random draws"].argmax() == 0

# %%
# The histograms of the particles at the quantiles follow the exact density while the two bumps melt
# into one. The last panel is the distance W2 between each cloud and the exact law.

fig, axes = plt.subplots(2, 2, figsize=(9, 6.5), layout="constrained")
grid = np.linspace(-8, 8, 400)
for t, ax in zip((0.0, 1.0, 3.0), axes.flat, strict=False):
    k = round(t / epsilon)
    bins = np.linspace(-8, 8, 33)
    ax.hist(quantiles.x[k, :, 0], bins, density=True, color="#56B4E9", label="400 particles")
    ax.plot(grid, np.exp(law.heat(t).log_pdf(grid)), color="#D55E00", label="exact density")
    ax.set(title=f"t = {t:g} ({k} steps)", xlabel="x", ylabel="density", ylim=(0, 0.23))
    ax.legend(loc="upper right", fontsize=8)
for (name, error), colour in zip(w2.items(), ("#0072B2", "#E69F00"), strict=True):
    axes[1, 1].plot(quantiles.t[::4], error, ".-", color=colour, label=name)
axes[1, 1].set(
    title="Error over time", xlabel="time t", ylabel="W2 to the exact law", ylim=(0, None)
)
_ = axes[1, 1].legend()
