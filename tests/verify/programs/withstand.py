"""Run attacks in one tier and print the outcomes as JSON: `withstand.py KIND SECONDS NAME ...`.

With less than a second, each attack meets one form of tests, and the forms take turns; else it meets all of them.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posttrain.rewards.code_runner import CodeRunner
from posttrain.verify.programs.attacks import ATTACKS, Scene, fenced, tests_for

SECRET = "an-unlikely-secret-4711"
ENDLESS = {"busy", "busy_in_c", "busy_on_import", "deaf", "sleep", "regular_expression"}
"""Attacks that never end and claim nothing: they only use up the time that they get."""
SOON = 0.25
"""Seconds for each of their tests, where the other attacks get less than a second."""


@contextmanager
def scene() -> Iterator[tuple[Scene, dict[str, Any]]]:
    """A scene of everything that programs must not touch, and afterwards the things that were touched."""
    found: dict[str, Any] = {}
    os.environ["HF_TOKEN"] = SECRET
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as other,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as local,
    ):
        Path(folder).chmod(0o777)
        Path(other).chmod(0o755)
        secret = Path(other, "secret")
        secret.write_text(SECRET)
        name = f"posttrain-probe-{os.getpid()}"
        local.bind("\0" + name)
        for one in (server, local):
            one.listen()
            one.setblocking(False)
        yield Scene(folder, str(secret), server.getsockname()[1], name), found
        found["written"] = sorted(os.listdir(folder))
        found["left"] = left_by_attacks()
        found["secret"] = secret.read_text() == SECRET
        found["connected"] = [_accepted(one) for one in (server, local)]


def _accepted(server: socket.socket) -> bool:
    try:
        server.accept()
    except BlockingIOError:
        return False
    return True


def left_by_attacks() -> set[str]:
    """Return the files that attacks of attacks.yaml have left outside of the sandbox, now or in an earlier test."""
    folders = ("/tmp", "/dev/shm", "/var/tmp", "/run", "/dev/mqueue")
    names = [f"{top}/{name}" for top in folders for name in ("posttrain-probe", "posttrain-link")]
    return {path for path in [*names, "/tmp/reward.txt", "/logs/verifier/reward.txt"] if os.path.lexists(path)}


def main(kind: str, seconds: str, *names: str) -> None:
    runner = CodeRunner({"sandbox": kind}, size=4)
    with scene() as (outside, found):
        chosen = [attack for attack in ATTACKS if attack.name in names]
        forms = [tests_for(attack) for attack in chosen]
        if float(seconds) < 1:
            forms = [[some[turn % len(some)]] for turn, some in enumerate(forms)]
        attacks = [(attack, tests) for attack, some in zip(chosen, forms, strict=True) for tests in some]
        calls = [{"completion": fenced(attack.source(outside)), **tests} for attack, tests in attacks]
        outcomes: list[Any] = [None] * len(calls)
        for some, wall in (
            (ENDLESS, SOON if float(seconds) < 1 else float(seconds)),
            ({*names} - ENDLESS, float(seconds)),
        ):
            places = [place for place, (attack, _) in enumerate(attacks) if attack.name in some]
            ended = runner.run([calls[place] for place in places], {"wall": wall, "cpu": wall}, 10.0)
            for place, outcome in zip(places, ended, strict=True):
                outcomes[place] = outcome
    runner.close()
    found["left"] = sorted(found["left"])
    found["verdicts"] = [
        [attack.name, outcome.kind, outcome.value, outcome.verdict or {}, outcome.seconds]
        for (attack, _), outcome in zip(attacks, outcomes, strict=True)
    ]
    print(json.dumps(found | {"uid": os.getuid()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
