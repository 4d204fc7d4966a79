"""The verdict of a report: did the run improve its target? In words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from posttrain.report.alarms import alarms_of
from posttrain.report.heldout import (
    LOWER_IS_BETTER,
    Kind,
    comparison,
    full_mark_sentences,
    headline_span,
    kind_of,
    measure_of,
    only_class,
)
from posttrain.report.note import fifths
from posttrain.report.others import forgot, kept, others_sentences
from posttrain.report.spans import Span, show_change, show_span, span
from posttrain.report.store import RunRecord, mapping, number
from posttrain.report.svg import compact
from posttrain.report.writing import writes_worse, writing_sentences
from posttrain.shown import shown

Tone = Literal["good", "bad", "plain"]
NOTICEABLE = 0.02
"""Minimum relative change of the loss on the reference text that the report calls a change."""
MEASURED_BY: dict[Kind, str] = {
    "answers": "its reward",
    "loss": "the held-out loss",
    "policy pairs": "the ranking of held-out pairs",
    "scored pairs": "its accuracy on held-out pairs",
    "labels": "the AUC of held-out answers",
    "ratings": "the error of its ratings",
    "steps": "its accuracy on held-out steps",
}
"""Kind of measurement -> the words for the measure that decides whether the model improved."""
OF_GIVEN = ("loss", "policy pairs", "labels")
"""Kinds measured on given answers. For them, checks may judge the model's own answers in addition."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict about a run: did it improve its target?"""

    headline: str
    tone: Tone
    measure: str = ""
    """Name of the measure, such as accuracy or loss; empty if nothing was measured."""
    change: int = 0
    """1: better. -1: worse. 0: not shown, not measured, or better in one way and worse in another."""
    baseline: Span | None = None
    trained: Span | None = None
    sentences: list[str] = field(default_factory=list)


def in_brief(run: RunRecord) -> dict[str, Any]:
    """Return the verdict for programs and for the last line of a run: the headline; the change of the measure (1
    better, 0 not shown, -1 worse), regardless of checks; how the model writes worse; what it forgot; the alarms.
    """
    found = verdict(run)
    measured = found.baseline is not None and found.trained is not None
    more = {
        "writes_worse": writes_worse(run.evaluation),
        "forgot": forgot(run.evaluation),
        "alarms": [alarm.kind for alarm in alarms_of(run)],
    }
    return {"sentence": found.headline, "change": found.change if measured else None} | {
        name: values for name, values in more.items() if values
    }


def verdict(run: RunRecord) -> Verdict:
    """Return the verdict: baseline against trained on held-out prompts, with intervals. If alarms fired, the headline
    begins with them, and names the measure by which the model improved."""
    found, alarms = measured_verdict(run), alarms_of(run)
    if not alarms:
        return found
    more = f" (and {len(alarms) - 1} more)" if len(alarms) > 1 else ""
    fired = f"An alarm fired at step {alarms[0].step}: {alarms[0].name}{more}."
    measured = found.headline
    if measured.startswith(("The model improved", "The model got")):
        measured = measured.replace("The model", f"By {_measured_by(run.evaluation)} the model", 1)
    return replace(found, headline=f"{fired} {measured}", tone="bad")


def measured_verdict(run: RunRecord) -> Verdict:
    """Return the verdict without alarms: held-out measurements, then the model's writing and its other answers."""
    found = _with_checked_answers(held_out_verdict(run), run.evaluation)
    more = [*writing_sentences(run.evaluation), *others_sentences(run.evaluation)]
    found = replace(found, sentences=[*found.sentences, *more])
    if found.change < 0 or run.status != "finished":
        return found
    found = _with_forgetting(_with_writing(found, run.evaluation), run.evaluation)
    return _with_alike_answers(found, run.evaluation)


