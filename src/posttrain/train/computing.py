"""How a run computes: the choice is made before the first step, kept in the run's folder, and kept on resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from posttrain.config import RunConfig
from posttrain.models.compiled import layers_compiled
from posttrain.models.compute import FILE, Compute, choose_compute, has_bfloat16
from posttrain.models.load import LoadedModel
from posttrain.train.rounding import lost, told


def with_compute(loaded: LoadedModel, config: RunConfig, folder: Path | None, *, decodes: bool = True) -> LoadedModel:
    """The model with the way to compute that the run in `folder` has chosen.

    If the folder has no choice that is valid on this machine, it is made now and written there. Without a folder it
    holds for this call only. `decodes`: whether the model generates answers. `auto` is float32 for a run that begins on
    a CPU and whose updates would be lost in bfloat16. If such a run computes in bfloat16 anyway, it warns at every
    start. A run with checkpoints but no choice comes from an earlier version: it continues with the model as loaded.
    Raises CheckpointError for a choice that cannot be read.
    """
    path, asked = None if folder is None else folder / FILE, config.model.precision
    saved, found = None if path is None else Compute.read(path), lost(config, loaded)
    if folder is not None and saved is None and any(folder.glob("checkpoints/*")):
        warnings = told(found, asked, loaded.compute_dtype, exact=False)
        return replace(loaded, notes=(*loaded.notes, *warnings))
    exact = found is not None and saved is None and asked == "auto" and loaded.device.type == "cpu"
    chosen = choose_compute(loaded.model, asked, saved=saved, exact=exact, decodes=decodes, device=loaded.device)
    if path is not None and (chosen.machine or exact) and chosen != saved:
        chosen.write(path)
    notes = [*_moved(saved, chosen), *told(found, asked, chosen.dtype, exact=exact), *_slow(chosen, loaded.device)]
    return replace(loaded, compute=chosen, notes=(*loaded.notes, *notes))


def _moved(saved: Compute | None, chosen: Compute) -> list[str]:
    """A note if a resumed run cannot continue bit for bit, because the machine or the compiler has changed."""
    if saved is None or (saved.machine, saved.compiler) == (chosen.machine, chosen.compiler):
        return []
    there, here = (_where(compute) or "a machine where nothing is measured" for compute in (saved, chosen))
    return [
        f"the run computed in {saved.describe()} on {there} and continues in {chosen.describe()} on {here}: its "
        "numbers will differ in their last bits from those of the first machine"
    ]


def _slow(chosen: Compute, device: torch.device) -> list[str]:
    """A note for a run in bfloat16 on a processor that has no instructions for it."""
    if chosen.dtype != torch.bfloat16 or device.type != "cpu" or has_bfloat16():
        return []
    return [
        "model.precision is bfloat16, but this processor has no bfloat16 instructions: a matrix product can take 50 "
        "times as long as in float32. Set model.precision=auto"
    ]


def _where(compute: Compute) -> str:
    return ", ".join(filter(None, [compute.machine, compute.compiler]))


def compute_facts(loaded: LoadedModel) -> list[str]:
    """Notes for the user about the measured choice and about compilation; empty if there was neither."""
    chosen = loaded.compute
    measured = [f"{chosen.describe()} ({chosen.why})"] if chosen.why else []
    layers = layers_compiled(loaded.model)
    return measured + (
        [f"torch.compile generates code for {layers} decoder layers as they first run"] if layers else []
    )
