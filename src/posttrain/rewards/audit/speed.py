"""The cost of scoring, on ordinary completions and on hostile ones."""

from __future__ import annotations

import statistics
import time

from posttrain.errors import RewardError
from posttrain.rewards.audit.finding import Measured, quote
from posttrain.rewards.audit.renderings import WORK
from posttrain.rewards.audit.subject import Answer, Case, Subject

DEADLINE = 2.0
"""Maximum seconds for a hostile completion; the reward's own timeout counts if it is shorter."""
GRACE = 0.5
"""Seconds after the deadline within which even a hanging reward has to be killed."""
PER_ROW = 4
"""Number of unique completions per row to time."""
_MATRIX = "\\\\".join("&".join(f"a_{{{row}{column}}}" for column in range(9)) for row in range(9))

HOSTILE: dict[str, str] = {
    "a power tower": r"The answer is \boxed{9^{9^{9^{9}}}}",
    "a power tower in Python": "The answer is 9**9**9**9",
    "a large power": r"\boxed{7^{30000000}}",
    "a factorial": r"\boxed{99999999!}",
    "a sum without end": r"\boxed{\sum_{k=1}^{10^{12}} \frac{1}{k^k}}",
    "a modulus of a large power": r"\boxed{3^{10^{10}} \mod 11}",
    "a symbolic determinant": rf"\boxed{{\det\begin{{pmatrix}}{_MATRIX}\end{{pmatrix}}}}",
    "nested parentheses": "\\boxed{" + "(" * 400 + "7" + ")" * 400 + "}",
    "nested parentheses as text": "#### " + "(" * 3000 + "7" + ")" * 3000 + "x",
    "parentheses that never close": "#### " + "(" * 3000 + "7",
    "nested braces": "\\boxed" + "{" * 3000 + "7" + "}" * 3000,
    "boxes that never close": "\\boxed{" * 3000,
    "nested fractions": "\\boxed{" + "\\frac{1}{" * 300 + "7" + "}" * 300 + "}",
    "200,000 digits": "\\boxed{" + "7" * 200_000 + "}",
    "200,000 digits as text": "#### " + "7" * 200_000,
    "dollar signs": "$ " * 20_000,
    "a run of letters": "#### " + "a" * 50_000 + "!",
    "a run of spaces": "The answer is" + " " * 100_000 + "x",
    "line breaks": "\n" * 100_000 + "#### 7x",
    "10,000 boxes": "\\boxed{7}" * 10_000,
    "unclosed tags": "<answer>" * 5_000 + "<think>" * 5_000,
    "nested JSON": "[" * 20_000,
    "1 MB of prose": "so we look at it again and " * 38_000,
    "zero bytes": "\x00" * 1_000 + "#### 7",
    "a lone surrogate": "#### 7\ud800",
}
"""Completions that cost a careless reward minutes: each is cheap to write and expensive to parse."""


def latency(subject: Subject) -> Measured:
    """Share of a training step that scoring would take: p95 x completions per step / workers / seconds of a step.

    Every completion has a different text, so that no cache can answer.
    """
    cases = [
        Case(row=row, text=f"Draft {row}-{number}. {WORK}{text}")
        for row in subject.rows_for(PER_ROW)
        for number in range(PER_ROW)
        for text in [subject.target(row).line(subject.golds[row]) if subject.forms else "This is all there is to say."]
    ]
    start = time.perf_counter()
    taken = sorted(answer.seconds for answer in subject.score(cases))
    elapsed = time.perf_counter() - start
    p50, p95, p99 = (statistics.quantiles(taken, n=100, method="inclusive")[at - 1] for at in (50, 95, 99))
    if subject.component.target is None:  # it uses its own processes, or none: project the elapsed time
        projected, by = elapsed / len(cases) * subject.completions_per_step, ""
    else:
        projected = p95 * subject.completions_per_step / subject.pool.size
        by = f" by {subject.pool.size} workers"
    return Measured(
        value=projected / subject.step_seconds,
        text=f"p50 {_time(p50)}, p95 {_time(p95)}, p99 {_time(p99)}, max {_time(taken[-1])}; "
        f"{_time(projected)} for {subject.completions_per_step} completions{by}",
        examples=(f"that is {100 * projected / subject.step_seconds:.0f} % of a step of {subject.step_seconds:g} s",),
    )


def hostile_inputs(subject: Subject) -> Measured:
    """Number of hostile completions that the reward did not finish on its own."""
    deadline = min(DEADLINE, subject.component.timeout)
    problems: dict[str, str] = {}
    slowest = 0.0
    for name, text in HOSTILE.items():
        try:
            answer = subject.score([Case(row=0, text=text)], timeout=deadline, watch=False)[0]
        except RewardError as error:  # threads cannot be killed: too many of them hang
            return Measured(
                value=len(problems) + 1, text="it hangs in threads that cannot be killed", examples=(str(error),)
            )
        slowest = max(slowest, answer.seconds)
        if trouble := _trouble(answer, deadline):
            problems[name] = f"{name}: {trouble}; {quote(text, 60)}"
    return Measured(
        value=len(problems),
        text=f"{len(problems)} of {len(HOSTILE)} were too much for it; the slowest took {_time(slowest)}",
        examples=tuple(problems.values())[:10],
    )


def _trouble(answer: Answer, deadline: float) -> str:
    if answer.kind == "timeout":
        return f"killed at the deadline of {deadline:g} s"
    if answer.kind == "crash":
        return f"its process died: {answer.problem}"
    return f"finished after {_time(answer.seconds)}" if answer.seconds > deadline + GRACE else ""


def _time(seconds: float) -> str:
    """Seconds with a readable unit.

    >>> _time(0.00004), _time(0.25), _time(12.3)
    ('40 µs', '250 ms', '12.3 s')
    """
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} µs"
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
