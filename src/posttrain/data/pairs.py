"""Rows into preference pairs: a prompt, the answer that was chosen and the one that was rejected.

Forms, told by their columns: `prompt` + `chosen` + `rejected`, and `chosen` + `rejected` alone, whose common beginning
is then the prompt. Each is text or chat messages; answers may repeat the conversation that they end. An optional column
`margin` says by how much the chosen one is better.

Both answers are rendered as `answer_segments` renders any answer, and end with their EOS.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from posttrain.data.dropped import Dropped, refuse_too_many, summary
from posttrain.data.examples import answer_segments
from posttrain.data.prompts import Renderer, fault_in_messages
from posttrain.data.read import Row
from posttrain.errors import DataError
from posttrain.types import Example, Pair

Text = str | list[dict[str, Any]]
"""Plain text, or chat messages."""


@dataclass(frozen=True, kw_only=True)
class PairSet:
    """The usable pairs, and what was left out of them."""

    pairs: tuple[Pair, ...]
    dropped: tuple[Dropped, ...] = ()

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def dropped_summary(self) -> str:
        """What was left out and why, in a sentence; "" for nothing."""
        return summary(self.dropped, len(self.pairs) + len(self.dropped))


class Preference(NamedTuple):
    """One row, understood."""

    prompt: Text
    chosen: Text
    rejected: Text
    margin: float | None


def render_pairs(
    rows: Sequence[Row],
    renderer: Renderer,
    *,
    eos_ids: Collection[int],
    max_length: int,
    max_dropped: float,
    what: str,
) -> PairSet:
    """Every row as a `Pair`, or counted as dropped with the reason; `what` names the rows in errors.

    Raises `DataError` when a column is missing from all rows, or when more than `max_dropped` of them cannot be used.
    """
    require_columns(rows)
    pairs, dropped = [], []
    for index, row in enumerate(rows):
        found = read_preference(row)
        if isinstance(found, Preference):
            found = _render(found, index, row.origin, renderer, eos_ids, max_length)
        (pairs if isinstance(found, Pair) else dropped).append(found)
    refuse_too_many(dropped, len(rows), max_dropped, what)
    return PairSet(pairs=tuple(pairs), dropped=tuple(dropped))


def require_columns(rows: Sequence[Row]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row.values))
    if not {"chosen", "rejected"} <= set(columns):
        raise DataError(
            given=f"preference pairs cannot be made of the columns {', '.join(columns)}",
            allowed="prompt + chosen + rejected, or chosen + rejected that begin alike",
            fix="Rename the columns of the data to prompt, chosen and rejected.",
        )


def read_preference(row: Row) -> Preference | Dropped:
    """Prompt, both answers and the margin of a row, or why it cannot be used."""
    values = row.values
    for name in ("prompt", "chosen", "rejected"):
        if fault := _fault(name, values.get(name), missing_is_fine=name == "prompt"):
            return Dropped(row.origin, fault)
    prompt, chosen, rejected = values.get("prompt"), values["chosen"], values["rejected"]
    if isinstance(chosen, str) != isinstance(rejected, str):
        return Dropped(row.origin, "one answer is text, the other messages")
    if chosen == rejected:
        return Dropped(row.origin, "chosen and rejected are the same")
    if prompt is None or _is_conversation(chosen) or _is_conversation(rejected):
        prompt, chosen, rejected = implicit_prompt(chosen, rejected)
        if not prompt:
            return Dropped(row.origin, "no prompt, and chosen and rejected do not begin alike")
    if not chosen or not rejected:
        return Dropped(row.origin, "an empty answer")
    margin = values.get("margin")
    if margin is not None and not _is_number(margin):
        return Dropped(row.origin, "margin is not a finite number")
    return Preference(prompt, chosen, rejected, None if margin is None else float(margin))


def implicit_prompt(chosen: Text, rejected: Text) -> tuple[Text, Text, Text]:
    """The common beginning, and what is left of each: of messages whole ones, of text up to the end of a word.

    >>> implicit_prompt("Q: why? A: because", "Q: why? A: beats me")
    ('Q: why? A:', ' because', ' beats me')
    """
    if isinstance(chosen, str) or isinstance(rejected, str):
        assert isinstance(chosen, str)
        assert isinstance(rejected, str)
        differ = (n for n, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b)
        same = next(differ, min(len(chosen), len(rejected)))
        words_end = (n for n in range(same, 0, -1) if chosen[n : n + 1].isspace() and rejected[n : n + 1].isspace())
        same = next(words_end, same)
        return chosen[:same], chosen[same:], rejected[same:]
    same = 0
    while same < min(len(chosen), len(rejected)) - 1 and chosen[same] == rejected[same]:
        same += 1
    return chosen[:same], chosen[same:], rejected[same:]


def _render(
    preference: Preference, index: int, origin: str, renderer: Renderer, eos_ids: Collection[int], max_length: int
) -> Pair | Dropped:
    sides = [
        render_answer(preference.prompt, answer, renderer, eos_ids, index=index, origin=origin)
        for answer in (preference.chosen, preference.rejected)
    ]
    if any(len(side.input_ids) > max_length for side in sides):
        return Dropped(origin, f"longer than {max_length} tokens")
    if sides[0].input_ids == sides[1].input_ids:
        return Dropped(origin, "chosen and rejected are the same tokens")
    if not all(any(side.completion_mask) for side in sides):
        return Dropped(origin, "nothing to compare")
    return Pair(index=index, chosen=sides[0], rejected=sides[1], margin=preference.margin)


def render_answer(
    prompt: Text, answer: Text, renderer: Renderer, eos_ids: Collection[int], *, index: int, origin: str
) -> Example:
    """Prompt and answer up to its closing EOS; what a template writes behind that is left out."""
    segments = list(answer_segments(prompt, answer, renderer, eos_ids, origin=origin))
    while segments and not segments[-1].trained:
        segments.pop()
    mask = tuple(segment.trained for segment in segments for _ in segment.ids)
    return Example(
        index=index,
        input_ids=tuple(token for segment in segments for token in segment.ids),
        completion_mask=(False, *mask[1:]) if mask else (),
    )


def _fault(name: str, value: Any, *, missing_is_fine: bool) -> str:
    """Why a value is no text and no messages; "" when it is."""
    if value is None:
        return "" if missing_is_fine else f"no value in column {name!r}"
    if isinstance(value, str):
        return "" if value.strip() or name != "prompt" else "empty prompt"
    fault = fault_in_messages(value)
    if not fault and name != "prompt" and value[-1]["role"] != "assistant":
        fault = "messages that do not end with an assistant turn"
    return f"{name}: {fault}" if fault else ""


def _is_conversation(answer: Text) -> bool:
    """Messages that begin with what came before the answer."""
    return not isinstance(answer, str) and answer[0]["role"] != "assistant"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
