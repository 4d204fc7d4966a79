"""The reference of a policy: a model if completions are sampled, numbers on disk if they are given.

The answers of a dataset do not change while a policy learns from them. So their reference log-probabilities are
computed once, before the first step, with the weights that are in memory anyway. They are kept on disk twice:

    in the cache folder, under a key of everything that decides their bits, so that another run on the same data
    finds them
    in the run's folder, under a key of model and data, so that the run continues with the same numbers whatever
    happens to the cache, the code and the versions

So one process keeps no reference model in memory during training. Ranks keep their parts of it: a sharded model lives
as long as its process (models.entering).

A file seals itself: it holds the float32 values, then their SHA-256.

A file is written under a unique name and renamed when it is complete. So a file under the final name is complete, comes
from one writer, and can be checked without a second file. It never changes afterwards: writing to the same name again
makes a new file, and whoever has the old file open, or another link to it, keeps the old one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from posttrain.cache import cache_folder
from posttrain.config import ModelConfig, ReferenceConfig
from posttrain.data.collate import collate_examples
from posttrain.data.order import rows_for_step
from posttrain.errors import DoesNotFit
from posttrain.models.adapters import frozen_copy, reference_scope
from posttrain.models.entering import is_sharded
from posttrain.models.identity import computation_key, model_key
from posttrain.models.load import LoadedModel
from posttrain.models.microbatches import Split
from posttrain.models.policy import Forward, hold_in, load_frozen
from posttrain.types import Batch, Example

if TYPE_CHECKING:
    from posttrain.config import RunConfig

SEAL = hashlib.sha256().digest_size
ABANDONED_AFTER = 3600.0
"""Seconds without a write after which an unlocked draft counts as left behind by a killed process."""


def read_values(file: Path, count: int) -> np.ndarray | None:
    """Return the numbers in the file, memory-mapped; None if the file is missing or damaged."""
    try:
        with file.open("rb") as content:
            if os.fstat(content.fileno()).st_size != 4 * count + SEAL or not _is_whole(content, 4 * count):
                return None
            return _mapped(content, count)
    except OSError:
        return None


def write_values(file: Path, parts: Iterator[np.ndarray], count: int) -> np.ndarray:
    """Write the numbers and return them, memory-mapped. Raises DoesNotFit if there is no room."""
    draft = file.with_name(f"{file.stem}.{uuid.uuid4().hex}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(file)
        if shutil.disk_usage(file.parent).free < 4 * count + SEAL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with draft.open("w+b") as out:
            fcntl.flock(out, fcntl.LOCK_EX)  # held while this process writes
            digest = hashlib.sha256()
            for part in parts:
                content = np.ascontiguousarray(part, dtype=np.float32).tobytes()
                digest.update(content)
                out.write(content)
            out.write(digest.digest())
            out.flush()
            os.fsync(out.fileno())
            draft.replace(file)
            return _mapped(out, count)
    except OSError as error:
        raise _no_room(file, count, error) from error
    finally:
        with suppress(OSError):
            draft.unlink()


def share(file: Path, other: Path, count: int) -> None:
    """Make `other` a link to the file, or a copy if they are on different disks. Do nothing without a file."""
    if not file.exists():
        return
    draft = other.with_name(f"{other.stem}.{uuid.uuid4().hex}.part")
    try:
        other.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(other)
        try:
            os.link(file, draft)
        except OSError:
            shutil.copyfile(file, draft)
        draft.replace(other)
    except OSError as error:
        raise _no_room(other, count, error) from error
    finally:
        with suppress(OSError):
            draft.unlink()  # renaming a link onto a link to the same file leaves both


def _is_whole(content, size: int) -> bool:  # type: ignore[no-untyped-def]
    """Return whether the first `size` bytes have the hash that follows them."""
    digest = hashlib.sha256()
    while size and (part := content.read(min(size, 1 << 20))):
        digest.update(part)
        size -= len(part)
    return not size and content.read() == digest.digest()


def _mapped(content, count: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    return np.memmap(content, np.float32, mode="r", shape=(count,)) if count else np.zeros(0, np.float32)


def _remove_abandoned(file: Path) -> None:
    """Remove drafts of this file whose writer is dead: they are old, and nobody holds their lock."""
    for draft in file.parent.glob(f"{file.stem}.*.part"):
        with suppress(OSError), draft.open("r+b") as content:
            fcntl.flock(content, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(content.fileno()).st_mtime > ABANDONED_AFTER:
                draft.unlink()


def _no_room(file: Path, count: int, error: OSError) -> DoesNotFit:
    return DoesNotFit(
        given=f"the reference log-probabilities of {count:,} tokens cannot be written to {file.parent} ({error})",
        allowed=f"a writable folder with {4 * count / 1e6:,.0f} MB of free space",
        fix="Free some space, or set the environment variable POSTTRAIN_CACHE to another folder.",
    )


ROWS_AT_ONCE = 256
"""Number of examples that are collated together and in memory at a time."""
CODE = ("experience/references.py", "data/collate.py", "types.py")
"""The modules that compute these numbers, in addition to the modules that every model uses."""


def reference_forward(config: RunConfig, loaded: LoadedModel, forward: Forward) -> Forward:
    """Return the reference for sampled completions: the model of the section `reference` if there is one; else, with
    LoRA, the base model itself, without a second copy; else a frozen copy of the start model."""
    if config.reference is not None:
        return load_frozen("reference", config.reference, config, loaded, forward)
    if config.lora is not None:
        return forward.under(loaded.model, lambda: reference_scope(loaded.model))
    if is_sharded(loaded.model):  # no rank holds the whole model to copy
        return load_frozen("reference", as_reference(config.model), config, loaded, forward)
    return forward.under(hold_in(frozen_copy(loaded.model), forward.compute_dtype))


def as_reference(model: ModelConfig) -> ReferenceConfig:
    """Return settings that load the run's start model once more."""
    return ReferenceConfig(path=model.path, revision=model.revision, trust_remote_code=model.trust_remote_code)


