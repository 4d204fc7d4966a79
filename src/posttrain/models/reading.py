"""Reading a model folder or a name on the Hub, with a plain message for everything that can be wrong with it.

Many checks are made by hand, before or right after reading, because transformers fills gaps silently: missing weights
are initialised at random, and a model of another kind gets a head that was never trained.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from posttrain.config.urls import is_url, working_folder, wrong_url
from posttrain.errors import DoesNotFit, ModelError
from posttrain.models.modes import without_progress_bars
from posttrain.shown import shown
from posttrain.store.checkpoint import require_intact
from posttrain.store.folders import model_to_give

if TYPE_CHECKING:
    from posttrain.config import ModelConfig

HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True)
class ModelSource:
    """The place to read from, with the arguments that all `from_pretrained` functions share."""

    path: str
    folder: Path | None
    """The local folder; None for a name on the Hub."""
    arguments: dict[str, Any]


def find_source(config: ModelConfig) -> ModelSource:
    folder = Path(config.path).expanduser()
    arguments: dict[str, Any] = {"trust_remote_code": config.trust_remote_code}
    if config.revision is not None:
        arguments["revision"] = config.revision
    if config.gguf_file is not None:
        arguments["gguf_file"] = config.gguf_file
        _check_gguf(config, folder)
    if folder.is_dir():
        require_intact(folder)
        _check_revision(config)
        _check_folder(config, folder)
        return ModelSource(str(folder), folder, arguments)
    if folder.is_file():
        raise ModelError(
            given=f"model.path = {config.path!r} is a file",
            allowed="a folder, or a name on the Hugging Face Hub",
            fix=_gguf_fix(folder.parent, folder.name)
            if folder.suffix == ".gguf"
            else f"Set model.path = {str(folder.parent)!r}.",
        )
    if is_url(config.path) and wrong_url("model.path", config.path) is None:
        raise ModelError(
            given=f"model.path = {config.path!r} is a URL",
            allowed="a folder, or a name on the Hugging Face Hub",
            fix=_folder_of_url(config.path),
        )
    if not HUB_NAME.fullmatch(config.path):
        raise ModelError(
            given=f"model.path = {config.path!r}: there is no such folder",
            allowed="a folder with config.json and weights, or a name on the Hugging Face Hub such as Qwen/Qwen3-0.6B",
            fix=_near(folder) or f"Correct the path; it is taken relative to {os.getcwd()}.",
        )
    return ModelSource(config.path, None, arguments)


def _folder_of_url(url: str) -> str:
    """Return the advice to give a folder of this machine: the one that the URL names, or that of its run, if it is
    there."""
    folders = [working_folder(url), *([Path(urlsplit(url).path)] if url.startswith("file:") else [])]
    there = next((folder for folder in folders if folder.is_dir()), None)
    return "Copy its files to a folder, and give that." if there is None else f"Give the folder {str(there)!r}."


def _near(folder: Path) -> str:
    """Return `Did you mean ...?` if there is a folder with a similar name; else an empty text."""
    beside = [path.name for path in folder.parent.glob("*/")] if folder.parent.is_dir() else []
    close = difflib.get_close_matches(folder.name, beside, n=1)
    return f"Did you mean {str(folder.with_name(close[0]))!r}?" if close else ""


def _gguf_fix(folder: Path, name: str) -> str:
    return f"Set model: {{path: {str(folder)!r}, gguf_file: {name!r}}}."


def _check_gguf(config: ModelConfig, folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(
            given=f"model.gguf_file = {config.gguf_file!r}, but the package gguf is not installed",
            fix="Run: pip install 'posttrain[gguf]'",
        )
    if folder.is_dir() and not (folder / str(config.gguf_file)).is_file():
        there = sorted(file.name for file in folder.glob("*.gguf"))
        raise ModelError(
            given=f"model.gguf_file = {config.gguf_file!r}: there is no such file in {config.path!r}",
            allowed=", ".join(there) or "a GGUF file in that folder, which has none",
            fix="Correct model.gguf_file.",
        )


def _check_revision(config: ModelConfig) -> None:
    """Refuse a revision of a folder: transformers accepts one, but reads the folder as it is."""
    if config.revision is not None:
        raise ModelError(
            given=f"model.revision = {config.revision!r}, but model.path = {config.path!r} is a folder",
            allowed="a revision of a model on the Hub",
            fix="Leave model.revision out; a folder holds one revision.",
        )


def _check_folder(config: ModelConfig, folder: Path) -> None:
    """Check what shows without reading weights: config.json, weights, and whether their headers are complete."""
    _check_generation_config(folder / "generation_config.json")
    if config.gguf_file is not None:
        return
    given = f"model.path = {config.path!r} has no config.json"
    if not (folder / "config.json").is_file():
        ggufs = sorted(file.name for file in folder.glob("*.gguf"))
        if ggufs:
            raise ModelError(given=given, allowed="a Hugging Face model folder", fix=_gguf_fix(folder, ggufs[0]))
        if (folder / "adapter_config.json").is_file():
            raise ModelError(
                given=f"model.path = {config.path!r} is a LoRA adapter without its base model",
                allowed="a folder with a whole model",
                fix="Give the folder of the merged model; posttrain writes it as `model`, next to `adapter`. "
                f"Merge other adapters: posttrain export {shown(config.path)} NEW_FOLDER, with --base MODEL if "
                "the base model has moved.",
            )
        raise ModelError(
            given=given,
            allowed="a Hugging Face model folder (config.json, weights, tokenizer)",
            fix=model_to_give(folder) or _folder_fix(folder),
        )
    weights = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    if not weights:
        raise ModelError(
            given=f"model.path = {config.path!r} has no weights",
            allowed="model.safetensors or its shards",
            fix="Copy or download the weights into this folder.",
        )
    for file in weights:
        _check_header(file)


def _folder_fix(folder: Path) -> str:
    below = sorted(file.parent for file in folder.glob("*/config.json"))
    return f"Did you mean {str(below[0])!r}?" if below else "Correct the path, or download the model again."


def _check_generation_config(file: Path) -> None:
    """Refuse a file that cannot be read. transformers silently ignores it, but only it may know what ends an answer."""
    if not os.path.lexists(file):
        return
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            given=f"{file} cannot be read: {error}",
            allowed="a JSON object, or no such file: answers then end only at the tokenizer's EOS",
            fix="Copy or download this file again.",
        ) from error
    listed = content.get("eos_token_id") if isinstance(content, dict) else None
    ids = listed if isinstance(listed, list) else [listed]
    if not isinstance(content, dict) or not all(one is None or type(one) is int for one in ids):
        what = f": eos_token_id = {listed!r}" if isinstance(content, dict) else f" holds {str(content)[:60]}"
        raise ModelError(
            given=f"{file}{what}",
            allowed="a JSON object whose eos_token_id is an id or a list of them",
            fix="Correct this file.",
        )


def _check_header(file: Path) -> None:
    """Refuse a file that may not be read, or a safetensors file that is cut off or has a damaged header. A flipped bit
    in a tensor cannot be detected."""
    try:
        with file.open("rb"):  # for a file without permission, safetensors says that it does not exist
            pass
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as tensors:
                tensors.keys()
    except OSError as error:
        raise ModelError(
            given=f"{file} cannot be read: {error.strerror}",
            allowed="weights that you may read, including the targets of links",
            fix="Change its permissions, or copy or download this file again.",
        ) from error
    except SafetensorError as error:
        raise ModelError(
            given=f"{file} is damaged: {error}",
            allowed="a complete safetensors file",
            fix="Copy or download this file again.",
        ) from error


def read_config(config: ModelConfig, source: ModelSource) -> PreTrainedConfig:
    with explained(config, source, "config.json"):
        hf_config = AutoConfig.from_pretrained(source.path, **source.arguments)
    refuse_quantised(config, hf_config)
    known = {name for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() for name in _as_tuple(names)}
    declared = getattr(hf_config, "architectures", None) or []
    remote = "AutoModelForCausalLM" in (getattr(hf_config, "auto_map", None) or {})
    if hf_config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not remote:
        declared = declared or [f"model type {hf_config.model_type}"]
    elif remote or not declared or any(name in known for name in declared):
        return hf_config
    raise ModelError(
        given=f"model.path = {config.path!r} holds {', '.join(declared)}, which is not a causal language model",
        allowed="a decoder with a language-model head (…ForCausalLM)",
        fix="Give the folder of a causal language model; save one with AutoModelForCausalLM.",
    )


def refuse_quantised(config: ModelConfig, hf_config: PreTrainedConfig) -> None:
    quantisation = getattr(hf_config, "quantization_config", None)
    if quantisation is not None and not config.gguf_file:
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation.quant_method
        raise ModelError(
            given=f"model.path = {config.path!r} holds weights quantised with {method}",
            allowed="float32, float16 or bfloat16 weights, which can be trained as float32",
            fix="Use the model before quantisation.",
        )


def _as_tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def read_weights(
    config: ModelConfig, source: ModelSource, hf_config: PreTrainedConfig, *, on_meta: bool = False
) -> PreTrainedModel:
    """Return the model. `on_meta`: with shapes instead of weights; the files are checked all the same."""
    with explained(config, source, "the weights"), without_progress_bars():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.path,
            config=hf_config,
            dtype=torch.float32,
            attn_implementation=attention_of(config, hf_config),
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **source.arguments,
            **(_dequantized() if config.gguf_file else {}),
            **({"device_map": "meta"} if on_meta else {}),
        )
    model, report = loaded
    for kind, keys in (("are missing", report["missing_keys"]), ("have another shape", report["mismatched_keys"])):
        names = sorted(key if isinstance(key, str) else key[0] for key in keys)
        if names:
            raise ModelError(
                given=f"model.path = {config.path!r}: weights {kind} ({len(names)}): {_some(names)}",
                allowed=f"weights for every parameter of {type(model).__name__}",
                fix="Give the complete model; config.json and the weights must belong together.",
            )
    return model


def attention_of(config: ModelConfig, hf_config: PreTrainedConfig) -> str | None:
    """Return the attention to request. None: fused if the architecture has it, else eager; by name it could fail.

    Fused attention has no soft cap, and some versions of transformers silently drop it, so eager is requested.
    """
    capped = getattr(hf_config.get_text_config(), "attn_logit_softcapping", None) is not None
    return "eager" if config.attention == "eager" or capped else None


def _dequantized() -> dict[str, Any]:
    """Return arguments for GGUF files, whose weights newer versions of transformers keep quantised by default."""
    kind = getattr(transformers, "GgufConfig", None)
    return {} if kind is None else {"quantization_config": kind(dequantize=True)}


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def read_tokenizer(config: ModelConfig, source: ModelSource) -> PreTrainedTokenizerBase:
    if source.folder is not None and not config.gguf_file and not any(source.folder.glob("*token*")):
        raise ModelError(
            given=f"model.path = {config.path!r} has no tokenizer",
            allowed="tokenizer.json and tokenizer_config.json next to the weights",
            fix="Save one into this folder: AutoTokenizer.from_pretrained(...).save_pretrained(folder).",
        )
    with explained(config, source, "the tokenizer"):
        return AutoTokenizer.from_pretrained(source.path, **source.arguments)


def check_vocabulary(config: ModelConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the rows of the embedding. Every id of the tokenizer needs one; spare rows are usual."""
    embedding: Any = model.get_input_embeddings()
    rows = int(embedding.weight.shape[0])
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= rows:
        raise ModelError(
            given=f"model.path = {config.path!r}: the tokenizer has ids up to {largest}, the embedding has {rows} rows",
            allowed="a tokenizer whose ids all have an embedding",
            fix="Use the tokenizer that the model was trained with, or resize the model: "
            "model.resize_token_embeddings(len(tokenizer)).",
        )
    return rows


