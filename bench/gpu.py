"""One command for a machine with a CUDA device: ``python bench/gpu.py [--library torch] [--quick]``.

It first compares every computation on the device with the same on the CPU. Then it measures times, also of
PyTorch's attention, FlashSinkhorn, KeOps and OTT if they are installed, and writes one JSON file. The exit
status is 0 if all answers are right, 1 if one is wrong, and 2 if there is no device or no array library for
it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import environment
import qkcore as qk

Array = NDArray[Any]
LIBRARIES = ("torch", "cupy", "jax")
OUT = Path(__file__).resolve().parent / "results" / "gpu.json"
# Allowed difference between device and CPU, in units of the dtype's eps times the size of the numbers.
ROUNDING = 2000.0


class Device:
    """An array library on a CUDA device."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.xp = importlib.import_module(name)

    def asarray(self, host: Array) -> Any:
        if self.name == "torch":
            return self.xp.as_tensor(host, device="cuda")
        if self.name == "cupy":
            return self.xp.asarray(host)
        return self.xp.device_put(host, self.xp.devices("cuda")[0])

    def numpy(self, x: Any) -> Array:
        if self.name == "torch":
            return np.asarray(x.cpu())
        return np.asarray(x.get() if self.name == "cupy" else x)

    def synchronize(self) -> None:
        if self.name == "torch":
            self.xp.cuda.synchronize()
        elif self.name == "cupy":
            self.xp.cuda.Device().synchronize()
        else:  # qkcore's calls on JAX arrays wait for their result
            self.xp.effects_barrier()


# ---- right? -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """One computation on the device, compared with the same on the CPU."""

    case: str
    dtype: str
    error: float
    allowed: float

    @property
    def ok(self) -> bool:
        return bool(self.error <= self.allowed)  # False for NaN


def compare(case: str, found: Array, wanted: Array, slack: float = 1.0) -> Check:
    """A check by the largest difference; infinities must be in the same places."""
    finite = np.isfinite(wanted)
    size = max(1.0, float(np.abs(wanted[finite]).max(initial=0.0)))
    allowed = ROUNDING * slack * float(np.finfo(wanted.dtype).eps) * size
    if found.shape != wanted.shape or not np.array_equal(found[~finite], wanted[~finite]):
        return Check(case, str(wanted.dtype), float("inf"), allowed)
    difference = np.abs(found[finite].astype(np.float64) - wanted[finite])
    return Check(case, str(wanted.dtype), float(difference.max(initial=0.0)), allowed)


def check_all(device: Device, n: int) -> list[Check]:
    return [c for dtype in ("float32", "float64") for c in _check(device, n, dtype)]


def _check(device: Device, n: int, dtype: str) -> list[Check]:
    rng = np.random.default_rng(0)
    m, d = n + n // 3, 5
    X, Y, V = (rng.normal(size=s).astype(dtype) for s in ((n, d), (m, d), (m, 7)))
    Z, U = rng.normal(size=(n, m)).astype(dtype), rng.normal(size=(2, n)).astype(dtype)
    to, back = device.asarray, device.numpy
    out = []
    pairs = {
        "dot": (qk.scores.dot(X, Y), qk.scores.dot(to(X), to(Y))),
        "causal": (qk.scores.dot(X, Y).causal(), qk.scores.dot(to(X), to(Y)).causal()),
        "distance": (qk.scores.distance(X, Y), qk.scores.distance(to(X), to(Y))),
        "dense": (qk.scores.dense(Z), qk.scores.dense(to(Z))),
    }
    for name, (cpu, there) in pairs.items():
        A, B = qk.softmax(cpu), qk.softmax(there)
        out += [
            compare(f"{name}: log-sum-exp", back(there.logsumexp()), cpu.logsumexp()),
            compare(f"{name}: A @ V", back(B @ to(V)), A @ V),
            compare(f"{name}: U @ A", back(B.apply_left(to(U))), U @ A),
            compare(f"{name}: marginals", back(there.marginals()[1]), cpu.marginals()[1]),
        ]
    mu, nu = np.full(n, 1 / n, dtype), np.full(m, 1 / m, dtype)
    cpu, there = pairs["distance"]
    a, b = qk.bridge(cpu, mu, nu), qk.bridge(there, to(mu), to(nu))
    error = max(float(np.abs(back(b.plan()) - a.plan()).sum()), 0.0 if b.converged else np.inf)
    out.append(Check("bridge: coupling", dtype, error, 4 * b.tol))
    field = qk.AttentionField("softmax", Q=np.eye(d), K=np.eye(d) / d, V=-np.eye(d))
    flows = [qk.flow(field, x, (0.0, 0.5), "rk4", n_steps=4) for x in (X, to(X))]
    out.append(compare("flow: rk4", back(flows[1].x), flows[0].x))
    return out + _check_flows(device, X) + _check_laws(device, X, Y)


