"""Depth budgets and the finite-depth bound (EOT-3; EOT 3.1, D)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from ..simplex import FittedDrift, PFSolution, pf_ode
from ..simplex._drifts import Drift, pieces_of
from ..simplex._softmax import logits as check_logits
from ..simplex._softmax import plain_softmax
from ._depth_constants import drift_constants
from ._layers import are_probabilities, refuse_probabilities

Real = npt.NDArray[np.floating[Any]]
Double = npt.NDArray[np.float64]
Layers = npt.ArrayLike | Iterable[npt.ArrayLike]

# Norms of the softmax at tau = 1: sup |J v|_1 / |v|_inf, and of |(J(p) - J(q)) v|_1 / (|p - q|_1 |v|_inf).
MASS_NORM, MASS_LIPSCHITZ = 1.0, 2.0
FARTHEST = 2.0  # two probability vectors are never further apart, in l1


def increments(logits: Layers) -> Iterator[tuple[Real, Double]]:
    """(z, dz) of every layer but the last: dz is float64 and 0 where both layers are masked."""
    before: Real | None = None
    count = 0
    suspicious = True
    for index, layer in enumerate(_iterate(logits)):
        z = check_logits(f"logits[{index}]", layer)
        count += 1
        suspicious = suspicious and are_probabilities(z)
        if before is not None:
            _checks.shape(
                f"logits[{index}]",
                z.shape,
                before.shape,
                why="like the layer before",
                do="all layers need the same rows and entries",
            )
            yield before, _difference(index, before, z)
        before = z
    _checks.some("logits", count, 2, "layers", "the first axis (or the iteration) is depth")
    if suspicious:
        refuse_probabilities("logits", "np.log(p)")


def _iterate(logits: Layers) -> Iterable[npt.ArrayLike]:
    if isinstance(logits, np.ndarray):
        _checks.shape(
            "logits",
            logits.shape,
            ("L + 1", ..., "V"),
            what="layers of rows",
            do="stack the layers first",
        )
    return logits  # type: ignore[return-value]


def _difference(index: int, before: Real, after: Real) -> Double:
    masked = np.isneginf(before)
    if (masked != np.isneginf(after)).any():
        raise ValueError(
            f"logits[{index}]: wanted the same entries masked in all layers, got others masked than before; "
            "its variation is infinite, use one mask"
        )
    with np.errstate(invalid="ignore"):
        out: Double = np.subtract(after, before, dtype=np.float64)
    if masked.any():
        out[masked] = 0.0
    return out


def sizes(z: Real, dz: Double, centered: bool) -> tuple[Double, Double]:
    """Per row: the sup norm of an increment, and the square of its Euclidean norm."""
    if not centered:
        sup = np.maximum(dz.max(axis=-1), -dz.min(axis=-1))
        return np.asarray(sup), np.asarray(np.einsum("...i,...i->...", dz, dz))
    kept = ~np.isneginf(z)
    high = np.where(kept, dz, -np.inf).max(axis=-1)
    low = np.where(kept, dz, np.inf).min(axis=-1)
    off = without_mean(z, dz)
    return np.asarray((high - low) / 2), np.asarray(np.einsum("...i,...i->...", off, off))


def without_mean(z: Real, dz: Double) -> Double:
    """An increment without its mean over the entries that z does not mask; 0 at those."""
    kept = ~np.isneginf(z)
    mean = dz.sum(axis=-1) / kept.sum(axis=-1)
    return np.asarray(np.where(kept, dz - mean[..., None], 0.0))


@dataclass(frozen=True)
class Constants:
    """The regularity that the finite-depth bound needs (EOT 2.1, 3.1), with explicit norms.

    For the drift :math:`b(p, t)`: ``L_b`` its Lipschitz constant in p (from l1 to sup), ``M_b`` a bound
    of :math:`\\|b\\|_\\infty` up to constants (half of max - min), ``L_t`` its Lipschitz constant in
    time. For the softmax, with ``tau``: :math:`\\Lambda_J = 1/\\tau` bounds
    :math:`\\|Jv\\|_1/\\|v\\|_\\infty`, :math:`L_J = 2/\\tau` bounds :math:`\\|(J(p)-J(q))v\\|_1 /
    (\\|p-q\\|_1\\|v\\|_\\infty)`; both are attained. Numbers, or one value per row.

    >>> from qkcore.diagnostics.depth import Constants
    >>> c = Constants(L_b=0.0, M_b=1.0)
    >>> c.alpha1, c.gamma
    (1.0, 2.0)
    """

    L_b: Any = 0.0
    M_b: Any = 0.0
    L_t: Any = 0.0
    tau: float = 1.0
    estimated: bool = (
        False  #: from the layers themselves: then bounds are indications, not theorems
    )

    def __post_init__(self) -> None:
        _checks.positive("tau", self.tau)
        for name in ("L_b", "M_b", "L_t"):
            value = _checks.doubles(name, getattr(self, name), inf=True)
            _checks.none_negative(name, value, "a number >= 0", "pass e.g. 0.0")

    @property
    def Lambda_J(self) -> float:
        """:math:`1/\\tau`."""
        return MASS_NORM / self.tau

    @property
    def L_J(self) -> float:
        """:math:`2/\\tau`."""
        return MASS_LIPSCHITZ / self.tau

    @property
    def gamma(self) -> Any:
        """Growth of an initial error: :math:`\\Gamma = L_b\\Lambda_J + M_b L_J` (theorem 3.1)."""
        return self.L_b * self.Lambda_J + self.M_b * self.L_J

    @property
    def growth(self) -> Any:
        """Growth of later errors, which are errors of logits: :math:`L_b\\Lambda_J`."""
        return self.L_b * self.Lambda_J

    @property
    def alpha1(self) -> Any:
        """:math:`\\Lambda_J (1 + \\tfrac12 L_b\\Lambda_J e^{L_b\\Lambda_J})`: the largest step's factor."""
        return self.Lambda_J * (1 + 0.5 * self.growth * _exp(self.growth))

    @property
    def alpha2(self) -> Any:
        """:math:`\\tfrac12 \\Lambda_J L_J e^\\Gamma`: the squares', for steps by :math:`J\\Delta z`."""
        return 0.5 * self.Lambda_J * self.L_J * _exp(self.gamma)