def _with_writing(found: Verdict, evaluation: Mapping[str, Any]) -> Verdict:
    worse = writes_worse(evaluation)
    if not worse:
        return found
    if found.change == 0:
        return replace(found, headline=f"{found.headline} The model writes worse: {' and '.join(worse)}.", tone="bad")
    if kind_of(mapping(evaluation.get("trained"))) == "answers":  # the answers themselves were scored
        return found
    does = "predicts" if found.measure == "loss" else "ranks"
    return replace(
        found, headline=f"The model {does} better and writes worse: {' and '.join(worse)}.", tone="bad", change=0
    )


def _with_checked_answers(found: Verdict, evaluation: Mapping[str, Any]) -> Verdict:
    """If the measure on given answers hardly moved, let the independent checks of the model's own answers decide.

    DPO with a likelihood term hardly changes which answer of a pair is likelier, because the longer answer is nearly
    always less likely. The model's own answers can still change much. The headline says so if all checks rose or all
    fell; `change` remains the change of the measure.
    """
    kind, before, after = kind_of(mapping(evaluation.get("trained"))), found.baseline, found.trained
    if kind not in OF_GIVEN or before is None or after is None or before.disjoint(after) or found.tone == "bad":
        return found
    checks = check_spans(evaluation)
    moved = {check_moved(evaluation, label, old, new) for label, old, new in checks}
    if moved not in ({1}, {-1}):
        return found
    names = " and ".join(f"“{label}”" for label, _, _ in checks)
    by = f"By the independent check{'s' if len(checks) > 1 else ''} {names}"
    higher, tone = ("higher", "good") if moved == {1} else ("lower", "bad")
    ranking = "improved" if found.change else "shows no change"
    headline = f"{by} the model's answers score {higher} than before; {MEASURED_BY[kind]} {ranking}."
    return replace(found, headline=headline, tone=tone)


def _with_forgetting(found: Verdict, evaluation: Mapping[str, Any]) -> Verdict:
    said = found.headline.rstrip(".")
    of_model = said.startswith("The model")  # then extend this sentence, else add another one
    if lost := " and ".join(forgot(evaluation)):
        has = f"{said}, and it has forgotten: {lost}." if of_model else f"{said}. The model has forgotten: {lost}."
        return replace(found, headline=has, tone="bad", change=0)
    if found.tone == "good" and kept(evaluation):
        within = "on other prompts it stays" if of_model else "On other prompts the model stays"
        return replace(found, headline=f"{said}{', and' if of_model else '.'} {within} within the bound.")
    return found


def _with_alike_answers(found: Verdict, evaluation: Mapping[str, Any]) -> Verdict:
    """Add that the model writes worse, unless an independent check rose: a reward may prefer answers that are written
    worse, whether it is a model or a rule."""
    worse = writes_worse(evaluation)
    scored = kind_of(mapping(evaluation.get("trained"))) == "answers"
    rose = any(check_moved(evaluation, *sides) == 1 for sides in check_spans(evaluation))
    if not worse or not scored or rose or "writes worse" in found.headline:
        return found
    return replace(found, headline=f"{found.headline} It writes worse: {' and '.join(worse)}.", tone="bad")


def held_out_verdict(run: RunRecord) -> Verdict:
    """Return the verdict of the held-out measurements only."""
    before, after = mapping(run.evaluation.get("baseline")), mapping(run.evaluation.get("trained"))
    measure = measure_of(before, after)
    baseline, trained = headline_span(before, measure), headline_span(after, measure)
    if baseline is None or trained is None:
        return _unmeasured(run, measure, baseline, trained)
    difference = span(mapping(run.evaluation.get("difference")).get(measure))
    change = _direction(baseline, trained, difference) * (-1 if measure in LOWER_IS_BETTER else 1)
    sentences = comparison(measure, after, baseline, trained, difference)
    sentences += full_mark_sentences(measure, before, after)
    sentences += _check_sentences(run.evaluation, change)
    sentences += _reward_model_sentence(run.evaluation)
    sentences += _forgetting_sentence(run.evaluation)
    headlines: dict[int, tuple[str, Tone]] = {
        1: ("The model improved.", "good"),
        0: ("No improvement is shown.", "plain"),
        -1: ("The model got worse.", "bad"),
    }
    headline, tone = headlines[change]
    checks = check_spans(run.evaluation)
    fell = [f"“{label}”" for label, b, a in checks if check_moved(run.evaluation, label, b, a) == -1]
    if change == 1 and fell:
        by, named = _measured_by(run.evaluation), f" {' and '.join(fell)}" if len(checks) > 1 else ""
        check = f"independent check{'s' if len(fell) > 1 else ''}{named}"
        headline, tone = f"By {by} the model improved; by the {check} it got worse.", "bad"
    return Verdict(
        headline=headline,
        tone=tone,
        measure=measure,
        change=change,
        baseline=baseline,
        trained=trained,
        sentences=sentences,
    )


