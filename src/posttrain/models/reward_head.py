"""Reward models: a decoder with a linear head that gives one score per row, read at the last token of the row.

They are transformers' own sequence classifiers with one label, so that any library opens what is saved here, and any
folder of that kind can be scored with. Beside it lies `reward_model.json`: how rows were rendered when it was trained.

B rows, L packed tokens, D width of the hidden state.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from posttrain.errors import ModelError
from posttrain.models.forward_path import body_path, without_adapters
from posttrain.models.load import LoadedModel, choose_device, make_ready
from posttrain.models.packing import pack_whole
from posttrain.models.quiet import without_progress_bars, without_warnings
from posttrain.models.reading import Source, attention_of, explained, find_source, refuse_quantised
from posttrain.models.save import merged_weights, verify_weights
from posttrain.types import Tokens

if TYPE_CHECKING:
    from posttrain.config import ModelConfig

FACTS = "reward_model.json"


@dataclass(frozen=True, kw_only=True)
class ScoringFacts:
    """How the rows of a reward model were rendered in its training, and how its scores are distributed."""

    chat: bool | None = None
    """Plain prompts were wrapped as a user turn. None: whenever the tokenizer has a chat template."""
    system_prompt: str | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    eos_ids: tuple[int, ...] = ()
    """Ids that end an answer; empty: those of the tokenizer."""
    mean: float | None = None
    """Mean of the scores of the held-out answers, chosen and rejected; None without held-out data."""
    std: float | None = None
    answers: int = 0
    """How many answers mean and std are of."""

    @staticmethod
    def read(folder: Path) -> ScoringFacts:
        """What the folder says; the defaults for a model that was trained elsewhere."""
        if not (folder / FACTS).is_file():
            return ScoringFacts()
        try:
            saved = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            return ScoringFacts(**{**saved, "eos_ids": tuple(saved["eos_ids"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ModelError(
                given=f"{folder / FACTS} cannot be read: {error}",
                allowed="the file that was written with the model",
                fix="Copy the whole folder again.",
            ) from error

    def write(self, folder: Path) -> None:
        (folder / FACTS).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def load_reward_model(
    config: ModelConfig, *, seed: int = 0, trained: bool = False, device: str | torch.device | None = None
) -> LoadedModel:
    """A scoring model: a saved one as it is, or a causal language model whose head is replaced by a new one.

    A new head is drawn from N(0, 1 / (D + 1)^2) by `seed` alone. With `trained` a model without a trained head is
    refused. Raises as `load_model` does.
    """
    place = choose_device(str(device) if device is not None else config.device)
    source = find_source(config)
    hf_config = _read_config(config, source, trained=trained)
    model, missing = _read_weights(config, source, hf_config)
    head = score_head(model)
    unread = sorted({*missing} - {name for name, module in model.named_parameters() if module is head.weight})
    if unread or (missing and trained):
        raise ModelError(
            given=f"model.path = {config.path!r}: weights are missing ({len(missing)}): {', '.join(missing[:3])}",
            allowed=f"weights for every parameter of {type(model).__name__}",
            fix="Give the complete model; config.json and the weights must belong together.",
        )
    if missing:
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(head.weight, std=1 / (head.in_features + 1), generator=generator)
    generation_config = None
    with suppress(OSError):  # a classifier has none; a language model's knows ids that the tokenizer does not
        generation_config = GenerationConfig.from_pretrained(source.path)
    return make_ready(config, source, model, generation_config, place)


def _read_config(config: ModelConfig, source: Source, *, trained: bool) -> PreTrainedConfig:
    with explained(config, source, "config.json"):
        hf_config = AutoConfig.from_pretrained(source.path, **source.arguments)
    refuse_quantised(config, hf_config)
    declared = getattr(hf_config, "architectures", None) or [f"model type {hf_config.model_type}"]
    scores = any(name.endswith("ForSequenceClassification") for name in declared)
    if scores and hf_config.num_labels != 1:
        raise ModelError(
            given=f"model.path = {config.path!r} holds {declared[0]} with {hf_config.num_labels} labels",
            allowed="one label: the score",
            fix="Give a reward model; a classifier has a probability per label.",
        )
    if trained and not scores:
        raise ModelError(
            given=f"model.path = {config.path!r} holds {declared[0]}, which gives no score",
            allowed="a sequence classifier with one label (…ForSequenceClassification)",
            fix="Train a reward model first: algorithm reward_model, or the section reward_model of the config.",
        )
    if hf_config.model_type not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        raise ModelError(
            given=f"model.path = {config.path!r} holds {declared[0]}, for which transformers has no classifier",
            allowed="an architecture with a …ForSequenceClassification class",
            fix="Use another model, such as one of the Llama, Qwen, Gemma or Mistral families.",
        )
    hf_config.num_labels = 1
    return hf_config


def _read_weights(
    config: ModelConfig, source: Source, hf_config: PreTrainedConfig
) -> tuple[PreTrainedModel, list[str]]:
    """The model, and the names of the weights that were not there."""
    with explained(config, source, "the weights"), without_progress_bars(), without_warnings():
        model, report = AutoModelForSequenceClassification.from_pretrained(
            source.path,
            config=hf_config,
            dtype=torch.float32,
            attn_implementation=attention_of(config, hf_config),
            output_loading_info=True,
            **source.arguments,
        )
    return model, sorted(report["missing_keys"])


def score_head(model: nn.Module) -> nn.Linear:
    """The head that gives the score: the one part beside the body that has weights."""
    plain = without_adapters(model)
    body = body_of(plain)
    beside = [part for part in plain.children() if part is not body and any(True for _ in part.parameters())]
    if len(beside) == 1 and isinstance(head := beside[0], nn.Linear) and head.out_features == 1:
        return head
    raise ModelError(
        given=f"{type(plain).__name__} has a head of a form that is not known",
        allowed="one linear layer with one output on the hidden states of a decoder",
        fix="Use a model of a standard decoder architecture.",
    )


def body_of(model: nn.Module) -> nn.Module:
    """What gives the hidden states."""
    assert isinstance(model, PreTrainedModel)
    return model.base_model


def row_scores(model: nn.Module, tokens: Tokens) -> Tensor:
    """`[B]` scores with gradient: the head on the hidden state of the last token of each row.

    That token is found from the length of the row, never from a pad id, and an answer that was cut has its last token
    like any other (RULE 43). Every real token goes through the body once, padding never. The head computes in the
    precision of its weights, whatever the enclosing autocast says.
    """
    plain, head = without_adapters(model), score_head(model)
    assert isinstance(plain, PreTrainedModel)
    path, packed = body_path(plain, body_of(plain)), pack_whole(tokens)
    ids_L = tokens.input_ids_BT.flatten().index_select(0, packed.token_index_L.to(tokens.input_ids_BT.device))
    hidden_LD = path.hidden(ids_L.to(plain.device), packed)
    hidden_BD = hidden_LD.index_select(0, packed.source_N.to(hidden_LD.device))
    with torch.autocast(hidden_BD.device.type, enabled=False):
        return head(hidden_BD.to(head.weight.dtype))[:, 0]


def save_reward_model(loaded: LoadedModel, folder: Path, facts: ScoringFacts) -> Path:
    """Write `folder` so that `AutoModelForSequenceClassification` and `AutoTokenizer` open it; adapters are merged.

    Raises CheckpointError when what can be read back is not what was to be written.
    """
    plain = without_adapters(loaded.model)
    assert isinstance(plain, PreTrainedModel)
    weights = merged_weights(loaded.model)
    with without_progress_bars():
        plain.save_pretrained(folder, state_dict=dict(weights))
        loaded.tokenizer.save_pretrained(folder)
        verify_weights(folder, plain, weights)
    facts.write(folder)
    return folder
