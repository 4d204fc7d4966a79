"""The data sources for training and measurement: the part of the set-up that depends on the kind of data."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posttrain.algorithms import Algorithm
from posttrain.data.dataset import Dataset, Scale, add_references, numbers_of, ratings_batch
from posttrain.data.examples import render_examples
from posttrain.data.labels import LabelledSet, only_class, refuse_one_class, render_labels
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import PromptSet, Renderer
from posttrain.data.ratings import render_ratings
from posttrain.data.sampled_pairs import is_sampled_pair
from posttrain.data.split import Split
from posttrain.data.steps import render_steps
from posttrain.errors import DataError
from posttrain.evaluate.heldout_pairs import HeldOutLabels, HeldOutPolicyPairs
from posttrain.evaluate.heldout_scores import HeldOutPairs, HeldOutRatings, Subject
from posttrain.evaluate.heldout_steps import HeldOutSteps
from posttrain.evaluate.measure import HeldOutAnswers, HeldOutLoss, Measure
from posttrain.evaluate.row_scores import first
from posttrain.evaluate.writing import Asked
from posttrain.experience.feed import DatasetFeed, Feed, SampledFeed
from posttrain.experience.generate import Generator
from posttrain.experience.partners import AddMismatched, MismatchedAnswers
from posttrain.experience.references import References, reference_logprobs, start_forward, used_rows
from posttrain.experience.rendering import (
    checked_prompts,
    data_notes,
    longest_row,
    prompt_notes,
    render_both,
    text_notes,
)
from posttrain.experience.sampled_pairs import Round, Say, earlier_pairs, numbered
from posttrain.functional.step_scores import aggregate
from posttrain.models.load import LoadedModel
from posttrain.models.policy import Forward
from posttrain.models.reward_head import ScoringFacts
from posttrain.models.scoring import ScoringForward
from posttrain.rewards.missing import HELD_OUT
from posttrain.train.same_answers import made_of
from posttrain.types import Example, Prompt

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.engines.row_stream import HasRows
    from posttrain.engines.sampler import Answers
    from posttrain.episodes.scene import Scene
    from posttrain.train.fleet import Fleet
    from posttrain.train.judges import Judges, Samplers


@dataclass(frozen=True, kw_only=True)
class Source:
    """The data for a run's training steps and for its measurements."""

    feed: Feed
    measure: Measure
    asked: Asked
    """Prompts that show how the model writes before and after training."""
    prompts: Sequence[Prompt] = ()
    """The prompts that are answered in training; empty if answers are given."""
    notes: Sequence[str] = ()
    """Warnings for the user about the data, in sentences."""
    facts: Sequence[str] = ()
    """Sentences about work that was done before the first step."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The parts that a run with a writing model has when it reads its data."""

    config: RunConfig
    algorithm: Algorithm
    rows: Split
    loaded: LoadedModel
    forward: Forward
    samplers: Samplers
    judges: Judges
    folder: Path
    say: Say
    """Tells the user about the progress of sampling for pairs."""
    fleet: Fleet | None = None
    """Engines that sample in processes of their own; None if this process samples."""

    @property
    def prompt_renderer(self) -> Renderer:
        """The renderer that turns prompts into token ids, including the descriptions of tools."""
        renderer = Renderer.of(self.config.data, self.loaded.tokenizer, self.config.model.chat_template_kwargs)
        acting = self.samplers.acting
        return renderer if acting is None else replace(renderer, tools=acting.schemas)

    def in_turns(self, sampler: HasRows) -> Answers:
        """The part that answers with this sampler: in several turns if there is an environment or tools."""
        acting = self.samplers.acting
        if acting is None:
            return sampler
        if self.fleet is not None:  # its thread uses the environments of training at the same time
            acting = acting.apart(self.fleet.resources)
        return acting.around(sampler, self.prompt_renderer, self.loaded.eos_ids)

    def answers(self, local: HasRows) -> Answers:
        """The part that answers evaluations."""
        found = local if self.fleet is None else self.fleet.answers(local)
        return self.in_turns(local) if found is local else found

    def scene(self, fleet: Fleet) -> Scene | None:
        """The scene for completions with several turns from engines; None if each completion is a single answer."""
        acting = self.samplers.acting
        return None if acting is None else acting.scene(self.prompt_renderer, self.loaded.eos_ids, fleet.window)

    def rendered(self, render: Callable[..., Any]) -> tuple[Any, Any]:
        """The rendered training rows and held-out rows; None in place of held-out rows if there are none."""
        renderer = Renderer.of(self.config.data, self.loaded.tokenizer, self.config.model.chat_template_kwargs)
        return render_both(partial(render, eos_ids=self.loaded.eos_ids), self.config, self.rows, self.loaded, renderer)

    def notes(self, train: Any, heldout: Any) -> list[str]:
        """Warnings about the rendered rows, for the user."""
        return [*data_notes(train, heldout, self.config), *text_notes(train, heldout, self.config, self.loaded)]

    def feed(self, records: Sequence[Any], references: References | None, *add: Callable[..., Any]) -> DatasetFeed:
        """A feed of given records, with the reference's log-probabilities of each."""
        dataset = Dataset(records=records, pad_id=self.loaded.pad_id, add=add)
        if references is not None:
            dataset = dataset.with_added(add_references(references.beside, dataset.sequences))
        return DatasetFeed(self.config, dataset)

    def asked(self, heldout: Sequence[Any], train: Sequence[Any]) -> Asked:
        """The prompts of these rows that the model answers before and after training."""
        return Asked.of_rows(self.config, self.loaded, heldout, train)

    def references(
        self, examples: Sequence[Example], places: Sequence[int], what: str = "answers"
    ) -> tuple[References | None, list[str]]:
        """The reference's log-probabilities of the examples at `places`, if the algorithm needs them, and a line about
        them."""
        if "reference" not in self.algorithm.needs:
            return None, []
        started, reference = time.perf_counter(), start_forward(self.config, self.loaded, self.forward)
        found, known = reference_logprobs(
            self.config, examples, places, reference, pad_id=self.loaded.pad_id, folder=self.folder
        )
        seconds = time.perf_counter() - started
        how = "read from disk" if known else f"computed in {seconds:.1f} s, and kept on disk"
        return found, [f"log-probabilities of {len(places)} {what} under the reference: {how}"]


