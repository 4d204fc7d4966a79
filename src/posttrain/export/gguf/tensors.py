"""Weights as GGUF holds them: names, order of rows, precision.

llama.cpp rotates neighbouring components of a head, (2i, 2i + 1), for its architecture llama; transformers rotates
component i with i + d/2. So the rows of each head's query and key matrices are written as 0, d/2, 1, d/2 + 1, ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from posttrain.errors import ModelError
from posttrain.export.gguf.architectures import Architecture

KINDS = {
    "float32": gguf.GGMLQuantizationType.F32,
    "float16": gguf.GGMLQuantizationType.F16,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
BLOCK = 32
"""Weights that share a scale in q8_0; a matrix whose rows are no multiple of it is written as float16."""


class Encoded(NamedTuple):
    """One tensor of the file."""

    name: str
    """In the file."""
    data: np.ndarray
    kind: gguf.GGMLQuantizationType
    source: str
    """In transformers."""
    meant: Tensor
    """What a reader has to make of it, in float32 and in the order of transformers."""


def encoded(model: PreTrainedModel, found: Architecture, dtype: str) -> Iterator[Encoded]:
    """Every weight once: a tied head is left out, as readers take the embedding then. Raises ModelError for a weight
    that has no name in GGUF."""
    config: Any = model.config
    kind = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == found.name)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for source, tensor in model.state_dict().items():
        if source == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = names.get_name(source, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise ModelError(
                given=f"the weight {source} has no place in a GGUF file of architecture {found.name}",
                allowed="the weights of a plain model of that architecture",
                fix="Export with --to hf.",
            )
        values = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
        how = kind_of(values, dtype)
        data = gguf.quantize(values, how)
        meant = torch.from_numpy(np.array(gguf.dequantize(data, how), dtype=np.float32).reshape(values.shape))
        if found.permutes and (part := source.split(".")[-2]) in heads:
            data = gguf.quantize(in_pairs(values, heads[part]), how)
        yield Encoded(name, data, how, source, meant)


def kind_of(values: np.ndarray, dtype: str) -> gguf.GGMLQuantizationType:
    """Vectors (norms, biases) stay float32 in every file, as llama.cpp wants them."""
    if values.ndim == 1:
        return KINDS["float32"]
    return KINDS["float16" if dtype == "q8_0" and values.shape[-1] % BLOCK else dtype]


def in_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves to pairs.

    >>> in_pairs(np.arange(8), heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    split = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return split.swapaxes(1, 2).reshape(values.shape)
