r"""
Attention gathers particles in clusters
=======================================

Tokens as particles on a circle under softmax attention (TPDE-1, TPDE-2), :math:`\dot x_i =
\Pi_{x_i} \sum_j P_{ij} x_j` with :math:`P_{ij} \propto e^{\beta \langle x_i, x_j\rangle}` and
:math:`\Pi` the projection on the tangent. Where queries see far (small :math:`\beta`) all meet in
one place; where they see near ones alone, several clusters stand for a long time.
"""

import matplotlib.pyplot as plt
import numpy as np

import qkcore as qk

rng = np.random.default_rng(3)
start = rng.uniform(0, 2 * np.pi, 80)
X0 = np.c_[np.cos(start), np.sin(start)]

# %%
# One flow for each temperature, by Dormand and Prince's method with its step size chosen by the
# error.
times = np.linspace(0, 30, 151)
flows = {}
for beta in (0.5, 9.0, 36.0):
    root = np.sqrt(beta) * np.eye(2)
    field = qk.AttentionField("softmax", Q=root, K=root, V=np.eye(2), sphere=True)
    flows[beta] = qk.flow(field, X0, (0.0, 30.0), rtol=1e-7, t_eval=times)
print(flows[9.0])


# %%
# Angles over time: every line is a token. Angles that differ by a full turn are the same place.
def groups(x: np.ndarray) -> int:
    """Clusters of points on the circle: gaps of more than a tenth of a radian between neighbours."""
    angle = np.sort(np.arctan2(x[:, 1], x[:, 0]))
    return max(1, int((np.diff(np.r_[angle, angle[0] + 2 * np.pi]) > 0.1).sum()))


figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True, layout="constrained")
counts = []
for axis, (beta, sol) in zip(axes, flows.items(), strict=True):
    angle = np.unwrap(np.arctan2(sol.x[..., 1], sol.x[..., 0]), axis=0)
    axis.plot(sol.t, angle, color="#0072B2", lw=0.6, alpha=0.7)
    counts.append(groups(sol.x[-1]))
    axis.set_title(f"β = {beta:g}: clusters at t = 30: {counts[-1]}", fontsize=10)
    axis.set_xlabel("time t")
_ = axes[0].set_ylabel("angle of a token, radians")
assert counts[0] == 1 and counts == sorted(counts) and counts[-1] > 2
