"""The self-test of a sandbox: it runs real attacks inside and remembers only success.

Installed programs do not guarantee that a sandbox works. Sandboxes were seen to fail in containers, with other kernels
and under another security module.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

from posttrain.cache import cache_folder, code_key
from posttrain.errors import SandboxUnavailable
from posttrain.verify.sandbox.records import Limits
from posttrain.verify.sandbox.tiers import Tier

if TYPE_CHECKING:
    from posttrain.verify.sandbox.sandbox import Sandbox

PROBES = Path(__file__).parent / "probes.py"
VICTIM = "print(id('secret'), flush=True); input()"
"""The program of a process whose memory the probes try to read."""
PATIENT = Limits(wall=60, cpu=60)
"""Generous limits, so that a busy machine, or slow memory allocation, does not decide which limit is reached first."""
FRUGAL = replace(PATIENT, memory=1 << 28)
"""Less memory than usual, because it takes half a second to fill a gigabyte."""
COSTS = {
    "sleeping past the deadline": ("import time; time.sleep(60)", Limits(wall=0.4), "wall"),
    "output without end": ("while True: print('x' * 1000)", PATIENT, "output"),
    "memory without end": ("x = []\nwhile True: x.append(bytearray(1 << 24))", FRUGAL, "memory"),
    "processor time without end": ("while True: pass", replace(PATIENT, cpu=1), "cpu"),
}
"""Program, limits, and the required end, by name."""


def check(tier: Tier, sandbox: Sandbox) -> None:
    """Run the self-test unless it has passed since the last boot. SandboxUnavailable names the attacks that worked."""
    sandbox.run("")  # always: shows that the kernel accepts every step of the confinement
    remembered = _remembered(tier)
    if os.path.isfile(remembered):
        return
    if reached := reached_by_probes(sandbox) + wrongly_ended(sandbox):
        raise SandboxUnavailable(given=f"a program in it could: {', '.join(reached)}")
    with suppress(OSError):  # a cache folder that cannot be written costs a second at each start
        remembered.parent.mkdir(parents=True, exist_ok=True)
        remembered.write_text(json.dumps({"tier": tier.name, "passed": True}) + "\n")


def reached_by_probes(sandbox: Sandbox) -> list[str]:
    """The names of the attempts in probes.py that succeeded."""
    with _something_to_find() as wanted:
        ran = sandbox.run(PROBES.read_text(encoding="utf-8"), json.dumps(wanted).encode(), limits=PATIENT)
    try:
        return [str(name) for name in json.loads(ran.stdout)]
    except ValueError:
        last = ran.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise SandboxUnavailable(
            given=f"the self-test ended as {ran.ended} {ran.returncode}: {' '.join(last)}"
        ) from None


def wrongly_ended(sandbox: Sandbox) -> list[str]:
    """Programs that a limit should have stopped, but that continued or hit another limit."""
    runs = [(name, sandbox.run(source, limits=limits), ended) for name, (source, limits, ended) in COSTS.items()]
    return [f"{name} (ended as {ran.ended})" for name, ran, ended in runs if ran.ended != ended]


@contextmanager
def _something_to_find() -> Iterator[dict[str, Any]]:
    """Targets for the attacks: a file that anyone may read and write, a process of ours, and two listening sockets (one
    on loopback, one with an abstract name)."""
    with (
        tempfile.TemporaryDirectory(prefix="posttrain-self-test-") as folder,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
        subprocess.Popen([sys.executable, "-S", "-c", VICTIM], stdin=PIPE, stdout=PIPE, text=True) as victim,
    ):
        name = f"posttrain-self-test-{os.getpid()}-{os.urandom(4).hex()}"
        abstract.bind("\0" + name)
        abstract.listen()
        file = Path(folder) / "file"
        file.write_text("secret")
        os.chmod(folder, 0o777)
        os.chmod(file, 0o666)
        wanted = {"folder": folder, "file": str(file), "pid": victim.pid, "port": tcp.getsockname()[1], "name": name}
        assert victim.stdout is not None
        yield {**wanted, "address": int(victim.stdout.readline())}
        victim.communicate("\n")


def _remembered(tier: Tier) -> Path:
    """The file that exists once the tier has passed, for this user, this boot, this code and these programs."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        programs = [(path, os.stat(path).st_mtime_ns, os.stat(path).st_size) for path in (sys.executable, *tier.uses)]
        code = code_key("verify/sandbox/**/*.py", "verify/sandbox/**/*.txt")
        parts = [tier.name, boot, os.getuid(), os.readlink("/proc/self/ns/user"), code, programs]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]
        return cache_folder("sandbox") / f"{key}.json"
    return Path("/nonexistent")
