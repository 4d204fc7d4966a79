"""Writes the folder of an export atomically: to a temporary folder next to its place, renamed at the end."""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import PreTrainedModel

from posttrain.errors import ConfigError, DoesNotFit, ExportError
from posttrain.export.origin import Head
from posttrain.export.replay import digests
from posttrain.files import NO_ROOM, errno_of
from posttrain.models.forward_path import without_adapters
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import ScoringFacts, save_reward_model
from posttrain.models.save import save_model

SPARE = 1_000_000
"""Bytes to reserve in addition to the weights, for tokenizer, card and plots."""


def check_place(folder: Path, source: Path, *, force: bool) -> None:
    """Raise ConfigError, before anything is computed, if writing to this place would lose something else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir():
        raise ConfigError(given=f"{folder} is a file", allowed="a new folder", fix="Use another folder.")
    if source.exists() and source.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(
            given=f"{folder} holds the model that you export",
            allowed="another folder",
            fix="Use another folder.",
        )
    if not force:
        raise ConfigError(
            given=f"{folder} exists already and is not empty",
            allowed="a new or an empty folder",
            fix="Use another folder, or add --force to replace it.",
        )
    if not (folder / "config.json").is_file() and not any(folder.glob("*.gguf")):
        raise ConfigError(
            given=f"{folder} holds no exported model, so --force does not replace it",
            allowed="a folder that an export has written",
            fix="Use another folder.",
        )


@contextmanager
def written_whole(folder: Path, *, size: int) -> Iterator[Path]:
    """Yield a temporary folder to write into. It replaces `folder` if the block ends well, and is removed otherwise.

    Raises DoesNotFit if fewer than `size` bytes are free, and ExportError for errors of the operating system.
    """
    aside = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _require_space(folder, size)
        aside.mkdir()
        yield aside
        _put_in_place(aside, folder)
    except Exception as error:
        if errno_of(error) is None and not isinstance(error, (OSError, SafetensorError)):
            raise
        raise _explained(folder, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _put_in_place(aside: Path, folder: Path) -> None:
    old = aside.with_name(f"{aside.name}-old")
    if not folder.exists():
        os.rename(aside, folder)
        return
    os.rename(folder, old)
    try:
        os.rename(aside, folder)
    except OSError:
        os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def clean(folder: Path) -> None:
    """Remove the leftovers of killed exports, and restore a folder that a killed export was about to replace."""
    for path in folder.parent.glob(f".{glob.escape(folder.name)}.tmp-*"):
        owner = re.search(r"\.tmp-(\d+)(-old)?$", path.name)
        if owner is None or _is_writing(int(owner[1]), path):
            continue
        if owner[2] and not folder.exists():
            os.rename(path, folder)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _is_writing(pid: int, path: Path) -> bool:
    """Is the process that made or moved the folder still alive? A later process can have the same pid: in a container,
    every run has the same one."""
    try:
        return psutil.Process(pid).create_time() <= path.stat().st_ctime
    except psutil.NoSuchProcess:
        return False


def _require_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder.parent).free
    if size > free:
        raise DoesNotFit(
            given=f"{folder} needs {size / 1e9:.2f} GB, but {folder.parent} has {free / 1e9:.2f} GB free",
            allowed="a disk with room for the model",
            fix="Free some space, use a folder on another disk, or export with --dtype bfloat16.",
        )


def _explained(folder: Path, error: Exception) -> ExportError | DoesNotFit:
    kind = DoesNotFit if errno_of(error) in NO_ROOM else ExportError
    return kind(
        given=f"{folder} could not be written: {error}",
        allowed="a folder on a disk with room for the model",
        fix="Free some space or use another folder. No files were left behind.",
    )


# --- content ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Written:
    """The facts about the written files that a reader must reproduce."""

    dtype: str
    digests: dict[str, str]
    """Name of each weight in transformers -> its digest."""
    parameters: int
    file: str | None = None
    """Name of the GGUF file; None for a Hugging Face folder."""
    stop_strings: tuple[str, ...] = ()
    """Stop strings in `generation_config.json`."""


def merged(loaded: LoadedModel) -> LoadedModel:
    """Return the model with its LoRA adapters merged into the weights."""
    if not isinstance(loaded.model, PeftModel):
        return loaded
    return replace(loaded, model=loaded.model.merge_and_unload())  # type: ignore[arg-type]


def write_hf(loaded: LoadedModel, head: Head, folder: Path, *, dtype: str, facts: ScoringFacts | None) -> Written:
    """Write the model, cast to `dtype` in memory, to `folder`. Raises CheckpointError if it cannot be read back."""
    model = loaded.model.to(getattr(torch, dtype))  # type: ignore[arg-type]
    cast = replace(loaded, model=model)
    if head == "tokens":
        save_model(model, loaded.tokenizer, folder, eos_ids=loaded.eos_ids, pad_id=loaded.pad_id)
    else:
        save_reward_model(cast, folder, facts or ScoringFacts())
    plain = without_adapters(model)
    assert isinstance(plain, PreTrainedModel)
    return Written(
        dtype=dtype,
        digests=digests(plain.state_dict().items()),
        parameters=plain.num_parameters(),
        stop_strings=stop_strings(plain) if head == "tokens" else (),
    )


def stop_strings(model: PreTrainedModel) -> tuple[str, ...]:
    """Return the stop strings of the model's generation config; empty if it has none, as a reward model may."""
    settings: Any = getattr(model, "generation_config", None)
    return tuple(getattr(settings, "stop_strings", None) or ())