# --- answers that are sampled ----------------------------------------------------------------------------------------


def online(inputs: Inputs) -> Source:
    """The source for sampled answers: the policy answers prompts, and rewards score the answers."""
    config, algorithm, samplers = inputs.config, inputs.algorithm, inputs.samplers
    train, heldout, measure, notes = prompts_and_measure(inputs, inputs.rows)
    rewards = inputs.judges.rewards
    if inputs.fleet is not None:
        feed = inputs.fleet.feed(algorithm, train.prompts, rewards, inputs.scene(inputs.fleet))
    else:
        feed = SampledFeed(
            config,
            train.prompts,
            inputs.in_turns(samplers.training),
            rewards,
            pad_id=inputs.loaded.pad_id,
            needs=algorithm.needs,
            learns_from_rewards=algorithm.learns_from_rewards,
        )
    return Source(
        feed=feed,
        measure=measure,
        asked=inputs.asked(heldout.prompts, train.prompts),
        prompts=train.prompts,
        notes=[*notes, *update_notes(config, algorithm), *mark_notes(config, algorithm)],
    )


def prompts_and_measure(inputs: Inputs, rows: Split) -> tuple[PromptSet, PromptSet, HeldOutAnswers, list[str]]:
    """Training prompts, held-out prompts, the measure of held-out answers, and warnings for the user."""
    config, (rewards, check) = inputs.config, inputs.judges
    train, heldout = checked_prompts(config, rows, inputs.loaded, rewards, inputs.prompt_renderer)
    if check is not None and heldout.prompts:
        check.require(heldout.prompts, HELD_OUT)
    judges = None if check is None else check.in_evaluations
    answers = inputs.answers(inputs.samplers.evaluation)
    measure = HeldOutAnswers(config, answers, heldout.prompts, rewards, judges)
    notes = [*inputs.samplers.decoding_notes, *prompt_notes(train, heldout, config)]
    notes += text_notes(train, heldout, config, inputs.loaded)
    return train, heldout, measure, notes


