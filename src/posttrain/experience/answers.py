"""Prompts that engines answer with published weights.

In a run they serve evaluations: the trainer waits, while sampling for later steps goes on next to the answers. They
also serve every request to a model that is not being trained (serving.py).
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
    """A prompt of an evaluation, with the sampling parameters of its completions."""

    prompt: Prompt
    seed: int
    temperature: float
    max_new_tokens: int
    group_size: int
    top_p: float | None = None
    """Replaces the run's truncation of the distribution; None: keep it."""
    stops: bool = True
    """Whether the run's stop strings end a completion."""
    turns: bool = False
    """Whether its completions have several turns."""


class EngineAnswers:
    """A sampler whose completions come from the engines of a run. Implements `Answers`."""

    def __init__(
        self, window: Window, driver: Callable[[], Driver], publish: Callable[[], None], *, turns: bool = False
    ) -> None:
        """`publish` publishes the present weights if engines lack them. `turns`: whether completions have several
        turns, in the environment of the driver's run."""
        self.window, self.driver, self.publish, self.turns = window, driver, publish, turns

    def each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        """Yield completions in the order of the prompts. Only temperature and length of the settings count; the engines
        have their own values of the others.

        Raises ConfigError if a prompt and its completion do not fit into the context window, EngineError if no engine
        could answer.
        """
        if not self.turns:  # trajectories are cut at the end of the window
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
    """The sampler of a judge with the policy's weights. The engines of a run answer its questions with the weights that
    were published last. Any thread that scores may call it."""

    context_reason = " of its server"
    """See `Window`."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        longest: int,
        driver: Callable[[], Driver],
        publish: Callable[[], None],
    ) -> None:
        """`longest`: maximum tokens of a row in the engines. `publish` gives them the present weights if needed."""
        self.tokenizer, self.context_length, self._driver, self._publish = tokenizer, longest, driver, publish

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> list[list[Completion]]:
        """Return completions as `Sampler.generate` does, with temperature, `top_p` and length of `sampling`, but
        without the run's stop strings, which are not meant for the judge. Raises as `EngineAnswers.each` does."""
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
