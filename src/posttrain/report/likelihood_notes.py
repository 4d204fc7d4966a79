"""Notes for the reader about a run that learns from given answers: preference pairs, labels or demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from posttrain.report.note import Note, fifths
from posttrain.report.spans import Span, signed, span
from posttrain.report.store import RunRecord, mapping
from posttrain.report.svg import compact, percent

ALL_IN_ORDER = 0.99
GROWN = 1.5
MEMORISED = 0.1
"""Gap between the training and the held-out share of pairs in order above which the note says memorising."""
LESS = "A larger beta and a lower train.learning_rate reduce it."
CURES = (
    "Losses that prevent this: dpop (a penalty for the fall), rpo and cpo (a likelihood term on the chosen "
    f"answers). {LESS}"
)


class Fallen(NamedTuple):
    """The changes in summed log-probability of the answers that should become likelier, and of the others."""

    better: str
    """Name of the first: chosen or desirable."""
    worse: str
    change: Span
    other: Span | None


def fallen(evaluation: Mapping[str, Any]) -> Fallen | None:
    """Return the changes on held-out data if the chosen (or desirable) answers became less likely; else None."""
    difference = mapping(evaluation.get("difference"))
    for better, worse in (("chosen", "rejected"), ("desirable", "undesirable")):
        changed = span(difference.get(f"logps_{better}"))
        if changed is not None and changed.high < 0:
            return Fallen(better, worse, changed, span(difference.get(f"logps_{worse}")))
    return None


def displacement(run: RunRecord) -> Note | None:
    """Note if the chosen answers became less likely (likelihood displacement)."""
    found = fallen(run.evaluation)
    if found is None:
        return _displacement_in_training(run)
    text, reason = f"On held-out data by {_nats(found.change)} per answer", _reason(found.better)
    if (other := found.other) is not None:
        text += f"; the {found.worse} ones {_moved(other)}"
        both_fell = other.high < 0 and other.mean < found.change.mean
        reason = _reason(found.better, others_rose=other.low > 0, by_lowering_both=both_fell)
    return Note("warn", f"The {found.better} answers became less likely", f"{text}. {reason}")


def _moved(other: Span) -> str:
    """Say in which direction the other answers moved, and by how much."""
    if other.low <= 0 <= other.high:
        return f"show no certain change ({signed('logps', other.mean)} nats)"
    return f"became {'likelier' if other.low > 0 else 'less likely'} by {_nats(other)}"


def _reason(better: str, *, others_rose: bool = False, by_lowering_both: bool = False) -> str:
    """Say what the loss did to the two kinds of answers. Only a pair has a difference that it can widen."""
    pairs = better == "chosen"
    if others_rose:
        swapped = "columns" if pairs else "labels"
        return f"The loss asks for the opposite: are the {swapped} swapped, or is train.learning_rate too high?"
    if by_lowering_both and pairs:
        return (
            "The loss only asks for a difference, and reached it by lowering both: the probability moved to answers "
            f"that are in no pair. {CURES}"
        )
    return f"The probability moved to answers that are not in the data. {CURES if pairs else LESS}"


def _displacement_in_training(run: RunRecord) -> Note | None:
    """Note if the chosen answers of the training steps became less likely, for a run without held-out data."""
    chosen, rejected = run.series("logps/chosen"), run.series("logps/rejected")
    if len(chosen) < 10 or mapping(run.evaluation.get("difference")).get("logps_chosen"):
        return None
    first, last = fifths(chosen)
    if not last < first - 0.1 * abs(first):
        return None
    text, reason = f"In training from {compact(first)} to {compact(last)} nats per answer", _reason("chosen")
    if len(rejected) >= 10:
        before, after = fifths(rejected)
        text += f", the rejected ones from {compact(before)} to {compact(after)}"
        others_rose = after > before + 0.1 * abs(before)
        reason = _reason("chosen", others_rose=others_rose, by_lowering_both=after - before < last - first)
    return Note("warn", "The chosen answers became less likely", f"{text}. {reason}")


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
    """Return the size of a change whose direction the text names."""
    low, high = sorted(abs(edge) for edge in (change.low, change.high))
    return f"{compact(abs(change.mean))} nats (interval {compact(low)} to {compact(high)})"
