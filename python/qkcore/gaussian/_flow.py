"""Gaussian laws under attention: many trajectories at once, and a status for each (TPDE-3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _checks
from .._backend import backend_of
from .._checks import particles as checks
from .._flow_tasks import Laws, LawsFlown
from .._lazy_scores import Real
from .._native import cpu
from .._ode import IMPLICIT
from .._progress import Bar
from ._closed_forms import CommutingBatch, commuting_batch
from ._parameters import Parameters, check_law, check_parameters
from ._result import GaussianFlow

__all__ = ["flow"]

_FORMS = ("covariance", "pushforward")
_JUDGES = ("covariance", "law")
_RTOL = {4: 1e-5, 8: 1e-8}
_TIMES = 101  # number of stored times with adaptive steps, if the caller gives none
# An eigenvalue below minus this fraction of the size is no rounding or step error; the steps were too long.
_POSITIVITY = 1e-3


def flow(
    kind: str,
    mean: npt.ArrayLike | None,
    cov: npt.ArrayLike,
    t_span: tuple[float, float],
    *,
    Q: npt.ArrayLike,
    K: npt.ArrayLike,
    V: npt.ArrayLike,
    epsilon: float = 1.0,
    n_steps: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    t_eval: npt.ArrayLike | None = None,
    heads: int = 1,
    method: str = "dopri5",
    form: str | None = None,
    store: int | str = "all",
    max_steps: int = 100_000,
    judge: str = "covariance",
    settle_tol: float = 1e-2,
    rank_tol: float = 1e-6,
    max_growth: float = 1e8,
    max_memory: float = 2**31,
    progress: bool = False,
    n_threads: int | None = None,
) -> GaussianFlow:
    """The mean and covariance over time of tokens with a Gaussian law (TPDE-3, 4.1-4.15).

    Attention moves a Gaussian law by an affine velocity :math:`b + Mx` (see :func:`velocity` for M and b
    of each ``kind``), so it stays Gaussian and

    .. math:: \\dot\\alpha = b + M\\alpha, \\qquad \\dot\\Sigma = M\\Sigma + \\Sigma M^\\top,

    e.g. :math:`\\dot\\Sigma = V\\Sigma A\\Sigma + \\Sigma A^\\top\\Sigma V^\\top` for softmax (eq 4.1),
    :math:`A = K^\\top Q`.

    ``mean`` (..., d), or None for 0; ``cov`` (..., d, d), which may be singular; ``Q``, ``K`` (..., k, d);
    ``V`` (..., d, d). Leading axes are a batch and broadcast: thousands of laws under the same parameters, or
    each under different ones. ``heads`` > 1: Q and K are the matrices of the heads stacked by rows (eq 2.9),
    V is (d, d) for all heads or (..., heads, d, d).

    ``n_steps`` gives that many equal steps of "euler", "heun", "rk4", "dopri5" or "rodas4", as in
    :func:`qkcore.flow`. Without it, "dopri5" and "rodas4" adapt their steps, separately for every trajectory,
    to ``rtol`` (1e-8, in float32 1e-5) and ``atol`` (a hundredth of rtol). "rodas4" is implicit. It is for
    stiff flows, in which fast directions keep explicit steps short long after they have settled (from one
    start, dopri5 takes 230 000 steps and rodas4 500). It factors a matrix of size d + d(d+1)/2 at every step,
    in float64, for at most 4000 unknowns.

    ``form``: "covariance" applies the method to the ODE of the covariance, as the paper does. It is the
    default except for dopri5. A step that is too long can give a matrix that is not a covariance (status
    "indefinite"). "pushforward" gives the exact law of the particles that the method moves,
    :math:`P\\Sigma P^\\top`, which is always positive semidefinite; it keeps the rank, and small eigenvalues
    are as accurate as large ones.

    ``store`` says which states are stored. With equal steps: "all", every k-th (an integer k), or "final"
    (the start and the end). Adaptive steps store the times in ``t_eval``, at which steps end; by default 101
    equally spaced times, or with ``store="final"`` the start and the end. More than ``max_memory`` bytes of
    states are refused.

    Every trajectory gets a status, see :class:`GaussianFlow`. ``judge``: "covariance" decides it from Σ
    alone, as the paper does, and "law" also from the mean (growth is then that of the larger of
    :math:`|\\Sigma|_F` and :math:`|\\alpha|^2`). ``settle_tol``, ``max_growth`` and ``rank_tol`` are
    tolerances that are explained there.

    With ``mean`` and ``cov`` on a device the states stay there (``Q``, ``K``, ``V`` come from the host).
    There, at most 8 dimensions, equal steps of "euler", "heun" or "rk4", and every kind except sinkhorn are
    supported.

    >>> import numpy as np, qkcore as qk
    >>> I = np.eye(2)
    >>> sol = qk.gaussian.flow("softmax", None, I, (0, 4), Q=I, K=-I, V=I, n_steps=4000, method="rk4")
    >>> float(round(sol.cov[-1, 0, 0], 10))  # 1 / (1 + 2 t)
    0.1111111111
    >>> bang = qk.gaussian.flow("softmax", None, I, (0, 1), Q=I, K=I, V=I, n_steps=1000)
    >>> bang.status, bang.blow_up_time, bang.blow_up_exact
    ('blew up', 0.5, True)
    >>> bool(np.isfinite(bang.cov).all())
    True
    """
    backend = backend_of(mean, cov)
    at = backend.at(n_threads)
    alpha, sigma = check_law(backend.law("mean", mean), backend.law("cov", cov))
    d, dtype = sigma.shape[-1], sigma.dtype
    p = check_parameters(kind, Q, K, V, d=d, dtype=dtype, epsilon=epsilon, heads=heads)
    t0, t1 = span = _checks.time_span("t_span", t_span)
    code = checks.choice("method", method, cpu.FLOW_METHODS)
    shape = form if form is not None else "pushforward" if method == "dopri5" else "covariance"
    checks.choice("form", shape, _FORMS)
    checks.choice("judge", judge, _JUDGES)
    if method in IMPLICIT and shape == "pushforward":
        raise ValueError(
            f'form: wanted "covariance" with method="{method}", whose steps do not move particles, got '
            '"pushforward"; leave form out, or pass method="dopri5"'
        )
    relative = _RTOL[dtype.itemsize] if rtol is None else _checks.positive("rtol", rtol)
    steps, relative, absolute = checks.step_sizes(
        method, n_steps, rtol, atol, (relative, 0.01 * relative)
    )
    every, times = _kept(steps, store, _checks.output_times(t_eval, span), span)
    stored = np.unique(np.concatenate([[t0], times, [t1]]))  # for adaptive steps
    settings: dict[str, Any] = {
        "settle_tol": _checks.positive("settle_tol", settle_tol),
        "rank_tol": _checks.positive("rank_tol", rank_tol),
        "max_growth": _checks.positive("max_growth", max_growth),
        "positivity_tol": _POSITIVITY,
        "judge": judge,
        "form": shape,
    }
    law_batch = _checks.broadcast("mean, cov", alpha.shape[:-1], sigma.shape[:-2])
    batch = _checks.broadcast("Q, K, V", law_batch, p.batch)
    n = math.prod(batch)
    n_stored = 1 - (-steps // every) if steps else len(stored)
    wanted = n_stored * n * (d + d * d) * dtype.itemsize
    if wanted > _checks.positive("max_memory", max_memory):
        raise ValueError(
            f"store: {n_stored} times of {n} trajectories take {wanted / 2**30:.1f} GiB, more than "
            f'max_memory ({max_memory / 2**30:.1f} GiB); pass store="final", store=k for every k-th '
            "of equal steps, t_eval, or a larger max_memory"
        )
    arrays = _native_arrays(p, alpha, sigma, batch)
    limit = _checks.count("max_steps", max_steps)
    with Bar("Gaussian flow", progress, 1.0) as bar:
        laws = Laws(
            *_native_field(p),
            *arrays,
            code,
            shape == "pushforward",
            t0,
            t1,
            steps,
            every,
            stored[1:],
            relative,
            absolute,
            limit,
            settings["max_growth"],
            judge == "law",
            bar.report,
        )
        found = backend.gaussian_flow(laws, at)
        bar.to(1.0)
    size = _spectral_norm(sigma)
    own_times = _own_times(p, alpha, size, batch)
    top = np.broadcast_to(size, batch).ravel()
    verdict = _judge(
        laws, found, _known(p, sigma, batch), _growth_exponent(p, batch), own_times, top, settings
    )
    shaped = {name: _shape(value, batch) for name, value in verdict.items()}
    means, covs = found.mean, found.cov
    if steps:
        times = t0 + (t1 - t0) * (np.minimum(np.arange(n_stored) * every, steps) / steps)
        times[-1] = t1
    elif not np.array_equal(stored, times):
        means, covs = (x[np.searchsorted(stored, times)] for x in (means, covs))
    give = backend.shaped
    return GaussianFlow(
        t=times,
        mean=give(means, (len(times), *batch, d)),
        cov=give(covs, (len(times), *batch, d, d)),
        mean_rate=give(found.rates[0], (*batch, d)),
        cov_rate=give(found.rates[1], (*batch, d, d)),
        n_steps=_shape(found.counts[:, 1], batch),
        n_rejected=_shape(found.counts[:, 2], batch),
        kind=p.kind if p.heads == 1 else f"{p.kind}, {p.heads} heads",
        method=method,
        settings=settings,
        **shaped,
    )


def _kept(
    steps: int, store: int | str, t_eval: checks.Doubles | None, span: tuple[float, float]
) -> tuple[int, checks.Doubles]:
    """After how many equal steps a state is stored, and the times to store with adaptive steps."""
    if isinstance(store, str):
        if store not in ("all", "final"):
            raise ValueError(
                f'store: wanted "all", "final" or an integer, got {_checks.shown(store)}'
            )
        every = steps if store == "final" else 1
    else:
        every = _checks.count("store", store)
        if not steps:
            raise ValueError(
                'store: wanted "all" or "final" with adaptive steps, got an integer; pass t_eval='
            )
    if steps:
        if t_eval is not None:
            raise ValueError(
                "t_eval: wanted none beside n_steps, got times; drop one of them (of equal steps, store= "
                "chooses which are kept)"
            )
        return min(every, steps), np.empty(0)
    if t_eval is None:
        return 1, np.linspace(*span, 2 if store == "final" else _TIMES)
    return 1, t_eval.copy()  # a copy, which becomes part of the result


def _as_one_head(p: Parameters) -> bool:
    """Whether one head with the sum of all A gives the same field, which is linear in A, as heads share V."""
    equal = p.heads > 1 and p.kind in ("softmax", "linear", "linear_epsilon")
    return equal and bool((p.V[..., :1, :, :] == p.V).all())


def _native_field(p: Parameters) -> tuple[int, float, bool, float]:
    """(field, gain, raw moment, epsilon), as the arguments of the C++ core are called."""
    means = float(p.heads) if _as_one_head(p) else 1.0  # each of the merged heads adds V mean
    return {
        "softmax": (0, means, False, 1.0),
        "linear": (0, 0.0, True, 1.0),
        "linear_epsilon": (0, means / p.epsilon, False, 1.0),
        "l2": (1, 1.0, False, 1.0),
        "sinkhorn": (2, 1.0, False, p.epsilon),
    }[p.kind]


def _native_arrays(
    p: Parameters, alpha: Real, sigma: Real, batch: tuple[int, ...]
) -> tuple[Real, Real, Real, Real, Real]:
    """The contiguous arrays mean (n, d), cov (n, d, d), and score, query, value (n or 1, heads, d, d)."""
    d, dtype = p.d, sigma.dtype

    def rows(array: Real, core: tuple[int, ...]) -> Real:
        full = np.broadcast_to(array, (*batch, *core))
        return np.ascontiguousarray(full.reshape(-1, *core), dtype)

    def stack(array: Real) -> Real:
        core = (array.shape[-3], d, d)
        lead = array.shape[:-3]
        if math.prod(lead) == 1:  # one field for all trajectories
            return np.ascontiguousarray(array.reshape(1, *core), dtype)
        return rows(array, core)

    query, key = p.square() if p.kind == "l2" else (p.A, p.A)
    value = p.V
    if _as_one_head(p):
        query = key = key.sum(axis=-3, keepdims=True)
        value = value[..., :1, :, :]
    return rows(alpha, (d,)), rows(sigma, (d, d)), stack(key), stack(query), stack(value)


def _growth_exponent(p: Parameters, batch: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """q such that the rate of log |Σ| is bounded by a multiple of :math:`|\\Sigma|^q`, for the flat batch.

    For softmax and linear attention q is 1. For L2 it is 0 if the K of every head has full column rank, and
    1/2 otherwise (erratum 26). For Sinkhorn it is 0, because correlations are at most 1.
    """
    if p.kind == "sinkhorn":
        q: npt.NDArray[np.float64] = np.zeros(())
    elif p.kind == "l2":
        values = np.linalg.svd(p.K.astype(np.float64), compute_uv=False)
        cut = 10 * p.d * float(np.finfo(p.K.dtype).eps) * values[..., :1]
        full = (values > cut).sum(axis=-1) == p.d
        q = np.where(full.all(axis=-1), 0.0, 0.5)
    else:
        q = np.ones(())
    return np.broadcast_to(q, batch).ravel()


def _own_times(
    p: Parameters, alpha: Real, size: npt.NDArray[np.float64], batch: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """Times (2, n) that the field needs at least to change covariances, and means, by their own size.

    They are one over bounds of the rates, from norms of the parameters and of the covariances at the start
    (``size``), for the flat batch; inf if nothing can move. From a much shorter span one cannot tell whether
    a trajectory has settled.
    """
    v, size = _spectral_norm(p.V), size[..., None]  # (..., heads)
    mean = np.linalg.norm(alpha.astype(np.float64), axis=-1)[..., None]
    gain: float | Real = 1.0
    if p.kind == "l2":  # both are bounds on |Sigma K^T (1 + 2 K Sigma K^T)^-1|
        slope = 2 * _spectral_norm(p.Q) * np.minimum(size * _spectral_norm(p.K), np.sqrt(size / 8))
    elif p.kind == "sinkhorn":  # correlations are at most 1
        slope = np.minimum(size * _spectral_norm(p.A) / p.epsilon, 1.0) / p.epsilon
        gain = 1 / p.epsilon
    elif p.kind == "linear":
        slope, gain = (size + mean**2) * _spectral_norm(p.A), 0.0
    else:
        slope, gain = (
            size * _spectral_norm(p.A),
            1 / p.epsilon if p.kind == "linear_epsilon" else 1.0,
        )
    rates = (2 * v * slope).sum(axis=-1), (v * (gain + slope)).sum(axis=-1)
    with np.errstate(divide="ignore"):
        return np.stack([1 / np.broadcast_to(rate, batch).ravel() for rate in rates])


def _spectral_norm(x: Real) -> npt.NDArray[np.float64]:
    """The largest singular values of matrices (..., k, d), from the eigenvalues of their squares."""
    x = x.astype(np.float64)
    # The size is divided out, so that squares do not overflow.
    size = np.abs(x).max(axis=(-2, -1), keepdims=True)
    size[size == 0] = 1.0
    scaled = x / size
    values = np.linalg.eigvalsh(scaled.swapaxes(-1, -2) @ scaled)
    return np.asarray(size[..., 0, 0] * np.sqrt(np.maximum(values[..., -1], 0.0)))


def _known(p: Parameters, sigma: Real, batch: tuple[int, ...]) -> CommutingBatch:
    """Proposition 4.4 for the flat batch; it does not apply to other kinds and to several heads."""
    n, d = math.prod(batch), p.d
    if p.kind not in ("softmax", "linear_epsilon") or p.heads != 1:
        return CommutingBatch(
            np.zeros(n, bool),
            np.full(n, math.inf),
            np.full((n, d, d), math.nan),
            np.full(n, -1),
        )
    found = commuting_batch(sigma, p.A[..., 0, :, :], p.V[..., 0, :, :])
    return CommutingBatch(
        np.broadcast_to(found.applies, batch).ravel(),
        np.broadcast_to(found.blow_up, batch).ravel(),
        np.broadcast_to(found.limit, (*batch, d, d)).reshape(n, d, d),
        np.broadcast_to(found.limit_rank, batch).ravel(),
    )


def _judge(
    laws: Laws,
    found: LawsFlown,
    known: CommutingBatch,
    exponent: npt.NDArray[np.float64],
    own_times: npt.NDArray[np.float64],
    top: npt.NDArray[np.float64],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Statuses, end times, eigenvalues, ranks of the flat batch; ``top`` are spectral norms at the start."""
    t_end, _, _, _, mark_t, mark_size, mark_growth, early_size, early_growth = found.figures.T[:9]
    first_t, first_size, early_t = found.figures.T[9:]
    end, positive, cov = found.counts[:, 0], found.counts[:, 3], found.last[1]
    mean_rate, cov_rate = found.rates
    t0, span = laws.t0, laws.t1 - laws.t0
    values, vectors = np.linalg.eigh(cov.astype(np.float64))
    elapsed = t_end - t0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        slopes = (vectors * (cov_rate.astype(np.float64) @ vectors)).sum(axis=-2)
        decay = elapsed[:, None] * slopes / values
    decay = np.where((values > 0) & np.isfinite(decay), decay, 0.0)
    kept = (values > settings["rank_tol"] * top[:, None]) & (decay > -0.5)

    # A law has settled if it is near its limit, where that is known. Elsewhere it has settled if the present
    # rate would move it little over another span of the same length, or over the time that the field needs to
    # move anything, if that is longer. (Rates of blow-ups may overflow.)
    reference = np.linalg.norm(laws.cov.astype(np.float64), axis=(-2, -1))
    with np.errstate(over="ignore", invalid="ignore"):
        speed = np.linalg.norm(cov_rate.astype(np.float64), axis=(-2, -1))
        moves = np.where(speed > 0, speed * np.maximum(span, own_times[0]), 0.0)
        left = np.linalg.norm(cov.astype(np.float64) - known.limit, axis=(-2, -1))
    settled = np.where(known.applies, left, moves) <= settings["settle_tol"] * reference
    if settings["judge"] == "law":
        first = np.maximum(
            np.linalg.norm(laws.mean.astype(np.float64), axis=-1), np.sqrt(reference)
        )
        speed = np.linalg.norm(mean_rate.astype(np.float64), axis=-1)
        with np.errstate(over="ignore", invalid="ignore"):
            drift = np.where(speed > 0, speed * np.maximum(span, own_times[1]), 0.0)
        settled &= drift <= settings["settle_tol"] * first
    status = np.where(settled, "converged", "not settled").astype("<U14")

    gone = end == cpu.FLOW_STATUS.index("blew up")
    # If the growth rate may be like size^q with q > 0, a blow-up like (T - t)^(-1/q) is possible. To
    # recognise it, the rate of the last doubling is divided by the mean rate since the first one. This ratio
    # is 1 for an exponential, less for a power of t, and about (r^q - 1) / (q log r) for a blow-up that has
    # grown r-fold. The threshold is the geometric mean of 1 and that number. If the steps resolved growth by
    # less than r = 6, q as measured over the last doubling decides. If they resolved none, it counts as a
    # blow-up, because only a superlinear field outruns the steps.
    q = np.where(exponent > 0, exponent, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = mark_size / first_size
        last_rate = np.log(mark_size / early_size) / (mark_t - early_t)
        surge = last_rate * (mark_t - first_t) / np.log(r)
        measured = np.log(mark_growth / early_growth) / np.log(mark_size / early_size)
        sudden = np.where(
            (first_size > 0) & (r > 6),
            surge > np.sqrt((r**q - 1) / (q * np.log(r))),
            (early_growth <= 0) | (measured > 0.5 * q),
        )
    # A trajectory that turns while it grows may happen to shrink at the moment at which the rate was
    # measured.
    rate = np.where((mark_growth > 0) | (early_size == 0), mark_growth, last_rate)
    explosive = gone & (exponent > 0) & (rate > 0) & sudden
    status[gone] = "diverged"
    status[explosive] = "blew up"
    # The closed form overrules the steps, which may pass a blow-up without noticing it, or take growth that
    # ends for one.
    exact_time = t0 + known.blow_up
    passed = known.applies & (exact_time <= t_end)
    status[passed | (gone & known.applies & np.isfinite(exact_time))] = "blew up"
    status[gone & known.applies & np.isinf(exact_time)] = "diverged"
    for why in ("step limit", "step underflow"):
        status[end == cpu.FLOW_STATUS.index(why)] = why
    # Steps that no longer resolve a blow-up may make a covariance indefinite. So in a blow-up only the
    # resolved states must be positive semidefinite, and the eigenvalue that blew up must be positive.
    scale = np.maximum(np.abs(values).max(axis=-1), top)
    lost = values[:, 0] < -_POSITIVITY * scale
    lost[explosive] = (positive[explosive] == 0) | (values[explosive, 0] < -values[explosive, -1])
    status[lost] = "indefinite"
    blew = status == "blew up"
    with np.errstate(divide="ignore", invalid="ignore"):
        extrapolated = np.where(blew & ~known.applies, mark_t + 1 / (q * rate), math.inf)
    at_rest = known.applies & (status == "converged") & (known.limit_rank >= 0)
    return {
        "status": status,
        "t_end": t_end.copy(),
        "blow_up_time": np.where(known.applies, exact_time, extrapolated),
        "blow_up_exact": known.applies.copy(),
        "eigenvalues": values.astype(cov.dtype),
        "decay": decay.astype(cov.dtype),
        "rank": np.where(at_rest, known.limit_rank, kept.sum(axis=-1)),
    }


def _shape(value: npt.NDArray[Any], batch: tuple[int, ...]) -> Any:
    """Values of a flat batch in the shape of the batch; those of one trajectory as numbers and strings."""
    shaped = value.reshape((*batch, *value.shape[1:]))
    return shaped[()].item() if shaped.ndim == 0 else shaped
