# The compiled engine's interface; installed as the stub of every _cpu_<level> module.
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

ISA: str
SIMD_BYTES: int
SYMMETRIC_TILE: int
COMPILER: str
EIGEN: str
EXP_MAX_ULP: float
LOG_MAX_ULP: float
SINCOS_MAX_ERROR: float
WEIGHTS: tuple[str, ...]
BRIDGE_METHODS: tuple[str, ...]
BRIDGE_STATUS: tuple[str, ...]
FIELD_KINDS: tuple[str, ...]
FLOW_METHODS: tuple[str, ...]
FLOW_STATUS: tuple[str, ...]
VELOCITY_STATUS: tuple[str, ...]

_Real = npt.NDArray[np.floating[Any]]

def scan(array: _Real, n_threads: int) -> tuple[int, float]: ...
def plain_magnitude(array: _Real) -> float: ...
def pack_symmetric(spec: tuple[Any, ...], n_threads: int) -> _Real: ...
def symmetric_product(tiles: _Real, x: _Real, n_threads: int) -> _Real: ...
def partial_cholesky(
    spec: tuple[Any, ...], max_rank: int, enough: float, n_threads: int
) -> tuple[_Real, int, float]: ...
def project(x: _Real, w: _Real, n_threads: int) -> _Real: ...
def row_dots(a: _Real, b: _Real) -> _Real: ...
def exp(x: _Real) -> _Real: ...
def exp2_nonpos(x: _Real) -> _Real: ...
def weight_exp(x: _Real) -> _Real: ...
def log(x: _Real) -> _Real: ...
def thread_shortage() -> tuple[int, int]: ...
def reduce_rows(
    spec: tuple[Any, ...],
    weight: int,
    values: _Real | None,
    want_lse: bool,
    want_moments: bool,
    n_threads: int,
    in_parts: bool = False,
) -> tuple[_Real | None, _Real | None, _Real | None, _Real | None]: ...
def marginals(spec: tuple[Any, ...], n_threads: int) -> tuple[_Real, _Real]: ...
def materialize(spec: tuple[Any, ...], raw: bool, weight: int, n_threads: int) -> _Real: ...
def apply_phases(
    spec: tuple[Any, ...], phases: tuple[Any, ...], values: _Real, turned: _Real, n_threads: int
) -> _Real: ...
def compare_rows(
    a: tuple[Any, ...], b: tuple[Any, ...], n_threads: int
) -> tuple[_Real, _Real, _Real, _Real, _Real, npt.NDArray[np.int64]]: ...
def sincos(x: _Real) -> tuple[_Real, _Real]: ...

