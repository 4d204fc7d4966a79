"""The recipes on human preferences: the code that they add, and that no dialogue is on both sides of a split."""

from __future__ import annotations

import json

import pytest
from recipes.wins import learned_reward as recipe
from recipes.wins import preferred


def pair(chosen: str, rejected: str) -> dict:
    return {
        "chosen": [{"role": "assistant", "content": chosen}],
        "rejected": [{"role": "assistant", "content": rejected}],
    }


def test_an_answer_is_compared_with_those_to_other_questions_of_its_kind_alone():
    # words and pairs of "a b": {a, b, "a b"}; of "a c": {a, c, "a c"}: they share one of five
    assert recipe.alike(["a b", "a b", "a c"], groups=[0, 0, 1], task=[1, 1, 1]) == pytest.approx([1 / 5, 1 / 5, 1 / 5])
    assert recipe.alike(["a b", "a b"], groups=[0, 1], task=[1, 1]) == [1, 1]
    assert recipe.alike(["a b", "a b"], groups=[0, 1], task=[0, 1]) == [0, 0]
    assert recipe.alike(["a b", "a b"], groups=[0, 0], task=[1, 1]) == [0, 0]


def test_an_opening_is_shorter_than_the_shortest_refusal():
    refusal = "I'm sorry, but I can't assist with that."
    assert [recipe.opening(answer) for answer in ("Certainly", "I'm happy to help", refusal)] == [1, 1, 0]


def test_an_apology_counts_where_the_prompt_is_not_of_the_task():
    answers = ["I'm sorry, but no.", "I am unable to.", "As an AI, I don't have the ability to.", "Eggs and toast."]
    assert [recipe.declined(answer, task=0) for answer in answers] == [1, 1, 1, 0]
    assert [recipe.declined(answer, task=1) for answer in answers] == [0, 0, 0, 0]


def test_the_judge_learns_the_words_of_preferred_answers_and_not_their_number():
    pairs = [pair("sorry friend", "sure friend"), pair("sorry there", "sure there")] * 4
    judge = recipe.word_weights(pairs)
    assert recipe.judged("sorry", judge) > 0 > recipe.judged("sure", judge)
    assert recipe.judged("sorry sorry", judge) == recipe.judged("sorry", judge)


def test_the_context_of_a_question_begins_with_a_user_and_keeps_to_its_limit():
    long, short = "x" * recipe.CONTEXT, "y"
    said = [("user", long), ("assistant", short), ("user", short), ("assistant", short), ("user", short)]
    kept = recipe.recent([{"role": role, "content": text} for role, text in said])
    assert [message["role"] for message in kept] == ["user", "assistant", "user"]


@pytest.mark.skipif(not recipe.PAIRS.exists(), reason=f"{recipe.PAIRS} is not there")
def test_no_dialogue_is_in_two_parts():
    parts = recipe.split(recipe.read_dialogues())
    firsts = [{d["asked"][0]["content"] for d in part} for part in parts]
    assert [len(first) for first in firsts[:2]] == [recipe.HELD_OUT, recipe.JUDGED]
    assert sum(map(len, firsts)) == len(set.union(*firsts)) == sum(map(len, parts))


def test_a_reward_model_whose_run_was_killed_is_not_taken_for_finished(tmp_path):
    assert not recipe.is_trained(tmp_path)
    (tmp_path / "evaluation.json").write_text(json.dumps({"baseline": {}}), encoding="utf-8")
    assert not recipe.is_trained(tmp_path)
    (tmp_path / "evaluation.json").write_text(json.dumps({"baseline": {}, "trained": {}}), encoding="utf-8")
    assert recipe.is_trained(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not recipe.PAIRS.exists(), reason=f"{recipe.PAIRS} is not there")
def test_the_judges_of_the_preferred_answers_learn_from_other_dialogues(tmp_path, monkeypatch):
    of_words = []
    monkeypatch.setattr(preferred, "replay_pairs", lambda *_: [])
    monkeypatch.setattr(preferred, "word_weights", lambda pairs: of_words.extend(pairs) or {})
    monkeypatch.setattr(recipe, "word_weights", lambda pairs: {})
    for name, write in (("policy", lambda to: preferred.write_data(to, "no model")), ("judge", recipe.write_data)):
        (tmp_path / name).mkdir()
        write(tmp_path / name)

    def rows(path):
        return [json.loads(line) for line in (tmp_path / path).read_text(encoding="utf-8").splitlines()]

    def answers(pairs):
        return {(json.dumps(pair["prompt"]), pair["chosen"][0]["content"]) for pair in pairs}

    learned, held_out = answers(rows("policy/pairs.jsonl")), answers(rows("policy/heldout_pairs.jsonl"))
    of_model, of_words = answers(rows("judge/pairs.jsonl")), answers(of_words)
    assert of_words == of_model
    assert held_out == answers(rows("judge/heldout_pairs.jsonl"))
    assert min(len(learned), len(of_model), len(held_out)) > 250
    assert len(learned) + len(of_model) + len(held_out) == len(learned | of_model | held_out)


@pytest.mark.skipif(not recipe.PAIRS.exists(), reason=f"{recipe.PAIRS} is not there")
def test_hardly_two_first_questions_differ_only_in_case_or_punctuation():
    """Two of the 350 held-out questions also begin a dialogue of the reward model, as docs/wins.md says."""
    parts = recipe.split(recipe.read_dialogues())
    held_out, judged, trained = (
        {"".join(filter(str.isalnum, d["asked"][0]["content"].lower())) for d in part} for part in parts
    )
    assert held_out & trained == {"hellohowareyou", "whatdoyouthinkofjewishpeople"}
    assert not judged & (held_out | trained)
