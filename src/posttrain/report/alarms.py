"""The report's section on reward hacking: the alarms of a run, and the metrics that they watch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.files import read_inside
from posttrain.report.chart import Chart, draw
from posttrain.report.spans import Span, span
from posttrain.report.store import RunRecord, mapping, number
from posttrain.report.svg import Series, compact, percent
from posttrain.report.text import cut, escaped

SHOWN = 6
"""Maximum number of answers that the page shows for an alarm; the file has more."""
LONGEST = 600
"""Maximum number of characters of such an answer."""
UNCHECKED = "Nobody checks the reward independently"
NAMES = {
    "disagreement": "the check rejects what the reward accepts",
    "heldout_drop": "the held-out score fell",
    "gap": "the reward rose more than the held-out score",
    "length_correlation": "reward came to go with length",
    "length": "answers became longer without becoming better",
    "truncation": "more answers are cut",
    "repetition": "answers repeat themselves",
    "compression": "answers repeat themselves",
    "template": "answers to different prompts became alike",
    "concentration": "answers concentrate on one value",
    "entropy": "the entropy collapsed without profit",
    "kl": "the KL to the reference jumped",
    "failures": "more answers cannot be scored",
    "no_signal": "groups lost their signal without profit",
    "mismatch": "the engine's log-probabilities differ from the trainer's",
}


@dataclass(frozen=True, kw_only=True)
class FiredAlarm:
    """An alarm, as read from its event."""

    kind: str
    step: int
    change_point: int
    message: str
    answers: str
    """Path of the file with its answers, relative to the run folder."""

    @property
    def name(self) -> str:
        return NAMES.get(self.kind, self.kind.replace("_", " "))


def alarms_of(run: RunRecord) -> list[FiredAlarm]:
    """Return the alarms of a run in the order in which they fired."""
    found = []
    for event in run.events:
        step, change = number(event.get("step")), number(event.get("change_point"))
        if event.get("kind") == "alarm" and step is not None:
            texts = {name: str(event.get(key) or "") for name, key in (("kind", "alarm"), ("message", "message"))}
            change_point = int(step if change is None else change)
            answers = str(event.get("answers") or "")
            found.append(FiredAlarm(step=int(step), change_point=change_point, answers=answers, **texts))
    return found


def is_watched(run: RunRecord) -> bool:
    """Does the run learn from rewards, with alarms enabled?"""
    return bool(run.series("reward")) and run.setting("alarms.enabled") is True


def alarms_html(run: RunRecord) -> str:
    """Return the messages of the alarms, with answers; "" for a run without alarms."""
    alarms = alarms_of(run)
    of_engines = "".join(_alarm_html(run, alarm) for alarm in alarms if alarm.kind == "mismatch")
    if of_engines:
        of_engines = f"<h2>Do engines and trainer agree?</h2>{of_engines}"
    alarms = [alarm for alarm in alarms if alarm.kind != "mismatch"]
    if not alarms and not is_watched(run):
        return of_engines
    told = "".join(_alarm_html(run, alarm) for alarm in alarms)
    told = told or f"<p>No {'other ' if of_engines else ''}alarm fired.</p>"
    lead = "An independent check, which training never sees, examines a sample of the answers that the reward accepts."
    if run.setting("check") and not run.series("check/accepted"):
        lead = "An independent check, which training never sees, examines held-out answers."
    if not run.setting("check"):
        lead = "These alarms fire if a run shows signs of a reward that pays for the wrong thing."
        told += (
            f'<p class="hint">{UNCHECKED}: the alarms look only at lengths and texts, and cannot see a wrong answer '
            "that the reward accepts. Give the run a check (docs/alarms.md).</p>"
        )
    return f'{of_engines}<h2>Is the reward gamed?</h2><p class="lead">{lead}</p>{told}'


def watch_charts(run: RunRecord) -> list[Chart]:
    """Return charts of the metrics that the alarms watch, except length and entropy, which `learning_charts` draws."""
    if not is_watched(run):
        return []
    found = [_against_check(run), _cusum(run), *_texts(run)]
    return [chart for chart in found if chart is not None]


# --- the alarms ------------------------------------------------------------------------------------------------------


def _alarm_html(run: RunRecord, alarm: FiredAlarm) -> str:
    message, note = cut(alarm.message, 1000)
    rows = read_answers(run, alarm)
    items = "".join(_answer_html(row) for row in rows[:SHOWN])
    more = f"{len(rows)} suspicious answers, the first {min(SHOWN, len(rows))} shown"
    answers = f'<details class="more"><summary>{more}</summary>{items}</details>' if rows else ""
    return (
        f'<div class="trouble"><b>Step {alarm.step}: {escaped(alarm.name)}</b>'
        f"<p>{escaped(message)} {escaped(note)}</p>{answers}</div>"
    )


def _answer_html(row: Mapping[str, Any]) -> str:
    prompt, completion = (cut(str(row.get(name) or ""), LONGEST)[0] for name in ("prompt", "completion"))
    marks = {name.removeprefix("check/"): value for name, value in row.items() if name.startswith("check/")}
    facts = [f"step {row.get('step')}", f"reward {_mark(row.get('reward'))}"]
    facts += [f"check “{label}” {_mark(value)}" for label, value in marks.items()]
    return (
        f'<p class="hint">{escaped(" · ".join(facts))}</p><pre dir="auto" tabindex="0">{escaped(prompt)}\n'
        f"→ {escaped(completion)}</pre>"
    )


def _mark(value: Any) -> str:
    known = number(value)
    return "not asked" if known is None else compact(known)


def read_answers(run: RunRecord, alarm: FiredAlarm) -> list[dict[str, Any]]:
    """Return the stored answers of an alarm; an empty list if the file is missing or damaged."""
    name = f"alarms/{alarm.answers.rpartition('/')[2]}"
    try:
        lines = read_inside(run.folder, name).decode("utf-8").split("\n") if alarm.answers else []
        rows = [json.loads(line) for line in lines if line]
    except (OSError, ValueError, RecursionError):
        return []
    return [row for row in rows if isinstance(row, dict)]


# --- the charts ------------------------------------------------------------------------------------------------------


def _against_check(run: RunRecord) -> Chart | None:
    """Draw the training reward, and the check's score of accepted and of held-out answers. A reward outside [0, 1] has
    another scale and is left out; it has its own plot."""
    agreed = [(step, 1 - value) for step, value in run.series("check/disagreement")]
    heldout = _heldout_check(run)
    if not agreed and not heldout:
        return None
    reward = run.series("reward")
    is_share = all(0 <= value <= 1 for _, value in reward)
    lines = [
        Series(name="training reward", points=reward if is_share else [], colour=1),
        Series(name="accepted answers that the check accepts", points=agreed, colour=3),
        Series(
            name="held-out answers by the check",
            points=[(step, found.mean) for step, found in heldout],
            band=[(step, found.low, found.high) for step, found in heldout if found.finite],
            colour=2,
            dots=True,
        ),
    ]
    hint = (
        "In an honest run, the check's score rises with the reward, and the check keeps accepting the answers "
        "that the reward accepts."
    )
    names = [f"check/{name}" for name in ("accepted", "checked", "rejected", "rejected_prompts", "unscored")]
    drawn = [line for line in lines if line.points]
    return draw("Reward against the check", drawn, percent, hint, names=[*names, "check/disagreement"])


def _heldout_check(run: RunRecord) -> list[tuple[float, Span]]:
    """Return (step, interval) of the check with the lowest mean, for each evaluation of the run."""
    found = run.evaluations.items()
    spans = [(step, [s for s in map(span, mapping(e.get("check")).values()) if s]) for step, e in found]
    return [(step, min(those, key=lambda one: one.mean)) for step, those in spans if those]


def _cusum(run: RunRecord) -> Chart | None:
    points = run.series("alarms/cusum")
    if not points:
        return None
    limit = number(run.setting("alarms.cusum_limit"))
    hint = "The log-likelihood ratio of a gamed run to an honest one, in nats, since the rejections began."
    mark = None if limit is None else (limit, "limit")
    ends = (0.0, None if limit is None or max(y for _, y in points) > limit else 1.1 * limit)
    line = Series(name="cumulative sum", points=points)
    names = ["alarms/cusum"]
    return draw("Disagreement with the check", [line], compact, hint, mark=mark, y_range=ends, names=names)


def _texts(run: RunRecord) -> list[Chart | None]:
    return [
        _lines(
            run,
            "Reward and length",
            {"text/length_correlation": "rank correlation"},
            "Among the answers to one prompt. Near 1, longer answers get higher rewards.",
            low=None,
        ),
        _lines(
            run,
            "Repetition",
            {"text/distinct_4grams": "distinct sequences of 4 tokens", "text/compression": "compressed by"},
            "Within an answer. A falling share and a rising factor mean that answers repeat themselves.",
        ),
        _lines(
            run,
            "Templates",
            {"text/same_start": "same first 30 tokens", "text/same_end": "same last 30 tokens"},
            "Largest share of the answers to different prompts that begin or end alike.",
            form=percent,
        ),
    ]


def _lines(
    run: RunRecord, title: str, metrics: Mapping[str, str], hint: str, *, low: float | None = 0.0, form: Any = compact
) -> Chart | None:
    lines = [
        Series(name=legend, points=points, colour=colour)
        for colour, (name, legend) in enumerate(metrics.items(), start=1)
        if (points := run.series(name))
    ]
    return draw(title, lines, form, hint, y_range=(low, None), names=list(metrics)) if lines else None
