"""The CUDA kernels as functions of NumPy arrays, which run on the SIMT layer of tests/simt or on a device.

A backend is a shared library with the interface of tests/simt/capi.cu. `make simt` builds the two of
the SIMT layer; on a machine with a device, `make cuda-tests` builds the same file with nvcc.
"""

from __future__ import annotations

import ctypes as c
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BUILD = Path(os.environ.get("QKCORE_KERNELS", Path(__file__).parent.parent / "build" / "simt"))
LIBRARIES = {"simt": "libqk_simt.so", "race": "libqk_simt_race.so", "gpu": "libqk_device.so"}
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
WEIGHTS = ("softmax", "exp", "linear", "relu", "sigmoid")
# In the order of Figure and VectorOp in qk_cuda/api.hpp.
FIGURES = (
    "nan",
    "plus_inf",
    "minus_inf",
    "largest",
    "smallest",
    "sum",
    "squares",
    "weight",
    "difference",
    "ratio",
    "dot",
)
MAPS = ("affine", "minus_or_zero", "log", "log_minus", "tilt", "relative")
UNBOUNDED = 1 << 60
MAX_TERMS = 4
FEATURE_KINDS = {"dot": 0, "l1": 1, "distance": 2}
SHIPPED, SMALL32, SMALL64 = 0, 1, 2


class Feature(c.Structure):
    _fields_ = [
        ("kind", c.c_int),
        ("rows", c.c_void_p),
        ("cols", c.c_void_p),
        ("dim", c.c_int64),
        ("scale", c.c_double),
    ]


class Dense(c.Structure):
    _fields_ = [("values", c.c_void_p), ("scale", c.c_double)]


class Mask(c.Structure):
    _fields_ = [("keep", c.c_void_p), ("row_stride", c.c_int64), ("col_stride", c.c_int64)]


class CScores(c.Structure):
    _fields_ = [
        ("n_rows", c.c_int64),
        ("n_cols", c.c_int64),
        ("n_features", c.c_int),
        ("n_dense", c.c_int),
        ("n_row_bias", c.c_int),
        ("n_col_bias", c.c_int),
        ("n_masks", c.c_int),
        ("features", Feature * MAX_TERMS),
        ("dense", Dense * MAX_TERMS),
        ("row_bias", c.c_void_p * MAX_TERMS),
        ("col_bias", c.c_void_p * MAX_TERMS),
        ("masks", Mask * MAX_TERMS),
        ("band_lo", c.c_int64),
        ("band_hi", c.c_int64),
        ("transposed", c.c_int),
    ]


class Rows(c.Structure):
    _fields_ = [
        ("scores", CScores),
        ("weight", c.c_int),
        ("column_splits", c.c_int),
        ("values", c.c_void_p),
        ("n_values", c.c_int64),
        ("log_sum_exp", c.c_void_p),
        ("product", c.c_void_p),
    ]


class Sweep(c.Structure):
    _fields_ = [
        ("scores", CScores),
        ("g", c.c_void_p),
        ("mu", c.c_void_p),
        ("nu", c.c_void_p),
        ("shift", c.c_void_p),
        ("row_damping", c.c_double),
        ("col_damping", c.c_double),
        ("store_weights", c.c_int),
        ("lse", c.c_void_p),
        ("f", c.c_void_p),
        ("columns", c.c_void_p),
        ("g_new", c.c_void_p),
        ("residual", c.c_void_p),
    ]


class Scaling(c.Structure):
    _fields_ = [
        ("n_rows", c.c_int64),
        ("n_cols", c.c_int64),
        ("kernel", c.c_void_p),
        ("v", c.c_void_p),
        ("mu", c.c_void_p),
        ("nu", c.c_void_p),
        ("u", c.c_void_p),
        ("columns", c.c_void_p),
        ("v_new", c.c_void_p),
        ("residual", c.c_void_p),
    ]


class Factored(c.Structure):
    _fields_ = [
        ("n_experts", c.c_int),
        ("ranks", c.c_int64 * MAX_TERMS),
        ("left", c.c_void_p * MAX_TERMS),
        ("right", c.c_void_p * MAX_TERMS),
        ("n_left", c.c_int64),
        ("n_right", c.c_int64),
        ("k", c.c_int64),
        ("z", c.c_void_p),
        ("out", c.c_void_p),
    ]


