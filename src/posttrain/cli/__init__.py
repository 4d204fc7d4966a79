"""The command line: verbs, each a thin layer over a function of the Python API.

Exit codes: 0 it worked, 2 configuration or data, 3 does not fit, 4 stopped by a guard or not the same in a replay, 130
stopped by Ctrl-C, 143 by SIGTERM, 1 anything else. With `--json` stdout carries exactly one JSON object, whatever
happens; everything that is meant for people goes to stderr.
"""

from __future__ import annotations

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

UsageError: Any = typer.BadParameter.__base__
"""The error of click for a command line that cannot be parsed; newer releases of typer contain their own click."""

INTERRUPTED = 128 + signal.SIGINT
"""As shells count it; `posttrain.train.api` says 143 of a SIGTERM."""

COMPLETE = "_POSTTRAIN_COMPLETE"
"""Set by the scripts of `--install-completion`."""

app = typer.Typer(
    name="posttrain",
    help="Post-train language models by reinforcement learning and preference optimisation, with a proof at every "
    "stage.\n\n\b\nExamples:\n  posttrain demo\n  posttrain train my_run.yaml train.steps=20\n"
    "  posttrain VERB --help",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERBS: dict[str, Any] = {
    "demo": runs.demo,
    "check": looks.check,
    "init": advise.init,
    "advise": advise.with_facts(advise.advise),
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
"""Verbs that do something as they are; the others then show their help."""
TAKES_SETTINGS = ("train", "submit", "plan", "replay")
"""Verbs to which `--train.steps 5` is a setting, not an unknown option."""
for name, verb in VERBS.items():
    if isinstance(verb, typer.Typer):
        app.add_typer(verb, name=name)
    else:
        unknown = {"ignore_unknown_options": name in TAKES_SETTINGS}
        app.command(name, context_settings=unknown, no_args_is_help=name not in WITHOUT_ARGUMENTS)(verb)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"posttrain {posttrain.__version__}")
        raise typer.Exit


@app.callback()
def before_every_verb(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Options of `posttrain` itself."""


def main() -> None:
    """Run the command of this process and exit with the code that says what happened."""
    if COMPLETE in os.environ:  # the shell asks how the words so far may go on
        defer("torch")
        typer.main.get_command(app).main(prog_name="posttrain")
    hear_interrupts_again()
    code = run(sys.argv[1:])
    with suppress(ConfigError):  # said in vain that this process is a rank
        if place_of_process() is not None:
            leave(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Whatever goes wrong is reported, never raised."""
    silence_libraries()
    defer("torch")
    as_json = "--json" in arguments
    try:
        return _invoke(arguments)
    except typer.Exit as stop:
        return stop.exit_code
    except UsageError as error:
        return _report("UsageError", _usage(error), 2, as_json) if error.format_message() else 2
    except PosttrainError as error:
        return _report(type(error).__name__, str(error), error.exit_code, as_json, notes=_notes(error))
    except (KeyboardInterrupt, typer.Abort) as error:
        code = 1 if isinstance(error, typer.Abort) else getattr(error, "exit_code", INTERRUPTED)
        return _report(
            "Interrupted", str(error) or "stopped before it was finished", code, as_json, notes=_notes(error)
        )
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
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
    """Without the `main` of click, which turns a Ctrl-C into an exit code before anyone can say where the run is."""
    command = typer.main.get_command(app)
    with command.make_context("posttrain", list(arguments)) as context:
        return command.invoke(context) or 0


def _usage(error: Any) -> str:
    path = error.ctx.command_path if error.ctx is not None else "posttrain"
    return f"{error.format_message()}\n  `{path} --help` shows what there is, with examples."


def _notes(error: BaseException) -> list[str]:
    """Where the run is and how to go on; added by `posttrain.train.api` on the way out."""
    return list(getattr(error, "__notes__", []))


def _fault(error: Exception, as_json: bool) -> int:
    print(traceback.format_exc(), file=sys.stderr)
    advice = "This is a fault in posttrain or in code that it called; the traceback is above."
    return _report(type(error).__name__, f"{error}\n  {advice}", 1, as_json, notes=_notes(error))


def _report(kind: str, message: str, exit_code: int, as_json: bool, notes: Sequence[str] = ()) -> int:
    """Errors go to stderr; with --json also as an object on stdout, so that a program can read what happened."""
    print("\n".join([f"{kind}: {message}", *notes]), file=sys.stderr)
    try:
        if as_json:
            said = {"type": kind, "message": message, "notes": list(notes), "exit_code": exit_code}
            print(json.dumps({"error": said}))
        if sys.stdout is not None:  # it was closed before the start: >&-
            sys.stdout.flush()
    except OSError:  # a full disk behind a redirected stdout may be what the error is about
        _leave_stdout()
    return exit_code


def _leave_stdout() -> None:
    """Whatever is left to be written there cannot be; without this Python would fail of it once more at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
