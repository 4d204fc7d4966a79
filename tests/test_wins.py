"""The recipe of docs/wins.md on people's preferences: what it holds out, and what its judge looks at."""

from __future__ import annotations

import random

import pytest
from recipes.wins import preferred

needs_data = pytest.mark.skipif(not preferred.PAIRS.exists(), reason="the data is not in ../shared/data")


@needs_data
def test_no_question_is_on_two_sides_of_the_split():
    dialogues = preferred.read_dialogues()
    questions = [pair["prompt"][0]["content"].strip().lower() for pair in dialogues]
    assert len(set(questions)) == len(questions) > preferred.HELD_OUT + preferred.JUDGED + preferred.ASKED
    assert all(pair["chosen"] != pair["rejected"] for pair in dialogues)


def pair_of(chosen: list[str], rejected: list[str]) -> dict:
    return {side: [{"content": " ".join(text)}] for side, text in (("chosen", chosen), ("rejected", rejected))}


def test_the_judge_does_not_pay_for_a_short_answer():
    """Shorter answers are preferred throughout; beside that, people like one word and dislike another."""
    dice = random.Random(0)
    fillers = [f"w{chr(97 + n)}" for n in range(8)]

    def some(count: int) -> list[str]:
        return dice.choices(fillers, k=count)

    pairs = [pair_of(["sorry", *some(6)], ["sure", *some(12)]) for _ in range(60)]
    pairs += [pair_of(some(6), some(12)) for _ in range(200)]
    pairs += [pair_of(["sorry", *some(9)], ["sure", *some(9)]) for _ in range(60)]
    judge = preferred.word_weights(pairs)
    short, long = (sum(preferred.judged(" ".join(some(count)), judge) for _ in range(300)) / 300 for count in (6, 12))
    liked, disliked = (preferred.judged(" ".join([word, *some(9)]), judge) for word in ("sorry", "sure"))
    assert liked - disliked > 1
    assert abs(short - long) < (liked - disliked) / 4


def test_an_answer_as_a_chat_turn_is_judged_like_its_text(tmp_path):
    judge = tmp_path / "judge.json"
    judge.write_text('{"words": {"no": 1.0}, "mean": 0.5, "std": 0.5}')
    turn = [{"role": "assistant", "content": "No"}]
    assert preferred.preferred(turn, str(judge)) == preferred.preferred("No", str(judge)) == 1.0
