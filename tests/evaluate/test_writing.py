"""Every run whose model generates text measures its writing, and the verdict says where it got worse."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.catalogue import catalogue, few
from tests.evaluate.judging import says_good
from tests.report.synthetic_run import evaluation
from tests.tiny import tiny_model

import posttrain
from posttrain.evaluate import writing
from posttrain.evaluate.row_scores import RowScores
from posttrain.evaluate.writing import Written, same, writing_changes, writing_measures
from posttrain.report.page import write_report
from posttrain.report.store import read_run
from posttrain.report.verdict import in_brief, verdict
from posttrain.report.writing import writes_worse

PAIRS = [{"prompt": f"say {n} ", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(24)]
DATA = {
    "examples": [{"prompt": row["prompt"], "completion": row["chosen"]} for row in PAIRS],
    "texts": [{"text": row["prompt"] + row["chosen"]} for row in PAIRS],
    "pairs": PAIRS,
    "prompts": [{"prompt": row["prompt"], "answer": row["chosen"]} for row in PAIRS],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("writing")
    tiny_model(folder / "model")
    for name, rows in DATA.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def train(folder, name, algorithm, data, **more):
    config = {
        "model": str(folder / "model"),
        "algorithm": algorithm,
        "data": {"train": str(folder / f"{data}.jsonl"), "eval_fraction": 0.25},
        "train": {"steps": 2, "prompts_per_step": 4, "learning_rate": 1e-3},
        "sampling": {"group_size": 2, "max_completion_length": 8},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / name),
        "report": False,
    }
    return posttrain.train(config, **more)


@pytest.fixture(scope="module")
def ranked(folder):
    """A run of DPO with the usual settings, for the tests that only read it."""
    return train(folder, "dpo", "dpo", "pairs")


@pytest.mark.slow
def test_every_run_whose_model_writes_answers_before_and_after(folder, ranked):
    rewarded = {"rewards": [{"name": "exact_match"}]}
    runs = {
        "sft": train(folder, "sft", "sft", "examples"),
        "texts": train(folder, "texts", "sft", "texts"),
        "dpo": ranked,
        "kto": train(folder, "kto", "kto", "pairs"),
        "orpo": train(folder, "orpo", "orpo", "pairs", **{"data.eval_fraction": 0.0}),
        "grpo": train(folder, "grpo", "grpo", "prompts", **rewarded),
    }
    for name, run in runs.items():
        found = run.evaluation["writing"]
        assert found["of"] == ("training prompts" if name == "orpo" else "held-out prompts"), name
        assert found["prompts"] == (8 if name == "orpo" else 6), name
        for side in ("baseline", "trained", "difference"):
            assert {"repetition", "same", "ended", "length"} <= found[side].keys(), (name, side)
        assert read_run(run.folder).evaluation["writing"] == found
    reward_model = train(folder, "reward-model", "reward_model", "pairs")
    assert "writing" not in reward_model.evaluation


@pytest.mark.slow
def test_a_run_that_samples_its_evaluations_draws_no_other_answers(folder):
    run = train(folder, "reused", "grpo", "prompts", rewards=[{"name": "exact_match"}])
    lines = (run.folder / "evaluations" / "trained.jsonl").read_text().splitlines()
    shown = json.loads((run.folder / "evaluations" / "trained-writing.json").read_text())["answers"]
    assert [answer["ids"] for answer in shown] == [json.loads(line)["greedy"]["ids"] for line in lines]


@pytest.mark.parametrize(
    ("algorithm", "data"),
    few([("sft", "examples"), ("dpo", "pairs"), ("kto", "pairs")], ("sft", "examples"), ("dpo", "pairs")),
)
def test_a_check_judges_the_answers_of_a_run_on_given_data_before_and_after(folder, algorithm, data):
    run = train(folder, f"checked-{algorithm}", algorithm, data, check=[says_good], evaluation={"writing": 4})
    checked = run.evaluation["check"]["says_good"]
    for side in ("baseline", "trained"):
        answers = Written.read(run.folder / "evaluations", side).answers
        scores = [says_good(answer["prompt"], answer["text"]) for answer in answers]
        assert [answer["check"]["says_good"] for answer in answers] == pytest.approx(scores)
        assert checked[side]["mean"] == pytest.approx(sum(scores) / len(scores))
        assert checked[side]["n"] == 4
    told = " ".join(verdict(read_run(run.folder)).sentences)
    assert "The independent check “says_good”, which training never saw, went from" in told


@pytest.mark.slow
def test_a_check_changes_nothing_in_training(folder, ranked):
    checked = train(folder, "beside-check", "dpo", "pairs", check=[says_good])
    first, second = (Path(run.model_path) / "model.safetensors" for run in (ranked, checked))
    assert first.read_bytes() == second.read_bytes()


def test_a_check_without_answers_is_refused(folder):
    with pytest.raises(posttrain.errors.ConfigError, match="writing = 0"):
        train(folder, "unchecked", "dpo", "pairs", check=[says_good], evaluation={"writing": 0})


def test_without_it_the_run_is_the_same_bit_for_bit(folder, ranked):
    on, off = ranked, train(folder, "unwritten", "dpo", "pairs", **{"evaluation.writing": 0})
    assert ["writing" in run.evaluation for run in (on, off)] == [True, False]
    weights = [run.trainer.loaded.model.state_dict() for run in (on, off)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert [row["loss"] for row in on.metrics] == [row["loss"] for row in off.metrics]
    assert on.evaluation["trained"] == off.evaluation["trained"]


def test_the_page_shows_both_answers_to_a_prompt(ranked, tmp_path):
    run = Path(shutil.copytree(ranked.folder, tmp_path / "run"))
    page = write_report(run).read_text()
    assert all(words in page for words in ("before training", "after training", "say"))
    assert any("How it writes" in sentence for sentence in verdict(read_run(run)).sentences)
    told = [json.loads(line)["message"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert any(message.startswith("How it writes, by greedy answers to 6 held-out prompts") for message in told)


# --- the rule --------------------------------------------------------------------------------------------------------


def written(texts, *, loss=2.0, prompts=8):
    answers = [
        {"index": n, "prompt": f"q{n}", "text": texts(n), "ids": [*texts(n).encode()], "ended": True}
        for n in range(prompts)
    ]
    text = RowScores([-loss * 50 * (1 + 0.01 * n) for n in range(10)], [50] * 10)
    return Written(answers=answers, text=text, text_bytes=2000)


def varied(n):
    return f"answer number {n} has its own words: {'abcdefghijklmnop'[n : n + 4]}"


GOOD = written(varied)
CASES = {
    "as before": (written(lambda n: varied(n).upper()), {}, []),
    "one answer to everything": (written(lambda n: "29.1970.1 291"), {}, ["the same answer"]),
    "one answer, as in the data": (written(lambda n: "yes"), {"same": 0.9}, []),
    "empty": (written(lambda n: ""), {}, ["the same answer"]),
    "a loop": (written(lambda n: f"{n} " + "la la " * 20), {}, ["repeat themselves"]),
    "a loop, as in the data": (written(lambda n: f"{n} " + "la la " * 20), {"repetition": 0.9}, []),
    "no English any more": (written(varied, loss=3.0), {}, ["perplexity"]),
    "a little less English": (written(varied, loss=2.3), {}, []),
    "longer": (written(lambda n: varied(n) + f" and more of it, {n * 7919} times, before the end"), {}, []),
}


@catalogue("name", CASES)
def test_what_counts_as_worse(name):
    after, given, expected = CASES[name]
    found = writes_worse(content(GOOD, after, given))
    assert [word for word, said in zip(expected, found, strict=True) if word in said] == expected


def content(before, after, given=None):
    changes = writing_changes(before, after, 0.95)
    sides = {"baseline": writing_measures(before, 0.95), "trained": writing_measures(after, 0.95)}
    return {"writing": {"prompts": 8, "given": given or {}, **sides, "difference": changes}}


def test_a_model_that_never_knew_english_cannot_forget_it():
    before, after = written(varied, loss=14.0), written(varied, loss=20.0)  # 7 bits per byte before
    assert writes_worse(content(before, after)) == []


def pairs(share):
    return {
        "pairs": 60,
        "ranked_by": "sequence log-probability",
        "accuracy": {"mean": share, "low": share - 0.08, "high": share + 0.08, "n": 60},
    }


def test_ranks_better_and_writes_worse_is_a_verdict_of_its_own(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"kind": "end", "message": "finished"}\n')
    run = read_run(tmp_path)
    sides = {"baseline": pairs(0.47), "trained": pairs(0.9)}
    worse = content(GOOD, written(lambda n: "29.1970.1 291"))
    assert verdict(replace(run, evaluation=sides)).headline == "The model improved."
    found = verdict(replace(run, evaluation={**sides, **worse}))
    assert found.headline == ("The model ranks better and writes worse: it gives different prompts the same answer.")
    assert (found.tone, found.change) == ("bad", 0)
    brief = in_brief(replace(run, evaluation={**sides, **worse}))
    assert brief["writes_worse"] == ["it gives different prompts the same answer"]
    unmeasured = verdict(replace(run, evaluation=worse))
    assert unmeasured.headline.startswith("No held-out evaluation. The model writes worse")
    answers = {"baseline": evaluation(0.2), "trained": evaluation(0.9)}  # no independent check judges them
    found = verdict(replace(run, evaluation={**answers, **worse}))
    assert found.headline == "The model improved. It writes worse: it gives different prompts the same answer."


def test_a_score_that_rises_on_equal_answers_is_told_so(tmp_path):
    """A score without right and wrong, such as that of a reward model, may favour one answer to everything."""
    (tmp_path / "events.jsonl").write_text('{"kind": "end", "message": "finished"}\n')
    score = {"mean": 0.1, "low": 0.0, "high": 0.2, "n": 60}
    sides = {
        "baseline": {"prompts": 60, "score_range": [-1.0, 1.2], "greedy": {"score": score}},
        "trained": {
            "prompts": 60,
            "score_range": [-1.0, 1.2],
            "greedy": {"score": {**score, "mean": 0.9, "low": 0.8, "high": 1.0}},
        },
    }
    run = replace(read_run(tmp_path), evaluation={**sides, **content(GOOD, written(lambda n: "I'm sorry."))})
    found = verdict(run)
    assert found.headline == "The model improved. It writes worse: it gives different prompts the same answer."
    assert (found.tone, found.change) == ("bad", 1)
    others = {"drift": {"mean": 0.01, "low": 0.0, "high": 0.02, "n": 60}, "max_drift": 0.2, "prompts": 60}
    bounded = verdict(replace(run, evaluation={**run.evaluation, "others": others}))
    assert bounded.headline == (
        "The model improved, and on other prompts it stays within the bound. "
        "It writes worse: it gives different prompts the same answer."
    )


def test_the_most_common_answer_of_different_prompts():
    for texts, expected in (
        ([], []),
        (["a"], [0]),
        (["a", "b"], [0, 0]),
        (["a", " a ", "b"], [1, 1, 0]),
        (["", "", ""], [1, 1, 1]),
    ):
        assert same(texts) == expected


def test_answers_of_the_data_are_measured_in_the_same_units_as_those_of_the_model():
    """A model that reproduces the answers exactly gets their values, whatever its tokenizer's tokens are."""
    for text in ("好好学习天天向上好好学习天天向上", '{"a": 1, "b": 1, "c": 1}', "abab abab abab", "yes"):
        ids = [ord(letter) for letter in text]
        given = writing.given_measures([writing.Given(text, ids), writing.Given(text + "!", [*ids, 33])])
        drawn = [writing.answer_record(n, "?", text, one, False) for n, one in enumerate([ids, [*ids, 33]])]
        assert given["repetition"] == pytest.approx(sum(writing.columns_of(drawn)["repetition"]) / 2), text


def test_a_collapse_onto_a_few_answers_is_seen_like_one_onto_a_single_one():
    assert writing.same([f"answer {n % 4}" for n in range(16)]) == [1.0] * 16
    assert writing.same([f"answer {n}" for n in range(16)]) == [0.0] * 16
