"""Fokker-Planck duality (EOT-7, EOT-9): one law, a stochastic and a deterministic flow.

An Itô equation :math:`dX = F\\,dt + \\sigma\\,dW` with :math:`a = \\sigma\\sigma^\\top` and the ordinary
equation :math:`\\dot x = u` with

.. math:: u = F - \\tfrac12\\,(a\\,\\nabla\\log p + \\nabla\\cdot a)

carry the same marginals p (theorem 4.2). This module samples both, compares their marginals over time,
and measures the weak error of the stochastic one by doubling the number of steps.

==============================  ====================================================================
``velocity(F, a, score)``       u, the probability flow
``reverse_drift(F, a, score)``  drift of the SDE that runs the same marginals backwards
``sample_sde(F, a, x0, ...)``   Euler-Maruyama
``sample_ode(u, x0, ...)``      Euler, Heun or classical Runge-Kutta
``parity(sde, ode)``            TV and KS per coordinate over time, beside what chance alone gives
``pooled_parity(x, y)``         the same of all pixels of images together, at one time
``step_doubling(F, a, ...)``    :math:`|E\\varphi(X^K) - E\\varphi(X^{2K})|` with common noise
``weak_error_slope(h, err)``    log-log slope with its BCa interval
==============================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._checks import one_of
from .._ode import Arrays, Integrator
from ._arrays import Field, Float, count, field_values, float64, generator, points
from ._parity import Parity, parity
from ._paths import Path, saved_steps, time_grid
from ._pooled import PooledParity, pooled_parity
from ._tensor import DiffusionTensor, TensorLike, tensor
from ._weak import StepDoubling, WeakErrorSlope, step_doubling, weak_error_slope

__all__ = [
    "DiffusionTensor",
    "Parity",
    "Path",
    "PooledParity",
    "StepDoubling",
    "WeakErrorSlope",
    "parity",
    "pooled_parity",
    "reverse_drift",
    "sample_ode",
    "sample_sde",
    "step_doubling",
    "velocity",
    "weak_error_slope",
]


def __dir__() -> list[str]:
    return list(__all__)


Flow = Callable[[Float, float], Float]


def velocity(F: Field, a: TensorLike, score: Field, *, divergence: Field | None = None) -> Flow:
    """The probability flow :math:`u = F - \\frac12(a\\nabla\\log p + \\nabla\\cdot a)` (eq 4, EOT-7).

    ``F(x, t)`` and ``score(x, t)`` take points (n, d) and give (n, d). ``a``: a number, a diagonal (d,),
    a matrix (d, d), or a function of (x, t) returning (n,), (n, d) or (n, d, d). ``divergence(x, t)`` is
    :math:`(\\nabla\\cdot a)_i = \\sum_j \\partial_j a_{ij}`; left out, a constant ``a`` has none and any
    other is differentiated centrally (relative error about 1e-10).

    >>> import numpy as np
    >>> from qkcore.diagnostics import duality
    >>> u = duality.velocity(lambda x, t: -x, 2.0, lambda x, t: -x)  # an OU process at equilibrium
    >>> u(np.array([[1.0, -3.0]]), 0.0)  # stands still
    array([[0., 0.]])
    """
    _check_parts(F, a, score)

    def u(x: Float, t: float) -> Float:
        A = tensor(a, x.shape[1], divergence)
        s = field_values("score", score(x, t), x.shape, t)
        drift = field_values("F", F(x, t), x.shape, t)
        out: Float = drift - 0.5 * (A.apply(x, t, s) + A.divergence(x, t))
        return out

    return u


def _check_parts(F: object, a: TensorLike, score: object) -> None:
    """What can be refused before there are points."""
    for name, value in (("F", F), ("score", score)):
        _checks.function(name, value, "(x, t)")
    if not callable(a):
        float64("a", a)


def reverse_drift(
    F: Field, a: TensorLike, score: Field, *, divergence: Field | None = None
) -> Flow:
    """The drift :math:`F - a\\nabla\\log p - \\nabla\\cdot a` of the reverse-time SDE (EOT-7).

    Integrate it from the end to the beginning (``t_span=(1.0, 0.0)``) with the same tensor: the marginals
    run backwards. It is not u of eq 4, which EOT's theorem 4.5 names as the drift of a "reverse SDE": with
    noise added to u the law spreads (docs/errata.md).
    """
    _check_parts(F, a, score)

    def drift(x: Float, t: float) -> Float:
        A = tensor(a, x.shape[1], divergence)
        s = field_values("score", score(x, t), x.shape, t)
        out: Float = field_values("F", F(x, t), x.shape, t) - A.apply(x, t, s) - A.divergence(x, t)
        return out

    return drift


def sample_sde(
    F: Field,
    a: TensorLike,
    x0: npt.ArrayLike,
    t_span: Sequence[float] = (0.0, 1.0),
    *,
    n_steps: int = 100,
    n_saved: int | None = None,
    rng: int | np.random.Generator | None = None,
) -> Path:
    """Euler-Maruyama: :math:`x \\leftarrow x + F h + \\sigma\\sqrt{|h|}\\,\\xi` (EOT-7).

    ``x0`` (n, d). ``t_span`` may run backwards (with the drift of :func:`reverse_drift`). ``n_saved`` states
    are kept, evenly spread over the steps, first and last included (default: all of them). Singular
    tensors are allowed: there is no noise where ``a`` vanishes.

    >>> import numpy as np
    >>> from qkcore.diagnostics import duality
    >>> path = duality.sample_sde(lambda x, t: -x, 2.0, np.zeros((4000, 1)), (0, 5), n_steps=500, rng=0)
    >>> bool(abs(path.x[-1].var() - 1) < 0.1)  # the stationary law of dX = -X dt + sqrt(2) dW
    True
    """
    x = points("x0", x0).copy()
    times = time_grid(t_span, count("n_steps", n_steps))
    A = tensor(a, x.shape[1])
    rng = generator(rng)
    keep = saved_steps(n_steps, n_saved)
    out = [x.copy()]
    for k in range(n_steps):
        t, h = float(times[k]), float(times[k + 1] - times[k])
        noise = A.root(x, t, rng.normal(size=x.shape))
        x = x + h * field_values("F", F(x, t), x.shape, t) + np.sqrt(abs(h)) * noise
        if k + 1 in keep:
            out.append(x.copy())
    return Path(times[sorted(keep)], np.stack(out), "Euler-Maruyama", n_steps)


def sample_ode(
    u: Field,
    x0: npt.ArrayLike,
    t_span: Sequence[float] = (0.0, 1.0),
    *,
    n_steps: int = 100,
    n_saved: int | None = None,
    method: str = "rk4",
) -> Path:
    """The deterministic flow :math:`\\dot x = u(x, t)` (EOT-7) by "euler", "heun" or "rk4", fixed steps.

    >>> import numpy as np
    >>> from qkcore.diagnostics import duality
    >>> path = duality.sample_ode(lambda x, t: -x, np.ones((1, 1)), (0, 1), n_steps=20)
    >>> bool(abs(path.x[-1, 0, 0] - np.exp(-1)) < 1e-7)
    True
    """
    x = points("x0", x0).copy()
    times = time_grid(t_span, count("n_steps", n_steps))
    one_of("method", method, ("euler", "heun", "rk4"))
    keep = saved_steps(n_steps, n_saved)

    def at(y: Float, t: float) -> Float:
        return field_values("u", u(y, t), y.shape, t)

    state = Arrays(at, x, float(times[0]), method=method)
    steps = Integrator(state, max_steps=n_steps)
    for t in times[1:]:
        if not steps.fixed_step(float(t)):
            raise ValueError(
                f"u: wanted a flow that stays finite, got NaN or infinity after t = {state.t:.6g}; "
                "take smaller steps or start away from the singularity"
            )
    saved = [state.path[k] for k in sorted(keep)]
    return Path(np.array([t for t, _ in saved]), np.stack([y for _, y in saved]), method, n_steps)
