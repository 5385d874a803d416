"""Gaussian flows of laws on a device (TPDE-3), against the CPU and closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore._device import _gaussian
from tests.device_libraries import Library
from tests.test_device import DTYPES, close, rng


def covariances(shape: tuple[int, ...], d: int, dtype: str) -> Any:
    a = rng().normal(size=(*shape, d, d))
    return (a @ a.swapaxes(-1, -2) / d + 0.1 * np.eye(d)).astype(dtype)


def parameters(d: int, dtype: str, heads: int = 1, scale: float = 0.5) -> dict[str, Any]:
    r = rng()
    Q, K = (scale * r.normal(size=(heads * d, d)).astype(dtype) for _ in range(2))
    return {"Q": Q, "K": K, "V": -np.eye(d, dtype=dtype), "heads": heads}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["euler", "heun", "rk4"])
@pytest.mark.parametrize("kind", ["softmax", "linear", "linear_epsilon", "l2"])
def test_flows(xp: Library, kind: str, method: str, dtype: str) -> None:
    """States, rates and verdicts of several laws under one field, two heads."""
    d = 3
    cov = covariances((4,), d, dtype)
    mean = rng().normal(size=(4, d)).astype(dtype)
    options: dict[str, Any] = {"n_steps": 12, "method": method, **parameters(d, dtype, heads=2)}
    a = qk.gaussian.flow(kind, mean, cov, (0.0, 1.0), **options)
    b = qk.gaussian.flow(kind, xp.asarray(mean), xp.asarray(cov), (0.0, 1.0), **options)
    np.testing.assert_array_equal(b.t, a.t)
    close(xp.numpy(b.mean), a.mean, 8)
    close(xp.numpy(b.cov), a.cov, 8)
    close(xp.numpy(b.mean_rate), a.mean_rate, 16)
    close(xp.numpy(b.cov_rate), a.cov_rate, 16)
    close(b.eigenvalues, a.eigenvalues, 8)
    for name in ("status", "t_end", "blow_up_time", "rank", "n_steps"):
        np.testing.assert_array_equal(getattr(b, name), getattr(a, name))
    assert "on cuda:0" in str(b) and b.counts() == a.counts()


@pytest.mark.parametrize("d", [1, 2, 5, 8])
def test_a_closed_form_in_every_dimension(xp: Library, d: int) -> None:
    """TPDE 4.1 with Q = I, K = -I, V = I from the identity: 1 / (1 + 2 t); no mean, one law."""
    eye = np.eye(d)
    sol = qk.gaussian.flow(
        "softmax",
        None,
        xp.asarray(eye),
        (0, 2),
        Q=eye,
        K=-eye,
        V=eye,
        n_steps=400,
        method="rk4",
        store=100,
    )
    assert xp.numpy(sol.cov).shape == (5, d, d) and sol.status == "not settled"
    for t, cov in zip(sol.t, xp.numpy(sol.cov), strict=True):
        np.testing.assert_allclose(cov, eye / (1 + 2 * t), rtol=0, atol=1e-9)
    np.testing.assert_allclose(xp.numpy(sol.cov_rate), -2 * eye / 25, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_and_fields_of_their_own(xp: Library, dtype: str) -> None:
    """Laws (2, 3) under a field each, and one law under many fields."""
    d = 2
    r = rng()
    Q = r.normal(size=(3, d, d)).astype(dtype)
    eye = np.eye(d, dtype=dtype)
    for cov in (covariances((2, 3), d, dtype), covariances((2, 1), d, dtype), eye):
        options: dict[str, Any] = {"Q": Q, "K": eye, "V": -eye, "n_steps": 8, "store": "final"}
        options["method"] = "euler"
        a = qk.gaussian.flow("softmax", None, cov, (0.0, 0.5), **options)
        b = qk.gaussian.flow("softmax", None, xp.asarray(cov), (0.0, 0.5), **options)
        assert xp.numpy(b.cov).shape == a.cov.shape
        close(xp.numpy(b.cov), a.cov, 8)
        np.testing.assert_array_equal(b.status, a.status)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("judge", ["covariance", "law"])
def test_what_blows_up_is_told_from_what_does_not(
    xp: Library, judge: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among laws that shrink one that blows up at t = 1/2: finite states, its time, the others untouched."""
    monkeypatch.setattr(_gaussian, "_SIZES", 3 * 64)  # several looks
    eye = np.eye(2, dtype=dtype)
    K = np.stack([-eye, eye, -2 * eye])
    cov, mean = np.broadcast_to(eye, (3, 2, 2)).copy(), np.full((3, 2), 0.1, dtype)
    options: dict[str, Any] = {"Q": eye, "K": K, "V": eye, "n_steps": 500, "judge": judge}
    options["method"] = "euler"
    a = qk.gaussian.flow("softmax", mean, cov, (0, 1), **options)
    b = qk.gaussian.flow("softmax", xp.asarray(mean), xp.asarray(cov), (0, 1), **options)
    assert a.status[1] == "blew up" and b.status.tolist() == a.status.tolist()
    np.testing.assert_array_equal(b.blow_up_time, a.blow_up_time)
    np.testing.assert_array_equal(b.t_end, a.t_end)
    np.testing.assert_array_equal(b.n_steps, a.n_steps)
    assert np.isfinite(xp.numpy(b.cov)).all() and np.isfinite(xp.numpy(b.mean)).all()
    np.testing.assert_array_equal(xp.numpy(b.cov)[:, 1], a.cov[:, 1])
    close(xp.numpy(b.cov)[:, ::2], a.cov[:, ::2], 64)
    np.testing.assert_allclose(b.decay, a.decay, rtol=0, atol=1e-2 if dtype == "float32" else 1e-9)


