"""Multi-step bridges: a path measure over a chain of kernels with given end marginals (DAC-7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks, _device
from ._bridge_kernels import ChainKernel
from ._bridge_report import Callback
from ._bridge_result import SolvedBridge
from ._bridge_solve import ask
from ._convergence import on_fail_option, settle
from ._lazy_scores import Real, Scores
from .operators import MarkovOperator, scores_argument, softmax

__all__ = ["BridgeChain", "bridge_chain"]


@dataclass(frozen=True, eq=False, kw_only=True)
class BridgeChain(SolvedBridge):
    """The path measure :math:`e^{f(x_0)} \\prod_k e^{s_k(x_{k-1}, x_k)} e^{g(x_n)}` with given end marginals.

    The errors are those of the two end marginals.
    """

    scores: tuple[Scores, ...] = field(repr=False)

    @cached_property
    def _backward_potentials(self) -> list[Real]:
        """h_k, the logarithm of the kernels after time k applied to exp(g), at every state; h_n = g."""
        h = [self.g]
        for s in reversed(self.scores):
            h.append(s.shift(columns=h[-1]).logsumexp(1))
        return h[::-1]

    @cached_property
    def kernels(self) -> tuple[MarkovOperator, ...]:
        """The steps of the bridge, row-stochastic: :math:`\\mathrm{softmax}_j(s_k + h_k)`."""
        self._used()
        h = self._backward_potentials
        return tuple(softmax(s.shift(columns=h[k + 1])) for k, s in enumerate(self.scores))

    @cached_property
    def marginals(self) -> tuple[Real, ...]:
        """The laws at times 0..n: the first marginal, pushed through the steps."""
        self._used()
        b = self.scores[0].backend
        ends = (("f", self.f), ("h", self._backward_potentials[0]))
        named = [(name, x, self.scores[0].n_rows) for name, x in ends]
        f, h = (b.to_host(x) for x, _ in b.vectors(self.scores[0].dtype, (), *named))
        laws: list[Real] = [b.give(b.from_host(np.exp(f + h)))]
        for step in self.kernels:
            laws.append(step.apply_left(laws[-1]))
        return tuple(laws)

    def __str__(self) -> str:
        sizes = " -> ".join(str(len(x)) for x in self._backward_potentials)
        return self._summary(f"bridge over {len(self.scores)} steps ({sizes} states)")


def bridge_chain(
    kernels: Sequence[Scores],
    mu: npt.ArrayLike,
    nu: npt.ArrayLike,
    *,
    tol: float | None = None,
    max_iter: int = 10_000,
    max_visits: int | None = None,
    solver: str = "auto",
    penalty: float | tuple[float, float] | None = None,
    init: Any = None,
    callback: Callback | None = None,
    progress: bool = False,
    on_fail: str = "warn",
    n_threads: int | None = None,
) -> BridgeChain:
    """The Schrödinger bridge over several steps (DAC-7): the closest path measure with both ends.

    ``kernels`` are scores of shapes (N0, N1), (N1, N2), ...; the numbers of states may differ from time to
    time. A visit goes through every kernel twice, and products of kernels are never formed. ``solver`` (any
    except "symmetric"), ``max_iter``, ``max_visits``, ``penalty``, ``init``, ``callback``, ``progress`` and
    ``on_fail`` are those of :func:`bridge`.

    >>> import numpy as np, qkcore as qk
    >>> s = qk.scores.distance(np.array([[0.0], [1.0], [2.0]]))
    >>> start, end = np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0])
    >>> c = qk.bridge_chain([s, s], start, end)
    >>> c.marginals[1].argmax()  # half-way it is in the middle
    np.int64(1)
    """
    fails = on_fail_option(on_fail)
    chain = tuple(scores_argument(s, f"kernels[{k}]") for k, s in enumerate(kernels))
    _checks.some("kernels", len(chain), 1, "kernel")
    for k, s in enumerate(chain):
        _checks.shape(f"kernels[{k}]", s.shape, ("N", "M"))
        _checks.same_dtype(f"kernels[{k}]", np.empty(0, s.dtype), chain[0].dtype, "kernels[0]")
        if k and s.shape[0] != chain[k - 1].shape[1]:
            raise ValueError(
                f"kernels[{k}]: wanted {chain[k - 1].shape[1]} rows, the columns of kernels[{k - 1}], "
                f"got shape {s.shape}"
            )
        if s.device != chain[0].device:
            raise ValueError(
                f"kernels[{k}]: wanted scores on {chain[0].device} like kernels[0], got some on {s.device}"
            )
    how = tol, max_iter, max_visits, solver, penalty
    if not any(map(_device.is_scores, chain)):
        asked = ask(ChainKernel(chain), mu, nu, *how, init, n_threads)
        return settle(BridgeChain(scores=chain, **asked.solved(callback, progress)), fails)
    from ._device._chain import DeviceChain, on_host

    sizes = chain[0].n_rows, chain[-1].n_cols

    def here(names: tuple[str, str], pair: Any) -> tuple[Any, ...]:
        return tuple(on_host(chain[0], *one) for one in zip(names, pair, sizes, strict=True))

    law_0, law_n = here(("mu", "nu"), (mu, nu))
    pair = (init.f, init.g) if isinstance(init, BridgeChain) else init
    if isinstance(pair, tuple) and len(pair) == 2:
        init = here(("init f", "init g"), pair)
    asked = ask(DeviceChain.of(chain), law_0, law_n, *how, init, n_threads)
    fields = asked.solved(callback, progress)
    b = chain[0].backend
    there = {name: b.give(b.from_host(fields[name])) for name in ("f", "g")}
    return settle(BridgeChain(scores=chain, **(fields | there | {"mu": mu, "nu": nu})), fails)
