"""Output that all verbs share: JSON or text, the live view of a run and its last lines. Also silences other
libraries."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posttrain.errors import PosttrainError
from posttrain.plugins import PluginWarning

if TYPE_CHECKING:
    from posttrain.pipeline.run import Pipeline
    from posttrain.report.terminal import TerminalView
    from posttrain.train.job import FinishedRun
    from posttrain.train.run import Run

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and everything else on stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings, errors and the result.")]
ShowSamples = Annotated[bool, typer.Option("--show-samples", help="Show completions of every tenth step.")]
PromptColumn = Annotated[str | None, typer.Option(help='Prompt column, or a template such as "{Body} {Question}".')]
AnswerColumn = Annotated[str | None, typer.Option("--answer", help="Column of the gold answer.")]

_QUIET = {
    "TQDM_DISABLE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "DATASETS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment variables that libraries read when imported: no progress bars between our lines, only errors in logs."""
_TALKATIVE = ("torchao", "torch.utils._pytree")
"""Loggers to quieten. transformers imports torchao if installed, and torchao logs every kernel it cannot use here."""
_LIBRARIES = r"(torch|transformers|peft|datasets|huggingface_hub)(\.|$)"


def silence_libraries() -> None:
    """Keep transformers, datasets and the hub client from writing between our lines. Variables already set are kept.

    Call this before importing them; the command line calls it first. Python callers keep their own settings.
    Only downloads show a progress bar, and only on a terminal: they take long and come before our first line.
    """
    if not sys.warnoptions:  # these warnings advise developers who call the libraries, not our users
        warnings.filterwarnings("ignore", category=FutureWarning, module=_LIBRARIES)
    if not isinstance(warnings.showwarning, _SentenceAlone):
        warnings.showwarning = _SentenceAlone(warnings.showwarning)
    downloads = {} if sys.stderr.isatty() else {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    for name, value in (_QUIET | downloads).items():
        os.environ.setdefault(name, value)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)


@dataclass(frozen=True)
class _SentenceAlone:
    """A `warnings.showwarning` that shows warnings meant for users without the line of code."""

    others: Callable[..., None]

    def __call__(self, message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, PluginWarning):
            print(f"warning    {message}", file=sys.stderr)
        else:
            self.others(message, category, *where, **more)


def answer(result: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a verb: a JSON object for programs, or text for people."""
    from posttrain.report.store import finite

    typer.echo(json.dumps(finite(result), indent=2, allow_nan=False) if as_json else text)


def view_for(*, quiet: bool, as_json: bool, show_samples: bool = False) -> TerminalView:
    """Return the live view of a run. It writes to stderr if stdout carries JSON."""
    from posttrain.report.terminal import TerminalView

    return TerminalView(stream=sys.stderr if as_json else sys.stdout, quiet=quiet, show_samples=show_samples)


def lines_for(*, quiet: bool, as_json: bool) -> Callable[[str], None]:
    """Return a function that prints a progress line of a verb with many runs: to stderr if stdout carries JSON."""
    stream = sys.stderr if as_json else sys.stdout
    return lambda line: None if quiet else print(line, file=stream, flush=True)


def finish(run: Run | FinishedRun | Pipeline, *, as_json: bool) -> int:
    """Print where everything is, and return 0: if the run had failed, an error would have been raised before this."""
    from posttrain.report.pipeline_page import stage_rows, table_text

    if getattr(run, "followed", False):  # another rank prints the result
        return 0
    summary = run.summary()
    staged = "stages" in summary
    first = "pipeline" if staged else "run"
    places = ((first, "folder"), ("model", "model_path"), ("export", "export"), ("report", "report"))
    lines = [f"{name:<10} {summary[key]}" for name, key in places if summary.get(key)]
    table = [table_text(stage_rows(summary["folder"])), ""] if staged else []
    answer(summary, "\n".join([*table, *lines]), as_json=as_json)
    return 0


def algorithm_names(incomplete: str) -> list[str]:
    """Return the algorithms that complete a word (for shell completion)."""
    from posttrain.algorithms import ALGORITHMS

    return [name for name in ALGORITHMS if name.startswith(incomplete)]


def setting_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the settings that complete a word (for shell completion), with those of the config file's algorithm."""
    from posttrain.config import setting_names
    from posttrain.config.algorithm import algorithm_named
    from posttrain.config.text import read_mapping

    dashes = "--" if incomplete.startswith("--") else ""
    if incomplete.removeprefix("--").startswith("algorithm"):
        try:
            named = algorithm_named(read_mapping(str(ctx.params.get("config"))).get("algorithm"))
        except PosttrainError:  # no file yet, or an unreadable one
            named = None
        names = setting_names(named)
    else:
        names = setting_names("sft")  # any algorithm will do: its settings are not wanted here; sft imports quickly
    return [f"{dashes}{name}=" for name in names if name.startswith(incomplete.removeprefix("--"))]
