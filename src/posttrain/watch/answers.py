"""Statistics of the answers in a step: the numbers that the alarms about length and text compare."""

from __future__ import annotations

import re
import statistics
import zlib
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from posttrain.functional.texts import distinct_ngrams, shared_share, spearman_within

if TYPE_CHECKING:
    from posttrain.experience.group import Group
    from posttrain.types import Completion

MOST_ANSWERS = 256
"""Answers of a step whose text is looked into: a count that no large step has to wait for."""
EDGE = 30
"""Tokens that make a template."""
FEW_TOKENS = 8
"""Tokens by which answers have to differ before length can be paid for: "Yes" may have two and "No" three."""
SHORTEST_TEXT = 32
"""Bytes below which compression says more about the compressor than about the text."""


def answer_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Numbers of one step; one that nothing can be said about is missing.

    text/length_correlation  rank correlation of reward and length among the answers to one prompt, of the prompts whose
                             answers differ by 8 tokens or more
    text/distinct_4grams     different sequences of four tokens / all, mean over the answers that have some
    text/compression         bytes / bytes when compressed, mean over the answers of 32 bytes or more
    text/concentration       share of the answers with the most common value - that of the most common gold answer of
                             their prompts; where golds differ
    text/same_start, _end    largest share of the answers, to two prompts or more, with the same 30 first or last tokens
    """
    places = [(p, g) for p, group in enumerate(groups) for g in range(len(group.completions))]
    some = places[:: -(-len(places) // MOST_ANSWERS)] if places else []
    answers = [groups[p].completions[g] for p, g in some]
    sources = [groups[p].prompt.index for p, _ in some]
    drawn = [answer.drawn_ids for answer in answers]
    ratios = [distinct_ngrams(ids, 4) for ids in drawn if len(ids) >= 4]
    found = {
        "text/length_correlation": length_correlation(groups),
        "text/distinct_4grams": mean(ratios),
        "text/concentration": concentration(groups),
        "text/compression": mean([r for answer in answers if (r := compression(answer)) is not None]),
        "text/same_start": shared_share([(s, ids[:EDGE]) for s, ids in zip(sources, drawn, strict=True)]),
        "text/same_end": shared_share([(s, ids[-EDGE:]) for s, ids in zip(sources, drawn, strict=True)]),
    }
    return {name: value for name, value in found.items() if value == value}


def length_correlation(groups: Sequence[Group]) -> float:
    """nan where no group tells."""
    return spearman_within(
        [
            [
                (group.scores.rewards_PG[0][g], len(answer.drawn_ids))
                for g, answer in enumerate(group.completions)
                if group.scores.scored_PG[0][g]
            ]
            for group in groups
            if group.scores is not None and spread(group) >= FEW_TOKENS
        ]
    )


def spread(group: Group) -> int:
    """Tokens between its shortest and its longest answer."""
    lengths = [len(answer.drawn_ids) for answer in group.completions]
    return max(lengths, default=0) - min(lengths, default=0)


def concentration(groups: Sequence[Group]) -> float:
    """Share of the answers with the most common value, less that of the most common gold answer of the same prompts.

    A value is what the first reward that reads answers has extracted, of others the whole answer; where none could be
    read there is none. nan where no golds differ: then one value may be right.
    """
    golds = Counter[str]()
    values = Counter[str]()
    for group in groups:
        gold = group.prompt.columns.get("answer")
        if gold is None:
            return float("nan")
        golds[spelled(str(gold).rpartition("####")[2])] += len(group.completions)
        values.update(value for value in values_of(group) if value)
    total = sum(golds.values())
    if len(golds) < 2:
        return float("nan")
    return (max(values.values(), default=0) - max(golds.values())) / total


def values_of(group: Group) -> list[str]:
    verdicts = group.scores.verdicts.values() if group.scores is not None else ()
    read = [[found.extracted if found is not None else None for found in verdict_PG[0]] for verdict_PG in verdicts]
    reads = next((row for row in read if any(row)), None)
    return [spelled(value or "") for value in reads or (answer.text for answer in group.completions)]


NUMBER = re.compile(r"[+-]?\d{1,30}(\.\d{0,30}|/0*[1-9]\d{0,29})?", re.ASCII)
"""Without an exponent: a short text could have a value that fills the memory."""


def spelled(text: str) -> str:
    """The value that a text states: the right side of an equation, a number by its value; space and case do not matter.

    >>> {spelled(text) for text in ("1", "1.00", " 2/2 ", "12 - 10 = 1", "x=1", "$1$")}
    {'1'}
    """
    plain = " ".join(text.rpartition("=")[2].strip(" $.").split()).casefold()
    return str(Fraction(number)) if NUMBER.fullmatch(number := plain.replace(",", "")) else plain


def compression(answer: Completion) -> float | None:
    """None for a text that is too short."""
    text = answer.text.encode("utf-8", errors="replace")
    return len(text) / len(zlib.compress(text, 6)) if len(text) >= SHORTEST_TEXT else None


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else float("nan")