def _measured_by(evaluation: Mapping[str, Any]) -> str:
    return MEASURED_BY[kind_of(mapping(evaluation.get("trained")))]


def check_spans(evaluation: Mapping[str, Any]) -> list[tuple[str, Span | None, Span | None]]:
    """Return (label, baseline, trained) of each independent check, from either place in the file."""
    top = mapping(evaluation.get("check"))
    sides = [mapping(mapping(evaluation.get(side)).get("check")) for side in ("baseline", "trained")]
    labels = dict.fromkeys([*top, *sides[0], *sides[1]])
    found = []
    for label in labels:
        both = mapping(top.get(label))
        spans = [
            span(side.get(label)) or span(both.get(name))
            for side, name in zip(sides, ("baseline", "trained"), strict=True)
        ]
        if any(spans):
            found.append((str(label), *spans))
    return found


def _direction(baseline: Span, trained: Span, difference: Span | None) -> int:
    """Return 1 for a rise, -1 for a fall, and 0 if neither the two intervals nor the paired one shows a difference."""
    if baseline.disjoint(trained):
        return 1 if trained.mean > baseline.mean else -1
    if difference is not None and (difference.low > 0 or difference.high < 0):
        return 1 if difference.low > 0 else -1
    return 0


def _check_difference(evaluation: Mapping[str, Any], label: str) -> Span | None:
    """Return the change of a check, prompt by prompt; None in the file of an earlier version."""
    return span(mapping(mapping(evaluation.get("check")).get(label)).get("difference"))


def check_moved(evaluation: Mapping[str, Any], label: str, before: Span | None, after: Span | None) -> int:
    """Return 1 if a check rose, -1 if it fell, and 0 if no change is shown."""
    return _direction(before, after, _check_difference(evaluation, label)) if before and after else 0


def _check_sentences(evaluation: Mapping[str, Any], change: int) -> list[str]:
    sentences = []
    for label, before, after in check_spans(evaluation):
        if before is not None and after is not None:
            found, paired = check_moved(evaluation, label, before, after), _check_difference(evaluation, label)
            moved = f"went from {_plain(before)} to {_plain(after)}"
            if paired is not None and paired.finite:
                shares = all(0 <= side.mean <= 1 for side in (before, after))
                moved += f" (prompt by prompt {show_change('accuracy' if shares else 'score', paired)})"
            moved += _agreement(found, change)
            sentences.append(f"The independent check “{label}”, which training never saw, {moved}")
    return sentences


def _reward_model_sentence(evaluation: Mapping[str, Any]) -> list[str]:
    """Say how accurate the learned reward is, if the run has one."""
    trained = mapping(mapping(evaluation.get("reward_model")).get("trained"))
    accuracy, ranks = span(trained.get("accuracy")), span(trained.get("spearman"))
    if ranks is not None:
        does = f"has a rank correlation of {show_span('score', ranks)} with the ratings of {ranks.n} held-out answers"
    elif accuracy is not None and "steps" in trained:
        does = f"judges {show_span('accuracy', accuracy)} of the steps of {accuracy.n} held-out answers rightly"
    elif accuracy is not None:
        shown = show_span("accuracy", accuracy)
        does = f"puts {shown} of {accuracy.n} held-out pairs of given answers in the right order"
    else:
        return []
    return [
        f"The reward is a learned model: it {does}. That does not show how it scores the answers that training "
        "finds. The check decides."
    ]


