"""Stationary laws of chains that nearly fall apart or nearly have a period, against long doubles.

QKCORE_STATIONARY_CHAINS=N runs N chains of every kind instead of the few hundred small ones.
"""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkcore as qk
from qkcore import _aggregation, _classes, _elimination, _stationary, magnetic

from .block_chains import block_chain, log_law
from .generators import DTYPES
from .reference import Array

CAMPAIGN = int(os.environ.get("QKCORE_STATIONARY_CHAINS", "0"))
# L1 error and relative error of a block's mass. A leak of e^-600 has the logarithm -600, known to 600 eps.
LIMIT = {"float64": 1e-11, "float32": 5e-7}


def operator(scores: Array, dtype: str = "float64") -> qk.MarkovOperator:
    return qk.softmax(qk.scores.dense(scores.astype(dtype)))


def two_blocks(n: int, down: float, up: float, dtype: str = "float64") -> Array:
    Z = np.zeros((n, n))
    Z[: n // 2, n // 2 :], Z[n // 2 :, : n // 2] = down, up
    return Z.astype(dtype)


def lumped(block: Any, between: Array) -> Array:
    """The law of a chain whose scores depend on the blocks alone: that of the chain of blocks."""
    sizes = np.bincount(block)
    masses = np.exp(log_law(between + np.log(sizes)).astype(float))
    law: Array = (masses / sizes)[block]
    return law


def assert_law(got: Array, want: Array, block: Any, limit: float, about: str) -> None:
    got = got.astype(np.float64)
    assert np.abs(got - want).sum() <= limit, about
    masses, wanted = np.bincount(block, got), np.bincount(block, want)
    seen = wanted > 1e-30  # what float32 can hold
    assert (np.abs(masses - wanted)[seen] <= limit * wanted[seen]).all(), about


@pytest.fixture
def no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of every size are treated as if they were too large for an array."""
    monkeypatch.setattr(_stationary, "DIRECT", 0)
    monkeypatch.setattr(_stationary, "ELIMINATED", 0)


# ---- blocks that are hardly ever left ------------------------------------------------------------


def sizes(count: int) -> list[int]:
    """Mostly small chains, some of a few hundred states."""
    return (
        [24] * (count - count // 10 - count // 100) + [80] * (count // 10) + [320] * (count // 100)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_block_chains_against_long_doubles(dtype: str) -> None:
    """250 chains for each dtype: leaks from e^-5 to e^-600, one-way rings, stars, trees, periodic blocks."""
    for seed, n in enumerate(sizes(CAMPAIGN or 250)):
        chain = block_chain(np.random.default_rng((seed, len(dtype))), n)
        Z = chain.scores.astype(dtype)
        got = operator(Z, dtype).stationary()
        want = np.exp(log_law(Z)).astype(float)
        assert_law(got, want, chain.block, LIMIT[dtype], f"seed {seed}: {chain.about}")


@pytest.mark.parametrize(("n", "dtype"), [(700, "float64"), (2000, "float32")])
def test_large_block_chains(n: int, dtype: str) -> None:
    """Scores that depend on blocks alone: the law is that of the chain of blocks."""
    rng = np.random.default_rng(n)
    block = rng.integers(0, 5, n)
    between = -rng.uniform(100, 600, (5, 5)).astype(dtype).astype(float)
    np.fill_diagonal(between, 0.0)
    got = operator(between[np.ix_(block, block)], dtype).stationary()
    assert_law(got, lumped(block, between), block, LIMIT[dtype], f"{n} states")


@pytest.mark.skipif(not CAMPAIGN, reason="minutes: set QKCORE_STATIONARY_CHAINS")
@pytest.mark.parametrize("n", [600, 1000, 2000])
def test_large_random_block_chains(n: int) -> None:
    for seed in range(2 if n < 2000 else 1):
        chain = block_chain(np.random.default_rng((seed, n)), n)
        got = operator(chain.scores).stationary()
        want = np.exp(log_law(chain.scores)).astype(float)
        assert_law(got, want, chain.block, LIMIT["float64"], chain.about)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [100, 210])
@pytest.mark.parametrize(("down", "up"), [(-14, -17), (-33, -36), (-600, -603), (-5000, -5003)])
def test_two_blocks(n: int, down: float, up: float, dtype: str) -> None:
    """The ratio of two leaks is the ratio of the masses, however small both are, for any number of states."""
    A = operator(two_blocks(n, down, up), dtype)
    # Each row i has h states at score 0, and h states at the score of the leak.
    ratio = np.exp(up - down) * (1 + np.exp(float(down))) / (1 + np.exp(float(up)))
    share = A.stationary()[: n // 2].astype(float).sum()
    assert share == pytest.approx(ratio / (1 + ratio), rel=LIMIT[dtype])
    assert A.regime().regime == "EQ"


def test_wrong_masses_have_a_small_residual() -> None:
    """Why the residual is no test: half the mass in each block is stationary to rounding, and quite wrong."""
    A = operator(two_blocks(210, -33, -36))
    even = np.full(210, 1 / 210)
    assert np.abs(even @ A - even).sum() < 1e-14
    assert np.abs(A.stationary() - even).sum() > 0.9


@pytest.mark.parametrize("size", [2, 3, 40, 130])
def test_numbers_beyond_doubles(size: int) -> None:
    """Rates e^-2000 beside rates of order 1: the elimination notices what it lost, and logarithms do it."""
    rng = np.random.default_rng(size)
    Z = rng.normal(size=(size, size)) - 2000 * rng.integers(0, 3, (size, size))
    want = log_law(Z)
    got = _stationary.stationary_law(operator(Z), 1e-12, 100, None)
    assert np.abs(got.log_law - want).max() <= 1e-10
    with np.errstate(all="ignore"):
        found, relative = _elimination._in_doubles(
            np.where(np.eye(size, dtype=bool), -np.inf, _stationary.log_probabilities(operator(Z)))
        )
    if not np.abs(found.log_law - want).max() <= 1e-9:  # accuracy was lost, which must be reported
        assert relative > 1e-9


def test_lost_digits_never_pass_unnoticed() -> None:
    """The bound of the elimination in doubles holds for 100 chains with leaks down to e^-2000."""
    for seed in range(100):
        chain = block_chain(np.random.default_rng(seed), 40, leaks=(5, 2000))
        rates = _stationary.log_probabilities(operator(chain.scores))
        np.fill_diagonal(rates, -np.inf)
        with np.errstate(all="ignore"):
            found, _ = _elimination._in_doubles(rates)
        if not found.error <= 1e-3:
            continue
        error = np.abs(np.exp(found.log_law) - np.exp(log_law(chain.scores)).astype(float)).sum()
        assert error <= found.error + 1e-11, chain.about


@given(st.integers(0, 10**6))
def test_laws_do_not_depend_on_the_order_of_states(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain = block_chain(rng, 20)
    order = rng.permutation(len(chain.block))
    law = operator(chain.scores).stationary()
    turned = operator(chain.scores[np.ix_(order, order)]).stationary()
    np.testing.assert_allclose(turned, law[order], rtol=1e-11, atol=1e-300)


def test_panels_agree_with_one_state_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    Z = np.random.default_rng(0).normal(size=(131, 131)) * 4
    laws = []
    for panel in (1, 7, 48, 200):
        monkeypatch.setattr(_elimination, "_PANEL", panel)
        laws.append(_elimination.eliminate(Z.copy()).log_law)
    for law in laws[1:]:
        np.testing.assert_allclose(law, laws[0], atol=1e-12)


# ---- compositions --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_compositions_that_nearly_fall_apart(dtype: str) -> None:
    """The law of A B by elimination of the product in logarithms, and of powers as that of the factor."""
    rng = np.random.default_rng(0)
    block = rng.integers(0, 3, 30)
    near = np.where(block[:, None] == block, 0.0, -150.0)
    Y, Z = (near + rng.normal(size=(30, 30)) for _ in range(2))
    Y, Z = Y.astype(dtype), Z.astype(dtype)
    logs = []
    for scores in (Y, Z):
        wide = scores.astype(np.longdouble)
        logs.append(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))
    product = np.log(np.exp(logs[0]) @ np.exp(logs[1]))
    A, B = operator(Y, dtype), operator(Z, dtype)
    got = (A @ B).stationary()
    assert_law(got, np.exp(log_law(product)).astype(float), block, LIMIT[dtype], "A B")
    np.testing.assert_array_equal((A**3).stationary(), A.stationary())


def test_powers_of_a_periodic_chain_fall_apart() -> None:
    """The square of a chain with period 2 has two closed classes, although its factor has one law."""
    turn = np.log(np.roll(np.eye(4), 1, axis=1) + 1e-300)
    turn[turn < -600] = -np.inf
    A = operator(turn)
    np.testing.assert_allclose(A.stationary(), 0.25, rtol=1e-14)
    np.testing.assert_allclose((A**3).stationary(), 0.25, rtol=1e-14)
    with pytest.raises(qk.ReducibleChainError, match="2 in all"):
        (A**2).stationary()
    with pytest.raises(qk.ReducibleChainError, match="4 in all"):
        (A**0).stationary()


# ---- without an array ----------------------------------------------------------------------------


def judged(A: qk.MarkovOperator | qk.Composition) -> tuple[Array, bool]:
    """A law, and whether it came without a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        law = A.stationary()
    assert all(w.category is qk.ConvergenceWarning for w in caught)
    return law, not caught


@pytest.mark.usefixtures("no_arrays")
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_alone_are_right_or_say_so(dtype: str) -> None:
    """The same chains by aggregation: whatever comes without a warning is as right as it says."""
    count = CAMPAIGN or 30
    silent = 0
    for seed in range(count):
        chain = block_chain(np.random.default_rng((seed, 77)), 40)
        Z = chain.scores.astype(dtype)
        got, trusted = judged(operator(Z, dtype))
        silent += trusted
        if trusted:
            want = np.exp(log_law(Z)).astype(float)
            limit = 1e4 * float(np.finfo(dtype).eps)
            assert np.abs(got - want).sum() <= limit, f"seed {seed}: {chain.about}"
    assert silent >= 0.9 * count


@pytest.mark.usefixtures("no_arrays")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", [0.05, 1.0, 3.0])
def test_clusters_of_points(beta: float, dtype: str) -> None:
    """Attention among three clusters, from points: leaks from e^-4 to e^-600, no array of any size."""
    rng = np.random.default_rng(0)
    where = rng.integers(0, 3, 120)
    centres = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 14.0]])
    X = (centres[where] + 0.3 * rng.normal(size=(120, 2))).astype(dtype)
    W = np.array([[0.02, 0.05], [-0.05, 0.01]], dtype)
    s = qk.scores.distance(X, beta=beta) + qk.scores.dot(X, W=W)
    Y = X.astype(np.longdouble)
    square = ((Y[:, None] - Y) ** 2).sum(axis=2)
    exact = -np.longdouble(beta) * square + Y @ W.astype(np.longdouble) @ Y.T
    got, trusted = judged(qk.softmax(s))
    assert trusted
    # Projected points are rounded to the dtype before they are multiplied.
    limit = 1e-11 if dtype == "float64" else 2e-5
    assert_law(got, np.exp(log_law(exact)).astype(float), where, limit, f"beta {beta}")


