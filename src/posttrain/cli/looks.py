"""`posttrain check`, `explain`, `explore`, `dash` and `track`: verbs that show things and train nothing."""

from __future__ import annotations

import atexit
import sys
import webbrowser
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

import typer

from posttrain.cli.output import AsJson, algorithm_names, answer


def explain(
    algorithm: Annotated[
        str | None,
        typer.Argument(
            metavar="[ALGO]", help="Name, such as grpo. Without a name, lists all.", autocompletion=algorithm_names
        ),
    ] = None,
    json: AsJson = False,
) -> int:
    """Explain an algorithm: formula, needs, settings with the source of each default, paper.

    \b
    Examples:
      posttrain explain
      posttrain explain grpo
      posttrain explain "Dr. GRPO" --json
      posttrain explain correction
    """
    from posttrain.algorithms import ALGORITHMS
    from posttrain.explain import explain as explain_algorithm
    from posttrain.explain.correction import correction_page, is_correction

    if algorithm is None:
        summaries = {key: _summary(key) for key in ALGORITHMS}
        width = max(map(len, summaries))
        answer(summaries, "\n".join(f"{key:<{width}}  {text}" for key, text in summaries.items()), as_json=json)
        return 0
    if is_correction(algorithm):
        page = correction_page()
        answer({"page": page}, page, as_json=json)
        return 0
    explanation = explain_algorithm(algorithm)
    answer(explanation.to_json(), explanation.render(), as_json=json)
    return 0


def _summary(key: str) -> str:
    """Return the algorithm's summary, or for a broken plugin the reason why it cannot be loaded."""
    from posttrain.algorithms import ALGORITHMS
    from posttrain.errors import PluginError

    try:
        return ALGORITHMS[key].card.summary
    except PluginError as error:
        return f"BROKEN: {error.given}"


# --- check -----------------------------------------------------------------------------------------------------------


def check(json: AsJson = False) -> int:
    """Check this environment against the tested versions: OK, WARN or FAIL, and the command that fixes it.

    \b
    Examples:
      posttrain check
      posttrain check --json
    """
    from posttrain.environment import check_environment

    report = check_environment()
    answer(report.to_json(), report.render(), as_json=json)
    return 0 if report.usable else 1


# --- explore ---------------------------------------------------------------------------------------------------------


def explore(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write the page to.")] = Path(
        "explore.html"
    ),
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    json: AsJson = False,
) -> int:
    """Write the algorithm explorer, one page: models, memory and design choices of every algorithm, and the advisor.

    The page needs no network and no server. Its numbers come from `posttrain plan`.

    \b
    Examples:
      posttrain explore
      posttrain explore --open
      posttrain explore --out algorithms.html --json
    """
    from posttrain.lab.explore import write_page

    path = write_page(out).absolute()
    if open_it:
        webbrowser.open(path.as_uri())
    answer({"page": str(path), "bytes": path.stat().st_size}, f"page       {path}", as_json=json)
    return 0


# --- dash ------------------------------------------------------------------------------------------------------------


def dash(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of one run, or of runs at any depth.")
    ] = Path("runs"),
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.", show_default="8765 or the next"),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the dashboard in the browser.")] = False,
    json: AsJson = False,
) -> int:
    """Show all runs in the browser: their reports, plots side by side, every answer.

    The dashboard only reads files, so it does not disturb training. Only this machine can connect, and only with the
    printed address. To connect from another machine, run ssh -L 8765:127.0.0.1:8765 MACHINE there. Ctrl-C stops it.

    \b
    Examples:
      posttrain dash
      posttrain dash runs/ --open
      posttrain dash sweeps/second --port 9000
    """
    from posttrain.report.dashboard.server import Dashboard

    board = Dashboard(folder, port)
    found = {"address": board.address, "port": board.port, "folder": str(folder.absolute())}
    answer(found, f"dashboard  {board.address}\n           Ctrl-C stops it", as_json=json)
    sys.stdout.flush()
    if open_it:
        webbrowser.open(board.address)
    board.serve()
    return 0


# --- track -----------------------------------------------------------------------------------------------------------


def track(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    to: Annotated[Literal["tensorboard", "trackio", "wandb"], typer.Option(help="Tracker to send the run to.")],
    json: AsJson = False,
) -> int:
    """Send a run to TensorBoard, Trackio or Weights & Biases: a finished run, or a live one until it ends.

    The command reads the files of the run and sends only data that the tracker does not have yet, so you can run it
    again. With the setting report_to, a run sends its data itself.

    \b
    Examples:
      posttrain track runs/first --to tensorboard
      WANDB_PROJECT=sums posttrain track runs/first --to wandb
    """
    from posttrain.report.tracking.follow import follow
    from posttrain.report.tracking.trackers import require

    require([to])
    with redirect_stdout(sys.stderr):  # the trackers' packages print
        sent = follow(folder, to)
    atexit.register(setattr, sys, "stdout", sys.stderr)  # they also print when the process exits, after the answer
    found = {"run": str(folder), "tracker": to, "id": sent.id, "step": max(sent.step, 0), "where": sent.where}
    answer(found, f"sent       {folder}, up to step {max(sent.step, 0)}\nsee        {sent.where}", as_json=json)
    return 0
