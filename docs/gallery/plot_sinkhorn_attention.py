r"""
One score matrix, four normalisations
=====================================

Attention is a score matrix and a normalisation. The same scores
:math:`s_{ij} = \beta x_i^\top W x_j` give a softmax over rows,
:math:`e^{s_{ij}}/\sum_k e^{s_{ik}}`, one over columns, a causal one, and the
bistochastic matrix :math:`e^{s_{ij} + u_i + v_j}` of the Sinkhorn iteration (DAC-3, DAC-4).
"""

import matplotlib.pyplot as plt
import numpy as np

import qkcore as qk

# %%
# Twelve points on a noisy spiral. W turns them, so the scores are not symmetric.

rng = np.random.default_rng(1)
angle = np.linspace(0, 2 * np.pi, 12, endpoint=False)
X = (0.6 + 0.12 * angle[:, None]) * np.stack([np.cos(angle), np.sin(angle)], axis=1)
X += 0.1 * rng.normal(size=X.shape)
W = np.array([[0.9, -0.4], [0.4, 0.9]])
scores = qk.scores.dot(X, W=W, beta=3.0)

# %%
# A mask is a method of the scores, the kind of attention is the function applied to them.

matrices = {
    "softmax over rows": qk.softmax(scores).to_numpy(),
    "softmax over columns": qk.softmax(scores, axis=0).to_numpy(),
    "causal softmax over rows": qk.softmax(scores.causal()).to_numpy(),
    "bistochastic (Sinkhorn)": qk.sinkhorn(scores).to_numpy(),
}
rows, columns, causal, both = matrices.values()
for P, axes_of_one in ((rows, (1,)), (columns, (0,)), (causal, (1,)), (both, (0, 1))):
    assert all(np.allclose(P.sum(axis=axis), 1, atol=1e-6) for axis in axes_of_one)
assert np.ptp(rows.sum(axis=0)) > 0.5 and np.ptp(columns.sum(axis=1)) > 0.5
assert (causal[np.triu_indices(12, 1)] == 0).all()  # exactly 0, not small
assert causal.sum(axis=0).argmax() == 0

# %%
# One colour scale for all. The bars are the sums of columns (above) and of rows (right), with a
# line at 1: a softmax fixes one side only, Sinkhorn both. Causal attention favours the first key.

ratios = {"width_ratios": (4, 1, 4, 1), "height_ratios": (1, 4, 1, 4)}
fig, axes = plt.subplots(4, 4, figsize=(9, 9), gridspec_kw=ratios, layout="constrained")
for k, (name, P) in enumerate(matrices.items()):
    i, j = 2 * (k // 2), 2 * (k % 2)
    (top, corner), (main, side) = axes[i : i + 2, j : j + 2]
    corner.axis("off")
    image = main.imshow(P, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    main.set(xlabel="key j", ylabel="query i")
    top.bar(range(12), P.sum(axis=0), color="#56B4E9")
    top.axhline(1, color="black", lw=1)
    top.set(title=name, xticks=[], xlim=(-0.5, 11.5), ylim=(0, 2.1), ylabel="column\nsum")
    side.barh(range(12), P.sum(axis=1), color="#E69F00")
    side.axvline(1, color="black", lw=1)
    side.set(yticks=[], ylim=(11.5, -0.5), xlim=(0, 2.1), xlabel="row sum")
_ = fig.colorbar(image, ax=axes, label="weight", location="bottom", shrink=0.5, pad=0.01)
