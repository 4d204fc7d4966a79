"""The check that a resumed run still finds the model that it was started with, if later steps depend on that model.

Trained weights come from the checkpoint. The base of adapters and the reference are read again from model.path. If that
path has a different model by then (trained again, or a new revision on the Hub), the run would use it without notice.
The same adapters on a different base are a different model. So start.json in the run's folder keeps a hash of the first
model:

    {"sha256": ...}     hash of the names and shapes of all weights, and of some numbers of each
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import nn

from posttrain.errors import ModelError
from posttrain.models.entering import whole
from posttrain.models.forward_path import without_adapters

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm
    from posttrain.config import RunConfig
    from posttrain.train.run import Run

FILE = "start.json"
NUMBERS = 256
"""Hashed numbers per weight, evenly spread. Training changes nearly all numbers, and hashing all takes minutes."""


def put_on_file(run: Run) -> None:
    """Write start.json at the start of a run, before anything is trained."""
    run.store.record(FILE, {"sha256": start_key(run.trainer.loaded.model)})


def check_same(run: Run) -> None:
    """Raise ModelError if another model would change later steps. Called before a checkpoint is restored.

    A run of an earlier version gets its start.json now."""
    before = run.store.read_record(FILE)
    if before is None:
        put_on_file(run)
        return
    role = role_of_start(run.config, run.trainer.algorithm)
    if role and before.get("sha256") != start_key(run.trainer.loaded.model):
        raise ModelError(
            given=f"model.path = {run.config.model.path!r} holds another model than the run started with, {role}",
            allowed="the same weights, in any folder",
            fix=f"Restore that model, or write its new path into {run.folder}/config.yaml. Or start a new run "
            "with the model folder of the newest checkpoint as model.path.",
        )


def role_of_start(config: RunConfig, algorithm: Algorithm) -> str:
    """The role of the first model in later steps; empty if everything comes from the checkpoint."""
    if config.lora is not None:
        return "which is the base of its adapters"
    return "which is its reference" if "reference" in algorithm.needs and config.reference is None else ""


@torch.no_grad()
def start_key(model: nn.Module) -> str:
    """Hash of a model whose weights have not changed since they were read; with adapters, the hash of the base."""
    digest = hashlib.sha256()
    for name in sorted(state := without_adapters(model).state_dict(keep_vars=True)):
        if "lora_" in name:
            continue
        tensor = whole(state[name])
        digest.update(f"{name.replace('.base_layer', '')} {tensor.dtype} {list(tensor.shape)}".encode())
        some = tensor.detach().reshape(-1)[:: max(1, tensor.numel() // NUMBERS)].cpu().contiguous()
        digest.update(some.view(torch.uint8).numpy().data)
    return digest.hexdigest()
