"""How a reward behaves together with other code, and the new process in which it is watched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posttrain import wire
from posttrain.descendants import MARK, kill_tree, new_mark
from posttrain.rewards.audit.effects import MARKER
from posttrain.rewards.audit.finding import Measured
from posttrain.rewards.audit.subject import Case, Subject, sample

CASES = 12
"""Number of completions to score in each environment."""
STALL_LIMIT = 0.1
"""Maximum stall of an event loop, in seconds."""
SORTS = {
    "text": "runs the text of the completion as code in its own process",
    "state": "changes state that the whole process shares",
    "files": "writes files",
    "network": "uses the network",
    "processes": "starts processes",
}
HARMLESS_FOR_CODE = frozenset({"files", "network", "processes"})
"""Side effects that are necessary to run a program in a sandbox."""
GRAVE = frozenset({"text", "state"})
PROBE_SECONDS = 30.0
"""Seconds after which a probe is killed."""


def safety(subject: Subject) -> Measured:
    """Number of environments in which the reward fails although it works in the main thread. A stalled event loop is a
    failure."""
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
    """Number of kinds of side effects that the reward has."""
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


class Unprobed(Exception):
    """The reward could not be watched in a separate process. The text says why."""


class Died(Unprobed):
    """The process ended or was killed before it could report."""


def probe(
    subject: Subject, name: str, cases: Sequence[Case], *, hash_seed: str = "0", **options: Any
) -> Mapping[str, Any]:
    """The report of `posttrain.rewards.audit.probe` on the calls. Raises `Unprobed` if there is none."""
    component = subject.component
    if component.target is None:
        where = "a model" if component.runner is None else "what this process holds"
        raise Unprobed(f"{where} cannot be started in another one")
    subject.require_time()
    seconds = min(PROBE_SECONDS, subject.seconds_left)
    request = {
        "probe": name,
        "target": asdict(component.target),
        "calls": list(subject.calls(cases)),
        "settings": component.settings,
        "is_async": component.signature.is_async,
        "batch": component.signature.batch,
        "timeout": component.timeout,
        "options": options,
    }
    with tempfile.TemporaryDirectory(prefix="posttrain-audit-") as folder:
        asked, told = Path(folder, "request"), Path(folder, "report")
        asked.write_bytes(wire.encode(request))
        printed = _run([str(asked), str(told), str(seconds)], hash_seed, seconds + 5)
        if not told.exists():
            subject.require_time()
            raise Died(f"the process that watched it ended early: {printed[-500:].strip() or 'it printed nothing'}")
        return json.loads(told.read_text())


def _run(arguments: Sequence[str], hash_seed: str, seconds: float) -> str:
    """Run the probe to its end, or kill it with everything that it started. Return its output."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(os.path.abspath(place) for place in sys.path))
    environment["PYTHONHASHSEED"] = hash_seed
    mark = environment[MARK] = new_mark()
    process = subprocess.Popen(
        [sys.executable, "-m", "posttrain.rewards.audit.probe", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=environment,
    )
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        printed = b"it hung"
    finally:
        kill_tree(process.pid, mark)
        process.wait()
    return printed.decode(errors="replace")
