"""Notes for the reader about a run that learns from given answers: preference pairs, labels or demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.report.note import Note, fifths
from posttrain.report.spans import Span, signed, span
from posttrain.report.store import RunRecord, mapping
from posttrain.report.svg import compact, percent

ALL_IN_ORDER = 0.99
GROWN = 1.5
MEMORISED = 0.1
"""Gap between the training and the held-out share of pairs in order above which the note says memorising."""
CURES = (
    "Losses that prevent this: dpop (a penalty for the fall), rpo and cpo (a likelihood term on the chosen "
    "answers). A larger beta and a lower train.learning_rate reduce it."
)


def fallen(evaluation: Mapping[str, Any]) -> tuple[Span, Span | None] | None:
    """Return the change in summed log-probability of chosen (or desirable) held-out answers, and of the others, if the
    first fell; else None."""
    difference = mapping(evaluation.get("difference"))
    for better, worse in (("chosen", "rejected"), ("desirable", "undesirable")):
        changed = span(difference.get(f"logps_{better}"))
        if changed is not None and changed.high < 0:
            return changed, span(difference.get(f"logps_{worse}"))
    return None


def displacement(run: RunRecord) -> Note | None:
    """Note if the chosen answers became less likely (likelihood displacement)."""
    found = fallen(run.evaluation)
    if found is not None:
        chosen, rejected = found
        text = f"On held-out data by {_nats(chosen)} per answer"
        text += f", the rejected ones by {_nats(rejected)}" if rejected is not None else ""
    else:
        points = run.series("logps/chosen")
        if len(points) < 10 or mapping(run.evaluation.get("difference")).get("logps_chosen"):
            return None
        first, last = fifths(points)
        if not last < first - 0.1 * abs(first):
            return None
        text = f"In training from {compact(first)} to {compact(last)} nats per answer"
    return Note(
        "warn",
        "The chosen answers became less likely",
        f"{text}. The loss only asks for a difference, and reached it by lowering both: the probability moved to "
        f"answers that are in no pair. {CURES}",
    )


def memorising(run: RunRecord) -> Note | None:
    """Note if (nearly) all training pairs are in order and the margins keep growing."""
    accuracies, margins = run.series("rewards/accuracies"), run.series("rewards/margins")
    if len(accuracies) < 10 or len(margins) < 10:
        return None
    in_order = fifths(accuracies)[1]
    middle, last = fifths(margins[len(margins) // 2 :])
    if in_order < ALL_IN_ORDER or not last > GROWN * abs(middle):
        return None
    after = mapping(run.evaluation.get("trained"))
    held_out = span(mapping(after.get("implicit")).get("accuracy")) or span(after.get("accuracy"))
    text = (
        f"{percent(in_order)} in the last fifth, while the margins still grew from {compact(middle)} to "
        f"{compact(last)}: the model can learn nothing more from the order, but its weights keep moving"
    )
    if held_out is not None and held_out.mean < in_order - MEMORISED:
        text += f". On held-out pairs it is {percent(held_out.mean)}: the model is memorising the pairs"
    advice = (
        "Stop earlier with fewer steps, a larger beta or a lower train.learning_rate; ipo and cdpo aim at a "
        "finite margin."
    )
    return Note("warn", "All training pairs are in order and the margins keep growing", f"{text}. {advice}")


def overfitting(run: RunRecord) -> Note | None:
    """Note if the training loss fell and the held-out loss rose."""
    losses, change = run.series("sft/nll"), span(mapping(run.evaluation.get("difference")).get("loss"))
    if len(losses) < 5 or change is None or change.low <= 0:
        return None
    first, last = fifths(losses)
    if last >= first:
        return None
    return Note(
        "warn",
        "The held-out loss rose while the training loss fell",
        f"By {signed('loss', change.mean)} nats per token, against {compact(first)} → {compact(last)} in "
        "training: the model is memorising the answers. Fewer steps, a lower train.learning_rate or more data "
        "help.",
    )


def _nats(change: Span) -> str:
    mean, low, high = (signed("logps", edge) for edge in change[:3])
    return f"{mean} nats (interval {low} to {high})"
