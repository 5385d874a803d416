"""Every CUDA kernel against the reference that the CPU engine is tested with.

The kernels run on the SIMT layer (with threads and blocks in random order), in the race build if QKCORE_RACE
is set, and on a device if there is one and `make cuda-tests` has built the library for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import reference as ref
from tests.cuda_cases import KINDS, MASKS, SHAPES, close, scores
from tests.kernels import (
    SHIPPED,
    SMALL32,
    SMALL64,
    Backend,
    KernelError,
    Scores,
    backend,
    bfloat16,
    built,
)

Array = NDArray[Any]


def _devices() -> int:
    return int(backend("gpu").library.qk_device_count()) if built("gpu") else 0


HAS_DEVICE = _devices() > 0
SIMT = "race" if os.environ.get("QKCORE_RACE") else "simt"
needs_simt = pytest.mark.skipif(not built(SIMT), reason="the SIMT layer is not built: make simt")
BACKENDS = [
    pytest.param((SIMT, config), marks=needs_simt) for config in (SHIPPED, SMALL32, SMALL64)
]
if HAS_DEVICE:
    BACKENDS.append(pytest.param(("gpu", SHIPPED), marks=pytest.mark.gpu))

DTYPES = ("float32", "float64")


def _id(value: Any) -> str:
    names = {SHIPPED: "shipped", SMALL32: "small32", SMALL64: "small64"}
    return f"{value[0]}-{names[value[1]]}"


@pytest.fixture(params=BACKENDS, ids=_id)
def kernels(request: pytest.FixtureRequest) -> Iterator[Backend]:
    name, config = request.param
    chosen = backend(name)
    chosen.config, chosen.seed = config, 1
    yield chosen
    assert chosen.live_allocations == 0


@pytest.mark.gpu
def test_device_is_there() -> None:
    if not HAS_DEVICE:
        pytest.skip("no CUDA device: the kernels run on the SIMT layer only (see docs/cuda.md)")
    assert _devices() > 0


def small(kernels: Backend, n: int, m: int) -> bool:
    """Large blocks are slow to interpret: the shipped tiles see a few of the shapes only."""
    return (
        kernels.config != SHIPPED or kernels.name == "gpu" or (n, m) in ((1, 1), (33, 31), (65, 70))
    )


# ---- kernel 1: log-sum-exp and products -----------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_log_sum_exp(kernels: Backend, kind: str, mask: str, dtype: str) -> None:
    """DAC-3: rows, and columns by exchanging the roles."""
    rng = np.random.default_rng(1)
    for n, m in SHAPES:
        if not small(kernels, n, m):
            continue
        s, exact = scores(rng, n, m, 5, kind, mask, dtype)
        kernels.seed += 1
        size = max(1.0, float(np.abs(exact[np.isfinite(exact)]).max(initial=1.0)))
        for transposed in (False, True):
            s.transposed = transposed
            lse, _ = kernels.rows(s, dtype)
            close(lse, ref.logsumexp(exact, axis=0 if transposed else 1), scale=4 * size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_values", [1, 2, 3, 7, 20, 65])
@pytest.mark.parametrize("kind", ["sum", "dense"])
def test_apply(kernels: Backend, kind: str, n_values: int, dtype: str) -> None:
    """DAC-4: softmax(s) V for few and many right-hand sides, under every mask. Dense scores stage no
    features, so that no barrier but the kernel's own is left."""
    rng = np.random.default_rng(2)
    for (n, m), mask in zip(SHAPES, (*MASKS, "causal"), strict=True):
        if not small(kernels, n, m):
            continue
        s, exact = scores(rng, n, m, 3, kind, mask, dtype)
        V = rng.normal(size=(m, n_values)).astype(dtype)
        kernels.seed += 1
        lse, product = kernels.rows(s, dtype, values=V)
        size = max(1.0, float(np.abs(exact[np.isfinite(exact)]).max(initial=1.0)))
        close(lse, ref.logsumexp(exact), scale=4 * size)
        close(product, ref.apply(ref.softmax(exact), V), scale=8 * size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", ["exp", "linear", "relu", "sigmoid"])
def test_weights(kernels: Backend, weight: str, dtype: str) -> None:
    rng = np.random.default_rng(3)
    for mask in ("none", "dense"):
        for n_values in (2, 9):
            s, exact = scores(rng, 33, 31, 4, "dot", mask, dtype)
            V = rng.normal(size=(31, n_values)).astype(dtype)
            wanted = ref.apply(ref.kernel(exact, weight), V)
            _, product = kernels.rows(s, dtype, values=V, weight=weight, want_lse=False)
            close(product, wanted, scale=8 * float(ref.kernel(exact, weight).sum(axis=1).max()) + 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_transposed_apply(kernels: Backend, dtype: str) -> None:
    """u P for the row softmax P: the exchanged scores, -lse as a bias, plain exponentials."""
    rng = np.random.default_rng(4)
    s, exact = scores(rng, 40, 37, 3, "distance", "causal", dtype)
    U = rng.normal(size=(5, 40)).astype(dtype)
    lse, _ = kernels.rows(s, dtype)
    s.row_bias.append(-lse)
    s.transposed = True
    _, product = kernels.rows(s, dtype, values=np.ascontiguousarray(U.T), weight="exp")
    assert product is not None
    close(product.T, ref.apply_left(U, ref.softmax(exact)), scale=60.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_apply_of_16_bit_inputs(kernels: Backend, dtype: str) -> None:
    """Inputs of 16 bits, sums in float32: only the inputs are rounded, which the reference sees."""
    rng = np.random.default_rng(5)
    n, m, d = 40, 45, 19
    values = [
        rng.normal(size=shape).astype(np.float32) for shape in ((n, d), (m, d), (m, 10), (n, m))
    ]
    if dtype == "float16":
        bits = [a.astype(np.float16) for a in values]
        bits[0][0, :4] = [np.float16(6e-8), np.float16(-3e-6), np.float16(0), np.float16(-0.0)]
        rounded = [a.astype(np.float32) for a in bits]
    else:
        bits, rounded = (list(x) for x in zip(*map(bfloat16, values), strict=True))
    s = Scores(n, m, features=[("dot", bits[0], bits[1], 0.3)], dense=[(bits[3], 1.0)])
    exact = ref.dot(rounded[0], rounded[1], beta=float(np.float32(0.3))) + ref.high(rounded[3])
    lse, product = kernels.rows(s, dtype, values=bits[2])
    close(lse, ref.logsumexp(exact), scale=16.0)
    close(product, ref.apply(ref.softmax(exact), rounded[2]), scale=16.0)
    with pytest.raises(KernelError, match="compiled for softmax"):
        kernels.rows(s, dtype, values=bits[2], weight="relu", want_lse=False)


def test_empty_sides(kernels: Backend) -> None:
    """No rows: nothing happens. No columns: -inf and zeros."""
    V = np.zeros((0, 3))
    lse, product = kernels.rows(
        Scores(5, 0, features=[("dot", np.zeros((5, 2)), np.zeros((0, 2)), 1.0)]),
        "float64",
        values=V,
    )
    assert np.all(lse == -np.inf) and product is not None and np.all(product == 0)
    lse, _ = kernels.rows(Scores(0, 5, dense=[(np.zeros((0, 5)), 1.0)]), "float64")
    assert lse.shape == (0,)


def test_extreme_scores(kernels: Backend) -> None:
    """Shifts far beyond the range of exp, growing along the row: the state is raised at every tile."""
    Z = np.linspace(-1e4, 1e4, 6 * 150).reshape(6, 150).astype(np.float32)
    lse, product = kernels.rows(
        Scores(6, 150, dense=[(Z, 1.0)]), "float32", values=np.eye(150, 8, dtype=np.float32)
    )
    close(lse, ref.logsumexp(ref.high(Z)))
    close(product, ref.softmax(ref.high(Z))[:, :8])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_values", [0, 2, 9])
def test_column_splits(kernels: Backend, n_values: int, dtype: str) -> None:
    """Columns cut among blocks: the same answer, and a row seen by one of the splits alone."""
    rng = np.random.default_rng(6)
    s, exact = scores(rng, 9, 300, 2, "dot", "window", dtype)
    V = rng.normal(size=(300, n_values)).astype(dtype) if n_values else None
    lse, product = kernels.rows(s, dtype, values=V, splits=4)
    close(lse, ref.logsumexp(exact), scale=16.0)
    if V is not None:
        close(product, ref.apply(ref.softmax(exact), V), scale=16.0)


# ---- kernels 2 and 3: Sinkhorn --------------------------------------------------------------------


def laws(rng: np.random.Generator, n: int, m: int, dtype: Any) -> tuple[Array, Array]:
    mu, nu = rng.random(n) + 0.1, rng.random(m) + 0.1
    return (mu / mu.sum()).astype(dtype), (nu / nu.sum()).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["none", "window", "dense"])
@pytest.mark.parametrize("kind", ["distance", "dense"])
def test_marginals(kernels: Backend, kind: str, mask: str, dtype: str) -> None:
    rng = np.random.default_rng(7)
    for n, m in SHAPES:
        if not small(kernels, n, m):
            continue
        s, exact = scores(rng, n, m, 3, kind, mask, dtype)
        f, g = rng.normal(size=n).astype(dtype), rng.normal(size=m).astype(dtype)
        s.row_bias.append(f)
        s.col_bias.append(g)
        rows, columns = kernels.marginals(s, dtype)
        wanted = ref.marginals(exact, f, g)
        for found, right in zip((rows, columns), wanted, strict=True):
            close(found, right, scale=8 * float(right.max()) + 1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_output(kernels: Backend, dtype: str) -> None:
    rng = np.random.default_rng(8)
    s, exact = scores(rng, 33, 70, 3, "sum", "causal", dtype)
    size = float(np.abs(exact[np.isfinite(exact)]).max())
    close(kernels.dense(s, dtype, raw=True), exact, scale=2 * size)
    close(
        kernels.dense(s, dtype, raw=False),
        np.exp(exact),
        scale=2 * size * float(np.exp(exact).max()),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("shift", ["none", "near", "far", "empty"])
def test_sinkhorn_sweep(kernels: Backend, shift: str, store: bool, dtype: str) -> None:
    """DAC-7: the row update and the column marginals of the new plan in one visit, whatever the
    shift: none, the lse itself, one so far away that weights overflow or vanish, or -inf."""
    rng = np.random.default_rng(9)
    for (n, m), mask in zip(((1, 1), (33, 31), (65, 70)), ("none", "dense", "window"), strict=True):
        s, exact = scores(rng, n, m, 3, "distance", mask, dtype)
        mu, nu = laws(rng, n, m, dtype)
        mu[0] = mu[0] if n == 1 else 0
        g = rng.normal(size=m).astype(dtype)
        lse = ref.logsumexp(ref.shift(exact, None, g))
        given = {
            "none": None,
            "near": lse + 0.3,
            "far": np.where(np.arange(n) % 2 == 0, lse - 1e4, lse + 1e4),
            "empty": np.full(n, -np.inf),
        }[shift]
        kernels.seed += 1
        out = kernels.sweep(s, dtype, g, mu, nu, shift=given, store=store)
        with np.errstate(divide="ignore", invalid="ignore"):
            f = np.where(mu == 0, -np.inf, np.log(ref.high(mu)) - lse)
            plan = np.where(np.isneginf(exact), 0, np.exp(ref.shift(exact, f, g)))
            plan[np.isneginf(lse)] = 0
            columns = plan.sum(axis=0)
            g_new = np.where(columns > 0, ref.high(g) + np.log(ref.high(nu)) - np.log(columns), g)
        close(out["lse"], lse, scale=32.0)
        close(out["f"], f, scale=64.0)
        close(out["columns"], columns, scale=8.0)
        close(out["g_new"], g_new, scale=200.0)
        wanted = float(np.abs(columns - ref.high(nu)).sum())
        assert abs(out["residual"][0] - wanted) < 200 * np.finfo(dtype).eps
        assert out["residual"][1] == (columns == 0).sum()


@pytest.mark.parametrize("dtype", DTYPES)
def test_unbalanced_sweep(kernels: Backend, dtype: str) -> None:
    """Penalised marginals: each potential is a fraction of what would meet the marginal."""
    rng = np.random.default_rng(10)
    s, exact = scores(rng, 33, 31, 2, "distance", "none", dtype)
    mu, nu = laws(rng, 33, 31, dtype)
    nu[3] = 0
    g = rng.normal(size=31).astype(dtype)
    out = kernels.sweep(s, dtype, g, mu, nu, damping=(0.75, 0.5))
    f = 0.75 * (np.log(ref.high(mu)) - ref.logsumexp(ref.shift(exact, None, g)))
    columns = np.exp(ref.shift(exact, f, g)).sum(axis=0)
    with np.errstate(divide="ignore"):
        g_new = 0.5 * (ref.high(g) + np.log(ref.high(nu)) - np.log(columns))
    close(out["f"], f, scale=32.0)
    close(out["columns"], columns, scale=16.0)
    close(out["g_new"], g_new, scale=64.0)


def test_sweeps_converge(kernels: Backend) -> None:
    """Iterated on the device's own outputs, the sweep meets both marginals (DAC-7)."""
    rng = np.random.default_rng(11)
    s, exact = scores(rng, 33, 31, 2, "distance", "none", "float64")
    mu, nu = laws(rng, 33, 31, "float64")
    g, lse = np.zeros(31), None
    for _ in range(150):
        out = kernels.sweep(s, "float64", g, mu, nu, shift=lse)
        f, g_old, g, lse = out["f"], g, out["g_new"], out["lse"]
        if out["residual"][0] < 1e-12:
            break
    plan = np.exp(ref.shift(exact, f, g_old))
    assert np.abs(plan.sum(axis=1) - mu).sum() < 1e-13
    assert np.abs(plan.sum(axis=0) - nu).sum() < 2e-12


@pytest.mark.parametrize("dtype", DTYPES)
def test_scaling_sweep(kernels: Backend, dtype: str) -> None:
    rng = np.random.default_rng(12)
    for n, m in SHAPES:
        P = rng.random((n, m)).astype(dtype)
        mu, nu = laws(rng, n, m, dtype)
        if n > 1:
            mu[-1] = 0
        if m > 1:
            nu[0] = 0
        v = (rng.random(m) + 0.5).astype(dtype)
        out = kernels.scaling(P, v, mu, nu)
        u = ref.high(mu) / (ref.high(P) @ ref.high(v))
        down = u @ ref.high(P)
        close(out["u"], u, scale=8 * float(u.max()))
        close(out["columns"], v * down, scale=8 * float((v * down).max()))
        close(out["v_new"], nu / down, scale=8 * float((nu / down).max()))
        wanted = float(np.abs(v * down - ref.high(nu)).sum())
        assert abs(out["residual"][0] - wanted) < 200 * np.finfo(dtype).eps
        assert out["residual"][1] == 0


# ---- kernel 4: low-rank products of experts ---------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [(1,), (5,), (3, 4), (14, 14), (2, 3, 4), (2, 1, 3, 2)])
def test_factored_product(kernels: Backend, ranks: tuple[int, ...], dtype: str) -> None:
    """DAC-10: (prod_e L_e R_e) z without the kernel, several vectors at once."""
    rng = np.random.default_rng(13)
    for n, m, k in ((1, 1, 1), (33, 31, 2), (70, 600, 1)):
        left = [rng.normal(size=(r, n)).astype(dtype) for r in ranks]
        right = [rng.normal(size=(r, m)).astype(dtype) for r in ranks]
        z = rng.normal(size=(k, m)).astype(dtype)
        K = np.ones((n, m), dtype=ref.HIGH)
        size = np.ones((n, m), dtype=ref.HIGH)
        for L, R in zip(left, right, strict=True):
            K = K * (ref.high(L).T @ ref.high(R))
            size = size * (np.abs(ref.high(L)).T @ np.abs(ref.high(R)))
        out = kernels.factored(left, right, z)
        close(out, ref.high(z) @ K.T, scale=float((np.abs(z) @ size.T).max()))


# ---- vectors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_summaries(kernels: Backend, dtype: str) -> None:
    """Sums, extremes and counts of what is not finite, of one array and of two beside each other."""
    rng = np.random.default_rng(17)
    for n, m in ((1, 1), (1, 33), (31, 7), (70, 130)):
        a = rng.normal(size=(n, m)).astype(dtype)
        b = np.maximum(rng.normal(size=(n, m)), 0).astype(dtype)
        if n * m > 40:
            a[0, :3] = np.nan, np.inf, -np.inf
            a[-1, -1] = -np.inf
        kernels.seed += 1
        alone, _, _ = kernels.vectors(a, None)
        both, _, _ = kernels.vectors(a, b)
        assert alone["weight"] == alone["difference"] == alone["ratio"] == alone["dot"] == 0
        finite = np.isfinite(a)
        x, y = a[finite].astype(np.float64), b[finite].astype(np.float64)
        live = y > 0
        wanted = {
            "nan": np.isnan(a).sum(),
            "plus_inf": np.isposinf(a).sum(),
            "minus_inf": np.isneginf(a).sum(),
            "largest": np.abs(x).max(),
            "smallest": x.min(),
            "sum": x.sum(),
            "squares": (x * x).sum(),
            "weight": b.sum(dtype=np.float64),
            "difference": np.abs(x - y).sum(),
            "ratio": (np.abs(x - y)[live] / y[live]).max(initial=0),
            "dot": (x * y)[live].sum(),
        }
        for name, value in wanted.items():
            np.testing.assert_allclose(both[name], value, rtol=1e-12, atol=1e-11, err_msg=name)
            if name not in ("weight", "difference", "ratio", "dot"):
                assert alone[name] == both[name]


@pytest.mark.parametrize("dtype", DTYPES)
def test_maps(kernels: Backend, dtype: str) -> None:
    rng = np.random.default_rng(18)
    for n, m in ((1, 1), (3, 11), (33, 31)):
        a = (rng.random((n, m)) + 0.5).astype(dtype)
        b = rng.normal(size=(n, m)).astype(dtype)
        if n > 1:
            a[0, 0], a[1, 1] = 0, np.inf
        _, maps, dots = kernels.vectors(a, b, (0.5, 2.0, 0.25))
        assert maps is not None and dots is not None
        x, y = ref.high(a), ref.high(b)
        with np.errstate(divide="ignore", invalid="ignore"):
            wanted = {
                "affine": 0.5 * x + 2 * y + 0.25,
                "minus_or_zero": np.where(np.isinf(x), 0, -x),
                "log": np.log(x),
                "log_minus": np.where(x == 0, -np.inf, 0.5 * (np.log(x) - y)),
                "tilt": np.where(x == 0, 0, x * np.exp(0.5 * y)),
                "relative": x / (0.5 + 2 * np.maximum(np.abs(y), np.abs(x))),
            }
        for found, (name, right) in zip(maps, wanted.items(), strict=True):
            known = ~np.isnan(right)  # inf / inf in entries that are not used
            assert name == "relative" or known.all()
            close(found[known], right[known], scale=8 * float(np.abs(y).max()) + 8)
        if n == 1:
            close(dots, 0.5 * (x * y).sum(axis=1), scale=16.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_dots(kernels: Backend, dtype: str) -> None:
    rng = np.random.default_rng(19)
    for n, m in ((1, 1), (33, 5), (65, 17)):
        a, b = (rng.normal(size=(n, m)).astype(dtype) for _ in range(2))
        _, _, dots = kernels.vectors(a, b, (-1.5, 0.0, 0.0))
        close(dots, -1.5 * (ref.high(a) * ref.high(b)).sum(axis=1), scale=16.0)


# ---- kernel 5: particles and Gaussian laws ----------------------------------------------------------

FIELDS: dict[str, Callable[[Array], Array]] = {
    "softmax": lambda s: ref.softmax(s),
    "exp": lambda s: ref.kernel(s, "exp") / s.shape[0],
    "linear": lambda s: ref.kernel(s, "linear") / s.shape[0],
    "relu": lambda s: ref.kernel(s, "relu") / s.shape[0],
    "sigmoid": lambda s: ref.kernel(s, "sigmoid") / s.shape[0],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", ["dot", "distance"])
def test_velocity(kernels: Backend, kind: str, field: str, dtype: str) -> None:
    """TPDE-1: one velocity of two heads, dot and L2 scores, causal, and the Euler step with it."""
    rng = np.random.default_rng(14)
    n, d, d_head = 33, 3, 2
    x = rng.normal(size=(n, d)).astype(dtype)
    Q, K = (0.5 * rng.normal(size=(2, d_head, d)) for _ in range(2))
    V = rng.normal(size=(2, d, d))
    Q, K, V = (a.astype(dtype) for a in (Q, K, V))
    causal = field == "softmax"
    out, stepped = kernels.velocity(
        x,
        Q,
        K,
        V,
        weight=field,
        kind=kind,
        mean=field != "softmax",
        h=0.125,
        **({"band": (-(1 << 60), 0)} if causal else {}),
    )
    wanted = np.zeros((n, d), dtype=ref.HIGH)
    for h in range(2):
        q, k = ref.high(x) @ ref.high(Q[h]).T, ref.high(x) @ ref.high(K[h]).T
        s = ref.dot(q, k) if kind == "dot" else ref.distance(q, k)
        if causal:
            s = ref.masked(s, ref.causal_mask(n, n))
        wanted += ref.apply(FIELDS[field](s), x) @ ref.high(V[h]).T
    close(out, wanted, scale=64.0)
    close(stepped, ref.high(x) + ref.HIGH(0.125) * wanted, scale=64.0)


RK4 = (
    np.array([[0, 0, 0, 0], [0.5, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 1, 0]]),
    np.array([1, 2, 2, 1]) / 6,
)
EULER = (np.zeros((1, 1)), np.ones(1))


def gaussian_slope(
    field: str, mean: Array, cov: Array, matrices: list[tuple[Array, ...]], **options: Any
) -> Any:
    """TPDE 4.1-4.3: mean' = b + M mean, cov' = M cov + cov M^T."""
    d = len(mean)
    M, b = np.zeros((d, d), dtype=ref.HIGH), np.zeros(d, dtype=ref.HIGH)
    for score, query, value in matrices:
        if field == "weighted":
            G = cov + (np.outer(mean, mean) if options.get("raw_moment") else 0)
            M += value @ G @ score
            b += options.get("gain", 1.0) * value @ mean
        else:
            inner = np.eye(d) + 2 * score @ cov @ score.T
            B = np.linalg.solve(inner.astype(float), (score @ cov).astype(float)).T
            M += 2 * value @ B @ query
            b += value @ (mean - 2 * B @ score @ mean)
    return b + M @ mean, M @ cov + cov @ M.T


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("field", ["weighted", "raw", "l2"])
@pytest.mark.parametrize("d", [1, 2, 4, 5, 8])
def test_gaussian_flow(kernels: Backend, d: int, field: str, dtype: str) -> None:
    """TPDE-3: steps of Euler and RK4 for a batch of laws, own or shared matrices, two heads."""
    rng = np.random.default_rng(15)
    kind = "l2" if field == "l2" else "weighted"
    options = {"gain": 0.5, "raw_moment": True} if field == "raw" else {}
    for n, tableau, shared, n_steps in (
        (1, EULER, True, 3),
        (11, RK4, False, 2),
        (33, RK4, True, 1),
    ):
        A = rng.normal(size=(n, d, d))
        mean = rng.normal(size=(n, d)).astype(dtype)
        cov = (A @ np.swapaxes(A, 1, 2) / d + np.eye(d)).astype(dtype)
        cov = (cov + np.swapaxes(cov, 1, 2)) / 2
        shape = (2, d, d) if shared else (n, 2, d, d)
        score, query, value = (0.3 * rng.normal(size=shape).astype(dtype) for _ in range(3))
        found = kernels.gaussian(
            kind,
            mean,
            cov,
            score,
            value,
            query=query,
            tableau=tableau,
            h=0.0625,
            n_steps=n_steps,
            **options,
        )
        a, b = tableau
        for t in range(n):
            own = [
                tuple(ref.high((w if shared else w[t])[h]) for w in (score, query, value))
                for h in range(2)
            ]
            m, C = ref.high(mean[t]), ref.high(cov[t])
            for _ in range(n_steps):
                slopes: list[Any] = []
                for row in a:
                    terms = list(zip(row, slopes, strict=False))
                    ms = m + 0.0625 * sum(w * k[0] for w, k in terms)
                    Cs = C + 0.0625 * sum(w * k[1] for w, k in terms)
                    slopes.append(gaussian_slope(kind, ms, Cs, own, **options))
                m = m + 0.0625 * sum(w * k[0] for w, k in zip(b, slopes, strict=True))
                C = C + 0.0625 * sum(w * k[1] for w, k in zip(b, slopes, strict=True))
            size = float(max(1, np.abs(C).max(), np.abs(m).max()))
            close(found[0][t], m, scale=16 * size)
            close(found[1][t], C, scale=16 * size)


# ---- laws of the implementation ---------------------------------------------------------------------


def test_order_of_threads_and_blocks_changes_no_bit(kernels: Backend) -> None:
    """Every sum has a fixed order: ten schedules, the same bits."""
    rng = np.random.default_rng(16)
    s, _ = scores(rng, 65, 70, 3, "sum", "dense", "float32")
    V = rng.normal(size=(70, 9)).astype(np.float32)
    mu, nu = laws(rng, 65, 70, np.float32)
    g = np.zeros(70, np.float32)
    left, right = (rng.normal(size=(6, n)).astype(np.float32) for n in (70, 600))
    seen = set()
    for seed in range(10 if kernels.config != SHIPPED else 3):
        kernels.seed = seed
        sweep = kernels.sweep(s, "float32", g, mu, nu)
        outputs = [
            *(a for a in kernels.rows(s, "float32", values=V, splits=3) if a is not None),
            *kernels.marginals(s, "float32"),
            *sweep.values(),
            kernels.factored([left], [right], right[:2].copy()),
        ]
        seen.add(b"".join(a.tobytes() for a in outputs))
    assert len(seen) == 1


def test_bad_arguments_are_refused(kernels: Backend) -> None:
    Z = np.zeros((3, 3))
    with pytest.raises(KernelError, match="more terms"):
        kernels.rows(Scores(3, 3, dense=[(Z, 1.0)] * 5), "float64")
    with pytest.raises(KernelError, match="log_sum_exp: only with"):
        kernels.rows(Scores(3, 3, dense=[(Z, 1.0)]), "float64", values=Z, weight="relu")
    with pytest.raises(KernelError, match="scores: wanted at least one row and one column"):
        kernels.marginals(Scores(0, 3), "float64")
    eye = np.eye(9)[None]
    with pytest.raises(KernelError, match="d: wanted 1 to 8"):
        kernels.gaussian(
            "weighted", np.zeros((1, 9)), eye, eye, eye, tableau=EULER, h=0.1, n_steps=1
        )
