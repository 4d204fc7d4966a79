"""Worker processes against code that hangs, crashes, prints, forks and outlives its parent, with real processes
only."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.catalogue import few
from tests.rewards.rollouts import IN_TIME, completion, prompt

from posttrain.errors import DataError, RewardError
from posttrain.rewards import Reward, build_rewards
from posttrain.rewards.load import Target
from posttrain.rewards.pool import Job, WorkerPool
from posttrain.rewards.worker_process import LocalWorker

HOSTILE = """
import os, signal, subprocess, sys, time
from pathlib import Path

def reward(completion):
    if completion == "hang":
        Path(__file__).with_name("began").touch()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            time.sleep(60)
    if completion == "compute":
        return float(7 ** 300_000_000 % 10)  # one C call, which holds the interpreter lock
    if completion == "crash":
        os._exit(5)
    if completion == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if completion == "child":
        subprocess.Popen(["sleep", "600"])
        time.sleep(60)
    if completion == "raise":
        raise ValueError("no such luck")
    if completion == "print":
        print("x" * 3_000_000)
        sys.stderr.write("y" * 3_000_000)
        os.write(1, b'\\0\\0\\0\\0\\0\\0\\0\\2{}')
    if completion == "flood":
        while True:
            print("z" * 10_000)
    if completion == "close":
        os.close(1), os.close(2)
    if completion == "input":
        input()
    return float(len(completion))
"""


@pytest.fixture
def hostile(reward_file):
    return reward_file(HOSTILE)


def wait_for(happened):
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.01)


def kinds(scores):
    return {failure.completion: failure.kind for failure in scores.failures}


@pytest.mark.parametrize("fate", few(["hang", "compute", "flood"], "hang"))
def test_only_the_row_that_hangs_is_unscored(hostile, score, fate):
    scores = score(["a", fate, "bb", "ccc"], Reward(function=hostile, timeout=IN_TIME))
    assert scores.parts["reward"] == [[1.0, None, 2.0, 3.0]]
    assert scores.scored_PG == [[True, False, True, True]]
    assert [(f.kind, f.message) for f in scores.failures] == [("timeout", f"no result after {IN_TIME:g} s")]
    assert 'my_rewards.py", line' in scores.failures[0].traceback or fate == "flood"


@pytest.mark.parametrize(
    ("fate", "message"),
    [("crash", "the reward process exited with code 5"), ("segfault", "was killed by signal 11 (Segmentation fault)")],
)
def test_only_the_row_that_takes_the_process_down_is_unscored(hostile, score, fate, message):
    scores = score(["a", fate, "bb"], Reward(function=hostile))
    assert scores.parts["reward"] == [[1.0, None, 2.0]]
    assert kinds(scores) == {1: "crash"}
    assert message in scores.failures[0].message


def test_only_the_row_that_raises_is_unscored(hostile, score):
    scores = score(["a", "raise", "raise", "bb"], Reward(function=hostile))
    assert scores.parts["reward"] == [[1.0, None, None, 2.0]]
    first, second = scores.failures
    assert (first.prompt, first.completion, first.message) == (7, 1, "ValueError: no such luck")
    assert 'raise ValueError("no such luck")' in first.traceback
    assert second.traceback == ""


@pytest.mark.parametrize(("fate", "value"), [("print", 5.0), ("close", 5.0)])
def test_output_of_any_size_does_not_meet_the_protocol(hostile, score, fate, value):
    assert score([fate, "a"], Reward(function=hostile)).parts["reward"] == [[value, 1.0]]


def test_a_reward_that_reads_from_the_terminal_finds_it_empty(hostile, score):
    assert "EOFError" in score(["input"], Reward(function=hostile)).failures[0].message


def test_a_killed_worker_is_replaced_and_takes_its_children_along(hostile, built, children):
    rewards = built(Reward(function=hostile, timeout=IN_TIME), workers=1)
    (before,) = children()
    scores = rewards.score([prompt(0)], [[completion("child"), completion("a")]])
    assert scores.parts["reward"] == [[None, 1.0]]
    (after,) = children()
    assert after.pid != before.pid
    assert not psutil.pid_exists(before.pid)
    wait_for(lambda: ["sleep", "600"] not in [one.info["cmdline"] for one in psutil.process_iter(["cmdline"])])


def open_files():
    """What the descriptors of this process stand for; a pipe and a socket have names of their own."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found


@pytest.mark.slow
def test_twenty_timeouts_leak_nothing(hostile, children):
    pool = WorkerPool(2)
    path, name = hostile.rsplit(":", 1)
    with open(os.devnull):
        assert os.devnull in open_files()
    before = open_files()
    with pool:
        job = Job(target=Target(path=path, name=name), calls=[{"completion": "hang"}] * 20, timeout=0.02)
        assert [outcome.kind for outcome in pool.run([job])[0]] == ["timeout"] * 20
        assert len(children()) <= 2
    assert children() == []
    assert open_files() <= before, "files that an earlier test left may be closed meanwhile"


