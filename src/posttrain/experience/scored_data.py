"""What a model that scores learns from: pairs, rated answers or labelled steps, each with its feed and its measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from posttrain.algorithms import Algorithm
from posttrain.data.dataset import numbers_of
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer
from posttrain.data.ratings import render_ratings
from posttrain.data.split import Split
from posttrain.data.steps import render_steps
from posttrain.errors import DataError
from posttrain.evaluate.heldout_scores import Forward, HeldOutPairs, HeldOutRatings, Subject
from posttrain.evaluate.heldout_steps import HeldOutSteps
from posttrain.evaluate.row_scores import first
from posttrain.experience.feed import Feed
from posttrain.experience.preferences import PairFeed
from posttrain.experience.ratings import RatingFeed, scale_of
from posttrain.experience.rendering import data_notes, render_both
from posttrain.experience.steps import StepFeed
from posttrain.functional.step_scores import aggregate
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import ScoringFacts
from posttrain.types import Pair

if TYPE_CHECKING:
    from posttrain.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class ScoredData:
    """What a run needs to know of its data."""

    feed: Feed
    heldout: Subject
    facts: ScoringFacts
    """About the model that is written, as far as the data decides."""
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class ScoringInput:
    """What such data is made of."""

    config: RunConfig
    algorithm: Algorithm
    rows: Split
    loaded: LoadedModel
    renderer: Renderer
    facts: ScoringFacts

    def both(self, render: Callable[..., Any]) -> tuple[Any, Any]:
        """The training rows and the held-out ones, or None where there are none of those."""
        return render_both(render, self.config, self.rows, self.loaded, self.renderer)

    @property
    def batching(self) -> dict[str, int]:
        return {"pad_id": self.loaded.pad_id, "tokens_per_microbatch": self.config.train.tokens_per_microbatch}


def from_pairs(source: ScoringInput, forward: Forward) -> ScoredData:
    """The better one of two answers is to score higher."""
    train, heldout = source.both(partial(render_pairs, eos_ids=source.loaded.eos_ids))
    pairs = first(heldout.pairs, source.config.evaluation.prompts) if heldout else []
    return ScoredData(
        feed=PairFeed(source.config, train.pairs, pad_id=source.loaded.pad_id),
        heldout=HeldOutPairs(forward, pairs, **source.batching),
        facts=source.facts,
        notes=data_notes(train, heldout) + margin_notes(train.pairs, source.algorithm),
    )


def from_ratings(source: ScoringInput, forward: Forward) -> ScoredData:
    """An answer is to score what it was rated."""
    train, heldout = source.both(partial(render_ratings, eos_ids=source.loaded.eos_ids))
    scale = scale_of([row.score for row in train.rows], source.algorithm.needs)
    link = "logistic" if "unit_interval" in source.algorithm.needs else "identity"
    facts = replace(source.facts, link=link, target_mean=scale.mean, target_std=scale.std)
    answers = first(heldout.rows, source.config.evaluation.prompts) if heldout else []
    return ScoredData(
        feed=RatingFeed(source.config, train.rows, scale, pad_id=source.loaded.pad_id),
        heldout=HeldOutRatings(forward, answers, facts, **source.batching),
        facts=facts,
        notes=data_notes(train, heldout),
    )


def from_steps(source: ScoringInput, forward: Forward) -> ScoredData:
    """A step is to score whether it is right."""
    assert source.algorithm.step_reading is not None, "what learns from steps says how they are read"
    separator, how = source.algorithm.step_reading
    train, heldout = source.both(partial(render_steps, separator=separator))
    answers = first(heldout.rows, source.config.evaluation.prompts) if heldout else []
    return ScoredData(
        feed=StepFeed(source.config, train.rows, pad_id=source.loaded.pad_id),
        heldout=HeldOutSteps(forward, answers, partial(aggregate, how=how), **source.batching),
        facts=replace(source.facts, separator=separator, aggregate=how),
        notes=[*data_notes(train, heldout), *train.notes, *(heldout.notes if heldout else ())],
    )


def margins(pairs: Sequence[Pair]) -> int:
    """How many pairs have one, without tokenising any."""
    return sum(not math.isnan(margin) for margin in numbers_of(pairs))


def margin_notes(pairs: Sequence[Pair], algorithm: Algorithm) -> list[str]:
    """A column of margins that nothing reads is worth a line; one that is missing, an error."""
    known, asked = margins(pairs), "margins" in algorithm.needs
    if asked and known < len(pairs):
        raise DataError(
            given=f"{len(pairs) - known} of {len(pairs)} pairs have no margin, which {algorithm.key} is set to read",
            allowed="a number in the column margin of each row",
            fix="Set algorithm.margin = 0, or complete the column.",
        )
    return ["the column margin is not used; algorithm.margin = data would use it"] if known and not asked else []
