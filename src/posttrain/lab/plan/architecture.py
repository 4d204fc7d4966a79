"""Reads the shape of a language model and its parameters by part, from config.json or for a size class.

    architecture_of({"model_type": "llama", "hidden_size": 576, ...})      the content of a config.json
    read_architecture("runs/sft-1/model")                                  a folder with one
    read_architecture("7b")  read_architecture("Qwen/Qwen3-30B-A3B")       a size class, or its representative model

shape.py defines the records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError, ModelError
from posttrain.lab.plan.shape import Architecture, Block, Counts, Experts, Family, Linear, Mixture, families
from posttrain.verify import read_table

__all__ = [
    "Architecture",
    "Block",
    "Counts",
    "Linear",
    "Mixture",
    "architecture_of",
    "read_architecture",
    "read_config",
    "size_classes",
]

SIZES = Path(__file__).with_name("sizes.yaml")
EXPERT_NUMBERS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts in different versions of transformers."""
TRAINED_FURTHER = re.compile(r"-(instruct|chat|base|it)$")
"""Suffixes in model names that do not change the shape of the model."""


def read_architecture(model: str) -> Architecture:
    """Return the architecture of a model that `read_config` finds. Raises its errors, and ModelError for a model whose
    parameters cannot be counted.
    """
    return architecture_of(read_config(model), name=model)


def read_config(model: str) -> Mapping[str, Any]:
    """Return the config.json of a folder, of a size class such as "7b", or of a model named in `sizes.yaml`.

    A name may end in -Instruct, -Chat, -Base or -it.

    Nothing is downloaded. Raises ModelError for an invalid config.json, and ConfigError for an unknown name.
    """
    path = Path(model).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if path.is_file():
        return _read_config(path)
    for size, known in size_classes().items():
        if model.lower() in (size, known["model"].lower()):
            return known["config"]
    cached = _cached_config(model)
    if cached is not None:
        return _read_config(cached)
    kin = TRAINED_FURTHER.sub("", model.lower())
    for known in size_classes().values():
        if kin == known["model"].lower():
            return known["config"]
    raise ConfigError(
        given=f"model {model!r} is neither a folder with a config.json, nor a size class, nor a known model's name",
        allowed=f"a folder, a config.json, a model in the local cache of the Hub, or {', '.join(size_classes())}",
        fix="Download its config.json, which has a few kilobytes, and give its path; or use the nearest size class.",
    )


