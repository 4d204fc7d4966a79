"""The check that a resumed run still finds the model that it was started with, if later steps depend on that model.

Trained weights come from the checkpoint. The base of adapters and the reference are read again from model.path. If that
path has a different model by then (trained again, or a new revision on the Hub), the run would use it without notice.
The same adapters on a different base are a different model. So start.json in the run's folder keeps a hash of the first
model:

    {"sha256": ...,     hash of the names and shapes of all weights, and of some numbers of each
     "reference": ...,  the same of the model of the section `reference`, if there is one
     "teacher": ...}

A reference and a teacher are read again, too. If they are sharded over ranks, their weights are known only in the
precision of the computation; the name of the precision comes first then, and only hashes of the same kind are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.errors import ModelError
from posttrain.models.identity import start_key
from posttrain.store.folders import settings_of

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm
    from posttrain.config import RunConfig
    from posttrain.models.load import LoadedModel
    from posttrain.train.run import Run

FILE = "start.json"
MODEL = "sha256"
"""The entry of model.path. Models beside it are entered by the name of their section: reference, teacher."""


def put_on_file(run: Run) -> None:
    """Write start.json at the start of a run, before anything is trained."""
    run.store.record(FILE, keys_of(run))


def keys_of(run: Run) -> dict[str, str]:
    """The hash of the first model, and of each frozen model that the config names beside it."""
    return {MODEL: start_key(run.trainer.loaded.model), **keys_beside(run.config, run.trainer.loaded)}


def keys_beside(config: RunConfig, loaded: LoadedModel) -> dict[str, str]:
    """The hash of each frozen model that the config names, by its section."""
    return {section: key() for section, key in loaded.beside.items() if getattr(config, section, None)}


def check_same(run: Run) -> None:
    """Raise ModelError if another model would change later steps. Called before a checkpoint is restored.

    What a run of an earlier version has left out of its start.json is added now."""
    before = run.store.read_record(FILE)
    if before is None:
        put_on_file(run)
        return
    now = keys_of(run)
    role = role_of_start(run.config, run.trainer.algorithm)
    if role and before.get(MODEL) != now[MODEL]:
        raise other_model("model", run.config, run.folder, f", {role}")
    check_beside(before, now, run.config, run.folder)
    if now.keys() - before.keys():
        run.store.record(FILE, {**now, **before})


def _differ(before: object, now: str) -> bool:
    """Are these hashes of different models? Unknown, so false, if one is missing or they are of different kinds."""
    if not isinstance(before, str) or len(before.split()) != len(now.split()):
        return False
    return before.split()[:-1] == now.split()[:-1] and before != now


def check_beside(before: Mapping[str, Any], now: Mapping[str, str], config: RunConfig, folder: Path) -> None:
    """Raise ModelError if a frozen model is another than start.json, `before`, has."""
    for section in now.keys() - {MODEL}:
        if _differ(before.get(section), now[section]):
            raise other_model(section, config, folder)


def other_model(section: str, config: RunConfig, folder: Path, role: str = "") -> ModelError:
    error = ModelError(
        given=f"{section}.path = {getattr(config, section).path!r} holds another model than the run started with{role}",
        allowed="the same weights, in any folder",
        fix=f"Restore that model, or write its new path into {settings_of(folder)}. Or start a new run with the "
        "model folder of the newest checkpoint as model.path.",
    )
    error.is_lasting = True
    return error


def role_of_start(config: RunConfig, algorithm: Algorithm) -> str:
    """The role of the first model in later steps; empty if everything comes from the checkpoint."""
    if config.lora is not None:
        return "which is the base of its adapters"
    return "which is its reference" if "reference" in algorithm.needs and config.reference is None else ""
