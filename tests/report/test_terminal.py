"""Terminal output: complete and plain without a terminal, one block with one, and it never stops a run."""

import io
import random
import re
import warnings

import pytest
from tests.report.synthetic_run import evaluation, metrics_row, rollout_rows

from posttrain.report.terminal import TerminalView, sparkline


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def tell(view: TerminalView, steps: int = 3) -> None:
    """Show a small run, from start to end."""
    rng = random.Random(0)
    view.started({"run": "runs/demo", "model": "tiny:addition"})
    view.evaluation("baseline", evaluation(0.22, check=0.2))
    for step in range(1, steps + 1):
        view.step(metrics_row(step, steps, rng), steps)
        view.samples(step, rollout_rows(step, steps, rng, prompts=1, group_size=2))
    view.event("warning", "9% of the answers were cut")
    view.evaluation("trained", evaluation(0.95, check=0.94))
    view.finished({"evaluation": {"baseline": evaluation(0.22), "trained": evaluation(0.95)}})
    view.close()


def test_without_a_terminal_every_step_is_one_complete_plain_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    stream = io.StringIO()
    tell(TerminalView(stream))
    text = stream.getvalue()
    assert not re.search("[\x00-\x08\x0b-\x1f]", text)
    lines = [line for line in text.splitlines() if line.startswith("step ")]
    assert len(lines) == 3
    assert re.fullmatch(
        r"step 1/3  reward 0\.\d{3}  signal \S+%  truncated \S+%  length \S+  entropy \S+  grad \S+  "
        r"\d+ ms \(sampling \d+% waiting for rewards \d+% training \d+% publishing \d+%\)  "
        r"waited: trainer \d+%, sampler \d+%  1\.\d s left",
        lines[0],
    )
    assert "left" not in lines[-1]
    assert "held-out baseline: accuracy 22% (16% to 30%), pass@4 48%, check exact_match 0.203, 128 prompts" in text
    assert "warning: 9% of the answers were cut" in text
    assert text.splitlines()[-1] == "held-out accuracy 22% (16% to 30%) → 95% (90% to 98%), intervals disjoint"


def test_a_step_is_shown_as_far_as_the_terminal_is_wide_and_never_cut_within_a_value(monkeypatch):
    whole, lengths = "", []
    for width in (400, 300, 230, 180, 120, 80, 60):
        monkeypatch.setenv("COLUMNS", str(width))
        stream = io.StringIO()
        tell(TerminalView(stream))
        line = next(line for line in stream.getvalue().splitlines() if line.startswith("step 1/3"))
        whole = whole or line
        assert len(line) <= width
        assert set(re.split(r" {2,}| \(|\)", line)) <= set(re.split(r" {2,}| \(|\)", whole))
        assert line.startswith("step 1/3  reward ")
        assert line.endswith(" s left")
        lengths.append(len(line))
    assert lengths[0] > 180
    monkeypatch.delenv("COLUMNS")
    stream = io.StringIO()
    tell(TerminalView(stream))
    assert max(len(line) for line in stream.getvalue().splitlines() if line.startswith("step ")) <= 120


@pytest.mark.parametrize(
    ("before", "after", "paired", "told"),
    [
        (0.46, 0.56, (0.063, 0.44), "difference +29 points, interval +6 to +44"),
        (0.46, 0.5, (-0.1, 0.44), "difference +29 points, interval −10 to +44"),
        (0.46, 0.5, None, "intervals overlap"),
        (0.22, 0.95, (0.063, 0.44), "intervals disjoint"),
    ],
)
def test_the_evidence_beside_the_verdict_is_what_decides_it(before, after, paired, told):
    """If the intervals overlap, the difference prompt by prompt decides."""
    found = {"baseline": evaluation(before), "trained": evaluation(after)}
    if paired:
        found["difference"] = {"accuracy": {"mean": 0.29, "low": paired[0], "high": paired[1], "n": 128}}
    stream = io.StringIO()
    TerminalView(stream).finished({"evaluation": found})
    assert stream.getvalue().rstrip().endswith(f", {told}")


def test_what_has_no_interval_is_not_said_to_overlap():
    stream = io.StringIO()
    before, after = ({"loss": {"mean": mean, "low": 0.0, "high": None, "n": 1}, "prompts": 1} for mean in (11.0, 8.5))
    TerminalView(stream).finished({"evaluation": {"baseline": before, "trained": after}})
    assert "overlap" not in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("without intervals to judge the change by")