@pytest.mark.usefixtures("no_arrays")
def test_an_untrusted_law_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step is not enough: a warning with the estimate, an error or nothing, as on_fail says."""
    monkeypatch.setattr(_aggregation, "_ROUNDS", 0)
    A = operator(two_blocks(300, -33, -36))
    with pytest.warns(qk.ConvergenceWarning, match="may be wrong by .*forgets its start"):
        A.stationary(max_iter=1)
    with pytest.raises(qk.ConvergenceError, match="estimated L1 error"):
        A.stationary(max_iter=1, on_fail="raise")
    assert A.stationary(max_iter=1, on_fail="ignore").shape == (300,)
    with pytest.raises(ValueError, match="on_fail: wanted"):
        A.stationary(on_fail="perhaps")
    with pytest.warns(qk.ConvergenceWarning):
        report = A.regime()
    assert report.law_error is not None and report.law_error > 1e-3
    assert "error of the law" in str(report)


@pytest.mark.usefixtures("no_arrays")
@pytest.mark.parametrize("n", [3, 30, 300])
def test_cycles_without_an_array(n: int) -> None:
    """Half steps settle where whole ones go round for ever."""
    turn = np.full((n, n), -np.inf)
    turn[np.arange(n), (np.arange(n) + 1) % n] = 0.0
    got, trusted = judged(operator(turn))
    np.testing.assert_allclose(got, 1 / n, rtol=1e-9)
    assert trusted or n > 30


# ---- absorbing states and closed classes ---------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 20, 300])
def test_causal_attention_is_trivial_at_its_law(n: int, dtype: str) -> None:
    """DAC-8: the first token absorbs; "EQ" holds there and says nothing, and the report says that."""
    X = np.random.default_rng(0).normal(size=(n, 3)).astype(dtype)
    A = qk.softmax(qk.scores.dot(X).causal())
    report = A.regime()
    assert report.regime == "EQ" and report.trivial
    assert report.absorbing == (0,) and report.n_closed == 1
    np.testing.assert_array_equal(report.recurrent, [0])
    text = str(report)
    assert "state 0 absorbs the chain" in text and "detailed balance" not in text
    assert "pass rho=" in text and f"{n - 1} of {n}" in text
    away = A.regime(np.full(n, 1 / n, dtype))
    assert away.regime == "NE" and not away.trivial and away.absorbing == (0,)
    assert "absorbs" in str(away) and "pass rho=" not in str(away)


def test_reports_of_other_chains_do_not_speak_of_classes() -> None:
    A = operator(np.random.default_rng(0).normal(size=(9, 9)))
    report = A.regime()
    assert report.absorbing == () and report.n_closed == 1 and not report.trivial
    assert report.recurrent is not None and len(report.recurrent) == 9
    assert "absorb" not in str(report) and "transient" not in str(report)


def test_several_closed_classes_are_counted() -> None:
    """Two absorbing states and one class of two; a transient state leads to all of them."""
    Z = np.full((5, 5), -np.inf)
    Z[0, 0] = Z[1, 1] = 0.0
    Z[2:4, 2:4] = 0.0
    Z[4] = 0.0
    A = operator(Z)
    with pytest.raises(qk.ReducibleChainError, match="3 in all"):
        A.stationary()
    report = A.regime(np.full(5, 0.2))
    assert report.n_closed == 3 and report.absorbing == (0, 1)
    np.testing.assert_array_equal(report.recurrent, [0, 1, 2, 3])
    assert "no unique stationary law" in str(report)
    assert A.regime(np.array([0.5, 0.5, 0, 0, 0])).trivial


@pytest.mark.parametrize("how", ["array", "walk"])
def test_classes_of_random_masks(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed classes against the powers of the matrix of edges, by both ways of finding them."""
    if how == "walk":
        monkeypatch.setattr(_classes, "ARRAY", 0)
    rng = np.random.default_rng(0)
    for _ in range(60):
        n = int(rng.integers(1, 12))
        edges = (rng.random((n, n)) < rng.uniform(0.05, 0.5)) | np.eye(n, dtype=bool)
        scores = rng.normal(size=(n, n)) * 300
        A = qk.softmax(qk.scores.dense(scores.astype(np.float32)).masked(edges))
        reach = np.linalg.matrix_power(edges.astype(float), n) > 0
        want = {
            tuple(np.flatnonzero(reach[i]).tolist())
            for i in range(n)
            if (reach[:, i] >= reach[i]).all()
        }
        found = _classes.find_classes(A)
        got = {tuple(states.tolist()) for states in found.closed}
        if how == "array":
            assert got == want
        else:
            assert got <= want
        first = int(found.closed[0][0])
        np.testing.assert_array_equal(found.apart, np.flatnonzero(~reach[:, first]))
        assert (len(found.apart) == 0) == (len(want) == 1)
        for state in range(n):
            np.testing.assert_array_equal(A.leads_to(state), reach[:, state])


