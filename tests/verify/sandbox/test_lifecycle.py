"""Nothing remains after a thousand programs, however the process that judges them ends."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import psutil
import pytest

from posttrain.verify.sandbox import Limits, SandboxUnavailable, open_sandbox


def wait_until(true, seconds: float = 120) -> bool:
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    return true()


def below(pid: int) -> set[int]:
    return {process.pid for process in psutil.Process(pid).children(recursive=True)}


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_programs_leave_no_process_no_descriptor_and_no_file(sandbox, count, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other processes of tests write into the usual one
    programs = [
        ("print(1)", b""),
        ("import time; time.sleep(9)", b""),
        ("import os; os.fork()", b""),
        ("x = []\nwhile True: x.append(bytearray(1 << 24))", b""),
        ("while True: print('x' * 1000)", b""),
    ]
    mixed = [programs[0] if number % 20 else programs[number // 20 % 5] for number in range(count)]
    sandbox.run_many(mixed[:4])
    before = below(os.getpid()), len(os.listdir("/proc/self/fd"))
    limits = Limits(wall=2, memory=1 << 28)
    ended = [ran.ended for ran in sandbox.run_many(mixed, limits=limits)]
    assert len(ended) == count
    assert ended.count("exited") > 0.9 * count
    # The number is the same, but not the processes: a late fork-server on a busy machine is replaced, and its folder.
    assert wait_until(lambda: len(below(os.getpid())) <= len(before[0]))
    assert len(os.listdir("/proc/self/fd")) <= before[1]
    assert len(os.listdir(tmp_path)) <= 2, "each of the two fork-servers has one folder"


def test_closing_ends_every_process_and_closes_every_descriptor(sandbox):
    gc.collect()  # an earlier test's garbage closes its descriptors now, and not during this one
    before = below(os.getpid()), len(os.listdir("/proc/self/fd"))
    with open_sandbox(sandbox.tier, size=2) as other:
        other.run_many([("import time; time.sleep(0.2)", b"")] * 4)
        process = other.start("import time; time.sleep(60)")
        assert below(os.getpid()) > before[0]
    assert wait_until(lambda: below(os.getpid()) <= before[0])
    with pytest.raises(SandboxUnavailable):
        process.finish()
    assert len(os.listdir("/proc/self/fd")) <= before[1]


JUDGE = """
import os, sys, time, threading
from posttrain.verify.sandbox import Limits, open_sandbox
sandbox = open_sandbox(sys.argv[1], size=1)
limits = Limits(wall=600)
kept = []
thread = threading.Thread(target=lambda: kept.append(sandbox.start("import time; time.sleep(600)", limits=limits)))
thread.start(); thread.join()       # the thread that started the fork-server is gone, and nothing happens to it
if sys.argv[2] == "forked" and os.fork() == 0:
    print("ready", flush=True)
    time.sleep(600)                 # holds copies of every descriptor of its parent
if sys.argv[2] != "forked":
    print("ready", flush=True)
while True:
    time.sleep(60) if sys.argv[2] != "busy" else None
"""


@pytest.mark.parametrize("manner", ["sleeping", "busy", "forked"])
def test_killing_the_judge_ends_what_it_judges(sandbox, manner):
    judge = subprocess.Popen([sys.executable, "-c", JUDGE, sandbox.tier, manner], stdout=subprocess.PIPE)
    helpers: set[int] = set()
    try:
        assert judge.stdout is not None
        assert judge.stdout.readline() == b"ready\n"
        same = psutil.Process(judge.pid).cmdline()
        helpers = {child.pid for child in psutil.Process(judge.pid).children() if child.cmdline() == same}
        expected = 2 if sandbox.tier == "landlock" else 4  # fork-server and program; bwrap and the first of a namespace
        assert wait_until(lambda: len(below(judge.pid) - helpers) >= expected)
        watched = below(judge.pid) - helpers
        judge.kill()
        judge.wait()
        assert wait_until(lambda: not any(map(psutil.pid_exists, watched)))
    finally:
        judge.kill()
        judge.wait()
        for pid in helpers:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_killing_the_fork_server_ends_its_program(landlock):
    process = landlock.start("import time; time.sleep(60)", limits=Limits(wall=60))
    (server,) = set(landlock._all) - set(landlock._idle)
    assert wait_until(lambda: len(below(server.pid)) == 1)
    (program,) = below(server.pid)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(SandboxUnavailable):
        process.finish()
    assert wait_until(lambda: not psutil.pid_exists(program))


def test_what_an_unconfined_program_leaves_behind_is_killed_with_it(tmp_path):
    """A double fork outlives the verdict. Nothing stops it in this tier, so it is found and killed."""
    daemon = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(os.path.join({str(tmp_path)!r}, str(os.getpid())), "w").close()
        time.sleep(600)
    os._exit(0)
while not os.listdir({str(tmp_path)!r}):
    time.sleep(0.01)
"""
    with pytest.warns(UserWarning, match="nothing is confined"):
        sandbox = open_sandbox("unsafe", Limits(wall=60, cpu=60), size=1)
    with sandbox:
        assert sandbox.run(daemon).ended == "exited"
        (server,) = sandbox._all
        assert below(server.pid) == set()
    (left,) = tmp_path.iterdir()
    assert not psutil.pid_exists(int(left.name))


def test_threads_share_a_sandbox(landlock):
    found: dict[int, bytes] = {}

    def work(number: int) -> None:
        found[number] = landlock.run(f"print({number})").stdout

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: b"%d\n" % number for number in range(12)}


def test_the_children_of_a_fork_server_do_not_hold_its_socket(landlock):
    """A child with the fork-server's socket could report its own end to the judge."""
    ran = landlock.run("import os; print([n for n in range(64) if n > 3 and os.path.exists(f'/dev/fd/{n}')])")
    assert ran.stdout == b"[]\n"