@pytest.mark.parametrize(
    ("change", "line"),
    [(1, "verdict: The model improved."), (-1, "warning: The model improved."), (None, "verdict: The model improved.")],
)
def test_the_last_line_is_the_verdict_and_a_warning_when_the_model_got_worse(change, line):
    loud, quiet = io.StringIO(), io.StringIO()
    for view in (TerminalView(loud), TerminalView(quiet, quiet=True)):
        view.finished({"evaluation": {}, "verdict": {"sentence": "The model improved.", "change": change}})
    assert loud.getvalue() == f"{line}\n"
    assert quiet.getvalue() == (f"{line}\n" if change == -1 else "")


@pytest.mark.parametrize("kind", ["warning", "guard", "alarm"])
def test_a_quiet_part_of_a_run_says_which_part_it_is(kind):
    """No heading precedes the line, as it does otherwise."""
    loud, quiet = io.StringIO(), io.StringIO()
    for view in (TerminalView(loud, part="stage dpo"), TerminalView(quiet, quiet=True, part="stage dpo")):
        view.event(kind, "it diverged")
    assert (loud.getvalue(), quiet.getvalue()) == (f"{kind}: it diverged\n", f"{kind}: stage dpo: it diverged\n")


def test_quiet_says_nothing_but_warnings():
    stream = io.StringIO()
    tell(TerminalView(stream, quiet=True, show_samples=True))
    assert stream.getvalue() == "warning: 9% of the answers were cut\n"


def test_samples_are_shown_on_request_only():
    shown, hidden = io.StringIO(), io.StringIO()
    tell(TerminalView(shown, show_samples=True))
    tell(TerminalView(hidden))
    assert "samples of step 1\n  reward 0  '<|user|>\\nWhat is" in shown.getvalue()
    assert "samples" not in hidden.getvalue()


def test_on_a_terminal_there_is_a_block_and_what_happened_stays_above_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Tty()
    tell(TerminalView(stream, show_samples=True))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    for part in (
        "step 3/3",
        "reward",
        "22% before training",
        "waiting",
        "trainer 6",
        "warning: 9%",
        "samples of step 1",
    ):
        assert part in text
    assert stream.getvalue().rstrip().endswith("intervals disjoint")
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h"), (
        "the cursor must be shown again"
    )


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Tty()
    tell(TerminalView(stream))
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("tty", [False, True])
def test_escape_sequences_of_a_model_do_not_reach_the_terminal(tty, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Tty() if tty else io.StringIO()
    view = TerminalView(stream, show_samples=True)
    view.started("run")
    row = {"prompt": "\x1b]0;owned\x07", "completion": "[bold]x[/bold] \x1b[2J\u202e", "reward": 1.0, "advantage": 0.0}
    view.step({"step": 1, "reward": 1.0}, 1)
    view.samples(1, [row])
    view.event("warning", "\x1b[31mred")
    view.close()
    text = stream.getvalue()
    assert "\x1b]0;" not in text
    assert "\x1b[2J" not in text
    assert "\x1b[31mred" not in text
    assert "⟨U+001B⟩[2J⟨U+202E⟩" in text
    assert "[bold]x[/bold]" in text, "rich's markup must appear as text"


def test_an_answer_without_an_advantage_has_none_on_the_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Tty()
    view = TerminalView(stream, show_samples=True)
    view.started("run")
    view.samples(1, [{"prompt": "?", "completion": "4", "reward": 1.0, "advantage": None}])
    view.close()
    assert "n/a" in stream.getvalue()
    assert "+0.00" not in stream.getvalue()


def test_a_broken_stream_warns_once_and_never_raises():
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError("gone")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tell(TerminalView(Broken()))
    assert [str(warning.message) for warning in caught] == [
        "the terminal output stopped (BrokenPipeError: gone); the run continues"
    ]


@pytest.mark.parametrize(
    "metrics",
    [{}, {"step": None}, {"step": "x", "reward": "y", "time/step": None}, {"step": 1, "reward": float("nan")}],
)
def test_strange_metrics_are_shown_as_far_as_they_go(metrics):
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TerminalView(stream).step(metrics, 5)
    assert stream.getvalue().startswith("step ")


def test_a_supervised_step_shows_its_loss():
    stream = io.StringIO()
    TerminalView(stream).step({"step": 1, "loss": 2.5, "grad_norm": 1.0, "num_tokens": 12_345, "time/step": 2.0}, 2)
    assert stream.getvalue() == "step 1/2  loss 2.5  grad 1  tokens 12.3k  2.0 s  2.0 s left\n"


def test_an_error_is_left_to_whoever_catches_it():
    stream = io.StringIO()
    TerminalView(stream).event("error", "boom")
    assert stream.getvalue() == ""


def test_the_spark_line_shows_the_course():
    assert sparkline([1.0] * 5) == "▁▁▁▁▁"
    assert len(sparkline([float(i) for i in range(1000)])) == 24
