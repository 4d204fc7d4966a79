"""Reward models: a decoder with a linear head that gives one score per row, read at the last token of the row.

They are transformers' own sequence classifiers with one label. So any library opens what is saved here, and any folder
of that kind can be used for scoring. The file `reward_model.json` next to the weights says how rows were rendered in
training.

Models that score steps (`STEP_SCORES`) are transformers' token classifiers with one label
(`AutoModelForTokenClassification`). Every token gets a logit, and only the logits at the ends of steps have a meaning.
They are loaded and saved in the same way, with another class of transformers.

B rows, T tokens, L packed tokens, N ends of steps, D width of the hidden state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
)

from posttrain.errors import ModelError
from posttrain.functional.step_scores import Aggregate
from posttrain.models.entering import enter, is_sharded
from posttrain.models.forward_path import body_path, without_adapters
from posttrain.models.load import LoadedModel, choose_device, make_ready
from posttrain.models.modes import without_progress_bars, without_warnings
from posttrain.models.reading import ModelSource, attention_of, explained, find_source, refuse_quantised
from posttrain.models.save import merged_weights, room_beside, verify_weights, write_weights
from posttrain.models.transfer import to_device
from posttrain.models.unread import open_weights
from posttrain.types import Tokens

if TYPE_CHECKING:
    from posttrain.config import ModelConfig

FACTS = "reward_model.json"


@dataclass(frozen=True, kw_only=True)
class HeadForm:
    """A kind of transformers model that has a body and a linear head with one output."""

    suffix: str
    """The ending of the names of their classes."""
    opened_by: Any
    architectures: Mapping[str, str]
    """Model types that have such a class."""
    gives: str
    trained_by: str


ROW_SCORES = HeadForm(
    suffix="ForSequenceClassification",
    opened_by=AutoModelForSequenceClassification,
    architectures=MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    gives="score",
    trained_by="algorithm reward_model, or the section reward_model of the config",
)


@dataclass(frozen=True, kw_only=True)
class ScoringFacts:
    """How the rows of a reward model were rendered in its training, and how its scores are distributed."""

    chat: bool | None = None
    """Whether plain prompts were wrapped as a user turn. None: if the tokenizer has a chat template."""
    system_prompt: str | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    eos_ids: tuple[int, ...] = ()
    """Ids that end an answer; empty: the tokenizer's."""
    mean: float | None = None
    """Mean score of the held-out answers, chosen and rejected; None without held-out data."""
    std: float | None = None
    answers: int = 0
    """Number of answers behind mean and std."""
    accuracy: tuple[float, float, float] | None = None
    """Share of held-out pairs that it ranks as people did, with the ends of its interval; None without pairs."""
    link: Literal["identity", "logistic"] = "identity"
    """Relation of a score to the head's output z: link(z) * target_std + target_mean, in the units of the ratings that
    the model was trained on."""
    target_mean: float = 0.0
    target_std: float = 1.0
    separator: str | None = None
    """For a model that scores steps: the text that ends each step."""
    aggregate: Aggregate = "min"
    """How the scores of the steps become the score of an answer."""

    def in_units(self, outputs: Tensor) -> Tensor:
        """Return the scores for outputs of the head."""
        linked = outputs.sigmoid() if self.link == "logistic" else outputs
        return linked * self.target_std + self.target_mean

    @staticmethod
    def read(folder: Path) -> ScoringFacts:
        """Return the scoring facts in the folder; the defaults for a model that was trained elsewhere."""
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
    config: ModelConfig,
    *,
    seed: int = 0,
    trained: bool = False,
    device: str | torch.device | None = None,
    form: HeadForm = ROW_SCORES,
    in_parts: bool = False,
) -> LoadedModel:
    """Return a scoring model: a saved one unchanged, or a causal language model with a new head.

    The weight of a new head is drawn from N(0, 1 / (D + 1)^2) by `seed` alone; its bias, if there is one, is 0. With
    `trained`, a model without a trained head is refused. `in_parts` and errors are as for `load_model`.
    """
    place = choose_device(str(device) if device is not None else config.device)
    source = find_source(config)
    hf_config = _read_config(config, source, form, trained=trained)
    read = partial(_read_weights, config, source, hf_config, form)
    model, missing, notes = open_weights(source, place, read, in_parts=in_parts)
    head = score_head(model)
    own = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter is head.weight or parameter is head.bias
    }
    unread = sorted({*missing} - own.keys())
    if unread or (missing and trained):
        raise ModelError(
            given=f"model.path = {config.path!r}: weights are missing ({len(missing)}): {', '.join(missing[:3])}",
            allowed=f"weights for every parameter of {type(model).__name__}",
            fix="Give the complete model; config.json and the weights must belong together.",
        )
    for name in missing:
        leaf = name.rpartition(".")[2]
        new = nn.Parameter(torch.zeros(own[name].shape))
        if leaf != "bias":
            generator = torch.Generator().manual_seed(seed)
            nn.init.normal_(new, std=1 / (head.in_features + 1), generator=generator)
        setattr(head, leaf, new)
    generation_config = None
    with suppress(OSError):  # a classifier has none; a language model's has ids that the tokenizer does not know
        generation_config = GenerationConfig.from_pretrained(source.path)
    return make_ready(config, source, model, generation_config, place, notes)


