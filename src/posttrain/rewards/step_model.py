"""A model that scores steps as a reward: an answer is cut at its separators, and its steps become one number.

The unfinished step of an answer that was cut has no score, as it had no label in training; an answer without any
finished step is unscored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from posttrain.data.steps import Solution, render_solution, split_steps
from posttrain.errors import ConfigError
from posttrain.functional.step_scores import AGGREGATES, aggregate
from posttrain.models.reward_head import load_step_model, scores_steps, step_scores
from posttrain.rewards.calls import Outcome
from posttrain.rewards.model import (
    ModelReward,
    asked_by,
    facts_of,
    find_model,
    open_model,
    score_in_parts,
    wants_normalized,
)
from posttrain.types import Completion, Prompt, Tokens

SEPARATOR = "\n"
"""Of a model that was not trained here."""


def load_model_reward(
    path: str, settings: Mapping[str, Any], *, folder: Path | None = None, device: str = "auto"
) -> ModelReward:
    """The model of a folder as a reward, whether it scores answers or steps; the Hub may have to say which."""
    wants_normalized(settings)  # before anything is asked
    place = find_model(path, folder)
    kind = StepModelReward if scores_steps(place) else ModelReward
    return kind.load(path, settings, folder=folder, device=device)


class StepModelReward(ModelReward):
    """Scores completions by their steps, each with the probability that it is right."""

    @staticmethod
    def load(
        path: str, settings: Mapping[str, Any], *, folder: Path | None = None, device: str = "auto"
    ) -> StepModelReward:
        place = find_model(path, folder)
        facts = facts_of(place)
        how = settings.get("aggregate", facts.aggregate)
        if how not in AGGREGATES:
            raise ConfigError(
                given=f"settings.aggregate = {how!r} of a model that scores steps",
                allowed=", ".join(AGGREGATES),
                fix="Set aggregate: min, for the worst step.",
            )
        if wants_normalized(settings):
            raise ConfigError(
                given="settings.normalize of a model that scores steps",
                allowed="normalize for models that score whole answers: probabilities have their scale",
                fix="Leave normalize out.",
            )
        return StepModelReward(open_model(load_step_model, place, device), replace(facts, aggregate=how))

    def read(self, prompt: Prompt, completion: Completion) -> Solution | Outcome:
        separator = self.facts.separator or SEPARATOR
        finished = completion.text.rpartition(separator)[0] if completion.truncated else completion.text
        steps = split_steps(finished, separator)
        if not steps:
            return Outcome(kind="exception", message="no finished step")
        return self._rendered(prompt, steps)

    def score(self, rows: Sequence[Solution]) -> list[float]:
        """The aggregate of the probabilities of each row's steps."""

        def scores_of(tokens: Tokens, part: Sequence[Solution]) -> list[float]:
            ends_BT = torch.zeros(tokens.input_ids_BT.shape, dtype=torch.bool)
            for row, solution in enumerate(part):
                ends_BT[row, list(solution.ends)] = True
            probabilities_BT = step_scores(self.loaded.model, tokens, ends_BT).float().sigmoid().cpu()
            return [
                float(aggregate(probabilities_T[ends_T], self.facts.aggregate))
                for probabilities_T, ends_T in zip(probabilities_BT, ends_BT, strict=True)
            ]

        return score_in_parts(self.loaded, rows, scores_of)

    def check(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts[:1]:
            self._rendered(prompt, ["1"])

    def _rendered(self, prompt: Prompt, steps: Sequence[str]) -> Solution:
        asked, renderer = asked_by(prompt, self.renderer)
        return render_solution(asked, steps, renderer, self.facts.separator or SEPARATOR)
