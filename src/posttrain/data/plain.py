"""Prompts as rewards see them, where there is no tokenizer to render them with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.config import DataConfig
from posttrain.data.dropped import Dropped
from posttrain.data.prompts import prompt_form
from posttrain.data.read import Row
from posttrain.types import Prompt


def plain_prompts(rows: Sequence[Row], config: DataConfig) -> list[Prompt]:
    """The usable rows, without token ids; DataError when no column holds a prompt."""
    form = prompt_form(rows, config)
    read = [form.read(row) for row in rows]
    return [_prompt(number, columns) for number, columns in enumerate(read) if not isinstance(columns, Dropped)]


def _prompt(number: int, columns: Mapping[str, Any]) -> Prompt:
    others = {name: value for name, value in columns.items() if name != "prompt"}
    prompt = columns["prompt"]
    if isinstance(prompt, str):
        return Prompt(index=number, ids=(), text=prompt, plain=prompt, columns=others)
    text = "\n".join(str(message["content"]) for message in prompt)
    return Prompt(index=number, ids=(), text=text, messages=tuple(prompt), columns=others)
