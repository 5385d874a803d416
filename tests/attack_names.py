"""Every public name: the family that attacks it at random, or why none does.

A line is a family (a function of tests/attack_*.py) or a reason, a colon, and names; lines that are
indented go on. tests/test_attack_functions.py compares the names with the public ones, and runs the
families to see that they call what stands beside them, so that a new name cannot be forgotten here.

Families, each with its oracle in its file:

operators: softmax, total_variation, MarkovOperator
one_sided: semi_relaxed
dynamics: scores.dense
divergences: divergence.Divergence, divergence.backward, divergence.forward, divergence.gram,
    divergence.squared_distance, scores.backward, scores.distance, scores.dot, scores.forward
diffusion: diffusion.operator, isb.kde_log_density
factors: LowRank, ProductOfFactors, poe
simplex: simplex.Mobility, simplex.entropy, simplex.free_energy, simplex.kl_prox,
    simplex.project_to_simplex, simplex.from_logits
temperatures: schedule.temperature_for_entropy
transport: measure.w1, wasserstein
measures: measure.Measure, measure.boltzmann_gibbs, measure.kl_divergence
gaussians: gaussian.bures, isb.gaussian_w2
magnetic: magnetic.MagneticLaplacian, magnetic.MagneticOperator, magnetic.gauge_transform,
    magnetic.hadamard, magnetic.laplacian, magnetic.operator, magnetic.phases
fluxes: magnetic.from_attention, magnetic.log_flux
diffusion_spectra: diffusion.DiffusionMap, diffusion.Laplacian, diffusion.diffusion_distance,
    diffusion.laplacian, diffusion.symmetric_conjugate
bistochastic: diffusion.bistochastic, sinkhorn
powers: Composition
chains: BridgeChain, bridge_chain
own_kernels: GivenBridge
masks: usable_entries
isb: isb.BarycentricMap, isb.barycentric, isb.euler_step, isb.heat_flow, isb.step
simplex_flows: simplex.entropy_rate, simplex.pf_ode
mobilities: simplex.EffectiveMobility
entropic_gaussians: gaussian.entropic_bures, gaussian.entropic_ot
gaussian_flows: gaussian.flow, gaussian.velocity
particles: AttentionField, flow
depths: diagnostics.depth.BVDetector, diagnostics.depth.Constants, diagnostics.depth.DepthBudget,
    diagnostics.depth.budget, diagnostics.depth.detect
drifts: diagnostics.drift.RidgeDrift, diagnostics.drift.transitions
rotations: diagnostics.rotation.on_simplex, diagnostics.rotation.rotational_energy,
    diagnostics.rotation.simplex_points
curvatures: diagnostics.curvature.curvature, diagnostics.curvature.w1
moves: diagnostics.curvature.locking_bound, schedule.motion_bound
slopes: diagnostics.duality.weak_error_slope
scores: diagnostics.score.gaussian_score, diagnostics.score.mixture_score
observables: observables.angles, observables.clusters, observables.field_lipschitz_bound,
    observables.interaction_energy, observables.radius
contractions: measure.AttentionJacobian, measure.AttentionKernel, measure.Box, measure.DotPotential,
    measure.contraction, measure.lipschitz, measure.tau_bound
neighbours: measure.GaussianPotential, measure.gaussian_lipschitz, measure.neighbourhood,
    measure.softmatch_perturbation
lines: gaussian.l2_line, gaussian.sinkhorn_line, gaussian.softmax_blow_up_line, gaussian.softmax_line,
    isb.gaussian_slope, isb.gaussian_variances
gaussian_forms: gaussian.Commuting, gaussian.bures_rate, gaussian.commuting, gaussian.sinkhorn_energy,
    gaussian.sinkhorn_gradient, gaussian.twisted_energy
approximations: directional_experts, divergence.HermitianPartition, divergence.hermitian_partition,
    divergence.qk_metric, low_rank, nystrom, DirectionalExperts
kernels: KernelOperator, kernel
choices: diffusion.choose_beta, isb.auto_theta, isb.fit_rate, isb.silverman, isb.steps_for,
    isb.surrogate_weights
laws: measure.maximum_entropy, measure.MaximumEntropy, measure.moment_projection, measure.softmatch,
    measure.w1_bracket, observables.conditional_wasserstein, simplex.jko

Reasons:

Bridges, attacked by tests/attack.py: bridge
Sums over scores, attacked by tests/test_engine_attack.py: Scores
Fields of what a function returns, judged with it: CurrentNorms, FactoredBridge, ParticleFlow,
    Regime, SchrodingerBridge, Barycenter, Batch, LargestWeights,
    AdaptiveIPF, NegativeEntries, diagnostics.Check, diagnostics.Report,
    diagnostics.curvature.Curvature, diagnostics.curvature.CurvatureSweep,
    diagnostics.curvature.EVI, diagnostics.curvature.Locking, diagnostics.depth.BVStep,
    diagnostics.depth.FiniteDepth, diagnostics.depth.Interface, diagnostics.depth.Segment,
    diagnostics.depth.Segmentation, diagnostics.duality.Parity, diagnostics.duality.Path,
    diagnostics.duality.PooledParity, diagnostics.duality.StepDoubling,
    diagnostics.duality.WeakErrorSlope, diagnostics.rotation.Asymmetry,
    diagnostics.rotation.PathEnergy,
    diagnostics.rotation.RotationalEnergy, diagnostics.score.ScoreFit, diffusion.BetaChoice,
    gaussian.AffineVelocity, gaussian.EntropicPlan, gaussian.GaussianFlow, gaussian.Quadratic,
    gaussian.RankOne, gaussian.Stationarity, isb.BridgeFlow, isb.Rate, isb.Step, measure.Bound,
    measure.ContractionReport, measure.FixedPoint, measure.LipschitzReport, measure.LocalConstant,
    measure.PotentialConstants, measure.W1Bracket, measure.ConditionedKernel, measure.Gaussian,
    measure.ConditionedTransformer, measure.ExponentialMember, measure.GaussianMixture,
    observables.AngleStatistics,
    observables.Clusters, observables.MeanFieldConvergence, observables.Stability, simplex.JKOPath,
    simplex.PFSolution, schedule.ExitDecision, schedule.ScheduleFlow
Exceptions and warnings: ConvergenceError, ConvergenceWarning, ReducibleChainError,
    diffusion.DisconnectedWarning, measure.InfeasibleMomentsError
Interfaces that others implement: LinearMap, measure.Domain, measure.Lookup, measure.Potential,
    simplex.FittedDrift
Words for results and options: Status, Solver, Weight, RegimeName
Settings without a figure: __version__, config, get_num_threads, set_num_threads, show_config,
    diagnostics.Thresholds, diagnostics.score.available
Random by themselves, tested for their law in tests/test_duality.py: diagnostics.duality.sample_sde,
    diagnostics.duality.step_doubling, diagnostics.duality.parity
Random by themselves, tested for their law in tests/test_image_measures.py:
    diagnostics.duality.pooled_parity
Random by themselves, tested for their rate in tests/test_observables.py: observables.stability,
    observables.mean_field_convergence
A random approximation of the kernel, tested for its law in tests/test_features.py: positive_features
A network trained by stochastic gradients, tested in tests/test_score.py: diagnostics.score.fit
A network trained by gradients, tested in tests/test_drift.py: diagnostics.drift.MLPDrift
Reports put together from functions above, tested in tests/test_diagnostics.py: diagnostics.run
Maps with the spectra of operators above, tested in tests/test_magnetic_map.py: magnetic.MagneticMap
Formulas compared with references of their own in tests/test_curvature.py:
    diagnostics.curvature.curvature_sweep, diagnostics.curvature.evi, diagnostics.curvature.locking,
    diagnostics.curvature.sinkhorn_w2
Formulas compared with references of their own in tests/test_depth.py:
    diagnostics.depth.estimate_constants, diagnostics.depth.finite_depth, diagnostics.depth.segment
Formulas compared with references of their own in tests/test_drift.py: diagnostics.drift.KNNDrift
Formulas compared with references of their own in tests/test_duality.py:
    diagnostics.duality.DiffusionTensor, diagnostics.duality.reverse_drift,
    diagnostics.duality.sample_ode, diagnostics.duality.velocity
Formulas compared with references of their own in tests/test_diagnostics_controls.py:
    diagnostics.rotation.jacobian_asymmetry
Formulas compared with references of their own in tests/test_rotation.py: diagnostics.rotation.on_grid,
    diagnostics.rotation.path_energy
Formulas compared with references of their own in tests/test_gaussian_forms.py: gaussian.rank_one,
    gaussian.stationarity, gaussian.stationary_rank_bound
Formulas compared with references of their own in tests/test_isb.py: isb.Mixture,
    isb.gaussian_entropy_gap, isb.kl_flow, isb.one_step_rate, isb.ornstein_uhlenbeck, isb.uniform_rate
Formulas compared with references of their own in tests/test_measure_depth.py: measure.FeedForward,
    measure.TransformerKernel, measure.fixed_point
Formulas compared with references of their own in tests/test_measure_kernels.py: measure.FunctionLookup,
    measure.LayerNorm, measure.FunctionPotential, measure.LinearLookup, measure.TableLookup
Formulas compared with references of their own in tests/test_measure_bounds.py: measure.Ball
Formulas compared with references of their own in tests/test_measure_entropy.py:
    measure.ExponentialFamily, measure.GaussianFamily
Formulas compared with references of their own in tests/test_observables.py: observables.radius_bound,
    observables.sinkhorn_energy
Formulas compared with references of their own in tests/test_schedule.py: schedule.EarlyExit,
    schedule.EntropySchedule, schedule.entropy_flow
Formulas compared with references of their own in tests/test_low_rank_bridges.py: compression_errors
Formulas compared with references of their own in tests/test_transport.py: sinkhorn_divergence,
    barycenter, free_barycenter, c_transform
Sums and cosines of what is attacked, in tests/test_surface.py: OperatorSum, scores.cosine
Compared with references of their own in tests/test_l1.py: scores.l1
Potentials held to the total variation of their marginals in tests/test_solvers.py: adaptive_ipf
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import qkcore as qk


def listed() -> list[tuple[str, list[str]]]:
    """The lines of the docstring: a family or a reason, and its names."""
    text = re.sub(r"\n    ", " ", (__doc__ or "").split("Families, each", 1)[1])
    lines = [line for line in text.splitlines()[1:] if ": " in line]
    return [(key, names.split(", ")) for key, names in (line.split(": ", 1) for line in lines)]


def public() -> dict[str, Any]:
    """What ``__all__`` of the package and of its public modules names; experiments have their own claims."""
    found: dict[str, Any] = {}

    def walk(module: ModuleType, prefix: str) -> None:
        for name in getattr(module, "__all__", []):
            value = getattr(module, name)
            if not isinstance(value, ModuleType):
                found[prefix + name] = value
            elif name != "experiments":
                walk(value, f"{prefix}{name}.")

    walk(qk, "")
    return found
