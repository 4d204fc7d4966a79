"""The forward pass of a run: a model with its temperature, its precision and its critic, from a batch to outputs.

Frozen models besides the policy, a teacher or a separate reference, are loaded here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from posttrain.errors import ConfigError
from posttrain.models.adapters import Model, apply_lora
from posttrain.models.compute import Compute, dtype_name
from posttrain.models.critic import Critic
from posttrain.models.entering import computes_on, is_sharded
from posttrain.models.forward import token_logprobs
from posttrain.models.forward_path import shares_prefixes, without_adapters
from posttrain.models.identity import start_key
from posttrain.models.load import LoadedModel, load_model
from posttrain.models.modes import recompute_activations
from posttrain.models.named import resolve_model_path
from posttrain.models.reading import called
from posttrain.models.sharding import layout_of, shard
from posttrain.models.unread import is_unread
from posttrain.ranks.agreement import ONE
from posttrain.types import Batch, Outputs

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm
    from posttrain.config import ReferenceConfig, RunConfig, TeacherConfig

    FrozenConfig = TeacherConfig | ReferenceConfig


class Forward:
    """Batch -> Outputs through one model: the trainer's one definition of a log-probability.

    `scope` is entered for every pass; for the reference it switches the adapters off. With a `critic`, the outputs also
    have its values; with `top1`, whether each token is the most likely one.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float,
        chunk_tokens: int,
        compute: Compute,
        entropy: Literal["none", "value", "gradient"] = "none",
        scope: Callable[[], AbstractContextManager[object]] = nullcontext,
        critic: Critic | None = None,
        top1: bool = False,
    ) -> None:
        self.model, self.temperature, self.chunk_tokens = model, temperature, chunk_tokens
        self.compute, self.entropy, self.scope, self.critic = compute, entropy, scope, critic
        self.top1 = top1

    def __call__(self, batch: Batch) -> Outputs:
        assert batch.tokens is not None, "a batch without token ids cannot go through the model"
        critic = self.critic
        with self.scope(), self.computing():
            outputs = token_logprobs(
                self.model,
                batch.tokens,
                batch.completion_mask_BT,
                temperature=self.temperature,
                with_entropy=self.entropy != "none",
                with_top1=self.top1,
                value_head=critic.head if critic is not None and critic.in_policy_pass else None,
                chunk_tokens=self.chunk_tokens,
            )
        if critic is not None and not critic.in_policy_pass:
            outputs = replace(outputs, values_BT=self.values(batch))
        if outputs.entropy_BT is None or self.entropy == "gradient":
            return outputs
        return replace(outputs, entropy_BT=outputs.entropy_BT.detach())

    def values(self, batch: Batch) -> Tensor:
        """Return `[B, T]`, only the critic's values, in a pass of its trunk alone."""
        assert batch.tokens is not None, "a batch without token ids cannot go through the model"
        assert self.critic is not None, "values are requested only from a forward pass with a critic"
        with self.computing():
            return self.critic(batch.tokens, batch.completion_mask_BT)

    @property
    def compute_dtype(self) -> torch.dtype:
        return self.compute.dtype

    @property
    def shares_prefixes(self) -> bool:
        """Whether the common beginning of rows is computed once, also by a critic."""
        return shares_prefixes(self.model) and (self.critic is None or self.critic.path().shares_prefixes)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute in the precision and the way that were chosen."""
        dtype, device = self.compute_dtype, computes_on(self.model)
        with self.compute.scope(), self._autocast(device, dtype):
            yield

    def _autocast(self, device: torch.device, dtype: torch.dtype) -> torch.autocast:
        """Return autocast; without its cache if sharded, because that would hold casts of all weights during a pass."""
        cached = not is_sharded(self.model)
        return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32, cache_enabled=cached)

    def under(
        self,
        model: nn.Module,
        scope: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        temperature: float | None = None,
        critic: Critic | None = None,
    ) -> Forward:
        """Return the same log-probabilities, without entropy, for another model, scope or temperature.

        There are no values unless a critic is given."""
        return Forward(
            model,
            temperature=self.temperature if temperature is None else temperature,
            chunk_tokens=self.chunk_tokens,
            compute=self.compute,
            scope=scope,
            critic=critic,
        )


def load_policy(config: RunConfig, *, in_parts: bool = False) -> LoadedModel:
    """Return the model to train: float32 master weights, adapters if configured. `in_parts` as for `load_model`."""
    loaded = load_model(resolve_model_path(config.model, config.seed), in_parts=in_parts)
    if config.lora is not None:
        loaded = replace(loaded, model=apply_lora(loaded.model, config.lora, seed=config.seed))
    loaded.model.eval()  # new adapters start in training mode; dropout is for the update alone
    if config.train.gradient_checkpointing:
        recompute_activations(loaded.model)
    return loaded


def policy_forward(
    config: RunConfig, loaded: LoadedModel, algorithm: Algorithm, critic: Critic | None = None
) -> Forward:
    return Forward(
        loaded.model,
        temperature=config.sampling.temperature if algorithm.data_kind == "prompts" else 1.0,
        chunk_tokens=config.train.logprob_chunk_tokens,
        compute=loaded.compute,
        entropy="gradient" if "entropy" in algorithm.needs else "value",
        critic=critic,
        top1=algorithm.data_kind == "examples",
    )


def load_frozen(
    section: str, entry: FrozenConfig, config: RunConfig, student: LoadedModel, forward: Forward
) -> Forward:
    """Return the policy's definition of a log-probability for the model that `section` of the config names.

    Raises ConfigError if token ids do not mean the same tokens in both models (RULE 47), or if the other context is too
    short for what the policy may see.
    """
    settings = config.model.model_copy(
        update={**entry.model_dump(), "gguf_file": None, "chat_template": None, "device": "auto"}
    )
    layout = layout_of(student.model)
    ranks = layout.ranks if layout else ONE
    with ranks.together(OPEN, section, entry):  # all ranks load it at the same time, if the policy is on several
        with called(f"{section}.path"):
            path = resolve_model_path(settings, config.seed)
            frozen = load_model(path, device=student.device, in_parts=layout is not None)
        check_same_tokens(section, entry.path, student, frozen)
        check_context(section, config, student, frozen)
        if layout is None:
            key = start_key(frozen.model)
            student.beside[section] = lambda: key
        model = hold_in(frozen.model.requires_grad_(False), forward.compute_dtype)
        if layout is not None:
            shard(section, model, layout, forward.compute_dtype)
            student.beside[section] = lambda: f"{dtype_name(forward.compute_dtype)} {start_key(model)}"
    return forward.under(model)


OPEN = "open"
"""The message by which the first rank announces that it loads a frozen model; the others then load the same one."""


@torch.no_grad()
def hold_in(model: Model, dtype: torch.dtype, *, keep: nn.Module | None = None) -> Model:
    """Hold the frozen linear layers of a model in the precision in which their products are computed.

    Autocast would cast each of these weights for each product, so no number changes. Trained weights keep their
    precision. So do parts without products, such as norms and embeddings; the head of a language model, whose
    log-probabilities have their own products; and the head given as `keep`.
    """
    plain = without_adapters(model)
    assert isinstance(plain, PreTrainedModel)
    if not is_unread(plain):
        shares_prefixes(plain)  # the forward path is found once per model, in float32
    ends = (plain.get_input_embeddings(), plain.get_output_embeddings(), keep)
    kept = {id(parameter) for end in ends if end is not None for parameter in end.parameters()}
    for module in plain.modules():
        if isinstance(module, nn.Linear | Conv1D) and id(module.weight) not in kept and not module.weight.requires_grad:
            module.to(dtype)
    return model


def check_same_tokens(section: str, path: str, student: LoadedModel, frozen: LoadedModel) -> None:
    """Check RULE 47: token ids are passed on unchanged, so every token must have the same id on both sides."""
    ours, theirs = student.tokenizer.get_vocab(), frozen.tokenizer.get_vocab()
    different = sorted(ours.items() ^ theirs.items(), key=lambda item: (item[1], item[0]))
    if not different:
        return
    token, number = different[0]
    other = (theirs if token in ours and ours[token] == number else ours).get(token)
    raise ConfigError(
        given=f"{section} = {path}, whose tokenizer differs from the policy's: {len(ours)} and {len(theirs)} "
        f"tokens; {token!r} is id {number} in one and {'missing' if other is None else f'id {other}'} in "
        "the other",
        allowed=f"a {section} with the same vocabulary",
        fix="Choose a model of the same family, which shares its tokenizer.",
    )


def check_context(section: str, config: RunConfig, student: LoadedModel, frozen: LoadedModel) -> None:
    """Check that the longest prompt and completion of the run fit into the other context."""
    longest = student.context_length
    if config.data.max_prompt_length is not None:
        asked = config.data.max_prompt_length + config.sampling.max_completion_length
        longest = asked if longest is None else min(longest, asked)
    if frozen.context_length is None or (longest is not None and longest <= frozen.context_length):
        return
    room = frozen.context_length - config.sampling.max_completion_length
    raise ConfigError(
        given=f"the {section}'s context is {frozen.context_length} tokens{frozen.context_reason}, but prompt and "
        f"completion may have {'any number' if longest is None else longest} together",
        allowed=f"rows that fit the {section}'s context",
        fix=f"Set data.max_prompt_length = {room}."
        if room > 0
        else f"Lower sampling.max_completion_length below {frozen.context_length}.",
    )
