r"""
A Gaussian law under attention
==============================

Softmax attention moves a centred Gaussian law by a linear velocity, so the law stays Gaussian and
its covariance obeys :math:`\dot\Sigma = V\Sigma A\Sigma + \Sigma A^\top\Sigma V^\top` with
:math:`A = K^\top Q` (TPDE-3). Here :math:`V = I`, so :math:`\Sigma(t)^{-1} = \Sigma_0^{-1} - 2tA`
for symmetric A. The sign of K decides whether the law collapses onto a line or blows up.
"""

import matplotlib.pyplot as plt
import numpy as np

import qkcore as qk

# %%
# Q is one row q. With K = −Q the variance of q·x shrinks, with K = Q it grows.

cov, q = np.array([[1.0, 0.4], [0.4, 0.6]]), np.array([[1.0, 0.5]])
options, share = {"Q": q, "V": np.eye(2)}, np.linspace(0, 1, 401)
collapse = qk.gaussian.flow("softmax", None, cov, (0, 40), K=-q, t_eval=40 * share, **options)
burst = qk.gaussian.flow("softmax", None, cov, (0, 0.5), K=q, t_eval=0.5 * share, **options)
print(collapse, burst, sep="\n")

# %%
# Both agree with the closed form. The variance of q·x obeys the equation on a line: hence T.

alive = burst.t < burst.t_end
for sol, A, kept in ((collapse, -q.T @ q, slice(None)), (burst, q.T @ q, alive)):
    exact = np.array([np.linalg.inv(np.linalg.inv(cov) - 2 * t * A) for t in sol.t[kept]])
    assert np.allclose(sol.cov[kept], exact, rtol=1e-5)
assert (collapse.status, collapse.rank, burst.status) == ("converged", 1, "blew up")
assert np.allclose(collapse.decay, [-1, 0], atol=0.02)  # t λ'/λ at the end: like 1/t, and at rest
T = qk.gaussian.softmax_blow_up_line((q @ cov @ q.T).item(), 1.0, 1.0)
assert np.isclose(burst.blow_up_time, T)

# %%
# Left: ellipses of one standard deviation, later ones lighter. Right: eigenvalues. Above, one
# settles and the other falls like 1/t. Below, one runs off to infinity at T: nothing comes after.

circle = np.stack([f(np.linspace(0, 2 * np.pi, 200)) for f in (np.cos, np.sin)])
cases = (
    (collapse, (0, 0.5, 2, 8, 40), slice(None), "K = −Q: converges to rank 1"),
    (burst, (0, 0.15, 0.22, 0.27, 0.29), alive, f"K = Q: blows up at T = {T:.3f}"),
)
fig, axes = plt.subplots(2, 2, figsize=(9, 7.5), layout="constrained")
for (sol, times, kept, title), (left, right) in zip(cases, axes, strict=True):
    for t, colour in zip(times, plt.cm.viridis(np.linspace(0, 0.9, len(times))), strict=True):
        w, U = np.linalg.eigh(sol.cov[np.abs(sol.t - t).argmin()])
        left.plot(*(U * np.sqrt(w)) @ circle, color=colour, label=f"t = {t}")
    left.set(title=title, xlabel="$x_1$", ylabel="$x_2$", xmargin=0.3)
    left.set_aspect("equal", adjustable="datalim")
    left.legend(loc="lower right", fontsize=8)
    w = np.linalg.eigvalsh(sol.cov[kept])
    for k, name, colour in ((1, "larger", "#0072B2"), (0, "smaller", "#E69F00")):
        right.plot(sol.t[kept], w[:, k], color=colour, label=name)
    right.set(title="Eigenvalues of Σ", xlabel="time t", ylabel="eigenvalue", yscale="log")
    if sol is burst:
        right.axvline(T, color="#D55E00", ls="--", label="blow-up time T")
    _ = right.legend()
