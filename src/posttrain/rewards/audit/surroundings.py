"""What a reward is like to run beside other code: threads, event loops, spawned processes, side effects."""

from __future__ import annotations

from posttrain.rewards.audit.child import Unprobed, probe
from posttrain.rewards.audit.effects import MARKER
from posttrain.rewards.audit.finding import Measured
from posttrain.rewards.audit.repeats import sample
from posttrain.rewards.audit.subject import Case, Subject

CASES = 12
"""Completions that are scored in each surrounding."""
STALL_LIMIT = 0.1
"""Seconds for which an event loop may stand still."""
SORTS = {
    "text": "runs text of the completion as a program in its own process",
    "state": "changes what the whole process shares",
    "files": "writes files",
    "network": "uses the network",
    "processes": "starts processes",
}
HARMLESS_FOR_CODE = frozenset({"files", "network", "processes"})
"""What it takes to run a program in a sandbox."""
GRAVE = frozenset({"text", "state"})


def safety(subject: Subject) -> Measured:
    """Number of surroundings in which it fails although it works in the main thread; a stalled event loop is one."""
    try:
        seen = probe(subject, "safety", sample(subject, per_row=4)[:CASES], stochastic=subject.stochastic)
    except Unprobed as reason:
        return Measured(text=str(reason))
    problems = dict(seen["problems"])
    if seen["stall"] > STALL_LIMIT:
        problems["under asyncio"] = f"the event loop stood still for {1000 * seen['stall']:.0f} ms"
    told = "works in threads, under asyncio and in a spawned process"
    return Measured(
        value=len(problems),
        text=f"fails {', '.join(problems)}" if problems else f"{told}; longest stall {1000 * seen['stall']:.0f} ms",
        examples=tuple(f"{place}: {text}" for place, text in problems.items()),
    )


def side_effects(subject: Subject) -> Measured:
    """Number of sorts of things that it does beside scoring."""
    says = [f"```python\n{MARKER} = 1\n```", f"{MARKER} = 1", f"\\boxed{{{MARKER}+1}}", f"\\boxed{{2*{MARKER}}}"]
    if subject.forms:
        says += [subject.target(0).says(text) for text in (MARKER, f"{MARKER} = 1", f"def {MARKER}():\n    return 1")]
    cases = [*sample(subject, per_row=4)[:CASES], *(Case(row=0, text=text) for text in says)]
    try:
        seen = dict(probe(subject, "effects", cases))
    except Unprobed as reason:
        return Measured(text=str(reason))
    expected = HARMLESS_FOR_CODE if subject.kind == "code" else frozenset[str]()
    found = [sort for sort in SORTS if sort in seen and sort not in expected]
    return Measured(
        value=len(found),
        text="; ".join(SORTS[sort] for sort in found) or "only computes",
        examples=tuple(f"{SORTS[sort]}: {', '.join(seen[sort])}" for sort in found),
        at_most="fail" if GRAVE & set(found) else "warn",
    )
