"""The reference page docs/cli.md, written from the verbs themselves: `python -m posttrain.cli.page > docs/cli.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from posttrain.cli import app

_HEAD = """\
# Command line

This page is written from the verbs in `src/posttrain/cli/` by `python -m posttrain.cli.page`; a test compares the two.
`posttrain` and `python -m posttrain` are the same; `posttrain VERB --help` shows what stands here.

| exit code | meaning |
| --- | --- |
| 0 | it worked |
| 1 | anything else: a fault, a checkpoint that cannot be read, an environment that cannot be used |
| 2 | settings, data, a model or the command line itself; [bad inputs](bad-inputs.md) shows what is said |
| 3 | it does not fit: memory or disk |
| 4 | a guard stopped the run, because going on would have given a wrong or a useless model |
| 130 | Ctrl-C stopped it |
| 143 | SIGTERM stopped it, as orchestrators send it; the run was saved first, like after Ctrl-C |

**For programs.** With `--json` stdout carries exactly one JSON object, also when something went wrong
(`{"error": {"type", "message", "notes", "exit_code"}}`); progress and messages are on stderr. Nothing needs a terminal:
without one there is one plain line per step. `NO_COLOR=1` switches colours off.

**Settings.** `train` takes every setting of the [configuration](config.md) as `section.key=value`,
`--section.key=value` or `--section.key value`, before or behind the file; `-` may stand for `_`, and the value is read
as YAML. `--dry-run` prints what the run would use and where each value comes from.

**Stopping.** The first Ctrl-C (or SIGTERM) lets the step finish and saves a checkpoint, the second stops at once.
`posttrain resume` goes on from the newest checkpoint that verifies; on a CPU the weights end up the same bit for bit.

**Completion.** `posttrain --install-completion` sets it up for the shell that you use, and `--show-completion` prints
the script. Verbs, options, names of algorithms (`explain`) and settings (`train CONFIG`) are completed.

**Quiet.** Progress bars and notes of other libraries are switched off, except for downloads on a terminal; a variable
of theirs that is set, such as `TRANSFORMERS_VERBOSITY=info`, is respected. Models and datasets of the Hugging Face Hub
are kept where `HF_HOME` says, and `HF_HUB_OFFLINE=1` keeps to them. `POSTTRAIN_CACHE` is where the built-in tiny models
are kept.
"""


def cli_page() -> str:
    """The whole page, as Markdown."""
    root = typer.main.get_command(app)
    return "\n".join([_HEAD, *(_section(name, command) for name, command in _verbs(root, ""))])


def _verbs(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _verbs(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _section(name: str, command: Any) -> str:
    described, _, examples = inspect.cleandoc(command.help).partition("\b\nExamples:\n")
    parameters = [_parameter(parameter) for parameter in command.params if parameter.name != "help"]
    return "\n".join(
        [
            f"## posttrain {name}\n",
            described.strip() + "\n",
            f"```bash\n{inspect.cleandoc(examples)}\n```\n",
            "| argument | default | meaning |\n| --- | --- | --- |",
            *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in parameters),
            "",
        ]
    )


def _parameter(parameter: Any) -> tuple[str, str, str]:
    """How it is written, its default and its help."""
    given = parameter.default is not None and parameter.default is not False
    default = "required" if parameter.required else f"`{parameter.default}`" if given else ""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}`", default, parameter.help
    return f"`{', '.join(sorted(parameter.opts, key=len, reverse=True))}`", default, parameter.help


if __name__ == "__main__":
    print(cli_page(), end="")
