r"""
When does attention carry a current?
====================================

The row softmax of :math:`\beta\, x_i^\top W x_j` is a Markov chain. Its probability current (DAC-8,
eq 18) :math:`J_{ij} = \pi_i A_{ij} - \pi_j A_{ji}` vanishes when :math:`W` is symmetric, although
the scores are normalised along rows alone; with an antisymmetric part added the chain turns, in a
steady state that is no equilibrium.
"""

import matplotlib.pyplot as plt
import numpy as np

import qkcore as qk

rng = np.random.default_rng(0)
angle = np.sort(rng.uniform(0, 2 * np.pi, 40))
X = np.c_[np.cos(angle), np.sin(angle)]  # tokens in the order of their angles
turn = np.array([[0.0, 1.0], [-1.0, 0.0]])


def attention(a: float) -> qk.MarkovOperator:
    return qk.softmax(qk.scores.dot(X, W=np.eye(2) + a * turn, beta=2.0))


# %%
# The regime says which of the two it is, with the entropy that the chain makes at every step.
print(attention(0.0).regime())
print(attention(0.7).regime())

# %%
# Currents, which flow from token to token round the circle; and entropy production, which grows
# with the square of a small asymmetry.
amounts = np.geomspace(0.01, 2, 12)
production = [attention(a).entropy_production() for a in amounts]
A = attention(0.7)
J = A.currents(A.stationary())

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.5), layout="constrained")
largest = np.abs(J).max()
image = left.imshow(J, cmap="PuOr", vmin=-largest, vmax=largest)
left.set(title="current, W = I + 0.7 (antisymmetric)", xlabel="to token j", ylabel="from token i")
figure.colorbar(image, ax=left, label="probability per step")
right.loglog(amounts, production, "o-", color="#D55E00", label="measured")
guide = production[0] * (amounts / amounts[0]) ** 2
right.loglog(amounts, guide, "--", color="#0072B2", label="its square law")
right.set(xlabel="size a of the antisymmetric part", ylabel="entropy production, nats per step")
_ = right.legend()

symmetric = attention(0.0).regime()
assert symmetric.regime == "EQ" and A.regime().regime == "NESS"
assert abs(production[1] / guide[1] - 1) < 0.01
