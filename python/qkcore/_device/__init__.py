"""The same calls on device arrays: recognised by ``__dlpack_device__``, computed by ``qkcore_cuda``.

The package is loaded with qkcore; the module, and with it the driver, when an array on a device turns up.
"""

from typing import Any, TypeGuard

from ._where import on_device, place

__all__ = ["is_factored", "is_scores", "on_device", "place", "scores_of"]


def is_scores(s: object) -> TypeGuard[Any]:
    """Whether these are scores of device arrays."""
    if not hasattr(s, "_context"):
        return False
    from ._scores import DeviceScores

    return isinstance(s, DeviceScores)


def is_factored(K: object) -> TypeGuard[Any]:
    """Whether this is a low-rank kernel of device arrays."""
    if not hasattr(K, "_context"):
        return False
    from ._factored import DeviceFactored

    return isinstance(K, DeviceFactored)


def scores_of(operator: object) -> Any:
    """The logarithm of an expert on the device (of a kernel: its scores), None for what is none."""
    if is_scores(operator):
        return operator
    if not is_scores(getattr(operator, "scores", None)):
        return None
    from ._operators import DeviceKernelOperator, DeviceMarkovOperator

    if isinstance(operator, DeviceMarkovOperator):
        return operator.log_weights
    if isinstance(operator, DeviceKernelOperator):
        return operator.scores
    return None
