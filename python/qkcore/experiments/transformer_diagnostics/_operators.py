"""Attention matrices as Markov chains: regime, currents, entropy production, sinks (DAC-8).

A causal matrix is reducible: tokens attend only to earlier ones, so the chain ends at the first token and
stays there. Its only stationary law is that point, which is trivially in equilibrium and says nothing about
the head. For causal heads the mean number of steps to the first token is measured instead, and the regime is
that of the same logits without the mask. It is marked "unmasked", because the model never uses these.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import qkcore as qk

from ._attention import Array, Heads


def of_heads(heads: Heads, *, spectrum: bool) -> list[dict[str, Any]]:
    """Measures each head of a layer, and the mean of its heads as head -1; one row each.

    With ``spectrum`` the spectral gaps of matrices that are not triangular are computed too, which takes
    longest.
    """
    used = qk.softmax(qk.scores.dense(heads.logits.astype(np.float64))).to_numpy()
    free = heads.unmasked.to_numpy().astype(np.float64)
    rows = [
        {"head": h, **_visible(used[h]), **_chain(used[h], free[h], heads.causal, spectrum)}
        for h in range(len(used))
    ]
    mixed = used.mean(axis=0)
    whole = np.log(qk.softmax(qk.scores.dense(free)).to_numpy().mean(axis=0))
    rows.append({"head": -1, **_visible(mixed), **_chain(mixed, whole, heads.causal, spectrum)})
    return rows


def _visible(P: Array) -> dict[str, float]:
    """How the mass of the rows is distributed."""
    columns = P.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(P > 0, P * np.log(P), 0.0).sum(axis=1)
    seen = np.log((P > 0).sum(axis=1))
    wide = seen > 0
    return {
        "sink_first": float(columns[0]),
        "sink_last": float(columns[-1]),
        "sink_top": float(columns.max()),
        "sink_where": int(columns.argmax()),
        "entropy": float((entropy[wide] / seen[wide]).mean()),
        "tail": float(np.median(1 - P.max(axis=1))),
    }


def _chain(P: Array, free: Array, causal: bool, spectrum: bool) -> dict[str, Any]:
    """The regime at the stationary law; if the matrix is causal, that of the unmasked logits."""
    found = regime(free)
    out: dict[str, Any] = {"reducible": int(causal), "asymmetry": asymmetry(free), **found}
    out["absorption"] = steps_to_first(P) if causal else float("nan")
    if causal:  # the eigenvalues of a triangular matrix are on its diagonal
        out["gap"] = float(1 - P.diagonal()[1:].max(initial=0.0))
    else:
        out["gap"] = spectral_gap(P) if spectrum else float("nan")
    return out


def spectral_gap(P: Array) -> float:
    """1 minus the second largest modulus of an eigenvalue."""
    sizes = np.sort(np.abs(np.linalg.eigvals(P)))
    return float(1 - sizes[-2]) if len(sizes) > 1 else 1.0


def regime(logits: Array) -> dict[str, Any]:
    """The regime (EQ, NESS or NE) of the softmax of (n, n) logits at its stationary law, and measures."""
    try:
        found = qk.softmax(qk.scores.dense(logits)).regime()
    except (qk.ReducibleChainError, RuntimeError) as problem:
        # Weights that are 0 may cut the chain into parts; then the stationary law is not unique.
        kind = "reducible" if isinstance(problem, qk.ReducibleChainError) else "not found"
        nan = float("nan")
        return {"regime": kind, "entropy_production": nan, "current": nan, "unbalanced": nan}
    return {
        "regime": found.regime,
        "entropy_production": found.entropy_production,
        "current": found.max_current / found.currents.largest_flow,
        "unbalanced": found.currents.total,
    }


def steps_to_first(P: Array) -> float:
    """Mean number of steps of a causal chain from a random later token to the first."""
    if len(P) < 2:
        return 0.0
    from scipy.linalg import solve_triangular

    rest = np.eye(len(P) - 1) - P[1:, 1:]
    return float(solve_triangular(rest, np.ones(len(rest)), lower=True).mean())


def asymmetry(logits: Array) -> float:
    """Share of the antisymmetric part in the logits after row and column terms are removed.

    Detailed balance holds if and only if it is 0, as row and column terms do not drive currents (erratum 38).

    >>> x = np.random.default_rng(0).normal(size=(30, 30))
    >>> asymmetry(x + x.T + x[0]), round(asymmetry(x - x.T), 12)
    (0.0, 1.0)
    """
    centred = logits - logits.mean(axis=0) - logits.mean(axis=1)[:, None] + logits.mean()
    whole = float(np.square(centred).sum())
    odd = float(np.square(centred - centred.T).sum()) / 4
    return 0.0 if odd <= 1e-24 * whole else odd / whole
