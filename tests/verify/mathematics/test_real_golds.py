"""The golds of MATH, MATH-500, AIME, SVAMP and GSM8K: each can be read and equals its usual renderings only."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from tests.catalogue import few

from posttrain.verify.mathematics.compare import same
from posttrain.verify.mathematics.guard import Unreadable
from posttrain.verify.mathematics.options import Options
from posttrain.verify.mathematics.parse import parse
from posttrain.verify.mathematics.values import Number, Unread, Value

MATH = Path(__file__).parents[4] / "shared" / "data" / "math"
pytestmark = pytest.mark.skipif(not MATH.is_dir(), reason="the shared data folder is not there")
OPTIONS = Options()


def rows(name: str) -> list[dict]:
    path = MATH / name
    data = path.read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    return [json.loads(line) for line in text.splitlines()]


def golds() -> list[str]:
    names = ("math_train.jsonl.gz", "math500.jsonl", "aime_1983_2023.jsonl", "aime_2024.jsonl", "aime_2025.jsonl")
    found = {str(row["answer"]) for name in names for row in rows(name) if row["answer"]}
    found |= {str(row["Answer"]) for row in rows("svamp_test.jsonl")}
    found |= {row["answer"].rpartition("####")[2].strip() for row in rows("gsm8k_test.jsonl")}
    return sorted(found)


def renderings(gold: str) -> set[str]:
    plain = gold.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    unsized = gold.replace("\\left", "").replace("\\right", "")
    unbroken = gold if "\\ " in gold or "phantom" in gold else gold.replace(" ", "~")
    return {
        gold, plain, plain.replace("\\frac", "\\dfrac"), unsized, unbroken, f"{gold}.", f" {gold.replace(' ', '  ')} ",
        f"\\({gold}\\)", gold if "\\$" in gold else f"${gold}$", gold.replace(",", ", ") if "(" in gold else gold,
    }  # fmt: skip


def judged(gold: Value, given: str | Value) -> bool | str | None:
    try:
        return same(gold, parse(given, OPTIONS) if isinstance(given, str) else given, OPTIONS)
    except Unreadable as unreadable:
        return unreadable.reason


def test_every_gold_is_read_without_an_algebra_system():
    kinds = Counter(type(parse(gold, OPTIONS, gold=True).meaning) for gold in golds())
    assert kinds[Unread] == 0
    assert sum(kinds.values()) > 3_000


@pytest.mark.parametrize("every", few([1, 8], 8))
def test_every_gold_is_itself_in_every_rendering(every: int):
    wrong = [
        (gold, given, answer)
        for gold in golds()[::every]
        for value in [parse(gold, OPTIONS, gold=True)]
        for given in renderings(gold)
        if (answer := judged(value, given)) is not True
    ]
    assert wrong == []


@pytest.mark.parametrize("every", few([2, 6], 6))
def test_two_golds_are_the_same_only_when_they_are_spelled_alike(every: int):
    """The test compares 22,000 pairs of golds that are no plain numbers, or 195,000 with every second gold; the pairs
    that differ in more than spelling are listed."""
    values = [(gold, parse(gold, OPTIONS, gold=True)) for gold in golds()]
    chosen = [(gold, value) for gold, value in values if not isinstance(value.meaning, Number)][::every]
    found = set()
    for (one, first), (other, second) in itertools.combinations(chosen, 2):
        verdicts = judged(first, second), judged(second, first)
        assert None not in verdicts, f"{one} and {other} would need algebra"
        if True in verdicts and _letters(one) != _letters(other):
            found.add((one, other))
    there = {gold for gold, _ in chosen}
    assert found == {pair for pair in SAME if there.issuperset(pair)}


SAME = {
    ("-\\frac{1}{\\sqrt{2}}", "-\\frac{\\sqrt{2}}{2}"),
    ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"),
    ("\\frac{1}{\\sqrt{3}}", "\\frac{\\sqrt{3}}{3}"),
    ("1 - 2x", "y=-2x+1"),
}
"""Pairs of golds that are the same and differ in more than spelling."""


def _letters(text: str) -> list[str]:
    """The sorted characters of the text, without those that only control the typesetting."""
    for command in ("\\left", "\\right", "\\text", "\\!", "\\,", "frac", "tfrac", "dfrac"):
        text = text.replace(command, "")
    return sorted(character for character in text if character.isalnum())
