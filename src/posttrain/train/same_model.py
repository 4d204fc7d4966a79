"""A run that is resumed goes on from the model that it was started with, where that still has a say.

Trained weights come from the checkpoint. What stands below adapters, and a reference, do not: they are read again from
model.path. Whatever lies there by then (a model that was trained anew, another revision on the Hub) would be taken for
it, and the same adapters on it are another model. The run's folder therefore keeps in start.json what it was:

    {"sha256": ...}     of the names and shapes of all weights, and of some numbers of each
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
"""Of each weight, evenly spread: whatever trains a model changes nearly all of them, and reading all takes minutes."""


def put_on_file(run: Run) -> None:
    """At the start of a run, before anything is trained."""
    run.store.record(FILE, {"sha256": start_key(run.trainer.loaded.model)})


def check_same(run: Run) -> None:
    """Before a checkpoint is restored; raises ModelError where another model would change what is trained from here on.
    A run of an earlier version gets its file now."""
    before = run.store.read_record(FILE)
    if before is None:
        put_on_file(run)
        return
    role = role_of_start(run.config, run.trainer.algorithm)
    if role and before.get("sha256") != start_key(run.trainer.loaded.model):
        raise ModelError(
            given=f"model.path = {run.config.model.path!r} holds another model than the run started with, {role}",
            allowed="the same weights, in any folder",
            fix=f"Restore that model, or write its new path into {run.folder}/config.yaml; or train a new run "
            "with the model folder of the newest checkpoint as model.path.",
        )


def role_of_start(config: RunConfig, algorithm: Algorithm) -> str:
    """The role of the first model in later steps; empty if everything comes from the checkpoint."""
    if config.lora is not None:
        return "on which its adapters stand"
    return "which is its reference" if "reference" in algorithm.needs and config.reference is None else ""


@torch.no_grad()
def start_key(model: nn.Module) -> str:
    """Of a model whose weights are as they were read; of one with adapters, of its base."""
    digest = hashlib.sha256()
    for name in sorted(state := without_adapters(model).state_dict(keep_vars=True)):
        if "lora_" in name:
            continue
        tensor = whole(state[name])
        digest.update(f"{name.replace('.base_layer', '')} {tensor.dtype} {list(tensor.shape)}".encode())
        some = tensor.detach().reshape(-1)[:: max(1, tensor.numel() // NUMBERS)].cpu().contiguous()
        digest.update(some.view(torch.uint8).numpy().data)
    return digest.hexdigest()
