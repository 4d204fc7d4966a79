"""The protocols of text generators, in this process or another, for the trainer and the evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from posttrain.config.sections import BATCH_ROWS
from posttrain.errors import ConfigError, DataError
from posttrain.types import Completion, Prompt


class SamplingSettings(Protocol):
    """Settings for sampling completions; the `sampling` section of a run's config is one."""

    @property
    def max_completion_length(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def min_p(self) -> float: ...
    @property
    def stop(self) -> Sequence[str]: ...
    @property
    def max_batch_rows(self) -> int | Literal["auto"]: ...


def rows_together(sampling: SamplingSettings) -> int:
    """Return `max_batch_rows` as a number."""
    return BATCH_ROWS if sampling.max_batch_rows == "auto" else sampling.max_batch_rows


class Digest(NamedTuple):
    """The digest of a tensor's content, in the precision in which a sampler holds it."""

    dtype: torch.dtype
    sha256: str
    """Hash of its shape and its content."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The weights that a sampler really decodes with; `delivery.py` compares them with the trained ones."""

    version: int
    tensors: Mapping[str, Tensor]
    """All tensors that it holds in its own memory."""
    in_place: Set[str] = frozenset()
    """Names of tensors that it reads from the memory of the given ones, so that there is nothing to compare."""

    @property
    def names(self) -> Set[str]:
        return self.tensors.keys() | self.in_place


class Window(Protocol):
    """The maximum length of a row."""

    @property
    def context_length(self) -> int | None:
        """Maximum tokens of prompt and completion together; None: no limit."""
        ...

    @property
    def context_reason(self) -> str:
        """Text to append to that length in a message, if the limit needs an explanation; else empty."""
        ...


class Answers(Protocol):
    """Answers the prompts of an evaluation."""

    def each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        """See `Sampler.each`."""
        ...


class Judging(Window, Protocol):
    """Answers a judge's questions with the policy's weights."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> list[list[Completion]]:
        """See `Sampler.generate`."""
        ...


class Sampler(Window, Protocol):
    """Generates completions with the weights of one policy version."""

    version: int
    """The policy version whose weights were delivered last."""
    tokenizer: PreTrainedTokenizerBase
    owns_weights: bool
    """Whether it decodes with tensors of its own, with adapters merged, and not with the policy's."""

    @property
    def note(self) -> str:
        """Why it decodes slower than it could; empty if it does not."""
        ...

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> list[list[Completion]]:
        """Return `group_size` completions of every prompt, in the order of the prompts.

        Completion g of a prompt has its own random stream, a pure function of `(seed, prompt.index, g)`.
        """
        ...

    def each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        """Yield (index of the prompt, index in its group, completion) as soon as each completion has ended.

        The order depends only on the lengths of prompts and completions, never on the clock. Between two completions,
        no mode of the sampler is in force: no autocast, no disabled gradients.
        """
        ...

    def score(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], *, temperature: float
    ) -> list[list[float]]:
        """Return the log-probability of each given token, from the code that would have generated it."""
        ...

    def deliver(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> Receipt:
        """Decode with these tensors from now on; they are policy version `version`.

        The receipt covers what decoding reads afterwards, whatever was given. Tensors that were not given stay.
        """
        ...

    def probe(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], *, temperature: float
    ) -> list[list[float]]:
        """Return `score` for the proof. Raises PublishError if it can tell that the computation used anything besides
        the tensors of the last receipt."""
        ...

    def routes(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[Tensor]:
        """Return the experts of this row: per layer, `[tokens, k]` sorted indices. Empty for none, or if unknown.

        The row must have been scored before.
        """
        ...

    def held(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters that it decodes with, each once, in the form that `deliver` takes. They are part of a
        checkpoint while they are older than the policy."""
        ...


def check_length(window: Window, prompt_ids: Sequence[int], num_new: int, *, where: str) -> None:
    """Raise an error before any computation if a row cannot be decoded: DataError if it has no token, ConfigError if it
    does not fit into the context window."""
    if not prompt_ids:
        raise DataError(
            given=f"{where} has no tokens",
            allowed="at least one token to continue from",
            fix="Remove empty prompts, or use a tokenizer or chat template that begins with a token.",
        )
    most = window.context_length
    if most is not None and len(prompt_ids) + num_new > most:
        raise ConfigError(
            given=f"{where} has {len(prompt_ids)} tokens and its completion may have {num_new}",
            allowed=f"{most} tokens together, the context window of the model{window.context_reason}",
            fix=f"Set data.max_prompt_length = {most - num_new}, or lower sampling.max_completion_length."
            if num_new < most
            else f"Set sampling.max_completion_length below {most}.",
        )
