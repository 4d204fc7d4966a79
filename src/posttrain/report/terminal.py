"""The view of a run in progress: a block that updates in place on a terminal, else one complete line per step.

The view only displays and cannot stop a run. The first exception in here ends the display with one warning, and the run
continues. Control characters in texts of models and errors are made visible, so no escape sequence reaches a terminal.
"""

from __future__ import annotations

import functools
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from posttrain.report.heldout import headline_span, kind_of, measure_of
from posttrain.report.likelihood_notes import fallen
from posttrain.report.lines import evaluation_line, short_line
from posttrain.report.phases import ENGINES_IDLE, PHASES, phase_seconds, who_waited
from posttrain.report.spans import show_change, show_span, show_value, span
from posttrain.report.store import mapping, number
from posttrain.report.svg import compact, percent, seconds
from posttrain.report.text import cut, visible

LOG_WIDTH = 120
"""Width of a line, in characters, if the output is not a terminal."""
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 24
_SHOWN = 600
"""Maximum characters that are shown of one part of a row."""
_RECENT = 20
"""Number of recent steps whose median time gives the estimate of the time left."""
_STYLES = {"warning": "yellow", "guard": "yellow", "alarm": "bold red"}
"""Kinds of messages that even a quiet run prints -> their style."""
_GIVEN_ANSWERS: list[tuple[str, str, Callable[[float], str]]] = [
    ("loss", "loss", compact),
    ("margin", "rewards/margins", compact),
    ("in order", "rewards/accuracies", percent),
    ("logp chosen", "logps/chosen", compact),
    ("perplexity", "sft/perplexity", compact),
    ("right tokens", "sft/token_accuracy", percent),
    ("grad", "grad_norm", compact),
    ("tokens", "num_tokens", compact),
]
"""Numbers that are shown for a step that learns from given answers: (label, metric, format)."""
_SIDE_BY_SIDE: list[tuple[str, str, Callable[[float], str]]] = [
    ("age", "staleness/mean", lambda value: f"{value:.1f}"),
    ("masked", "staleness/masked", percent),
]
"""Further numbers for asynchronous runs, whose engines sample during training."""
_NOT_WORTH_A_WORD = (("unscored", "0%"), ("masked", "0%"))


