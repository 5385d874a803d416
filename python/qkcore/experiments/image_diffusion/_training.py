"""Trains the model, with a checkpoint after every chunk, and keeps models after several numbers of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._configs import Config
from .._run import Run
from ._network import NetworkScore, Recipe, Trainer
from ._schedule import VP
from ._scores import Axes

Single = npt.NDArray[np.float32]
HELD_OUT = 2000  # images for the held-out loss


def trainer_of(images: Single, axes: Axes, config: Config) -> Trainer:
    """A trainer for images in [-1, 1]."""
    recipe = Recipe(
        width=config["width"],
        blocks=config["blocks"],
        batch=config["batch"],
        steps=config["steps"],
        learning_rate=config["learning_rate"],
        ema=config["ema"],
        t_end=config["t_end"],
        beta_min=config["beta_min"],
        beta_max=config["beta_max"],
    )
    return Trainer(axes.enter(images), axes, recipe)


def train(trainer: Trainer, test: Single, config: Config, run: Run) -> dict[int, NetworkScore]:
    """Models by step, with averaged weights; training continues from the last chunk of an earlier run."""
    seed = config["seed"]
    stops = sorted({*config["checkpoints"], config["steps"]})
    state, step = trainer.start(seed), 0
    log: list[dict[str, Any]] = []
    if (saved := run.load_arrays("training")) is not None:
        state, step = trainer.unpack(saved, state), int(saved["step"])
        log = [
            {"step": int(s), "loss": float(a), "validation_loss": float(b)}
            for s, a, b in saved["log"]
        ]
    marks = sorted({*range(config["chunk"], config["steps"], config["chunk"]), *stops})
    for mark in run.progress([m for m in marks if m > step], "training"):
        state, loss = trainer.advance(state, seed, step, mark)
        if not np.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {mark}; lower learning_rate")
        step = mark
        held = trainer.validate(state.average, test[:HELD_OUT], seed)
        log.append({"step": step, "loss": loss, "validation_loss": held})
        if step in stops:
            run.save_arrays(f"weights-{step}", trainer.pack(state.average))
        rows = np.array([list(r.values()) for r in log])
        run.save_arrays("training", {**trainer.pack(state), "step": np.array(step), "log": rows})
    run.write_csv("training", log)
    vp = VP(config["beta_min"], config["beta_max"])
    models = {}
    for stop in stops:
        found = run.load_arrays(f"weights-{stop}")
        if found is None:
            raise FileNotFoundError(f"weights-{stop}: saved in training, and gone since")
        models[stop] = NetworkScore(trainer.unpack(found, state.average), trainer.law, vp)
    return models
