"""The findings of a comparison, in sentences that claim no more than the intervals support."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from posttrain.lab.experiments.compare.analysis import Analysis, Arm, Pair
from posttrain.lab.experiments.compare.estimates import Estimate
from posttrain.lab.experiments.compare.outcomes import Outcome
from posttrain.report.svg import compact, percent, seconds
from posttrain.report.text import aligned


def verdict(found: Analysis) -> list[str]:
    """Return sentences: the answer first, then its limitations."""
    return [*_answer(found), *_before(found), *_lost(found), *_collapsed(found), *_conditions(found)]


def claims(found: Analysis) -> list[tuple[str, str, Pair]]:
    """Return (better, worse, pair) for each difference that can be claimed. An arm that lost runs is never called
    better, because the lost runs might have been its worst."""
    return [
        (*sides, pair)
        for pair in found.pairs
        if pair.differs(found.design.confidence) and found.arm((sides := _sides(found, pair))[0]).is_whole
    ]


def is_no_better(found: Analysis, arm: Arm) -> bool:
    """Did the arm end no better, on average, than it was before training? False if that was not measured."""
    return arm.gain.seeds > 0 and (arm.gain.mean >= 0 if found.lower else arm.gain.mean <= 0)


def amount(found: Analysis, value: float) -> str:
    """Format the size of a difference: in points for a share, otherwise as a plain number."""
    if not math.isfinite(value):
        return "any size"
    return f"{100 * abs(value):.1f} points" if found.share else compact(abs(value))


def interval(found: Analysis, pair: Pair, better: str) -> str:
    """Format the interval of a difference: `95% interval +1.0 to +5.2`."""
    ends = (pair.estimate.low, pair.estimate.high)
    return _limits(found, ends if better == pair.first else (-ends[1], -ends[0]))


def _limits(found: Analysis, ends: tuple[float, float]) -> str:
    low, high = (_signed(found, end) for end in ends)
    return f"{100 * found.design.confidence:g}% interval {low} to {high}"


def _signed(found: Analysis, value: float) -> str:
    return (f"{100 * value:+.1f}" if found.share else f"{value:+.3g}").replace("-", "−")


# --- the answer ------------------------------------------------------------------------------------------------------


def _answer(found: Analysis) -> list[str]:
    if sum(arm.score.seeds > 0 for arm in found.arms) < 2:
        return ["There is nothing to compare: fewer than two arms have a run that finished with a held-out score."]
    same = [_same(pair) for pair in found.pairs if pair.same]
    apart = [_nothing_shared(found, pair) for pair in found.pairs if not pair.estimate.seeds]
    if max(pair.estimate.seeds for pair in found.pairs) < 2:
        unknown = any(pair.estimate.seeds and not pair.same for pair in found.pairs)
        return [*same, *([_one_seed(found)] if unknown else []), *filter(None, apart)]
    made = claims(found)
    decided = [pair for _, _, pair in made]
    return [*_better(found, made), *same, *_undecided(found, decided), *filter(None, apart)]


def _same(pair: Pair) -> str:
    return (
        f"{pair.first} and {pair.second} gave the same results in every run: what differs between them had no effect "
        "here."
    )


def _nothing_shared(found: Analysis, pair: Pair) -> str:
    """Say why two arms cannot be compared. Empty if one has no score at all, because its lost runs are told."""
    first, second = ({run.seed for run in found.arm(name).finished} for name in (pair.first, pair.second))
    if not first or not second:
        return ""
    why = "held-out example" if first & second else "seed with which both finished"
    return f"{pair.first} and {pair.second} cannot be compared: they share no {why}."


def _no_spread(found: Analysis, pair: Pair) -> str:
    """Say why a difference that every seed repeats is not claimed."""
    better, worse = _sides(found, pair)
    lead = f"{better} is ahead of {worse} by {amount(found, pair.estimate.mean)}"
    level = f"{pair.first} and {pair.second} are level"
    return (
        f"{lead if pair.estimate.mean else level} with each of {pair.estimate.seeds} seeds. Nothing is claimed, "
        "because a difference that does not vary says nothing about other seeds. Use more seeds or more held-out "
        "examples."
    )


def _better(found: Analysis, made: Sequence[tuple[str, str, Pair]]) -> list[str]:
    """Return one sentence for an arm that beats all others, and one for each other claimed pair."""
    won = {arm.name: [worse for better, worse, _ in made if better == arm.name] for arm in found.arms}
    winner = next((name for name, worse in won.items() if len(worse) == len(found.arms) - 1), None)
    sentences = []
    if winner is not None:
        shown = ", ".join(_by(found, pair, winner, worse) for better, worse, pair in made if better == winner)
        sentences.append(f"{winner} is better than {shown}, with {_seeds(found)}{_but(found, winner)}.")
    return sentences + [
        f"{better} is better than {_by(found, pair, better, worse)}, with {_seeds(found)}{_but(found, better)}."
        for better, worse, pair in made
        if better != winner
    ]


def _but(found: Analysis, better: str) -> str:
    return ", but no better than before training" if is_no_better(found, found.arm(better)) else ""


def _by(found: Analysis, pair: Pair, better: str, worse: str) -> str:
    p = "< 0.001" if pair.p < 0.001 else f"{pair.p:.2g}"
    return f"{worse} by {amount(found, pair.estimate.mean)} ({interval(found, pair, better)}, p {p})"


def _undecided(found: Analysis, claimed: Sequence[Pair]) -> list[str]:
    rest = [pair for pair in found.pairs if pair.estimate.seeds > 1 and pair not in claimed and not pair.same]
    withheld = [pair for pair in rest if pair.differs(found.design.confidence)]
    level = [pair for pair in rest if not pair.estimate.has_interval]
    undecided = [pair for pair in rest if pair not in [*withheld, *level]]
    sentences = [_withheld(found, pair) for pair in withheld] + [_no_spread(found, pair) for pair in level]
    return sentences + (_no_difference(found, undecided) if undecided else [])


def _no_difference(found: Analysis, pairs: Sequence[Pair]) -> list[str]:
    """Return the measured and the detectable difference. Without a claim, the arms may still differ."""
    if len(pairs) == len(found.pairs):
        what = f"between {_and([arm.name for arm in found.arms])}"
    else:
        what = _and([f"between {pair.first} and {pair.second}" for pair in pairs])
    largest = max(pairs, key=lambda pair: abs(pair.estimate.mean))
    better, worse = _sides(found, largest)
    lead = "the largest measured difference is" if len(pairs) > 1 else "the measured difference is"
    return [
        f"No difference can be claimed {what} with {_seeds(found)}: {lead} {amount(found, largest.estimate.mean)} for "
        f"{better} over {worse} ({interval(found, largest, better)}).",
        _power(found, max(pair.smallest for pair in pairs)),
    ]


def _power(found: Analysis, least: float) -> str:
    if found.share and least > 1:
        return "So few runs could not detect even the largest possible difference."
    seen = f"A true difference of {amount(found, least)} would be detected four times in five"
    return f"{seen}, a smaller one less often."


def _withheld(found: Analysis, pair: Pair) -> str:
    better, worse = _sides(found, pair)
    lost = f"{len(found.arm(better).lost)} of its {len(found.design.seeds)} runs"
    return (
        f"The finished runs of {better} are better than those of {worse} by {amount(found, pair.estimate.mean)}. "
        f"This is not claimed for {better} itself, because {lost} are missing."
    )


def _one_seed(found: Analysis) -> str:
    form = _form(found)
    scores = ", ".join(f"{arm.name} {form(arm.score.mean)}" for arm in found.arms if arm.score.seeds)
    return (
        f"One seed cannot separate the arms, because another seed might reverse their order: {scores}. Use 3 or more."
    )


def _sides(found: Analysis, pair: Pair) -> tuple[str, str]:
    """Return (the arm with the better score, the other arm)."""
    first_is_better = (pair.estimate.mean > 0) != found.lower
    return (pair.first, pair.second) if first_is_better else (pair.second, pair.first)


# --- before training -------------------------------------------------------------------------------------------------


def _before(found: Analysis) -> list[str]:
    """Return the score before training, and the arms that are not shown to have improved it. Without it, the best of
    arms that all spoiled the model looks like a success."""
    arms = [arm for arm in found.arms if arm.gain.seeds]
    if not arms:
        return []
    worse = [arm for arm in arms if is_no_better(found, arm)]
    unsure = [arm for arm in arms if arm not in worse and arm.gain.low <= 0 <= arm.gain.high and arm.gain.has_interval]
    leads = {"No better than before training": worse, "Not shown to be better than before training": unsure}
    named = [f"{lead}: {_and([_gain(found, arm) for arm in of])}." for lead, of in leads.items() if of]
    return [_score_before(found, arms), *named]


def _score_before(found: Analysis, arms: Sequence[Arm]) -> str:
    shown = {arm.name: _shown(found, arm.untrained) for arm in arms}
    lead = f"Before training, the held-out {found.measure} was"
    if len(set(shown.values())) == 1:
        return f"{lead} {shown[arms[0].name]}."
    each = _and([f"{score} for {name}" for name, score in shown.items()])
    if _uneven(arms):
        return f"{lead} {each}. The arms did not start level, so training is not all that separates them."
    return f"{lead} {each}, over the runs that finished."


def _uneven(arms: Sequence[Arm]) -> bool:
    """Did two finished runs with the same seed have different scores before training?"""
    starts: dict[int, list[float]] = {}
    for arm in arms:
        for run in arm.finished:
            starts.setdefault(run.seed, []).extend([] if run.baseline is None else [run.baseline])
    return any(not math.isclose(min(of), max(of), rel_tol=1e-4, abs_tol=1e-6) for of in starts.values() if of)


def _gain(found: Analysis, arm: Arm) -> str:
    change = f"{_signed(found, arm.gain.mean)}{' points' if found.share else ''}"
    if not arm.gain.has_interval:
        return f"{arm.name} ({change})"
    return f"{arm.name} ({change}, {_limits(found, (arm.gain.low, arm.gain.high))})"


# --- limitations -----------------------------------------------------------------------------------------------------


def _lost(found: Analysis) -> list[str]:
    """Name the lost runs of each arm by their cause, with the reason of the first one."""
    sentences = []
    for arm in found.arms:
        alike: dict[str, list[Outcome]] = {}
        for run in arm.lost:
            alike.setdefault(run.cause, []).append(run)
        for runs in alike.values():
            count = f"{len(runs)} of {len(arm.runs)} runs of {arm.name}"
            sentences.append(f"{count} did not finish ({_which([run.seed for run in runs])}): {_reason(runs)}.")
    return sentences


def _reason(runs: Sequence[Outcome]) -> str:
    """Quote the reason of the first run, and say so if others with the same cause have other numbers."""
    told = (runs[0].reason or "not made yet").rstrip(".")
    same = all(run.reason == runs[0].reason for run in runs)
    return told if same else f"{told} (quoted from seed {runs[0].seed})"


def _collapsed(found: Analysis) -> list[str]:
    return [
        f"{len(arm.collapsed)} of {len(arm.runs)} runs of {arm.name} collapsed "
        f"({_which([run.seed for run in arm.collapsed])}): they lost their abilities. An interval over seeds "
        "does not describe collapses well."
        for arm in found.arms
        if arm.collapsed
    ]


def _conditions(found: Analysis) -> list[str]:
    notes = [str(found.conditions.get(name) or "") for name in ("tokens_note", "seconds_note")]
    if found.same_start is False:
        notes.insert(0, "Arms with the same seed did not start alike: they gave different answers before training.")
    if found.same_prompts is False:
        notes.insert(0, "Arms with the same seed did not draw the same prompts in their first step.")
    return [note for note in notes if note]


def _which(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {_and([str(seed) for seed in seeds])}"


def _seeds(found: Analysis) -> str:
    counts = {pair.estimate.seeds for pair in found.pairs if pair.estimate.seeds}
    low, high = min(counts), max(counts)
    return f"{low} seed{'s' if low != 1 else ''}" if low == high else f"{low} to {high} seeds"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# --- for the terminal ------------------------------------------------------------------------------------------------


def render(found: Analysis) -> str:
    """Return a table with a line per arm, and the verdict."""
    return "\n".join([aligned(*table(found), right=True), "", *verdict(found)])


def table(found: Analysis) -> tuple[list[str], list[list[str]]]:
    """Return the titles and the cells. A column without any value is left out."""
    columns = {
        "arm": [arm.name for arm in found.arms],
        "before training": [_mean_before(found, arm) for arm in found.arms],
        f"held-out {found.measure}": [show_score(found, arm) for arm in found.arms],
        "runs": [f"{len(arm.finished)} of {len(arm.runs)}" for arm in found.arms],
        "collapsed": [str(len(arm.collapsed)) for arm in found.arms],
        "steps": [show(arm.mean("steps")) for arm in found.arms],
        "tokens": [show(arm.mean("tokens")) for arm in found.arms],
        "seconds": [show_seconds(arm.mean("seconds")) for arm in found.arms],
        f"tokens to {found.design.target or 0:g}": [_to_target(found, arm) for arm in found.arms],
        "peak GB": [show(arm.mean("peak memory, GB")) for arm in found.arms],
        "entropy left": [_percent(arm.mean("entropy_kept")) for arm in found.arms],
        "largest KL": [show(arm.mean("largest KL within a step")) for arm in found.arms],
        "spikes": [show(arm.mean("spikes")) for arm in found.arms],
        **{name: [show(arm.mean(name)) for arm in found.arms] for name in found.design.measures},
    }
    shown = {title: cells for title, cells in columns.items() if any(cell not in ("", "-") for cell in cells)}
    return list(shown), [list(row) for row in zip(*shown.values(), strict=True)]


def show_score(found: Analysis, arm: Arm) -> str:
    """Format an arm's score, such as `94.2% (91.0% to 97.5%)`."""
    return _shown(found, arm.score) if arm.score.seeds else "-"


def _mean_before(found: Analysis, arm: Arm) -> str:
    return _form(found)(arm.untrained.mean) if arm.untrained.seeds else "-"


def _shown(found: Analysis, score: Estimate) -> str:
    form = _form(found)
    return f"{form(score.mean)} ({form(score.low)} to {form(score.high)})" if score.has_interval else form(score.mean)


def _form(found: Analysis) -> Callable[[float], str]:
    return (lambda value: f"{100 * value:.1f}%") if found.share else compact


def show(value: float | None) -> str:
    return "-" if value is None else compact(value)


def show_seconds(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _to_target(found: Analysis, arm: Arm) -> str:
    """Format the mean tokens to the target, over the runs that reached it."""
    tokens, reached = arm.mean("tokens to the target"), arm.reached()
    if found.design.target is None:
        return "-"
    if tokens is None:
        return "never"
    return compact(tokens) + ("" if reached == len(arm.runs) else f" ({reached} of {len(arm.runs)})")