def _agreement(found: int, change: int) -> str:
    """Say how the movement of a check (1, 0 or -1) relates to the change of the trained measure."""
    if found == 0:
        return "; its intervals overlap."
    if found == change:
        return " and agrees."
    if change == 1:
        return ": it fell while the reward rose. Look at the samples for a gamed reward."
    return ", which the measure above does not show."


def _plain(found: Span) -> str:
    return show_span("accuracy" if 0 <= found.mean <= 1 else "score", found)


def _forgetting_sentence(evaluation: Mapping[str, Any]) -> list[str]:
    losses = mapping(evaluation.get("forgetting"))
    before, after = number(losses.get("baseline_loss")), number(losses.get("trained_loss"))
    if before is None or after is None:
        return []
    change = f"{100 * (after / before - 1):+.1f}%".replace("-", "−") if before else "from 0"
    kept = "the model still predicts it about as well as before."
    if after > (1 + NOTICEABLE) * before:
        kept = "the model has become worse at it."
    elif after < (1 - NOTICEABLE) * before:
        kept = "the model has become better at it."
    return [f"Loss on the reference text went from {before:.3f} to {after:.3f} nats per token ({change}): {kept}"]


def _one_class_sentences(evaluation: Mapping[str, Any], only: str) -> list[str]:
    """Say what held-out answers show if all have the same label."""
    count = number(mapping(evaluation.get("trained")).get("answers"), 0)
    text = (
        f"All {count:.0f} held-out answers are {only}: how well the model distinguishes the two kinds is not measured."
    )
    moved = span(mapping(evaluation.get("difference")).get(f"logps_{only}"))
    if moved is None or not moved.finite:
        return [text]
    return [text, f"Their log-probability changed by {show_change('logps', moved)} nats per answer."]


def _during_training(run: RunRecord, measure: str) -> list[str]:
    """Say what the newest evaluation during training found, and how to measure a later checkpoint."""
    found = [(step, headline_span(evaluation, measure)) for step, evaluation in run.evaluations.items() if step > 0]
    step, newest = next(((step, value) for step, value in reversed(found) if value is not None), (0, None))
    sentences = []
    if newest is not None:
        sentences.append(f"At step {step}, in its newest evaluation, it was {show_span(measure, newest)}.")
    saved_at = max(run.checkpoint_steps, default=0)
    if run.status != "finished" and saved_at > step:
        sentences.append(
            f"It was not measured after training: `posttrain eval {shown(run.folder)}` measures its checkpoint of "
            f"step {saved_at} on the same rows."
        )
    return sentences


def _unmeasured(run: RunRecord, measure: str, baseline: Span | None, trained: Span | None) -> Verdict:
    rewards = run.series("reward")
    sentences = []
    if run.status == "failed" and mapping(run.error).get("type") == "AlarmStop":
        headline, tone = "The run ended there.", "bad"
    elif run.status == "failed" and mapping(run.error).get("type") == "KeyboardInterrupt":
        headline, tone = "The run was interrupted.", "plain"
    elif run.status == "failed":
        headline, tone = "The run stopped with an error.", "bad"
    elif run.status == "unfinished":
        headline, tone = "The run has not finished.", "plain"
    elif only := only_class(mapping(run.evaluation.get("trained"))):
        headline, tone = "The held-out data cannot show whether the model improved.", "plain"
        sentences += _one_class_sentences(run.evaluation, only)
    else:
        headline, tone = "No held-out evaluation.", "plain"
        sentences.append("Without held-out data before and after, this page cannot say whether the model improved.")
    if baseline is not None:
        sentences.append(f"Before training, held-out {measure} was {show_span(measure, baseline)}.")
        sentences += _during_training(run, measure) if trained is None else []
    if rewards:
        first, last = fifths(rewards)
        sentences.append(
            f"Training reward was {compact(first)} in the first fifth of {len(rewards)} recorded steps and "
            f"{compact(last)} in the last; training reward alone does not prove that the model improved."
        )
    return Verdict(
        headline=headline, tone=tone, measure=measure, baseline=baseline, trained=trained, sentences=sentences
    )
