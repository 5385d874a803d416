"""AMAP- and DMAP-DDPM on the Swiss roll (DAC-13, appendix D.2, figure 2; errata 2, 3, 4).

Every model is trained with several seeds, as printed and corrected. Training goes in rounds: all models up
to the first evaluation, then all up to the second, and so on. So an unfinished run has comparable results.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._configs import Config, positive
from .._errors import ExperimentError, unknown
from ._data import VARIANTS, cosine_schedule, standardize, swiss_roll, temperatures
from ._measures import chamfer, mmd2
from ._show import claims, plot, tables
from ._verdict import summarize

if TYPE_CHECKING:
    from .._run import Run
    from ._denoiser import State, Trainer

__all__ = ["check", "claims", "compute", "plot", "tables"]

Array = npt.NDArray[np.float64]


def check(config: Config) -> None:
    """Refuses settings with which no model can be trained."""
    positive(
        config,
        *("n_seeds", "n_data", "timesteps", "blocks", "heads", "d_model", "batch", "chunk"),
        *("amap_steps", "dmap_steps", "evaluate_at", "mmd_sigma", "learning_rate", "beta_max"),
    )
    positive(config, "n_samples", "n_data", "timesteps", least=1)
    for variant in config["variants"]:
        if variant not in VARIANTS:
            raise unknown("variant", variant, VARIANTS)
    if config["d_model"] % config["heads"]:
        raise ExperimentError(
            f"d_model: wanted a multiple of heads = {config['heads']}, got {config['d_model']}"
        )
    if not 0 <= config["ema"] < 1:
        raise ExperimentError(f"ema: wanted a number from 0 to below 1, got {config['ema']}")


def compute(config: Config, run: Run) -> None:
    """Trains, samples and measures; writes the results so far after every evaluation."""
    raw = swiss_roll(config["n_data"], config["noise"], config["data_seed"])
    data = standardize(raw, config["standardize_epsilon"])
    run.write_csv("data", _points(data.points))
    fresh = swiss_roll(config["n_samples"], config["noise"], config["data_seed"] + 10_000)
    floor = _measure(data.apply(fresh), data.points, config)
    _write_schedules(config, run)
    trainers = {
        (model, variant): _trainer(model, variant, data.points, config)
        for variant in config["variants"]
        for model in ("amap", "dmap")
    }
    rows: list[dict[str, Any]] = []
    jobs = _jobs(config)
    for model, variant, seed, stop in run.progress(jobs, "evaluations"):
        key = f"{model}-{variant}-{seed}-{stop}"
        job = _Job(trainers[model, variant], f"{model}-{variant}-{seed}", seed, data.points, config)
        found = run.stage(key, partial(job.reach, stop, run))
        rows.append({"model": model, "variant": variant, "seed": seed, "step": stop, **found})
        run.write_csv("evaluations", rows)
        metrics = summarize(rows, floor, config)
        metrics["complete"] = len(rows) == len(jobs)
        run.write_metrics(metrics)
    _write_samples(trainers, config, run)


def _jobs(config: Config) -> list[tuple[str, str, int, int]]:
    """(model, variant, seed, step) of every evaluation, in the order in which they are reached."""
    seeds = [config["seed"] + k for k in range(config["n_seeds"])]
    last = {m: config[f"{m}_steps"] for m in ("amap", "dmap")}
    stops = sorted({s for s in config["evaluate_at"] if s <= max(last.values())} | {*last.values()})
    return [
        (model, variant, seed, stop)
        for stop in stops
        for seed in seeds
        for variant in config["variants"]
        for model in ("amap", "dmap")
        if stop <= last[model]
    ]


def _trainer(model: str, variant: str, points: Array, config: Config) -> Trainer:
    from ._denoiser import Architecture, Recipe, Trainer

    return Trainer(
        Architecture(
            kind=model,
            d_model=config["d_model"],
            heads=config["heads"],
            blocks=config["blocks"],
            symmetrized=model == "amap" or variant == "corrected",  # AMAP has no metric
        ),
        cosine_schedule(config["timesteps"], config["offset"], config["beta_max"], variant),
        temperatures(config["timesteps"], config["lambda_min"], config["lambda_max"]),
        points,
        Recipe(config["batch"], config["learning_rate"], config["ema"]),
    )


@dataclass(frozen=True)
class _Job:
    """One model with one seed, whose training continues from its checkpoint."""

    trainer: Trainer
    key: str
    seed: int
    points: Array
    config: Config

    def _resume(self, run: Run) -> tuple[State, int]:
        saved = run.load_arrays(self.key)
        if saved is None:
            return self.trainer.start(self.seed), 0
        return self.trainer.unpack(saved), int(saved["step"])

    def reach(self, stop: int, run: Run) -> dict[str, float]:
        """Trains up to ``stop``, saving after every chunk, then samples and measures."""
        state, step = self._resume(run)
        if step > stop:  # this evaluation was added later, so training is repeated from the start
            state, step = self.trainer.start(self.seed), 0
        loss, size = float("nan"), self.config["chunk"]
        for start in run.progress(range(step, stop, size), f"{self.key} to {stop}"):
            end = min(start + size, stop)
            state, loss = self.trainer.advance(state, self.seed, start, end)
            if not np.isfinite(loss):
                raise FloatingPointError(f"{self.key}: the loss is {loss} at step {end}")
            run.save_arrays(self.key, {**self.trainer.pack(state), "step": np.array(end)})
        samples = self.trainer.sample(state, self.seed, self.config["n_samples"])
        if not np.isfinite(samples).all():
            raise FloatingPointError(f"{self.key}: samples at step {stop} are not finite")
        run.save_arrays(f"{self.key}-samples", {"samples": samples.astype(np.float32)})
        return {"loss": loss, **_measure(samples, self.points, self.config)}


def _measure(samples: Array, points: Array, config: Config) -> dict[str, float]:
    there, back = chamfer(samples, points)
    return {
        "mmd2": mmd2(samples, points, config["mmd_sigma"]),
        "chamfer": there + back,
        "chamfer_to_data": there,
        "chamfer_to_samples": back,
    }


def _write_schedules(config: Config, run: Run) -> None:
    rows = []
    for variant in VARIANTS:
        s = cosine_schedule(config["timesteps"], config["offset"], config["beta_max"], variant)
        rows += [
            {"variant": variant, "t": t + 1, "beta": s.beta[t], "alpha_bar": s.alpha_bar[t]}
            for t in range(config["timesteps"])
        ]
    run.write_csv("schedule", rows)


def _write_samples(trainers: Any, config: Config, run: Run) -> None:
    """Writes the last samples of the first seed, for the figure."""
    for model, variant in trainers:
        saved = run.load_arrays(f"{model}-{variant}-{config['seed']}-samples")
        if saved is not None:
            run.write_csv(f"samples_{model}_{variant}", _points(saved["samples"]))


def _points(X: Any) -> list[dict[str, float]]:
    return [{"x": float(p[0]), "y": float(p[1]), "z": float(p[2])} for p in X]