def architecture_of(config: Mapping[str, Any], *, name: str = "") -> Architecture:
    """Return the architecture in a config.json. Raises ModelError if its parameters cannot be counted."""
    kind, config = _text_part(config)
    family = families().get(kind)
    if family is None:
        raise ModelError(
            given=f"{name or 'the model'} is of type {kind!r}, whose parameters the planner cannot count",
            allowed=", ".join(sorted(families())),
            fix="Plan with a model of one of these types that has a similar size and shape.",
        )
    read = _Reader(name or kind, family, config)
    hidden, heads = read.number("hidden_size"), read.number("num_attention_heads")
    head_width = read.number("head_dim", hidden // heads)
    key_width, value_width, kv_heads = head_width, head_width, read.number("num_key_value_heads", heads)
    if family.latent:
        key_width = read.number("qk_nope_head_dim") + read.number("qk_rope_head_dim")
        value_width, kv_heads = read.number("v_head_dim"), heads
    return Architecture(
        name=name or kind,
        kind=kind,
        hidden=hidden,
        vocabulary=read.number("vocab_size"),
        heads=heads,
        kv_heads=kv_heads,
        key_width=key_width,
        value_width=value_width,
        mlp_width=read.number("intermediate_size", 4 * hidden),
        blocks=tuple(_blocks(read, hidden, (heads, kv_heads, key_width, value_width))),
        tied=bool(read.get("tie_word_embeddings")),
        learned_positions=read.number(family.positions) if family.positions else 0,
        head_bias=family.head_bias,
        final_norm_parameters=_norm_size(family, hidden) if family.final_norm else 0,
        context=read.get("max_position_embeddings"),
        sliding_window=read.get("sliding_window") if read.get("use_sliding_window", True) else None,
        family=family,
    )


@cache
def size_classes() -> Mapping[str, dict[str, Any]]:
    """Map each size class to its representative published model, with the shape from its config.json."""
    return read_table(SIZES)


# --- one layer --------------------------------------------------------------------------------------------------------


def _blocks(read: _Reader, hidden: int, heads: tuple[int, int, int, int]) -> Iterator[tuple[int, Block]]:
    family, layers = read.family, read.number("num_hidden_layers")
    experts = family.experts
    dense = layers if experts is None else _dense_layers(read, experts, layers)
    if dense:
        yield dense, _block(read, hidden, heads, experts=None)
    if layers > dense:
        yield layers - dense, _block(read, hidden, heads, experts=experts)


def _dense_layers(read: _Reader, experts: Experts, layers: int) -> int:
    """Count the layers of a mixture that have a plain MLP: the first, the listed, and those between sparse steps."""
    first = read.number(experts.dense_layers) if experts.dense_layers else 0
    named, step = read.get("mlp_only_layers", ()), read.get("decoder_sparse_step", 1)
    return sum(layer < first or layer in named or (layer + 1) % step > 0 for layer in range(layers))


def _block(read: _Reader, hidden: int, heads: tuple[int, int, int, int], *, experts: Experts | None) -> Block:
    family, (num_heads, kv_heads, key_width, value_width) = read.family, heads
    norms = family.norms * _norm_size(family, hidden)
    if family.qk_norm:
        norms += key_width * (2 if family.qk_norm == "head" else num_heads + kv_heads)
    if family.latent:
        attention, latents = _latent_attention(read, hidden, heads)
        norms += latents
    else:
        attention = _attention(read, hidden, num_heads * key_width, kv_heads * key_width, kv_heads * value_width)
    other = num_heads if family.sinks else 0
    if experts is None:
        mlp, mixture = _mlp(read, hidden, read.number("intermediate_size", 4 * hidden)), None
    else:
        mixture = Mixture(
            read.number(next((name for name in EXPERT_NUMBERS if read.get(name) is not None), experts.number)),
            read.number(experts.per_token),
            read.number(experts.width),
            hidden,
            experts.biases,
        )
        shared = _shared_width(read, experts)
        mlp = _mlp(read, hidden, shared) if shared else ()
        other += hidden if experts.shared_gate else 0
    return Block(attention=attention, mlp=mlp, mixture=mixture, norm_parameters=norms, other_parameters=other)


def _attention(read: _Reader, hidden: int, queries: int, keys: int, values: int) -> tuple[Linear, ...]:
    bias, out = read.flag(read.family.qkv_bias), Linear("o", queries, hidden, read.flag(read.family.out_bias))
    if read.family.fused_qkv:
        return Linear("qkv", hidden, queries + keys + values, bias), out
    return Linear("q", hidden, queries, bias), Linear("k", hidden, keys, bias), Linear("v", hidden, values, bias), out


def _latent_attention(read: _Reader, hidden: int, heads: tuple[int, int, int, int]) -> tuple[tuple[Linear, ...], int]:
    """Return the matrices, and the number of parameters in the norms of the latent states."""
    num_heads, _, key_width, value_width = heads
    rank, rope = read.number("kv_lora_rank"), read.number("qk_rope_head_dim")
    query_rank = read.get("q_lora_rank")
    queries = [Linear("q", hidden, num_heads * key_width)]
    if query_rank:
        queries = [Linear("q_a", hidden, query_rank), Linear("q_b", query_rank, num_heads * key_width)]
    matrices = (
        *queries,
        Linear("kv_a", hidden, rank + rope),
        Linear("kv_b", rank, num_heads * (key_width - rope + value_width)),
        Linear("o", num_heads * value_width, hidden),
    )
    return matrices, rank + (query_rank or 0)


def _mlp(read: _Reader, hidden: int, width: int) -> tuple[Linear, ...]:
    form, bias = read.family.mlp, read.flag(read.family.mlp_bias)
    down = Linear("down", width, hidden, bias)
    if form == "plain":
        return Linear("up", hidden, width, bias), down
    if form == "fused gated":
        return Linear("gate_up", hidden, 2 * width, bias), down
    return Linear("gate", hidden, width, bias), Linear("up", hidden, width, bias), down


def _shared_width(read: _Reader, experts: Experts) -> int:
    if experts.shared_number:
        return read.number(experts.shared_number, 0) * read.number(experts.width)
    return read.number(experts.shared_width) if experts.shared_width else 0


def _norm_size(family: Family, width: int) -> int:
    return 2 * width if family.norm == "layer" else width


# --- reading ----------------------------------------------------------------------------------------------------------


class _Reader:
    """Values of a config.json, looked up by their usual names."""

    def __init__(self, name: str, family: Family, config: Mapping[str, Any]) -> None:
        self.name, self.family, self.config = name, family, config

    def get(self, key: str, default: Any = None) -> Any:
        value = self.config.get(self.family.names.get(key, key))
        return self.family.defaults.get(key, default) if value is None else value

    def number(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ModelError(
                given=f"config.json of {self.name}: {self.family.names.get(key, key)} = {value!r}",
                allowed="a whole number",
                fix="Give the complete config.json of the model.",
            )
        return value

    def flag(self, given: bool | str) -> bool:
        return bool(self.get(given)) if isinstance(given, str) else given


def _text_part(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the type and settings of the language model. A multi-part config has them in its own section."""
    text = config.get("text_config")
    if isinstance(text, Mapping):
        if "vision_config" in config or "audio_config" in config:
            raise ModelError(
                given=f"config.json describes a model of type {config.get('model_type')!r} with parts other than text",
                allowed="a language model",
                fix="Give only its language model.",
            )
        config = text
    return str(config.get("model_type")), config


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            given=f"{path} cannot be read: {error}",
            allowed="the config.json of a Hugging Face model",
            fix="Give the folder of a model, or its config.json.",
        ) from error
    if not isinstance(found, Mapping):
        raise ModelError(given=f"{path} holds no settings", allowed="the config.json of a Hugging Face model")
    return found


def _cached_config(model: str) -> Path | None:
    """Return the config.json of a model in the local cache of the Hub, or None."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, "config.json")
    except HFValidationError:  # not a valid model name
        return None
    return Path(found) if isinstance(found, str) else None
