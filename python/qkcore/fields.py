"""Velocity fields of attention, for particles that move by attending to each other (TPDE-1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _checks
from ._backend import Backend, backend_of
from ._checks import Real
from ._checks import particles as checks
from ._checks.particles import Doubles, Parameter
from ._flow_tasks import FieldSpec
from ._ode import NoConvergence, Overflow

__all__ = ["AttentionField"]

KINDS = ("softmax", "l2", "linear", "sinkhorn", "exp", "relu", "sigmoid")
_WITH_EPSILON = ("sinkhorn", "linear")
_SINKHORN_VISITS = 10_000


class AttentionField:
    r"""The velocity :math:`\dot x_i = \sum_h \Gamma^{(h)}_\mu(x_i)` of N particles in d dimensions (TPDE-1).

    With :math:`\mu = \sum_j w_j\delta_{x_j}` (``weights``; default 1/N each) and :math:`A = K^\top Q`:

    ============  ===========================================================================  ====
    kind          :math:`\Gamma_\mu(x)`                                                        TPDE
    ============  ===========================================================================  ====
    softmax       :math:`V\,\sum_j w_j e^{Qx\cdot Kx_j}x_j / \sum_j w_j e^{Qx\cdot Kx_j}`      2.1
    linear        :math:`V\,\sum_j w_j x_j x_j^\top A x`; ``centred=True``:                    2.2
                  :math:`\frac1\varepsilon V\bar x + V\,\mathrm{Cov}(\mu)\,A x`
    l2            softmax with the score :math:`-|Qx-Kx_j|^2`                                  2.3
    sinkhorn      :math:`\frac1\varepsilon V\sum_j w_j\kappa^\infty(x,x_j)x_j`, bistochastic   2.4
                  kernel of :math:`e^{-|Qx-Ky|^2/2\varepsilon}`
    exp           :math:`V\sum_j w_j e^{Qx\cdot Kx_j}x_j`                                      2.5
    relu          :math:`V\sum_j w_j \max(Qx\cdot Kx_j,0)\,x_j`                                2.5
    sigmoid       :math:`V\sum_j w_j \sigma(Qx\cdot Kx_j)\,x_j`                                2.5
    ============  ===========================================================================  ====

    Parameters
    ----------
    kind : one of the above.
    Q, K : (heads*k, d), the heads stacked row-wise (TPDE 2.9), or callables of t that return such.
        There is no hidden factor :math:`1/\sqrt k`; multiply Q or K by it if you want it.
    V : (d, d), shared by the heads, or (heads, d, d); or a callable. Heads are summed (2.7).
    mask : None; "causal" (particle i sees j <= i); or positions (N,) in [0, 1], with which particle i sees j
        if ``mask[j] <= mask[i]``, so particles at equal positions see each other. A particle moves as it
        would in the unmasked field of only the particles that it sees (2.6). For sinkhorn this takes one
        bridge per position, O(N^3) work.
    epsilon : the regularisation of sinkhorn, and of the centred linear form.
    weights : (N,), not all zero; they are scaled to sum 1.
    times : (L,), rising. Q, K and V may then have a leading axis of L layers. Layer l applies from
        ``times[l]`` on, and the first layer also before. Steps of :func:`qkcore.flow` never cross a change
        of layer.
    centred : the second linear form, which is the expansion of softmax for small A.
    sphere : project velocities on the tangent space, :math:`v - \langle x, v\rangle x`, for unit x;
        :func:`qkcore.flow` then also scales rows to norm 1 after each step.
    renormalise : matters for exp, relu, sigmoid and linear under a mask. True scales the particles that are
        seen to mass 1 (2.6); False integrates over :math:`[0, s]` against the measure itself (2.7). Softmax,
        l2 and sinkhorn divide by that mass anyway. The centred linear form needs True, because it has a mean
        and a covariance.
    sinkhorn_tol, sinkhorn_max_visits : bound on the L1 error of the marginals (default 1e-10, for float32
        1e-5), and on the visits of all entries. In a flow every bridge starts from the potentials of the
        previous stage.

    >>> import numpy as np, qkcore as qk
    >>> X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> field = qk.AttentionField("softmax", Q=np.zeros((2, 2)), K=np.eye(2), V=np.eye(2))
    >>> field(X)[0] * 3  # equal weights: everything moves along the mean
    array([1., 2.])
    """

    def __init__(
        self,
        kind: str,
        *,
        Q: Parameter,
        K: Parameter,
        V: Parameter,
        heads: int = 1,
        mask: str | npt.ArrayLike | None = None,
        epsilon: float = 1.0,
        weights: npt.ArrayLike | None = None,
        times: npt.ArrayLike | None = None,
        centred: bool = False,
        sphere: bool = False,
        renormalise: bool = True,
        sinkhorn_tol: float | None = None,
        sinkhorn_max_visits: int = _SINKHORN_VISITS,
    ) -> None:
        checks.choice("kind", kind, KINDS)
        self.kind = kind
        self.heads = _checks.count("heads", heads)
        self.epsilon = _checks.positive("epsilon", epsilon)
        if self.epsilon != 1.0 and (
            kind not in _WITH_EPSILON or (kind == "linear" and not centred)
        ):
            raise ValueError(
                f"epsilon: {kind} attention{' (not centred)' if kind == 'linear' else ''} has none, "
                f"got {epsilon}; absorb it in Q, K and V"
            )
        if centred and kind != "linear":
            raise ValueError(
                f'centred: wanted kind "linear", the only one with a centred form, got {_checks.shown(kind)}'
            )
        self.centred = _checks.flag("centred", centred)
        self.sphere = _checks.flag("sphere", sphere)
        self.renormalise = _checks.flag("renormalise", renormalise)
        if self.centred and not self.renormalise:
            raise ValueError(
                "renormalise: wanted True for the centred linear form, which needs the mean and covariance "
                "of the visible particles, got False; leave it out, or use centred=False"
            )
        if kind != "sinkhorn":
            _no_sinkhorn(kind, sinkhorn_tol, sinkhorn_max_visits)
        self.weights = None if weights is None else checks.weights(weights)
        self.times = None if times is None else checks.layer_times(times)
        self._sinkhorn_tol = (
            None if sinkhorn_tol is None else _checks.positive("sinkhorn_tol", sinkhorn_tol)
        )
        self._sinkhorn_visits = _checks.integer_within(
            "sinkhorn_max_visits", sinkhorn_max_visits, 1, 10**9, "visits of all entries"
        )
        self._order: npt.NDArray[np.intp] | None = None
        self._ends: npt.NDArray[np.int64] | None = None
        self.mask = self._read_mask(mask)
        if self.weights is not None and self._ends is not None:
            self._check_visible(self.weights[self._order], self._ends)

        self._given = (Q, K, V)
        self.time_dependent = any(callable(p) for p in self._given)
        if self.time_dependent and self.times is not None:
            raise ValueError(
                "times: wanted None for parameters that are functions of t, got times of layers; pass either "
                "functions or layers"
            )
        layers = None if self.times is None else len(self.times)
        t0 = 0.0 if self.times is None else float(self.times[0])
        self._Q, self._K, self._V = self._read(self._at(t0), layers)
        self.d = int(self._Q.shape[-1])
        """dimension of the particles"""

    # ---- arguments -----------------------------------------------------------------------------

    def _at(self, t: float) -> tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]:
        Q, K, V = self._given
        return _value(Q, t), _value(K, t), _value(V, t)

    def _read(
        self, given: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike], layers: int | None
    ) -> tuple[Doubles, Doubles, Doubles]:
        Q, K, V = given
        q = checks.query_key("Q", Q, self.heads, layers)
        k = checks.query_key("K", K, self.heads, layers)
        if q.shape[1:] != k.shape[1:]:
            raise ValueError(
                f"K: wanted the shape of Q, got {np.shape(K)} for Q of {np.shape(Q)}; "
                "both map points of dimension d to k coordinates per head"
            )
        v = checks.values(V, self.heads, q.shape[-1], layers)
        n = 1 if layers is None else layers
        return tuple(  # type: ignore[return-value]  # three of them
            np.ascontiguousarray(np.broadcast_to(p, (n, *p.shape[1:]))) for p in (q, k, v)
        )

    def _read_mask(self, mask: str | npt.ArrayLike | None) -> str | Doubles | None:
        if mask is None:
            return None
        if isinstance(mask, str):
            if mask != "causal":
                raise ValueError(
                    f'mask: wanted None, "causal" or positions (N,) in [0, 1], got {_checks.shown(mask)}'
                )
            return mask
        positions = checks.positions(mask)
        self._order = np.argsort(positions, kind="stable")
        ranked = positions[self._order]
        self._ends = np.searchsorted(ranked, ranked, side="right").astype(np.int64)
        return positions

    @staticmethod
    def _check_visible(weights: Doubles, ends: npt.NDArray[np.int64]) -> None:
        if not (np.cumsum(weights)[ends - 1] > 0).all():
            raise ValueError(
                "weights: wanted every particle to see a positive mass under the mask, got only zeros "
                "at the first positions; give these particles a weight or leave them out"
            )

    def parameters(self, t: float = 0.0) -> tuple[Doubles, Doubles, Doubles]:
        """Q and K as (heads, k, d), V as (heads or 1, d, d), as they apply at time t (float64)."""
        if self.time_dependent:
            q, k, v = self._read(self._at(t), None)
            if q.shape[-1] != self.d:
                raise ValueError(f"Q: wanted {self.d} columns at t = {t}, got {q.shape[-1]}")
            return q[0], k[0], v[0]
        layer = 0
        if self.times is not None:
            layer = max(0, int(np.searchsorted(self.times, t, side="right")) - 1)
        return self._Q[layer], self._K[layer], self._V[layer]

    def interaction(self, t: float = 0.0) -> Doubles:
        """:math:`A_h = K_h^\\top Q_h`, (heads, d, d): the score is :math:`A_h x \\cdot y`."""
        Q, K, _ = self.parameters(t)
        return np.asarray(np.einsum("hka,hkb->hab", K, Q))

    # ---- use -----------------------------------------------------------------------------------

    def __call__(self, X: npt.ArrayLike, t: float = 0.0, *, n_threads: int | None = None) -> Real:
        """The velocities (N, d) of particles X (N, d) at time t, in the dtype of X."""
        backend = backend_of(X)
        at = backend.at(n_threads)
        x = self._particles(backend, "X", X)
        try:
            v: Real = backend.velocity(self._spec(x.shape[0]), x, _checks.number("t", t), at)
        except Overflow:
            raise OverflowError(
                f"X: velocities of {self.kind} attention overflow {x.dtype}; scale the points or "
                "the parameters down" + (", or use float64" if x.dtype == "float32" else "")
            ) from None
        except NoConvergence:
            raise RuntimeError(
                "sinkhorn: the marginals did not reach sinkhorn_tol; raise sinkhorn_tol, "
                "sinkhorn_max_visits or epsilon"
            ) from None
        return v

    def __repr__(self) -> str:
        parts = [repr(self.kind), f"d={self.d}", f"heads={self.heads}"]
        if self.mask is not None:
            parts.append("causal" if isinstance(self.mask, str) else "masked by position")
        if self.kind in _WITH_EPSILON and (self.centred or self.kind == "sinkhorn"):
            parts.append(f"epsilon={self.epsilon:g}")
        if self.weights is not None:
            parts.append("weighted")
        if self.times is not None:
            parts.append(f"{len(self.times)} layers")
        if self.time_dependent:
            parts.append("time-dependent")
        if self.sphere:
            parts.append("on the sphere")
        return f"AttentionField({', '.join(parts)})"

    def _particles(self, backend: Backend, name: str, X: npt.ArrayLike) -> Any:
        """The particles as an array of the backend, after a check that this field can move them."""
        x = backend.particles(name, X, self.d)
        n = x.shape[0]
        if self.weights is not None:
            checks.count_matches("weights", len(self.weights), n)
        if self._order is not None:
            checks.count_matches("mask", len(self._order), n)
        if isinstance(self.mask, str) and self.weights is not None:
            self._check_visible(self.weights, np.arange(1, n + 1))
        if self.sphere:
            backend.on_sphere(name, x)
        return x

    def _spec(self, n: int) -> FieldSpec:
        """The description of the field for n particles, as a backend reads it."""
        causal = isinstance(self.mask, str)
        return FieldSpec(
            "linear centred" if self.centred else self.kind,
            self._Q,
            self._K,
            self._V,
            np.zeros(1) if self.times is None else self.times,
            self._order,
            np.arange(1, n + 1, dtype=np.int64) if causal else self._ends,
            self.weights,
            self.renormalise,
            self.sphere,
            self.epsilon,
            self._sinkhorn_tol,
            self._sinkhorn_visits,
            self.parameters,
            self.time_dependent,
        )

    def reversed(self) -> AttentionField:
        """The field with -V, whose flow undoes the flow of this one; for constant parameters."""
        if self.time_dependent or self.times is not None:
            raise ValueError("field: wanted constant parameters to reverse time")
        out = object.__new__(AttentionField)
        out.__dict__.update(self.__dict__)
        out._V = -self._V
        out._given = (self._given[0], self._given[1], -np.asarray(self._given[2]))
        return out


def _no_sinkhorn(kind: str, tol: float | None, max_visits: int) -> None:
    """Refuses options of bridges for kinds of attention that solve no bridges."""
    for name, given in (
        ("sinkhorn_tol", tol),
        ("sinkhorn_max_visits", None if max_visits == _SINKHORN_VISITS else max_visits),
    ):
        if given is not None:
            raise ValueError(
                f"{name}: only sinkhorn attention solves bridges, got {_checks.shown(given)} for "
                f"{kind}; leave it out"
            )


def _value(parameter: Parameter, t: float) -> npt.ArrayLike:
    return parameter(t) if callable(parameter) else parameter
