"""Image diffusion, EOT's Track I (EOT-16; section 6.3, figure 2, table 3, M.5, M.6).

A compact score model of the variance-preserving process is trained on real images (MNIST, because no package
has the paper's CIFAR-10). Its reverse SDE and its probability flow are run from shared seeds and compared.
Two exact scores go through the same pipeline: that of the Gaussian with the data's mean and covariance, and
that of a finite set of images, which is attention over them. If SDE and flow agree for the exact scores but
not for the model, the difference is due to the model; if they differ for these too, it is due to the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._configs import Config, positive
from .._errors import ExperimentError, unknown
from . import _images
from ._images import require
from ._schedule import SCHEMES
from ._show import plot, tables
from ._verdict import claims

if TYPE_CHECKING:
    from .._run import Run

__all__ = ["check", "claims", "compute", "plot", "require", "tables"]


def check(config: Config) -> None:
    """Refuses settings with which the experiment cannot be run."""
    _images.check(config["data"])
    positive(
        config,
        *("width", "blocks", "batch", "steps", "chunk", "learning_rate", "beta_min", "n_times"),
        *("checkpoints", "refinements", "weak_steps", "rotation_times", "components", "n_test"),
        "pool",
    )
    positive(config, "n_images", "n_control", "n_empirical", "quality_images", "bins", least=1)
    positive(config, "parity_resamples", "bca_resamples", least=9)
    positive(config, "weak_blocks", "degree", least=1)
    positive(config, "rotation_images", least=200)
    for scheme in config["schemes"]:
        if scheme not in SCHEMES:
            raise unknown("scheme", scheme, SCHEMES)
    if not 0 < config["t_end"] < 0.5:
        raise ExperimentError(f"t_end: wanted a time between 0 and 0.5, got {config['t_end']}")
    if not config["beta_max"] > config["beta_min"]:
        raise ExperimentError(
            f"beta_max: wanted more than beta_min = {config['beta_min']}, got {config['beta_max']}"
        )
    if not 0 <= config["ema"] < 1:
        raise ExperimentError(f"ema: wanted a number from 0 to below 1, got {config['ema']}")
    if config["weak_images"] < 2 * config["weak_blocks"]:
        raise ExperimentError(
            f"weak_images: wanted at least two for each of {config['weak_blocks']} blocks, "
            f"got {config['weak_images']}"
        )
    K = config["weak_steps"]
    if sorted(set(K)) != K or len(K) < 2 or any((2 * K[-1]) % (2 * k) for k in K):
        raise ExperimentError(
            "weak_steps: wanted growing numbers that divide the largest, such as [8, 16, 32], "
            f"got {config['weak_steps']}"
        )
    if max(config["checkpoints"]) > config["steps"]:
        raise ExperimentError(
            f"checkpoints: wanted at most steps = {config['steps']}, got {max(config['checkpoints'])}"
        )


def compute(config: Config, run: Run) -> None:
    """Trains, samples, measures."""
    from . import _stages
    from ._network import count, gaussian_loss

    case = _stages.prepare(config, run)
    final = case.models[max(case.models)]
    metrics: dict[str, Any] = {
        "data": {
            "name": case.images.name,
            "stands_in_for": "CIFAR-10",
            "side": case.images.side,
            "n_train": len(case.images.train),
            "n_test": len(case.images.test),
            "n_empirical": config["n_empirical"],
        },
        "model": {
            "parameters": count(final.weights),
            "steps": config["steps"],
            "gaussian_loss": gaussian_loss(case.axes, case.trainer.recipe),
            "validation_loss": case.validation(final),
        },
        "first_scheme": config["schemes"][0],
        "n_times": config["n_times"],
        "parity": _stages.parity(case),
        "weak": _stages.weak_error(case),
        "rotation": _stages.rotational_energy(case),
        **_stages.checkpoints(case),
    }
    run.write_metrics(metrics)
