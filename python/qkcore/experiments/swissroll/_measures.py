"""How far samples are from the data: unbiased MMD^2 and Chamfer distance (D.2, section 5; erratum 4)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

import qkcore as qk

Array = npt.NDArray[np.float64]


def mmd2(X: Array, Y: Array, sigma: float = 1.0) -> float:
    """The unbiased estimate of the squared maximum mean discrepancy for a Gaussian kernel.

    Its mean is 0 for two samples of the same law, so it can be negative. No array of size n x m is formed.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(300, 3))
    >>> abs(mmd2(X[:150], X[150:])) < 0.01 < mmd2(X[:150], X[150:] + 1)
    True
    """
    beta = 1 / (2 * sigma**2)
    n, m = len(X), len(Y)

    def total(A: Array, B: Array) -> float:
        sums = qk.kernel(qk.scores.distance(A, B, beta=beta)) @ np.ones(len(B))
        return float(np.sum(sums))

    within = (total(X, X) - n) / (n * (n - 1)) + (total(Y, Y) - m) / (m * (m - 1))
    return within - 2 * total(X, Y) / (n * m)


def chamfer(X: Array, Y: Array) -> tuple[float, float]:
    """Mean squared distance from points of X to the nearest of Y, and from points of Y to the nearest of X.

    >>> import numpy as np
    >>> chamfer(np.array([[0.0], [1.0]]), np.array([[0.0]]))
    (0.5, 0.0)
    """
    there = cKDTree(Y).query(X)[0]
    back = cKDTree(X).query(Y)[0]
    return float(np.mean(np.square(there))), float(np.mean(np.square(back)))
