"""Writing the file: keys, vocabulary, chat template, tensors; and beside it what GGUF has no key for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from posttrain.export.gguf.architectures import architecture_of, metadata
from posttrain.export.gguf.tensors import encoded
from posttrain.export.gguf.vocabulary import Vocabulary, vocabulary
from posttrain.export.replay import digest
from posttrain.export.writing import Written, stop_strings
from posttrain.models.load import LoadedModel
from posttrain.models.save import generation_config

_FILE_TYPES = {
    "float32": gguf.LlamaFileType.ALL_F32,
    "float16": gguf.LlamaFileType.MOSTLY_F16,
    "bfloat16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}


class _Writer(gguf.GGUFWriter):
    """Also writes a list without entries: llama.cpp wants the key of the merges, even where there are none."""

    def _pack_val(self, val: Any, vtype: gguf.GGUFValueType, add_vtype: bool, sub_type: Any = None) -> bytes:
        if vtype == gguf.GGUFValueType.ARRAY and len(val) == 0:
            head = self._pack("I", vtype) if add_vtype else b""
            return head + self._pack("I", sub_type) + self._pack("Q", 0)
        return super()._pack_val(val, vtype, add_vtype, sub_type)


def write_gguf(loaded: LoadedModel, folder: Path, *, name: str, dtype: str) -> Written:
    """Write `<name>-<dtype>.gguf` into `folder`. Raises ModelError for a model or a tokenizer that has no such form."""
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
    """llama.cpp ends an answer at the ids of EOS, of a turn's end and of a message's end: one key for each."""
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
