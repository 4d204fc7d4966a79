"""How a run computes: chosen before its first step, kept in its folder, and the same when it is resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from posttrain.config import RunConfig
from posttrain.models.compiled import layers_compiled
from posttrain.models.compute import FILE, Compute, choose_compute
from posttrain.models.load import LoadedModel
from posttrain.train.rounding import lost, told


def with_compute(loaded: LoadedModel, config: RunConfig, folder: Path | None, *, decodes: bool = True) -> LoadedModel:
    """The model with the choice of the run in `folder`, made now and written there if there is none that holds here.

    Without a folder it is made for this call. `decodes`: whether it is a model that answers. `auto` is float32 for a
    run that begins on a CPU and whose updates bfloat16 would lose. If such a run computes in bfloat16 all the same, it
    warns at every start. A run that has checkpoints and no choice began without one, in an earlier version: it goes on
    in the plain way, as it is loaded. Raises CheckpointError for a choice that cannot be read.
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
    notes = [*_moved(saved, chosen), *told(found, asked, chosen.dtype, exact=exact)]
    return replace(loaded, compute=chosen, notes=(*loaded.notes, *notes))


def _moved(saved: Compute | None, chosen: Compute) -> list[str]:
    """What to know of a run that does not go on bit by bit, because it was chosen elsewhere or kernels are gone."""
    if saved is None or (saved.machine, saved.compiler) == (chosen.machine, chosen.compiler):
        return []
    there, here = (_where(compute) or "a machine where nothing is measured" for compute in (saved, chosen))
    return [
        f"the run computed in {saved.describe()} on {there} and continues in {chosen.describe()} on {here}: its "
        "numbers will not be bit for bit those of the first machine"
    ]


def _where(compute: Compute) -> str:
    return ", ".join(filter(None, [compute.machine, compute.compiler]))


def compute_facts(loaded: LoadedModel) -> list[str]:
    """A note for the user about measurements and compilation; empty if there were none."""
    chosen = loaded.compute
    measured = [f"{chosen.describe()} ({chosen.why})"] if chosen.why else []
    layers = layers_compiled(loaded.model)
    return measured + (
        [f"torch.compile generates code for {layers} decoder layers as they first run"] if layers else []
    )
