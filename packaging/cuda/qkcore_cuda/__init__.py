"""The CUDA module of qkcore: functions on arrays that CuPy, PyTorch or JAX share by DLPack.

qkcore calls these functions if it is given arrays on a device. The import initialises nothing and needs no
driver.

>>> import qkcore_cuda
>>> sorted(qkcore_cuda.status())
['available', 'devices', 'driver', 'reason', 'runtime']
"""

from ._module import (
    Array,
    asarray,
    combine,
    copy,
    download,
    empty,
    factored_product,
    gaussian_steps,
    live_allocations,
    map_vector,
    marginals,
    materialize,
    project,
    reduce_rows,
    row_dots,
    scaling_sweeps,
    sinkhorn_sweeps,
    status,
    stream_handle,
    summaries,
    synchronize,
    upload,
    velocity,
    version,
)

__version__ = version

__all__ = [
    "Array",
    "__version__",
    "asarray",
    "combine",
    "copy",
    "download",
    "empty",
    "factored_product",
    "gaussian_steps",
    "live_allocations",
    "map_vector",
    "marginals",
    "materialize",
    "project",
    "reduce_rows",
    "row_dots",
    "scaling_sweeps",
    "sinkhorn_sweeps",
    "status",
    "stream_handle",
    "summaries",
    "synchronize",
    "upload",
    "velocity",
    "version",
]
