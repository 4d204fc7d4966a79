"""The command line. Each verb is a thin layer over a function of the Python API.

Exit codes: 0 success, 2 error in settings or data, 3 does not fit, 4 stopped by a guard or a replay that differs, 5
lost a rank, 130 stopped by Ctrl-C, 143 by SIGTERM, 1 anything else. With `--json`, stdout carries exactly one JSON
object, even after an error; everything meant for people goes to stderr.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

import posttrain
from posttrain.cli import (
    advise,
    convert,
    data,
    engine,
    experiments,
    looks,
    models,
    plan,
    reward,
    runs,
    submit,
)
from posttrain.cli.output import silence_libraries
from posttrain.cli.refused import refusal
from posttrain.errors import ConfigError, PosttrainError
from posttrain.importing import defer, hear_interrupts_again
from posttrain.ranks.environment import leave, place_of_process
from posttrain.stopping import terminated_as_interrupted

UsageError: Any = typer.BadParameter.__base__
"""click's error for a command line that it cannot parse. It is found through typer: newer releases bundle click."""

INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C, by the convention of shells. After SIGTERM, the exception carries 143."""

COMPLETE = "_POSTTRAIN_COMPLETE"
"""Environment variable that the scripts of `--install-completion` set."""

app = typer.Typer(
    name="posttrain",
    help="Post-train language models by reinforcement learning and preference optimisation, with a proof at every "
    "stage.\n\n\b\nExamples:\n  posttrain demo\n  posttrain train my_run.yaml train.steps=20\n"
    "  posttrain VERB --help",
    no_args_is_help=True,
    rich_markup_mode=None,  # rich cuts names of options, and breaks examples so that they cannot be pasted
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERBS: dict[str, Any] = {
    "demo": runs.demo,
    "check": looks.check,
    "init": advise.init,
    "advise": advise.advise,
    "convert": convert.convert,
    "plan": plan.plan,
    "train": runs.train,
    "submit": submit.submit,
    "compare": experiments.compare,
    "sweep": experiments.sweep,
    "dash": looks.dash,
    "track": looks.track,
    "resume": runs.resume,
    "replay": runs.replay,
    "eval": models.evaluate,
    "chat": models.chat,
    "explain": looks.explain,
    "explore": looks.explore,
    "data": data.data_app,
    "reward": reward.reward_app,
    "export": models.export,
    "engine": engine.engine_app,
}
WITHOUT_ARGUMENTS = ("demo", "check", "init", "advise", "dash", "track", "explain", "explore")
"""Verbs that run without arguments. The other verbs show their help instead."""
TAKES_SETTINGS = ("train", "submit", "plan", "replay")
"""Verbs that read `--train.steps 5` as a setting and not as an unknown option."""
KINDS = {"advise": advise.AdviseCommand}
"""Classes of commands other than typer's."""
for name, verb in VERBS.items():
    if isinstance(verb, typer.Typer):
        app.add_typer(verb, name=name)
    else:
        unknown, kind = {"ignore_unknown_options": name in TAKES_SETTINGS}, KINDS.get(name)
        app.command(name, cls=kind, context_settings=unknown, no_args_is_help=name not in WITHOUT_ARGUMENTS)(verb)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"posttrain {posttrain.__version__}")
        raise typer.Exit


@app.callback()
def before_every_verb(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Options of `posttrain` itself."""


def main() -> None:
    """Run this process's command line and exit with the code that says what happened."""
    if COMPLETE in os.environ:  # the shell asks for completions
        defer("torch")
        _command().main(prog_name="posttrain")
    hear_interrupts_again()
    code = run(sys.argv[1:])
    with suppress(ConfigError):  # the variables that describe a rank are wrong; `run` has reported it
        if place_of_process() is not None:
            leave(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Every error is reported, none is raised."""
    silence_libraries()
    defer("torch")
    as_json = "--json" in arguments
    try:
        with terminated_as_interrupted():
            return _invoke(arguments)
    except typer.Exit as stop:
        return stop.exit_code
    except UsageError as error:
        return _report("UsageError", _usage(error), 2, as_json)
    except PosttrainError as error:
        return _report(type(error).__name__, str(error), error.exit_code, as_json, notes=_notes(error))
    except (KeyboardInterrupt, typer.Abort) as error:
        code = 1 if isinstance(error, typer.Abort) else getattr(error, "exit_code", INTERRUPTED)
        return _report(
            "Interrupted", str(error) or "stopped before it was finished", code, as_json, notes=_notes(error)
        )
    except BrokenPipeError:  # the reader of the pipe, such as head, has closed it
        _leave_stdout()
        return 1
    except OSError as error:
        told = refusal(error, arguments)
        if told is None:
            return _fault(error, as_json)
        return _report(type(told).__name__, str(told), told.exit_code, as_json, notes=_notes(error))
    except Exception as error:
        return _fault(error, as_json)


def _invoke(arguments: Sequence[str]) -> int:
    """Invoke the command, but not by click's `main`: it would turn Ctrl-C into a bare exit code without our notes."""
    command = _command()
    try:
        with command.make_context("posttrain", list(arguments)) as context:
            return command.invoke(context) or 0
    except UsageError as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            raise
        typer.echo(error.format_message())  # the help of a verb that was given no argument
        return 2


@functools.cache
def _command() -> Any:
    """Return the command of all verbs. Building it takes a tenth of a second, and a program may call `run` often."""
    return _with_whole_summaries(typer.main.get_command(app))


def _with_whole_summaries(group: Any) -> Any:
    """Return the group, whose help lists the whole first paragraph of each verb. By default, it is cut to a line."""
    for command in group.commands.values():
        command.short_help = " ".join(inspect.cleandoc(command.help).split("\n\n")[0].split())
        if hasattr(command, "commands"):
            _with_whole_summaries(command)
    return group


def _usage(error: Any) -> str:
    path = error.ctx.command_path if error.ctx is not None else "posttrain"
    return f"{error.format_message()}\n  `{path} --help` shows what there is, with examples."


def _notes(error: BaseException) -> list[str]:
    """Return the notes that `posttrain.train.api` adds to an error: where the run is and how to continue it."""
    return list(getattr(error, "__notes__", []))


def _fault(error: Exception, as_json: bool) -> int:
    print(traceback.format_exc(), file=sys.stderr)
    advice = "This is a bug in posttrain or in code that it called; the traceback is above."
    return _report(type(error).__name__, f"{error}\n  {advice}", 1, as_json, notes=_notes(error))


def _report(kind: str, message: str, exit_code: int, as_json: bool, notes: Sequence[str] = ()) -> int:
    """Print an error to stderr, and with --json also as an object on stdout, so that a program can read it."""
    print("\n".join([f"{kind}: {message}", *notes]), file=sys.stderr)
    try:
        if as_json:
            said = {"type": kind, "message": message, "notes": list(notes), "exit_code": exit_code}
            print(json.dumps({"error": said}))
        if sys.stdout is not None:  # None if stdout was closed before the start: >&-
            sys.stdout.flush()
    except OSError:  # the error may be a full disk to which stdout is redirected
        _leave_stdout()
    return exit_code


def _leave_stdout() -> None:
    """Point stdout at the null device: its buffered text cannot be written, and Python would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