def mark_notes(config: RunConfig, algorithm: Algorithm) -> list[str]:
    """A warning if an algorithm decides by the weighted sum of several rewards whether an answer is correct."""
    asks = ["correct_at"] if algorithm.correct_from is not None else []
    asks += ["signal"] if "signal" in algorithm.needs else []
    if not asks or len(config.rewards) < 2:
        return []
    return [
        f"{algorithm.key} uses the weighted sum of {len(config.rewards)} rewards to decide which answers are "
        f"right ({', '.join(asks)}): a reward for length or format makes groups of wrong answers look "
        "informative; use a single reward for correctness, and shape lengths with the algorithm's own settings"
    ]


def update_notes(config: RunConfig, algorithm: Algorithm) -> list[str]:
    """A warning if an algorithm without a ratio makes several updates per batch: all but the first are off-policy."""
    updates = config.train.epochs * config.train.minibatches
    if updates == 1 or "old" in algorithm.needs or algorithm.learns_off_policy:
        return []
    clip = " and ".join(f"algorithm.{name}" for name in algorithm.clip_settings)
    way_out = f"{clip}, or " if clip else ""
    return [
        f"{algorithm.key} with these settings has no importance ratio, but uses each batch for {updates} updates: "
        f"from the second update on the gradient is biased; set {way_out}train.minibatches = 1 and train.epochs = "
        "1"
    ]


def sampled_preferences(inputs: Inputs) -> Source:
    """The source for preference training on pairs that the start model samples once, before the first step."""
    config, rows, loaded = inputs.config, inputs.rows, inputs.loaded
    split = Split([row for row in rows.train if not is_sampled_pair(row)], rows.heldout)
    train, heldout, measure, notes = prompts_and_measure(inputs, split)
    generator = Generator(sampler=inputs.samplers.evaluation, rewards=inputs.judges.rewards)
    cause = made_of(config, loaded.model)
    sampled, about_sampled = Round(config, train.prompts, generator, inputs.folder, inputs.say, cause).pairs()
    earlier, about_earlier = earlier_pairs(config, rows.train, loaded, heldout.prompts)
    feed, facts = pairs_feed(inputs, numbered([*earlier, *sampled]))
    asked, notes = inputs.asked(heldout.prompts, train.prompts), [*notes, *about_sampled, *about_earlier]
    return Source(feed=feed, measure=measure, asked=asked, notes=notes, facts=facts)


# --- answers that are given ------------------------------------------------------------------------------------------


def supervised(inputs: Inputs) -> Source:
    """The source for imitation of given answers."""
    train, heldout = inputs.rendered(render_examples)
    notes = inputs.notes(train, heldout)
    examples = heldout.rows if heldout else ()
    measure = HeldOutLoss(inputs.config, inputs.forward, examples, inputs.loaded.pad_id)
    feed, asked = inputs.feed(train.rows, None), inputs.asked(examples, train.rows)
    return Source(feed=feed, measure=measure, asked=asked, notes=notes)


def preferences(inputs: Inputs) -> Source:
    """The source for preference training on given pairs of answers."""
    train, heldout = inputs.rendered(render_pairs)
    notes = inputs.notes(train, heldout)
    feed, facts = pairs_feed(inputs, train.rows)
    pairs = heldout.rows if heldout else ()
    measure = HeldOutPolicyPairs(inputs.config, inputs.forward, pairs, inputs.loaded.pad_id)
    asked = inputs.asked(pairs, train.rows)
    return Source(feed=feed, measure=measure, asked=asked, notes=notes, facts=facts)


