"""Rows, files and real tokenizers that the data tests share."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from posttrain.data.read import Row

SHARED = Path(__file__).parents[3] / "shared" / "data"


@functools.cache
def real_tokenizer(name: str) -> Any:
    """One of the shared tokenizers, for example tokenizers/qwen2.5; the test is skipped if it is missing."""
    if not (SHARED / name).exists():
        pytest.skip(f"../shared/data/{name} is not here")
    return AutoTokenizer.from_pretrained(SHARED / name)


def shared_file(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"../shared/data/{name} is not here")
    return SHARED / name


def rows_of(*values: dict[str, Any]) -> list[Row]:
    return [Row(values=row, origin=f"rows:{number}") for number, row in enumerate(values, start=1)]


def jsonl(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)
