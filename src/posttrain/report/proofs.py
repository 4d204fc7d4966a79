"""The proofs of a run, read back from its files: the claim, the evidence, and whether it held."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Literal, NamedTuple

from posttrain.report.alarms import alarms_of
from posttrain.report.heldout import WORDS, kind_of
from posttrain.report.notes import MISMATCH_IS_LARGE, mismatch
from posttrain.report.store import RunRecord, mapping, number
from posttrain.report.svg import compact, percent
from posttrain.report.verdict import check_moved, check_spans, held_out_verdict


class Proof(NamedTuple):
    """One claim of the library, and the evidence of this run for it."""

    claim: str
    state: Literal["yes", "no", "unknown"]
    evidence: str


def proofs(run: RunRecord) -> list[Proof]:
    """Return the proofs for which a run's files have evidence, in the order of a run."""
    sides = [mapping(run.evaluation.get(side)) for side in ("baseline", "trained")]
    of_samples = (_checked, _published, _agreed, _scored) if kind_of(*sides) == "answers" else ()
    finders = (_measured, *of_samples, _finite, _saved, _resumed)
    return [proof for finder in finders for proof in finder(run)]


def _measured(run: RunRecord) -> Iterator[Proof]:
    sides = [mapping(run.evaluation.get(side)) for side in ("baseline", "trained")]
    words = WORDS[kind_of(*sides)]
    unit = words.unit
    claim = f"Improvement was measured on held-out {unit}, before and after"
    counts = [number(side.get(words.count)) for side in sides]
    if None not in counts:
        yield Proof(claim, "yes", f"{counts[0]:.0f} {unit} before, {counts[1]:.0f} after, each with an interval")
    else:
        yield Proof(claim, "unknown", "evaluation.json does not hold both measurements")


def _checked(run: RunRecord) -> Iterator[Proof]:
    """The check agrees if it moved in the same direction as the measure. It contradicts if it moved the other way, or
    fell while the measure shows no change."""
    claim = "An independent check agrees with the reward"
    change = held_out_verdict(run).change
    for label, before, after in check_spans(run.evaluation):
        if before is None or after is None:
            continue
        evidence = f"{label}, scored in evaluations only: {compact(before.mean)} before, {compact(after.mean)} after"
        moved = check_moved(run.evaluation, label, before, after)
        if moved == 0:
            yield Proof(claim, "unknown", f"{evidence}; the intervals overlap")
        elif change == 0 and moved > 0:
            yield Proof(claim, "unknown", f"{evidence}; the measure itself shows no change")
        else:
            yield Proof(claim, "yes" if moved * change > 0 else "no", evidence)
    if not check_spans(run.evaluation):
        yield Proof(claim, "unknown", "no check is configured; set check: [...]")


def _published(run: RunRecord) -> Iterator[Proof]:
    claim = "The sampler ran the weights that were trained"
    tensors, probes = run.series("publish/tensors_compared"), run.series("publish/probe_max_difference")
    if run.error is not None and run.error.get("type") == "PublishError":
        yield Proof(claim, "no", str(run.error.get("message", "")))
    elif tensors and probes:
        evidence = (
            f"after each of {len(tensors)} publishes, {min(value for _, value in tensors):.0f} tensors compared and a "
            f"fixed text scored by both: largest difference {compact(max(value for _, value in probes))} nats"
        )
        yield Proof(claim, "yes", evidence)
    else:
        yield Proof(claim, "unknown", "no publish is recorded")


def _agreed(run: RunRecord) -> Iterator[Proof]:
    points = [value for _, value in mismatch(run)]
    if points:
        level = statistics.fmean(points)
        alarm = next((alarm for alarm in alarms_of(run) if alarm.kind == "mismatch"), None)
        state = "yes" if level <= MISMATCH_IS_LARGE and alarm is None else "no"
        evidence = f"their log-probabilities differ by {compact(level)} nats per token on average"
        evidence += f"; {alarm.message}" if alarm else ""
        yield Proof("Sampler and trainer agree on log-probabilities", state, evidence)


def _scored(run: RunRecord) -> Iterator[Proof]:
    points = [value for _, value in run.series("unscored_fraction")]
    if points:
        evidence = "every answer got a reward"
        if max(points) > 0:
            share = percent(statistics.fmean(points))
            evidence = f"{share} of the answers had none; they were left out of statistics and loss"
        yield Proof("No failed reward was counted as 0", "yes", evidence)


def _finite(run: RunRecord) -> Iterator[Proof]:
    claim = "No step used a loss or gradient that was not finite"
    if run.error is not None and run.error.get("type") == "NonFiniteError":
        yield Proof(
            claim, "yes", f"one appeared, and the run stopped before the optimizer step: {run.error.get('message', '')}"
        )
    elif run.series("grad_norm"):
        yield Proof(claim, "yes", f"{len(run.series('grad_norm'))} gradient norms, all finite")


def _saved(run: RunRecord) -> Iterator[Proof]:
    claim = "Checkpoints are complete, with a checksum of every file"
    sealed = [step for step in run.checkpoint_steps if (run.checkpoint(step) / "manifest.json").exists()]
    if sealed:
        yield Proof(claim, "yes", f"in the folder: {', '.join(f'step {step}' for step in sealed)}")
    else:
        yield Proof(claim, "unknown", "no checkpoint with a manifest in the folder")


def _resumed(run: RunRecord) -> Iterator[Proof]:
    messages = [str(event.get("message", "")) for event in run.events if event.get("kind") == "resume"]
    if messages:
        times = "once" if len(messages) == 1 else f"{len(messages)} times"
        yield Proof("A resumed run is the same run", "yes", f"resumed {times}; {messages[-1]}")