def _exp(x: Any) -> Any:
    """exp without a warning: inf says that a bound says nothing."""
    with np.errstate(over="ignore"):
        return _value(np.exp(x))


@dataclass(frozen=True)
class DepthBudget:
    """How much the logits vary over L layers, per row of the batch (EOT-3). See :func:`budget`."""

    n_layers: int  #: L, the number of increments
    sup_steps: Double  #: :math:`\\|\\Delta z^{(\\ell)}\\|_\\infty`, (L, ...)
    l2_steps: Double  #: :math:`\\|\\Delta z^{(\\ell)}\\|_2`, (L, ...)
    n_entries: Double  #: V: entries of a row that are not masked
    continuity: float  #: largest :math:`|\\sum_i (p^{(\\ell+1)} - p^{(\\ell)})_i|`
    constants: Constants
    centered: bool

    @property
    def C_BV(self) -> Any:
        """Mean step, :math:`\\frac1L \\sum_\\ell \\|\\Delta z^{(\\ell)}\\|_\\infty` (assumption 2.1)."""
        return _value(self.sup_steps.mean(axis=0))

    @property
    def S_L(self) -> Any:
        """:math:`\\sum_\\ell \\|\\Delta z^{(\\ell)}\\|_2^2`, in float64 (remark 3.3, H.1)."""
        return _value((self.l2_steps**2).sum(axis=0))

    @property
    def S_bar(self) -> Any:
        """:math:`\\bar S_L = S_L/V`: the squares of the steps of an entry, summed over depth, on average.

        The text gates on an S-bar that it does not define. This is the number of P0: the mean over the rows
        of the worst head.
        """
        return _value((self.l2_steps**2).sum(axis=0) / self.n_entries)

    @property
    def total_variation(self) -> Any:
        """:math:`\\sum_\\ell \\|\\Delta z^{(\\ell)}\\|_2` (assumption 3.1)."""
        return _value(self.l2_steps.sum(axis=0))

    @property
    def largest_step(self) -> Any:
        """:math:`\\max_\\ell \\|\\Delta z^{(\\ell)}\\|_\\infty`."""
        return _value(self.sup_steps.max(axis=0))

    @property
    def xi(self) -> Any:
        """Eq 2: :math:`\\alpha_1 \\max\\|\\Delta z\\|_\\infty + \\alpha_2 \\sum\\|\\Delta z\\|_\\infty^2`."""
        squares = (self.sup_steps**2).sum(axis=0)
        c = self.constants
        with np.errstate(invalid="ignore"):  # inf * 0: no motion costs nothing
            second = np.where(squares > 0, c.alpha2 * squares, 0.0)
            first = np.where(squares > 0, c.alpha1 * self.sup_steps.max(axis=0), 0.0)
        return _value(first + second)

    def __str__(self) -> str:
        kind = "estimated" if self.constants.estimated else "supplied"
        vacuous = float(np.mean(np.asarray(self.xi) >= FARTHEST))
        lines = [
            f"DepthBudget: L = {self.n_layers} steps, {np.size(self.C_BV)} rows"
            + (", constants of rows removed" if self.centered else ""),
            f"  C_BV {_range(self.C_BV)}, largest step {_range(self.largest_step)}",
            f"  S_L {_range(self.S_L)}, of an entry (S_bar) {_range(self.S_bar)}",
            f"  Xi_L {_range(self.xi)} from {kind} constants; {100 * vacuous:.0f} % of rows at 2 or more,"
            " where it says nothing",
            f"  continuity residual {self.continuity:.1e}",
        ]
        return "\n".join(lines)


