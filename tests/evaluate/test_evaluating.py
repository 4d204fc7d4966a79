"""`evaluate` on a real (random, tiny) model: the answers, their scores, and refused arguments."""

import json

import numpy as np
import pandas
import pytest
import torch
from datasets import Dataset, DatasetDict
from tests.tiny import tiny_model, write_prompts
from transformers import AutoModelForCausalLM, AutoTokenizer

import posttrain
from posttrain.config import ModelConfig
from posttrain.errors import ConfigError, DataError, RewardError
from posttrain.evaluate.api import evaluate
from posttrain.evaluate.evaluation import Evaluation
from posttrain.evaluate.forgetting import read_texts, reference_loss
from posttrain.models.load import load_model
from posttrain.report.heldout import measure_of
from posttrain.rewards import Reward


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_prompts(tmp_path_factory.mktemp("data") / "prompts.jsonl", count=6)


def ends_early() -> Reward:
    """A reward that is right about every second time, so that no score is 0 or 1. A lambda runs in a thread."""
    return Reward(function=lambda prompt, completion: float(len(completion) % 2 == 0), label="ends_early")


def test_greedy_answers_are_those_of_transformers_token_for_token(folder, data):
    found = evaluate(folder, data, "exact_match", k=0, max_completion_length=8)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for record in found.records:
        ids = tokenizer(record.prompt, return_tensors="pt").input_ids
        output = model.generate(ids, do_sample=False, max_new_tokens=8, pad_token_id=tokenizer.pad_token_id)
        assert list(record.greedy.ids) == output[0, ids.shape[1] :].tolist()


def test_the_same_seed_gives_the_same_answers_and_another_one_others(folder, data):
    first, again, other = (
        evaluate(folder, data, ends_early(), k=4, max_completion_length=8, seed=seed) for seed in (0, np.int64(0), 1)
    )
    assert first.records == again.records
    assert first.to_json() == again.to_json()
    assert [r.samples for r in first.records] != [r.samples for r in other.records]
    assert [r.greedy for r in first.records] == [r.greedy for r in other.records]


def test_numbers_are_those_of_the_records(folder, data):
    found = evaluate(folder, data, ends_early(), k=4, max_completion_length=8)
    right = [[answer.correct for answer in record.samples] for record in found.records]
    assert found.pass_at_k[1].mean == pytest.approx(sum(map(sum, right)) / 24)
    assert found.pass_at_k[4].mean == pytest.approx(sum(map(any, right)) / 6)
    assert found.truncated == sum(record.greedy.truncated for record in found.records) / 6
    assert all(len(record.samples) == 4 for record in found.records)


@pytest.mark.parametrize("bonus", ["always", "often"])
def test_a_bonus_that_is_paid_for_wrong_answers_makes_none_right(folder, data, bonus):
    def always(completion):
        return 1.0

    def often(completion):
        return float(len(completion) % 2 == 0)

    found = evaluate(
        folder, data, ["exact_match", {"always": always, "often": often}[bonus]], k=4, max_completion_length=8
    )
    assert found.rewards["exact_match"].mean == 0 < found.greedy_score.mean
    assert (found.greedy_accuracy.mean, found.pass_at_1.mean, found.pass_at_k[4].mean) == (0, 0, 0)
    shown = dict(found.rows())
    assert shown["greedy accuracy"].mean == 0 < shown["greedy score"].mean
    assert found.to_json()["verifiers"] == ["exact_match"]