def pairs_feed(inputs: Inputs, pairs: Sequence[Any]) -> tuple[DatasetFeed, list[str]]:
    """A feed of pairs, and a line about their log-probabilities under the reference."""
    sides = Dataset(records=pairs, pad_id=inputs.loaded.pad_id).sequences
    references, facts = inputs.references(sides, sides.of(used_rows(inputs.config, len(pairs))))
    return inputs.feed(pairs, references), facts


def labelled(inputs: Inputs) -> Source:
    """The source for single answers that are labelled desirable or undesirable."""
    config, loaded = inputs.config, inputs.loaded
    train, heldout = inputs.rendered(render_labels)
    refuse_one_class(train, "training data")
    notes = [*inputs.notes(train, heldout), *class_notes(heldout)]
    answers = Dataset(records=train.rows, pad_id=loaded.pad_id).sequences
    used = used_rows(config, len(answers))
    others = MismatchedAnswers(train.rows, seed=config.seed, max_length=longest_row(config, loaded))
    compares, add = "mismatched" in inputs.algorithm.needs, []
    alone = others.partners.notes(config, used) if compares else []
    references, facts = inputs.references(answers, used)
    if compares:
        found, more = inputs.references(others, used, "mismatched answers")
        assert found is not None, "an algorithm that compares with mismatched answers has a reference"
        add, facts = [AddMismatched(others, found.beside, loaded.pad_id)], [*facts, *more]
    measure: Measure = HeldOutLabels(config, inputs.forward, heldout.rows if heldout else (), loaded.pad_id)
    if heldout is not None and heldout.pairs is not None:
        measure = HeldOutPolicyPairs(config, inputs.forward, heldout.pairs, loaded.pad_id)
    if train.pairs is not None:
        facts = [f"both answers of {len(train.pairs)} pairs are used as single labelled answers", *facts]
    feed, asked = inputs.feed(train.rows, references, *add), inputs.asked(heldout.rows if heldout else (), train.rows)
    return Source(feed=feed, measure=measure, asked=asked, notes=[*notes, *alone], facts=facts)


def class_notes(heldout: LabelledSet | None) -> list[str]:
    """A warning if all held-out answers have the same label, because they then measure little."""
    only = only_class(heldout.rows) if heldout else ""
    if not heldout or not only:
        return []
    return [
        f"held-out data: all {len(heldout)} answers are {only}; without answers with label "
        f"{str(only != 'desirable').lower()}, the run cannot measure how well the model tells the two kinds apart"
    ]


SOURCES = {"prompts": online, "examples": supervised, "pairs": preferences, "labels": labelled}
"""The sources of a model that writes, by kind of data."""


# --- for a model that scores -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScoredSource:
    """The training data of a model that scores, and the measures of its scores."""

    feed: DatasetFeed
    heldout: Subject
    facts: ScoringFacts
    """Facts that are saved with the model, as far as the data decides them."""
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class ScoringInputs:
    """The parts that a run with a scoring model has when it reads its data."""

    config: RunConfig
    algorithm: Algorithm
    rows: Split
    loaded: LoadedModel
    renderer: Renderer
    forward: ScoringForward
    facts: ScoringFacts

    def rendered(self, render: Callable[..., Any]) -> tuple[Any, Any]:
        """The rendered training rows and held-out rows; None in place of held-out rows if there are none."""
        return render_both(render, self.config, self.rows, self.loaded, self.renderer)

    def notes(self, train: Any, heldout: Any) -> list[str]:
        """Warnings about the rendered rows, for the user."""
        return [*data_notes(train, heldout, self.config), *text_notes(train, heldout, self.config, self.loaded)]

    def heldout(self, records: Sequence[Any] | None) -> list[Any]:
        return [] if records is None else first(records, self.config.evaluation.prompts)

    def dataset(self, records: Sequence[Any], **how: Any) -> DatasetFeed:
        return DatasetFeed(self.config, Dataset(records=records, pad_id=self.loaded.pad_id, **how))

    @property
    def batching(self) -> dict[str, int]:
        return {"pad_id": self.loaded.pad_id, "tokens_per_microbatch": self.config.train.microbatch_tokens}


