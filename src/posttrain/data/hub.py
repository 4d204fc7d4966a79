"""Datasets of the library `datasets`: those of the Hugging Face Hub, and those that it has saved to disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posttrain.errors import DataError


def is_saved(path: Path) -> bool:
    """A folder that `datasets` has written with save_to_disk: one dataset, or one per split."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def hub_dataset(source: str, split: str) -> Any:
    """The dataset, mapped from disk: of the Hub, by `name` or `name:config`, or of a folder. Raises `DataError`."""
    from datasets import load_dataset

    if is_saved(Path(source)):
        return _saved_dataset(Path(source), split)
    name, _, config = source.partition(":")
    try:
        return load_dataset(name, config or None, split=split)
    except Exception as error:  # the library raises many kinds, from the network up; all mean that there are no rows
        reason = str(error).strip().split("\n")[0]
        raise DataError(
            given=f"{source} is no file here, and the Hugging Face dataset {name!r} cannot be loaded ({reason})",
            allowed="a file, a glob, a Hugging Face dataset name (name or name:config), or task:NAME",
            fix="Check the path or the name; without a network, download the dataset first and name its files.",
        ) from error


def _saved_dataset(folder: Path, split: str) -> Any:
    """A split of what save_to_disk wrote; a dataset without splits is all there is."""
    from datasets import DatasetDict, load_from_disk

    try:
        saved = load_from_disk(folder)
    except Exception as error:  # of many kinds, as above
        raise DataError(
            given=f"the dataset in {folder} cannot be read ({str(error).strip().partition(chr(10))[0]})",
            allowed="a whole folder, as save_to_disk writes it",
            fix="Save it again, or export it: dataset.to_parquet(...).",
        ) from error
    if not isinstance(saved, DatasetDict):
        return saved
    if split not in saved:
        raise DataError(
            given=f"the dataset in {folder} has no split {split!r}",
            allowed=", ".join(map(str, saved)),
            fix="Set data.split (data.eval_split for held-out data) to one of them, or name the folder of a split.",
        )
    return saved[split]