def _check_flows(device: Device, X: Array) -> list[Check]:
    """Checks fields that use several kernels, output at intermediate times, and flows on the sphere."""
    n, d = X.shape
    to, back = device.asarray, device.numpy
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    eye, positions = np.eye(d), np.arange(n) % 7 / 7
    out = []
    for kind, options in (
        ("softmax", {"sphere": True}),
        ("linear", {"centred": True}),
        ("relu", {"mask": "causal"}),
        ("sigmoid", {"mask": positions}),
    ):
        field = qk.AttentionField(
            kind, Q=eye, K=eye, V=-eye, weights=np.arange(1.0, n + 1), **options
        )
        found = [
            qk.flow(field, x, (0.0, 0.5), "dopri5", n_steps=2, t_eval=[0.1, 0.5])
            for x in (unit, to(unit))
        ]
        out.append(compare(f"flow: {kind}, weighted", back(found[1].x), found[0].x))
    return out


def _check_laws(device: Device, X: Array, Y: Array) -> list[Check]:
    """Checks batches and derived quantities of bridges, low-rank products, and Gaussian laws."""
    to, back, dtype = device.asarray, device.numpy, X.dtype
    n = len(X)
    mu, nu = np.full(n, 1 / n, dtype), np.full(len(Y), 1 / len(Y), dtype)
    clouds = np.stack([X, X / 2])
    many = qk.bridge(qk.scores.distance(to(clouds), to(Y)), to(mu), to(nu))
    plans = back(many.plan())
    one = qk.bridge(qk.scores.distance(X / 2, Y), mu, nu)
    there = qk.bridge(qk.scores.distance(to(X / 2), to(Y)), to(mu), to(nu))
    error = float(np.abs(plans[1] - one.plan()).sum()) if many.converged.all() else np.inf
    size = 1 + float(np.abs(one.f).max()) + float(np.abs(one.g).max()) + abs(one.cost)
    out = [
        Check("bridge: a batch", str(dtype), error, 4 * one.tol),
        Check("bridge: cost", str(dtype), abs(there.cost - one.cost), 100 * one.tol * size),
        Check("bridge: gap", str(dtype), abs(there.gap), 100 * one.tol * size),
    ]
    left, right = X[:, :3].copy(), Y[:, :3].T.copy()
    V = Y[:, :2].copy()
    low = qk.LowRank(left, right)
    moved = qk.LowRank(to(left), to(right))
    out.append(
        compare("low rank: poe(G, G) @ V", back(qk.poe(moved, moved) @ to(V)), qk.poe(low, low) @ V)
    )
    cov = np.stack([np.eye(4), 2 * np.eye(4)]).astype(dtype)
    eye = np.eye(4, dtype=dtype)
    laws = [
        qk.gaussian.flow("softmax", None, c, (0, 1), Q=eye, K=-eye, V=eye, n_steps=8, method="rk4")
        for c in (cov, to(cov))
    ]
    out.append(compare("Gaussian flow", back(laws[1].cov), laws[0].cov))
    return out


# ---- fast? ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Time:
    """The time of one contender in seconds, the best of several calls."""

    case: str
    contender: str
    seconds: float | None
    note: str = ""


def best(call: Callable[[], Any], wait: Callable[[], None], repeats: int) -> float:
    call()  # the first call compiles and allocates
    wait()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        wait()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def measure(
    case: str, contenders: dict[str, Callable[[], Callable[[], Any]]], device: Device, repeats: int
) -> list[Time]:
    """Makes and runs each contender; if one is missing or fails, the record says so."""
    out = []
    for name, make in contenders.items():
        try:
            out.append(Time(case, name, best(make(), device.synchronize, repeats)))
        except ImportError as problem:
            out.append(Time(case, name, None, f"not installed: {problem}"))
        except Exception as problem:  # an error in another library is recorded
            out.append(Time(case, name, None, f"failed: {type(problem).__name__}: {problem}"))
    return out


def time_all(device: Device, quick: bool) -> list[Time]:
    rng = np.random.default_rng(1)
    repeats = 3 if quick else 10
    out = []
    for n, d in ((1024, 64),) if quick else ((4096, 64), (16384, 64), (16384, 128)):
        host = [rng.normal(size=(n, d)).astype(np.float32) for _ in range(3)]
        contenders = {
            "qkcore": lambda h=host, d=d: _attention(device, h, d),
            "PyTorch SDPA": lambda h=host: _sdpa(h),
        }
        out += measure(f"attention, n = {n}, d = {d}, float32", contenders, device, repeats)
    for n, d in ((1024, 3),) if quick else ((10_000, 3), (10_000, 64), (50_000, 64)):
        host = [rng.normal(size=(n, d)).astype(np.float32) for _ in range(2)]
        contenders = {
            "qkcore": lambda h=host: _sinkhorn(device, h),
            "FlashSinkhorn": lambda h=host: _flash(h),
            "OTT": lambda h=host: _ott(h),
        }
        out += measure(f"10 Sinkhorn iterations, n = {n}, d = {d}", contenders, device, repeats)
        contenders = {
            "qkcore": lambda h=host: _lse(device, h),
            "KeOps": lambda h=host: _keops(h),
        }
        out += measure(f"log-sum-exp of distances, n = {n}, d = {d}", contenders, device, repeats)
    return out


