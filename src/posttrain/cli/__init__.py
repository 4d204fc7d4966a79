"""The command line: one file per verb, each a thin layer over a function of the Python API.

Exit codes: 0 it worked, 2 configuration or data, 3 does not fit, 4 stopped by a guard, 1 anything else.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence

import click
import typer

from posttrain.cli import chat, check, data, demo, evaluate, explain, resume, train
from posttrain.errors import PosttrainError

app = typer.Typer(
    name="posttrain",
    help="Post-train language models by reinforcement learning and preference optimisation, with a proof at every "
    "stage.\n\nStart with: posttrain demo",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (demo, check, train, resume, evaluate, chat, explain, data):
    verb.register(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with the code that says what happened."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(arguments))


def run(arguments: Sequence[str]) -> int:
    as_json = "--json" in arguments
    try:
        result = app(args=list(arguments), standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except PosttrainError as error:
        _report(type(error).__name__, str(error), error.exit_code, as_json)
        return error.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        _report("Interrupted", "Stopped by Ctrl-C.", 1, as_json)
        return 1
    except Exception as error:
        _report(
            type(error).__name__,
            f"{error}\n  This is a fault in posttrain or in code that it called; the traceback is above.",
            1,
            as_json,
            trace=traceback.format_exc(),
        )
        return 1


def _report(kind: str, message: str, exit_code: int, as_json: bool, trace: str = "") -> None:
    """Errors go to stderr; with --json also as an object on stdout, so that a program can read what happened."""
    if trace:
        print(trace, file=sys.stderr)
    print(f"{kind}: {message}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": {"type": kind, "message": message, "exit_code": exit_code}}))
