"""One round of iterative DPO: the pairs that it makes, that they improve the model, and that a kill changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.catalogue import few
from tests.faults import kill_driver
from tests.processes import run_alone
from tests.tiny import tiny_model, tiny_tokenizer, write_prompts

from posttrain.config import SampledPairsConfig, check, load_config
from posttrain.data.dropped import Unusable
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row, read_rows
from posttrain.data.sampled_pairs import read_sampled_pair, write_sampled_pair
from posttrain.errors import ConfigError, DataError
from posttrain.experience.generate import Generator
from posttrain.experience.sampled_pairs import AnsweredPrompt, Round, choose
from posttrain.rewards import build_rewards
from posttrain.train.api import resume, train
from posttrain.train.run import Run
from posttrain.types import Completion, Prompt

REWARDS = """
def vowels(completion):
    return sum(letter in "aeiou" for letter in completion) / 6

def same(completion):
    return 1.0

def number(completion):
    return float(completion.split(".")[1])
"""


def completion(ids: tuple[int, ...], text: str = "") -> Completion:
    zeros = (0,) * len(ids)
    return Completion(ids=ids, logprobs=(-1.0,) * len(ids), versions=zeros, finish_reason="eos", text=text)


def answers(*scores: float | None, ids: tuple[int, ...] | None = None) -> AnsweredPrompt:
    """Answers with these scores and, if given, these ids, so that some answers can be the same."""
    prompt = Prompt(index=7, ids=(1,), text="q")
    completions = [completion((9, i)) for i in ids or range(len(scores))]
    return AnsweredPrompt(prompt=prompt, completions=completions, scores=scores, parts={})


# Choosing two answers


def test_the_best_meets_the_worst_and_the_second_best_the_second_worst():
    group = answers(0.1, 0.9, 0.5, 0.3)
    assert choose(SampledPairsConfig(), group, 0) == ([(1, 0)], "")
    assert choose(SampledPairsConfig(max_per_prompt=9), group, 0) == ([(1, 0), (2, 3)], "")


@pytest.mark.parametrize("select", ["best_worst", "random"])
def test_the_same_words_are_paired_once(select):
    twice = answers(1, 1, 0, 0, ids=(3, 3, 4, 4))
    pairs, _ = choose(SampledPairsConfig(select=select, max_per_prompt=2), twice, 0)
    assert len(pairs) == 1


def test_a_random_pair_is_a_function_of_the_seed_and_the_prompt():
    group = answers(0.1, 0.9, 0.5, 0.3, 0.2, 0.7)
    random = SampledPairsConfig(select="random", max_per_prompt=3)
    pairs, _ = choose(random, group, 0)
    assert pairs == choose(random, group, 0)[0]
    assert len({*pairs}) == 3
    assert all(group.scores[c] > group.scores[r] for c, r in pairs)  # type: ignore[operator]
    assert len({tuple(choose(random, group, seed)[0]) for seed in range(5)}) > 1


def test_correct_at_pairs_right_answers_with_wrong_ones_only():
    bound = SampledPairsConfig(correct_at=0.5, select="random", max_per_prompt=99)
    assert set(choose(bound, answers(0.1, 0.9, 0.5, 0.3), 0)[0]) == {(1, 0), (1, 3), (2, 0), (2, 3)}
    assert choose(bound, answers(0.1, 0.2), 0) == ([], "none correct")
    assert choose(bound, answers(0.6, 0.9), 0) == ([], "all correct")


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (answers(0.5, 0.5, 0.5), "tie"),
        (answers(1.0, 0.0, ids=(3, 3)), "tie"),
        (answers(None, 0.3), "fewer than two scored answers"),
        (answers(0.3, 0.4), "gap below min_gap"),
    ],
)
def test_a_prompt_without_a_pair_says_why(group: AnsweredPrompt, why: str):
    assert choose(SampledPairsConfig(min_gap=0.2), group, 0) == ([], why)


def test_an_answer_without_a_score_takes_no_part():
    assert choose(SampledPairsConfig(), answers(None, 0.9, 0.5), 0) == ([(1, 2)], "")


@pytest.mark.parametrize("tenth", range(1, 11))
def test_a_gap_is_compared_with_min_gap_up_to_rounding(tenth: int):
    group = answers(tenth / 10, (tenth - 1) / 10)
    assert choose(SampledPairsConfig(min_gap=0.1), group, 0) == ([(0, 1)], "")
    assert choose(SampledPairsConfig(min_gap=0.11), group, 0) == ([], "gap below min_gap")


def test_rounding_makes_no_answer_wrong_and_no_answer_better():
    assert choose(SampledPairsConfig(correct_at=0.8), answers(0.1 + 0.7 - 1e-16, 0.0), 0) == ([(0, 1)], "")
    assert choose(SampledPairsConfig(), answers(0.1 + 0.2, 0.3), 0) == ([], "tie")
    assert choose(SampledPairsConfig(), answers(1e9 + 1e-6, 1e9, 0.0), 0)[0] == [(0, 2)]


def test_at_random_the_same_words_are_not_paired_twice():
    group = answers(1.0, 1.0, 0.0, ids=(3, 3, 4))
    assert len(choose(SampledPairsConfig(select="random", max_per_prompt=9), group, 0)[0]) == 1


@pytest.mark.parametrize("files", [("pipeline.yaml",), ("pipeline.yaml", "pipeline.json")])
def test_the_error_about_missing_pairs_names_every_file_to_change(tmp_path, monkeypatch, files: tuple[str, ...]):
    """pipeline.yaml alone may also be the config of a pipeline with another folder."""
    for name in files:
        (tmp_path / name).write_text("")
    folder, settings = tmp_path / "01-dpo", load_config(config(tmp_path, "01-dpo")).config
    rounds = Round(settings, [], SimpleNamespace(), folder, print, {})  # type: ignore[arg-type]
    monkeypatch.setattr(rounds, "answers", lambda: [answers(0.5, 0.5)])
    with pytest.raises(DataError) as error:
        rounds.make()
    both = f" and {tmp_path / 'pipeline.yaml'}" if len(files) == 2 else ""
    assert f"Change settings in {folder / 'config.yaml'}{both}, and resume:" in str(error.value)


# Answers on file


class Writer:
    """A sampler that answers with the step number of its call, and a reward that looks up the answer."""

    def __init__(self) -> None:
        self.calls = 0

    def each(self, prompts: Any, sampling: Any, *, group_size: int, seed: int) -> Any:
        self.calls += 1
        for place in range(len(prompts)):
            for number in range(group_size):
                yield place, number, completion((number, self.calls), f"{self.calls}.{number}")


def made(folder: Path, writer: Writer, *, reward: str = "same", prompts: int = 3, **causes: Any) -> Any:
    """A round of these prompts; `causes` changes its settings of sampling or what it was made of."""
    size, start = causes.pop("group_size", 2), causes.pop("start", "q")
    given = config(folder, "round", reward) | {"sampling": {"group_size": size, "max_completion_length": 6}}
    settings = load_config(given).config
    (folder / "rewards.py").write_text(REWARDS)
    asked = [Prompt(index=n, ids=(1, n), text=f"{start}{n}", plain=f"{start}{n}") for n in range(prompts)]
    rewards = build_rewards(settings.rewards)
    told: list[str] = []
    made_of = {"model": "m", "sampling": f"{size}", "rewards": reward} | causes
    (folder / "round").mkdir(exist_ok=True)
    generator = Generator(sampler=writer, rewards=rewards)  # type: ignore[arg-type]
    return Round(settings, asked, generator, folder / "round", told.append, made_of), told


def test_other_rewards_score_the_answers_on_file_anew(tmp_path):
    writer = Writer()
    with pytest.raises(DataError, match=r"3 prompts x 2 answers: 0 pairs; .*3 tie"):
        made(tmp_path, writer)[0].make()
    (tmp_path / "round" / "sampled" / "judgements-00000.jsonl").write_text("{}")
    rounds, told = made(tmp_path, writer, reward="number")
    rows, found = rounds.make()
    assert (writer.calls, len(rows), found) == (1, 3, "3 prompts x 2 answers: 3 pairs")
    assert told == ["scored the answers to 3 of 3 prompts anew: rewards changed since"]
    assert rows[0]["parts"] == {"number": [1.0, 0.0]}
    assert not (tmp_path / "round" / "sampled" / "judgements-00000.jsonl").exists()


@pytest.mark.parametrize(("change", "name"), [({"group_size": 4}, "sampling"), ({"model": "other"}, "model")])
def test_another_model_or_sampling_answers_anew(tmp_path, change: dict[str, Any], name: str):
    writer = Writer()
    made(tmp_path, writer, reward="number")[0].make()
    rounds, told = made(tmp_path, writer, reward="number", **change)
    rows, found = rounds.make()
    assert writer.calls == 2
    assert told == [f"answered 3 of 3 prompts anew: {name} changed since"]
    assert f"x {change.get('group_size', 2)} answers" in found
    assert all(pair["chosen"].startswith("2.") for pair in rows)
    made(tmp_path, writer, reward="number", **change)[0].make()
    assert writer.calls == 2


@pytest.mark.parametrize("change", [{"start": "other "}, {"prompts": 2}, {"prompts": 5}])
def test_answers_to_other_prompts_are_refused(tmp_path, change: dict[str, Any]):
    made(tmp_path, Writer(), reward="number")[0].make()
    later = Writer()
    with pytest.raises(DataError, match=r"(?s)other prompts than the data has, from row [023] on.*Restore them"):
        made(tmp_path, later, reward="number", group_size=4, **change)[0].make()
    assert later.calls == 0


def test_answers_of_an_earlier_version_are_taken_as_they_are(tmp_path):
    with pytest.raises(DataError):
        made(tmp_path, Writer())[0].make()
    file = tmp_path / "round" / "sampled" / "part-00000.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "made_of"}) + "\n" for line in lines))
    with pytest.raises(DataError, match=r"(?s)3 prompts x 2 answers: 0 pairs.*first remove .*an earlier version"):
        made(tmp_path, Writer(), reward="number", group_size=4)[0].make()


# Files of a round


def row(tokenizer: Any, **changes: Any) -> Row:
    prompt = Prompt(index=0, ids=(1, 3, 4), text="ab")
    values = write_sampled_pair(prompt, completion((5, 2), "c"), completion((6, 7, 2), "de"))
    return Row(values=values | {"margin": 0.5} | changes, origin="pairs.jsonl:1")


def test_a_pair_is_read_back_by_its_ids_and_not_by_its_text():
    tokenizer = tiny_tokenizer()
    pair = read_sampled_pair(row(tokenizer), tokenizer, 4)
    assert pair.chosen.input_ids == (1, 3, 4, 5, 2)
    assert pair.rejected.completion_mask == (False, False, False, True, True, True)
    assert (pair.index, pair.chosen.index, pair.margin) == (4, 4, 0.5)


def test_ids_of_another_tokenizer_are_refused():
    tokenizer = tiny_tokenizer()
    for wrong in ([5, 9], [5, 10_000], [], ["c"]):
        with pytest.raises(Unusable, match=r"rejected_ids that do not spell .*leave out the columns"):
            read_sampled_pair(row(tokenizer, rejected_ids=wrong), tokenizer, 0)


def test_text_that_a_stop_string_cut_is_still_spelled_by_its_ids():
    tokenizer = tiny_tokenizer()
    prompt = Prompt(index=0, ids=(1, 3, 4), text="ab")
    values = write_sampled_pair(prompt, completion((5, 2), "c"), completion((6, 7, 2), "d"))
    assert read_sampled_pair(Row(values, "here"), tokenizer, 0).rejected.input_ids == (1, 3, 4, 6, 7, 2)


@pytest.mark.parametrize("column", ["prompt", "chosen", "rejected"])
@pytest.mark.parametrize("edit", [lambda text: text[:-1], lambda text: "a" + text, lambda text: "", lambda text: None])
def test_ids_of_an_edited_text_are_refused(column, edit):
    tokenizer = tiny_tokenizer()
    values = row(tokenizer).values
    with pytest.raises(Unusable, match="edited beside its ids: leave out the columns of ids"):
        read_sampled_pair(Row(values | {column: edit(values[column])}, "here"), tokenizer, 0)


def of_a_conversation() -> dict[str, Any]:
    """A pair whose template leaves out the system turn."""
    turns = [
        {"role": "system", "content": "ab"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "ec"},
    ]
    prompt = Prompt(index=0, ids=(1, 5, 6, 7, 5), text="cdec", messages=turns)
    return write_sampled_pair(prompt, completion((5, 2), "c"), completion((6, 2), "d"))


@pytest.mark.parametrize(
    "edit",
    [
        lambda turns: turns[1:],
        lambda turns: turns[3:],
        lambda turns: [turns[0], turns[3], turns[2], turns[1]],
        lambda turns: [*turns[:3], turns[3] | {"content": "e"}],
        lambda turns: [*turns[:2], turns[2] | {"content": "c"}, turns[3]],
    ],
    ids=["no system turn", "no history", "swapped turns", "shorter question", "other history"],
)
def test_ids_of_an_edited_conversation_are_refused_whatever_the_template_writes(edit):
    values, tokenizer = of_a_conversation(), tiny_tokenizer()
    filled = [turn | {"tool_calls": None} for turn in values["prompt"]]  # as Parquet gives the turns back
    for same in (values, values | {"prompt": filled}):
        assert read_sampled_pair(Row(same, "here"), tokenizer, 0).chosen.input_ids == (1, 5, 6, 7, 5, 5, 2)
    with pytest.raises(Unusable, match="edited beside its ids"):
        read_sampled_pair(Row(values | {"prompt": edit(values["prompt"])}, "here"), tokenizer, 0)


def test_without_a_digest_the_ids_have_to_spell_the_answers_and_a_prompt_of_plain_text():
    tokenizer, values = tiny_tokenizer(), row(tiny_tokenizer(), texts_sha256=None).values
    assert read_sampled_pair(Row(values, "here"), tokenizer, 0).chosen.input_ids == (1, 3, 4, 5, 2)
    for column, text in (("prompt", "a"), ("chosen", "d"), ("rejected", "dd")):
        with pytest.raises(Unusable, match=f"{column}_ids that do not spell {column}"):
            read_sampled_pair(Row(values | {column: text}, "here"), tokenizer, 0)
    read_sampled_pair(Row(of_a_conversation() | {"texts_sha256": None}, "here"), tokenizer, 0)


# Runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rounds")
    tiny_model(folder / "model", initializer_range=0.1)
    write_prompts(folder / "prompts.jsonl", count=150)
    (folder / "rewards.py").write_text(REWARDS)
    return folder


def config(folder: Path, name: str, reward: str = "vowels") -> dict[str, Any]:
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": {"name": "dpo", "beta": 0.1},
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0.1},
        "rewards": [{"function": f"{folder / 'rewards.py'}:{reward}"}],
        "sampled_pairs": {},
        "sampling": {"group_size": 4, "max_completion_length": 6},
        "train": {"steps": 12, "prompts_per_step": 32, "learning_rate": 3e-3},
        "evaluation": {"writing": 0, "prompts": 15, "samples": 4},
        "checkpoint": {"every": 4},
        "output": str(folder / name),
        "report": False,
    }


def reward_of(run: Run, name: str) -> float:
    """Mean score of the sampled held-out answers."""
    lines = (run.folder / "evaluations" / f"{name}.jsonl").read_text().splitlines()
    scores = [sample["score"] for line in lines for sample in json.loads(line)["samples"]]
    return sum(scores) / len(scores)


def notes_of(run: Run) -> list[str]:
    events = map(json.loads, (run.folder / "events.jsonl").read_text().splitlines())
    return [event["message"] for event in events if event["kind"] == "warning"]


def rows_of(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "pairs.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def first(folder) -> Run:
    return train(config(folder, "first"))


def test_a_round_improves_the_model(first: Run):
    assert reward_of(first, "trained") > 1.5 * reward_of(first, "baseline")
    assert first.metrics[0]["loss"] == pytest.approx(0.6931, abs=1e-4)
    assert first.metrics[-1]["rewards/accuracies"] > 0.6


def test_the_file_says_what_was_sampled_and_why_it_is_a_pair(first: Run):
    rows, tokenizer = rows_of(first), tiny_tokenizer()
    assert len(rows) > 100
    for pair in rows:
        assert pair["chosen_score"] - pair["rejected_score"] == pytest.approx(pair["margin"])
        assert pair["margin"] > 0
        assert pair["parts"]["vowels"] == [pair["chosen_score"], pair["rejected_score"]]
        assert tokenizer.decode(pair["chosen_ids"], skip_special_tokens=True) == pair["chosen"]
    sampled = [json.loads(line) for line in (first.folder / "sampled" / "part-00000.jsonl").read_text().splitlines()]
    assert len(sampled) == 64
    assert all(len(line["completions"]) == len(line["scores"]) == 4 for line in sampled)
    assert any("135 prompts x 4 answers: " in note for note in notes_of(first))


def test_the_file_is_preference_data_for_any_reader(first: Run):
    tokenizer = tiny_tokenizer()
    rows = read_rows(str(first.folder / "pairs.jsonl"))
    renderer = Renderer(tokenizer=tokenizer, chat=False)
    found = render_pairs(rows, renderer, eos_ids={2}, max_length=64, max_dropped=0.0, what="pairs")
    assert [pair.chosen.input_ids for pair in found.rows] == [
        (*pair["prompt_ids"], *pair["chosen_ids"]) for pair in rows_of(first)
    ]


def test_separators_of_lines_in_prompts_and_answers_do_not_cut_the_files(folder, tmp_path):
    """JSON leaves U+2028, U+2029 and U+0085 as they are, and str.splitlines() takes them for ends of lines."""
    separators = "\u2028\u2029\x85"
    changed = config(folder, "separators")
    changed["model"]["path"] = str(tiny_model(tmp_path / "model", characters="aeioub" + separators))
    changed["data"]["train"] = str(tmp_path / "prompts.jsonl")
    prompts = [f"a{separator}{letter}e" for letter in "aeiou" for separator in separators for _ in range(3)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    changed["train"]["steps"] = 1
    rows = (train(changed).folder / "pairs.jsonl").read_text(encoding="utf-8").split("\n")
    texts = [json.loads(line)["prompt"] + json.loads(line)["chosen"] for line in rows if line]
    assert all(any(separator in text for text in texts) for separator in separators)


@pytest.mark.slow
@pytest.mark.parametrize("steps", few([1, 12], 1))
def test_a_second_round_starts_from_the_first_and_may_keep_its_pairs(folder, first: Run, steps: int):
    second = config(folder, f"second {steps}")
    second["train"]["steps"] = steps
    second["model"]["path"] = str(first.model_path)
    second["data"]["train"] = [second["data"]["train"], str(first.folder / "pairs.jsonl")]
    run = train(second)
    assert run.feed.describe() == f"{len(rows_of(run)) + len(rows_of(first))} pairs"
    assert any(note.startswith(f"{len(rows_of(first))} pairs of earlier rounds") for note in notes_of(run))
    assert steps == 1 or reward_of(run, "trained") > reward_of(first, "trained")
    held = {json.loads(line)["prompt"] for line in (first.folder / "evaluations" / "baseline.jsonl").open()}
    assert held == {json.loads(line)["prompt"] for line in (run.folder / "evaluations" / "baseline.jsonl").open()}


def in_process(*arguments: str) -> int:
    ended = run_alone(kill_driver.drive, *arguments)
    assert ended.exit_code in (0, -9), ended.errors
    return ended.exit_code


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(sorted(run.glob("checkpoints/step-*"))[-1] / "model" / "model.safetensors")


@pytest.mark.parametrize(("phase", "count"), [("sample", "2"), pytest.param("update", "6", marks=pytest.mark.slow)])
def test_a_run_that_is_killed_and_resumed_is_the_same_run(folder, first: Run, phase: str, count: str):
    given = config(folder, f"killed-{phase}")
    file = folder / f"{phase}.json"
    file.write_text(json.dumps(given))
    (folder / f"{phase}.yaml").write_text(file.read_text())  # JSON is YAML
    output = Path(given["output"])
    assert in_process("train", str(folder / f"{phase}.yaml"), phase, count, "0") == -9
    assert (output / "pairs.jsonl").exists() == (phase == "update")
    assert (output / "sampled" / "part-00000.jsonl").exists()
    assert in_process("resume", str(output)) == 0
    assert (output / "pairs.jsonl").read_bytes() == (first.folder / "pairs.jsonl").read_bytes()
    ours, theirs = weights(output), weights(first.folder)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_rewards_that_tell_nothing_apart_are_an_error_that_says_so(folder):
    with pytest.raises(DataError, match=r"135 prompts x 4 answers: 0 pairs; 135 prompts without a pair: 135 tie"):
        train(config(folder, "ties", "same"))


@pytest.mark.slow
def test_too_many_prompts_without_a_pair_are_an_error_and_the_answers_are_kept(folder):
    given = config(folder, "few")
    given["sampled_pairs"] = {"min_gap": 0.45, "max_without": 0.1}
    given["train"]["steps"] = 1
    with pytest.raises(DataError, match=r"(?s)without a pair: .*gap below min_gap.*max_without = 10%.*Lower .*min_gap"):
        train(given)
    kept = {path.name: path.stat().st_mtime_ns for path in (folder / "few" / "sampled").glob("part-*")}
    text = (folder / "few" / "config.yaml").read_text()
    (folder / "few" / "config.yaml").write_text(text.replace("min_gap: 0.45", "min_gap: 0.1"))
    assert resume(folder / "few").step == 1
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "few" / "sampled").glob("part-*")} == kept


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "grpo"}, r"sampled_pairs, but grpo does not train a policy on pairs; .*Set algorithm = dpo"),
        ({"algorithm": "kto"}, r"sampled_pairs, but kto does not train"),
        ({"algorithm": "reward_model"}, r"sampled_pairs, but reward_model does not train a policy"),
        ({"rewards": []}, r"sampled_pairs without rewards: nothing says which answer is better"),
        ({"sampling.group_size": 1}, r"sampling.group_size = 1 with sampled_pairs: the answers .* could not differ"),
        ({"sampling.temperature": 0}, r"sampling.temperature = 0 with sampled_pairs"),
        ({"sampled_pairs.select": "worst"}, r"sampled_pairs.select = worst.*best_worst"),
        ({"sampled_pairs.min_gap": -1}, r"sampled_pairs.min_gap = -1"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_model_is_loaded(folder, changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        check(load_config(config(folder, "refused") | ({"algorithm": "dpo"}), changes).config)
