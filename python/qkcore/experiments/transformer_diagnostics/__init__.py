"""P0 to P4 on pre-trained transformers, and the regimes of their attention (EOT-16, Track T; DAC-8, MTA-3).

The document does not say what "rows through depth" are, so two readings are measured: the attention rows of
head h at layer l (M.1), and a read-out of the residual stream over the vocabulary ("probe-induced", C.6). The
gate P0 is applied as N.4 says; the verdicts that P1 to P4 would give without it are reported too, marked.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .._configs import Config, positive
from .._errors import ExperimentError
from . import _measure, _models, _rotation, _states, _summary, _text
from ._claims import claims
from ._models import Model
from ._show import plot
from ._tables import tables

if TYPE_CHECKING:
    from .._run import Run

__all__ = ["check", "claims", "compute", "plot", "require", "tables"]

Row = dict[str, Any]
CONTROL = "-shuffled"
FILES = ("heads", "transitions", "curvature", "locking", "layers", "evi", "key_space", "suite", "passages",
         "losses", "rotation")  # fmt: skip


def check(config: Config) -> None:
    """Refuses settings with which the models cannot be measured."""
    positive(config, "passages", "pairs", "evi_rows", "probe_rows", "central_layers", "components")
    positive(
        config,
        "variation",
        "locked_tail",
        "followed",
        "measured",
        "control_passages",
        "key_pairs",
        "key_layers",
    )
    positive(config, "tied_depth", least=1)
    positive(config, "tokens", least=23)
    if config["tokens"] > 512:
        raise ExperimentError(
            f"tokens: wanted at most 512, the positions of the encoders, got {config['tokens']}"
        )
    rising = config["temperatures"]
    if len(rising) < 2 or rising[0] <= 0 or sorted(set(rising)) != rising:
        raise ExperimentError(f"temperatures: wanted at least two rising numbers > 0, got {rising}")
    if config["tokens"] > 256 and "albert" in config["models"]:
        raise ExperimentError(
            f"tokens: wanted at most 256, the positions of albert, got {config['tokens']}"
        )
    for name in (*config["models"], *(n for n in config["if_installed"] if n != "none")):
        _models.get(name)


def require(config: Config) -> None:
    """Refuses to start if weights are missing."""
    _models.require(config)


def compute(config: Config, run: Run) -> None:
    """Measures every model and its control with shuffled weights, with a checkpoint after every passage."""
    texts = _text.passages(config["passages"])
    found: dict[str, _summary.Found] = {}
    for name in _models.chosen(config):
        known = _models.get(name)
        for control in (False, True) if config["controls"] and known.trained else (False,):
            label = name + (CONTROL if control else "")
            source = _Lazy(name, control, config)
            measured = [
                run.stage(f"{label}-{k}", partial(_one, source, label, k, texts[k][1], config, run))
                for k in run.progress(range(len(texts)), label)
            ]
            turning = run.stage(
                f"{label}-rotation", partial(_turning, label, len(texts), config, run)
            )
            about = run.stage(f"{label}-about", source.about)
            found[label] = _summary.Found(
                about,
                [m["measures"] for m in measured if m["measures"] is not None],
                turning,
                [m["surprise"] for m in measured],
            )
    for name, rows in _rows(found, [t[0] for t in texts]).items():
        run.write_csv(name, rows)
    text = {name: _text.digest(body) for name, body in texts}
    run.write_metrics(_summary.metrics(found, config, text))


class _Lazy:
    """A model that is loaded only if something has to be computed."""

    def __init__(self, name: str, control: bool, config: Config) -> None:
        self.name, self.control, self.config = name, control, config
        self._model: Model | None = None

    @property
    def model(self) -> Model:
        if self._model is None:
            loaded = _models.get(self.name).load(self.config)
            self._model = loaded.shuffled(self.config["seed"]) if self.control else loaded
        return self._model

    def about(self) -> Row:
        known, network = _models.get(self.name), self.model.network
        return {
            "title": known.title + (", entries of its matrices shuffled" if self.control else ""),
            "trained": known.trained and not self.control,
            "causal": network.causal,
            "tied": known.tied,
            "layers": len(network.layers),
            "tokens": self.config["tokens"],
            "heads": network.n_heads,
            "width": network.width,
            "packages": [w.requirement for w in known.weights],
            "sha256": {path: digest for w in known.weights for path, digest in w.files},
        }


def _one(source: _Lazy, label: str, k: int, text: str, config: Config, run: Run) -> Row:
    """Saves the states of a passage for P4; returns its loss and, for the first passages, all measures."""
    model = source.model
    trace = model.trace(model.ids(text, config["tokens"]))
    if not np.isfinite(trace.hidden).all():
        raise FloatingPointError(f"{label}: the forward pass left the finite numbers")
    states = _rotation.prepared(trace.hidden)
    run.save_arrays(f"{label}-{k}-states", {"states": states.astype(np.float32)})
    out: Row = {"surprise": _states.surprise(model, trace), "measures": None}
    if k < config["control_passages" if source.control else "measured"]:
        follow = k < config["followed"] and not source.control
        out["measures"] = _measure.passage(trace, model, config, follow=follow, first=k == 0)
    return out


def _turning(label: str, count: int, config: Config, run: Run) -> Row:
    """P4 with the tokens of all passages, and with each passage alone (for the prediction on quality)."""
    parts = []
    for k in range(count):
        saved = run.load_arrays(f"{label}-{k}-states")
        assert saved is not None, "saved before the measures of the passage"
        parts.append(saved["states"].astype(np.float64))
    states = np.concatenate(parts, axis=1)
    out: Row = {"components": [], "passages": []}
    for number in config["components"]:
        found = _rotation.measured(
            states, number, config["central_layers"], config["seed"], control=True
        )
        out["components"].append({"number": number, **found})
    for part in parts:
        alone = _rotation.measured(
            part, config["components"][0], config["central_layers"], config["seed"], control=False
        )
        out["passages"].append(alone["share"])
    return out


def _rows(found: dict[str, _summary.Found], topics: list[str]) -> dict[str, list[Row]]:
    """The rows of the CSV files."""
    out: dict[str, list[Row]] = {name: [] for name in FILES}
    for label, f in found.items():
        for k, m in enumerate(f.passages):
            first: Row = {"model": label, "passage": k}
            for name in ("heads", "transitions", "curvature", "evi", "key_space"):
                out[name] += [first | row for row in m[name]]
            out["locking"] += [first | row for row in m["locking"]["bins"]]
            empty = dict.fromkeys(("probe_step", "probe_left", "probe_entropy"), math.nan)
            probe = m.get("probe") or [empty] * len(m["states"])
            out["layers"] += [
                first | s | empty | p for s, p in zip(m["states"], probe, strict=True)
            ]
            for reading, s in m["suite"].items():
                out["suite"] += [
                    first | {"reading": reading, "check": c, "gated": s["gated"][c], "open": s["open"][c],
                             "value": s["value"][c]}
                    for c in s["gated"]
                ]  # fmt: skip
            out["passages"].append(
                first
                | {
                    "topic": topics[k],
                    "variation": m["variation"],
                    "variation_best_head": m["variation_best_head"],
                    "window_start": m["window"]["start"],
                    "window_length": m["window"]["length"],
                    "residual": m["suite"]["rows"]["residual"],
                }
            )
        out["losses"] += [
            {"model": label, "passage": k, "topic": topics[k], "surprise": loss, "rotation": share}
            for k, (loss, share) in enumerate(zip(f.surprise, f.rotation["passages"], strict=True))
        ]
        for c in f.rotation["components"]:
            out["rotation"] += [
                {"model": label, "components": c["number"], **row} for row in c["rows"]
            ]
    return {name: [_without_none(r) for r in rows] for name, rows in out.items()}


def _without_none(row: Row) -> Row:
    """Replaces None by NaN, since checkpoints are JSON, which has no NaN."""
    return {k: math.nan if v is None else v for k, v in row.items()}