def _read_config(config: ModelConfig, source: ModelSource, form: HeadForm, *, trained: bool) -> PreTrainedConfig:
    with explained(config, source, "config.json"):
        hf_config = AutoConfig.from_pretrained(source.path, **source.arguments)
    refuse_quantised(config, hf_config)
    declared = getattr(hf_config, "architectures", None) or [f"model type {hf_config.model_type}"]
    scores = any(name.endswith(form.suffix) for name in declared)
    if scores and hf_config.num_labels != 1:
        raise ModelError(
            given=f"model.path = {config.path!r} holds {declared[0]} with {hf_config.num_labels} labels",
            allowed=f"one label: the {form.gives}",
            fix="Give a reward model; a classifier has a probability per label.",
        )
    if trained and not scores:
        raise ModelError(
            given=f"model.path = {config.path!r} holds {declared[0]}, which gives no {form.gives}",
            allowed=f"a classifier with one label (…{form.suffix})",
            fix=f"Train a reward model first: {form.trained_by}.",
        )
    if hf_config.model_type not in form.architectures:
        raise ModelError(
            given=f"model.path = {config.path!r} holds {declared[0]}, for which transformers has no …{form.suffix}",
            allowed=f"an architecture with a …{form.suffix} class",
            fix="Use another model, such as one of the Llama, Qwen, Gemma or Mistral families.",
        )
    hf_config.num_labels = 1
    return hf_config


def _read_weights(
    config: ModelConfig, source: ModelSource, hf_config: PreTrainedConfig, form: HeadForm, on_meta: bool
) -> tuple[PreTrainedModel, list[str]]:
    """Return the model, and the names of the missing weights."""
    with explained(config, source, "the weights"), without_progress_bars(), without_warnings():
        model, report = form.opened_by.from_pretrained(
            source.path,
            config=hf_config,
            dtype=torch.float32,
            attn_implementation=attention_of(config, hf_config),
            output_loading_info=True,
            **source.arguments,
            **({"device_map": "meta"} if on_meta else {}),
        )
    return model, sorted(report["missing_keys"])


def score_head(model: nn.Module) -> nn.Linear:
    """Return the head that gives the score: the only part besides the body that has weights."""
    plain = without_adapters(model)
    body = body_of(plain)
    beside = [part for part in plain.children() if part is not body and any(True for _ in part.parameters())]
    if len(beside) == 1 and isinstance(head := beside[0], nn.Linear) and head.out_features == 1:
        return head
    raise ModelError(
        given=f"the head of {type(plain).__name__} has an unknown form",
        allowed="one linear layer with one output on the hidden states of a decoder",
        fix="Use a model of a standard decoder architecture.",
    )


def body_of(model: nn.Module) -> nn.Module:
    """Return the part that computes the hidden states."""
    assert isinstance(model, PreTrainedModel)
    return model.base_model


