"""The stages after training; the result of each is kept as a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .._configs import Config, fingerprint
from .._run import Run
from ..swissroll._measures import mmd2
from . import _images, _measures
from ._images import Images
from ._network import NetworkScore, Trainer
from ._sampling import side_by_side
from ._schedule import VP
from ._scores import Axes, EmpiricalScore, GaussianScore, PooledLaw, Score
from ._training import HELD_OUT, train, trainer_of

Single = npt.NDArray[np.float32]
Row = dict[str, Any]

PICTURES = 10
# number of images with which the asymmetry of a Jacobian is estimated
PROBES = 500
# settings that these stages depend on, in addition to those that change the training
SETTINGS = {
    "parity": ("n_images", "n_control"),
    "weak": ("weak_steps", "weak_images"),
    "rotation": ("rotation_images", "rotation_times", "components_rotation", "degree"),
    "quality": ("quality_images",),
}


@dataclass(frozen=True, eq=False)
class Case:
    """Data, models and exact scores."""

    config: Config
    run: Run
    vp: VP
    images: Images
    axes: Axes
    trainer: Trainer
    models: dict[int, NetworkScore]
    scores: dict[str, tuple[Score, PooledLaw]]
    """each with the law of a pixel to which it should lead"""
    origin: dict[str, Single]
    """for each score, samples of its law at t = 0"""

    @property
    def d(self) -> int:
        """Number of pixels of an image."""
        return len(self.axes.mean)

    def validation(self, model: NetworkScore) -> float:
        """The loss on held-out images."""
        test = self.axes.enter(self.images.test[:HELD_OUT])
        return self.trainer.validate(model.weights, test, self.config["seed"])

    def key(self, kind: str, *names: object) -> str:
        """The name of a checkpoint, which includes a fingerprint of the settings that it depends on."""
        mine = fingerprint({k: self.config[k] for k in SETTINGS[kind]})
        return "-".join([kind, *map(str, names), mine])


def prepare(config: Config, run: Run) -> Case:
    """Loads the images, trains the model and makes the exact scores."""
    images = _images.load(config)
    vp = VP(config["beta_min"], config["beta_max"])
    axes = Axes.of(images.train)
    trainer = trainer_of(images.train, axes, config)
    models = train(trainer, axes.enter(images.test), config, run)
    draw = np.random.default_rng([config["seed"], 6])
    some = images.train[draw.permutation(len(images.train))[: config["n_empirical"]]]
    n = config["rotation_images"]
    normal = draw.standard_normal((n, len(axes.mean)), dtype=np.float32)
    spread = np.sqrt(axes.variance).astype(np.float32)
    scores: dict[str, tuple[Score, PooledLaw]] = {
        "gaussian": (GaussianScore(axes.mean, axes.variance, vp), PooledLaw.of_gaussian(axes)),
        "empirical": (EmpiricalScore(axes.enter(some), vp), PooledLaw.of_images(some)),
        "model": (models[max(models)], PooledLaw.of_images(images.train)),
    }
    origin: dict[str, Single] = {
        "gaussian": axes.mean.astype(np.float32) + spread * normal,
        "empirical": axes.enter(some[draw.integers(0, len(some), n)]),
        "model": axes.enter(images.test[draw.integers(0, len(images.test), n)]),
    }
    return Case(config, run, vp, images, axes, trainer, models, scores, origin)


# ---- parity --------------------------------------------------------------------------------------


def parity(case: Case) -> Row:
    """SDE against flow for every score, scheme and number of steps: parity.csv, samples.csv."""
    config, run = case.config, case.run
    first, *others = config["schemes"]
    # The first scheme is run with several numbers of steps, the others once, on the logged grid.
    plans = [(first, r) for r in config["refinements"]]
    plans += [(scheme, config["refinements"][0]) for scheme in others]
    rows: list[Row] = []
    found: Row = {name: {} for name in case.scores}
    shown = _pictures("data", (case.images.test[:PICTURES] + 1) / 2)
    for name in case.scores:
        for scheme, refine in plans:
            main = (scheme, refine) == plans[0]
            n = config["n_images"] if main and name == "model" else config["n_control"]
            work = partial(_side_by_side, case, name, scheme, refine, n)
            done = run.stage(case.key("parity", name, scheme, refine, n), work)
            n_steps = refine * config["n_times"]
            label = {"score": name, "scheme": scheme, "steps": n_steps}
            rows += [label | r for r in done["rows"]]
            summary = {"steps": n_steps} | done["summary"]
            score = case.scores[name][0]
            if isinstance(score, GaussianScore):
                summary |= _measures.exact_parity(score, case.axes, case.vp, scheme, refine, config)
            found[name][f"{scheme}-{n_steps}"] = summary
            if main:
                for flow, pictures in done["pictures"].items():
                    shown += _pictures(f"{name}, {flow}", pictures)
    run.write_csv("parity", rows)
    run.write_csv("samples", shown)
    return found


def _side_by_side(case: Case, name: str, scheme: str, refine: int, n: int) -> Row:
    config, (score, law) = case.config, case.scores[name]
    moments = side_by_side(
        score, case.vp, scheme=scheme, n_times=config["n_times"], refine=refine,
        t_end=config["t_end"], n=n, d=case.d, seed=config["seed"],
    )  # fmt: skip
    label = f"{name}, {scheme}, {refine * config['n_times']} steps"
    bar = case.run.progress(moments, label, config["n_times"])
    rows, summary, last = _measures.parity(bar, case.axes, law, case.vp, config)
    pictures = {
        flow: case.axes.pixels(x[:PICTURES]).tolist()
        for flow, x in (("sde", last.sde), ("ode", last.ode))
    }
    return {"rows": rows, "summary": summary, "pictures": pictures}


def _pictures(kind: str, images: Any) -> list[Row]:
    """Lines of samples.csv: pixels of a few images (black 0, white 1), rounded to four digits."""
    return [
        {"kind": kind, "index": i, **{f"p{j}": round(float(v), 4) for j, v in enumerate(image)}}
        for i, image in enumerate(images)
    ]


# ---- weak error ----------------------------------------------------------------------------------


def weak_error(case: Case) -> Row:
    """Step doubling for every score and scheme: weak_error.csv."""
    rows: list[Row] = []
    found: Row = {name: {} for name in case.scores}
    for name in case.scores:
        for scheme in case.config["schemes"]:
            work = partial(_doubling, case, name, scheme)
            done = case.run.stage(case.key("weak", name, scheme), work)
            rows += [{"score": name, "scheme": scheme} | r for r in done["rows"]]
            found[name][scheme] = done["slopes"]
    for row in rows:  # Unknown values come back from JSON as None; in CSV they are nan.
        row["exact"] = float("nan") if row["exact"] is None else row["exact"]
    case.run.write_csv("weak_error", rows)
    return found


def _doubling(case: Case, name: str, scheme: str) -> Row:
    score = case.scores[name][0]
    rows, slopes = _measures.weak_error(
        score, case.axes, case.vp, scheme, case.config, case.run.progress
    )
    return {"rows": rows, "slopes": slopes}


# ---- rotational energy ---------------------------------------------------------------------------


def rotational_energy(case: Case) -> Row:
    """Rotational energy of the exact scores and of the model at every checkpoint: rotation.csv."""
    last = max(case.models)
    exact: list[tuple[str, int, Score]] = [
        (name, 0, case.scores[name][0]) for name in ("gaussian", "empirical")
    ]
    trained = [("model", step, model) for step, model in sorted(case.models.items())]
    rows: list[Row] = []
    found: Row = {"checkpoints": {}}
    for name, step, score in case.run.progress([*exact, *trained], "rotational energy"):
        work = partial(_energies, case, name, score)
        lines = case.run.stage(case.key("rotation", name, step), work)
        rows += [{"score": name, "step": step} | r for r in lines]
        summary = _measures.over_times(lines, case.config)
        if name == "model":
            found["checkpoints"][str(step)] = summary
        if step in (0, last):
            found[name] = summary
    case.run.write_csv("rotation", rows)
    return found


def _energies(case: Case, name: str, score: Score) -> list[Row]:
    times = _measures.middle_times(case.config["rotation_times"], case.config["t_end"])
    x0 = case.origin[name]
    return [
        _measures.rotation_at(score, x0, float(t), case.vp, case.config)
        | {"asymmetry": _asymmetry(case, score, x0[:PROBES], float(t))}
        for t in times
    ]


def _asymmetry(case: Case, score: Score, x0: Single, t: float) -> float:
    """Asymmetry of a model's Jacobian; 0 for exact scores, whose Jacobians are multiples of covariances."""
    if not isinstance(score, NetworkScore):
        return 0.0
    seed = case.config["seed"]
    noise = np.random.default_rng([seed, 7]).standard_normal(x0.shape, dtype=np.float32)
    x = np.float32(case.vp.alpha(t)) * x0 + np.float32(case.vp.sigma(t)) * noise
    return score.asymmetry(x, t, seed)