def test_a_verifier_behind_a_shut_gate_decides_nothing(folder):
    def odd(completion, row):
        return float(row % 2)

    def even(completion, row):
        return float(row % 2 == 0)

    rows = [{"prompt": prompt, "answer": "", "row": row} for row, prompt in enumerate(["ab", "cd", "ef", "gh"])]
    answers = [record.greedy.text for record in evaluate(folder, rows, odd, k=0, max_completion_length=4).records]
    rows = [row | {"answer": text} for row, text in zip(rows, answers, strict=True)]
    rewards = [
        Reward(function=odd, weight=0),
        Reward(function=even, weight=0),
        Reward(name="exact_match", gate="odd"),
        Reward(name="exact_match", label="other", gate="even"),
    ]
    found = evaluate(folder, rows, rewards, k=0, max_completion_length=4)
    assert found.verifiers == ("exact_match", "other")
    assert found.greedy_accuracy.mean == found.greedy_score.mean == 1
    shut = [Reward(function=odd, weight=0), Reward(name="exact_match", gate="odd")]
    assert evaluate(folder, rows, shut, k=0, max_completion_length=4).greedy_accuracy.mean == 0.5


def test_of_two_own_rewards_nobody_knows_which_tells_what_is_right(folder, data):
    def never(completion):
        return 0.0

    found = evaluate(folder, data, [never, ends_early()], k=2, max_completion_length=8)
    assert found.score_range == (0.0, 1.0)
    assert not any("accuracy" in name or "pass@" in name or "majority@" in name for name, _ in found.rows())
    assert found.to_json()["verifiers"] is None
    assert Evaluation.from_json(found.to_json()).verifiers is None
    assert measure_of(found.to_json(), found.to_json()) == "score"


def test_the_check_judges_greedy_answers_and_touches_no_score(folder, data):
    plain = evaluate(folder, data, "exact_match", k=2, max_completion_length=8)
    checked = evaluate(folder, data, "exact_match", k=2, max_completion_length=8, check=ends_early())
    assert set(checked.check) == {"ends_early"}
    assert checked.check["ends_early"].n == 6
    assert all(not answer.check for record in checked.records for answer in record.samples)
    assert checked.greedy_score == plain.greedy_score


def test_rows_columns_and_the_majority_s_reading_can_be_given(folder):
    rows = [{"question": "ab", "gold": "ba"}, {"question": "cd", "gold": "dc"}]
    found = evaluate(folder, rows, "exact_match", k=4, answer="gold", prompt="{question}", max_completion_length=4,
                     extract=lambda text: "same")  # fmt: skip
    assert [record.prompt for record in found.records] == ["ab", "cd"]
    assert {answer.vote for record in found.records for answer in record.samples} == {"same"}


def test_rows_come_from_anything_that_holds_them(folder):
    rows = [{"prompt": "ab", "answer": "ba"}, {"prompt": "cd", "answer": "dc"}]
    expected = evaluate(folder, rows, "exact_match", k=0, max_completion_length=4)
    for same in (Dataset.from_list(rows), tuple(rows), iter(rows), (row for row in rows)):
        assert evaluate(folder, same, "exact_match", k=0, max_completion_length=4).records == expected.records


def test_splits_are_not_rows_and_one_is_to_be_chosen(folder):
    splits = DatasetDict(
        {"train": Dataset.from_list([{"prompt": "ab"}]), "test": Dataset.from_list([{"prompt": "cd"}])}
    )
    with pytest.raises(DataError, match=r'one DatasetDict with train, test; .*\n  Choose one split, data\["train"\]'):
        evaluate(folder, splits, "exact_match")


def test_a_data_frame_is_told_how_to_give_its_rows(folder):
    frame = pandas.DataFrame({"prompt": ["ab"], "answer": ["ba"]})
    with pytest.raises(DataError, match=r"is a DataFrame, .*\n  Pass its rows: data.to_dict\("):
        evaluate(folder, frame, "exact_match")  # pyright: ignore[reportArgumentType]


def test_a_loaded_model_and_the_package_itself_do_the_same(folder, data):
    loaded = load_model(ModelConfig(path=str(folder)))
    expected = evaluate(folder, data, "exact_match", k=0, max_completion_length=8).to_json()
    assert evaluate(loaded, data, "exact_match", k=0, max_completion_length=8).to_json() == expected
    assert posttrain.evaluate(folder, data, "exact_match", k=0, max_completion_length=8).to_json() == expected


