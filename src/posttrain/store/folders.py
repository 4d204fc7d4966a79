"""Finds the model or the run to suggest, if a user gives a folder that holds one where another kind is needed.

It reads only names and pipeline.json. The code that reads a checkpoint checks whether it is intact.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from posttrain.errors import ModelError
from posttrain.shown import shown

SETTINGS, PROGRESS = "pipeline.yaml", "pipeline.json"
NAMED = 5
"""Most runs that an error names."""


def is_pipeline(folder: Path) -> bool:
    return (folder / PROGRESS).is_file() and (folder / SETTINGS).is_file()


def pipeline_around(run: Path) -> Path | None:
    """Return the folder of the pipeline that has this run as a stage; None if it belongs to none."""
    parent = run.resolve().parent
    return parent if is_pipeline(parent) else None


def settings_of(run: Path) -> str:
    """Return the file in which the settings of a run are changed. For a stage these are two, which must agree.

    >>> settings_of(Path("runs/dpo-1"))
    'runs/dpo-1/config.yaml'
    """
    pipeline = pipeline_around(run)
    return f"{run / 'config.yaml'}{'' if pipeline is None else f' and {pipeline / SETTINGS}'}"


def finished_stages(pipeline: Path) -> list[Path]:
    """Return the run folders of the finished stages, in order: the existing ones, or all of them if none exists. Empty
    if no stage has finished, or if pipeline.json cannot be read."""
    try:
        stages = json.loads((pipeline / PROGRESS).read_text(encoding="utf-8"))["stages"]
        finished = [pipeline / stage["folder"] for stage in stages if stage["status"] == "finished"]
        finished = [folder for folder in finished if folder.parent == pipeline]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [folder for folder in finished if folder.is_dir()] or finished


def last_stage(pipeline: Path) -> Path:
    """Return the run folder of the last stage. Raises ModelError if it is not finished, and names the finished ones."""
    try:
        entries = json.loads((pipeline / PROGRESS).read_text(encoding="utf-8"))["stages"]
        last, is_done = pipeline / entries[-1]["folder"], entries[-1]["status"] == "finished"
    except (OSError, ValueError, LookupError, TypeError):
        last, is_done = pipeline, False
    if is_done and last.parent == pipeline and last.is_dir():
        return last
    stages = [repr(str(stage)) for stage in finished_stages(pipeline)]
    which = "its last stage" if stages else "no stage of it"
    raise ModelError(
        given=f"{pipeline} is the folder of a pipeline, and {which} has {'not ' if stages else ''}finished yet",
        allowed="a model folder, or the folder of a run or of a finished pipeline",
        fix=f"Give the folder of a finished stage: {' or '.join(stages)}; or run `posttrain resume {shown(pipeline)}`."
        if stages
        else f"`posttrain resume {shown(pipeline)}` continues it.",
    )


def newest_model(run: Path) -> Path | None:
    """Return the model folder of the newest checkpoint, by folder names only; None if there is none."""
    models = [file.parent for file in run.glob("checkpoints/step-*/model/config.json")]
    steps = {int(name): model for model in models if (name := model.parent.name.removeprefix("step-")).isdecimal()}
    return steps[max(steps)] if steps else None


def model_to_give(folder: Path) -> str:
    """Return a sentence that names the trained model of the run or pipeline in this folder; "" for any other folder.

    >>> model_to_give(Path("runs/none"))
    ''
    """
    if is_pipeline(folder):
        runs, whose = finished_stages(folder), "a finished stage of the pipeline in this folder"
        if not runs:
            return f"No stage of the pipeline in this folder has finished yet; {_go_on(folder)}"
    elif (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir():
        runs, whose = [folder], "the run in this folder"
    else:
        return ""
    models = [repr(str(model)) for run in runs if (model := newest_model(run)) is not None]
    if not models:
        return f"There is no checkpoint yet of {whose}; {_go_on(folder)}"
    return f"Give {' or '.join(models)}, the newest checkpoint of {whose}."


def refuse_several_runs(folder: Path) -> None:
    """Raise ModelError for the folder of a comparison or a sweep, or for another one whose subfolders are runs.

    It names the runs that have a checkpoint. A folder with a model passes, whatever else it holds.
    """
    runs = sorted(file.parent for place in ("*", "runs/*", "trials/*") for file in folder.glob(f"{place}/config.yaml"))
    if not runs or any(next(folder.glob(name), None) for name in ("config.json", "adapter_config.json", "*.gguf")):
        return
    sweep = (folder / "study.db").is_file()
    kind = "a comparison" if (folder / "compare.yaml").is_file() else "a sweep" if sweep else "several runs"
    raise ModelError(
        given=f"{folder} is the folder of {kind}",
        allowed="a model folder, or the folder of a run or of a finished pipeline",
        fix=_best_of_sweep(folder) if sweep else _named_runs([run for run in runs if newest_model(run) is not None]),
    )


def _named_runs(runs: Sequence[Path]) -> str:
    if not runs:
        return "No run in it has saved a checkpoint."
    return f"Name {' or '.join([*map(str, runs[:NAMED]), *(['another run in it'] if len(runs) > NAMED else [])])}."


def _best_of_sweep(folder: Path) -> str:
    best = folder / "best.yaml"
    keeps = "A sweep keeps no model of its trials"
    return f"{keeps}: `posttrain train {shown(best)}` trains the best one." if best.is_file() else f"{keeps}."


def _go_on(folder: Path) -> str:
    return f"`posttrain resume {shown(folder)}` continues it."