class Velocity(c.Structure):
    _fields_ = [
        ("n", c.c_int64),
        ("d", c.c_int64),
        ("d_head", c.c_int64),
        ("heads", c.c_int64),
        ("x", c.c_void_p),
        ("Q", c.c_void_p),
        ("K", c.c_void_p),
        ("V", c.c_void_p),
        ("weight", c.c_int),
        ("kind", c.c_int),
        ("scale", c.c_double),
        ("mean", c.c_int),
        ("band_lo", c.c_int64),
        ("band_hi", c.c_int64),
        ("mask", c.c_void_p),
        ("h", c.c_double),
        ("out", c.c_void_p),
        ("stepped", c.c_void_p),
    ]


class Vectors(c.Structure):
    _fields_ = [
        ("n_rows", c.c_int64),
        ("n_cols", c.c_int64),
        ("a", c.c_void_p),
        ("b", c.c_void_p),
        ("figures", c.c_void_p),
        ("n_ops", c.c_int),
        ("x", c.c_double),
        ("y", c.c_double),
        ("z", c.c_double),
        ("maps", c.c_void_p),
        ("dots", c.c_void_p),
    ]


class Gaussian(c.Structure):
    _fields_ = [
        ("field", c.c_int),
        ("n", c.c_int64),
        ("d", c.c_int),
        ("heads", c.c_int),
        ("score", c.c_void_p),
        ("query", c.c_void_p),
        ("value", c.c_void_p),
        ("shared", c.c_int),
        ("gain", c.c_double),
        ("raw_moment", c.c_int),
        ("n_stages", c.c_int),
        ("a", c.c_double * 16),
        ("b", c.c_double * 4),
        ("h", c.c_double),
        ("n_steps", c.c_int64),
        ("mean", c.c_void_p),
        ("cov", c.c_void_p),
    ]


@dataclass
class Scores:
    """A sum of terms: `features` (kind, X, Y, scale), `dense` (Z, scale), biases, masks, one band."""

    n: int
    m: int
    features: list[tuple[str, Array, Array, float]] = field(default_factory=list)
    dense: list[tuple[Array, float]] = field(default_factory=list)
    row_bias: list[Array] = field(default_factory=list)
    col_bias: list[Array] = field(default_factory=list)
    masks: list[Array] = field(default_factory=list)  # (n, m), or (m,) for keys
    band: tuple[int, int] = (-UNBOUNDED, UNBOUNDED)
    transposed: bool = False


