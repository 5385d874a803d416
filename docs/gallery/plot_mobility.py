r"""
The mobility of a softmax
=========================

Logits that change by :math:`\delta` move :math:`p = \mathrm{softmax}(z/\tau)` by :math:`J\delta`,
with the mobility :math:`J = (\mathrm{diag}(p) - pp^\top)/\tau` (EOT-2). For :math:`\tau = 1` its
eigenvalues interlace the entries of p. At every temperature the norm is at most :math:`1/2\tau`.
"""

import matplotlib.pyplot as plt
import numpy as np

import qkcore as qk

# %%
# The matrix is never formed: the eigenvalues are roots of a secular equation, one in each gap
# between neighbouring entries. The smallest is 0, for the constant vector.

z = 1.5 * np.random.default_rng(0).normal(size=12)
J = qk.simplex.Mobility.from_logits(z)
p, eigenvalues = np.sort(qk.simplex.from_logits(z)), J.eigenvalues()
assert eigenvalues[0] == 0
assert (p[:-1] <= eigenvalues[1:]).all() and (eigenvalues[1:] <= p[1:]).all()
assert np.allclose(eigenvalues, np.linalg.eigvalsh(J.to_numpy()), atol=1e-14)

# %%
# The largest eigenvalue at many temperatures reaches the bound where two tokens share the mass.
# A single winner takes it all at low temperatures, and its mobility is largest in between.

tau = np.geomspace(0.05, 20, 200)
logits = {
    "two tokens tie, (1, 1, 0, 0)": np.array([1.0, 1.0, 0.0, 0.0]),
    "one of two wins, (2, 0)": np.array([2.0, 0.0]),
    "the 12 logits of the left panel": z,
}
norms = {
    name: np.array([qk.simplex.Mobility.from_logits(v, tau=float(t)).operator_norm for t in tau])
    for name, v in logits.items()
}
bound = 1 / (2 * tau)
assert all((norm <= bound * (1 + 1e-12)).all() for norm in norms.values())
tie, winner, many = norms.values()
assert tie[0] > 0.99 * bound[0] and winner[-1] > 0.99 * bound[-1]
assert all(0 < norm.argmax() < len(tau) - 1 for norm in (winner, many))

# %%
# Left: every eigenvalue but the zero one lies in its own gap. Right: no curve crosses the bound.

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
k = np.arange(1, len(p))
left.vlines(k, p[:-1], p[1:], color="#56B4E9", lw=7, label="gap between neighbouring entries of p")
left.plot(k, eigenvalues[1:], "o", color="#D55E00", ms=5, label="eigenvalue of J")
left.set(title="Eigenvalues interlace p (τ = 1)", xlabel="index k", ylabel="value", yscale="log")
_ = left.legend(loc="lower right", fontsize=8)
right.plot(tau, bound, color="black", ls="--", label="bound 1/(2τ)")
for (name, norm), colour in zip(norms.items(), ("#0072B2", "#E69F00", "#009E73"), strict=True):
    right.plot(tau, norm, color=colour, label=name)
right.loglog()
right.set(title="Operator norm of J", xlabel="temperature τ", ylabel="norm", ylim=(1e-3, 20))
_ = right.legend(loc="upper right", fontsize=8)