def test_closing_ends_all_workers_and_the_pool_can_be_used_again(hostile, children):
    rewards = build_rewards([Reward(function=hostile)])
    assert len(children()) == 1
    rewards.close()
    assert children() == []
    path, name = hostile.rsplit(":", 1)
    with WorkerPool(1) as pool:
        pool.describe(Target(path=path, name=name))
        pool.close()
        assert pool.describe(Target(path=path, name=name)).required == ("completion",)
    assert children() == []


def test_a_forgotten_pool_closes_itself(hostile, children):
    rewards = build_rewards([Reward(function=hostile)])
    assert len(children()) == 1
    del rewards
    assert children() == []


class OnAnotherMachine(LocalWorker):
    """A real process that starts late and whose end cannot be detected, like one on a machine that was lost."""

    begun = 0

    def __init__(self, output: int) -> None:
        super().__init__(output)
        type(self).begun += 1
        self.since = time.monotonic()

    @property
    def there(self) -> bool:
        return time.monotonic() > self.since + 0.3

    def end(self, patience: float = 0.0) -> int | str | None:
        return None if super().end(patience) is None else "its machine is gone"


class NeverThere(OnAnotherMachine):
    there = False


@pytest.mark.slow
def test_calls_of_a_worker_that_is_lost_with_its_machine_are_made_elsewhere(hostile, children, monkeypatch):
    """The interrupted call may be innocent, so it is repeated; a call that loses three machines counts as their
    killer."""
    monkeypatch.setattr(OnAnotherMachine, "begun", 0)
    path, name = hostile.rsplit(":", 1)
    job = partial(Job, target=Target(path=path, name=name), timeout=60)
    with WorkerPool(1, OnAnotherMachine) as pool:
        task = pool.submit(job(calls=[{"completion": "hang"}, {"completion": "four"}]))
        wait_for((Path(path).parent / "began").exists)
        pool._workers[0].child.process.kill()  # pyright: ignore[reportAttributeAccessIssue]
        wait_for(lambda: OnAnotherMachine.begun == 2)
        pool.abandon([task])
        outcomes = pool.run([job(calls=[{"completion": "crash"}, {"completion": "four"}])])[0]
    assert [(one.kind, one.value) for one in outcomes] == [("crash", None), ("value", 4.0)]
    assert outcomes[0].message == "the reward process is lost: its machine is gone"
    assert OnAnotherMachine.begun >= 5
    assert children() == []


def test_a_pool_whose_workers_are_never_there_says_so(hostile, monkeypatch):
    path, name = hostile.rsplit(":", 1)
    monkeypatch.setattr(NeverThere, "end", lambda self, patience=0.0: "its machine is gone")
    with WorkerPool(2, NeverThere) as pool, pytest.raises(RewardError, match="no reward worker could be started: its"):
        pool.run([Job(target=Target(path=path, name=name), calls=[{"completion": "four"}], timeout=60)])


@pytest.mark.parametrize("fate", ["hang", "compute", "idle"])
def test_no_worker_outlives_its_parent(hostile, tmp_path, fate):
    """The parent is killed while its worker sleeps, computes with the interpreter lock held, or waits for work."""
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
            import threading, time
            from posttrain.rewards.load import Target
            from posttrain.rewards.pool import Job, WorkerPool
            pool = WorkerPool(1)
            target = Target(path={hostile.rsplit(":", 1)[0]!r}, name="reward")
            pool.describe(target)
            job = Job(target=target, calls=[{{"completion": {fate!r}}}], timeout=600)
            threading.Thread(target=pool.run, args=([job],)).start()
            print(pool._workers[0].child.process.pid, flush=True)
            time.sleep(600)
        """)
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        try:
            worker = psutil.Process(int(parent.stdout.readline()))
            time.sleep(0.2)
            assert worker.is_running()
        finally:
            parent.kill()
    wait_for(lambda: ended(worker))


def ended(process):
    """True if the process is gone, or dead and waiting for the system's first process to collect it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
