"""Find special tokens in the text of data: a tokenizer reads "<|im_end|>" in an answer as the end of the answer."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from posttrain.data.dropped import Dropped
from posttrain.data.forms import Form, Kind, detect, fits
from posttrain.data.limits import texts_in
from posttrain.data.read import Row
from posttrain.data.sampled_pairs import is_sampled_pair

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def eos_pattern(tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int]) -> re.Pattern[str] | None:
    """A pattern that matches the tokens that end a turn; None if there are none."""
    return _any_of(str(tokenizer.convert_ids_to_tokens(token)) for token in eos_ids)


def special_pattern(tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int]) -> re.Pattern[str] | None:
    """A pattern that matches all special tokens, including the EOS tokens, except the one for unknown words."""
    ends = (str(tokenizer.convert_ids_to_tokens(token)) for token in eos_ids)
    return _any_of(name for name in {*ends, *tokenizer.all_special_tokens} if name != tokenizer.unk_token)


def _any_of(names: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted({name for name in names if name}, key=lambda name: (-len(name), name))
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


@dataclass(frozen=True, kw_only=True)
class Injected:
    """Rows whose text contains special tokens before its very end."""

    count: int
    token: str
    """The first special token that was found."""
    origins: tuple[str, ...]
    """The origins of the first few such rows."""

    fix: ClassVar[str] = (
        "Remove them: in a prompt they fake turns, and in an answer they teach the model to continue after its "
        "end. An EOS at the very end of a text may stay."
    )

    @property
    def message(self) -> str:
        where = ", ".join([*self.origins, *(["…"] if self.count > len(self.origins) else [])])
        rows = "1 row holds" if self.count == 1 else f"{self.count} rows hold"
        return (
            f"{rows} special tokens in the text, such as {self.token}, which the model reads as special tokens "
            f"and not as letters ({where})"
        )


def injected(
    rows: Sequence[Row], kind: Kind, tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int], *, chat: bool
) -> Injected | None:
    """The rows with a special token in their text, among the rows that can be read as this kind; None if none has any.

    An EOS at the very end of a text does not count: many datasets end answers with it.
    """
    count, token, origins = 0, "", []
    form, pattern = form_of(rows, kind), special_pattern(tokenizer, eos_ids)
    if form is None or pattern is None:
        return None
    for row in rows:
        values = Dropped(row.origin, "given as ids") if is_sampled_pair(row) else form.read(row, chat=chat)
        if isinstance(values, Dropped):
            continue
        found = _first(values["prompt"] if form.kind == "prompts" else values, pattern)
        if found is not None:
            count, token = count + 1, token or found
            origins += [row.origin] if count <= 3 else []
    return Injected(count=count, token=token, origins=tuple(origins)) if count else None


def form_of(rows: Sequence[Row], kind: Kind) -> Form | None:
    """The form to read the rows with. If they have no form of this kind, they are pairs: those serve as labels, too,
    and, with scores, as ratings."""
    kinds: tuple[Kind, ...] = (kind, "pairs")
    return next((detect(rows, one) for one in kinds if fits(rows, one)), None)


def _first(values: Any, pattern: re.Pattern[str]) -> str | None:
    for text in texts_in(values):
        stripped = text.strip()
        for match in pattern.finditer(stripped):
            if match.end() < len(stripped):
                return match[0]
    return None
