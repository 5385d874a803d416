"""Experiments of the documents, each by one command: ``qkcore run NAME`` (EOT-17).

An experiment is a module with five functions: ``check(config)``; ``compute(config, run)``, which writes CSV
files and metrics.json; ``plot(folder)``, which draws figures from those files alone; ``claims(metrics)``;
and ``tables(folder)``. Its settings, with every number that the document gives, are in ``configs/NAME.yaml``.

>>> from qkcore import experiments
>>> experiments.get("trefoil").reproduces
'DAC appendix D.1, figure 1'
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._errors import ExperimentError, missing, unknown
from ._results import Claim, Listing
from ._run import Outcome, Run, run

__all__ = [
    "EXPERIMENTS",
    "Claim",
    "Experiment",
    "ExperimentError",
    "Listing",
    "Outcome",
    "Run",
    "get",
    "names",
    "run",
]


@dataclass(frozen=True)
class Experiment:
    """A name, what it reproduces, and the module that does it."""

    name: str
    title: str
    reproduces: str
    """figure, table or section of the document"""
    errata: tuple[int, ...] = ()
    """numbers of the errata that the experiment shows"""
    needs: tuple[str, ...] = ()
    """packages without which it cannot compute, in addition to those that all experiments need"""
    extra: str = "experiments"
    """the extra that installs these packages: pip install qkcore[extra]"""
    extends: tuple[str, ...] = ()
    """settings that may change without making checkpoints useless, such as the number of steps or seeds"""

    def _module(self) -> Any:
        return importlib.import_module(f"{__name__}.{self.name.replace('-', '_')}")

    def _call(self, function: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self._module(), function)
        return found

    def check(self, config: dict[str, Any]) -> None:
        """Refuses settings that cannot be run, with an :class:`ExperimentError`."""
        self._call("check")(config)

    def require_packages(self) -> None:
        """Raises an :class:`ExperimentError` that names all missing packages, if there are any."""
        wanted = {name: name for name in (*self.needs, "matplotlib")} | {"yaml": "PyYAML"}
        lacking = [wanted[module] for module in wanted if importlib.util.find_spec(module) is None]
        if lacking:
            raise missing(self.name, self.extra, *lacking)

    def require(self, config: dict[str, Any]) -> None:
        """Refuses to start when files that the experiment reads are missing; most experiments read none."""
        if hasattr(self._module(), "require"):
            self._call("require")(config)

    def compute(self, config: dict[str, Any], run: Run) -> None:
        """Writes CSV files and metrics.json into ``run.folder``."""
        self._call("compute")(config, run)

    def plot(self, folder: Path) -> list[Path]:
        """Draws the figures from the files in the folder, and nothing else."""
        figures: list[Path] = self._call("plot")(folder)
        return figures

    def claims(self, metrics: dict[str, Any]) -> list[Claim]:
        """The document's statements, each with what was measured and a verdict."""
        found: list[Claim] = self._call("claims")(metrics)
        return found

    def tables(self, folder: Path) -> list[Listing]:
        """Tables for a reader, from the files in the folder."""
        found: list[Listing] = self._call("tables")(folder)
        return found


EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        Experiment(
            "trefoil",
            "Circle to trefoil: low-rank product-of-experts bridges",
            "DAC appendix D.1, figure 1",
            errata=(11, 41),
        ),
        Experiment(
            "regimes",
            "Equilibrium, steady currents and driven bridges; currents as magnetic phases",
            "DAC sections 4.0.1 to 4.4, appendix C.6",
            errata=(1, 2, 38),
        ),
        Experiment(
            "gaussian-cones",
            "Covariances under attention as curves in their cone, and where each of them ends",
            "TPDE section 4.5, figures 1, 2, 4 to 7",
            errata=(5, 8, 25, 26, 39),
        ),
        Experiment(
            "rank-histogram",
            "Ranks of the limits of Gaussian laws for d = 3, 4, 5, with no case left out",
            "TPDE section 4.5, figures 3 and 8",
            errata=(25, 27, 40),
        ),
        Experiment(
            "particles",
            "Particles under every field: clusters, the radius and its bound, the energy",
            "TPDE sections 2, 3 and 5",
            errata=(28,),
        ),
        Experiment(
            "swissroll",
            "Minimal diffusion models with attention and diffusion-map denoisers",
            "DAC appendix D.2, figure 2",
            errata=(2, 3, 4),
            needs=("jax", "optax"),
            extra="train",
            extends=("n_seeds", "variants", "amap_steps", "dmap_steps", "evaluate_at", "chunk"),
        ),
        Experiment(
            "heat-flow",
            "Heat flow of two bumps by iterated Schrödinger bridges",
            "ISB poster, experiments: heat flow",
            errata=(6,),
        ),
        Experiment(
            "ornstein-uhlenbeck",
            "Ornstein–Uhlenbeck flow by iterated Schrödinger bridges",
            "ISB poster, experiments: Ornstein–Uhlenbeck process; theorems 1 and 2",
            errata=(6,),
        ),
        Experiment(
            "simplex-flow",
            "Probabilities that flow by their mobility: locking, depth budgets, early exit",
            "EOT sections 2.2 to 3.4, appendices H.1, K, L, M.1",
            errata=(7, 33),
        ),
        Experiment(
            "lipschitz",
            "Contraction and Lipschitz bounds of attention, compared with measured constants",
            "MTA sections 5 and 6",
            errata=(10,),
        ),
        Experiment(
            "transformer-diagnostics",
            "P0 to P4 on pre-trained transformers; regimes of their attention",
            "EOT sections 6.1 and 6.2 (Track T), figures 1, 7 and 8",
            errata=(33, 34, 38),
            extra="models",
        ),
        Experiment(
            "image-diffusion",
            "SDE against probability flow of an image model, with exact scores as controls",
            "EOT section 6.3, figure 2, table 3, M.6",
            errata=(30, 31),
            needs=("jax", "optax"),
            extra="images",
            extends=(
                *("chunk", "schemes", "refinements", "n_images", "n_control", "quality_images"),
                *("weak_steps", "weak_images", "rotation_images", "rotation_times"),
                *("components_rotation", "degree"),
            ),
        ),
    )
}


def names() -> list[str]:
    """The names of all experiments."""
    return list(EXPERIMENTS)


def get(name: str) -> Experiment:
    """The experiment of this name; raises an :class:`ExperimentError` that suggests the nearest otherwise."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
