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
    from transformers import PreTrainedTokenizerBase

    from posttrain.experience.driver import Driver


@dataclass(frozen=True)
class Question:
    """A prompt of an evaluation, and how its completions are drawn."""

    prompt: Prompt
    seed: int
    temperature: float
    max_new_tokens: int
    group_size: int
    top_p: float | None = None
    """In place of the run's truncation, where it is given."""
    stops: bool = True
    """The run's stop strings end a completion."""
    turns: bool = False
    """Its completions have several turns."""


class EngineAnswers:
    """Implements `Answers`."""

    def __init__(
        self, window: Window, driver: Callable[[], Driver], publish: Callable[[], None], *, turns: bool = False
    ) -> None:
        """`publish` hands over the present weights where engines lack them. `turns`: completions have several, with the
        environment of the driver's run."""
        self.window, self.driver, self.publish, self.turns = window, driver, publish, turns

    def each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        """In the order of the prompts. Of the settings temperature and length count: the others are the engines' own.

        Raises ConfigError where a prompt and its completion do not fit the context window, EngineError where no engine
        could answer.
        """
        if not self.turns:  # which are cut where the window ends
            for prompt in sorted(prompts, key=lambda prompt: -len(prompt.ids)):
                check_length(self.window, prompt.ids, sampling.max_completion_length, where=f"prompt {prompt.index}")
        self.publish()
        yield from self.driver().evaluate(
            [
                Question(
                    prompt,
                    seed,
                    sampling.temperature,
                    sampling.max_completion_length,
                    group_size,
                    turns=self.turns,
                )
                for prompt in prompts
            ]
        )


class EngineJudge:
    """What a judge with the policy's weights asks in place of a sampler: questions go to the engines of a run, from
    whichever thread scores, and are answered by the weights that were published last."""

    context_reason = " of its server"
    """See `Window`."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        longest: int,
        driver: Callable[[], Driver],
        publish: Callable[[], None],
    ) -> None:
        """`longest`: tokens that a row may have in the engines. `publish` sees to it that these have the present
        weights."""
        self.tokenizer, self.context_length, self._driver, self._publish = tokenizer, longest, driver, publish

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> list[list[Completion]]:
        """As `Sampler.generate`, with the temperature, `top_p` and the length of `sampling`, and without stop strings:
        those of the run are not the judge's. Raises as `EngineAnswers.each` does."""
        for prompt in prompts:
            check_length(self, prompt.ids, sampling.max_completion_length, where="a question to the judge")
        self._publish()
        questions = [
            Question(
                prompt,
                seed,
                sampling.temperature,
                sampling.max_completion_length,
                group_size,
                top_p=sampling.top_p,
                stops=False,
            )
            for prompt in prompts
        ]
        found: list[list[Completion]] = [[] for _ in prompts]
        for place, _, completion in self._driver().evaluate(questions):
            found[place].append(completion)
        return found