@contextmanager
def called(setting: str) -> Iterator[None]:
    """Make errors inside name the model by the setting that asks for it."""
    try:
        yield
    except (ModelError, DoesNotFit) as error:
        given, fix = (text.replace("model.path", setting) for text in (error.given, error.fix))
        raise type(error)(given=given, allowed=error.allowed, fix=fix) from error


@contextmanager
def explained(config: ModelConfig, source: ModelSource, what: str) -> Iterator[None]:
    """Turn any error of reading a model into a ModelError that says what it means."""
    try:
        yield
    except MemoryError as error:
        raise does_not_fit(config, error) from error
    except (
        OSError,
        ValueError,
        RuntimeError,
        KeyError,
        TypeError,
        AttributeError,
        ImportError,
        SafetensorError,
    ) as error:
        raise _explain(config, source, what, error) from error


def _explain(config: ModelConfig, source: ModelSource, what: str, error: Exception) -> ModelError | DoesNotFit:
    text = str(error)
    reason = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if "can't allocate memory" in text:
        return does_not_fit(config, error)
    if "trust_remote_code" in text:
        return ModelError(
            given=f"model.path = {config.path!r} needs Python code that comes with the model",
            allowed="code of transformers, unless you trust the author of the model",
            fix="Read that code; to run it, set model.trust_remote_code = true.",
        )
    if source.folder is None:
        offline = isinstance(error, OSError) and "connect" in text
        answer = "the Hugging Face Hub cannot be reached" if offline else f"the Hugging Face Hub says: {reason}"
        return ModelError(
            given=f"model.path = {config.path!r}: there is no such folder, and {answer}",
            allowed="a folder, or the name of a Hub model that can be downloaded or is in the cache",
            fix=_near(Path(config.path)) or "Download the model on a machine with a network, and give its folder."
            if offline
            else "Correct the name; for a gated model, log in with `hf auth login`.",
        )
    if "does not recognize this architecture" in text:
        return ModelError(
            given=f"the architecture of model.path = {config.path!r} is unknown to transformers: {reason}",
            allowed="an architecture of the installed transformers",
            fix="Upgrade transformers, or use another model.",
        )
    return ModelError(
        given=f"model.path = {config.path!r}: {what} cannot be read: {reason}",
        allowed="a Hugging Face model folder as save_pretrained writes it",
        fix="Copy or download the model again.",
    )


def does_not_fit(config: ModelConfig, error: BaseException) -> DoesNotFit:
    return DoesNotFit(
        given=f"model.path = {config.path!r}: the float32 weights need more memory than there is ({error})",
        fix="Use a smaller model, or a machine with more memory.",
    )
