"""Loads a model and its tokenizer for training: float32 weights, known EOS ids, a safe pad id, no dropout.

This module also decides which ids end an answer, and which id pads. There are two traps: a pad id that is also an EOS
id, and an EOS id that only `generation_config.json` knows. They make a model that never stops, or one whose saved copy
stops immediately. Nothing in this library tells EOS by `token != pad`. The pad id is chosen so that other programs
cannot fall into the trap either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from posttrain.control_groups import cores
from posttrain.errors import ConfigError, ModelError
from posttrain.models.compute import Compute, choose_compute_dtype
from posttrain.models.context import context_window, window_note, window_reason
from posttrain.models.forward_path import require_finite
from posttrain.models.reading import (
    ModelSource,
    check_vocabulary,
    does_not_fit,
    find_source,
    read_config,
    read_tokenizer,
    read_weights,
)
from posttrain.models.transformers_private import attention_name
from posttrain.models.unread import is_unread, open_weights

if TYPE_CHECKING:
    from posttrain.config import ModelConfig


def find_eos_ids(
    tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None, vocab_size: int
) -> frozenset[int]:
    """Return every id that ends an answer (RULE 3): the tokenizer's, and those of the generation config.

    Raises ModelError if there is none that the model can emit: all of its answers would be cut off for length.
    """
    listed = {*_as_ids(tokenizer.eos_token_id), *_as_ids(getattr(generation_config, "eos_token_id", None))}
    eos_ids = frozenset(i for i in listed if 0 <= i < vocab_size)
    if not eos_ids:
        outside = f"; {sorted(listed)} lie outside the vocabulary of {vocab_size}" if listed else ""
        raise ModelError(
            given=f"neither the tokenizer nor generation_config.json has an end-of-sequence token{outside}",
            allowed="at least one EOS id, without which no answer ever ends",
            fix='Add "eos_token": "..." to tokenizer_config.json, or "eos_token_id": N to generation_config.json.',
        )
    return eos_ids


def choose_pad_id(
    tokenizer: PreTrainedTokenizerBase,
    configs: Iterable[GenerationConfig | PreTrainedConfig | None],
    eos_ids: frozenset[int],
    vocab_size: int,
) -> int:
    """Return the id that pads: the declared one, else another special token; an EOS id only if there is no other."""
    declared = [tokenizer.pad_token_id, *(getattr(config, "pad_token_id", None) for config in configs)]
    candidates = [*declared, tokenizer.unk_token_id, *_other_specials(tokenizer), tokenizer.bos_token_id]
    suitable = (i for i in candidates if i is not None and 0 <= i < vocab_size and i not in eos_ids)
    return next(suitable, min(eos_ids))


def _other_specials(tokenizer: PreTrainedTokenizerBase) -> Iterator[int]:
    """Yield ids of special tokens without a role of their own, lowest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return (i for i, token in sorted(added.items()) if token.special and i != tokenizer.bos_token_id)