def budget(
    logits: Layers,
    *,
    tau: float = 1.0,
    constants: Constants | None = None,
    centered: bool = True,
) -> DepthBudget:
    """Whether a stack of layers moves slowly enough to be read as a flow: C_BV, S_L, Ξ_L (EOT-3).

    logits: (L + 1, ..., V), or any iterable of layers (..., V), which are then held two at a time. -inf masks
    an entry, in all layers alike. All sums are taken in float64.

    ``constants`` gives α₁ and α₂ of eq 2; by default they are estimated from the layers
    (:func:`estimate_constants`) and marked so. What the softmax does not see is removed from each increment:
    (max + min)/2 for the sup norm, the mean for the Euclidean one, both over the entries that are not
    masked. The budgets get smaller and the bounds hold. ``centered=False`` takes the norms as printed, which
    a constant added to a row changes.

    >>> import numpy as np
    >>> from qkcore.diagnostics import depth
    >>> z = np.array([[0.0, 0.0], [0.1, 0.0], [0.1, 0.3]])
    >>> b = depth.budget(z, constants=depth.Constants())
    >>> round(b.C_BV, 12), round(b.S_L, 12), round(b.largest_step, 12)
    (0.1, 0.05, 0.15)
    >>> round(depth.budget(z, constants=depth.Constants(), centered=False).S_L, 12)
    0.1
    """
    tau = _checks.positive("tau", tau)
    sup: list[Double] = []
    squares: list[Double] = []
    continuity = 0.0
    mass: Double | None = None
    fit = _ConstantsFit(tau) if constants is None else None
    for z, dz in increments(logits):
        a, b = sizes(z, dz, centered)
        sup.append(a)
        squares.append(b)
        p = plain_softmax(z.astype(np.float64), tau)
        now = p.sum(axis=-1)
        if mass is not None:
            continuity = max(continuity, float(np.abs(now - mass).max()))
        mass = now
        last = z + dz
        entries = (~np.isneginf(z)).sum(axis=-1).astype(np.float64)
        if fit is not None:
            fit.add(p, z, dz)
    final = plain_softmax(last, tau).sum(axis=-1)
    continuity = max(continuity, float(np.abs(final - mass).max()))
    used = fit.result(len(sup)) if fit is not None else constants
    assert used is not None
    if used.tau != tau:
        raise ValueError(
            f"constants: wanted the temperature {tau:g} of the call, got {used.tau:g}; pass one tau"
        )
    return DepthBudget(
        n_layers=len(sup),
        sup_steps=np.stack(sup),
        l2_steps=np.sqrt(np.stack(squares)),
        n_entries=entries,
        continuity=continuity,
        constants=used,
        centered=centered,
    )


