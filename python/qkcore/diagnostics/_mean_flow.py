"""The rotation of a mean flow from samples: what a linear field explains of the motion, and its curl (P4).

At one layer x are the centred states of n samples in their leading principal components, u their centred
velocities there. The mean flow is the best linear field :math:`E[u|x] = Cx`; what it leaves of u is scatter:
noise, parts that are not linear, and the motion that hangs on the components that were left out. Scatter is
no rotation, so it is not counted as such. The mean flow is split in the metric of the states' own covariance
:math:`\\Sigma = \\mathrm{diag}(\\lambda)` into the nearest gradient field Sx, S symmetric, and the rest. With
:math:`M = E[u x^T]` the energy of the rest is

.. math:: R = \\sum_{i<j} \\frac{(\\lambda_i M_{ij} - \\lambda_j M_{ji})^2}
   {\\lambda_i \\lambda_j (\\lambda_i + \\lambda_j)}.

For a linear gradient flow u = Sx in any number of dimensions M = S Sigma, so R is exactly 0 in any number of
its leading principal components. Noise of finite samples makes R and the explained energy look larger; the
jackknife over groups of samples removes that and gives their errors.

Where states revert to their mean, most of the mean flow is a multiple -cx of the state, beside which any
rotation is small. So the share of the rotation in what is beyond that multiple stands beside.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ._arrays import Float
from ._stats import Interval
from ._tensor import DiffusionTensor, TensorLike, tensor, without_time

Groups = npt.NDArray[np.int64]

_GROUPS = 40  # of samples, for the jackknife
_WIDEST = 12  # components up to which a tensor that varies is taken: their fourth power are numbers
_FLAT = 1e-12  # a direction of less than this share of the largest variance has no extent


@dataclass(frozen=True, eq=False)
class MeanFlow:
    """Energies of the mean flow of all layers; the mean over depth, as of theorem 5.2."""

    energy: float
    """of its rotational part"""
    energy_interval: Interval
    explained: float
    """energy of the mean flow over the kinetic energy of the centred velocities"""
    share: float
    """rotational part over the energy of the mean flow"""
    interval: Interval
    """95 % of the share, by the jackknife over samples"""
    scaling: float
    """share of the mean flow that is a multiple of the state, u = cx: a contraction or an expansion"""
    beyond: float
    """rotational part over the energy of the mean flow without that multiple, which would hide it"""
    beyond_interval: Interval
    by_layer: Float = field(repr=False)
    """the share at each layer"""
    error_by_layer: Float = field(repr=False)
    """its standard error"""
    kinetic_by_layer: Float = field(repr=False)
    explained_by_layer: Float = field(repr=False)
    n_components: int
    held: float
    """share of the variance of the states that the components hold"""


def leading(x: Float, n_components: int) -> tuple[Float, float]:
    """The leading principal directions (d, q) of centred states, and the variance that they hold."""
    d = x.shape[1]
    if n_components >= d:
        return np.eye(d), 1.0
    if len(x) < d:
        _, sizes, directions = np.linalg.svd(x, full_matrices=False)
        values, vectors = sizes**2, directions.T
    else:
        values, vectors = (v[..., ::-1] for v in np.linalg.eigh(x.T @ x))
    values = np.maximum(values, 0.0)
    return vectors[:, :n_components], float(values[:n_components].sum() / values.sum())


def measure(
    states: Float,
    velocities: Float,
    n_components: int,
    a: TensorLike | None,
    rng: np.random.Generator,
) -> MeanFlow:
    """Of states (L, n, d) and velocities (L, n, d), in the metric of the inverse of ``a``."""
    L, n, d = states.shape
    q = min(n_components, d)
    A = tensor(1.0 if a is None else without_time(a), q)
    group = rng.permutation(np.arange(n) % min(n, _GROUPS))
    every, held = [], []
    for k in range(L):
        x = states[k] - states[k].mean(axis=0)
        P, kept = leading(x, q)
        held.append(kept)
        u = velocities[k] - velocities[k].mean(axis=0)
        every.append(_replicates(x @ P, u @ P, A, group))
    return _summary(np.stack(every), q, float(np.mean(held)))


def _summary(found: Float, q: int, held: float) -> MeanFlow:
    """From (layers, 1 + groups, 4): energies of rotation, mean flow, motion, scaling, without each group."""
    from scipy.stats import t as student

    G = found.shape[1] - 1
    wide = float(student.ppf(0.975, G - 1))
    pseudo = G * found[:, :1] - (G - 1) * found[:, 1:]  # (layers, groups, 4)
    share, error = _ratio(pseudo[..., 0], pseudo[..., 1])
    total = pseudo.mean(axis=0)
    whole, spread = (float(v) for v in _ratio(total[:, 0], total[:, 1]))
    scaled, _ = _ratio(total[:, 3], total[:, 1])
    beyond, around_beyond = (float(v) for v in _ratio(total[:, 0], total[:, 1] - total[:, 3]))
    energy = float(total[:, 0].mean())
    around = float(total[:, 0].std(ddof=1)) / np.sqrt(G)
    means = pseudo.mean(axis=1)
    kinetic = float(means[:, 2].sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        explained = np.where(means[:, 2] > 0, means[:, 1] / means[:, 2], 0.0)
    return MeanFlow(
        energy=energy,
        energy_interval=(energy - wide * around, energy + wide * around),
        explained=float(means[:, 1].sum() / kinetic) if kinetic > 0 else 0.0,
        share=whole,
        interval=(whole - wide * spread, whole + wide * spread),
        scaling=float(scaled),
        beyond=beyond,
        beyond_interval=(beyond - wide * around_beyond, beyond + wide * around_beyond),
        by_layer=share,
        error_by_layer=error,
        kinetic_by_layer=means[:, 2],
        explained_by_layer=explained,
        n_components=q,
        held=held,
    )


def _ratio(top: Float, bottom: Float) -> tuple[Float, Float]:
    """The ratio of two means of pseudo-values (..., groups), and its standard error; NaN without a bottom."""
    below = bottom.mean(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(below > 0, top.mean(axis=-1) / below, np.nan)
        left = top - ratio[..., None] * bottom
        error = left.std(axis=-1, ddof=1) / np.sqrt(left.shape[-1]) / below
    return np.asarray(ratio), np.asarray(error)


def _replicates(x: Float, u: Float, A: DiffusionTensor, group: Groups) -> Float:
    """(1 + groups, 4): energies of all samples, then without each group."""
    if not A.constant:
        return _varying(x, u, A, group)
    a = A.at(x, 0.0)
    A.solve(x[:1], 0.0, u[:1])  # a singular tensor ends here
    full = a[0] if a.ndim == 3 else np.diag(np.broadcast_to(a[0], (x.shape[1],)))
    values, vectors = np.linalg.eigh(full)
    root = vectors / np.sqrt(values) @ vectors.T
    return _constant(x @ root, u @ root, group)


def _without(group: Groups, values: Float) -> Float:
    """Sums over all samples, then over all but each group, of values (n, ...)."""
    sums = np.zeros((int(group.max()) + 1, *values.shape[1:]))
    np.add.at(sums, group, values)
    whole = sums.sum(axis=0)
    return np.concatenate([whole[None], whole - sums])


def _constant(x: Float, u: Float, group: Groups) -> Float:
    """In coordinates in which a is the identity, by the closed form."""
    n = _without(group, np.ones(len(x)))
    mean_x, mean_u = (_without(group, v) / n[:, None] for v in (x, u))
    second = _without(group, x[:, :, None] * x[:, None, :]) / n[:, None, None]
    cross = _without(group, u[:, :, None] * x[:, None, :]) / n[:, None, None]
    kinetic = _without(group, np.einsum("nk,nk->n", u, u)) / n - (mean_u**2).sum(axis=1)
    second -= mean_x[:, :, None] * mean_x[:, None, :]
    cross -= mean_u[:, :, None] * mean_x[:, None, :]
    extent = np.trace(second, axis1=1, axis2=2)
    outwards = np.trace(cross, axis1=1, axis2=2) ** 2
    scaling = np.divide(outwards, extent, out=np.zeros_like(extent), where=extent > 0)
    values, vectors = np.linalg.eigh(second)
    M = np.einsum("gki,gkl,glj->gij", vectors, cross, vectors)
    top = values[:, -1:]
    flat = values <= _FLAT * top
    lam = np.where(flat, np.where(top > 0, top, 1.0), values)
    M[np.broadcast_to(flat[:, None, :], M.shape)] = (
        0.0  # no state differs there: nothing to regress on
    )
    mean_flow = (M**2 / lam[:, None, :]).sum(axis=(1, 2))
    li, lj = lam[:, :, None], lam[:, None, :]
    both = ~(flat[:, :, None] | flat[:, None, :])
    # A field along x_j into a direction without extent is a gradient as well: the other way costs nothing.
    curl = np.where(both, (li * M - lj * M.transpose(0, 2, 1)) ** 2 / (li * lj * (li + lj)), 0.0)
    return np.stack([0.5 * curl.sum(axis=(1, 2)), mean_flow, kinetic, scaling], axis=1)


def _varying(x: Float, u: Float, A: DiffusionTensor, group: Groups) -> Float:
    """For a tensor that varies: the covector field a^-1 u is fitted by Cx, in the metric of a."""
    q = x.shape[1]
    if q > _WIDEST:
        raise ValueError(
            f"diffusion: a tensor that varies wants at most {_WIDEST} components, got {q}; "
            "lower n_components"
        )
    a = A.at(x, 0.0)
    full = a if a.ndim == 3 else np.broadcast_to(a, x.shape)[:, :, None] * np.eye(q)
    n = _without(group, np.ones(len(x)))
    fields = np.einsum("nik,nj,nl->nijkl", full, x, x).reshape(len(x), q * q, q * q)
    gram = _without(group, fields) / n[:, None, None]
    load = _without(group, (u[:, :, None] * x[:, None, :]).reshape(len(x), -1)) / n[:, None]
    kinetic = _without(group, np.einsum("nk,nk->n", u, A.solve(x, 0.0, u))) / n
    i, j = np.triu_indices(q)
    symmetric = np.zeros((q * q, i.size))
    symmetric[i * q + j, np.arange(i.size)] = symmetric[j * q + i, np.arange(i.size)] = 1.0
    identity = np.eye(q).reshape(-1, 1)
    energies = np.zeros((len(n), 4))
    for k in range(len(n)):
        whole = _explained(gram[k], load[k])
        even = _explained(symmetric.T @ gram[k] @ symmetric, symmetric.T @ load[k])
        scaling = _explained(identity.T @ gram[k] @ identity, identity.T @ load[k])
        energies[k] = max(whole - even, 0.0), whole, kinetic[k], scaling
    return energies


def _explained(gram: Float, load: Float) -> float:
    """The energy of the fitted field; directions without extent have none."""
    values, vectors = np.linalg.eigh(gram)
    along = vectors.T @ load
    kept = values > _FLAT * values[-1]
    return float((along[kept] ** 2 / values[kept]).sum())


def gradient_control(
    states: Float, velocities: Float, n_components: int, n_fields: int, rng: np.random.Generator
) -> Float:
    """Shares that exact gradient fields read at the same states: what the projection alone can do.

    Each field is the symmetric part of the mean flow plus a gradient of random waves in all dimensions, as
    strong as what the mean flow leaves of the motion, as long as the samples are wide.
    """
    out = []
    for _ in range(n_fields):
        fields = [
            _gradient_field(x, u, n_components, rng)
            for x, u in zip(states, velocities, strict=True)
        ]
        found = measure(states, np.stack(fields), n_components, None, rng)
        out.append(found.share)
    return np.array(out)


_WAVES = 64


def _gradient_field(x: Float, u: Float, q: int, rng: np.random.Generator) -> Float:
    x, u = x - x.mean(axis=0), u - u.mean(axis=0)
    P, _ = leading(x, q)
    y, v = x @ P, u @ P
    fitted = np.linalg.lstsq(y, v, rcond=None)[0]
    mean = x @ (P @ (0.5 * (fitted + fitted.T)) @ P.T)
    width = np.sqrt((x**2).sum(axis=1).mean()) or 1.0
    waves = rng.normal(size=(x.shape[1], _WAVES)) / width
    bend = (
        -np.sin(x @ waves + rng.uniform(0, 2 * np.pi, size=_WAVES))
        * rng.normal(size=_WAVES)
        @ waves.T
    )
    left = float(((v - y @ fitted) ** 2).sum())
    size = float((((bend - bend.mean(axis=0)) @ P) ** 2).sum())
    return np.asarray(mean + bend * (np.sqrt(left / size) if size > 0 else 0.0))