def test_a_run_folder_is_evaluated_as_the_run_measured_itself(folder, data, tmp_path):
    """The checkpoint, prompts, rewards, check and seed are those of the run: evaluation.json has the same digits."""
    config = {
        "model": str(folder),
        "algorithm": "grpo",
        "data": {"train": str(data), "eval_fraction": 0.5},
        "rewards": [{"name": "exact_match"}],
        "check": [{"name": "exact_match", "label": "loose", "settings": {"ignore_case": True}}],
        "sampling": {"max_completion_length": 6, "group_size": 2},
        "train": {"steps": 1, "prompts_per_step": 2},
        "evaluation": {"samples": 2},
        "output": str(tmp_path / "run"),
    }
    run = posttrain.train(config)
    found = evaluate(run.folder)
    before = ("baseline", "difference")  # the values from before training are next to it
    measured = {name: value for name, value in found.to_json().items() if name not in before}
    assert measured == run.evaluation["trained"]
    assert found.to_json()["difference"] == run.evaluation["difference"]
    assert found.prompts == 3
    assert evaluate(run.folder, data, k=0).prompts == 6, "other data, with the run's rewards"
    assert posttrain.evaluate(run).to_json() == found.to_json(), "a run object stands for its folder"
    halved = evaluate(run.folder, confidence=0.5).to_json()
    for side, measured in ((halved, found.to_json()), (halved["baseline"], found.to_json()["baseline"])):
        assert (side["confidence"], measured["confidence"]) == (0.5, 0.95), "one table has one confidence level"
        narrow, wide = side["greedy"]["score"], measured["greedy"]["score"]
        assert wide["low"] <= narrow["low"] <= narrow["high"] <= wide["high"]
        assert narrow["high"] - narrow["low"] < wide["high"] - wide["low"]


def test_a_reward_that_fails_is_unscored_and_past_the_limit_an_error(folder, data):
    def breaks(prompt: str, completion: str) -> float:
        if prompt < "m":
            raise RuntimeError("verifier is down")
        return 1.0

    found = evaluate(folder, data, Reward(function=breaks), k=0, max_completion_length=4, max_unscored=1.0)
    assert 0 < found.unscored < 6
    assert found.greedy_accuracy.mean == 1.0
    assert found.greedy_accuracy.n == 6 - found.unscored
    assert "verifier is down" in found.errors[0]
    with pytest.raises(RewardError, match=r"(?s)the limit is 10%.*verifier is down.*raise max_unscored"):
        evaluate(folder, data, Reward(function=breaks), k=0, max_completion_length=4, max_unscored=0.1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rewards": "exact_match"}, ConfigError, "no data to evaluate .* only a run folder has its own"),
        ({"data": [{"prompt": "ab"}]}, ConfigError, "no reward to judge the answers by"),
        ({"data": [{"prompt": "ab"}], "rewards": "exact_match"}, ConfigError, "'answer'"),
        (
            {"data": [{"text": "ab"}], "rewards": "exact_match"},
            DataError,
            r"(?s)no column for the .*Set prompt to a",
        ),
        (
            {"data": [{"prompt": "ab", "answer": "x"}], "rewards": "exact_match", "max_completion_length": 64},
            ConfigError,
            "max_completion_length = 64, but the context is 64 tokens",
        ),
        ({"k": -1}, ConfigError, r"^k = -1; allowed: an integer of at least 0.*\n.*Set k = 4"),
        ({"max_prompts": -1}, ConfigError, r"^max_prompts = -1; .*\n.*Set max_prompts = 256"),
        ({"data": [], "rewards": "exact_match"}, DataError, "no held-out prompts: the data is empty"),
        ({"confidence": 95}, ConfigError, "confidence = 95; allowed: a number above 0 and below 1"),
        ({"seed": "a"}, ConfigError, r"^seed = a; allowed: an integer of at least 0.*\n.*Set seed = 0"),
        ({"max_unscored": 2.0}, ConfigError, "^max_unscored = 2.0; allowed: a number from 0 to 1"),
        *(({name: 3, "data": []}, ConfigError, f"^{name} = 3; allowed: text") for name in ("prompt", "system_prompt")),
        ({"extract": 3, "data": []}, ConfigError, "extract is of type int; allowed: a function from the text"),
        ({"rewards": [None], "data": [{"prompt": "ab"}]}, ConfigError, "a reward of type NoneType; allowed: the name"),
        ({"data": 3, "rewards": "exact_match"}, DataError, "data is of type int; allowed: a source, .* or rows"),
        ({"data": [{"prompt": "ab"}, 3], "rewards": "exact_match"}, DataError, "item 1 of data is of type int"),
        ({"data": "missing.jsonl", "rewards": "exact_match"}, DataError, r"missing\.jsonl does not exist"),
    ],
)
def test_what_is_missing_is_said(folder, arguments, error, message):
    with pytest.raises(error, match=message):
        evaluate(folder, **{"max_completion_length": 8, **arguments})