def test_workers_score_side_by_side(reward_file, built):
    """Each call waits until four processes have begun calls."""
    meets = """
    import os, time
    from pathlib import Path
    HERE = Path(__file__).with_name("began")
    def {}(completion):
        HERE.mkdir(exist_ok=True)
        (HERE / str(os.getpid())).touch()
        while len(list(HERE.iterdir())) < 4:
            time.sleep(0.01)
        return 1.0
    """
    first = reward_file(meets.format("first"), name="first", file="first.py")
    second = reward_file(meets.format("second"), name="second", file="second.py")
    rewards = built(Reward(function=first, timeout=60), Reward(function=second, timeout=60), workers=4)
    scores = rewards.score([prompt(0)], [[completion("x")] * 4])
    assert scores.parts == {"first": [[1.0] * 4], "second": [[1.0] * 4]}


def test_a_worker_imports_a_function_once(reward_file, built):
    function = reward_file("calls = []\ndef reward(completion):\n    calls.append(1)\n    return len(calls)")
    rewards = built(Reward(function=function), workers=1)
    for expected in (1.0, 2.0, 3.0):
        assert rewards.score([prompt(0)], [[completion("x")]]).rewards_PG == [[expected]]


def test_a_worker_needs_neither_torch_nor_sympy(reward_file, score):
    function = reward_file(
        "import sys\ndef reward(completion):\n    return float('torch' in sys.modules or 'sympy' in sys.modules)"
    )
    assert score(["x"], Reward(function=function)).rewards_PG == [[0.0]]


def test_an_interrupt_kills_the_busy_workers_and_no_more(hostile, children):
    path, name = hostile.rsplit(":", 1)
    with WorkerPool(1) as pool:
        target = Target(path=path, name=name)
        pool.describe(target)

        def interrupt(*_):
            raise KeyboardInterrupt

        def interrupt_the_call():
            wait_for(Path(path).with_name("began").exists)
            os.kill(os.getpid(), signal.SIGALRM)

        signal.signal(signal.SIGALRM, interrupt)
        threading.Thread(target=interrupt_the_call).start()
        with pytest.raises(KeyboardInterrupt):
            pool.run([Job(target=target, calls=[{"completion": "hang"}], timeout=100)])
        assert children() == []
        outcomes = pool.run([Job(target=target, calls=[{"completion": "abc"}], timeout=60)])[0]
        assert outcomes[0].value == 3.0


def test_values_that_json_cannot_hold_are_refused_by_their_type(hostile):
    path, name = hostile.rsplit(":", 1)
    with WorkerPool(1) as pool, pytest.raises(DataError, match="has a value of type bytes"):
        pool.run([Job(target=Target(path=path, name=name), calls=[{"completion": b"x"}], timeout=5)])


RUNAWAY = """
import os, subprocess, sys, time
from pathlib import Path

SLEEP = "import time; time.sleep(61_17)"
FORKS = "import os, time\\nfor _ in range(5): os.fork() or os.setsid()\\ntime.sleep(61_17)"

def start(way):
    if way == "session":
        subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    elif way == "shell":
        subprocess.Popen(["sh", "-c", "setsid sh -c 'sleep 6117 & sleep 6117' & exit"])
    elif way == "without environment":
        subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True, env={"PATH": os.environ["PATH"]})
    elif way == "double fork":
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                Path(__file__).with_name("forked").write_text(str(os.getpid()))
                os.closerange(0, 3)
                time.sleep(6117)
            os._exit(0)
    elif way == "many":
        subprocess.Popen([sys.executable, "-c", FORKS], start_new_session=True)

def reward(completion, way):
    start(way)
    time.sleep(0.5)
    if completion == "crash":
        os._exit(3)
    time.sleep(60 if completion == "hang" else 0)
    return 1.0
"""


@pytest.mark.parametrize("end", few(["hang", "crash", "close"], "crash", "close"))
def test_what_a_reward_starts_in_a_session_of_its_own_ends_with_it(reward_file, tmp_path, end):
    """At a time-out, at a crash of the worker, and at the end of the run: nothing remains, however it has detached."""
    ways = ["session", "shell", "double fork", "many"]
    if end != "crash":  # then its parent, the last trace of it, disappears first
        ways.append("without environment")
    file = reward_file(RUNAWAY)

    def left() -> list[psutil.Process]:
        forked = tmp_path / "forked"
        known = forked.read_text() if forked.exists() else ""
        return [p for p in psutil.process_iter() if _sleeps(p) or (str(p.pid) == known and _runs(p))]

    for way in ways:
        with build_rewards([Reward(function=file, settings={"way": way}, timeout=3.0)], workers=1) as rewards:
            scores = rewards.score([prompt(0)], [[completion(end)]])
            assert scores.scored_PG == [[end == "close"]]
            assert left() or end != "close", way
        deadline = time.monotonic() + IN_TIME
        while left() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left() == [], way


def _sleeps(process: psutil.Process) -> bool:
    try:
        return _runs(process) and any("6117" in part or "61_17" in part for part in process.cmdline())
    except psutil.Error:
        return False


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
