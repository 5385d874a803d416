"""The compiled module (cuda/bind); tests/test_device_stub.py compares names, arguments and defaults."""

from typing import Any, Literal, Protocol, TypeAlias, TypedDict

class DeviceArray(Protocol):
    """What CuPy, PyTorch and JAX arrays have, and Array: memory that DLPack shares."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

# (real dtype, device, batch, n_rows, n_cols, dots, distances, dense, row_bias, col_bias, masks, lo, hi): what
# qkcore makes of scores, see cuda/bind/description.hpp.
Description: TypeAlias = tuple[Any, ...]
# None (the default stream), an integer handle, or an object with .ptr, .cuda_stream or __cuda_stream__.
Stream: TypeAlias = object

class Status(TypedDict):
    available: bool
    reason: str
    devices: list[dict[str, Any]]
    driver: int
    runtime: int

class Figures(TypedDict):
    nan: float
    plus_inf: float
    minus_inf: float
    largest: float
    smallest: float
    sum: float
    squares: float
    weight: float
    difference: float
    ratio: float
    dot: float

version: str

class Array:
    """Memory on a device; shared with other libraries by DLPack, never copied."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]:
        """in elements"""
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    @property
    def ndim(self) -> int: ...
    @property
    def contiguous(self) -> bool: ...
    @property
    def pointer(self) -> int: ...
    @property
    def T(self) -> Array:
        """the last two axes exchanged; shares the memory"""
    def entry(self, index: int) -> Array:
        """entry of the first axis; shares the memory"""
    def cut(self, axis: int, first: int, last: int) -> Array:
        """entries first to last (exclusive) of an axis counted from the end; shares the memory"""
    def reshape(self, shape: tuple[int, ...]) -> Array:
        """the entries of a contiguous array in another shape; shares the memory"""
    def expand(self) -> Array:
        """with one more axis of length 1 at the end; shares the memory"""
    def broadcast_rows(self, n_rows: int) -> Array:
        """a vector (..., m) as (..., n_rows, m), by a stride of 0"""
    def squeeze(self) -> Array:
        """without its last axis, of length 1; shares the memory"""
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Stream = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

# ---- memory and devices -------------------------------------------------------------------------

def asarray(array: DeviceArray, name: str = "array", stream: Stream = None) -> Array:
    """The memory that an array shares by DLPack."""

def empty(shape: tuple[int, ...], dtype: str, device: int, stream: Stream = None) -> Array: ...
def upload(
    host: Any, shape: tuple[int, ...], dtype: str, device: int, stream: Stream = None
) -> Array:
    """A copy of the host's memory (anything with Python's buffer protocol) on the device."""

def download(array: DeviceArray, host: Any, stream: Stream = None) -> None:
    """Copies to the host's memory, and waits."""

def copy(from_: DeviceArray, to: DeviceArray, /, stream: Stream = None) -> None: ...
def synchronize(device: int, stream: Stream = None) -> None: ...
def stream_handle(stream: Stream) -> int:
    """The handle of whatever stands for a stream."""

def live_allocations() -> int:
    """Allocations that are alive."""

def status() -> Status: ...

# ---- rows ---------------------------------------------------------------------------------------

def reduce_rows(
    scores: Description,
    weight: int,
    values: DeviceArray | None,
    want_lse: bool,
    lse: DeviceArray | None = None,
    out: DeviceArray | None = None,
    stream: Stream = None,
) -> tuple[Array | None, Array | None]:
    """Log-sum-exp of the rows (or None) and the product of their weights with values (or None)."""

def marginals(
    scores: Description,
    rows: DeviceArray | None = None,
    cols: DeviceArray | None = None,
    stream: Stream = None,
) -> tuple[Array, Array]:
    """Row and column sums of exp(s), in one visit."""

def materialize(
    scores: Description, raw: bool, out: DeviceArray | None = None, stream: Stream = None
) -> Array:
    """The scores as an array (raw), or their exponentials."""

# ---- bridges ------------------------------------------------------------------------------------

def sinkhorn_sweeps(
    scores: Description,
    g: DeviceArray,
    mu: DeviceArray,
    nu: DeviceArray,
    lse: DeviceArray,
    f: DeviceArray,
    columns: DeviceArray,
    residual: DeviceArray | None,
    n: int,
    warm: bool,
    row_damping: float = 1.0,
    col_damping: float = 1.0,
    store_weights: bool = True,
    stream: Stream = None,
) -> tuple[float, float] | None:
    """n full iterations in place on g, lse, f; gives (L1 error of the columns, columns that underflowed), or
    None without room for a residual."""

def scaling_sweeps(
    kernel: DeviceArray,
    v: DeviceArray,
    mu: DeviceArray,
    nu: DeviceArray,
    u: DeviceArray,
    columns: DeviceArray,
    residual: DeviceArray,
    n: int,
    stream: Stream = None,
) -> tuple[float, float]:
    """The same on a stored kernel, in place on u and v."""

def factored_product(
    left: tuple[DeviceArray, ...],
    right: tuple[DeviceArray, ...],
    z: DeviceArray,
    out: DeviceArray | None = None,
    stream: Stream = None,
) -> Array:
    """z (k, M) times the transpose of a product of low-rank factors."""

# ---- particles and Gaussian laws ----------------------------------------------------------------

def project(
    x: DeviceArray,
    matrix: DeviceArray,
    scale: float = 1.0,
    out: DeviceArray | None = None,
    stream: Stream = None,
) -> Array:
    """scale * x @ matrix.T"""

def combine(
    x: DeviceArray,
    k: tuple[DeviceArray, ...],
    weights: tuple[float, ...],
    h: float,
    out: DeviceArray | None = None,
    stream: Stream = None,
) -> Array:
    """x + h sum_s weights_s k_s: a Runge-Kutta stage, or a step."""

def velocity(
    x: DeviceArray,
    Q: DeviceArray,
    K: DeviceArray,
    V: DeviceArray,
    weight: int = 0,
    distance: bool = False,
    scale: float = 1.0,
    mean: bool = False,
    lo: int = ...,
    hi: int = ...,
    out: DeviceArray | None = None,
    stream: Stream = None,
) -> Array:
    """The velocities of particles that attend to one another."""

def gaussian_steps(
    mean: DeviceArray,
    cov: DeviceArray,
    score: DeviceArray,
    query: DeviceArray,
    value: DeviceArray,
    l2: bool = False,
    gain: float = 1.0,
    raw_moment: bool = False,
    *,
    a: tuple[tuple[float, ...], ...],
    b: tuple[float, ...],
    h: float,
    n_steps: int = 1,
    stream: Stream = None,
) -> None:
    """Steps of Gaussian laws, in place on mean and cov."""

# ---- vectors ------------------------------------------------------------------------------------

def summaries(
    arrays: list[tuple[str, DeviceArray, DeviceArray | None]], stream: Stream = None
) -> list[Figures]:
    """Figures of arrays (name, a, b or None) as dictionaries: sums, extremes, NaN and infinities."""

def map_vector(
    op: Literal["affine", "minus_or_zero", "log", "log_minus", "tilt", "relative"],
    x: DeviceArray,
    y: DeviceArray | None = None,
    z: DeviceArray | None = None,
    a: float = 1.0,
    b: float = 0.0,
    c: float = 0.0,
    out: DeviceArray | None = None,
    stream: Stream = None,
) -> Array:
    """One of a few operations, entry by entry."""

def row_dots(
    x: DeviceArray,
    y: DeviceArray,
    scale: float = 1.0,
    out: DeviceArray | None = None,
    stream: Stream = None,
) -> Array:
    """scale <x_i, y_i> for each row."""
