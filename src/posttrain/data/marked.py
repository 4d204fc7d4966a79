"""A row as text, with the stretches that are trained between ⟦ and ⟧."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from posttrain.types import Example

Parts = Sequence[tuple[str, bool]]
"""Stretches of text, and whether their tokens are trained."""
SHOWN_CHARACTERS = 500
"""Of each stretch."""


def stretches(example: Example, decode: Callable[[list[int]], object]) -> tuple[tuple[str, bool], ...]:
    """The tokens of an example as text, in stretches that are trained or not."""
    pairs = zip(example.input_ids, example.completion_mask, strict=True)
    runs = groupby(pairs, key=lambda pair: pair[1])
    return tuple((str(decode([token for token, _ in run])), trained) for trained, run in runs)


def marked(parts: Parts) -> str:
    """
    >>> marked([("2+2=", False), ("4<eos>", True)])
    '2+2=⟦4<eos>⟧'
    """
    return "".join(f"⟦{cut(text)}⟧" if trained else cut(text) for text, trained in parts)


def cut(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """With its beginning and its end, where it is long: the end shows whether there is an EOS."""
    tail = limit // 4
    return text if len(text) <= limit else f"{text[: limit - tail]} […] {text[-tail:]}"
