"""The models that the experiment knows: what they are, where their weights come from, how to load them."""

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
    """A model that can be run, with its tokenizer."""

    name: str
    network: Network
    encode: Callable[[str], list[int]]
    """token numbers of a text, including special tokens"""
    closing: int | None = None
    """the token that ends every passage ([SEP]), if there is one"""

    def ids(self, text: str, n: int) -> Ids:
        """The first n tokens of the text, of which the last is the closing token."""
        found = self.encode(text)
        if len(found) < n:
            raise ValueError(f"{self.name}: wanted a text of {n} tokens, got {len(found)}")
        found = found[:n]
        if self.closing is not None:
            found[-1] = self.closing
        return np.array(found, dtype=np.int64)

    def trace(self, ids: Ids) -> Trace:
        """Runs the forward pass."""
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
    """The description of a model, before it is loaded."""

    title: str
    load: Callable[[Config], Model]
    weights: tuple[Weights, ...] = ()
    """packages with the weights; none if weights are random, made when the model is loaded"""
    tied: bool = False
    """whether one layer is repeated, so that the depth is a setting"""

    @property
    def trained(self) -> bool:
        """Whether the weights were trained."""
        return bool(self.weights)


def _bytes(text: str) -> list[int]:
    """Token numbers for random models: the bytes of the text."""
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
    """The model of this name; for an unknown name, an ExperimentError that suggests the nearest."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]


def chosen(config: Config) -> list[str]:
    """The models of a run: all of ``models``, and those of ``if_installed`` whose weights are installed."""
    names = list(config["models"])
    for name in config["if_installed"]:
        if name == "none" or name in names:
            continue
        if _weights.installed(get(name).weights):
            names.append(name)
    return names


def require(config: Config) -> None:
    """Refuses to start if weights of the chosen models are missing or are not the expected ones."""
    wanted = [w for name in chosen(config) for w in get(name).weights]
    _weights.require(list(dict.fromkeys(wanted)))
