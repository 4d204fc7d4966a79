"""`posttrain track RUN --to TRACKER`"""

from __future__ import annotations

import atexit
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

import typer

from posttrain.cli.output import AsJson, answer


def register(app: typer.Typer) -> None:
    app.command("track")(track)


def track(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    to: Annotated[Literal["tensorboard", "trackio", "wandb"], typer.Option(help="The tracker that is told.")],
    json: AsJson = False,
) -> int:
    """Send a run to TensorBoard, Trackio or Weights & Biases: one that is over, or one that goes on, until it ends.

    It reads the files of the run and sends what the tracker does not know yet, so it can be called again. A run sends
    itself with the setting report_to.

    \b
    Examples:
      posttrain track runs/first --to tensorboard
      WANDB_PROJECT=sums posttrain track runs/first --to wandb
    """
    from posttrain.report.tracking.follow import follow
    from posttrain.report.tracking.trackers import require

    require([to])
    with redirect_stdout(sys.stderr):  # their packages print
        sent = follow(folder, to)
    atexit.register(setattr, sys, "stdout", sys.stderr)  # and print at the end of the process, after the answer
    found = {"run": str(folder), "tracker": to, "id": sent.id, "step": max(sent.step, 0), "where": sent.where}
    answer(found, f"sent       {folder}, up to step {max(sent.step, 0)}\nsee        {sent.where}", as_json=json)
    return 0