def row_scores(model: nn.Module, tokens: Tokens) -> Tensor:
    """Return `[B]` scores with gradient: the head's output for the hidden state of the last token of each row.

    The length of the row gives that token, never a search for a pad id. An answer that was cut has a last token like
    any other (RULE 43).
    """
    width = tokens.input_ids_BT.shape[1]
    return scores_at(model, tokens, torch.arange(len(tokens.lengths_B)) * width + tokens.lengths_B.cpu() - 1)


def scores_at(model: nn.Module, tokens: Tokens, index_N: Tensor) -> Tensor:
    """Return `[N]` scores with gradient: the head on the hidden states of these tokens of the flattened `[B, T]`.

    Every real token goes through the body, padding never, and a common beginning of rows once. The head computes in the
    precision of its weights, regardless of an enclosing autocast.
    """
    return enter(model, lambda: _scores_at(model, tokens, index_N))


def _scores_at(model: nn.Module, tokens: Tokens, index_N: Tensor) -> Tensor:
    plain, head = without_adapters(model), score_head(model)
    assert isinstance(plain, PreTrainedModel)
    path = body_path(plain, body_of(plain))
    packed = path.pack_whole(tokens)
    places_N = packed.place_BT.flatten()[index_N]
    ids_L = tokens.input_ids_BT.flatten().index_select(0, packed.token_index_L.to(tokens.input_ids_BT.device))
    hidden_LD = path.hidden(to_device(ids_L, plain.device), packed)
    hidden_ND = hidden_LD.index_select(0, to_device(places_N, hidden_LD.device))
    with torch.autocast(hidden_ND.device.type, enabled=False):
        return head(hidden_ND.to(head.weight.dtype))[:, 0]


def save_reward_model(loaded: LoadedModel, folder: Path, facts: ScoringFacts) -> Path:
    """Write `folder` so that transformers opens it as the class that it is, with its tokenizer; merge adapters.

    Raises CheckpointError if what is read back differs from what was written.
    """
    plain = without_adapters(loaded.model)
    assert isinstance(plain, PreTrainedModel)
    with room_beside(folder, loaded.model) as keep, without_progress_bars():
        weights = merged_weights(loaded.model, keep)
        write_weights(plain, folder, weights, in_parts=is_sharded(loaded.model))
        loaded.tokenizer.save_pretrained(folder)
        verify_weights(folder, plain, weights)
    facts.write(folder)
    return folder


STEP_SCORES = HeadForm(
    suffix="ForTokenClassification",
    opened_by=AutoModelForTokenClassification,
    architectures=MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    gives="score of steps",
    trained_by="algorithm process_reward_model",
)


def load_step_model(
    config: ModelConfig,
    *,
    seed: int = 0,
    trained: bool = False,
    device: str | torch.device | None = None,
    in_parts: bool = False,
) -> LoadedModel:
    """Do the same as `load_reward_model`, with a head that is read at every step."""
    return load_reward_model(config, seed=seed, trained=trained, device=device, form=STEP_SCORES, in_parts=in_parts)


def scores_steps(place: str) -> bool:
    """Return whether a folder, or a name on the Hub, holds a model that scores steps. False also for anything else."""
    try:
        declared = AutoConfig.from_pretrained(place).architectures or []
    except (OSError, ValueError):
        return False
    return any(name.endswith(STEP_SCORES.suffix) for name in declared)


def step_scores(model: nn.Module, tokens: Tokens, ends_BT: Tensor) -> Tensor:
    """Return `[B, T]` logits with gradient where `ends_BT` is True, 0 elsewhere.

    The logit of a token comes from the hidden state of that same token, which has seen all of its step.
    """
    ends_N = ends_BT.flatten().nonzero()[:, 0].cpu()
    scores_N = scores_at(model, tokens, ends_N)
    scores_BT = scores_N.new_zeros(ends_BT.numel()).index_put((to_device(ends_N, scores_N.device),), scores_N)
    return scores_BT.unflatten(0, ends_BT.shape)
