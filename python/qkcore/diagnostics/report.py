"""The suite P0-P4 on anyone's logits or activations (EOT-13, section 6.1, M.6, N.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._progress import track
from . import _adequacy, _alignment, _gate, _p_checks
from ._arrays import Float, count, float64, generator
from ._layer_map import LayerMap
from ._layers import LayerStack
from ._verdict import FAIL, PASS, Check, Thresholds, abstain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Check", "Report", "Thresholds", "run"]


def __dir__() -> list[str]:
    return list(__all__)


@dataclass(frozen=True, eq=False)
class Report:
    """Verdicts of P0-P4 with their numbers; prints as a table."""

    checks: tuple[Check, ...]
    thresholds: Thresholds
    shape: str
    """what was examined"""

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"{name!r}: wanted one of {', '.join(c.name for c in self.checks)}")

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    @property
    def passed(self) -> bool:
        """Whether nothing failed and the gate is open (abstentions do not count as failures)."""
        return self["P0"].verdict == PASS and all(c.verdict != FAIL for c in self.checks)

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict of each check."""
        return {c.name: c.verdict for c in self.checks}

    def __str__(self) -> str:
        rows = [("", "check", "verdict", "number", "threshold", "reason")]
        rows += [
            (c.name, c.title, c.verdict, _number(c.value), f"{c.sense} {c.threshold:g}", c.reason)
            for c in self.checks
        ]
        widths = [max(len(r[k]) for r in rows) for k in range(5)]
        lines = [self.shape]
        for r in rows:
            cells = "  ".join(r[k].ljust(widths[k]) for k in range(5))
            lines.append(f"{cells}  {r[5]}".rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from .. import _html

        return _html.report(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, ready for JSON."""
        return {
            "shape": self.shape,
            "passed": self.passed,
            "thresholds": asdict(self.thresholds),
            "checks": {
                c.name: {
                    "title": c.title,
                    "verdict": c.verdict,
                    "value": _plain(c.value),
                    "threshold": c.threshold,
                    "sense": c.sense,
                    "reason": c.reason,
                    "details": _plain(c.details),
                }
                for c in self.checks
            },
        }

    def plot(self) -> Figure:
        """One panel per check that has something to show (needs matplotlib)."""
        from ._plots import draw

        return draw(self)


def run(
    logits: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None,
    *,
    activations: npt.ArrayLike | None = None,
    probabilities: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None,
    unembedding: npt.ArrayLike | None = None,
    tau: float = 1.0,
    queries: npt.ArrayLike | None = None,
    keys: npt.ArrayLike | None = None,
    budget: npt.ArrayLike | None = None,
    drift: str = "ridge",
    diffusion: Any = None,
    layer_map: LayerMap | Sequence[LayerMap] | None = None,
    reference_energy: float | None = None,
    thresholds: Thresholds | Mapping[str, float] | None = None,
    temperatures: Sequence[float] = (1.0, 1.25, 1.5, 2.0),
    n_pairs: int = 32,
    evi_rows: int = 0,
    n_components: int = 3,
    n_resamples: int = 200,
    rng: int | np.random.Generator | None = 0,
    progress: bool = False,
) -> Report:
    """The diagnostics P0-P4 of a stack of layers: pass, fail or abstain, with numbers and reasons (EOT-13).

    What is examined: ``logits`` (layers, ..., queries, keys), as an array or a list of layers, -inf
    masks; or ``probabilities``, the attention weights themselves; and / or ``activations`` (layers, n,
    d), which P4 needs. Activations with an ``unembedding`` (d, V) give logits as well. Everything is
    accumulated in double precision, two layers at a time.

    - **P0**, the gate: :math:`\\bar S_L` (the summed squared changes of a logit through depth, averaged
      over rows and visible keys, of the worst head) at most 0.15, and no row gains or loses mass (below
      1e-14). A constant of a row does not count. The change in Fisher's metric (Jeffreys' divergence) stands
      beside it: keys without mass do not count there. If P0 fails, P1-P4 abstain. Probabilities may come in
      any precision: rows whose sum is off by no more than the rounding of their dtype are normalised first.
      Of activations alone: their motion against each other, relative to their spread.
    - **P1**, adequacy of the probability flow: a drift fitted to half of the rows (``drift``: "ridge", "knn",
      or "mlp", which needs JAX) carries the other half from layer 0 through depth with a skill of at least
      0.5, where 0 is standing still; and no layer moves by more TV than its drift budget and a band (eq 22).
      Axes before that of the heads are passages; of four or more whole ones are held out.
      ``budget`` (layers - 1,) or (layers - 1, rows), e.g. from component sensitivities, replaces
      :math:`\\frac12\\|\\Delta z\\|_\\infty`, which no softmax exceeds.
    - **P2**, locking: locked rows hardly move, and by at most half as much as other rows whose logits change
      as much; no row above the bound of eq 23 (its sharp form). Rows that see one key are left out.
    - **P3**, contraction: the curvature gap falls as ``temperatures`` rise. It needs distances: those of
      ``keys`` (m, d) and ``queries`` (n, d), of the columns of ``unembedding``, or for square attention
      positions in the sequence. ``evi_rows``: so many rows are followed to the last layer in Sinkhorn W2 as
      well (eq 25).
    - **P4**, alignment with a Schrödinger bridge: rotation is a small part of the mean flow of the
      activations, in their ``n_components`` leading principal components at each layer, with ``diffusion``
      tensor a in these; with ``reference_energy``: it is below that. Common drifts and scatter do not count;
      if the mean flow explains less than a tenth of the motion, P4 abstains. ``layer_map``: the function from
      the states of one layer to those of the next (or a tuple of its jvp and vjp; a list of these, one per
      transition), whose Jacobian must be as symmetric.

    ``thresholds``: a :class:`Thresholds` or a dictionary of those to change.

    >>> import numpy as np
    >>> import qkcore.diagnostics as diagnostics
    >>> rng = np.random.default_rng(0)
    >>> z, turn = 2 * rng.normal(size=(1, 32, 8)), 0.02 * rng.normal(size=(8, 8))
    >>> z = np.stack([z @ (np.eye(8) + turn * k) for k in range(8)])  # one field moves all rows
    >>> diagnostics.run(z).verdicts
    {'P0': 'pass', 'P1': 'pass', 'P2': 'abstain', 'P3': 'abstain', 'P4': 'abstain'}
    >>> z[4:] += 5 * rng.normal(size=(32, 8))  # a jump
    >>> print(diagnostics.run(z)["P0"].reason.split("; ")[0])
    the logits vary too much (S̄_L 22.1 > 0.15, in Fisher's metric 6.2), most at transition 3 -> 4
    """
    limits = _thresholds(thresholds)
    rng = generator(rng)
    states = None if activations is None else _states(activations)
    if unembedding is not None:
        logits = _unembedded(states, unembedding, logits)
        # The words of a vocabulary are as far apart as their embeddings, in whatever order they come.
        keys = float64("unembedding", unembedding).T if keys is None else keys
    if logits is not None and probabilities is not None:
        raise ValueError("logits, probabilities: wanted one of the two, got both")
    if logits is None and probabilities is None and states is None:
        raise ValueError("logits: wanted logits, probabilities or activations, got none of them")
    stack = None
    if logits is not None:
        stack = LayerStack.of_logits(logits, tau, "them as probabilities=")
    elif probabilities is not None:
        stack = LayerStack.of_probabilities(probabilities)
    factors = float64("temperatures", temperatures)
    _checks.rising("temperatures", factors, 2, "numbers > 0")
    _checks.all_positive("temperatures", factors)
    n_pairs, n_components = count("n_pairs", n_pairs), count("n_components", n_components)
    n_resamples = count("n_resamples", n_resamples, 10)
    evi_rows = count("evi_rows", evi_rows, 0)
    _checks.one_of("drift", drift, ("ridge", "knn", "mlp"))
    if layer_map is not None and states is None:
        raise ValueError("layer_map: wanted together with activations, where its Jacobian is taken")

    gate = _gate.measure(stack) if stack is not None else _gate.measure_states(_needed(states))
    first = _p_checks.gate_check(gate, limits, "logits" if stack is not None else "activations")
    checks = [first]
    shape = _shape(stack, states)
    if first.verdict != PASS:
        why = "P0 failed, see there"
        checks += [abstain(name, limits, why) for name in ("P1", "P2", "P3", "P4")]
        return Report(tuple(checks), limits, shape)

    if stack is None:
        why = "needs logits, probabilities, or an unembedding beside the activations"
        checks += [abstain(name, limits, why) for name in ("P1", "P2", "P3")]
    else:
        steps = track(stack.transitions(), "P1, P2", progress, stack.n_layers - 1)
        motions = _p_checks.motions(steps)
        given = None if budget is None else _budget(budget, motions.tv.shape)
        checks.append(_adequacy.adequacy(stack, motions, given, drift, limits, n_resamples, rng))
        checks.append(_p_checks.locking_check(motions, limits, n_resamples, rng))
        checks.append(
            _p_checks.contraction(
                stack,
                tau,
                queries,
                keys,
                factors,
                n_pairs,
                limits,
                n_resamples,
                rng,
                progress,
                evi_rows,
            )
        )
    if states is None:
        checks.append(abstain("P4", limits, "needs activations"))
    else:
        checks.append(
            _alignment.alignment(
                states, diffusion, n_components, reference_energy, layer_map, limits, rng
            )
        )
    return Report(tuple(checks), limits, shape)


def _thresholds(given: Thresholds | Mapping[str, float] | None) -> Thresholds:
    if given is None:
        return Thresholds()
    return given if isinstance(given, Thresholds) else Thresholds().changed(dict(given))


def _states(activations: npt.ArrayLike) -> Float:
    H = float64("activations", activations)
    if H.ndim == 4 and H.shape[1] == 1:  # a model's hidden states: a batch of one sequence
        H = H[:, 0]
    hint = "take the sequences of a batch one by one, activations[:, 0]"
    if H.ndim != 4:
        hint = "stack the hidden states of all layers"
    _checks.shape("activations", H.shape, ("layers", "n", "d"), do=hint)
    hint = "pass the hidden states of every layer, as the diagnostics follow them through depth"
    _checks.some("activations", len(H), 2, "layers", hint)
    return H


def _needed(states: Float | None) -> Float:
    assert states is not None
    return states


def _unembedded(states: Float | None, W: npt.ArrayLike, logits: object) -> list[Float]:
    if states is None or logits is not None:
        raise ValueError("unembedding: wanted together with activations and without logits")
    matrix = float64("unembedding", W)
    _checks.shape("unembedding", matrix.shape, (states.shape[2], "V"), why="like the activations")
    return [layer @ matrix for layer in states]


def _budget(budget: npt.ArrayLike, shape: tuple[int, ...]) -> Float:
    given = float64("budget", budget)
    if given.ndim == 1:
        given = given[:, None]
    if given.shape[0] != shape[0] or given.shape[1:] not in ((1,), shape[1:]):
        raise ValueError(
            f"budget: wanted shape ({shape[0]},) or {shape} (transitions, rows), got {given.shape}"
        )
    _checks.none_negative("budget", given, "numbers >= 0 (total variation)")
    return given


def _shape(stack: LayerStack | None, states: Float | None) -> str:
    parts = []
    if stack is not None:
        rest = " x ".join(map(str, stack.shape))
        parts.append(f"{stack.n_layers} layers of {rest} logits")
    if states is not None:
        parts.append(
            f"{len(states)} layers of {states.shape[1]} activations in {states.shape[2]} dimensions"
        )
    return ", ".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _plain(value: Any) -> Any:
    """NumPy out, JSON in; infinities and NaN become None, which JSON has."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return value
