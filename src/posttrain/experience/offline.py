"""Where the data of a run comes from whose answers are given: imitated, compared in pairs, or labelled one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from posttrain.data.examples import render_examples
from posttrain.data.labels import LabelledSet, only_class, refuse_one_class, render_labels
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer
from posttrain.evaluate.heldout_pairs import HeldOutLabels, HeldOutPolicyPairs
from posttrain.evaluate.measure import HeldOutLoss, Measure
from posttrain.experience.feed import DatasetFeed
from posttrain.experience.labels import Answers, Beside, LabelFeed, MismatchedAnswers
from posttrain.experience.preferences import PairFeed, Sides
from posttrain.experience.references import References, reference_logprobs, start_forward, used_rows
from posttrain.experience.rendering import data_notes, render_both
from posttrain.train.source import Parts, Source, longest_row
from posttrain.types import Example


def supervised(parts: Parts) -> Source:
    """Given answers are imitated."""
    config, loaded = parts.config, parts.loaded
    train, heldout = rendered(render_examples, parts)
    feed = DatasetFeed(config, train.examples, pad_id=loaded.pad_id)
    measure = HeldOutLoss(config, parts.forward, heldout.examples if heldout else (), loaded.pad_id)
    return Source(feed=feed, measure=measure, notes=data_notes(train, heldout))


def preferences(parts: Parts) -> Source:
    """The better one of two answers is told from the other."""
    config, loaded = parts.config, parts.loaded
    train, heldout = rendered(render_pairs, parts)
    sides = Sides(train.pairs)
    used = used_rows(config, len(train.pairs))
    references, facts = beside(parts, sides, sides.of(used))
    feed = PairFeed(config, train.pairs, pad_id=loaded.pad_id, references=references)
    measure = HeldOutPolicyPairs(config, parts.forward, heldout.pairs if heldout else (), loaded.pad_id)
    return Source(feed=feed, measure=measure, notes=data_notes(train, heldout), facts=facts)


def labelled(parts: Parts) -> Source:
    """Desirable answers are told from undesirable ones."""
    config, loaded = parts.config, parts.loaded
    train, heldout = rendered(render_labels, parts)
    refuse_one_class(train.rows, "training data")
    answers = Answers(train.rows)
    used = used_rows(config, len(answers))
    others = MismatchedAnswers(train.rows, seed=config.seed, max_length=longest_row(config, loaded))
    compares = "mismatched" in config.algorithm.build().needs
    alone = others.partners.notes(config, used) if compares else []
    references, facts = beside(parts, answers, used)
    mismatched = None
    if compares:
        found, more = beside(parts, others, used, what="mismatched answers")
        assert found is not None, "what compares with mismatched answers has a reference"
        mismatched, facts = Beside(others, found), [*facts, *more]
    feed = LabelFeed(config, train.rows, pad_id=loaded.pad_id, references=references, mismatched=mismatched)
    measure: Measure = HeldOutLabels(config, parts.forward, heldout.rows if heldout else (), loaded.pad_id)
    if heldout is not None and heldout.pairs is not None:
        measure = HeldOutPolicyPairs(config, parts.forward, heldout.pairs, loaded.pad_id)
    if train.pairs is not None:
        facts = [f"both answers of {len(train.pairs)} pairs are learned from as judged answers", *facts]
    notes = [*data_notes(train, heldout), *class_notes(heldout), *alone]
    return Source(feed=feed, measure=measure, notes=notes, facts=facts)


def class_notes(heldout: LabelledSet | None) -> list[str]:
    """Held-out answers of one kind measure less than they seem to."""
    only = only_class(heldout.rows) if heldout else ""
    if not heldout or not only:
        return []
    return [
        f"held-out data: all {len(heldout)} answers are {only}; how well the model tells the two kinds apart is not "
        f"measured without answers with label {str(only != 'desirable').lower()}"
    ]


def rendered(render: Callable[..., Any], parts: Parts) -> tuple[Any, Any]:
    """The training rows and the held-out ones as the run's own data settings say."""
    config, loaded = parts.config, parts.loaded
    renderer = Renderer.of(config.data, loaded.tokenizer, config.model.chat_template_kwargs)
    return render_both(partial(render, eos_ids=loaded.eos_ids), config, parts.rows, loaded, renderer)


def beside(
    parts: Parts, examples: Sequence[Example], places: Sequence[int], what: str = "answers"
) -> tuple[References | None, list[str]]:
    """What the reference says about the examples at `places`, where the algorithm asks for it, and a line about it."""
    config, loaded = parts.config, parts.loaded
    if "reference" not in config.algorithm.build().needs:
        return None, []
    started, reference = time.perf_counter(), start_forward(config, loaded, parts.forward)
    found, known = reference_logprobs(config, examples, places, reference, pad_id=loaded.pad_id, folder=parts.folder)
    seconds = time.perf_counter() - started
    how = "read from disk" if known else f"computed in {seconds:.1f} s, and kept on disk"
    return found, [f"log-probabilities of {len(places)} {what} under the reference: {how}"]
