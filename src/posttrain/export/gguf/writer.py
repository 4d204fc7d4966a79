"""Writes the GGUF file: keys, vocabulary, chat template, tensors. Settings without a GGUF key go into another file.

Names, row order and precision of the weights follow GGUF.

For its architecture llama, llama.cpp rotates neighbouring components of a head, (2i, 2i + 1). transformers rotates
component i with i + d/2. So the rows of each head's query and key matrices are written as 0, d/2, 1, d/2 + 1, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from posttrain.errors import ModelError
from posttrain.export.gguf.architectures import Architecture, architecture_of, metadata
from posttrain.export.gguf.vocabulary import Vocabulary, vocabulary
from posttrain.export.replay import digest
from posttrain.export.target import Written, stop_strings
from posttrain.models.load import LoadedModel
from posttrain.models.save import generation_config

KINDS = {
    "float32": gguf.GGMLQuantizationType.F32,
    "float16": gguf.GGMLQuantizationType.F16,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
BLOCK = 32
"""Number of weights that share a scale in q8_0. A matrix whose row length is not a multiple is written as float16."""


class Encoded(NamedTuple):
    """One tensor of the file."""

    name: str
    """Name in the file."""
    data: np.ndarray
    kind: gguf.GGMLQuantizationType
    source: str
    """Name in transformers."""
    meant: Tensor
    """The values that a reader must get, in float32 and in the row order of transformers."""


def encoded(model: PreTrainedModel, found: Architecture, dtype: str) -> Iterator[Encoded]:
    """Yield every weight once. A tied head is left out, because readers then use the embedding. Raises ModelError for a
    weight without a name in GGUF."""
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
    """Return the precision of a weight. Vectors (norms, biases) are always float32, as llama.cpp requires."""
    if values.ndim == 1:
        return KINDS["float32"]
    return KINDS["float16" if dtype == "q8_0" and values.shape[-1] % BLOCK else dtype]


def in_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of each head from halves to pairs.

    >>> in_pairs(np.arange(8), heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    split = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return split.swapaxes(1, 2).reshape(values.shape)


_FILE_TYPES = {
    "float32": gguf.LlamaFileType.ALL_F32,
    "float16": gguf.LlamaFileType.MOSTLY_F16,
    "bfloat16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}


class _Writer(gguf.GGUFWriter):
    """A writer that also writes empty lists: llama.cpp needs the key of the merges even if there are none."""

    def _pack_val(self, val: Any, vtype: gguf.GGUFValueType, add_vtype: bool, sub_type: Any = None) -> bytes:
        if vtype == gguf.GGUFValueType.ARRAY and len(val) == 0:
            head = self._pack("I", vtype) if add_vtype else b""
            return head + self._pack("I", sub_type) + self._pack("Q", 0)
        return super()._pack_val(val, vtype, add_vtype, sub_type)


def write_gguf(loaded: LoadedModel, folder: Path, *, name: str, dtype: str) -> Written:
    """Write `<name>-<dtype>.gguf` into `folder`. Raises ModelError if GGUF cannot express the model or tokenizer."""
    model = loaded.model
    assert isinstance(model, PreTrainedModel)
    found = architecture_of(model.config)
    rows = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[union-attr,arg-type]
    words = vocabulary(loaded.tokenizer, rows)
    file = f"{name}-{dtype}.gguf"
    writer = _Writer(folder / file, found.name)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(_FILE_TYPES[dtype])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in metadata(model.config, found).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{found.name}.{key}", value)  # type: ignore[arg-type]
    _add_vocabulary(writer, words)
    _add_special(writer, loaded.tokenizer, sorted(loaded.eos_ids), loaded.pad_id)
    digests = {}
    for tensor in encoded(model, found, dtype):
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.kind)
        digests[tensor.source] = digest(tensor.meant)
    if model.config.tie_word_embeddings:
        digests["lm_head.weight"] = digests["model.embed_tokens.weight"]
    _flush(writer)
    generation_config(model, loaded.eos_ids, loaded.pad_id).to_json_file(folder / "generation_config.json")
    return Written(
        dtype=dtype,
        digests=digests,
        parameters=model.num_parameters(),
        file=file,
        stop_strings=stop_strings(model),
    )


def _add_vocabulary(writer: _Writer, words: Vocabulary) -> None:
    writer.add_tokenizer_model(words.model)
    writer.add_tokenizer_pre(words.pre)
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.types)
    texts = gguf.GGUFValueType.STRING
    writer.add_key_value(gguf.Keys.Tokenizer.MERGES, list(words.merges), gguf.GGUFValueType.ARRAY, sub_type=texts)
    if words.scores is not None:
        writer.add_token_scores(words.scores)
    if words.add_space_prefix is not None:
        writer.add_add_space_prefix(words.add_space_prefix)


def _add_special(writer: _Writer, tokenizer: PreTrainedTokenizerBase, eos_ids: Sequence[int], pad_id: int) -> None:
    """Write the special tokens. llama.cpp has one key each for EOS, end of turn and end of message: all end answers."""
    own: Any = tokenizer.eos_token_id
    ends: Sequence[Any] = [own, *(i for i in eos_ids if i != own)] if own in eos_ids else eos_ids
    adds = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    others = [
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, pad_id),
    ]
    keys: list[tuple[Any, Any]] = [*zip(adds, ends, strict=False), *others]
    for add, number in keys:
        if number is not None:
            add(number)
    ids = tokenizer("a").input_ids
    writer.add_add_bos_token(tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id])
    writer.add_add_eos_token(ids[-1:] == [tokenizer.eos_token_id])
    if isinstance(template := tokenizer.chat_template, dict):
        template = template.get("default")
    if template:
        writer.add_chat_template(template)


def _flush(writer: _Writer) -> None:
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
