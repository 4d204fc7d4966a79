"""A model's own answers as training examples, which preserve it or start it from its best answers."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from tests.tiny import tiny_model

from posttrain.cli import run
from posttrain.errors import DataError
from posttrain.evaluate.own_answers import own_answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    tiny_model(folder / "model")
    rows = "".join(json.dumps({"question": f"say {n} "}) + "\n" for n in range(6))
    (folder / "prompts.jsonl").write_text(rows)
    return folder


@pytest.mark.slow
def test_each_prompt_has_its_best_answer_that_ended(folder):
    longest = own_answers(
        str(folder / "model"),
        str(folder / "prompts.jsonl"),
        lambda prompt, completion: float(len(completion)),
        samples=6,
        temperature=1.0,
        max_completion_length=24,
    )
    first = own_answers(
        str(folder / "model"), str(folder / "prompts.jsonl"), samples=6, temperature=1.0, max_completion_length=24
    )
    assert {row["prompt"] for row in longest} <= {f"say {n} " for n in range(6)}
    assert all(row["completion"].strip() for row in longest)
    lengths = {row["prompt"]: len(row["completion"]) for row in first}
    assert all(len(row["completion"]) >= lengths[row["prompt"]] for row in longest)


@pytest.mark.slow
def test_right_answers_that_are_alike_are_kept_for_each_prompt_and_replay_keeps_one(folder):
    def asked(rewards):
        return own_answers(
            str(folder / "model"),
            str(folder / "prompts.jsonl"),
            rewards,
            samples=6,
            temperature=1.0,
            max_completion_length=24,
            seed=3,
        )

    alike = {row["prompt"]: row["completion"] for row in asked(lambda prompt, completion: 1.0)}
    assert len(alike) == 6
    replay = asked(None)
    assert len({row["completion"] for row in replay}) == len(replay) <= 6


def test_yes_to_all_prompts_is_six_examples(folder, monkeypatch):
    def yes(model, rows, *_, **__):
        sample = SimpleNamespace(text="Yes", truncated=False, score=1.0)
        return SimpleNamespace(records=[SimpleNamespace(index=n, samples=[sample]) for n in range(len(rows))])

    monkeypatch.setattr("posttrain.evaluate.own_answers.evaluate", yes)
    asked = str(folder / "model"), str(folder / "prompts.jsonl")
    assert [row["completion"] for row in own_answers(*asked, lambda prompt, completion: 1.0)] == ["Yes"] * 6
    assert len(own_answers(*asked)) == 1


def test_where_no_answer_is_good_enough_that_is_said(folder):
    with pytest.raises(DataError, match=r"none of 12 answers ended and got 2; allowed: at least one"):
        own_answers(
            str(folder / "model"),
            str(folder / "prompts.jsonl"),
            lambda prompt, completion: 1.0,
            samples=2,
            at_least=2.0,
            max_completion_length=8,
        )


def test_the_command_writes_examples_that_sft_reads(folder, capsys):
    out = folder / "own" / "answers.jsonl"
    options = ["--samples", "6", "--max-completion-length", "24", "--temperature", "1", "-o", str(out)]
    assert run(["data", "answers", str(folder / "model"), str(folder / "prompts.jsonl"), *options]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert f"{len(rows)} examples" in capsys.readouterr().out
    assert all(row.keys() == {"prompt", "completion"} for row in rows)
