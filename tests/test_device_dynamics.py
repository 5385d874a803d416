"""Markov chains of device arrays: laws, currents, spectra and transforms, against the same on the CPU."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qkcore as qk
from tests.device_libraries import Library
from tests.test_device import DTYPES, close

Array = NDArray[Any]
N = 40
KINDS = ("dot", "distance", "dense", "transposed dense", "causal", "masked", "padded", "shifted")


def chains(xp: Library, kind: str, dtype: str) -> tuple[Any, Any]:
    """The same chain on the CPU and on the device; masks leave every row something."""
    r = np.random.default_rng(3)
    X, W = (r.normal(size=shape).astype(dtype) for shape in ((N, 3), (3, 3)))
    Z, c = r.normal(size=(N, N)).astype(dtype), r.normal(size=N).astype(dtype)
    mask = (r.random((N, N)) < 0.3) | np.eye(N, dtype=bool) | np.eye(N, k=1, dtype=bool)
    mask[-1, 0] = True
    keys = np.arange(N) % 5 != 1

    def build(to: Any) -> Any:
        s = qk.scores
        return {
            "dot": lambda: s.dot(to(X), W=to(W), beta=0.5),
            "distance": lambda: s.distance(to(X)),
            "dense": lambda: s.dense(to(Z)),
            "transposed dense": lambda: s.dense(to(Z)).T,
            "causal": lambda: s.dot(to(X), beta=0.2).causal(1),
            "masked": lambda: s.dense(to(Z)).masked(to(mask)),
            "padded": lambda: s.dense(to(Z)).key_padding(to(keys)),
            "shifted": lambda: s.dot(to(X), W=to(W)).shift(columns=to(c)) / 2.0,
        }[kind]()

    return qk.softmax(build(lambda a: a)), qk.softmax(build(xp.asarray))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_laws_currents_and_spectra(xp: Library, kind: str, dtype: str) -> None:
    """DAC-8 on the device: the law is an array of the caller's library, the figures are numbers."""
    A, B = chains(xp, kind, dtype)
    law = B.stationary()
    close(xp.numpy(law), A.stationary(), 10)
    P = A.to_numpy().astype(np.float64)
    assert np.abs(xp.numpy(law) @ P - xp.numpy(law)).sum() < 1e3 * np.finfo(dtype).eps
    close(xp.numpy(B.T.stationary()), A.stationary(), 10)
    rough = 1e4 * float(np.finfo(dtype).eps)
    assert B.spectral_gap() == pytest.approx(A.spectral_gap(), abs=rough)
    mine, theirs = A.current_norms(), B.current_norms()
    if mine.largest > rough:
        assert theirs.where == mine.where
    for name in ("largest", "total", "frobenius", "largest_flow", "entropy_production"):
        assert getattr(theirs, name) == pytest.approx(getattr(mine, name), rel=rough, abs=rough)
    found, wanted = B.regime(), A.regime()
    assert (found.regime, found.absorbing, found.n_closed) == (
        wanted.regime,
        wanted.absorbing,
        wanted.n_closed,
    )
    np.testing.assert_array_equal(B.leads_to(2), A.leads_to(2))
    np.testing.assert_array_equal(B.empty, A.empty)
    rho = np.full(N, 1 / N, dtype)
    assert B.regime(xp.asarray(rho)).regime == A.regime(rho).regime
    wanted = A.entropy_production(rho)
    assert B.entropy_production(xp.asarray(rho)) == pytest.approx(wanted, rel=rough)
    close(xp.numpy(B.currents(xp.asarray(rho))), A.currents(rho), 10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_doob_transforms(xp: Library, kind: str, dtype: str) -> None:
    A, B = chains(xp, kind, dtype)
    h = np.random.default_rng(1).random(N).astype(dtype)
    close(B.doob(xp.asarray(h)).to_numpy(), A.doob(h).to_numpy(), 10)
    V = np.random.default_rng(2).normal(size=(N, 2)).astype(dtype)
    close(xp.numpy(B.T.doob(xp.asarray(h)).T @ xp.asarray(V)), A.doob(h) @ V, 10)
    with pytest.raises(ValueError, match="h: wanted weights >= 0"):
        B.doob(xp.asarray(-h))


def test_products_of_chains(xp: Library) -> None:
    """Several steps are applied one after the other; their law needs vectors only."""
    A, B = chains(xp, "dot", "float64")
    C, D = chains(xp, "dense", "float64")
    V = np.random.default_rng(2).normal(size=(N, 2))
    close(xp.numpy((B @ D) @ xp.asarray(V)), (A @ C) @ V, 10)
    close(xp.numpy((B @ D).stationary()), (A @ C).stationary(), 10)
    close(xp.numpy((B**3).stationary()), A.stationary(), 10)
    assert (B @ D).regime().regime == (A @ C).regime().regime


def test_visits_run_on_the_device(xp: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large chains are multiplied on the device: no product of the CPU engine is asked for."""
    from qkcore import _host, _stationary

    monkeypatch.setattr(_stationary, "ELIMINATED", 10)
    monkeypatch.setattr(_stationary, "DIRECT", 10)
    A, B = chains(xp, "dot", "float64")
    wanted = A.stationary()

    def refuse(*_: object) -> Any:
        raise AssertionError("the CPU engine was asked")

    monkeypatch.setattr(_host.cpu, "reduce_rows", refuse)
    close(xp.numpy(B.stationary()), wanted, 100)
    with pytest.raises(AssertionError, match="the CPU engine was asked"):
        A.stationary()


def test_short_floats_are_refused(xp: Library) -> None:
    X = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float16)
    A = qk.softmax(qk.scores.dot(xp.asarray(X)))
    with pytest.raises(TypeError, match=r"operator: wanted float32 or float64 .* got float16"):
        A.stationary()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", ["auto", "alternating", "newton", "anderson", "annealed"])
def test_bridges_over_several_steps(xp: Library, solver: str, dtype: str) -> None:
    """DAC-7: every solver, on steps of different sizes; what follows from the result is on the device."""
    r = np.random.default_rng(4)
    X = [r.normal(size=(n, 2)).astype(dtype) for n in (7, 9, 6)]
    mu, nu = (np.full(n, 1 / n, dtype) for n in (7, 6))

    def steps(to: Any) -> list[Any]:
        return [
            qk.scores.distance(to(X[0]), to(X[1]), beta=0.5),
            qk.scores.distance(to(X[1]), to(X[2])),
        ]

    d = xp.asarray
    a = qk.bridge_chain(steps(lambda x: x), mu, nu, solver=solver)
    b = qk.bridge_chain(steps(d), d(mu), d(nu), solver=solver)
    assert a.converged and b.converged and b.status == a.status
    for mine, theirs in zip(a.marginals, b.marginals, strict=True):
        np.testing.assert_allclose(xp.numpy(theirs), mine, atol=4 * a.tol)
    for mine, theirs in zip(a.kernels, b.kernels, strict=True):
        np.testing.assert_allclose(theirs.to_numpy(), mine.to_numpy(), atol=40 * a.tol)
    again = qk.bridge_chain(steps(d), d(mu), d(nu), init=b)
    assert again.converged and again.n_iter <= 2
    with pytest.raises(ValueError, match=r"kernels\[1\]: wanted scores on cuda:0"):
        qk.bridge_chain([steps(d)[0], steps(lambda x: x)[1]], d(mu), d(nu))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_diffusion_operators(xp: Library, alpha: float, dtype: str) -> None:
    """DAC-5: operators of points on the device, their conjugates, distances between laws."""
    X = np.random.default_rng(5).normal(size=(30, 2)).astype(dtype)
    P = qk.diffusion.operator(X, beta=0.7, alpha=alpha)
    Q = qk.diffusion.operator(xp.asarray(X), beta=0.7, alpha=alpha)
    close(Q.to_numpy(), P.to_numpy(), 4)
    S, T = qk.diffusion.symmetric_conjugate(P), qk.diffusion.symmetric_conjugate(Q)
    close(T.to_numpy(), S.to_numpy(), 4)
    close(xp.numpy(T @ xp.asarray(X)), S @ X, 4)
    found = qk.diffusion.diffusion_distance(Q, 0, [1, 2, 3], 2)
    close(found, qk.diffusion.diffusion_distance(P, 0, [1, 2, 3], 2), 100)
    close(xp.numpy(Q.stationary()), P.stationary(), 4)
    B = qk.diffusion.bistochastic(xp.asarray(X), beta=0.7)
    assert np.abs(B.to_numpy().sum(axis=0) - 1).max() < 30 * 1e-5


@pytest.mark.parametrize("bandwidth", ["global", "self-tuning", "variable"])
@pytest.mark.parametrize("n", [40, 300])
def test_diffusion_maps(xp: Library, n: int, bandwidth: str) -> None:
    """Fitted attributes are NumPy's; coordinates are arrays of the library that X came from."""
    r = np.random.default_rng(6)
    X, new = r.normal(size=(n, 2)), r.normal(size=(5, 2))
    options: dict[str, Any] = {"bandwidth": bandwidth, "alpha": 0.5, "n_neighbors": 5}
    mine = qk.diffusion.DiffusionMap(3, **options).fit(X)
    theirs = qk.diffusion.DiffusionMap(3, **options)
    found = theirs.fit_transform(xp.asarray(X))
    close(xp.numpy(found), mine.embedding_, 1e4)
    assert isinstance(theirs.embedding_, np.ndarray) and not theirs.materialized_
    close(xp.numpy(theirs.transform(xp.asarray(new))), mine.transform(new), 1e4)
    close(xp.numpy(theirs.eigenfunctions(xp.asarray(new))), mine.eigenfunctions(new), 1e4)
    close(theirs.transform(new), mine.transform(new), 1e4)


def test_given_weights_and_targets_of_diffusion_maps(xp: Library) -> None:
    """Functions are given the points as NumPy's arrays; neighbours are refused by name."""
    X = np.random.default_rng(7).normal(size=(60, 2))
    for options in ({"weights": np.exp(X[:, 0])}, {"target": lambda x: np.exp(-(x[:, 0] ** 2))}):
        mine = qk.diffusion.DiffusionMap(2, beta=1.0, **options).fit(X)
        theirs = qk.diffusion.DiffusionMap(2, beta=1.0, **options).fit(xp.asarray(X))
        close(theirs.embedding_, mine.embedding_, 1e4)
        close(xp.numpy(theirs.transform(xp.asarray(X[:5]))), mine.transform(X[:5]), 1e4)
    with pytest.raises(TypeError, match="neighbors: wanted None for points on cuda"):
        qk.diffusion.DiffusionMap(2, beta=1.0, neighbors=9).fit(xp.asarray(X))
    sparse = qk.diffusion.DiffusionMap(2, beta=1.0, neighbors=9).fit(X)
    with pytest.raises(TypeError, match="X: wanted points on the CPU for a map of neighbors"):
        sparse.transform(xp.asarray(X))


@pytest.mark.parametrize("dtype", DTYPES)
def test_notebooks_and_pictures(xp: Library, dtype: str) -> None:
    """What is shown of results on a device is what is shown of the same on the CPU, and where they are."""
    pytest.importorskip("matplotlib")
    r = np.random.default_rng(5)
    X, u = r.normal(size=(9, 2)).astype(dtype), np.full(9, 1 / 9, dtype)
    place = qk.scores.distance(xp.asarray(X)).device
    solved = {"float32": 1e-5, "float64": 1e-8}[
        dtype
    ]  # plans may differ as far as the tolerances of bridges allow

    def shown(result: Any) -> dict[str, str]:
        rows = ET.fromstring(result._repr_html_()).iter("tr")
        return {"".join(a.itertext()): "".join(b.itertext()) for a, b in rows}

    def results(to: Any) -> tuple[Any, ...]:
        s = qk.scores.distance(to(X)).causal(4)
        eye = np.eye(2, dtype=dtype)
        field = qk.AttentionField("softmax", Q=eye, K=eye, V=-eye)
        flow = qk.flow(field, to(X), (0.0, 1.0), "rk4", n_steps=5)
        return s, qk.softmax(s), qk.bridge(qk.scores.distance(to(X)), to(u), to(u)), flow

    for mine, theirs in zip(results(lambda a: a), results(xp.asarray), strict=True):
        wanted, found = shown(mine), shown(theirs)
        assert wanted.get("where", "CPU") == "CPU" and found.get("where", place) == place
        for name in {"shape", "dtype", "kind", "terms", "status", "steps"} & set(wanted):
            assert found[name] == wanted[name]
        if hasattr(mine, "plot"):
            for a, b in zip(mine.plot().axes, theirs.plot().axes, strict=True):
                for left, right in zip(a.images, b.images, strict=True):
                    pair = (np.ma.filled(image.get_array(), 0) for image in (right, left))
                    np.testing.assert_allclose(*pair, rtol=0, atol=solved)