def start_forward(config: RunConfig, loaded: LoadedModel, forward: Forward) -> Forward:
    """Return the reference for given answers, before the first step: the policy still is the start model then."""
    if config.reference is None and config.lora is None:
        return forward.under(loaded.model)
    return reference_forward(config, loaded, forward)


class References:
    """`references[place]`: log-probabilities of the trained tokens of one example, in their order; float32.

    They cover the examples at `places`, in ascending order, which are those that the run uses. `counts_N` are the
    numbers of their trained tokens.
    """

    def __init__(self, values: np.ndarray, places: Sequence[int], counts_N: np.ndarray) -> None:
        self.values, self.ends_N = values, np.concatenate([[0], np.cumsum(counts_N, dtype=np.int64)])
        self.places = places if isinstance(places, range) else np.asarray(places, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: int) -> Tensor:
        number = self._number(place)
        return torch.tensor(self.values[self.ends_N[number] : self.ends_N[number + 1]])

    def _number(self, place: int) -> int:
        """Return the index of the example among those that were scored."""
        if isinstance(self.places, range):
            return self.places.index(place)
        number = int(np.searchsorted(self.places, place))
        if number == len(self) or self.places[number] != place:
            raise ValueError(f"example {place} is not one of the {len(self)} that the reference has scored")
        return number

    def beside(self, places: Sequence[int], mask_BT: Tensor) -> Tensor:
        """Return `[B, T]`: log-probabilities of the named examples at the True places of their rows, 0 elsewhere."""
        beside_BT = torch.zeros(mask_BT.shape)
        beside_BT[mask_BT] = torch.cat([self[place] for place in places])
        return beside_BT


def used_rows(config: RunConfig, size: int) -> Sequence[int]:
    """Return which of `size` rows the run's steps use, ascending; all of them once the steps cover an epoch."""
    train = config.train
    if train.steps * train.prompts_per_step >= size:
        return range(size)
    steps = range(1, train.steps + 1)
    taken = chain.from_iterable(rows_for_step(config.seed, step, train.prompts_per_step, size) for step in steps)
    return array("q", np.unique(np.fromiter(taken, dtype=np.int64)).tobytes())


def reference_logprobs(
    config: RunConfig,
    dataset: Sequence[Example],
    places: Sequence[int],
    forward: Forward,
    *,
    pad_id: int,
    folder: Path,
) -> tuple[References, bool]:
    """Return the examples' log-probabilities under the model of `forward`, and whether they were already on disk.

    `folder` is the run's folder, which keeps a copy.
    """
    data, counts_N = scan(dataset, places)
    total = int(counts_N.sum())
    own = folder / "references" / f"{run_key(data, forward)}.f32"
    cached = cache_folder("references") / f"{content_key(own.stem, forward, config)}.f32"
    values = read_values(own, total)
    if values is None:
        share(cached, own, total)
        values = read_values(own, total)
    if values is not None:
        return References(values, places, counts_N), True
    values = write_values(own, _score(config, dataset, places, forward, pad_id), total)
    share(own, cached, total)
    return References(values, places, counts_N), False


def scan(dataset: Sequence[Example], places: Sequence[int]) -> tuple[str, np.ndarray]:
    """Return a hash that changes with any token or mask of the examples, and the number of trained tokens of each."""
    digest, counts_N = hashlib.sha256(), np.zeros(len(places), dtype=np.int64)
    for number, place in enumerate(places):
        example = dataset[place]
        digest.update(np.asarray([len(example.input_ids), *example.input_ids], dtype=np.int64).tobytes())
        digest.update(np.asarray(example.completion_mask, dtype=np.bool_).tobytes())
        counts_N[number] = sum(example.completion_mask)
    return digest.hexdigest(), counts_N


@torch.no_grad()
def _score(
    config: RunConfig, dataset: Sequence[Example], places: Sequence[int], forward: Forward, pad_id: int
) -> Iterator[np.ndarray]:
    """Yield the log-probabilities of the trained tokens, example after example."""
    split = Split(forward, config.train.microbatch_tokens)
    for begin in range(0, len(places), ROWS_AT_ONCE):
        examples = [dataset[place] for place in places[begin : begin + ROWS_AT_ONCE]]
        tokens, mask_BT = collate_examples(examples, pad_id)
        batch = Batch(completion_mask_BT=mask_BT, groups_B=torch.arange(len(examples)), tokens=tokens)
        logprobs_BT = torch.zeros(mask_BT.shape)
        for rows, micro in split(batch):
            logprobs_BT[rows] = forward(micro).logprobs_BT.float().cpu()
        yield logprobs_BT[mask_BT].numpy()


# --- keys and file names ----------------------------------------------------------------------------------------------


def run_key(data: str, forward: Forward) -> str:
    """Return the key of the numbers in the run's folder: examples, model, precision and temperature."""
    return _key(data, model_key(forward.model), str(forward.compute_dtype), forward.temperature)


def content_key(numbers: str, forward: Forward, config: RunConfig) -> str:
    """Return the key of the numbers in the cache. It covers everything that decides a bit of them: packing, summation,
    code and hardware."""
    how = forward.compute
    computation = computation_key(forward.model, compute_dtype=how.dtype, matmul=how.matmul, code=CODE)
    return _key(numbers, computation, config.train.microbatch_tokens, forward.chunk_tokens)


def _key(*parts: str | float | None) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
