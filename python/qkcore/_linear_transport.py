"""The transport problem as a linear programme: the one place that hands it to SciPy's HiGHS."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


def least_cost(cost: Doubles, supply: Doubles, demand: Doubles) -> float:
    """:math:`\\min_\\pi \\langle c, \\pi\\rangle` over couplings of supply (n,) and demand (m,), of one mass.

    >>> import numpy as np
    >>> from qkcore._linear_transport import least_cost
    >>> least_cost(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.7, 0.3]), np.array([0.5, 0.5]))
    0.2
    """
    import scipy.optimize
    from scipy import sparse

    n, m = cost.shape
    total = float(supply.sum())
    rows: Any = sparse.kron(sparse.eye(n), np.ones((1, m)))
    # One constraint follows from the others and would only make the programme degenerate.
    columns: Any = sparse.kron(np.ones((1, n)), sparse.eye(m), format="csr")[:-1]
    solver: Any = scipy.optimize  # its stubs refuse sparse constraints, which it takes
    found = solver.linprog(
        cost.reshape(-1),
        A_eq=sparse.vstack([rows, columns], format="csr"),
        b_eq=np.concatenate([supply, demand[:-1]]) / total,
        bounds=(0, None),
        method="highs",
    )
    if found.status != 0:
        raise RuntimeError(f"HiGHS did not solve the transport problem: {found.message}")
    return total * max(0.0, float(found.fun))
