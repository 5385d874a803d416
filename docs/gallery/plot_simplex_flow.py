r"""
Probability flows on the simplex
================================

A drift b of the logits moves the probabilities by :math:`\dot p = J(p)\, b(p, t)` with the mobility
:math:`J = (\mathrm{diag}(p) - pp^\top)/\tau` (EOT-5). Two drifts are compared in a triangle: the
gradient of the entropy, which ends in the middle, and a cyclic game, which goes round it.
"""

import matplotlib.pyplot as plt
import numpy as np

import qkcore as qk

# %%
# Three starting points share the steps of each flow. Under :math:`b = -\log p` the logits decay
# like :math:`e^{-t}`; in rock, paper, scissors the drift is :math:`b = Rp` with R antisymmetric.

start = np.array([[0.90, 0.07, 0.03], [0.05, 0.80, 0.15], [0.20, 0.25, 0.55]])
R = np.array([[0.0, 1.0, -1.0], [-1.0, 0.0, 1.0], [1.0, -1.0, 0.0]])
options = {"rtol": 1e-8, "atol": 1e-10}
times = np.linspace(0, 4, 401)
spread = qk.simplex.pf_ode(start, lambda p, t: -np.log(p), (0, 4), t_eval=times, **options)
cycle = qk.simplex.pf_ode(start, lambda p, t: p @ R.T, (0, 24), t_eval=6 * times, **options)
print(cycle)

# %%
# The first flow has a closed form and its entropy only rises. The second keeps the product of the
# entries, so each path is a closed curve: later on it passes its start again.

exact = qk.simplex.from_logits(np.log(start) * np.exp(-times)[:, None, None])
assert spread.success and cycle.success
assert np.abs(spread.p - exact).max() < 1e-6 and (np.diff(spread.entropy, axis=0) > 0).all()
assert np.ptp(np.log(cycle.p).sum(axis=-1), axis=0).max() < 1e-5
assert np.abs(cycle.p[50:] - start).max(axis=-1).min(axis=0).max() < 0.01

# %%
# Above: the paths, from the dots on. Below: the entropies of the same paths, in the same colours,
# under the largest possible value log 3. On a closed curve the entropy goes up and down.

corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
colours = ("#0072B2", "#E69F00", "#009E73")
fig, axes = plt.subplots(2, 2, figsize=(9, 7.5), height_ratios=(3, 2), layout="constrained")
cases = ((spread, "b = −log p: to the centre"), (cycle, "b = Rp: round and round"))
for (sol, title), (triangle, curve) in zip(cases, axes.T, strict=True):
    triangle.plot(*corners[[0, 1, 2, 0]].T, color="black", lw=1)
    for k, (x, y) in enumerate(corners):
        triangle.text(x, y + (0.03 if k == 2 else -0.08), f"$p_{k + 1} = 1$", ha="center")
    for k, colour in enumerate(colours):
        path = sol.p[:, k] @ corners
        triangle.plot(*path.T, color=colour)
        triangle.plot(*path[0], "o", color=colour)
        curve.plot(sol.t, sol.entropy[:, k], color=colour, label=f"start {start[k]}")
    curve.axhline(np.log(3), color="black", ls=":", label="log 3")
    triangle.set(title=title, aspect="equal", xlim=(-0.15, 1.15), ylim=(-0.12, 0.97))
    triangle.axis("off")
    curve.set(xlabel="time t", ylabel="entropy (nats)", ylim=(0.2, 1.18))
_ = axes[1, 0].legend(loc="lower right", fontsize=8)
