"""Statistics of the answers in a step, which the alarms about length and text compare."""

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
"""Maximum number of answers per step whose text is read, so that large steps do not take long."""
EDGE = 30
"""Number of first or last tokens that make a template."""
FEW_TOKENS = 8
"""Difference in tokens from which length may be rewarded: "Yes" may have two tokens, and "No" three."""
SHORTEST_TEXT = 32
"""Bytes below which the compression ratio says more about the compressor than about the text."""


def answer_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Statistics of one step. A statistic that cannot be computed is missing.

    text/length_correlation  rank correlation of reward and length among the answers to one prompt, for prompts whose
                             answers differ by 8 tokens or more
    text/distinct_4grams     distinct sequences of four tokens / all, mean over the answers that have some
    text/compression         bytes / compressed bytes, mean over the answers of 32 bytes or more
    text/concentration       share of the answers with the most common value, minus the share of the most common gold
                             answer of their prompts; only if gold answers differ
    text/same_start, _end    largest share of the answers, to two prompts or more, with the same 30 first or last tokens
    """
    places = [(p, g) for p, group in enumerate(groups) for g in range(len(group.completions))]
    some = places[:: -(-len(places) // MOST_ANSWERS)] if places else []
    answers = [groups[p].completions[g] for p, g in some]
    sources = [(groups[p].prompt.ids, opening(groups[p].completions[g])) for p, g in some]
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


def opening(answer: Completion) -> str:
    """The messages with which an environment replaced the prompt."""
    return "" if answer.episode is None else str(answer.episode.opening)


def length_correlation(groups: Sequence[Group]) -> float:
    """Rank correlation of reward and length within groups; nan if no group has enough spread."""
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
    """Difference in tokens between the longest and the shortest answer of a group."""
    lengths = [len(answer.drawn_ids) for answer in group.completions]
    return max(lengths, default=0) - min(lengths, default=0)


def concentration(groups: Sequence[Group]) -> float:
    """Share of the answers with the most common value, minus the share of the most common gold answer.

    A value is what the first reward that extracts answers has found. If no reward does, it is the whole answer. Answers
    without a value do not count. nan if all gold answers are equal, because then one value may be right.
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
"""A number without an exponent: with one, a short text could have a value that fills the memory."""


def spelled(text: str) -> str:
    """The value that a text states: the right side of an equation, numbers by value, without space and case.

    >>> {spelled(text) for text in ("1", "1.00", " 2/2 ", "12 - 10 = 1", "x=1", "$1$")}
    {'1'}
    """
    plain = " ".join(text.rpartition("=")[2].strip(" $.").split()).casefold()
    return str(Fraction(number)) if NUMBER.fullmatch(number := plain.replace(",", "")) else plain


def compression(answer: Completion) -> float | None:
    """Compression ratio of the answer's text; None if the text is too short."""
    text = answer.text.encode("utf-8", errors="replace")
    return len(text) / len(zlib.compress(text, 6)) if len(text) >= SHORTEST_TEXT else None


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else float("nan")
