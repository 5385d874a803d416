r"""
A magnetic map sees direction
=============================

A noisy ring of points, and a matrix :math:`W` whose antisymmetric part :math:`A` turns one way or
the other. Distances, and with them a diffusion map, know nothing of it. A magnetic map (DAC-6, eqs
37-43) keeps the probabilities and puts the direction into phases, :math:`\tilde P_{ij} = P_{ij}\,
e^{i\Theta_{ij}}` with :math:`\Theta = \gamma X A X^\top`; its current :math:`\pi_i P_{ij}
\sin\Theta_{ij}` runs one way round, and back if :math:`A` is turned round.
"""

import matplotlib.pyplot as plt
import numpy as np

from qkcore import magnetic

rng = np.random.default_rng(1)
angle = np.sort(rng.uniform(0, 2 * np.pi, 120))
X = np.c_[np.cos(angle), np.sin(angle)] + 0.05 * rng.normal(size=(120, 2))
turn = np.array([[0.0, 1.0], [-1.0, 0.0]])


def operator(sign: float) -> magnetic.MagneticOperator:
    return magnetic.operator(X, beta=8.0, W=np.eye(2) + sign * turn, gamma=0.5)


# %%
# Turning the direction round leaves the eigenvalues as they are. Without phases they are others:
# phases round the ring do not add up to whole turns here, and no choice of gauge takes them away.
values = [operator(sign).spectrum(8)[0] for sign in (1.0, -1.0, 0.0)]
assert np.allclose(values[0], values[1], atol=1e-10) and values[0][0] < values[2][0] - 1e-4

# %%
# The current through each point, summed over its neighbours: an arrow for where it goes. And the
# eigenvalues.
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
turned = []
for axis, sign in zip(axes[:2], (1.0, -1.0), strict=True):
    J = operator(sign).current()
    flow = J @ X - J.sum(axis=1, keepdims=True) * X
    axis.scatter(*X.T, s=8, color="#222222")
    axis.quiver(*X.T, *flow.T, color="#0072B2" if sign > 0 else "#D55E00", width=0.008)
    axis.set(title=f"current, W = I {'+' if sign > 0 else '-'} turn", xlabel="x", ylabel="y")
    axis.set_aspect("equal")
    turned.append(float((X[:, 0] * flow[:, 1] - X[:, 1] * flow[:, 0]).sum()))
for found, label, marker in zip(values, ("turn", "turned back", "none"), "os^", strict=True):
    axes[2].plot(np.arange(1, 9), found, marker, ms=5, label=label, alpha=0.8)
axes[2].set(title="spectrum", xlabel="k", ylabel=r"$\lambda_k$")
_ = axes[2].legend(title="phases")
assert turned[0] * turned[1] < 0 and np.isclose(turned[0], -turned[1])
