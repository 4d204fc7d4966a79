"""Things that a program cannot do: every attempt is real, in each tier, as root and as an ordinary user.

An attempt that fails everywhere would prove nothing, so each is shown to succeed without confinement.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from tests.catalogue import few
from tests.verify.missing import no_sandbox

from posttrain.verify.sandbox import Limits, Sandbox, selftest
from posttrain.verify.sandbox.forkserver import Command
from posttrain.verify.sandbox.tiers import Tier, _python

ATTACKED = """
import json, sys
from posttrain.verify.sandbox import Limits, open_sandbox, selftest
found = {}
def record(name):
    run = getattr(selftest, name)
    setattr(selftest, name, lambda sandbox: found.setdefault(name, run(sandbox)))
record("reached_by_probes")
record("wrongly_ended")
with open_sandbox(sys.argv[1], Limits(wall=120, cpu=60), size=1) as sandbox:
    user = json.loads(sandbox.run("import os; print(list(os.getresuid()))").stdout)
print(json.dumps({**found, "user": user}))
"""
NEEDS_MORE = {
    "descriptors", "read the memory of pid 1", "bpf", "performance counters", "lift the filter", "io_uring", "keyring",
    "daemonise", "trace a process", "make a user namespace", "mount", "vfork",
}  # fmt: skip
"""Attempts that depend on the kernel's settings or on privileges, or that end the test itself."""


@pytest.mark.parametrize("who", few(["root", "user"], "user"))
@pytest.mark.parametrize("tier", ["landlock", "bubblewrap"])
def test_no_attempt_succeeds_and_every_limit_holds(run_as, tier, who):
    found = run_as(who, ATTACKED, tier)
    assert found["reached_by_probes"] == []
    assert found["wrongly_ended"] == []
    assert 0 not in found["user"], "the program ran as root"


def attempts() -> list[str]:
    lines = selftest.PROBES.read_text().partition("ATTEMPTS = {")[2].partition("\n}")[0].splitlines()
    return [line.split('"')[1] for line in lines if line.startswith('    "')]


def unconfined(names: list[str]) -> subprocess.CompletedProcess[str]:
    """Make these attempts in one process, as the self-test does, but without a sandbox."""
    with selftest._something_to_find() as wanted:
        program = subprocess.run(
            [sys.executable, str(selftest.PROBES)],
            input=json.dumps({**wanted, "only": names}),
            capture_output=True,
            text=True,
        )
    for left in ("/dev/shm/posttrain-self-test", "/tmp/posttrain-self-test"):
        Path(left).unlink(missing_ok=True)
    if "keep shared memory" in names:
        subprocess.run(["ipcrm", "-M", "0x7057"], capture_output=True)
    return program


def test_each_attempt_succeeds_where_nothing_confines_it():
    names = [name for name in attempts() if name not in {*NEEDS_MORE, "replace itself"}]
    program = unconfined(names)
    assert sorted(json.loads(program.stdout)) == sorted(names), program.stderr


def test_a_program_replaces_itself_where_nothing_confines_it():
    assert "replace itself" in attempts()
    program = unconfined(["replace itself"])
    assert (program.returncode, program.stdout) == (0, ""), program.stderr


def alone(**layers: object) -> Sandbox:
    setup = {"seccomp": True, "landlock": "off", "user": None, **layers}
    tier = Tier(name="one layer", command=lambda number: Command(line=_python(), setup=setup))
    return Sandbox(tier.name, tier.command, Limits(wall=120, cpu=60), 1)


def test_the_filter_alone_leaves_only_looking_at_files_and_overwriting_them():
    """The filter also blocks what an old Landlock cannot block: truncation, modes, signals, sockets."""
    with alone() as sandbox:
        reached = selftest.reached_by_probes(sandbox)
    files = {"read a file", "list a folder", "write a file", "overwrite a file", "write to shared memory"}
    processes = {"write to /tmp", "read the environment of a process", "read the memory of pid 1", "list processes"}
    assert set(reached) <= files | processes


def test_the_rules_alone_close_files_and_abstract_sockets():
    with alone(landlock="required") as sandbox:
        reached = selftest.reached_by_probes(sandbox)
    assert not reached, reached


@pytest.mark.parametrize(
    "path",
    [
        "~/.ssh",
        "~/.netrc",
        "~/.cache/huggingface/token",
        "/etc/passwd",
        "/etc/hostname",
        "/proc/self/environ",
        __file__,
    ],
)
def test_secrets_the_repository_and_the_tests_themselves_are_out_of_reach(sandbox, path):
    path = os.path.expanduser(path)
    ran = sandbox.run(f"import os\nos.listdir({path!r}) if os.path.isdir({path!r}) else open({path!r}).read()")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith((b"PermissionError", b"FileNotFoundError"))