def bfloat16(x: Array) -> tuple[Array, Array]:
    """x rounded down to bfloat16: the bits, and the float32 values that they stand for."""
    bits = (np.ascontiguousarray(x, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


class KernelError(RuntimeError):
    pass


class Backend:
    """One library; `config` chooses the tiles, `seed` the order in which threads and blocks run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.library = c.CDLL(str(BUILD / LIBRARIES[name]))
        self.library.qk_message.restype = c.c_char_p
        self.library.qk_live_allocations.restype = c.c_longlong
        self.is_simt = hasattr(self.library, "qk_simt_seed")
        if self.is_simt:
            self.library.qk_simt_seed.argtypes = [c.c_ulonglong]
            self.library.qk_simt_reports.restype = c.c_char_p
        self.config = SHIPPED
        self.seed = 1
        self._kept: list[Array] = []

    @property
    def watches_memory(self) -> bool:
        return bool(self.is_simt and self.library.qk_simt_watches_memory())

    @property
    def live_allocations(self) -> int:
        return int(self.library.qk_live_allocations())

    def _pointer(self, a: Array | None, dtype: Any = None) -> int | None:
        if a is None:
            return None
        a = np.ascontiguousarray(a, dtype=dtype)
        self._kept.append(a)
        return a.ctypes.data

    def start(self) -> None:
        if self.is_simt:
            self.library.qk_simt_clear()
            self.library.qk_simt_seed(self.seed)

    def reports(self) -> str:
        return self.library.qk_simt_reports().decode() if self.is_simt else ""

    def _run(self, function: str, dtype: str, task: c.Structure) -> None:
        self.start()
        status = getattr(self.library, function)(self.config, DTYPES[dtype], c.byref(task))
        self._kept.clear()
        if status != 0 or self.reports():
            message = self.library.qk_message().decode()
            raise KernelError(f"status {status}: {message} {self.reports()}")

    def _scores(self, s: Scores, inputs: Any, real: Any) -> CScores:
        out = CScores(n_rows=s.n, n_cols=s.m, band_lo=s.band[0], band_hi=s.band[1])
        out.transposed = s.transposed
        out.n_features, out.n_dense, out.n_masks = len(s.features), len(s.dense), len(s.masks)
        out.n_row_bias, out.n_col_bias = len(s.row_bias), len(s.col_bias)
        for t, (kind, X, Y, scale) in enumerate(s.features[:MAX_TERMS]):
            out.features[t] = Feature(
                FEATURE_KINDS[kind],
                self._pointer(X, inputs),
                self._pointer(Y, inputs),
                X.shape[1],
                scale,
            )
        for t, (Z, scale) in enumerate(s.dense[:MAX_TERMS]):
            out.dense[t] = Dense(self._pointer(Z, inputs), scale)
        for t, r in enumerate(s.row_bias[:MAX_TERMS]):
            out.row_bias[t] = self._pointer(r, real)
        for t, r in enumerate(s.col_bias[:MAX_TERMS]):
            out.col_bias[t] = self._pointer(r, real)
        for t, keep in enumerate(s.masks[:MAX_TERMS]):
            out.masks[t] = Mask(self._pointer(keep, np.uint8), s.m if keep.ndim == 2 else 0, 1)
        return out

    def rows(
        self,
        s: Scores,
        dtype: str,
        *,
        values: Array | None = None,
        weight: str = "softmax",
        want_lse: bool = True,
        splits: int = 0,
    ) -> tuple[Array, Array | None]:
        real = np.float64 if dtype == "float64" else np.float32
        inputs = {"float16": np.float16, "bfloat16": np.uint16}.get(dtype, real)
        n = s.m if s.transposed else s.n
        lse = np.full(n, np.nan, real)
        product = None if values is None else np.full((n, values.shape[1]), np.nan, real)
        task = Rows(scores=self._scores(s, inputs, real), weight=WEIGHTS.index(weight))
        task.column_splits = splits
        if values is not None and product is not None:
            task.n_values = values.shape[1]
            task.values = self._pointer(values, inputs)
            task.product = product.ctypes.data
        if want_lse:
            task.log_sum_exp = lse.ctypes.data
        self._run("qk_rows", dtype, task)
        return lse, product

    def marginals(self, s: Scores, dtype: str) -> tuple[Array, Array]:
        real = np.dtype(dtype)
        rows, columns = np.full(s.n, np.nan, real), np.full(s.m, np.nan, real)
        task = Sweep(scores=self._scores(s, real, real))
        task.lse, task.columns = rows.ctypes.data, columns.ctypes.data
        self._run("qk_marginals", dtype, task)
        return rows, columns

    def dense(self, s: Scores, dtype: str, *, raw: bool) -> Array:
        real = np.dtype(dtype)
        out = np.full((s.m, s.n) if s.transposed else (s.n, s.m), np.nan, real)
        task = Sweep(scores=self._scores(s, real, real), store_weights=raw, lse=out.ctypes.data)
        self._run("qk_dense", dtype, task)
        return out

    def sweep(
        self,
        s: Scores,
        dtype: str,
        g: Array,
        mu: Array,
        nu: Array,
        *,
        shift: Array | None = None,
        damping: tuple[float, float] = (1.0, 1.0),
        store: bool = True,
    ) -> dict[str, Array]:
        real = np.dtype(dtype)
        out = {
            "lse": np.full(s.n, np.nan, real),
            "f": np.full(s.n, np.nan, real),
            "columns": np.full(s.m, np.nan, real),
            "g_new": np.full(s.m, np.nan, real),
            "residual": np.full(2, np.nan),
        }
        task = Sweep(scores=self._scores(s, real, real), store_weights=store)
        task.row_damping, task.col_damping = damping
        for name, value in (("g", g), ("mu", mu), ("nu", nu), ("shift", shift)):
            setattr(task, name, self._pointer(value, real))
        for name, value in out.items():
            setattr(task, name, value.ctypes.data)
        self._run("qk_sweep", dtype, task)
        return out

    def scaling(self, P: Array, v: Array, mu: Array, nu: Array) -> dict[str, Array]:
        real = P.dtype
        n, m = P.shape
        out = {
            "u": np.full(n, np.nan, real),
            "columns": np.full(m, np.nan, real),
            "v_new": np.full(m, np.nan, real),
            "residual": np.full(2, np.nan),
        }
        task = Scaling(n_rows=n, n_cols=m)
        for name, value in (("kernel", P), ("v", v), ("mu", mu), ("nu", nu)):
            setattr(task, name, self._pointer(value, real))
        for name, value in out.items():
            setattr(task, name, value.ctypes.data)
        self._run("qk_scaling", real.name, task)
        return out

    def factored(self, left: list[Array], right: list[Array], z: Array) -> Array:
        task = Factored(n_experts=len(left), n_left=left[0].shape[1], n_right=right[0].shape[1])
        for e, (L, R) in enumerate(zip(left, right, strict=True)):
            task.ranks[e] = L.shape[0]
            task.left[e], task.right[e] = self._pointer(L), self._pointer(R)
        out = np.full((z.shape[0], left[0].shape[1]), np.nan, z.dtype)
        task.k, task.z, task.out = z.shape[0], self._pointer(z), out.ctypes.data
        self._run("qk_factored", z.dtype.name, task)
        return out

    def velocity(
        self,
        x: Array,
        Q: Array,
        K: Array,
        V: Array,
        *,
        weight: str = "softmax",
        kind: str = "dot",
        scale: float = 1.0,
        mean: bool = False,
        band: tuple[int, int] = (-UNBOUNDED, UNBOUNDED),
        mask: Array | None = None,
        h: float = 0.0,
    ) -> tuple[Array, Array]:
        out, stepped = np.full_like(x, np.nan), np.full_like(x, np.nan)
        heads, d_head, d = Q.shape
        task = Velocity(n=x.shape[0], d=d, d_head=d_head, heads=heads, scale=scale, mean=mean, h=h)
        task.weight, task.kind = WEIGHTS.index(weight), FEATURE_KINDS[kind]
        task.band_lo, task.band_hi = band
        for name, value in (("x", x), ("Q", Q), ("K", K), ("V", V)):
            setattr(task, name, self._pointer(value, x.dtype))
        task.mask = self._pointer(mask, np.uint8)
        task.out, task.stepped = out.ctypes.data, stepped.ctypes.data
        self._run("qk_velocity", x.dtype.name, task)
        return out, stepped

    def gaussian(
        self,
        field: str,
        mean: Array,
        cov: Array,
        score: Array,
        value: Array,
        *,
        query: Array | None = None,
        gain: float = 1.0,
        raw_moment: bool = False,
        tableau: tuple[Array, Array],
        h: float,
        n_steps: int,
    ) -> tuple[Array, Array]:
        mean, cov = mean.copy(), cov.copy()
        n, d = mean.shape
        a, b = tableau
        task = Gaussian(field=("weighted", "l2").index(field), n=n, d=d, heads=score.shape[-3])
        task.shared = score.ndim == 3
        for name, matrix in (("score", score), ("query", query), ("value", value)):
            setattr(task, name, self._pointer(matrix, mean.dtype))
        task.gain, task.raw_moment, task.n_stages = gain, raw_moment, len(b)
        for s in range(len(b)):
            task.b[s] = b[s]
            for k in range(len(b)):
                task.a[4 * s + k] = a[s, k]
        task.h, task.n_steps = h, n_steps
        task.mean, task.cov = mean.ctypes.data, cov.ctypes.data
        self._run("qk_gaussian", mean.dtype.name, task)
        return mean, cov

    def vectors(
        self, a: Array, b: Array | None, factors: tuple[float, float, float] = (1.0, 0.0, 0.0)
    ) -> tuple[dict[str, float], Array | None, Array | None]:
        """Figures of a and b (n, m); with b the maps of each operation, and the dots of their rows."""
        figures = np.full(len(FIGURES), np.nan)
        task = Vectors(n_rows=a.shape[0], n_cols=a.shape[1], n_ops=len(MAPS))
        task.a, task.b = self._pointer(a, a.dtype), self._pointer(b, a.dtype)
        task.figures = figures.ctypes.data
        task.x, task.y, task.z = factors
        maps = dots = None
        if b is not None:
            maps = np.full((len(MAPS), *a.shape), np.nan, a.dtype)
            dots = np.full(a.shape[0], np.nan, a.dtype)
            task.maps, task.dots = maps.ctypes.data, dots.ctypes.data
        self._run("qk_vectors", a.dtype.name, task)
        return dict(zip(FIGURES, figures.tolist(), strict=True)), maps, dots

    def seeded_bug(self, x: Array, bug: int) -> tuple[int, float, str]:
        """(status, result, reports) of the kernel of tests/simt/bugs.cu with that mistake."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        out = np.full(1, np.nan, np.float32)
        self.start()
        status = self.library.qk_seeded(
            c.c_void_p(x.ctypes.data), len(x), c.c_void_p(out.ctypes.data), bug
        )
        return status, float(out[0]), self.reports()


@lru_cache
def backend(name: str) -> Backend:
    return Backend(name)


def built(name: str) -> bool:
    return (BUILD / LIBRARIES[name]).exists()
