"""A reward model as a reward. It renders prompt and answer again, with its own tokenizer and chat template.

The model scores the text of a completion as an answer to the prompt of the dataset. A plain prompt is rendered like the
reward model's training data, with the reward model's system prompt instead of the policy's. Chat messages stay
unchanged. A finished answer ends with the EOS token that ended the answers in the reward model's training. A truncated
answer has no EOS token, and the model scores it at its last token all the same (RULE 43). The name of a special token
in the text of an answer is tokenised as letters: else a policy could write a second turn, and have that scored.

For a model that scores steps, the answer is split at its separators, and the scores of its steps become one number. The
unfinished last step of a truncated answer has no score, because such steps had no label in training. An answer without
a finished step stays unscored.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from posttrain.config import ModelConfig
from posttrain.data.collate import collate
from posttrain.data.literal import Literal
from posttrain.data.pairs import Text, render_answer
from posttrain.data.prompts import Renderer
from posttrain.data.steps import Solution, render_solution, split_steps
from posttrain.engines.held import hold_frozen
from posttrain.errors import ConfigError
from posttrain.functional.step_scores import AGGREGATES, aggregate
from posttrain.models.footprint import REWARD_TOKENS
from posttrain.models.load import LoadedModel
from posttrain.models.microbatches import plan_microbatches
from posttrain.models.reading import called
from posttrain.models.reward_head import (
    ScoringFacts,
    load_reward_model,
    load_step_model,
    row_scores,
    score_head,
    scores_steps,
    step_scores,
)
from posttrain.rewards.calls import Outcome, Signature, failed
from posttrain.types import Completion, Prompt, Tokens

FORM = Signature(
    batch=False,
    is_async=False,
    required=("prompt", "completion"),
    optional=("normalize", "aggregate"),
    takes_any=False,
)
"""A reward model takes the arguments of a reward function for one sample. Models that score steps take `aggregate`."""


class ModelReward:
    """Scores completions with a reward model, in this process."""

    def __init__(self, loaded: LoadedModel, facts: ScoringFacts, *, normalize: bool = False) -> None:
        self.loaded, self.facts = loaded, facts
        self.eos_ids = frozenset(facts.eos_ids) or loaded.eos_ids
        self.literal = Literal.of(loaded.tokenizer, self.eos_ids, ordinary=False)
        self.renderer = Renderer(
            tokenizer=loaded.tokenizer,
            chat=bool(loaded.tokenizer.chat_template) if facts.chat is None else facts.chat,
            system_prompt=facts.system_prompt,
            template_kwargs=facts.template_kwargs,
        )
        self.mean, self.std = distribution(facts) if normalize else (0.0, 1.0)

    @staticmethod
    def load(
        path: str, settings: Mapping[str, Any], *, folder: Path | None = None, device: str = "auto"
    ) -> ModelReward:
        """Load the model from a folder (a run's folder means its newest checkpoint), or by its name on the Hub."""
        normalize = wants_normalized(settings)
        if "aggregate" in settings:
            raise ConfigError(
                given=f"settings.aggregate = {settings['aggregate']!r} of a reward model that scores whole answers",
                allowed="aggregate for a model that scores steps (…ForTokenClassification)",
                fix="Leave aggregate out.",
            )
        place = find_model(path, folder)
        return ModelReward(open_model(load_reward_model, place, device), facts_of(place), normalize=normalize)

    @property
    def notes(self) -> list[str]:
        """A warning if the model ranks answers no better than a coin, according to its folder."""
        if self.facts.accuracy is None or self.facts.accuracy[1] > 0.5:
            return []
        mean, low, high = self.facts.accuracy
        return [
            f"ranks {mean:.0%} of its held-out pairs right ({low:.0%} to {high:.0%}), which cannot be told from "
            "guessing: a policy trained on it learns its errors. Train it longer or on more pairs first"
        ]

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Check before training that this model's template can render the prompts; else raise DataError."""
        for prompt in prompts[:1]:
            self.ids(prompt, "", truncated=False)

    def __call__(self, calls: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """One outcome per `{"prompt": Prompt, "completion": Completion}`, in order.

        A conversation that is longer than the context, or whose score is not finite, gets the outcome "exception" and
        stays unscored.
        """
        started = time.perf_counter()
        found = [self._prepare(call["prompt"], call["completion"]) for call in calls]
        rows = [row for row in found if not isinstance(row, Outcome)]
        scores = iter(self.score(rows))
        seconds = (time.perf_counter() - started) / max(1, len(rows))
        return [row if isinstance(row, Outcome) else self._outcome(next(scores), seconds) for row in found]

    def score(self, rows: Sequence[Solution]) -> list[float]:
        """The score of each row, in the units of the model's training data."""

        def scores_of(tokens: Tokens, part: Sequence[Solution]) -> list[float]:
            return self.facts.in_units(row_scores(self.loaded.model, tokens).float()).tolist()

        return score_in_parts(self.loaded, rows, scores_of)

    def read(self, prompt: Prompt, completion: Completion) -> Solution | Outcome:
        """The token ids that the model reads and the position of the score, or the reason why there is no score."""
        ids = self.ids(prompt, completion.text, truncated=completion.truncated)
        return Solution(ids, (len(ids) - 1,))

    def ids(self, prompt: Prompt, text: str, *, truncated: bool) -> tuple[int, ...]:
        """Token ids of prompt and answer, rendered for this model."""
        asked, renderer = asked_by(prompt, self.renderer)
        [said], renderer = self.as_letters([text], renderer)
        where = f"prompt {prompt.index}"
        ids = render_answer(asked, said, renderer, self.eos_ids, index=prompt.index, origin=where).input_ids
        return ids[:-1] if truncated and ids[-1] in self.eos_ids else ids

    def as_letters(self, texts: Sequence[str], renderer: Renderer) -> tuple[list[str], Renderer]:
        """The texts with each name of a special token replaced, and the renderer that tokenises its letters instead."""
        hidden, known = self.literal.hide([{"content": text} for text in texts])
        if not known:
            return list(texts), renderer
        return [one["content"] for one in hidden], replace(renderer, spell=partial(self.literal.ids, known=known))

    def _prepare(self, prompt: Prompt, completion: Completion) -> Solution | Outcome:
        try:
            row = self.read(prompt, completion)
        except Exception as error:  # a template is a program, and the answer is arbitrary text
            return failed(error)
        context = self.loaded.context_length
        if not isinstance(row, Outcome) and context is not None and len(row.ids) > context:
            return Outcome(
                kind="exception",
                message=f"{len(row.ids)} tokens in the reward model's context of {context}{self.loaded.context_reason}",
            )
        return row

    def _outcome(self, score: float, seconds: float) -> Outcome:
        if not math.isfinite(score):
            return Outcome(kind="exception", message=f"the score is {score}", seconds=seconds)
        return Outcome(kind="value", value=(score - self.mean) / self.std, seconds=seconds)


def find_model(path: str, folder: Path | None = None) -> str:
    """The model folder that a path means: for a run's folder its newest checkpoint, else the folder itself.

    The path is looked up in the working directory, then in `folder`. A path that is no folder is returned unchanged.
    """
    for place in (Path(path).expanduser(), *([folder / path] if folder else [])):
        steps = [step for step in place.glob("checkpoints/step-*") if re.fullmatch(r"step-\d+", step.name)]
        if steps:
            return str(max(steps, key=lambda step: int(step.name.removeprefix("step-"))) / "model")
        if place.is_dir():
            return str(place)
    return path


def wants_normalized(settings: Mapping[str, Any]) -> bool:
    """Whether to normalize scores by mean and deviation of the held-out answers. ConfigError unless it is a bool."""
    normalize = settings.get("normalize", False)
    if not isinstance(normalize, bool):
        raise ConfigError(given=f"settings.normalize = {normalize!r} of a reward model", allowed="true or false")
    return normalize


def open_model(load: Callable[..., LoadedModel], place: str, device: str) -> LoadedModel:
    """Load a trained model and freeze it. Errors name the setting `rewards.model`."""
    with called("rewards.model"):
        loaded = load(ModelConfig(path=place, device=device), trained=True)  # type: ignore[arg-type]
    loaded.model.requires_grad_(False)
    return hold_frozen(loaded, decodes=False, keep=score_head(loaded.model))


def facts_of(place: str) -> ScoringFacts:
    return ScoringFacts.read(Path(place))


@torch.no_grad()
def score_in_parts(
    loaded: LoadedModel, rows: Sequence[Solution], scores_of: Callable[[Tokens, Sequence[Solution]], list[float]]
) -> list[float]:
    """One score per row, computed in parts that each fit into one forward pass."""
    scores = [math.nan] * len(rows)
    for part in plan_microbatches([len(row.ids) for row in rows], REWARD_TOKENS):
        tokens, _ = collate([(rows[row].ids, ()) for row in part], loaded.pad_id)
        with loaded.autocast():
            found = scores_of(tokens, [rows[row] for row in part])
        for row, score in zip(part, found, strict=True):
            scores[row] = score
    return scores


def asked_by(prompt: Prompt, renderer: Renderer) -> tuple[Text, Renderer]:
    """The prompt in the form that the dataset gave, and the renderer for it. A conversation keeps its own system
    prompt."""
    if prompt.plain is not None:
        return prompt.plain, renderer
    if prompt.messages is None:
        return prompt.text, renderer
    own = prompt.messages[0]["role"] == "system"
    return [dict(message) for message in prompt.messages], replace(renderer, system_prompt=None) if own else renderer


def distribution(facts: ScoringFacts) -> tuple[float, float]:
    """Mean and standard deviation of the scores of held-out answers. ConfigError if the folder does not record them."""
    if facts.mean is None or not facts.std:
        raise ConfigError(
            given="settings.normalize = true, but the reward model's folder does not record the distribution of "
            "its scores",
            allowed="a reward model that was trained with posttrain and held-out pairs",
            fix="Leave normalize out, or train it with data.eval or data.eval_fraction.",
        )
    return facts.mean, facts.std


SEPARATOR = "\n"
"""Separator of the steps for a model that was not trained with posttrain."""


def load_model_reward(
    path: str, settings: Mapping[str, Any], *, folder: Path | None = None, device: str = "auto"
) -> ModelReward:
    """Load a model as a reward, for answers or for steps. The files of the model, here or on the Hub, say which."""
    wants_normalized(settings)  # a wrong setting is an error before the Hub is asked
    place = find_model(path, folder)
    kind = StepModelReward if scores_steps(place) else ModelReward
    return kind.load(path, settings, folder=folder, device=device)


class StepModelReward(ModelReward):
    """Scores completions by their steps: each step gets the probability that it is right."""

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
                allowed="normalize for models that score whole answers: probabilities already have a fixed scale",
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
        """For each row, the aggregate of the probabilities of its steps."""

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
        said, renderer = self.as_letters(steps, renderer)
        return render_solution(asked, said, renderer, self.facts.separator or SEPARATOR)