def scored_pairs(inputs: ScoringInputs) -> ScoredSource:
    """The source for a model that must score the better of two answers higher."""
    train, heldout = inputs.rendered(partial(render_pairs, eos_ids=inputs.loaded.eos_ids))
    pairs = inputs.heldout(heldout and heldout.rows)
    return ScoredSource(
        feed=inputs.dataset(train.rows),
        heldout=HeldOutPairs(inputs.forward, pairs, **inputs.batching),
        facts=inputs.facts,
        notes=inputs.notes(train, heldout) + margin_notes(train.rows, inputs.algorithm),
    )


def margin_notes(pairs: Sequence[Any], algorithm: Algorithm) -> list[str]:
    """A note if nothing reads the column of margins. Raises DataError if the algorithm needs it and rows lack it."""
    known, asked = int((~np.isnan(np.asarray(numbers_of(pairs)))).sum()), "margins" in algorithm.needs
    if asked and known < len(pairs):
        raise DataError(
            given=f"{len(pairs) - known} of {len(pairs)} pairs have no margin, but {algorithm.key} is set to read it",
            allowed="a number in the column margin of each row",
            fix="Set algorithm.margin = 0, or complete the column.",
        )
    return ["the column margin is not used; algorithm.margin = data would use it"] if known and not asked else []


def rated_answers(inputs: ScoringInputs) -> ScoredSource:
    """The source for a model that must give each answer its rating as score."""
    train, heldout = inputs.rendered(partial(render_ratings, eos_ids=inputs.loaded.eos_ids))
    scale = scale_of(numbers_of(train.rows), inputs.algorithm.needs)
    link = "logistic" if "unit_interval" in inputs.algorithm.needs else "identity"
    facts = replace(inputs.facts, link=link, target_mean=scale.mean, target_std=scale.std)
    answers = inputs.heldout(heldout and heldout.rows)
    return ScoredSource(
        feed=inputs.dataset(train.rows, collate=partial(ratings_batch, scale=scale)),
        heldout=HeldOutRatings(inputs.forward, answers, facts, **inputs.batching),
        facts=facts,
        notes=inputs.notes(train, heldout),
    )


def scale_of(ratings: Sequence[float], needs: Collection[str]) -> Scale:
    """The scale that an algorithm asks for; DataError for ratings that do not suit it."""
    if "unit_interval" in needs and (outside := [y for y in ratings if not 0 <= y <= 1]):
        raise DataError(
            given=f"{len(outside)} of {len(ratings)} ratings are not between 0 and 1; the first is {outside[0]:g}",
            allowed="ratings from 0 to 1, because regress = logistic learns their logits",
            fix="Set algorithm.regress = standardized, or divide all ratings by the largest possible one.",
        )
    if len(set(ratings)) < 2:
        raise DataError(
            given=f"all {len(ratings)} ratings are {ratings[0]:g}",
            allowed="ratings that differ",
            fix="There is nothing to learn from them: check the column score.",
        )
    return Scale(statistics.fmean(ratings), statistics.pstdev(ratings)) if "standardized" in needs else Scale()


def labelled_steps(inputs: ScoringInputs) -> ScoredSource:
    """The source for a model that must score whether a step is right."""
    assert inputs.algorithm.step_reading is not None, "an algorithm that learns from steps declares how to read them"
    separator, how = inputs.algorithm.step_reading
    train, heldout = inputs.rendered(partial(render_steps, separator=separator))
    answers = inputs.heldout(heldout and heldout.rows)
    return ScoredSource(
        feed=inputs.dataset(train.rows),
        heldout=HeldOutSteps(inputs.forward, answers, partial(aggregate, how=how), **inputs.batching),
        facts=replace(inputs.facts, separator=separator, aggregate=how),
        notes=[*inputs.notes(train, heldout), *train.notes, *(heldout.notes if heldout else ())],
    )


SCORED_SOURCES = {"pairs": scored_pairs, "ratings": rated_answers, "steps": labelled_steps}
"""The sources of a model that scores, by kind of data."""
