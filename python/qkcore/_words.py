"""The words of results and options, as enumerations whose members are strings: one vocabulary for all."""

from __future__ import annotations

from enum import Enum

__all__ = ["Ended", "RegimeName", "Solver", "Status", "Weight", "Word"]


class Word(str, Enum):
    """A string with a name: it prints, compares and formats as the string."""

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
    """the visits of a kernel's entries that a solve was allowed"""
    STAGNATED = "stagnated"
    """at the precision of the dtype"""
    INFEASIBLE = "infeasible"
    """no solution lives on the kernel's support"""
    BOUNDARY = "boundary"
    """the solution is at infinity; what is returned comes within the tolerance"""
    NO_TOTAL_SUPPORT = "no total support"
    """a solution lives on fewer entries than the kernel has; it is approached like 1/k"""
    NEGATIVE_KERNEL = "negative kernel"
    NEGATIVE_ENTRIES = "negative entries"
    OVERFLOW = "overflow"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"
    NOT_SETTLED = "not settled"
    """a Gaussian law still moves at the end of the time span"""
    INDEFINITE = "indefinite"
    """a covariance has lost its definiteness to the size of the steps"""
    FINISHED = "finished"
    """a flow has reached the end of its time span"""
    CLUSTERED = "clustered"
    BLEW_UP = "blew up"
    STOPPED = "stopped"
    """before a step that could not be taken; the result's message says why"""
    STEP_LIMIT = "step limit"
    STEP_UNDERFLOW = "step underflow"
    NO_CONVERGENCE = "no convergence"
    """of the solves within a step"""


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
    """What makes weights of scores: :func:`qkcore.softmax`, and the weights of :func:`qkcore.kernel`."""

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