def _as_ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that can be trained, with its tokenizer and the facts that a run needs."""

    model: PreTrainedModel
    """The model with float32 weights, on `device`, in evaluation mode, without dropout. A model that was loaded in
    parts has its weights only after `fill` (unread.py)."""
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    """Every id that ends an answer."""
    pad_id: int
    """The id that pads; not one of `eos_ids` unless the vocabulary has no other."""
    context_length: int | None
    """Maximum tokens of prompt and completion together (context.py); None if the architecture sets no limit."""
    device: torch.device
    compute: Compute = field(default_factory=Compute)
    """How products run. A loaded model computes the plain way; a run chooses, see `choose_compute`."""
    notes: tuple[str, ...] = ()
    """Decisions that were made for the user, each worth a line in the log."""
    beside: dict[str, Callable[[], str]] = field(default_factory=dict)
    """For each frozen model that was loaded beside it, by its section of the config: the function that gives its hash
    (`start_key`). The first rank may call it between operations, because a sharded model is gathered for it."""

    @staticmethod
    def of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """Return a model that is already in memory, with its tokenizer. It stays as it is: its mode and dropout, too.

        Raises ModelError if its weights are not float32, or if no token ends an answer.
        """
        kinds = {parameter.dtype for parameter in model.parameters()} - {torch.float32}
        if kinds:
            raise ModelError(
                given=f"a model with weights of {', '.join(sorted(map(str, kinds)))}",
                allowed="float32: in lower precision, updates of 1e-6 round to nothing. Products run in bfloat16 "
                "anyway",
                fix="Load it with dtype=torch.float32, or call model.float().",
            )
        generation = getattr(model, "generation_config", None)
        size = int(model.get_input_embeddings().weight.shape[0])  # pyright: ignore[reportIndexIssue, reportArgumentType]
        eos_ids = find_eos_ids(tokenizer, generation if isinstance(generation, GenerationConfig) else None, size)
        return LoadedModel(
            model=model,
            tokenizer=tokenizer,
            eos_ids=eos_ids,
            pad_id=choose_pad_id(tokenizer, (generation, model.config), eos_ids, size),
            context_length=context_window(model.config),
            device=model.device,
        )

    @property
    def compute_dtype(self) -> torch.dtype:
        """The precision of computation under `autocast()`; the weights stay float32."""
        return self.compute.dtype

    @property
    def context_reason(self) -> str:
        """Why the context ends there, as a text to follow its length; "" if the architecture itself ends there."""
        return window_reason(self.model.config)

    def named(self, rows: str) -> str:
        """Return the name of the rows in an error, with the context if it is shorter than one may expect."""
        reason = self.context_reason
        return f"{rows} in a context of {self.context_length} tokens{reason}" if reason else rows

    def autocast(self) -> AbstractContextManager[Any]:
        """Run matrix products in `compute_dtype` inside. Sampler and trainer both compute inside."""
        return torch.autocast(self.device.type, self.compute_dtype, enabled=self.compute_dtype != torch.float32)


def load_model(config: ModelConfig, *, device: str | torch.device | None = None, in_parts: bool = False) -> LoadedModel:
    """Read model and tokenizer from a Hugging Face folder or name, or from a GGUF file in a folder.

    `device` overrides the config's. `in_parts`: the weights stay in their files until each process reads its part
    (unread.py); if that is impossible, the model is read whole, and a note says why. Raises ModelError for anything
    wrong with the model, ConfigError for a chat template that cannot be used, DoesNotFit if the weights need more
    memory than there is.
    """
    place = choose_device(str(device) if device is not None else config.device)
    source = find_source(config)
    hf_config = read_config(config, source)

    def read(on_meta: bool) -> tuple[PreTrainedModel, list[str]]:
        return read_weights(config, source, hf_config, on_meta=on_meta), []

    model, _, notes = open_weights(source, place, read, in_parts=in_parts)
    generation_config = model.generation_config if isinstance(model.generation_config, GenerationConfig) else None
    return make_ready(config, source, model, generation_config, place, notes)


def make_ready(
    config: ModelConfig,
    source: ModelSource,
    model: PreTrainedModel,
    generation_config: GenerationConfig | None,
    place: torch.device,
    notes: Iterable[str] = (),
) -> LoadedModel:
    """Return a model that was read, with its tokenizer, on its device and without dropout; `notes` come from reading.

    Raises the errors of `load_model`.
    """
    tokenizer = read_tokenizer(config, source)
    vocab_size = check_vocabulary(config, model, tokenizer)
    eos_ids = find_eos_ids(tokenizer, generation_config, vocab_size)
    pad_id = choose_pad_id(tokenizer, (generation_config, model.config), eos_ids, vocab_size)
    notes = [*notes, *hold_to_quota(), *_attention_note(config, model), *window_note(model.config)]
    notes += _set_pad(tokenizer, model.config, pad_id, eos_ids)
    if config.chat_template is not None:
        tokenizer.chat_template = _read_chat_template(config.chat_template, tokenizer)
    disable_dropout(model)
    train_every_token(model)
    if not is_unread(model):
        require_finite(model)
        try:
            model.to(place)  # type: ignore[arg-type]
        except torch.OutOfMemoryError as error:
            raise does_not_fit(config, error) from error
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        pad_id=pad_id,
        context_length=context_window(model.config),
        device=place,
        compute=Compute(dtype=choose_compute_dtype(config.precision, place), precision=config.precision),
        notes=tuple(notes),
    )


def choose_device(wanted: str) -> torch.device:
    """Return the device; `auto` is the GPU if there is one. Raises ModelError if CUDA is requested but absent."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if torch.device(wanted).type == "cuda" and not torch.cuda.is_available():
        built = "a build of PyTorch for the CPU" if torch.version.cuda is None else "no CUDA device"
        raise ModelError(
            given=f"model.device = {wanted!r}, but this machine has {built}",
            allowed="auto or cpu",
            fix="Set model.device = auto.",
        )
    return torch.device(wanted)


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout of the modules to 0, so that a log-probability depends only on the weights in training, too.

    The config keeps its values, so a saved model is unchanged. Adapters that are added later keep their own dropout.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def train_every_token(model: PreTrainedModel) -> None:
    """Let the embedding of the pad id learn like any other.

    PyTorch drops the gradient of that row, which is right only for padding. Here no padding is computed. If the pad id
    is also a real token (an EOS that closes each turn), its gradient would be silently lost.
    """
    embedding = model.get_input_embeddings()
    if isinstance(embedding, nn.Embedding):
        embedding.padding_idx = None


