r"""
A diffusion map unrolls a spiral
================================

The eigenvectors of :math:`P_{ij} \propto e^{-\beta\lVert x_i - x_j\rVert^2}` (DAC-5) follow the
data, not the straight line between points. On a noisy spiral the first of them orders the points
along its arm; with :math:`\alpha = 1` it does so whatever the density of the sample.
"""

import matplotlib.pyplot as plt
import numpy as np

import qkcore as qk

rng = np.random.default_rng(0)
along = 1.5 * np.pi * (1 + 2 * rng.random(1500) ** 2)  # denser inside
X = np.c_[along * np.cos(along), along * np.sin(along)] / 10
X += 0.03 * rng.normal(size=X.shape)

model = qk.diffusion.DiffusionMap(6, beta=60.0, alpha=1.0).fit(X)
Z = model.transform(X)

# %%
# The figure: points coloured by their first coordinate, that coordinate against the length along
# the arm, and the spectrum.
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9, 3.1), layout="constrained")
left.scatter(*X.T, c=Z[:, 0], cmap="viridis", s=5)
left.set(title="points, by the first coordinate", xlabel="x", ylabel="y", aspect="equal")
middle.plot(along, Z[:, 0], ".", ms=3, color="#0072B2")
middle.set(title="it orders them", xlabel="angle along the spiral", ylabel="first coordinate")
right.plot(np.arange(1, 7), 1 - model.eigenvalues_, "o-", color="#D55E00")
right.set(title="rates of decay", xlabel="k", ylabel=r"$1 - \lambda_k$")

order = np.corrcoef(np.argsort(np.argsort(along)), np.argsort(np.argsort(Z[:, 0])))[0, 1]
assert abs(order) > 0.998

# %%
# New points get their coordinates by Nyström's extension; on the points of the fit it is the
# identity.
new = np.array([[np.cos(8.0), np.sin(8.0)]]) * 0.8
print(model.transform(new)[0, :2])
