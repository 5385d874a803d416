"""How a velocity can fail: what flows turn into a status, and a single call into an exception."""

from .._ode import NoConvergence, Overflow

__all__ = ["NoConvergence", "Overflow"]
