"""A row as text, with the stretches that are trained between ⟦ and ⟧."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from posttrain.types import Example

Parts = Sequence[tuple[str, bool]]
"""Stretches of text, and whether their tokens are trained."""
SHOWN_CHARACTERS = 500
"""Of each stretch, or of each message in it."""
CONTROLS = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""What moves the cursor of a terminal, or turns the direction of its text, is spelt out."""
SHOWN_TURNS = 8
"""So many messages of a stretch are shown, at least."""


def stretches(example: Example, decode: Callable[[list[int]], object]) -> tuple[tuple[str, bool], ...]:
    """The tokens of an example as text, in stretches that are trained or not."""
    pairs = zip(example.input_ids, example.completion_mask, strict=True)
    runs = groupby(pairs, key=lambda pair: pair[1])
    return tuple((str(decode([token for token, _ in run])), trained) for trained, run in runs)


def marked(parts: Parts, texts: Iterable[str] = ()) -> str:
    """`texts` are those of the row that stand in it: each is cut by itself where it is long, so that turns stay apart.

    >>> marked([("2+2=", False), ("4<eos>", True)])
    '2+2=⟦4<eos>⟧'
    """
    known = [text.strip() for text in texts]
    long = sorted((text for text in known if len(text) > SHOWN_CHARACTERS), key=len, reverse=True)
    limit = SHOWN_TURNS * SHOWN_CHARACTERS if known else SHOWN_CHARACTERS
    shown = [(cut(_each_cut(text, long), limit), trained) for text, trained in parts]
    return "".join(f"⟦{text}⟧" if trained else text for text, trained in shown)


def _each_cut(text: str, long: Iterable[str]) -> str:
    for one in long:
        text = text.replace(one, cut(one))
    return text


def cut(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """With its beginning and its end, where it is long: the end shows whether there is an EOS."""
    tail, text = limit // 4, text.translate(CONTROLS)
    return text if len(text) <= limit else f"{text[: limit - tail]} […] {text[-tail:]}"
