"""One diagnostic's verdict: pass, fail or abstain, with the number, the threshold and the reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .. import _checks

PASS, FAIL, ABSTAIN = "pass", "fail", "abstain"

TITLES = {
    "P0": "bounded variation, continuity",
    "P1": "probability-flow adequacy",
    "P2": "locking",
    "P3": "contraction",
    "P4": "bridge alignment",
}


@dataclass(frozen=True)
class Thresholds:
    """What the verdicts are measured against. EOT gives those of P0; the others are ours, and stated."""

    variation: float = 0.15
    """P0: largest :math:`\\bar S_L` (N.4)"""
    continuity: float = 1e-14
    """P0: the continuity residual must stay below this (N.4)"""
    skill: float = 0.5
    """P1: least skill of the probability flow on rows that its drift was not fitted to"""
    locked_tail: float = 0.1
    """P2: rows of at most this tail mass count as locked"""
    locked_motion: float = 0.05
    """P2: largest median TV of locked rows"""
    locking: float = 0.5
    """P2: largest ratio of the motion of locked rows to that of others whose logits change as much"""
    reduction: float = 0.0
    """P3: the curvature gap must fall by more than this share"""
    rotation: float = 0.1
    """P4: largest share of rotation in the energy of the mean flow"""
    explained: float = 0.1
    """P4: least share of the motion that the mean flow must explain, or P4 abstains"""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _checks.number(name, value)

    def changed(self, given: dict[str, float]) -> Thresholds:
        """These with some of them changed."""
        known = asdict(self)
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"thresholds: wanted some of {', '.join(known)}, got {unknown[0]!r}")
        checked = {k: _checks.number(f"thresholds[{k!r}]", v) for k, v in given.items()}
        return Thresholds(**{**known, **checked})


@dataclass(frozen=True, eq=False)
class Check:
    """One diagnostic: its verdict, the number, what it was compared with, and why."""

    name: str
    title: str
    verdict: str
    value: float | None
    threshold: float
    sense: str
    """how value and threshold compare when the check passes"""
    reason: str
    details: dict[str, Any] = field(repr=False, default_factory=dict)

    def __str__(self) -> str:
        number = "-" if self.value is None else f"{self.value:.4g}"
        return (
            f"{self.name} {self.title}: {self.verdict} "
            f"({number} {self.sense} {self.threshold:g}); {self.reason}"
        )


def _limit(name: str, limits: Thresholds) -> tuple[str, float]:
    return {
        "P0": ("<=", limits.variation),
        "P1": (">=", limits.skill),
        "P2": ("<=", limits.locking),
        "P3": (">", limits.reduction),
        "P4": ("<=", limits.rotation),
    }[name]


def check(
    name: str, limits: Thresholds, verdict: str, value: float | None, reason: str, **details: Any
) -> Check:
    """A verdict of the named check."""
    sense, limit = _limit(name, limits)
    return Check(name, TITLES[name], verdict, value, limit, sense, reason, details)


def abstain(name: str, limits: Thresholds, reason: str, **details: Any) -> Check:
    """No verdict, and why."""
    return check(name, limits, ABSTAIN, None, reason, **details)
