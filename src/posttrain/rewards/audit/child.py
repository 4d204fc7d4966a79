"""A new process in which the reward is watched: how its parent starts it, and what becomes of it."""

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

from posttrain.rewards import wire
from posttrain.rewards.audit.subject import Case, Subject
from posttrain.rewards.descendants import MARK, kill_tree, new_mark

PROBE_SECONDS = 30.0
"""A probe that takes longer is killed."""


class Unprobed(Exception):
    """The reward could not be watched in a process of its own; the text says why."""


class Died(Unprobed):
    """The process ended, or was ended, before it could tell."""


def probe(
    subject: Subject, name: str, cases: Sequence[Case], *, hash_seed: str = "0", **options: Any
) -> Mapping[str, Any]:
    """What `posttrain.rewards.audit.probe` reports about the calls; `Unprobed` when it could not."""
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
        "timeout": component.timeout,
        "options": options,
    }
    with tempfile.TemporaryDirectory(prefix="posttrain-audit-") as folder:
        asked, told = Path(folder, "request"), Path(folder, "report")
        asked.write_bytes(wire.encode(request))
        printed = _run([str(asked), str(told), str(seconds)], hash_seed, seconds + 5)
        if not told.exists():
            subject.require_time()
            raise Died(f"the process that watched it ended early: {printed[-500:].strip() or 'it said nothing'}")
        return json.loads(told.read_text())


def _run(arguments: Sequence[str], hash_seed: str, seconds: float) -> str:
    """Run the probe to its end, or kill it with everything that it started; what it printed."""
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
