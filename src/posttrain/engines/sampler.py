"""What the trainer and the evaluation ask of whatever generates text. `LocalSampler` runs in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import nn

from posttrain.types import Completion, Prompt


class SamplingSettings(Protocol):
    """How completions are drawn; the `sampling` part of a run's config is one."""

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
    def max_batch_rows(self) -> int: ...


class Sampler(Protocol):
    """Generates completions with the weights of one policy version."""

    version: int
    """The policy version whose weights were loaded last."""

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> list[list[Completion]]:
        """`group_size` completions of every prompt, in the order of the prompts.

        Completion g of a prompt draws from a random stream of its own, a pure function of `(seed, prompt.index, g)`.
        """
        ...

    def stream(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, list[Completion]]]:
        """What `generate` returns, group by group: (place of the prompt, its group) as soon as the group is complete.

        The order is that of `each`.
        """
        ...

    def each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        """The same one by one: (place of the prompt, number in its group, completion) as soon as it has ended.

        The order depends on the lengths of prompts and completions only, never on the clock. Between two of them
        nothing of the sampler's is in force: no autocast, no switched-off gradients.
        """
        ...

    def score(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], *, temperature: float
    ) -> list[list[float]]:
        """Log-probability of each given token, by the code that would have generated it."""
        ...

    def load_weights(self, policy: nn.Module, version: int) -> None:
        """Decode with the weights of `policy` from now on; they are policy version `version`."""
        ...


class InProcessSampler(Sampler, Protocol):
    """A sampler whose modules can be looked at."""

    model: nn.Module
    """The module that decoding calls."""
