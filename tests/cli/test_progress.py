"""Progress appears on stderr: immediately on a terminal, and elsewhere once it takes long."""

import io
import time

from posttrain.cli.reward import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def parts(stream: io.StringIO) -> list[str]:
    return [line.partition(" s  ")[2] for line in stream.getvalue().splitlines()]


def test_a_terminal_is_told_of_every_part():
    stream = Terminal()
    with Progress(stream, quiet_seconds=60) as progress:
        progress("noise")
        progress("latency")
    assert parts(stream) == ["noise", "latency"]


def test_a_file_is_told_of_the_part_that_takes_long_and_of_later_ones():
    stream = io.StringIO()
    with Progress(stream, quiet_seconds=3) as progress:
        progress("noise")
        progress("latency")
        while not stream.getvalue():
            time.sleep(0.01)
        progress("safety")
    assert parts(stream) == ["latency", "safety"]


def test_what_is_short_is_done_in_silence():
    stream = io.StringIO()
    with Progress(stream, quiet_seconds=60) as progress:
        progress("noise")
    assert not stream.getvalue()
