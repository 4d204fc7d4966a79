"""The result of one run of a comparison, read from its folder."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from posttrain.errors import GuardStop
from posttrain.lab.experiments.compare.measures import COST, FULL_MARK, STABILITY, TO_TARGET, Measure, spikes
from posttrain.report.heldout import LOWER_IS_BETTER, headline_span, kind_of
from posttrain.report.spans import Span, span
from posttrain.report.store import RunRecord, mapping, number, read_rollouts, read_run

Status = Literal["finished", "failed", "missing"]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A held-out evaluation, and the tokens and seconds spent up to it."""

    step: int
    tokens: float
    seconds: float
    score: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run: an arm at a seed."""

    arm: str
    seed: int
    folder: Path
    status: Status
    reason: str = ""
    """Why the run did not finish."""
    cause: str = ""
    """The part of the reason that runs share if the same guard stopped them."""
    score: float | None = None
    """Held-out score after training."""
    baseline: float | None = None
    """Held-out score before training."""
    examples: Mapping[str, float] = field(default_factory=dict)
    """Held-out example (`ROW:PROMPT`) -> its score after training."""
    untrained: Mapping[str, float] = field(default_factory=dict)
    """The same before training."""
    start: Sequence[str] = ()
    """Answers before training, to check that arms started alike."""
    prompts: frozenset[str] = frozenset()
    """Prompts of the first step. Arms with the same seed share them; an arm that replaces some may have drawn more."""
    curve: Sequence[Point] = ()
    spans: Sequence[Span] = ()
    """The intervals of the scores of `curve`."""
    steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    """Time in steps, in seconds, without evaluations."""
    collapsed: bool = False
    """`analyse` finds out, because the rule depends on the scores of all runs."""
    spikes: int = 0
    entropy_kept: float | None = None
    """Ratio of the entropy in the last fifth of the steps to that in the first fifth."""
    measures: Mapping[str, float | None] = field(default_factory=dict)
    alarms: int = 0

    def to_json(self) -> dict[str, Any]:
        left_out = ("cause", "examples", "untrained", "folder", "curve", "spans", "start", "prompts")
        plain = {name: value for name, value in vars(self).items() if name not in left_out}
        return plain | {"measures": dict(self.measures), "curve": [vars(point) for point in self.curve]}


def read_outcome(
    arm: str,
    seed: int,
    folder: Path,
    *,
    measure: str,
    measures: Mapping[str, Measure],
    by_check: bool,
    target: float | None = None,
    reason: str = "",
) -> Outcome:
    """Read one run. `measure` is the score that suits all runs: a single run without any fully right answer might
    suggest another. `reason` is the error of the last attempt, used if the folder has none."""
    run = read_run(folder)
    before, after = mapping(run.evaluation.get("baseline")), mapping(run.evaluation.get("trained"))
    points, spans = _curve(run, measure, by_check)
    first, last = (_headline(side, measure, by_check) for side in (before, after))
    finished = run.status == "finished"
    told = "" if finished else _reason(run, reason)
    spent = list(accumulate(value for _, value in run.series("time/step")))
    return Outcome(
        arm=arm,
        seed=seed,
        folder=folder,
        status="finished" if finished else "failed" if told else "missing",
        reason=told,
        cause=_cause(run, told),
        score=last.mean if finished and last else None,
        baseline=first.mean if first else None,
        examples=dict(_examples(run, measure, by_check, "trained")) if finished else {},
        untrained=dict(_examples(run, measure, by_check, "baseline")),
        start=[
            str(mapping(line.get("greedy")).get("text"))
            for line in read_lines(folder / "evaluations" / "baseline.jsonl")
        ],
        prompts=frozenset(str(row.get("prompt")) for row in read_rollouts(folder, 1)),
        curve=points,
        spans=spans,
        steps=run.metrics[-1]["step"] if run.metrics else 0,
        tokens=max((value for _, value in run.series("num_tokens")), default=0.0),
        seconds=spent[-1] if spent else 0.0,
        spikes=spikes(run),
        entropy_kept=_kept(run),
        measures={label: how.of(run) for label, how in {**COST, **STABILITY, **measures}.items()}
        | _to_target(points, target, measure),
        alarms=sum(event.get("kind") == "alarm" for event in run.events),
    )


def with_common_names(outcomes: Sequence[Outcome], rows_of: Mapping[str, Any]) -> list[Outcome]:
    """Name each held-out example as the first arm of the same seed names it, because arms may put the same row into
    other words (`data.prompt`, `data.system_prompt`). `rows_of` tells per arm which rows it holds out: only arms with
    the same value share names."""
    names: dict[tuple[int, str, str], str] = {}

    def renamed(run: Outcome, scores: Mapping[str, float]) -> dict[str, float]:
        rows = {key: (run.seed, repr(rows_of.get(run.arm)), key.partition(":")[0]) for key in scores}
        return {names.setdefault(rows[key], key): score for key, score in scores.items()}

    return [
        replace(run, examples=renamed(run, run.examples), untrained=renamed(run, run.untrained)) for run in outcomes
    ]


def gave_the_same(first: Outcome, second: Outcome) -> bool:
    """Do the two runs agree in everything that does not depend on the machine?"""
    return _course_of(first) == _course_of(second)


def _course_of(run: Outcome) -> tuple[Any, ...]:
    stability = [run.measures.get(name) for name in STABILITY]
    curve = [(point.step, point.tokens, point.score) for point in run.curve]
    return run.score, dict(run.examples), curve, run.steps, run.tokens, run.entropy_kept, stability


def _to_target(points: Sequence[Point], target: float | None, name: str) -> dict[str, float | None]:
    """Return the steps, tokens and seconds spent until the first evaluation at the target or beyond."""
    if target is None:
        return {}
    lower = name in LOWER_IS_BETTER
    first = next((p for p in points if (p.score <= target if lower else p.score >= target)), None)
    spent = (None, None, None) if first is None else (float(first.step), first.tokens, first.seconds)
    return dict(zip(TO_TARGET, spent, strict=True))


def is_settled(folder: Path) -> bool:
    """Has the run finished, or did a guard stop it? The guard would stop it again."""
    run = read_run(folder)
    return run.status == "finished" or _is_guard_stop(run)


def _is_guard_stop(run: RunRecord) -> bool:
    return (run.error or {}).get("exit_code") == GuardStop.exit_code


def _reason(run: RunRecord, reason: str) -> str:
    if run.error is not None and run.status == "failed":
        first_line = str(run.error.get("message", "")).split("\n")[0]
        return f"{run.error.get('type')}: {first_line}"
    return reason


def _cause(run: RunRecord, reason: str) -> str:
    """Return the type of the error and the guard that stopped the run. If its setting is not named, the reason without
    its numbers. Other reasons are causes themselves: two exit codes may mean two faults."""
    if run.status != "failed" or not _is_guard_stop(run):
        return reason
    guard = re.search(r"guards\.\w+", reason)
    return f"{reason.split(':')[0]}: {guard.group()}" if guard else re.sub(r"\d[\d.]*", "#", reason)


def _headline(evaluation: Mapping[str, Any], name: str, by_check: bool) -> Span | None:
    if not by_check:
        return headline_span(evaluation, name)
    return next(iter(filter(None, map(span, mapping(evaluation.get("check")).values()))), None)


def _curve(run: RunRecord, name: str, by_check: bool) -> tuple[list[Point], list[Span]]:
    """Return every evaluation. If a step was repeated after a resume, its last evaluation counts."""
    tokens, times = dict(run.series("num_tokens")), dict(run.series("time/step"))
    spent = dict(zip(times, accumulate(times.values()), strict=True))
    scores = {step: _headline(evaluation, name, by_check) for step, evaluation in run.evaluations.items()}
    found = {step: score for step, score in scores.items() if score is not None}
    points = [
        Point(step=step, tokens=tokens.get(step, 0.0), seconds=spent.get(step, 0.0), score=score.mean)
        for step, score in found.items()
    ]
    return points, [found[point.step] for point in points]


def has_collapsed(spans: Sequence[Span], *, share: bool, lower: bool) -> bool:
    """Did the run lose half or more of its best score by the end, beyond chance? For a score that is not a share: did
    it end worse than it started? `lower`: lower scores are better."""
    if len(spans) < 2:
        return False
    first, last = spans[0], spans[-1]
    if lower:
        return last.low > first.high
    if not share:
        return last.high < first.low
    best = max(spans, key=lambda one: one.mean)
    return last.high < best.low and last.mean <= best.mean / 2


def _kept(run: RunRecord) -> float | None:
    values = [value for _, value in run.series("entropy")]
    fifth = max(1, len(values) // 5)
    begun = math.fsum(values[:fifth])
    return math.fsum(values[-fifth:]) / begun if begun > 0 else None


# --- held-out examples -----------------------------------------------------------------------------------------------


def _examples(
    run: RunRecord, name: str, by_check: bool, when: Literal["baseline", "trained"]
) -> Iterator[tuple[str, float]]:
    """Yield (example, score), if the run keeps a score per example: for answers, pairs of answers and given answers.
    Pairs and given answers are named by place and number: runs that left out other rows share no example."""
    folder = run.folder / "evaluations"
    kind = kind_of(mapping(run.evaluation.get(when)))
    if kind == "answers":
        yield from _answers(folder / f"{when}.jsonl", name, by_check)
    elif kind in ("policy pairs", "loss"):
        saved = _json(folder / f"{when}-scores.json")
        logprobs, tokens = saved.get("logprobs") or [], saved.get("tokens") or []
        half = len(logprobs) // 2
        if kind == "loss":
            rows = enumerate(zip(logprobs, tokens, strict=True))
            yield from ((f"{row} of {len(logprobs)}", -total / max(1, n)) for row, (total, n) in rows)
        else:
            pairs = enumerate(zip(logprobs[:half], logprobs[half:], strict=True))
            yield from (
                (f"{row} of {half}", (chosen > rejected) + 0.5 * (chosen == rejected))
                for row, (chosen, rejected) in pairs
            )


def _answers(path: Path, name: str, by_check: bool) -> Iterator[tuple[str, float]]:
    for line in read_lines(path):
        greedy = mapping(line.get("greedy"))
        checked = next(iter(mapping(greedy.get("check")).values()), None)
        score = number(checked if by_check else greedy.get("score"))
        if score is not None:
            key = f"{line.get('index')}:{line.get('prompt')}"
            yield key, float(score >= FULL_MARK) if name == "accuracy" and not by_check else score


def read_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a JSON-lines file. A line truncated by a kill or a full disk is skipped."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return
    for line in lines:
        try:
            found = json.loads(line) if line else None
        except ValueError:
            continue
        if isinstance(found, Mapping):
            yield found


def _json(path: Path) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
