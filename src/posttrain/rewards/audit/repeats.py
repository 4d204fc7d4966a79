"""Does the reward always give the same completion the same score? If it does not, how large is the noise?"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

from posttrain.rewards.audit.finding import Measured, mean, quote, share
from posttrain.rewards.audit.subject import Answer, Case, Subject, sample
from posttrain.rewards.audit.surroundings import Died, Unprobed, probe
from posttrain.rewards.calls import Outcome

PAUSES = (0.0, 0.35, 0.6)
"""Seconds before each repeat. Scores that depend on the clock then differ."""
HASH_SEEDS = ("1", "2")
"""Values of PYTHONHASHSEED for new processes. Reward workers run with 0."""
NOISE_REPEATS = 6
TOLERANCE = 1e-9


def determinism(subject: Subject) -> Measured:
    """Share of completions whose score changed between calls, orders, batch sizes or processes."""
    if subject.stochastic:
        return Measured(text="declared stochastic: see noise")
    cases = sample(subject, per_row=4 + len(HASH_SEEDS))
    first = subject.score(cases)
    changes: dict[str, set[int]] = {}
    for number, pause in enumerate(PAUSES):
        time.sleep(pause)
        changes[f"called again ({number + 1})"] = _changed(first, subject.score(cases))
    order = list(range(len(cases)))
    random.Random(0).shuffle(order)
    shuffled = subject.score([cases[place] for place in order])
    changes["in another order"] = _changed(first, [shuffled[order.index(place)] for place in range(len(cases))])
    if subject.component.signature.batch:
        alone = [subject.score([case])[0] for case in cases[:24]]
        changes["in a batch of one"] = _changed(first[:24], alone)
    skipped, died = _in_new_processes(subject, cases, first, changes)
    unscored = all(answer.value is None for answer in first)
    changed = set().union(*changes.values())
    found = [f"{way}: {share(len(places), len(cases))}" for way, places in changes.items() if places]
    found += [f"a new process gave no scores{skipped}"] * died + ["no completion got a score"] * unscored
    examples = [*found, *(f"for example {quote(cases[place].text)}" for place in sorted(changed)[:2])]
    ways = len(changes)
    return Measured(
        value=len(changed) / len(cases),
        text=f"{share(len(changed), len(cases))} scores changed in {ways} comparisons{skipped}",
        examples=tuple(examples),
        at_least="warn" if died or unscored else "ok",
    )


def noise(subject: Subject) -> Measured:
    """Attenuation: var(true) / (var(true) + var(noise)), from repeated scores of the same completions.

    With k repeats the variance of the means overstates var(true) by var(noise) / k, which is subtracted.
    """
    cases = sample(subject, per_row=NOISE_REPEATS)
    repeats = [[answer.value for answer in subject.score(cases)] for _ in range(NOISE_REPEATS)]
    items = [[value for value in column if value is not None] for column in zip(*repeats, strict=True)]
    items = [item for item in items if len(item) > 1]
    if len(items) < 2:
        return Measured(text="fewer than two completions were scored twice")
    within = mean([statistics.variance(item) for item in items])
    between = max(statistics.variance([mean(item) for item in items]) - within / NOISE_REPEATS, 0.0)
    if within <= TOLERANCE:
        return Measured(value=1.0, text="the same completion always gets the same score")
    return Measured(
        value=between / (between + within),
        text=f"standard deviation {within**0.5:.3g} for the same completion, {between**0.5:.3g} between completions",
        examples=("Average several scores of each completion, or make the reward deterministic.",),
    )


def _in_new_processes(
    subject: Subject, cases: Sequence[Case], first: Sequence[Answer], changes: dict[str, set[int]]
) -> tuple[str, bool]:
    """Add the changes in new processes. Return what could not be tried, in words, and whether a process died."""
    for seed in HASH_SEEDS:
        try:
            scores = probe(subject, "scores", cases, hash_seed=seed)["values"]
        except Unprobed as reason:
            return f"; not in new processes: {reason}", isinstance(reason, Died)
        outcomes = [Outcome(kind="value", value=value) for value in scores]
        there = [subject.answer(outcome, case) for outcome, case in zip(outcomes, cases, strict=True)]
        changes[f"in a new process with PYTHONHASHSEED={seed}"] = _changed(first, there)
    return "", False


def _changed(first: Sequence[Answer], second: Sequence[Answer]) -> set[int]:
    """Places at which the two scores differ or only one of them exists."""
    return {
        place
        for place, (one, other) in enumerate(zip(first, second, strict=True))
        if (one.value is None) != (other.value is None)
        or (one.value is not None and other.value is not None and abs(one.value - other.value) > TOLERANCE)
    }
