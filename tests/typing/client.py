"""A client as mypy --strict should see it, and a script that runs: every public call once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import qkcore as qk

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: Any, _: Any) -> Any:
        return value


def scores(X: NDArray[np.float32], Y: NDArray[np.float32]) -> qk.Scores:
    W = np.eye(X.shape[-1], dtype=np.float32)
    s = qk.scores.dot(X, Y, W=W, beta=0.5) + qk.scores.dot(X, Y, W=(W, W))
    s = s + qk.scores.forward(X, Y) + qk.scores.backward(X, Y, W=None)
    s = 0.5 * (s + qk.scores.distance(X, Y)) * 2.0 / 3
    assert_type(s, qk.Scores)
    assert_type(s.T, qk.Scores)
    assert_type(s.causal(1).window(None, 3).window(left=2, right=None), qk.Scores)
    assert_type(s.shift(rows=X[:, 0]).shift(columns=Y[:, 0]), qk.Scores)
    keep = np.ones(s.shape, dtype=np.bool_)
    assert_type(s.masked(keep).key_padding(keep[0]), qk.Scores)
    assert_type(s.ragged([0, 1, s.shape[0]], np.array([0, 1, s.shape[1]])), qk.Scores)
    return s


def reductions(s: qk.Scores) -> None:
    shape: tuple[int, ...] = s.shape
    dimensions: int = s.ndim
    dtype: np.dtype[Any] = s.dtype
    lse: NDArray[Any] = s.logsumexp(axis=0, n_threads=2)
    rows, columns = s.marginals(n_threads=1)
    total: NDArray[Any] = rows + rows
    full: NDArray[Any] = s.to_numpy()
    assert full.shape == shape
    assert full.ndim == dimensions
    assert full.dtype == dtype
    assert lse.shape == columns.shape
    assert total.shape == rows.shape


def operators(s: qk.Scores, V: NDArray[np.float32], mu: NDArray[np.float32]) -> None:
    A = qk.softmax(s, axis=1)
    assert_type(A, qk.MarkovOperator)
    assert_type(A.T, qk.MarkovOperator)
    assert_type(A.scores, qk.Scores)
    axis: int = A.axis
    assert axis == 1
    right: NDArray[Any] = A @ V
    left: NDArray[Any] = mu @ A
    # NumPy's own stubs type `array @ x` before ours are asked, hence the methods beside it.
    same: NDArray[Any] = A.apply_left(mu, n_threads=1)
    assert right.shape == A.apply(V).shape
    assert left.shape == same.shape
    empty: NDArray[np.bool_] = A.empty
    per_row: list[NDArray[Any]] = [A.log_normalizer, A.entropy(), A.expected_score()]
    assert all(x.shape == empty.shape for x in per_row)

    K = qk.kernel(s, weight="sigmoid")
    assert_type(K, qk.KernelOperator)
    assert_type(K.T, qk.KernelOperator)
    weight: str = K.weight
    values: NDArray[Any] = K.T.apply(mu)
    assert weight == "sigmoid"
    assert values.shape == (K.shape[1],)


def chains(X: NDArray[np.float32], mu: NDArray[np.float32]) -> None:
    A = qk.softmax(qk.scores.dot(X))
    assert_type(A @ A, qk.Composition)
    assert_type(A**2, qk.Composition)
    assert_type(A.regime(), qk.Regime)
    assert_type(A.current_norms(mu), qk.CurrentNorms)
    assert_type(A.spectral_gap(), float)
    law: NDArray[Any] = A.stationary()
    b = qk.bridge(qk.scores.distance(X), mu, law)
    assert_type(b, qk.SchrodingerBridge)
    assert_type(b.forward, qk.MarkovOperator)
    assert_type(qk.sinkhorn(qk.scores.distance(X)), qk.MarkovOperator)
    assert_type(qk.poe(A, A), qk.Scores)
    cost: float = b.cost
    assert np.isfinite(cost)


def words_and_batches(X: NDArray[np.float32]) -> None:
    s = qk.scores.cosine(X[None])
    assert_type(s[0], qk.Scores)
    assert_type(-s - s + X[:, None, 0] * X[:, 0], qk.Scores)
    A = qk.softmax(s)
    assert_type(A[0], qk.MarkovOperator)
    assert_type(0.5 * A + A, qk.OperatorSum)
    heads: list[qk.MarkovOperator] = list(A)
    assert len(heads) == len(A)
    top = A.top_k(2)
    assert_type(top, qk.LargestWeights)
    flags: NDArray[np.bool_] = A.sinks(3.0)
    assert flags.shape == A.column_mass().shape == A.normalized_entropy().shape
    status: qk.Status = qk.bridge(s[0], solver=qk.Solver.AUTO).status
    assert status is qk.Status.CONVERGED
    name: qk.RegimeName = A[0].regime().regime
    assert name in (qk.RegimeName.EQ, qk.RegimeName.NESS)
    b = qk.bridge(cost=np.abs(X[:, :1] - X[:, 0]), epsilon=0.5)
    assert_type(b, qk.SchrodingerBridge)
    distance: float = qk.sinkhorn_divergence(X, X, epsilon=1.0) + qk.wasserstein(X, X)
    assert distance < 1e-3
    centre = qk.free_barycenter([X], X, epsilon=10.0, tol=1e-2)
    assert_type(centre, qk.Barycenter)


def factors_and_maps(X: NDArray[np.float32]) -> None:
    K = qk.kernel(qk.scores.dot(X, beta=0.1), qk.Weight.EXP)
    assert_type(K, qk.KernelOperator)
    F = qk.low_rank(qk.softmax(qk.scores.dot(X)), 2, rng=np.random.default_rng(0))
    assert_type(F, qk.LowRank)
    assert_type(qk.nystrom(K, 2, rng=1), qk.LowRank)
    batch = qk.bridge(qk.scores.dot(X[None] * np.ones((2, 1, 1), np.float32)))
    solved: list[qk.SchrodingerBridge] = [batch[k] for k in range(len(batch))]
    assert all(b.status is qk.Status.CONVERGED for b in solved)
    spectral = qk.magnetic.MagneticMap(2, W=np.triu(np.ones((3, 3), np.float32)))
    assert spectral.fit(X).transform(X).shape == (len(X), 2)
    assert qk.observables.radius(X) > 0


def gaussians(cov: NDArray[np.float64]) -> None:
    sol = qk.gaussian.flow("softmax", None, cov, (0, 1), Q=cov, K=-cov, V=cov, n_steps=3)
    assert_type(sol, qk.gaussian.GaussianFlow)
    mean, last = sol.final()
    plan = qk.gaussian.entropic_ot(mean, last, None, cov, epsilon=0.5)
    assert_type(plan, qk.gaussian.EntropicPlan)
    projected: NDArray[Any] = plan.project(mean)
    assert projected.shape == mean.shape
    counts: dict[str, int] = sol.counts()
    assert sum(counts.values()) == 1


def iterated_bridges(X: NDArray[np.float32]) -> None:
    B = qk.isb.barycentric(X, 0.5)
    assert_type(B, qk.isb.BarycentricMap)
    assert_type(qk.isb.step(X, 0.5, init=B), qk.isb.Step)
    flow = qk.isb.heat_flow(X, 0.5, 2)
    assert_type(flow, qk.isb.BridgeFlow)
    assert_type(qk.isb.kl_flow(X, 0.1, T=0.2, score=lambda x: -x), qk.isb.BridgeFlow)
    assert_type(flow.converged, bool)
    assert_type(qk.isb.Mixture.gaussian(0.0, 1.0).w2(X[:, :1]), float)


def particles(X: NDArray[np.float32]) -> None:
    V = np.eye(X.shape[1])
    field = qk.AttentionField("softmax", Q=lambda t: t * V, K=V, V=V, mask="causal")
    assert_type(qk.flow(field, X, (0.0, 1.0), "rk4", n_steps=2), qk.ParticleFlow)
    velocity: NDArray[Any] = field(X, 0.5)
    assert velocity.shape == X.shape
    assert_type(qk.wasserstein(X, X), float)


def measures(X: NDArray[np.float32]) -> None:
    mu = qk.measure.Measure(X)
    A = qk.measure.AttentionKernel(qk.measure.DotPotential(0.5))
    assert_type(mu @ A(mu), qk.measure.Measure)
    assert_type(qk.measure.w1(mu, X), float)
    assert_type(qk.measure.lipschitz(A, X).query, qk.measure.Bound)
    assert_type(qk.measure.fixed_point(A, X).converged, bool)


def simplex(z: NDArray[np.float64]) -> None:
    p = qk.simplex.from_logits(z, tau=0.5)
    J = qk.simplex.Mobility(p, 0.5)
    assert_type(qk.simplex.Mobility.from_logits(z), qk.simplex.Mobility)
    assert (J @ z).shape == J.eigenvalues().shape == z.shape
    sol = qk.simplex.pf_ode(p, lambda q, t: -q, (0.0, 0.1), t_eval=[0.1])
    assert_type(sol, qk.simplex.PFSolution)
    assert_type(qk.simplex.jko(p, z, n_steps=2), qk.simplex.JKOPath)
    assert_type(qk.simplex.EffectiveMobility(p[0], np.eye(p.shape[1])).trace, float)
    prox: NDArray[Any] = qk.simplex.kl_prox(z, p, tau=2.0)
    assert prox.shape == p.shape


def depth(z: NDArray[np.float64]) -> None:
    detector = qk.diagnostics.depth.BVDetector(threshold=1.0)
    assert_type(detector.update(z[1] - z[0]), qk.diagnostics.depth.BVStep)
    assert_type(qk.diagnostics.depth.budget(z), qk.diagnostics.depth.DepthBudget)
    assert_type(qk.diagnostics.depth.segment(z), qk.diagnostics.depth.Segmentation)
    X, y = qk.diagnostics.drift.transitions(z)
    model = qk.diagnostics.drift.RidgeDrift().fit(X, y)
    out = qk.diagnostics.depth.finite_depth(z, model)
    assert_type(out, qk.diagnostics.depth.FiniteDepth)
    assert_type(qk.diagnostics.drift.KNNDrift(3).fit(X, y), qk.diagnostics.drift.KNNDrift)
    assert_type(qk.schedule.EntropySchedule(1.0).update(z[0]), float)
    policy = qk.schedule.EarlyExit(tol=0.1, n_layers=len(z) - 1)
    assert_type(policy.update(z[0]), qk.schedule.ExitDecision)


def diagnostics(Z: NDArray[np.float64], H: NDArray[np.float64]) -> None:
    report = qk.diagnostics.run(Z, activations=H)
    assert_type(report, qk.diagnostics.Report)
    assert_type(report["P0"], qk.diagnostics.Check)
    assert_type(report.verdicts, dict[str, str])
    R = qk.diagnostics.rotation.rotational_energy(H[0], -H[0])
    assert_type(R, qk.diagnostics.rotation.RotationalEnergy)
    fit = qk.diagnostics.duality.weak_error_slope([0.4, 0.2, 0.1], [0.4, 0.2, 0.1])
    assert_type(fit.slope, float)
    w1: NDArray[np.float64] = qk.diagnostics.curvature.w1(
        [1.0, 0.0], [0.0, 1.0], positions=[0.0, 1.0]
    )
    assert w1 == 1


def pictures(X: NDArray[np.float64]) -> None:
    from matplotlib.animation import FuncAnimation
    from matplotlib.figure import Figure

    s, u = qk.scores.distance(X), np.full(len(X), 1 / len(X))
    assert_type(qk.bridge(s, u, u).plot(), Figure)
    A = qk.softmax(s)
    assert_type((A @ A).plot(axes=A.plot().axes[:2]), Figure)
    field = qk.AttentionField("softmax", Q=np.eye(2), K=np.eye(2), V=np.eye(2))
    sol = qk.flow(field, X, (0.0, 0.1))
    assert_type(sol.plot(dims=(1, 0)), Figure)
    if TYPE_CHECKING:  # an animation that is never drawn would warn
        assert_type(sol.animate(), FuncAnimation)
    assert_type(qk.isb.heat_flow(X, 0.5, 2).plot(), Figure)
    assert_type(qk.diffusion.DiffusionMap(2).fit(X).plot(color=X[:, 0]), Figure)


def settings() -> None:
    qk.set_num_threads(qk.get_num_threads())
    version = qk.config()["version"]
    assert version == qk.__version__
    qk.show_config()


def main() -> None:
    rng = np.random.default_rng(0)
    X, Y = (rng.normal(size=(n, 3)).astype(np.float32) for n in (5, 4))
    s = scores(X, Y)
    reductions(s)
    operators(s, Y, X[:, 0].copy())
    chains(X, np.full(5, 0.2, np.float32))
    words_and_batches(X)
    factors_and_maps(X)
    gaussians(np.eye(2))
    iterated_bridges(X)
    particles(X)
    measures(X)
    simplex(rng.normal(size=(3, 4)))
    depth(0.1 * rng.normal(size=(6, 5, 3)))
    walk = np.cumsum(0.01 * rng.normal(size=(4, 30, 2)), axis=0)
    diagnostics(rng.normal(size=(1, 6, 6)) + np.zeros((4, 1, 1)), walk)
    pictures(rng.normal(size=(9, 2)))
    settings()


if __name__ == "__main__":
    main()