# ---- quality -------------------------------------------------------------------------------------


def checkpoints(case: Case) -> Row:
    """How good the model is at every checkpoint: held-out loss, and MMD² of samples to held-out images."""
    n = min(case.config["quality_images"], len(case.images.test))
    # chosen at random, because MNIST's first test images are easier
    draw = np.random.default_rng([case.config["seed"], 8])
    test, other = (
        case.axes.enter(x[draw.permutation(len(x))[:n]]).astype(np.float64)
        for x in (case.images.test, case.images.train)
    )
    half = n // 2
    # the bandwidth is the median distance between held-out images
    sigma = float(np.median(np.linalg.norm(test[:half] - test[half : 2 * half], axis=1)))
    rows = []
    for step, model in case.run.progress(sorted(case.models.items()), "quality"):
        work = partial(_quality, case, model, test, sigma)
        rows.append({"step": step} | case.run.stage(case.key("quality", step), work))
    case.run.write_csv("checkpoints", rows)
    return {"checkpoints": rows, "mmd2_floor": mmd2(other, test, sigma)}


def _quality(case: Case, model: NetworkScore, test: npt.NDArray[np.float64], sigma: float) -> Row:
    config = case.config
    *_, last = side_by_side(
        model, case.vp, scheme="ddim", n_times=config["n_times"], refine=1,
        t_end=config["t_end"], n=len(test), d=case.d, seed=config["seed"] + 2000,
    )  # fmt: skip
    return {
        "validation_loss": case.validation(model),
        "mmd2_sde": mmd2(last.sde.astype(np.float64), test, sigma),
        "mmd2_ode": mmd2(last.ode.astype(np.float64), test, sigma),
    }