def test_the_environment_of_the_trainer_does_not_get_in(sandbox, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert sandbox.run("import os; print(dict(os.environ))").stdout == b"{}\n"


def test_installed_packages_cannot_be_imported(sandbox):
    ran = sandbox.run("import pytest")
    assert ran.stderr.splitlines()[-1] == b"ModuleNotFoundError: No module named 'pytest'"


def test_the_rest_of_the_standard_library_can(sandbox):
    modules = "sqlite3, asyncio, unittest.mock, xml.dom.minidom, zoneinfo, bz2, concurrent.futures, logging, socket"
    assert sandbox.run(f"import {modules}").returncode == 0


def test_threads_and_asyncio_work(sandbox):
    source = """
    import asyncio, concurrent.futures
    async def one(i):
        await asyncio.sleep(0.01)
        return i
    async def every():
        return sum(await asyncio.gather(*(one(i) for i in range(10))))
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        print(sum(pool.map(abs, range(-100, 0))), asyncio.run(every()))
    """
    assert sandbox.run(textwrap.dedent(source)).stdout == b"5050 45\n"


def test_a_thread_bomb_gets_a_bounded_number(sandbox):
    source = """
    import os, threading, time
    threading.stack_size(32768)
    started = 0
    try:
        while True:
            threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
            started += 1
    except RuntimeError:
        print(started, flush=True)
        os._exit(0)
    """
    with open("/proc/loadavg") as file:
        everywhere = int(file.read().split()[3].partition("/")[2])
    ran = sandbox.run(textwrap.dedent(source))
    assert int(ran.stdout) < 2 * everywhere + 200


@pytest.fixture
def few_processes():
    """A cgroup that would stop a fork bomb that escapes."""
    folder = Path("/sys/fs/cgroup/pids") / f"posttrain-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "pids.max").write_text("300")
    except OSError:
        pytest.skip("no cgroup of this test's own with a limit of processes")
    yield folder
    folder.rmdir()


@pytest.mark.parametrize("tier", ["landlock", "bubblewrap"])
def test_a_fork_bomb_does_not_go_off(few_processes, tier):
    script = """
import sys
from posttrain.verify.sandbox import Limits, SandboxUnavailable, open_sandbox
try:
    sandbox = open_sandbox(sys.argv[1], size=1)
except SandboxUnavailable as error:
    print(error.given, file=sys.stderr)
    sys.exit(77)
bomb = "import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass"
print(sandbox.run(bomb, limits=Limits(wall=0.4)).ended)
sandbox.close()
"""
    most, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            most[0] = max(most[0], int((few_processes / "pids.current").read_text()))

    threading.Thread(target=watch).start()
    enter = f'echo $$ > {few_processes}/cgroup.procs; exec {sys.executable} -c "$0" {tier}'
    try:
        ran = subprocess.run(["sh", "-c", enter, script], capture_output=True, text=True, timeout=120)
    finally:
        stop.set()
    if ran.returncode == 77:
        no_sandbox(ran.stderr.strip())
    assert ran.stdout == "wall\n", ran.stderr
    assert most[0] < 60


@pytest.mark.parametrize(
    "source",
    [
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import threading\nthreading.Thread(target=threading.Event().wait).start()",
        "import atexit, time\natexit.register(time.sleep, 60)",
        "class Stay:\n    def __del__(self):\n        while True: pass\nx = Stay(); del x",
        "import os, time\ntry: os.setsid()\nexcept OSError: pass\ntime.sleep(60)",
        "print(sum(1 for _ in iter(int, 1)))",
        "9 ** 9 ** 9",
    ],
)
def test_whatever_does_not_end_costs_the_deadline_and_little_more(sandbox, source):
    ran = sandbox.run(source, limits=Limits(wall=0.25))
    assert ran.ended == "wall"
    assert 0.25 <= ran.seconds < 30  # 0.26 s on an idle machine; without the limit it ends after a minute, or never


@pytest.mark.parametrize(
    "before",
    [pytest.param("", marks=pytest.mark.slow), "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"],
    ids=["obeyed", "ignored"],
)
def test_the_processor_limit_comes_before_the_deadline_even_if_its_signal_is_ignored(landlock, before):
    assert landlock.run(f"{before}while True: pass", limits=Limits(cpu=1, wall=60)).ended == "cpu"


def test_a_program_that_is_killed_by_its_own_fault_crashed(landlock):
    ran = landlock.run("import ctypes; ctypes.string_at(0)")
    assert (ran.ended, ran.returncode) == ("signal", -11)


@pytest.mark.parametrize("source", ["bytearray(1 << 34)", "x = []\nwhile True: x.append('y' * 1000000)"])
def test_memory_has_an_end(sandbox, source):
    ran = sandbox.run(source, limits=Limits(memory=1 << 28, wall=60, cpu=60))
    assert (ran.ended, ran.stderr.splitlines()[-1]) == ("memory", b"MemoryError")


def test_programs_share_nothing_but_the_interpreter(landlock):
    """They do not even share modules that were imported before the fork."""
    assert landlock.run("import math; math.pi = 3; math.secret = 1").ended == "exited"
    assert landlock.run("import math; print(math.pi, hasattr(math, 'secret'))").stdout == b"3.141592653589793 False\n"


def test_the_memory_of_a_program_holds_nothing_of_the_one_before(landlock):
    """The fork-server never sees a program, so its next child inherits nothing from an earlier program."""
    mark = "of-the-other-program"
    landlock.run(f"x = input() + {mark!r}", stdin=mark.encode() * 1000)
    scan = """
    import ctypes, gc
    wanted = bytes(reversed(b"margorp-rehto-eht-fo"))
    def regions():
        seen = sorted({id(one) >> 20 for one in gc.get_objects()} | {id(str(i)) >> 20 for i in range(99)})
        return seen
    found = 0
    for megabyte in regions():
        for page in range(megabyte << 20, (megabyte + 1) << 20, 4096):
            pair = (ctypes.c_void_p * 2)
            vector = ctypes.create_string_buffer(1)
            if ctypes.CDLL(None).mincore(ctypes.c_void_p(page), 4096, vector) == 0:
                found += ctypes.string_at(page, 4096).count(wanted)
    print(found)
    """
    ran = landlock.run(textwrap.dedent(scan), limits=Limits(wall=60, cpu=60))
    assert int(ran.stdout) <= 1, ran.stderr  # its own
