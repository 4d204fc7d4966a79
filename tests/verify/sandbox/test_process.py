"""Running programs: their input, their output, how they end, and a dialogue with one."""

from __future__ import annotations

import os
import signal
import textwrap
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.catalogue import catalogue

from posttrain.errors import ConfigError
from posttrain.verify.sandbox import Limits, Sandbox, SandboxUnavailable

ECHO = "import posttrain_channel as channel\nwhile True:\n    channel.send(channel.receive())"
AS_IS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_program_reads_its_input_and_its_output_is_kept_apart(sandbox):
    ran = sandbox.run("import sys; print(int(input()) + 1); print('note', file=sys.stderr)", stdin=b"41")
    assert (ran.ended, ran.returncode, ran.stdout, ran.stderr, ran.result) == ("exited", 0, b"42\n", b"note\n", None)


@catalogue(
    "source, code, last",
    [
        ("raise SystemExit", 0, None),
        ("import sys; sys.exit(3)", 3, None),
        ("import sys; sys.exit('reason')", 1, b"reason"),
        ("import os; os._exit(0)", 0, None),
        ("1/0", 1, b"ZeroDivisionError: division by zero"),
        ("this is no program", 1, b"SyntaxError: invalid syntax"),
        ("x = '\\ud800'\nprint(x)", 1, None),
        ("\x00", 1, None),
        ("import atexit, os; atexit.register(os._exit, 5)", 5, None),
        ("raise KeyboardInterrupt", 1, b"KeyboardInterrupt"),
    ],
)
def test_the_exit_code_is_that_of_an_interpreter(landlock, source, code, last):
    ran = landlock.run(source)
    assert (ran.ended, ran.returncode) == ("exited", code)
    assert last is None or ran.stderr.splitlines()[-1].startswith(last[:20])


def test_a_traceback_shows_the_line_of_the_program_and_nothing_of_ours(landlock):
    ran = landlock.run("def half(x):\n    return x / 0\nhalf(1)")
    assert ran.stderr.decode().splitlines()[:3] == [
        "Traceback (most recent call last):",
        '  File "<program>", line 3, in <module>',
        "    half(1)",
    ]


def test_a_program_is_main_and_alone_in_its_namespace(landlock):
    ran = landlock.run("print(__name__, sorted(k for k in globals() if not k.startswith('__')))")
    assert ran.stdout == b"__main__ []\n"


def test_annotations_are_evaluated_unless_the_program_says_otherwise(landlock):
    """The future imports of our own files have no effect on it."""
    assert landlock.run("def f(x: 1 + 1): pass\nprint(f.__annotations__)").stdout == b"{'x': 2}\n"


def test_the_same_program_behaves_the_same_each_time_in_every_fork_server(landlock):
    source = "import random\nprint(random.random(), hash('a'), list({'x', 'y', 'z', 'a', 'b'}))"
    outputs = {ran.stdout for ran in landlock.run_many([(source, b"")] * 6)}
    with landlock.start("input()") as busy:  # occupies a fork-server, so that another one starts
        outputs.add(landlock.run(source).stdout)
        outputs |= {ran.stdout for ran in landlock.run_many([(source, b"")] * 4)}
        assert busy is not None
    assert len(outputs) == 1


def test_many_run_side_by_side_and_come_back_in_order(sandbox):
    programs = [(f"print({i} + int(input()))", str(i).encode()) for i in range(40)]
    assert [int(ran.stdout) for ran in sandbox.run_many(programs)] == [2 * i for i in range(40)]


def test_large_inputs_pass_and_an_input_that_nobody_reads_is_no_error(landlock):
    large = b"x" * 5_000_000
    assert landlock.run("import sys; print(len(sys.stdin.read()))", stdin=large).stdout == b"5000000\n"
    assert landlock.run("print('done')", stdin=large).stdout == b"done\n"


def test_a_large_program_runs(landlock):
    assert landlock.run("x = 1\n" * 300_000 + "print(x)", limits=Limits(wall=60, cpu=60)).stdout == b"1\n"


@AS_IS
@given(text=st.text(max_size=200), stdin=st.binary(max_size=2000))
def test_bytes_arrive_as_they_are(landlock, text, stdin):
    source = f"import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())\nsys.stderr.write({text!a})"
    ran = landlock.run(source, stdin=stdin)
    assert ran.stdout == stdin
    assert ran.stderr.decode() == text.encode(errors="backslashreplace").decode()


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [("out",), ("err",), ("out", "err")])
def test_one_limit_counts_both_streams(sandbox, streams):
    writes = "; ".join(f"os.write({1 if name == 'out' else 2}, b'x' * 700)" for name in streams)
    ran = sandbox.run(f"import os\nwhile True: {writes}", limits=Limits(output=10_000, wall=60, cpu=60))
    assert ran.ended == "output"
    assert len(ran.stdout) + len(ran.stderr) == 10_000
    assert ran.seconds < 30


def test_output_up_to_the_limit_is_no_excess(landlock):
    ran = landlock.run("print('x' * 9_999)", limits=Limits(output=10_000, wall=60))
    assert (ran.ended, len(ran.stdout)) == ("exited", 10_000)


