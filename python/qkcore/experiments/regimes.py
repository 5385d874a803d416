"""EQ, NESS or NE: operators and bridges over symmetric and asymmetric kernels (DAC-7, DAC-8, DAC-11).

Measurements show erratum 1: bridges over a symmetric kernel with equal marginals carry no current, however
far h is from constant. The currents of attention are then put on the diffusion map as phases (C.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import qkcore as qk

from .. import magnetic
from ._configs import Config, positive
from ._errors import ExperimentError
from ._regimes_show import claims, plot, tables

if TYPE_CHECKING:
    from ._run import Run

__all__ = ["check", "claims", "compute", "plot", "tables"]

Array = npt.NDArray[np.floating[Any]]


def check(config: Config) -> None:
    """Refuses settings with which no chain can be made."""
    positive(config, "n", "dimension", least=1)
    positive(config, "beta", "tolerance", "phases", "n_seeds")
    for key in ("tilts", "asymmetries"):
        if min(config[key]) < 0:
            raise ExperimentError(f"{key}: wanted numbers >= 0, got {min(config[key])}")


class Setting:
    """Random points, a symmetric and an antisymmetric part of W of equal norm, and two laws."""

    def __init__(self, config: Config, seed: int) -> None:
        draw = np.random.default_rng(seed)
        n, d = config["n"], config["dimension"]
        self.beta, self.tol = config["beta"], config["tolerance"]
        # A bridge is stationary only up to the error of its marginals, so smaller currents count as none.
        self.none = 100 * self.tol
        self.X = draw.standard_normal((n, d))
        root, free = draw.standard_normal((2, d, d))
        S = root @ root.T
        A = free - free.T
        self.S, self.A = S / np.linalg.norm(S), A / np.linalg.norm(A)
        self.tilt = draw.standard_normal((2, n))
        self.Q, self.K = draw.standard_normal((2, n, d))

    def W(self, asymmetry: float = 1.0) -> Array:
        """S + a A, times the dimension so that scores are of order one."""
        out: Array = len(self.S) * (self.S + asymmetry * self.A)
        return out

    def law(self, strength: float = 1.0, which: int = 0) -> Array:
        """A random law; its logarithm is this number times a fixed random vector, plus a constant."""
        weights = np.exp(strength * self.tilt[which])
        out: Array = weights / weights.sum()
        return out

    def distance(self) -> qk.Scores:
        """Log of the symmetric kernel, -beta D^2."""
        return qk.scores.distance(self.X, beta=self.beta)

    def forward(self, asymmetry: float) -> qk.Scores:
        """Log of the directed kernel of attention, -beta d->."""
        return qk.scores.forward(self.X, W=self.W(asymmetry), beta=self.beta)

    def bridge(self, s: qk.Scores, mu: Array, nu: Array) -> qk.SchrodingerBridge:
        """The bridge, solved to the tolerance of the settings."""
        b: qk.SchrodingerBridge = qk.bridge(s, mu, nu, tol=self.tol)
        if not b.converged:
            raise ArithmeticError(f"a bridge did not converge: {b.status}, error {b.error:.2g}")
        return b


def compute(config: Config, run: Run) -> None:
    """Writes four tables: cases, erratum 1 against the tilt, currents against asymmetry, and duality."""
    setting = Setting(config, config["seed"])
    cases = _cases(setting)
    tilts = run.stage("tilts", lambda: _tilts(config))
    asymmetry = [_asymmetry(setting, a) for a in config["asymmetries"]]
    duality, field = _duality(setting, config["phases"])
    run.write_csv("cases", cases)
    run.write_csv("tilts", tilts)
    run.write_csv("asymmetry", asymmetry)
    run.write_csv("duality", duality)
    currents = [r["max_current"] for r in tilts]
    run.write_metrics(
        {
            "cases": {
                r["case"]: {k: v for k, v in r.items() if k != "case"} for r in cases
            },
            "erratum_1": {
                "largest_current": max(currents),
                "largest_relative_current": max(r["relative_current"] for r in tilts),
                "largest_spread_of_log_h": max(r["spread_log_h"] for r in tilts),
                "regimes": sorted({r["regime"] for r in tilts}),
                "bridges": len(tilts),
            },
            "bridge_equals_attention": _stationary_bridge(setting),
            "duality": {"errors": duality, **field},
        }
    )  # fmt: skip


def _case(
    kind: tuple[str, str, str], P: qk.MarkovOperator, rho: Array | None, tol: float
) -> dict[str, Any]:
    found = P.regime(rho, tol=tol)
    name, where, paper = kind
    return {
        "case": name,
        "where": where,
        "paper": paper,
        "regime": found.regime,
        "stationarity": found.stationarity,
        "max_current": found.max_current,
        "relative_current": found.max_current / found.currents.largest_flow,
        "entropy_production": found.entropy_production,
    }


def _cases(s: Setting) -> list[dict[str, Any]]:
    """Every kind of operator of sections 3 and 4, with the regime that the document states for it."""
    K, directed, one = s.distance(), s.forward(1.0), np.full(len(s.X), 1 / len(s.X))
    rho, other = s.law(which=0), s.law(which=1)
    P, attention = qk.softmax(K), qk.softmax(directed)
    pi, pi_plus = P.stationary(), attention.stationary()
    tilted = P.doob(np.exp(s.tilt[0]))
    metric = {v: qk.divergence.qk_metric(s.Q, s.K, symmetrized=v) for v in (False, True)}

    def bridge(scores: qk.Scores, mu: Array, nu: Array) -> tuple[qk.MarkovOperator, Array]:
        return s.bridge(scores, mu, nu).forward, mu

    def bistochastic(scores: qk.Scores) -> tuple[qk.MarkovOperator, Array]:
        return qk.sinkhorn(scores, tol=s.tol), one

    def own(P: qk.MarkovOperator) -> tuple[qk.MarkovOperator, None]:
        return P, None  # at its own stationary law

    kinds: dict[tuple[str, str, str], tuple[qk.MarkovOperator, Array | None]] = {
        ("diffusion map P+", "4.1", "EQ"): own(P),
        ("bistochastic diffusion P+-", "4.1", "EQ"): bistochastic(K),
        ("bridge, symmetric K, mu = nu = pi", "4.1", "EQ"): bridge(K, pi, pi),
        ("bridge, symmetric K, mu = nu, h not constant", "4.1", "NESS"): bridge(K, rho, rho),
        ("Doob transform of P+, random h, its own law", "4.1", "NESS"): own(tilted),
        ("bridge, symmetric K, mu != nu", "4.1", "NE"): bridge(K, rho, other),
        ("attention A+, W asymmetric", "4.3", "NESS"): own(attention),
        ("attention A+, W symmetric", "4.3", "NESS"): own(qk.softmax(s.forward(0.0))),
        ("bistochastic attention A+-, W asymmetric", "4.3", "NESS"): bistochastic(directed),
        ("bridge, directed K, mu = nu = pi+", "4.3", "NESS"): bridge(directed, pi_plus, pi_plus),
        ("bridge, directed K, mu = nu, any law", "4.3", "NESS"): bridge(directed, rho, rho),
        ("bridge, directed K, mu != nu", "4.3", "NE"): bridge(directed, rho, other),
        ("QK-metric diffusion, as printed", "D.2", "EQ"): own(
            qk.softmax(metric[False].scores(s.beta))
        ),
        ("QK-metric diffusion, symmetrised", "D.2", "EQ"): own(
            qk.softmax(metric[True].scores(s.beta))
        ),
    }
    return [_case(kind, P, law, s.none) for kind, (P, law) in kinds.items()]


def _tilts(config: Config) -> list[dict[str, Any]]:
    """Erratum 1: bridges over a symmetric kernel with equal marginals, farther and farther from pi."""
    out = []
    for k in range(config["n_seeds"]):
        s = Setting(config, config["seed"] + k)
        K = s.distance()
        for strength in config["tilts"]:
            rho = s.law(strength)
            b = s.bridge(K, rho, rho)
            found = b.forward.regime(rho, tol=s.none)
            out.append(
                {
                    "seed": config["seed"] + k,
                    "tilt": strength,
                    "spread_log_h": float(np.ptp(b.g)),
                    "max_current": found.max_current,
                    "relative_current": found.max_current / found.currents.largest_flow,
                    "regime": found.regime,
                }
            )
    return out


def _asymmetry(s: Setting, a: float) -> dict[str, Any]:
    """Currents of attention with W = S + a A, and of a bridge over its kernel."""
    scores, rho = s.forward(a), s.law()
    found = {
        "attention": qk.softmax(scores).regime(tol=s.none),
        "bridge": s.bridge(scores, rho, rho).forward.regime(rho, tol=s.none),
    }
    row: dict[str, Any] = {"asymmetry": a}
    for name, r in found.items():
        row |= {
            f"{name}_regime": r.regime,
            f"{name}_current": r.max_current,
            f"{name}_entropy_production": r.entropy_production,
        }
    return row


def _stationary_bridge(s: Setting) -> dict[str, float]:
    """C.7: if mu = nu = pi+, the bridge over the directed kernel is attention itself."""
    A = qk.softmax(s.forward(1.0))
    pi = A.stationary()
    b = s.bridge(s.forward(1.0), pi, pi)
    return {"largest_difference": float(np.abs(b.forward.to_numpy() - A.to_numpy()).max())}


def _duality(s: Setting, sizes: list[float]) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """C.6: attention's log-flux as phases on the diffusion map, and the form (83) for small gamma."""
    A = qk.softmax(s.forward(1.0))
    P = qk.softmax(s.forward(1.0) + s.forward(1.0).T)
    F = magnetic.log_flux(A).to_numpy()
    J = A.currents(A.stationary())
    flow = P.stationary()[:, None] * P.to_numpy()
    rows = []
    for size in sizes:
        gamma = size / float(np.abs(F).max())
        current = magnetic.from_attention(A, P, gamma=gamma).current()
        linear = gamma * flow * F
        # Entries of the size of rounding errors have no meaningful sign.
        seen = np.abs(J) > 1e-12 * np.abs(J).max()
        rows.append(
            {
                "phase": size,
                "gamma": gamma,
                "max_current": float(np.abs(current).max()),
                "relative_error": float(np.linalg.norm(current - linear) / np.linalg.norm(linear)),
                "signs_agree": float(np.mean(np.sign(current[seen]) == np.sign(J[seen]))),
            }
        )
    field = {
        "divergence_attention": _divergence(J),
        "divergence_magnetic": _divergence(current),
        "correlation": float(np.corrcoef(J.ravel(), current.ravel())[0, 1]),
    }
    return rows, field


def _divergence(J: Array) -> float:
    """The net outflow of states, relative to what passes through them; 0 for a circulation."""
    return float(np.abs(J.sum(axis=1)).max() / np.abs(J).sum(axis=1).max())
