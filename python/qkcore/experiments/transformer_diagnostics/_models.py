"""The models that the experiment knows: what they are, where their weights come from, how they load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .._configs import Config
from .._errors import unknown
from . import _random, _readers, _weights
from ._attention import Array, Ids, Trace
from ._decoder import Decoder
from ._encoder import Encoder
from ._weights import Weights

Network = Encoder | Decoder


@dataclass(frozen=True, eq=False)
class Model:
    """Weights that run, and a way from text to token numbers."""

    name: str
    network: Network
    encode: Callable[[str], list[int]]
    """token numbers of a text, special ones included"""
    closing: int | None = None
    """the token that ends every passage ([SEP]), if there is one"""

    def ids(self, text: str, n: int) -> Ids:
        """The first n tokens of the text, the closing one last."""
        found = self.encode(text)
        if len(found) < n:
            raise ValueError(f"{self.name}: wanted a text of {n} tokens, got {len(found)}")
        found = found[:n]
        if self.closing is not None:
            found[-1] = self.closing
        return np.array(found, dtype=np.int64)

    def trace(self, ids: Ids) -> Trace:
        """The forward pass."""
        return self.network.trace(ids)

    def read_out(self, states: Array) -> Array | None:
        """Logits over the vocabulary, if the model has a read-out."""
        return self.network.read_out(states)

    def shuffled(self, seed: int) -> Model:
        """The untrained control: the same sizes and scales, weights in random order."""
        return Model(
            f"{self.name}-shuffled", _random.shuffled(self.network, seed), self.encode, self.closing
        )


@dataclass(frozen=True)
class Known:
    """A model by name."""

    title: str
    load: Callable[[Config], Model]
    weights: tuple[Weights, ...] = ()
    """none: random weights, made on the spot"""
    tied: bool = False
    """one layer, repeated: depth is a setting"""

    @property
    def trained(self) -> bool:
        """Whether there is anything learned in it."""
        return bool(self.weights)


def _bytes(text: str) -> list[int]:
    """Token numbers for random models: bytes."""
    return [b % 97 for b in text.encode()]


MODELS: dict[str, Known] = {
    "minilm": Known(
        "all-MiniLM-L6-v2, BERT encoder",
        lambda config: Model("minilm", *_readers.minilm()),
        (_readers.MINILM,),
    ),
    "smollm2": Known(
        "SmolLM2-135M-Instruct, causal decoder, 4-bit weights",
        lambda config: Model("smollm2", *_readers.smollm2()),
        (_readers.SMOLLM2,),
    ),
    "paraphrase": Known(
        "paraphrase-MiniLM-L3-v2, BERT encoder",
        lambda config: Model("paraphrase", *_readers.paraphrase()),
        (_readers.PARAPHRASE, _readers.MINILM),
    ),
    "albert": Known(
        "ALBERT (Korean, albert-kor-base), one encoder layer repeated",
        lambda config: Model("albert", *_readers.albert(config["tied_depth"])),
        (_readers.ALBERT,),
        tied=True,
    ),
    "tiny-encoder": Known(
        "random weights, encoder",
        lambda config: Model("tiny-encoder", _random.tiny_encoder(config["seed"]), _bytes),
    ),
    "tiny-decoder": Known(
        "random weights, causal decoder",
        lambda config: Model("tiny-decoder", _random.tiny_decoder(config["seed"]), _bytes),
    ),
}  # fmt: skip


def get(name: str) -> Known:
    """By name; an ExperimentError names the nearest otherwise."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]


def chosen(config: Config) -> list[str]:
    """The models of a run: those asked for, and of ``if_installed`` those whose weights are there."""
    names = list(config["models"])
    for name in config["if_installed"]:
        if name == "none" or name in names:
            continue
        if _weights.installed(get(name).weights):
            names.append(name)
    return names


def require(config: Config) -> None:
    """Refuses to start without the weights of the models asked for, or with other weights."""
    wanted = [w for name in chosen(config) for w in get(name).weights]
    _weights.require(list(dict.fromkeys(wanted)))
