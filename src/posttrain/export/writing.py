"""Writing a Hugging Face folder: merged weights in the precision that was asked for, tokenizer, generation config."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from posttrain.export.origin import Head
from posttrain.export.replay import digests
from posttrain.models.forward_path import without_adapters
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import ScoringFacts, save_reward_model
from posttrain.models.save import save_model


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written, and what whoever opens it must find."""

    dtype: str
    digests: dict[str, str]
    """Of each weight under the name that transformers gives it."""
    parameters: int
    file: str | None = None
    """The one file that is the model, where it is one."""
    stop_strings: tuple[str, ...] = ()
    """Of `generation_config.json`."""


def merged(loaded: LoadedModel) -> LoadedModel:
    """The same model without adapters: theirs is added to the weights that they sit on."""
    if not isinstance(loaded.model, PeftModel):
        return loaded
    return replace(loaded, model=loaded.model.merge_and_unload())  # type: ignore[arg-type]


def write_hf(loaded: LoadedModel, head: Head, folder: Path, *, dtype: str, facts: ScoringFacts | None) -> Written:
    """Fill `folder`; the model in memory is cast to `dtype`. Raises CheckpointError when it cannot be read back."""
    model = loaded.model.to(getattr(torch, dtype))  # type: ignore[arg-type]
    cast = replace(loaded, model=model)
    if head == "tokens":
        save_model(model, loaded.tokenizer, folder, eos_ids=loaded.eos_ids, pad_id=loaded.pad_id)
    else:
        save_reward_model(cast, folder, facts or ScoringFacts())
    plain = without_adapters(model)
    assert isinstance(plain, PreTrainedModel)
    return Written(
        dtype=dtype,
        digests=digests(plain.state_dict().items()),
        parameters=plain.num_parameters(),
        stop_strings=stop_strings(plain) if head == "tokens" else (),
    )


def stop_strings(model: PreTrainedModel) -> tuple[str, ...]:
    """Those of the model's generation config, which a model that scores need not have."""
    settings: Any = getattr(model, "generation_config", None)
    return tuple(getattr(settings, "stop_strings", None) or ())