def _attention(device: Device, host: list[Array], d: int) -> Callable[[], Any]:
    Q, K, V = (device.asarray(a) for a in host)
    return lambda: qk.softmax(qk.scores.dot(Q, K, beta=d**-0.5)) @ V


def _sinkhorn(device: Device, host: list[Array]) -> Callable[[], Any]:
    X, Y = (device.asarray(a) for a in host)
    weights = device.asarray(np.full(len(host[0]), 1 / len(host[0]), np.float32))
    s = qk.scores.distance(X, Y, beta=1.0 / host[0].shape[1])
    return lambda: qk.bridge(s, weights, weights, solver="alternating", tol=1e-30, max_iter=10)


def _lse(device: Device, host: list[Array]) -> Callable[[], Any]:
    s = qk.scores.distance(*(device.asarray(a) for a in host))
    return lambda: s.logsumexp()


def _sdpa(host: list[Array]) -> Callable[[], Any]:
    torch: Any = importlib.import_module("torch")
    Q, K, V = (torch.as_tensor(a, device="cuda")[None, None] for a in host)
    return lambda: torch.nn.functional.scaled_dot_product_attention(Q, K, V)


def _flash(host: list[Array]) -> Callable[[], Any]:
    torch: Any = importlib.import_module("torch")
    flash: Any = importlib.import_module("flash_sinkhorn")
    X, Y = (torch.as_tensor(a, device="cuda") for a in host)
    blur = float(np.sqrt(host[0].shape[1]))  # epsilon = blur^2
    loss = flash.SamplesLoss(loss="sinkhorn", blur=blur, debias=False, n_iters=10)
    return lambda: loss(X, Y)


def _ott(host: list[Array]) -> Callable[[], Any]:
    jax: Any = importlib.import_module("jax")
    pointcloud: Any = importlib.import_module("ott.geometry.pointcloud")
    linear: Any = importlib.import_module("ott.solvers.linear")
    X, Y = (jax.device_put(a) for a in host)
    size = 1024 if len(host[0]) > 5000 else None

    @jax.jit
    def solve(x: Any, y: Any) -> Any:
        geometry = pointcloud.PointCloud(x, y, epsilon=float(x.shape[1]), batch_size=size)
        return linear.solve(geometry, max_iterations=10, min_iterations=10, threshold=-1.0).f

    return lambda: solve(X, Y).block_until_ready()


def _keops(host: list[Array]) -> Callable[[], Any]:
    torch: Any = importlib.import_module("torch")
    keops: Any = importlib.import_module("pykeops.torch")
    X, Y = (torch.as_tensor(a, device="cuda") for a in host)

    def call() -> Any:
        x, y = keops.LazyTensor(X[:, None, :]), keops.LazyTensor(Y[None, :, :])
        return (-((x - y) ** 2).sum(-1)).logsumexp(dim=1)

    return call


# ---- the record -------------------------------------------------------------------------------------


def record(checks: list[Check], times: list[Time], library: str) -> dict[str, Any]:
    return {
        "environment": environment.record(1),
        "cuda": qk.config()["cuda"],
        "library": library,
        "checks": [{**asdict(c), "ok": c.ok} for c in checks],
        "times": [asdict(t) for t in times],
        "all_right": all(c.ok for c in checks),
    }


def show(checks: list[Check], times: list[Time]) -> str:
    wrong = [c for c in checks if not c.ok]
    lines = [f"{len(checks) - len(wrong)} of {len(checks)} computations agree with the CPU"]
    lines += [
        f"  WRONG  {c.case}, {c.dtype}: off by {c.error:.1e}, allowed {c.allowed:.1e}"
        for c in wrong
    ]
    for t in times:
        value = t.note if t.seconds is None else f"{1e3 * t.seconds:.3g} ms"
        lines.append(f"{t.case:45s} {t.contender:14s} {value}")
    return "\n".join(lines)


def find_device(wanted: str | None) -> Device | str:
    """The device by the first library that supports it, or a text that says why there is none."""
    cuda = qk.config()["cuda"]
    if not cuda["available"]:
        return f"no CUDA device: {cuda['reason']}"
    for name in (wanted,) if wanted else LIBRARIES:
        try:
            return Device(name)
        except ImportError:
            continue
    return f"no array library: install one of {', '.join(LIBRARIES)} with CUDA support"


def run(device: Device, *, quick: bool, out: Path, n: int = 700) -> int:
    checks = check_all(device, n)
    times = time_all(device, quick) if all(c.ok for c in checks) else []
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record(checks, times, device.name), indent=1, default=str) + "\n")
    print(show(checks, times))
    print(f"{out} written")
    return 0 if all(c.ok for c in checks) else 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench/gpu.py", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--library", choices=LIBRARIES, help="what holds the device arrays")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args(arguments)
    device = find_device(asked.library)
    if isinstance(device, str):
        print(device)
        return 2
    return run(device, quick=asked.quick, out=asked.out)


if __name__ == "__main__":
    sys.exit(main())
