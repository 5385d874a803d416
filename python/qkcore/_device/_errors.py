"""How a velocity can fail: what flows turn into a status, and a single call into an exception."""

__all__ = ["NoConvergence", "Overflow"]


class Overflow(Exception):
    """A state or slope that is not finite."""


class NoConvergence(Exception):
    """Sinkhorn's iteration missed its tolerance."""