class _ConstantsFit:
    """Running estimates of L_b and M_b, per row."""

    def __init__(self, tau: float) -> None:
        self.tau = tau
        self.half_range: Any = 0.0
        self.ratio: Any = 0.0
        self.previous: tuple[Double, Double] | None = None

    def add(self, p: Real, z: Real, dz: Double) -> None:
        self.half_range = np.maximum(self.half_range, sizes(z, dz, True)[0])
        if self.previous is not None:
            old_p, old_dz = self.previous
            change = sizes(z, dz - old_dz, True)[0]
            moved = np.abs(p - old_p).sum(axis=-1)
            ratio = np.zeros_like(change)
            np.divide(change, moved, out=ratio, where=moved > 0)
            ratio[(moved == 0) & (change > 0)] = np.inf
            self.ratio = np.maximum(self.ratio, ratio)
        self.previous = (p.astype(np.float64), dz)

    def result(self, n_layers: int) -> Constants:
        return Constants(
            L_b=_value(n_layers * np.asarray(self.ratio)),
            M_b=_value(n_layers * np.asarray(self.half_range)),
            tau=self.tau,
            estimated=True,
        )


def estimate_constants(logits: Layers, *, tau: float = 1.0) -> Constants:
    """L_b and M_b of the drift :math:`D_\\ell = L\\,\\Delta z^{(\\ell)}` of the layers, per row (EOT-3).

    M_b is half of the largest max - min of a row of D; L_b the largest
    :math:`\\|D_{\\ell+1}-D_\\ell\\|_\\infty / \\|p^{(\\ell+1)}-p^{(\\ell)}\\|_1` (constants removed): all
    change is laid to the state. Data can only bound a Lipschitz constant from below, so bounds from these
    are indications.
    """
    fit = _ConstantsFit(_checks.positive("tau", tau))
    count = 0
    for z, dz in increments(logits):
        fit.add(plain_softmax(z.astype(np.float64), fit.tau), z, dz)
        count += 1
    return fit.result(count)


@dataclass(frozen=True)
class FiniteDepth:
    """The finite-depth bound beside the error it bounds (EOT-3, theorem 3.1). See :func:`finite_depth`."""

    error: Any  #: :math:`\\sup_t \\|p^{(\\lfloor tL\\rfloor)} - p(t)\\|_1`, per row
    error_at_layers: Any  #: :math:`\\max_\\ell \\|p^{(\\ell)} - p(t_\\ell)\\|_1`
    bound: Any  #: the sum of the four parts below
    within_layers: Any  #: :math:`\\Lambda_J \\max\\|\\Delta z\\|_\\infty`: motion inside one layer
    misfit: Any  #: from :math:`D_\\ell - b(p^{(\\ell)}, t_\\ell)`, what the drift does not explain
    discretization: Any  #: from the drift's change along a layer, in state and time
    start: Any  #: :math:`e^\\Gamma \\|p^{(0)} - p(0)\\|_1`
    xi: Any  #: eq 2's budget, for comparison
    budget: DepthBudget
    solution: PFSolution
    slack: float  #: allowed for the integrator's own error, a hundred times its tolerance

    @property
    def holds(self) -> bool:
        """Whether no measured error exceeds its bound by more than ``slack``.

        A bound of 2 or more always holds and says nothing: see ``informative``.
        """
        return bool(np.all(np.asarray(self.error) <= np.asarray(self.bound) + self.slack))

    @property
    def informative(self) -> Any:
        """Per row: whether the bound is below 2, the largest l1 distance that there is."""
        below = np.asarray(self.bound) < FARTHEST
        return bool(below) if below.ndim == 0 else below

    def _vacuous(self) -> list[str]:
        share = 1 - float(np.mean(self.informative))
        if share == 0:
            return []
        return [
            f"  THE BOUND SAYS NOTHING about {100 * share:.3g} % of the rows: it is 2 or more, and no two "
            "probability vectors are further apart; pass constants= that are known of the drift"
            + (
                " (those estimated from layers grow like the number of layers)"
                if self.budget.constants.estimated
                else ""
            )
        ]

    def __str__(self) -> str:
        kind = (
            "estimated (an indication)" if self.budget.constants.estimated else "exact or supplied"
        )
        return "\n".join(
            [
                f"FiniteDepth: error {_range(self.error)}, bound {_range(self.bound)}, constants {kind}",
                *self._vacuous(),
                f"  at layers {_range(self.error_at_layers)}; parts of the bound: within layers "
                f"{_range(self.within_layers)}, misfit {_range(self.misfit)}, discretisation "
                f"{_range(self.discretization)}, start {_range(self.start)}",
                f"  PF-ODE {self.solution.status}, {self.solution.n_steps} steps",
            ]
        )


