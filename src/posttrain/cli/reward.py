"""`posttrain reward test CONFIG|REWARD` and `posttrain reward audit CONFIG|REWARD`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from posttrain.cli.output import AnswerColumn, AsJson, PromptColumn, answer

if TYPE_CHECKING:
    from posttrain.config import RunConfig


reward_app = typer.Typer(help="Test and audit a reward before you train on it.", no_args_is_help=True)

Subject = Annotated[
    str,
    typer.Argument(metavar="CONFIG|REWARD", help="A run's YAML or TOML file, or a reward: a name or path.py:function."),
]
Settings = Annotated[
    list[str] | None, typer.Argument(metavar="SECTION.KEY=VALUE", help="Settings that override the file.")
]
Data = Annotated[str | None, typer.Option(help="Data for a single reward: file, glob, dataset or task:NAME.")]
FAILED = 1
"""Exit code of a test or an audit that found a failure."""


@reward_app.command("test", no_args_is_help=True)
def try_out(
    subject: Subject,
    settings: Settings = None,
    data: Data = None,
    model: Annotated[
        str | None, typer.Option(help="Model whose answers are scored; default: the file's model.")
    ] = None,
    prompt: PromptColumn = None,
    answer_column: AnswerColumn = None,
    prompts: Annotated[int, typer.Option(min=1, help="Number of prompts that the model answers.")] = 32,
    samples: Annotated[
        int | None,
        typer.Option("--samples", "-k", min=2, help="Answers sampled for each prompt; default: sampling.group_size."),
    ] = None,
    without_model: Annotated[
        bool, typer.Option("--no-model", help="Score only completions whose right score is known.")
    ] = False,
    json: AsJson = False,
) -> int:
    """Test whether the rewards tell right from wrong, and whether the model can learn from them.

    The command scores gold answers, empty answers and answers of other rows, then answers of the model. The expected
    share of groups whose rewards differ says whether the model can learn from them. If there are tools or an
    environment, scripted players try them first: do they work, end, repeat exactly and keep the answers secret? The
    exit code is 1 if a finding speaks against a run.

    \b
    Examples:
      posttrain reward test my_run.yaml
      posttrain reward test my_run.yaml sampling.group_size=16 --prompts 64
      posttrain reward test my_rewards.py:score --data train.jsonl --no-model
      posttrain reward test gsm8k --data gsm8k_train.jsonl --model Qwen/Qwen3-0.6B --json
    """
    from posttrain.evaluate.reward_trial import try_config

    named = {"data.prompt": prompt, "data.answer": answer_column, "model.path": model}
    config, folder = run_config(subject, settings or [], data, named)
    with_model = not without_model and (model is not None or Path(subject).suffix in CONFIG_SUFFIXES)
    trial = try_config(config, folder=folder, with_model=with_model, prompts=prompts, samples=samples)
    answer(trial.to_json(), trial.render(), as_json=json)
    return 0 if trial.ok else FAILED


@reward_app.command("audit", no_args_is_help=True)
def audit(
    subject: Subject,
    settings: Settings = None,
    data: Data = None,
    prompt: PromptColumn = None,
    answer_column: AnswerColumn = None,
    kind: Annotated[
        str | None, typer.Option(help="What the reward measures: exact, literal, judge, code, format, length.")
    ] = None,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Allow scores that vary from call to call.")] = False,
    form: Annotated[
        str | None, typer.Option(help="Form in which a completion states its answer: '<final>GOLD</final>'.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model whose answers show whether rewards differ within groups.")
    ] = None,
    step_seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds of a training step; the scoring time is compared with it.")
    ] = 60.0,
    only: Annotated[list[str] | None, typer.Option(help="Run only this check; repeatable.")] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="Time limit for the checks of one reward, in seconds; the rest are skipped.")
    ] = 120.0,
    json: AsJson = False,
) -> int:
    """Try to hack and break a reward before a model does. The exit code is 1 if a check fails.

    The audit tries cheats and right answers in many spellings, malformed rows and hostile texts. It repeats calls in
    other processes, threads and orders, and looks for side effects and latency. For graders of programs it also runs
    attack programs and measures the strength of the tests. For tools and environments, scripted players say nothing,
    say nonsense, or call every tool.

    \b
    Examples:
      posttrain reward audit my_rewards.py:grade --data gsm8k_train.jsonl
      posttrain reward audit my_run.yaml
      posttrain reward audit my_rewards.py:brevity --data train.jsonl --kind length
      posttrain reward audit code --data mbpp.jsonl --prompt text --json
    """
    from posttrain.evaluate.environment_trial import audit_environment
    from posttrain.rewards.audit import audit_config

    config, folder = run_config(subject, settings or [], data, {"data.prompt": prompt, "data.answer": answer_column})
    options = {"kind": kind, "stochastic": stochastic, "form": form, "model": model, "only": only or ()}
    with Progress() as progress:
        options |= {"seconds": seconds, "progress": progress}
        of_turns = audit_environment(config, progress)
        reports = [
            *([of_turns] if of_turns else []),
            *audit_config(config, folder, step_seconds=step_seconds, **options),
        ]
    ok = all(report.ok for report in reports)
    text = "\n\n".join(report.render() for report in reports)
    answer({"ok": ok, "audits": [report.to_json() for report in reports]}, text, as_json=json)
    return 0 if ok else FAILED


CONFIG_SUFFIXES = (".yaml", ".yml", ".toml")


def run_config(
    subject: str, settings: list[str], data: str | None, named: Mapping[str, str | None]
) -> tuple[RunConfig, Path]:
    """Return the config of a run with these rewards, and its folder. `subject` is a file, or one reward on `data`.

    `settings` are overrides as on any command line. `named` holds the values of options, as text that is not parsed.
    """
    from posttrain.config import load_config
    from posttrain.config.text import read_value, write_value
    from posttrain.errors import ConfigError

    settings = [*settings, *(f"{key}={write_value(text)}" for key, text in named.items() if text is not None)]
    if Path(subject).suffix in CONFIG_SUFFIXES:
        more = [] if data is None else [f"data.train={write_value(data)}"]
        return load_config(subject, [*more, *settings]).config, Path(subject).parent
    if data is None:
        raise ConfigError(
            given=f"the reward {subject} without data",
            allowed="a config file, which names its data; or a reward and --data",
            fix="Add --data train.jsonl.",
        )
    entry: Any = {"function": subject} if ":" in subject or "." in subject else {"name": subject}
    if subject.startswith("{"):
        entry = read_value(subject, subject)
    tree = {"model": "none", "algorithm": "grpo", "data": {"train": data}, "rewards": [entry], "train": {"steps": 1}}
    return load_config(tree, settings).config, Path()


# --- progress of a long task -----------------------------------------------------------------------------------------


QUIET_SECONDS = 5.0
"""Seconds before the first progress line if stderr is not a terminal. A shorter task needs none."""


class Progress:
    """Prints what begins. A terminal shows every part; otherwise, the part running after 5 s and all later parts."""

    def __init__(self, stream: TextIO | None = None, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._stream = stream or sys.stderr
        self._quiet = 0.0 if self._stream.isatty() else quiet_seconds
        self._start = time.monotonic()
        self._now = ""
        self._lock = threading.Lock()
        self._timer = threading.Timer(quiet_seconds, self._remind)
        self._timer.daemon = True

    def __enter__(self) -> Progress:
        if self._quiet:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def __call__(self, what: str) -> None:
        with self._lock:
            self._now = what
            if time.monotonic() - self._start >= self._quiet:
                self._show()

    def _remind(self) -> None:
        with self._lock:
            if self._now:
                self._show()

    def _show(self) -> None:
        print(f"{time.monotonic() - self._start:5.0f} s  {self._now}", file=self._stream, flush=True)