def hold_to_quota() -> list[str]:
    """Limit PyTorch's threads to the cores that this container may use. Threads on other cores delay all.

    Returns a sentence for the log if this changed anything. If `OMP_NUM_THREADS` is set, it is respected.
    """
    seen, usable = torch.get_num_threads(), cores()
    if seen <= usable or "OMP_NUM_THREADS" in os.environ:
        return []
    torch.set_num_threads(usable)
    threads = "1 thread" if usable == 1 else f"{usable} threads"
    return [f"{threads}, not {seen}: this container may not use more of the processor"]


def _attention_note(config: ModelConfig, model: PreTrainedModel) -> list[str]:
    if config.attention == "sdpa" and attention_name(model.config) == "eager":
        return [f"model.attention: {type(model).__name__} has no fused attention in transformers; eager is used"]
    return []


def _set_pad(
    tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, pad_id: int, eos_ids: frozenset[int]
) -> list[str]:
    """Give tokenizer and config the chosen pad id if they have none or one that is an EOS. Return notes about it."""
    if getattr(config, "pad_token_id", None) in {None, *eos_ids}:
        config.pad_token_id = pad_id
    before = tokenizer.pad_token
    if tokenizer.pad_token_id not in {None, *eos_ids} or tokenizer.pad_token_id == pad_id:
        return []
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad_id)
    if before is None:
        return [f"the tokenizer had no pad token; {tokenizer.pad_token!r} is used"]
    return [f"the pad token was {before!r}, which also ends answers; {tokenizer.pad_token!r} is used instead"]


def _read_chat_template(path: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the template in that file, after a test that it renders one user turn."""
    file = Path(path).expanduser()
    try:
        template = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            given=f"model.chat_template = {path!r} cannot be read: {error}",
            allowed="the path of a text file with a Jinja template",
            fix="Correct the path, or leave chat_template out to use the tokenizer's own.",
        ) from error
    try:
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hello"}], chat_template=template, tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # a template is a program, and may fail in any way
        raise ConfigError(
            given=f"model.chat_template = {path!r} cannot render a user turn: {type(error).__name__}: {error}",
            allowed="a Jinja template over `messages` and `add_generation_prompt`",
            fix="Correct the template.",
        ) from error
    return template