def test_the_callers_laws_are_not_written_to(xp: Library) -> None:
    eye = np.eye(2)
    mean, cov = xp.asarray(np.ones((1, 2))), xp.asarray(eye[None])
    qk.gaussian.flow("softmax", mean, cov, (0, 1), Q=eye, K=-eye, V=eye, n_steps=3, method="euler")
    np.testing.assert_array_equal(xp.numpy(mean), np.ones((1, 2)))
    np.testing.assert_array_equal(xp.numpy(cov), eye[None])


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"kind": "sinkhorn"}, r"kind: wanted .softmax., .* for laws on a device, got 'sinkhorn'"),
        ({"method": "dopri5"}, r"method: wanted .euler., .heun., .rk4. for laws on a device"),
        ({"method": "dopri5", "n_steps": None}, r"method: wanted .euler., .heun., .rk4. for laws"),
        ({"form": "pushforward"}, r"form: wanted .covariance. for laws on a device"),
        ({"cov": np.eye(9)}, r"cov: wanted at most 8 dimensions on a device, got 9"),
        ({"cov": np.array([[1.0, 2.0], [0.0, 1.0]])}, r"cov: wanted symmetric"),
        ({"n_steps": 0}, r"n_steps: wanted at least 1"),
        ({"n_steps": 10**9}, r"store: .* more than max_memory"),
    ],
)
def test_wrong_arguments(xp: Library, changed: dict[str, Any], match: str) -> None:
    options: dict[str, Any] = {"kind": "softmax", "cov": np.eye(2), "n_steps": 2}
    options |= {"method": "euler"} | changed
    kind, cov = options.pop("kind"), options.pop("cov")
    eye = np.eye(len(cov))
    with pytest.raises(ValueError, match=match):
        qk.gaussian.flow(kind, None, xp.asarray(cov), (0, 1), Q=eye, K=eye, V=eye, **options)


def test_parameters_come_from_the_host(xp: Library) -> None:
    eye = np.eye(2)
    with pytest.raises(TypeError, match=r"Q: wanted an array on the CPU"):
        qk.gaussian.flow(
            "softmax",
            None,
            xp.asarray(eye),
            (0, 1),
            Q=xp.asarray(eye),
            K=eye,
            V=eye,
            n_steps=1,
            method="euler",
        )
    with pytest.raises(TypeError, match=r"mean: wanted an array on cuda:0 like the others"):
        qk.gaussian.flow(
            "softmax",
            np.zeros(2),
            xp.asarray(eye),
            (0, 1),
            Q=eye,
            K=eye,
            V=eye,
            n_steps=1,
            method="euler",
        )
