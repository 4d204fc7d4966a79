"""Real golds against themselves in the spellings that models use, and real solutions against human labels."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.catalogue import few

from posttrain.verify.mathematics.golds import math_gold
from posttrain.verify.mathematics.presets import aime, gsm8k, math, math500, numeric, svamp
from posttrain.verify.verdict import Verdict

MATH = Path(__file__).parents[3] / "shared" / "data" / "math"
pytestmark = pytest.mark.skipif(not MATH.is_dir(), reason="the shared data folder is not there")

LATEX = [
    "\\boxed{{{0}}}",
    "Therefore the answer is $\\boxed{{{0}}}$.",
    "\\[ \\boxed{{{0}}} \\]",
    "The answer is ${0}$.",
    "**Final Answer:** ${0}$",
    "Final Answer: The final answer is ${0}$. I hope it is correct.",
    "<think>It could be \\boxed{{-99}}.</think>\n\n\\boxed{{{0}}}",
    "<answer>{0}</answer>",
    "We find\n$${0}$$",
]
PLAIN = [
    *LATEX,
    "#### {0}",
    "#### {0}.",
    "The answer is {0}.",
    "So there are {0}.",
    "She has 3 + 4 of them.\nA: {0}",
    "{0}",
]


def rows(name: str) -> list[dict]:
    content = (MATH / name).read_bytes()
    return [json.loads(line) for line in (gzip.decompress(content) if name.endswith(".gz") else content).splitlines()]


def rejected(verifier: Callable[..., Verdict], golds: list, renderings: list[str]) -> list[tuple]:
    return [
        (gold, rendering, verdict)
        for gold in golds
        for rendering in renderings
        if (verdict := verifier(rendering.format(math_gold(gold)), gold)) != 1.0
    ]


@pytest.mark.parametrize(
    ("file", "column", "verifiers"),
    [
        ("gsm8k_test.jsonl", "answer", (gsm8k, numeric, math)),
        ("svamp_test.jsonl", "Answer", (svamp, math)),
        ("aime_2024.jsonl", "answer", (aime, numeric)),
        ("aime_2025.jsonl", "answer", (aime, math)),
        ("aime_1983_2023.jsonl", "answer", (aime,)),
    ],
)
@pytest.mark.parametrize("every", few([1, 29], 29))
def test_every_number_is_right_for_itself_however_it_is_given(file, column, verifiers, every):
    golds = [row[column] for row in rows(file)][::every]
    for verifier in verifiers:
        assert rejected(verifier, golds, PLAIN) == []
    for gold in golds:
        assert verifiers[0](f"\\boxed{{{math_gold(gold)}1}}", gold) == 0.0


@pytest.mark.parametrize("every", few([1, 13], 13))
def test_every_gold_of_math500_is_right_for_itself_however_it_is_given(every):
    golds = [row["answer"] for row in rows("math500.jsonl")][::every]
    for verifier in (math, math500):
        assert rejected(verifier, golds, LATEX) == []
    fractions = [gold for gold in golds if "\\frac" in gold]
    for gold in fractions:
        assert math(f"\\boxed{{{gold.replace(chr(92) + 'frac', chr(92) + 'dfrac')}}}.", gold) == 1.0


def test_every_solution_of_math500_is_accepted():
    """The test uses the data set's preset: two solutions write 10% if the gold is 10."""
    solutions = rows("math500.jsonl")
    assert [row["solution"] for row in solutions if math500(row["solution"], row["answer"]) != 1.0] == []
    assert [row["answer"] for row in solutions if math(row["solution"], row["answer"]) != 1.0] == ["10", "10"]


def test_no_gold_of_math500_is_right_for_another():
    golds = [row["answer"] for row in rows("math500.jsonl")]
    accepted = [
        (one, other)
        for one, other in zip(golds, golds[1:] + golds[:1], strict=True)
        if math(f"\\boxed{{{one}}}", other) == 1.0
    ]
    assert [pair for pair in accepted if pair[0] != pair[1]] == [("5", "x=5")]


@pytest.mark.slow
def test_every_gold_of_math_train_is_right_for_itself():
    golds = [row["answer"] for row in rows("math_train.jsonl.gz") if row["answer"]]  # four rows have none
    assert rejected(math, golds, LATEX[:2]) == []


@pytest.mark.parametrize("every", few([1, 5], 5))
def test_real_solutions_are_judged_as_people_did(every):
    """5,276 solutions of four models, labelled by OpenAI; the models were trained to end in `A: N`."""
    models = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    solutions = [
        (row[model]["solution"], row["ground_truth"].rpartition("A: ")[2], row[model]["is_correct"])
        for row in rows("gsm8k_model_solutions.jsonl.gz")
        for model in models
    ]
    assert len(solutions) == 5276
    assert [solution for solution, gold, label in solutions[::every] if gsm8k(solution, gold) != float(label)] == []