def finite_depth(
    logits: npt.ArrayLike,
    drift: Drift | FittedDrift | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    *,
    tau: float = 1.0,
    constants: Constants | None = None,
    p0: npt.ArrayLike | None = None,
    n_between: int = 4,
    rtol: float = 1e-7,
    atol: float = 1e-10,
    max_steps: int = 20000,
) -> FiniteDepth:
    """Integrate the PF-ODE beside the layers; its error against the bound of theorem 3.1 (EOT-3).

    With steps :math:`\\Delta z^{(\\ell)}` at times :math:`\\ell/L`, drift misfits
    :math:`r_\\ell = L\\Delta z^{(\\ell)} - b(p^{(\\ell)}, t_\\ell)` and :class:`Constants`,

    .. math:: \\sup_t\\|p^{(\\lfloor tL\\rfloor)} - p(t)\\|_1 \\le
       \\Lambda_J\\max_\\ell\\|\\Delta z^{(\\ell)}\\|_\\infty
       + \\Lambda_J e^{L_b\\Lambda_J}\\Big(\\frac1L\\sum\\|r_\\ell\\|_\\infty + \\tfrac12 L_b\\Lambda_J C_{BV}
       + \\frac{L_t}{2L}\\Big) + e^{\\Gamma}\\|p^{(0)}-p(0)\\|_1

    (sup norms up to constants). The text's factor :math:`e^\\Gamma - 1` of the last term cannot be right:
    with b = 0 the error stays what it was.

    logits: (L + 1, ..., V). drift: as in :func:`qkcore.simplex.pf_ode`, over t in [0, 1]; default the layers'
    own increments, for which :math:`L_b = L_t = r = 0` and the bound is the motion within a layer.
    ``constants``: supplied ones make the bound a theorem. By default those of a table and of
    :class:`~qkcore.diagnostics.drift.RidgeDrift` without features follow from the drift itself. For other
    drifts they are estimated from the layers, and the bound is an indication that often says nothing
    (``informative`` is False where it is 2 or more).

    >>> import numpy as np
    >>> from qkcore.diagnostics import depth
    >>> z = np.linspace(0, 0.1, 6)[:, None] * np.array([1.0, -1.0])
    >>> out = depth.finite_depth(z)
    >>> out.holds, round(out.error, 4), round(out.bound, 4)
    (True, 0.02, 0.02)
    """
    tau = _checks.positive("tau", tau)
    z = check_logits("logits", logits).astype(np.float64)
    steps = [dz for _, dz in increments(z)]
    L = len(steps)
    between = _checks.integer_within(
        "n_between", n_between, 1, 10**6, "look at least at the end of a layer"
    )
    p: Double = plain_softmax(z, tau)
    begin = p[0] if p0 is None else np.broadcast_to(_checks.probabilities("p0", p0), p[0].shape)
    if drift is None:
        drift = (np.arange(L + 1) / L, np.stack(steps) * L)
        known = Constants(
            M_b=_value(L * np.stack([sizes(z[0], d, True)[0] for d in steps]).max(axis=0)), tau=tau
        )
        constants = known if constants is None else constants
    elif constants is None:
        pieces_of(drift, p[0].shape, 0.0, 1.0)  # refuses what is no drift
        exact = drift_constants(drift, z.shape[-1], L)
        constants = estimate_constants(z, tau=tau) if exact is None else Constants(*exact, tau=tau)
    times = np.unique(
        np.concatenate([np.arange(L * between + 1) / (L * between), np.arange(L + 1) / L])
    )
    sol = pf_ode(
        begin, drift, (0.0, 1.0), tau=tau, t_eval=times, rtol=rtol, atol=atol, max_steps=max_steps
    )
    if not sol.success:
        raise RuntimeError(
            f"the PF-ODE did not reach the last layer: {sol.message} (t = {sol.t_reached:g})"
        )
    error, at_layers = _measured(p, sol, L)
    out = budget(z, tau=tau, constants=constants)
    misfit = _misfits(z, p, steps, pieces_of(drift, p[0].shape, 0.0, 1.0))
    c = constants
    amplified = c.Lambda_J * _exp(c.growth)
    parts = {
        "within_layers": c.Lambda_J * np.asarray(out.largest_step),
        "misfit": _times(amplified, misfit),
        "discretization": _times(
            amplified, 0.5 * c.growth * np.asarray(out.C_BV) + 0.5 * c.L_t / L
        ),
        "start": _times(_exp(c.gamma), np.abs(begin - p[0]).sum(axis=-1)),
    }
    return FiniteDepth(
        error=_value(error),
        error_at_layers=_value(at_layers),
        bound=_value(sum(parts.values(), np.zeros(()))),
        xi=out.xi,
        budget=out,
        solution=sol,
        slack=100 * max(rtol, atol),
        **{name: _value(part) for name, part in parts.items()},
    )


