"""`posttrain convert FILE`: turn a script of TRL or a config of verl into a config of posttrain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.output import AsJson, answer


def _forms(incomplete: str) -> list[str]:
    """Return the trainers that complete a word (for shell completion)."""
    from posttrain.lab.convert.records import VERBS

    return [verb for verb in VERBS if verb.startswith(incomplete)]


def convert(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Python script, YAML file, or shell script with the command.")
    ],
    to: Annotated[Path | None, typer.Option(help="Write the config to this file; it must not exist yet.")] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--as", help="Algorithm of the file, if it does not say so: grpo, dpo, sft ...", autocompletion=_forms
        ),
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Number of training rows, to turn epochs into steps.")] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Number of processes of the other library. Default: what FILE says, else 1."),
    ] = None,
    json: AsJson = False,
) -> int:
    """Convert a TRL or verl config to a posttrain config, with a comment for every difference.

    A script is parsed, never run. The end of the file lists the settings that have no counterpart.

    \b
    Examples:
      posttrain convert train_grpo.py
      posttrain convert train_dpo.py --rows 60000 --devices 8 --to run.yaml
      posttrain convert sft_config.yaml --as sft
      posttrain convert run_qwen_gsm8k.sh --to run.yaml
    """
    from posttrain.lab.convert import convert as convert_file
    from posttrain.lab.convert import write

    conversion = convert_file(file, form=form or "", rows=rows, devices=devices)
    if to is not None:
        write(conversion, to)
    print(conversion.summary(to), file=sys.stderr)
    answer(conversion.to_json(), "" if to else conversion.text.rstrip("\n"), as_json=json)
    return 0
