"""The words that results and options use, as enumerations whose members are strings."""

from __future__ import annotations

from enum import Enum

__all__ = ["Ended", "RegimeName", "Solver", "Status", "Weight", "Word"]


class Word(str, Enum):
    """A member of an enumeration that prints, compares and formats like its string."""

    def __str__(self) -> str:
        return str.__str__(self)

    def __repr__(self) -> str:
        return str.__repr__(self)

    def __format__(self, spec: str) -> str:
        return str.__format__(self, spec)


class Status(Word):
    """How a solve, a flow or an iteration ended.

    >>> import numpy as np, qkcore as qk
    >>> b = qk.bridge(qk.scores.dense(np.zeros((2, 3))))
    >>> b.status
    'converged'
    >>> b.status is qk.Status.CONVERGED
    True
    """

    CONVERGED = "converged"
    ITERATION_LIMIT = "iteration limit"
    VISIT_LIMIT = "visit limit"
    """the solve used up the visits of the kernel's entries that it was allowed"""
    STAGNATED = "stagnated"
    """the error no longer falls, because the precision of the dtype is reached"""
    INFEASIBLE = "infeasible"
    """there is no solution whose mass is only where the kernel is positive"""
    BOUNDARY = "boundary"
    """the solution is at infinity; the result that is returned is within the tolerance"""
    NO_TOTAL_SUPPORT = "no total support"
    """the solution needs fewer entries than the kernel has; the error falls only like 1/k"""
    NEGATIVE_KERNEL = "negative kernel"
    NEGATIVE_ENTRIES = "negative entries"
    OVERFLOW = "overflow"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"
    NOT_SETTLED = "not settled"
    """a Gaussian law is still moving at the end of the time span"""
    INDEFINITE = "indefinite"
    """the steps were too large, and a covariance is no longer positive definite"""
    FINISHED = "finished"
    """the flow has reached the end of its time span"""
    CLUSTERED = "clustered"
    BLEW_UP = "blew up"
    STOPPED = "stopped"
    """the flow ended before a step that could not be taken; the result's message says why"""
    STEP_LIMIT = "step limit"
    STEP_UNDERFLOW = "step underflow"
    NO_CONVERGENCE = "no convergence"
    """a solve within a step did not converge"""


class Ended:
    """A result whose ``status`` is a :class:`Status`, or for batches an array of strings."""

    status: str

    def __post_init__(self) -> None:
        if isinstance(self.status, str):
            object.__setattr__(self, "status", Status(self.status))


class Solver(Word):
    """The methods of :func:`qkcore.bridge`."""

    AUTO = "auto"
    ALTERNATING = "alternating"
    RELAXED = "relaxed"
    ANDERSON = "anderson"
    NEWTON = "newton"
    SYMMETRIC = "symmetric"
    ACCELERATED = "accelerated"
    ANNEALED = "annealed"


class Weight(Word):
    """How weights are made from scores: :func:`qkcore.softmax`, and the weights of :func:`qkcore.kernel`."""

    SOFTMAX = "softmax"
    EXP = "exp"
    LINEAR = "linear"
    RELU = "relu"
    SIGMOID = "sigmoid"


class RegimeName(Word):
    """The regimes of DAC 4.0.1, as :attr:`qkcore.Regime.regime` names them."""

    EQ = "EQ"
    """equilibrium: stationary, detailed balance"""
    NESS = "NESS"
    """non-equilibrium steady state: stationary, with currents"""
    NE = "NE"
    """not stationary"""