# --- forgetting ------------------------------------------------------------------------------------------------------


def window_losses_by_hand(model, windows):
    found = []
    for ids in windows:
        logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        found += [-logits[i, ids[i + 1]].item() for i in range(len(ids) - 1)]
    return found


def test_reference_loss_predicts_every_token_once_in_windows_that_begin_with_bos(folder, tmp_path):
    loaded = load_model(ModelConfig(path=str(folder)))
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog")
    ids = loaded.tokenizer(path.read_text()).input_ids
    bos = loaded.tokenizer.bos_token_id
    expected = window_losses_by_hand(loaded.model, [[bos, *ids[n : n + 15]] for n in range(0, len(ids), 15)])
    found = reference_loss(loaded.model, loaded.tokenizer, path, window=16)
    assert found.tokens == len(ids) == len(expected)
    assert found.loss == pytest.approx(sum(expected) / len(expected), abs=1e-5)


def test_without_bos_windows_share_a_token_and_all_but_the_first_are_predicted(folder, tmp_path):
    loaded = load_model(ModelConfig(path=str(folder)))
    loaded.tokenizer.bos_token = None
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog")
    ids = loaded.tokenizer(path.read_text()).input_ids
    expected = window_losses_by_hand(loaded.model, [ids[n : n + 16] for n in range(0, len(ids) - 1, 15)])
    found = reference_loss(loaded.model, loaded.tokenizer, path, window=16)
    assert found.tokens == len(ids) - 1 == len(expected)
    assert found.loss == pytest.approx(sum(expected) / len(expected), abs=1e-5)


def test_only_the_first_tokens_count_when_there_are_many(folder, tmp_path):
    loaded = load_model(ModelConfig(path=str(folder)))
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": "abcdefgh"}) + "\n" for _ in range(50)))
    found = reference_loss(loaded.model, loaded.tokenizer, path, max_tokens=25)
    assert found.tokens == 25


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "has no two tokens in a row"),
        ("a.txt", b"\xff\xfe\x00", "cannot be read"),
        ("a.jsonl", b'{"content": "x"}\n', "a.jsonl:1 has no text in the column 'text'"),
    ],
)
def test_a_reference_text_that_cannot_be_used_is_refused(folder, tmp_path, name, content, message):
    loaded = load_model(ModelConfig(path=str(folder)))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        reference_loss(loaded.model, loaded.tokenizer, tmp_path / name)


def test_each_row_is_a_document(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    assert read_texts(path) == ["one", "two"]


def test_text_and_gold_answers_that_the_tokenizer_cannot_write_are_told(folder, capsys):
    rows = [{"prompt": "a日", "answer": "b"}, {"prompt": "ab", "answer": "日"}]
    evaluate(folder, rows, "exact_match", k=0, max_completion_length=1)
    text, golds = capsys.readouterr().err.splitlines()
    assert text.startswith("held-out data: 1 of 2 rows holds text that the tokenizer cannot write")
    assert golds.startswith("held-out data: 1 of 2 gold answers holds text that the tokenizer cannot write")
    evaluate(folder, [{"prompt": "ab", "answer": "c"}], "exact_match", k=0, max_completion_length=1)
    assert capsys.readouterr().err == ""
