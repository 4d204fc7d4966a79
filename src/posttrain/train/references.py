"""The reference that a policy is held to: a model where answers are sampled, numbers on disk where they are given.

The answers of a dataset do not change while a policy learns from them. So what the reference says about them is
computed once, before the first step and with the weights that are in memory anyway, and kept on disk by the content of
model and data. No reference model is there while training, and another run on the same data finds the numbers ready.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from posttrain.cache import cache_folder
from posttrain.data.collate import collate_examples
from posttrain.data.order import rows_for_step
from posttrain.errors import DoesNotFit
from posttrain.models.adapters import frozen_copy, reference_scope
from posttrain.models.forward_path import without_adapters
from posttrain.models.load import LoadedModel
from posttrain.train.frozen import load_frozen
from posttrain.train.loop import microbatches
from posttrain.train.policy import Forward
from posttrain.types import Batch, Example

if TYPE_CHECKING:
    from posttrain.config import RunConfig

ROWS_AT_ONCE = 256
"""Examples that are collated together."""


def reference_forward(config: RunConfig, loaded: LoadedModel, forward: Forward) -> Forward:
    """For what is sampled: the model of the section `reference`; else, with LoRA, the base model itself, so that there
    is no second copy; else a frozen copy of the start."""
    if config.reference is not None:
        return load_frozen("reference", config.reference, config, loaded, forward)
    if config.lora is not None:
        return forward.under(loaded.model, lambda: reference_scope(loaded.model))
    return forward.under(frozen_copy(loaded.model))


def start_forward(config: RunConfig, loaded: LoadedModel, forward: Forward) -> Forward:
    """For what is given: the same reference, before the first step, when the policy itself still is the start."""
    if config.reference is None and config.lora is None:
        return forward.under(loaded.model)
    return reference_forward(config, loaded, forward)


class References:
    """`references[place]`: log-probabilities of the trained tokens of one example, in their order; float32.

    Of the examples at `places`, which are those that the run uses; `counts` are their trained tokens.
    """

    def __init__(self, values: np.ndarray, places: Sequence[int], counts: Sequence[int]) -> None:
        self.values, self.ends = values, np.cumsum([0, *counts])
        self.number = {place: number for number, place in enumerate(places)}

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, place: int) -> Tensor:
        number = self.number[place]
        return torch.tensor(self.values[self.ends[number] : self.ends[number + 1]])

    def beside(self, places: Sequence[int], mask_BT: Tensor) -> Tensor:
        """`[B, T]`: those of the named examples at the True places of their rows, 0 elsewhere."""
        beside_BT = torch.zeros(mask_BT.shape)
        beside_BT[mask_BT] = torch.cat([self[place] for place in places])
        return beside_BT


def used_rows(config: RunConfig, size: int) -> list[int]:
    """Which of `size` rows the steps of the run take; all of them from the first whole epoch on."""
    train = config.train
    if train.steps * train.prompts_per_step >= size:
        return list(range(size))
    steps = range(1, train.steps + 1)
    return sorted({row for step in steps for row in rows_for_step(config.seed, step, train.prompts_per_step, size)})


def reference_logprobs(
    config: RunConfig, dataset: Sequence[Example], places: Sequence[int], forward: Forward, *, pad_id: int
) -> tuple[References, bool]:
    """What the model behind `forward` says about the examples at `places`, and whether that was on disk already."""
    examples = [dataset[place] for place in places]
    counts = [sum(example.completion_mask) for example in examples]
    file = cache_folder("references") / f"{content_key(examples, forward)}.f32"
    found = read_values(file, sum(counts))
    if found is None:
        write_values(file, _score(config, examples, forward, pad_id), sum(counts))
        found = read_values(file, sum(counts))
        assert found is not None, f"{file} cannot be read back"
        return References(found, places, counts), False
    return References(found, places, counts), True


@torch.no_grad()
def _score(config: RunConfig, examples: Sequence[Example], forward: Forward, pad_id: int) -> Iterator[np.ndarray]:
    """The log-probabilities of the trained tokens, example after example."""
    split = partial(microbatches, tokens_per_microbatch=config.train.tokens_per_microbatch)
    for begin in range(0, len(examples), ROWS_AT_ONCE):
        places = range(begin, min(begin + ROWS_AT_ONCE, len(examples)))
        tokens, mask_BT = collate_examples([examples[place] for place in places], pad_id)
        batch = Batch(completion_mask_BT=mask_BT, groups_B=torch.arange(len(places)), tokens=tokens)
        logprobs_BT = torch.zeros(mask_BT.shape)
        for rows, micro in split(batch):
            logprobs_BT[rows] = forward(micro).logprobs_BT.float().cpu()
        yield logprobs_BT[mask_BT].numpy()


# --- on disk ----------------------------------------------------------------------------------------------------------


def content_key(examples: Sequence[Example], forward: Forward) -> str:
    """Changes with any weight, any setting of the model, its precision, and any token or mask of the data."""
    digest = hashlib.sha256(model_key(forward.model).encode())
    digest.update(f"{forward.compute_dtype} {forward.temperature} {torch.__version__}".encode())
    for example in examples:
        digest.update(np.asarray([len(example.input_ids), *example.input_ids], dtype=np.int64).tobytes())
        digest.update(np.asarray(example.completion_mask, dtype=np.bool_).tobytes())
    return digest.hexdigest()[:32]


@torch.no_grad()
def model_key(model: nn.Module) -> str:
    """Hash of the weights and the architecture of a model; of one with adapters, of its base."""
    plain = without_adapters(model)
    settings = plain.config.to_dict() if hasattr(plain, "config") else {}  # type: ignore[union-attr,operator]
    kept = {name: value for name, value in settings.items() if not name.startswith("_")}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode())
    for name, tensor in sorted(plain.state_dict().items()):
        if "lora_" in name:
            continue
        digest.update(f"{name.replace('.base_layer', '')} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_values(file: Path, count: int) -> np.ndarray | None:
    """The numbers in the file, mapped and not read into memory; None for a file that is missing or damaged."""
    try:
        seal = json.loads(_seal(file).read_text(encoding="utf-8"))
        if file.stat().st_size != 4 * count or seal["sha256"] != _sha256(file):
            return None
    except (OSError, ValueError, KeyError):
        return None
    return np.memmap(file, dtype=np.float32, mode="r") if count else np.zeros(0, dtype=np.float32)


def write_values(file: Path, parts: Iterator[np.ndarray], count: int) -> None:
    """Write the numbers, then a seal with their hash. Raises DoesNotFit where there is no room."""
    draft = file.with_suffix(f".{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(file.parent).free < 4 * count:
            raise OSError(f"{4 * count / 1e6:,.0f} MB needed")
        with draft.open("wb") as out:
            for part in parts:
                out.write(np.ascontiguousarray(part, dtype=np.float32).data)
            out.flush()
            os.fsync(out.fileno())
        seal = json.dumps({"sha256": _sha256(draft)})
        draft.replace(file)
        _seal(file).write_text(seal, encoding="utf-8")
    except OSError as error:
        raise DoesNotFit(
            given=f"the reference log-probabilities of {count:,} tokens cannot be written to {file.parent} ({error})",
            allowed=f"a folder that can be written, with {4 * count / 1e6:,.0f} MB of room",
            fix="Make room, or name another folder in the environment variable POSTTRAIN_CACHE.",
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink()


def _seal(file: Path) -> Path:
    return file.with_suffix(".json")


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
