r"""
Low-rank experts, and when their product is no kernel
=====================================================

A product of experts :math:`K = G_0 \odot G_1` is applied in :math:`O(N r^2)` by factors of rank r
(DAC-10, D.1). The best approximation of rank r of a positive kernel has negative entries where the
kernel is small, and then no coupling belongs to it, whatever the marginals look like: the status
says so. Attention's kernels are smoother than those of diffusion, and get by with less.
"""

import matplotlib.pyplot as plt
import numpy as np

import qkcore as qk

t = np.linspace(0, 2 * np.pi, 300, endpoint=False)
circle = np.c_[np.cos(t), np.sin(t)]
trefoil = np.c_[np.sin(t) + 2 * np.sin(2 * t), np.cos(t) - 2 * np.cos(2 * t), -np.sin(3 * t)] / 3
mu, nu = np.exp(3 * np.cos(t - 1)), np.exp(3 * np.cos(t - 4))
mu, nu = mu / mu.sum(), nu / nu.sum()
kinds = {"attention": qk.scores.forward, "diffusion": qk.scores.distance}

# %%
# Odd ranks: the circle's singular values come in pairs, and an even rank would cut one (erratum
# 11).
ranks = np.arange(7, 22, 2)
errors, negative, statuses = {}, {}, {}
for name, make in kinds.items():
    experts = [qk.softmax(make(points, beta=3.0)) for points in (circle, trefoil)]
    exact = np.exp(qk.poe(*experts).to_numpy())  # the product of exact operators is scores
    errors[name], negative[name], statuses[name] = [], [], []
    for rank in ranks:
        K = qk.poe(*(qk.low_rank(G, int(rank)) for G in experts))
        found = K @ np.eye(len(t))
        errors[name].append(np.linalg.norm(found - exact) / np.linalg.norm(exact))
        negative[name].append((found < 0).mean())
        statuses[name].append(qk.bridge(K, mu, nu).status)

# %%
# Filled markers: ``qk.bridge`` converged. Open ones: it did not, and says "negative kernel" or
# "negative entries".
figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.5), layout="constrained")
for (name, values), colour in zip(errors.items(), ("#0072B2", "#D55E00"), strict=True):
    done = np.array([status == "converged" for status in statuses[name]])
    for axis, shown in ((left, np.array(values)), (right, 100 * np.array(negative[name]))):
        axis.plot(ranks, shown, color=colour, label=name)
        axis.plot(ranks[done], shown[done], "o", color=colour)
        axis.plot(ranks[~done], shown[~done], "o", mfc="white", mec=colour)
left.set(yscale="log", xlabel="rank r of each expert", ylabel="relative error of the kernel")
right.set(xlabel="rank r of each expert", ylabel="negative entries, %")
_ = left.legend()
assert statuses["attention"][-1] == "converged" and "converged" not in statuses["diffusion"]
