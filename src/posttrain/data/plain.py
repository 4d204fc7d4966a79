"""Prompts as rewards see them, where there is no tokenizer to render them with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.config import DataConfig
from posttrain.data.dropped import Dropped, refuse_too_many
from posttrain.data.prompts import PromptSet, prompt_form, with_all_columns
from posttrain.data.read import Row
from posttrain.types import Prompt


def plain_prompts(rows: Sequence[Row], config: DataConfig) -> list[Prompt]:
    """The usable rows, without token ids.

    DataError when no column holds a prompt, or when more than `data.max_dropped` of the rows cannot be used.
    """
    form = prompt_form(rows, config)
    read = [form.read(row) for row in rows]
    refuse_too_many([row for row in read if isinstance(row, Dropped)], len(rows), config.max_dropped, "training data")
    prompts = tuple(
        _prompt(number, rows[number].origin, columns)
        for number, columns in enumerate(read)
        if not isinstance(columns, Dropped)
    )
    [whole] = with_all_columns(PromptSet(prompts=prompts))
    return list(whole.prompts)


def _prompt(number: int, origin: str, columns: Mapping[str, Any]) -> Prompt:
    others = {name: value for name, value in columns.items() if name != "prompt"}
    prompt = columns["prompt"]
    if isinstance(prompt, str):
        return Prompt(index=number, ids=(), text=prompt, plain=prompt, columns=others, origin=origin)
    text = "\n".join(str(message["content"]) for message in prompt)
    return Prompt(index=number, ids=(), text=text, messages=tuple(prompt), columns=others, origin=origin)