def _measured(p: Double, sol: PFSolution, L: int) -> tuple[Double, Double]:
    """The sup over the times at hand, each compared with the layer that begins its interval, or ends it."""
    sup = np.zeros(p.shape[1:-1])
    at_layers = np.zeros_like(sup)
    for t, q in zip(sol.t, sol.p, strict=True):
        exact = round(t * L)
        on_layer = abs(t * L - exact) < 1e-9
        if on_layer:
            gap = np.abs(p[exact] - q).sum(axis=-1)
            at_layers = np.maximum(at_layers, gap)
            sup = np.maximum(sup, gap)
        layer = exact - 1 if on_layer else int(t * L)
        if layer >= 0:
            sup = np.maximum(sup, np.abs(p[layer] - q).sum(axis=-1))
    return sup, at_layers


def _misfits(z: Double, p: Double, steps: list[Double], pieces: list[Any]) -> Double:
    """Mean over the layers of the sup norm, up to constants, of what the drift leaves of an increment."""
    L = len(steps)
    total = np.zeros(p.shape[1:-1])
    for k, dz in enumerate(steps):
        t = k / L
        piece = next(q for q in pieces if t < q.stop - 1e-12)
        b = np.broadcast_to(np.asarray(piece.drift(p[k], t), dtype=np.float64), dz.shape)
        total = total + sizes(z[0], np.where(np.isneginf(z[0]), 0.0, L * dz - b), True)[0]
    return total / L


def _times(factor: Any, size: Any) -> Any:
    """A product in which inf times 0 is 0: an infinite constant of nothing."""
    with np.errstate(invalid="ignore"):
        return np.where(np.asarray(size) > 0, factor * np.asarray(size), 0.0)


def _value(x: Any) -> Any:
    """A number for one row, an array for a batch."""
    return float(x) if np.ndim(x) == 0 else x


def _range(x: Any) -> str:
    low, high = float(np.min(x)), float(np.max(x))
    return f"{high:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
