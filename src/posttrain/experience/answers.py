"""Prompts that engines answer with given weights.

Evaluations of a run: the trainer waits, and sampling for the steps to come goes on beside the answers. And whatever is
asked of a model that nobody trains (serving.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from posttrain.engines.sampler import SamplingSettings, Window, check_length
from posttrain.types import Completion, Prompt

if TYPE_CHECKING:
    from posttrain.experience.driver import Driver


@dataclass(frozen=True)
class Question:
    """A prompt of an evaluation, and how its completions are drawn."""

    prompt: Prompt
    seed: int
    temperature: float
    max_new_tokens: int
    group_size: int


class EngineAnswers:
    """Implements `Answers`."""

    def __init__(self, window: Window, driver: Callable[[], Driver], publish: Callable[[], None]) -> None:
        """`publish` hands over the present weights where engines lack them."""
        self.window, self.driver, self.publish = window, driver, publish

    def each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        """In the order of the prompts. Of the settings temperature and length count: the others are the engines' own.

        Raises ConfigError where a prompt and its completion do not fit the context window, EngineError where no engine
        could answer.
        """
        for prompt in sorted(prompts, key=lambda prompt: -len(prompt.ids)):
            check_length(self.window, prompt.ids, sampling.max_completion_length, where=f"prompt {prompt.index}")
        self.publish()
        yield from self.driver().evaluate(
            [
                Question(prompt, seed, sampling.temperature, sampling.max_completion_length, group_size)
                for prompt in prompts
            ]
        )
