"""Output that all verbs share: one JSON object or text, the live view of a run, its last words, and silence from
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
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings, errors and the last lines.")]
ShowSamples = Annotated[bool, typer.Option("--show-samples", help="Show completions of every tenth step.")]
PromptColumn = Annotated[str | None, typer.Option(help='Prompt column, or a template: "{Body} {Question}".')]
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
"""Variables that the libraries read when they are imported: no progress bars between our lines, no logs but errors."""
_TALKATIVE = ("torchao", "torch.utils._pytree")
"""transformers imports torchao where it is installed, which tells of each kernel that is not for this machine."""
_LIBRARIES = r"(torch|transformers|peft|datasets|huggingface_hub)(\.|$)"


def silence_libraries() -> None:
    """Keep transformers, datasets and the hub client from writing between our lines. A variable that is set stays.

    Must run before they are imported; the command line does so first of all. Python callers keep their own settings.
    Downloads alone show a bar, on a terminal only: they take long, and come before our first line.
    """
    if not sys.warnoptions:  # advice to their callers, of whom the user is none
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
    """Shows warnings that are meant for users without the line of code."""

    others: Callable[..., None]

    def __call__(self, message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, PluginWarning):
            print(f"warning    {message}", file=sys.stderr)
        else:
            self.others(message, category, *where, **more)


def answer(result: Any, text: str, *, as_json: bool) -> None:
    """The result of a verb: an object for programs, or text for people."""
    from posttrain.report.store import finite

    typer.echo(json.dumps(finite(result), indent=2, allow_nan=False) if as_json else text)


def view_for(*, quiet: bool, as_json: bool, show_samples: bool = False) -> TerminalView:
    """Live output; on stderr where stdout carries JSON."""
    from posttrain.report.terminal import TerminalView

    return TerminalView(stream=sys.stderr if as_json else sys.stdout, quiet=quiet, show_samples=show_samples)


def lines_for(*, quiet: bool, as_json: bool) -> Callable[[str], None]:
    """Progress of a verb with many runs, line by line; on stderr if stdout carries JSON."""
    stream = sys.stderr if as_json else sys.stdout
    return lambda line: None if quiet else print(line, file=stream, flush=True)


def finish(run: Run | FinishedRun | Pipeline, *, as_json: bool) -> int:
    """Print where everything is; the run ended well, or an error would have travelled past here."""
    from posttrain.report.pipeline_page import stage_rows, table_text

    if getattr(run, "followed", False):  # one rank of several speaks
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
    """For the shell: the algorithms that a word may become."""
    from posttrain.algorithms import ALGORITHMS

    return [name for name in ALGORITHMS if name.startswith(incomplete)]


def setting_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the settings that a word may become, of the algorithm that the file before it names."""
    from posttrain.config import setting_names
    from posttrain.config.algorithm import algorithm_named
    from posttrain.config.text import read_mapping

    dashes = "--" if incomplete.startswith("--") else ""
    if incomplete.removeprefix("--").startswith("algorithm"):
        try:
            named = algorithm_named(read_mapping(str(ctx.params.get("config"))).get("algorithm"))
        except PosttrainError:  # no file yet, or none that can be read
            named = None
        names = setting_names(named)
    else:
        names = setting_names("sft")  # one whose file is small: its settings are not asked for
    return [f"{dashes}{name}=" for name in names if name.startswith(incomplete.removeprefix("--"))]