def test_too_much_output_is_told_from_a_sandbox_that_fails_however_late_the_judge_looks(landlock):
    """On a busy machine the output and the message "confined" may arrive together; the output is read first."""
    with landlock.start("import os; os.write(1, b'x' * 60_000)", limits=Limits(output=1000, wall=60)) as process:
        time.sleep(0.5)
        ran = process.finish()
    assert (ran.ended, len(ran.stdout)) == ("output", 1000)


@pytest.mark.parametrize(("name", "value"), [("wall", 0), ("cpu", -1), ("memory", float("nan")), ("output", 0)])
def test_a_limit_that_is_no_limit_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"sandbox limit {name} = .*; allowed: a positive number"):
        Limits(**{name: value})


def test_limits_can_be_given_per_program(landlock):
    assert landlock.run("import time; time.sleep(30)", limits=Limits(wall=0.3)).ended == "wall"


# --- the channel -----------------------------------------------------------------------------------------------------


def test_a_conversation(sandbox):
    with sandbox.start(ECHO) as process:
        for message in (b"", b"one", bytes(range(256)) * 5000):
            process.send(message)
            assert process.receive(60) == message
        ran = process.finish()
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (1, b"EOFError: the channel is closed")


@AS_IS
@given(messages=st.lists(st.binary(max_size=3000), max_size=8))
def test_messages_keep_their_borders_and_their_order(landlock, messages):
    source = f"from posttrain_channel import receive, send\nfor _ in range({len(messages)}): send(receive())"
    with landlock.start(source) as process:
        for message in messages:
            process.send(message)
        ran = process.finish()
    assert list(ran.messages) == messages
    assert ran.result == (messages[0] if len(messages) == 1 else None)


def test_one_message_is_the_result_and_two_are_none(landlock):
    assert landlock.run("from posttrain_channel import send; send(b'1')").result == b"1"
    ran = landlock.run("from posttrain_channel import send; send(b'1'); send(b'2')")
    assert (ran.result, ran.messages) == (None, (b"1", b"2"))


def test_a_message_that_does_not_come_is_told_from_one_that_cannot(landlock):
    source = "import time, posttrain_channel\nposttrain_channel.send(b'here')\ntime.sleep(30)"
    with landlock.start(source) as process:
        assert process.receive(60) == b"here"
        with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
            process.receive(0.05)
        assert process.kill().ended == "signal"
    with landlock.start("pass") as process, pytest.raises(EOFError):
        process.receive(60)


@pytest.mark.parametrize("announced", [1 << 30, 0xFFFFFFFF])
def test_a_message_of_a_gigabyte_is_refused_by_its_first_bytes(sandbox, announced):
    source = f"import os, time\nos.write(3, ({announced}).to_bytes(4, 'big') + b'x' * 1000)\ntime.sleep(30)"
    ran = sandbox.run(source)
    assert (ran.ended, ran.result) == ("output", None)


def test_messages_without_end_are_stopped(landlock):
    source = "from posttrain_channel import send\nwhile True: send(b'x' * 10000)"
    assert landlock.run(source, limits=Limits(message=1 << 20, wall=60, cpu=60)).ended == "output"


def test_half_a_message_is_no_result(landlock):
    ran = landlock.run("import os; os.write(3, (100).to_bytes(4, 'big') + b'x' * 50)")
    assert (ran.ended, ran.result) == ("exited", None)


def test_a_program_that_writes_to_every_descriptor_has_no_other(landlock):
    source = """
    import os
    reached = []
    for number in range(4, 256):
        try:
            os.write(number, b"forged")
            reached.append(number)
        except OSError:
            pass
    print(reached)
    """
    assert landlock.run(textwrap.dedent(source)).stdout == b"[]\n"


def test_replacing_what_the_channel_is_made_of_changes_nothing_but_the_program(landlock):
    source = """
    import os, struct
    from posttrain_channel import send
    os.write = struct.pack = None
    send(b"said")
    """
    assert landlock.run(textwrap.dedent(source)).result == b"said"


# --- failures of the sandbox itself ----------------------------------------------------------------------------------


def test_a_fork_server_that_was_killed_is_replaced_and_the_program_run_again(sandbox):
    sandbox.run("pass")
    for server in list(sandbox._all):
        os.kill(server.pid, signal.SIGKILL)
    assert sandbox.run("print('again')").stdout == b"again\n"


def at_work(sandbox: Sandbox) -> int:
    (server,) = set(sandbox._all) - set(sandbox._idle)
    return server.pid


@pytest.mark.slow
def test_a_fork_server_that_dies_under_a_program_is_no_verdict_on_it(landlock):
    process = landlock.start("import time; time.sleep(30)")
    time.sleep(0.2)
    os.kill(at_work(landlock), signal.SIGKILL)
    with pytest.raises(SandboxUnavailable, match="did not run a program: the fork-server"):
        process.finish()


@pytest.mark.slow
def test_a_fork_server_that_hangs_costs_the_deadline_and_little_more(landlock):
    process = landlock.start("import time; time.sleep(30)", limits=Limits(wall=0.5))
    os.kill(at_work(landlock), signal.SIGSTOP)
    ran = process.finish()
    assert ran.ended == "wall"
    assert landlock.run("print(1)").stdout == b"1\n"


def test_a_closed_sandbox_starts_anew_when_it_is_used(landlock):
    with Sandbox(landlock.tier, landlock._command, landlock.limits, 1) as other:
        assert other.run("print(1)").stdout == b"1\n"
        other.close()
        assert other._all == []
        assert other.run("print(2)").stdout == b"2\n"