class BridgeKernel:
    @property
    def stored(self) -> bool: ...
    @property
    def signs(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...
    def sums(
        self, f: _Real, g: _Real, n_threads: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...
    def row_sums(self, g: _Real, n_threads: int) -> npt.NDArray[np.float64]: ...
    def column_sums(self, f: _Real, n_threads: int) -> npt.NDArray[np.float64]: ...
    def rows(
        self, g: _Real, mass: _Real, n_threads: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...

def bridge_scores(
    spec: tuple[Any, ...], max_memory: float, scratch: _Real | None
) -> BridgeKernel: ...
def bridge_factors(
    left: tuple[_Real, ...], right: tuple[_Real, ...], signs: int
) -> BridgeKernel: ...
def bridge_chain(specs: tuple[tuple[Any, ...], ...]) -> BridgeKernel: ...
def bridge_object(kernel: object, n_rows: int, n_cols: int, epsilon: float) -> BridgeKernel: ...
def device_keeps_weights(n_rows: int, n_cols: int, entry_bytes: int, max_memory: float) -> bool: ...
def triangle_scratch(n: int, float32: bool, max_memory: float) -> int: ...
def solve_bridge(
    kernel: BridgeKernel,
    mu: _Real,
    nu: _Real,
    f: _Real,
    g: _Real,
    method: int,
    tol: float,
    max_iterations: int,
    max_visits: int,
    row_penalty: float,
    col_penalty: float,
    report: Callable[[int, float], object] | None,
    n_threads: int,
    memory: int = 5,
    period: int = 1,
    observe: Callable[[_Real, _Real], bool] | None = None,
) -> tuple[_Real, _Real, _Real, int, float, int, str]: ...
def solve_bridges(
    spec: tuple[Any, ...],
    mu: _Real,
    nu: _Real,
    f: _Real,
    g: _Real,
    method: int,
    tol: float,
    max_iterations: int,
    max_visits: int,
    row_penalty: float,
    col_penalty: float,
    max_memory: float,
    n_threads: int,
) -> tuple[
    _Real,
    _Real,
    _Real,
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    list[str],
    list[bool],
]: ...

class Anderson:
    def __init__(self, weights: npt.NDArray[np.float64], memory: int) -> None: ...
    @property
    def empty(self) -> bool: ...
    def forget(self) -> None: ...
    def next(
        self, point: npt.NDArray[np.float64], step: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]: ...

def widened_marginals(
    rest: tuple[Any, ...], dense: tuple[tuple[_Real, float], ...], n_threads: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...
def coupling_sums(
    z: _Real, scale: float, f: _Real, g: _Real, n_threads: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...
def deviation(got: _Real, wanted: _Real) -> tuple[float, float, float, float]: ...
def transport_flow(
    allowed: npt.NDArray[np.bool_], mu: _Real, nu: _Real
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], _Real, _Real, _Real]: ...
def attention_push(
    factors: tuple[_Real, ...], left: _Real, right: _Real, d_values: _Real, n_threads: int
) -> _Real: ...
def attention_pull(
    factors: tuple[_Real, ...], u: _Real, n_threads: int
) -> tuple[_Real, _Real, _Real]: ...
def pull(
    scores: tuple[Any, ...],
    cotangent: tuple[Any, ...],
    Y: _Real,
    X: _Real,
    U: _Real,
    kept: tuple[npt.NDArray[np.uint8], int, int] | None,
    n_threads: int,
) -> tuple[_Real, _Real, _Real, _Real, _Real]: ...
def factored_product(
    left: tuple[_Real, ...], right: tuple[_Real, ...], z: _Real, n_threads: int
) -> _Real: ...
def negative_entries(
    left: tuple[_Real, ...],
    right: tuple[_Real, ...],
    u: _Real,
    v: _Real,
    row_slack: _Real,
    col_slack: _Real,
    n_threads: int,
) -> tuple[int, float, float]: ...
def gaussian_wants_blas(field: int, d: int) -> bool: ...
def use_blas(routines: dict[str, Any]) -> bool: ...
def gaussian_flow(
    field: int,
    gain: float,
    raw_moment: bool,
    epsilon: float,
    mean: _Real,
    cov: _Real,
    score: _Real,
    query: _Real,
    value: _Real,
    method: int,
    pushforward: bool,
    t0: float,
    t1: float,
    n_steps: int,
    store_every: int,
    output: npt.NDArray[np.float64],
    rtol: float,
    atol: float,
    max_steps: int,
    max_growth: float,
    judge_mean: bool,
    report: Callable[[float], object] | None,
    n_threads: int,
) -> tuple[_Real, _Real, _Real, _Real, npt.NDArray[np.float64], npt.NDArray[np.int64]]: ...
def velocity(
    field: tuple[Any, ...] | Callable[[_Real, float], _Real], x: _Real, t: float, n_threads: int
) -> tuple[int, _Real]: ...
def integrate(
    field: tuple[Any, ...] | Callable[[_Real, float], _Real],
    x0: _Real,
    options: dict[str, Any],
    n_threads: int,
) -> tuple[npt.NDArray[np.float64], _Real, int, int, int, int]: ...
def tableaux() -> dict[str, dict[str, Any]]: ...

class StepController:
    def __init__(self, order: int, elementary: bool) -> None: ...
    def accepted(self, error: float) -> float: ...
    def rejected(self, error: float) -> float: ...
    def reset(self) -> None: ...
    @staticmethod
    def probe(size: float, speed: float, longest: float) -> float: ...
    def first(self, probe: float, speed: float, change: float, longest: float) -> float: ...

def cluster_labels(x: _Real, linkage: float) -> npt.NDArray[np.int64]: ...
def mobility_rows(p: _Real, extremes: int, n_threads: int) -> npt.NDArray[np.float64]: ...
def secular_roots(
    poles: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], n_threads: int
) -> npt.NDArray[np.float64]: ...