def _never_stops_a_run(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def guarded(self: TerminalView, *args: Any, **kwargs: Any) -> None:
        if self.broken:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as reason:  # any error: a display must not stop a run
            self.broken = True
            self._stop_live()
            message = f"the terminal output stopped ({type(reason).__name__}: {reason}); the run continues"
            warnings.warn(message, stacklevel=2)

    return guarded


class TerminalView:
    """Live output of a run.

    On a terminal: a block that is redrawn in place, with single messages (warnings, evaluations) above it. Otherwise:
    plain lines without control characters. With `quiet`: only warnings, guards and alarms, each with `part`, the name
    of this part of a larger run, because no heading precedes them.
    """

    def __init__(
        self, stream: TextIO | None = None, *, quiet: bool = False, show_samples: bool = False, part: str = ""
    ) -> None:
        self.stream = stream or sys.stdout
        self.quiet, self.show_samples, self.part = quiet, show_samples, part
        self.broken = False
        self.compares_groups = True
        """Is the share of groups with signal worth showing?"""
        self._live: Live | None = None
        self._metrics: dict[str, Any] = {}
        self._rewards: list[float] = []
        self._seconds: list[float] = []
        self._total = 0
        self._heldout: dict[str, Mapping[str, Any]] = {}
        self._opened = self._step_ended = time.monotonic()

    @_never_stops_a_run
    def started(self, summary: str | Mapping[str, Any]) -> None:
        """Announce a run: print a text, or names and values."""
        lines = [summary] if isinstance(summary, str) else [f"{name:<10} {value}" for name, value in summary.items()]
        self._say("\n".join(lines))
        if not self.quiet and self._is_terminal():
            console = Console(file=self.stream)
            live = Live(get_renderable=self._block, console=console, refresh_per_second=4)
            live.start()
            self._live = live

    @_never_stops_a_run
    def begins(self, what: str) -> None:
        """Print that something slow begins, with the time since the start, to explain the silence that follows."""
        self._say(f"{seconds(time.monotonic() - self._opened):>7}  {what}")

    @_never_stops_a_run
    def step(self, metrics: Mapping[str, Any], total: int) -> None:
        """Show a finished step, from its record in metrics.jsonl. `total` is the number of steps of the run."""
        self._metrics, self._total = dict(metrics), total
        if (reward := number(metrics.get("reward"))) is not None:
            self._rewards.append(reward)
        now = time.monotonic()
        self._seconds.append(number(metrics.get("time/step"), now - self._step_ended))
        self._step_ended = now
        if self._live is None:
            self._say(self._step_line())

    @_never_stops_a_run
    def evaluation(self, name: str, evaluation: Mapping[str, Any]) -> None:
        """Show a held-out result (`Evaluation.to_json`) named "baseline", "step 30" or "trained"."""
        self._heldout[name] = evaluation
        self._say(f"held-out {name}: {evaluation_line(evaluation, *self._heldout.values())}{self._change(evaluation)}")

    @_never_stops_a_run
    def event(self, kind: str, message: str) -> None:
        """Show a warning, a guard or news. An error only ends the display: whoever catches its exception reports it."""
        if kind == "error":
            self._stop_live()
        else:
            whose = f"{self.part}: " if self.quiet and self.part else ""
            self._say(f"{kind}: {whose}{message}", style=_STYLES.get(kind, ""), loud=kind in _STYLES)

    @_never_stops_a_run
    def rows(self, shown: Sequence[tuple[str, Sequence[tuple[str, bool]]]]) -> None:
        """Show rows of the data as the model reads them: a name, and parts of (text, is it trained on?)."""
        for name, parts in shown:
            text = Text.assemble((f"{name}: ", "dim"), *map(_stretch, parts))
            self._say(text.plain, rendered=text)
        if any(trained for _, parts in shown for _, trained in parts):
            self._say("⟦…⟧ is trained on; samples.txt has these rows")

    @_never_stops_a_run
    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show completions of a step (rows as in its rollouts file), if `show_samples` is set."""
        if not self.show_samples:
            return
        if self._live is not None:
            self._live.console.print(_samples_table(step, rows))
        else:
            self._say("\n".join([f"samples of step {step}", *map(_sample_line, rows)]))

    @_never_stops_a_run
    def finished(self, summary: Mapping[str, Any]) -> None:
        """Show the end of a successful run: baseline against trained in one line, and the verdict of the report."""
        self._stop_live()
        before, after = (mapping(mapping(summary.get("evaluation")).get(side)) for side in ("baseline", "trained"))
        measure = measure_of(before, after)
        baseline, trained = headline_span(before, measure), headline_span(after, measure)
        if baseline and trained:
            disjoint = baseline.disjoint(trained)
            told = "intervals disjoint" if disjoint else "intervals overlap"
            if not (baseline.finite and trained.finite):
                told = "without intervals to judge the change by"
            change = span(mapping(mapping(summary.get("evaluation")).get("difference")).get(measure))
            if change is not None and change.finite and not (disjoint and kind_of(after) == "answers"):
                told = f"difference {show_change(measure, change)}"
            self._say(f"held-out {measure} {show_span(measure, baseline)} → {show_span(measure, trained)}, {told}")
        decided = mapping(summary.get("verdict"))
        if "sentence" in decided:
            kind = "warning" if decided.get("change") == -1 else "verdict"
            self.event("alarm" if decided.get("alarms") else kind, str(decided["sentence"]))
        if (fell := fallen(mapping(summary.get("evaluation")))) is not None:
            self.event(
                "warning",
                f"held-out {fell.better} answers became less likely: {show_change('logps', fell.change)} nats",
            )

    def close(self) -> None:
        """Release the terminal. Can be called at any time and repeatedly."""
        self._stop_live()

    # --- what is shown ---------------------------------------------------------------------------------------------

    def _step_line(self) -> str:
        """Return the content of the block on one line, as much as fits. metrics.jsonl has the rest."""
        step, took, left = (
            f"step {self._metrics.get('step', '?')}/{self._total}",
            seconds(self._seconds[-1]),
            self._left(),
        )
        room = shutil.get_terminal_size(fallback=(LOG_WIDTH, 24)).columns - len(step) - len(took) - len(left) - 2
        shown = [step]
        phases, waits = " ".join(f"{name} {value}" for name, value in self._phases()), who_waited(self._metrics)
        times = [took, f" ({phases})" if phases else "", f"  waited: {waits}" if waits else ""]
        for fact in (f"{name} {value}" for name, value in self._facts()):
            room -= len(fact) + 2
            if room < 0:
                return "  ".join([*shown, took]) + left
            shown.append(fact)
        while len("".join(times)) - len(took) > room:
            times.pop()
        return "  ".join([*shown, "".join(times)]) + left

    def _facts(self) -> list[tuple[str, str]]:
        metrics = self._metrics
        if number(metrics.get("reward")) is None:
            shown = _GIVEN_ANSWERS
        else:
            signal = [("signal", "frac_reward_zero_std", lambda dead: percent(1 - dead))]
            shown = [
                ("reward", "reward", lambda value: f"{value:.3f}"),
                *(signal if self.compares_groups else []),
                ("truncated", "completions/clipped_ratio", percent),
                ("unscored", "unscored_fraction", percent),
                ("length", "completions/mean_length", lambda value: f"{value:.1f}"),
                *(_SIDE_BY_SIDE if ENGINES_IDLE in metrics else []),
                ("entropy", "entropy", compact),
                ("kl", "kl", compact),
                ("grad", "grad_norm", compact),
            ]
        values = [(label, number(metrics.get(name)), form) for label, name, form in shown]
        known = [(label, form(value)) for label, value, form in values if value is not None]
        return [(label, value) for label, value in known if (label, value) not in _NOT_WORTH_A_WORD]

    def _phases(self) -> list[tuple[str, str]]:
        times = phase_seconds(self._metrics)
        total = number(self._metrics.get("time/step")) or sum(times.values())
        return [(PHASES[name], f"{value / total:.0%}") for name, value in times.items() if total > 0]

    def _left(self) -> str:
        remaining = self._total - int(number(self._metrics.get("step"), 0))
        if remaining <= 0:
            return ""
        return f"  {seconds(remaining * statistics.median(self._seconds[-_RECENT:]))} left"

    def _block(self) -> RenderableType:
        """Return the block. It is redrawn several times a second."""
        if not self._metrics:
            return Text(f"working, {seconds(time.monotonic() - self._step_ended)}", style="dim")
        done = int(number(self._metrics.get("step"), 0))
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(self._total, 1), completed=done, width=32)
        head.add_row(Text(f"step {done}/{self._total}", style="bold"), bar, Text(self._left().strip(), style="dim"))
        body = Table.grid(padding=(0, 2))
        facts = self._facts()
        if self._rewards:
            spark = Text(sparkline(self._rewards), style="blue")
            body.add_row(Text("reward", style="dim"), Text.assemble((facts.pop(0)[1], "bold"), "  ", spark))
        for name, evaluation in list(self._heldout.items())[-1:]:
            body.add_row(
                Text("held-out", style="dim"),
                Text(f"{short_line(evaluation, *self._heldout.values())}  {name}{self._change(evaluation)}"),
            )
        row = Text()
        for label, value in facts:
            row.append(f"{label} ", style="dim").append(f"{value}   ")
        body.add_row(Text("step", style="dim"), row)
        phases = "   ".join(f"{name} {value}" for name, value in self._phases())
        body.add_row(Text("time", style="dim"), Text(f"{seconds(self._seconds[-1])} a step: {phases}"))
        if waits := who_waited(self._metrics):
            body.add_row(Text("waiting", style="dim"), Text(f"{waits} of the step"))
        return Group(head, body)

    def _change(self, evaluation: Mapping[str, Any]) -> str:
        """Return text such as `, 22% before training`."""
        first = self._heldout.get("baseline")
        if first is None or first is evaluation:
            return ""
        measure = measure_of(*self._heldout.values())
        before = headline_span(first, measure)
        return f", {show_value(measure, before.mean)} before training" if before else ""

    # --- where it is shown -----------------------------------------------------------------------------------------

    def _say(self, text: str, *, style: str = "", loud: bool = False, rendered: Text | None = None) -> None:
        """Print a permanent line. `rendered` is the same line with colours, for a terminal."""
        if self.quiet and not loud:
            return
        if self._live is not None:
            self._live.console.print(rendered or Text(visible(text), style=style))
        else:
            self.stream.write(visible(text) + "\n")
            self.stream.flush()

    def _is_terminal(self) -> bool:
        return self.stream.isatty() and not Console(file=self.stream).is_dumb_terminal

    def _stop_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            try:
                live.stop()
            except Exception:  # the terminal is gone
                self.broken = True


def sparkline(values: Sequence[float], width: int = _SPARK_WIDTH) -> str:
    """Return the course of a number as one row of bar characters, scaled from its lowest to its highest value.

    >>> sparkline([0, 1, 2, 3], 4)
    '▁▃▆█'
    """
    size = max(1, -(-len(values) // width))
    means = [statistics.fmean(values[i : i + size]) for i in range(0, len(values), size)]
    low, high = min(means), max(means)
    return "".join(_SPARKS[round((value - low) / (high - low or 1) * (len(_SPARKS) - 1))] for value in means)


def _stretch(part: tuple[str, bool]) -> tuple[str, str]:
    """Return (text, style) of a part of a row. Marks show trained text even if it is copied. Long texts are cut in the
    middle."""
    text, trained = visible(part[0]), part[1]
    text = text if len(text) <= _SHOWN else f"{text[: 3 * _SHOWN // 4]} […] {text[-_SHOWN // 4 :]}"
    return (f"⟦{text}⟧", "green") if trained else (text, "")


def _samples_table(step: int, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=f"samples of step {step}", title_justify="left", show_lines=True)
    table.add_column("prompt", overflow="fold", ratio=2)
    table.add_column("completion", overflow="fold", ratio=3)
    table.add_column("reward", justify="right")
    table.add_column("advantage", justify="right")
    for row in rows:
        texts = [_shortened(row.get("prompt"), 400), _shortened(row.get("completion"), 800)]
        advantage = number(row.get("advantage"))
        table.add_row(*map(Text, texts), _reward(row), "n/a" if advantage is None else f"{advantage:+.2f}")
    return table


def _sample_line(row: Mapping[str, Any]) -> str:
    prompt, completion = _shortened(row.get("prompt"), 200), _shortened(row.get("completion"), 400)
    return f"  reward {_reward(row)}  {prompt!r} -> {completion!r}"


def _shortened(text: Any, limit: int) -> str:
    start, note = cut(visible(str(text or "")), limit)
    return f"{start} … ({note})" if note else start


def _reward(row: Mapping[str, Any]) -> str:
    reward = number(row.get("reward"))
    return "unscored" if reward is None or not row.get("scored", True) else compact(reward)