@pytest.mark.parametrize(("low", "high"), [(-3, 2), (-2, 0), (0, 1), (0, 0), (-1, 1)])
def test_classes_of_windows(low: int, high: int) -> None:
    """Bands in closed form, as from the array."""
    s = qk.scores.dense(np.zeros((7, 7))).window(-low, high)
    banded = _classes.find_classes(qk.softmax(s))
    general = _classes._of_array(np.isfinite(s.to_numpy()))
    for a, b in zip(banded.closed, general.closed, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(banded.apart, general.apart)


def test_transient_states_are_left_out_of_the_elimination() -> None:
    """A closed class that nearly falls apart, with transient states that lead to it."""
    Z = np.full((40, 40), -np.inf)
    Z[:30, :30] = two_blocks(30, -300, -303)
    Z[30:] = 0.0
    order = np.random.default_rng(0).permutation(40)
    law = operator(Z[np.ix_(order, order)]).stationary()
    back = np.empty(40)
    back[order] = law
    assert (back[30:] == 0).all()
    assert back[:15].sum() == pytest.approx(1 / (1 + np.exp(3.0)), rel=1e-12)


# ---- what follows from a law ---------------------------------------------------------------------


@pytest.mark.parametrize("beta", [5.0, 20.0, 60.0])
def test_log_flux_of_laws_that_underflow(beta: float) -> None:
    """DAC-11, eq 76: at large beta the law of 30 points has zeros in float32; its log-flux is finite."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X, W = rng.normal(size=(30, 2)), rng.normal(size=(2, 2))
        single = qk.softmax(qk.scores.dot(X.astype("float32"), W=W.astype("float32"), beta=beta))
        Y, V = (a.astype("float32").astype(np.longdouble) for a in (X, W))
        scores = np.longdouble(beta) * Y @ V @ Y.T
        law = log_law(scores)
        flow = law[:, None] + scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        want = (flow - flow.T).astype(float)
        top = float(np.abs(scores).max())
        got = magnetic.log_flux(single).to_numpy()
        np.testing.assert_allclose(got, want, atol=20 * float(np.finfo("float32").eps) * top)


@pytest.mark.parametrize("dtype", DTYPES)
def test_entropy_production_of_laws_that_underflow(dtype: str) -> None:
    """A cycle of three likely states beside states of probability e^-200 and less: that of the cycle."""
    turn = np.log(np.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]))
    Z = np.zeros((6, 6))
    Z[:3, :3] = turn
    Z[:3, 3:] = [-200, -400, -900]
    Z = Z.astype(dtype)
    A = operator(Z, dtype)
    want = 0.7 * np.log(8)
    rel = 1e-12 if dtype == "float64" else 1e-5
    assert A.entropy_production() == pytest.approx(want, rel=rel)
    report = A.regime()
    assert report.regime == "NESS" and report.entropy_production == pytest.approx(want, rel=rel)
    # Two steps turn the other way: from i to i + 2 with 0.66, to i + 1 with 0.17.
    two = operator(Z[:5, :5], dtype)
    twice = (two @ two).entropy_production()
    assert twice == pytest.approx((0.66 - 0.17) * np.log(0.66 / 0.17), rel=10 * rel)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tol", [None, 1e-3])
def test_operators_of_bridges_know_their_tolerance(tol: float | None, dtype: str) -> None:
    """DAC-8: a converged bridge from mu to mu is stationary at mu, with or without currents."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)).astype(dtype)
    mu = rng.uniform(0.2, 1, 60)
    mu = (mu / mu.sum()).astype(dtype)
    odd = rng.normal(size=(2, 2)).astype(dtype)
    for s, want in ((qk.scores.distance(X), "EQ"), (qk.scores.dot(X, W=odd), "NESS")):
        options: dict[str, Any] = {} if tol is None else {"tol": tol}
        b = qk.bridge(s, mu, mu, **options)
        assert b.converged
        for chain in (b.forward, b.backward, b.forward.T, b.forward @ b.forward):
            report = chain.regime(mu)
            assert report.regime == want, str(report)
            assert report.stationarity_tol >= 10 * b.error * (1 - 1e-12)
        sinkhorn = qk.sinkhorn(s, **options)
        assert sinkhorn.regime().regime == want
        assert sinkhorn.T.regime().regime == want
    # Far from mu, the tolerance of the bridge does not hide that the chain moves.
    other = np.roll(mu, 7)
    assert b.forward.regime(other).regime == "NE"


def test_a_bridge_that_did_not_converge_lends_no_tolerance() -> None:
    X = np.random.default_rng(0).normal(size=(30, 2))
    mu = np.full(30, 1 / 30)
    b = qk.bridge(qk.scores.distance(X, beta=20.0), mu, mu, max_iter=1, on_fail="ignore")
    assert not b.converged
    assert b.forward.regime(mu).stationarity_tol < 1e-12


# ---- interrupts ----------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_ctrl_c_during_an_elimination(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of NumPy is short: a signal that comes within the elimination ends it there."""
    n = 2000
    A = operator(two_blocks(n, -33, -36))
    panels: list[int] = []
    original = _elimination._panel

    def signalled(a: Array, low: int, high: int, small: Array) -> Array:
        panels.append(high)
        if len(panels) == 2:
            signal.raise_signal(signal.SIGINT)
        return original(a, low, high, small)

    monkeypatch.setattr(_elimination, "_panel", signalled)
    with pytest.raises(KeyboardInterrupt):
        A.stationary()
    assert len(panels) == 2
    # No product has more than _FLOPS operations; a core does some 10^10 per second.
    blocks = _elimination._row_blocks(n, 2 * n * _elimination._PANEL, _elimination._FLOPS)
    assert max(b.stop - b.start for b in blocks) * 2 * n * _elimination._PANEL <= 1e8
