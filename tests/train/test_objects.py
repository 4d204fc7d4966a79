"""`train` takes what `evaluate` takes: rows and functions as Python objects, and the run can be resumed."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset, DatasetDict
from tests.catalogue import catalogue, few
from tests.episodes import worlds
from tests.tiny import tiny_model
from tests.train import letters
from tests.train.letters import count_a
from transformers import AutoModelForCausalLM, AutoTokenizer

import posttrain as pt
from posttrain.config import load_config
from posttrain.errors import ConfigError, DataError, ModelError
from posttrain.loop import Policy
from posttrain.rewards import Reward
from posttrain.rewards.load import GIVEN
from posttrain.train import objects

ROWS = [{"prompt": "abcdefgh"[n % 8] * (1 + n // 8), "answer": "a" * (n % 3)} for n in range(24)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("objects") / "model")


def settings(model: Path, output: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(model), "device": "cpu"},
        "algorithm": "grpo",
        "train": {"steps": 1, "prompts_per_step": 4, "learning_rate": 1e-3},
        "sampling": {"max_completion_length": 4, "group_size": 2},
        "guards": {"max_truncated": 1.0},
        "evaluation": {"writing": 0, "samples": 0, "prompts": 4},
        "output": str(output),
        "report": False,
        **more,
    }


def weights(run: Any) -> dict[str, torch.Tensor]:
    return run.trainer.loaded.model.state_dict()


def same_weights(one: Any, other: Any) -> bool:
    return all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(one).items())


GIVEN_AS: dict[str, Callable[[], Any]] = {
    "rows": lambda: ROWS,
    "a tuple of rows": lambda: tuple(ROWS),
    "an iterator": lambda: iter(ROWS),
    "a dataset": lambda: Dataset.from_list(ROWS),
}


@pytest.mark.parametrize(
    "value", ["none", "calculator", [], ["calculator"], ("calculator",)], ids=lambda value: str(value)
)
def test_tools_by_name_mean_what_they_mean_in_a_config(value):
    plain = settings(Path("model"), Path("run"), data={"train": "task:sort"}, rewards=["exact_match"])
    given = objects.resolve(plain, {"tools": value}, lambda resolved: Path("run"))
    assert given.resolved.config.tools == load_config(plain | {"tools": value}).config.tools


@pytest.fixture(scope="module")
def from_a_file(model, tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("file")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    function = f"{letters.__file__}:count_a"
    return pt.train(
        settings(model, folder / "run", data={"train": str(folder / "rows.jsonl")}, rewards=[{"function": function}])
    )


@pytest.mark.parametrize("form", few(GIVEN_AS, "a dataset"))
def test_rows_and_functions_train_as_files_do(form, model, tmp_path, from_a_file):
    run = pt.train(settings(model, tmp_path / "run"), data=GIVEN_AS[form](), rewards=count_a)
    assert same_weights(run, from_a_file)
    (kept,) = (run.folder / "rows").iterdir()
    assert [json.loads(line) for line in kept.read_text().splitlines()] == ROWS
    config = (run.folder / "config.yaml").read_text()
    assert f"train: {kept}" in config
    assert "letters.py:count_a" in config


@pytest.mark.slow
def test_a_run_is_resumed_from_its_folder_wherever_that_is(model, tmp_path):
    data = {"train": ROWS[:16], "eval": Dataset.from_list(ROWS[16:])}
    whole = pt.train(
        settings(model, tmp_path / "whole"), data=data, rewards=[Reward(function=count_a)], train={"steps": 3}
    )
    short = pt.train(settings(model, tmp_path / "short"), data=data, rewards=[{"function": count_a}])
    moved = tmp_path / "moved"
    shutil.move(short.folder, moved)
    assert same_weights(pt.resume(moved, steps=3), whole)
    assert pt.evaluate(moved, k=1).prompts == 4
    (kept,) = (moved / "rows").glob("train-*")
    kept.write_text(kept.read_text().replace("aa", "ab"))
    with pytest.raises(DataError, match="differs from the rows that the run was given: its content has changed"):
        pt.resume(moved, steps=4)


def test_a_function_without_a_file_is_asked_for_again(model, tmp_path):
    def run(name: str, **more: Any) -> Any:
        rewards = [lambda completions, **columns: [float(len(c)) for c in completions], inner]
        return pt.train(settings(model, tmp_path / name, data={"train": ROWS}, rewards=rewards, **more))

    def inner(completions, **columns):
        return [float("b" in completion) for completion in completions]

    whole, short = run("whole", train={"steps": 2, "prompts_per_step": 4, "learning_rate": 1e-3}), run("short")
    assert set(short.metrics[0]) >= {"rewards/function_0/mean", "rewards/inner/mean"}
    given = dict(GIVEN)
    GIVEN.clear()  # as in another process
    with pytest.raises(ConfigError, match=r"the reward function function_0 was given as a Python object") as error:
        pt.resume(short.folder, steps=2)
    assert "posttrain.resume(folder, functions={'function_0': function_0})" in str(error.value)
    again = {name.removeprefix("in_memory:"): function for name, function in given.items()}
    assert same_weights(pt.resume(short.folder, steps=2, functions=again), whole)


SCRIPT = """
import json, sys
import posttrain as pt

def reward(completions, **columns):
    return [float(len(completion)) for completion in completions]

run = pt.train(json.loads(sys.argv[1]), data=json.loads(sys.argv[2]), rewards=[reward])
print(run.step, run.folder)
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_not_run_again_by_its_own_reward(model, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = [json.dumps(settings(model, tmp_path / "run")), json.dumps(ROWS)]
    done = subprocess.run([sys.executable, "script.py", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("1 ")
    assert "in_memory:reward" in (tmp_path / "run" / "config.yaml").read_text()


NOT_ROWS: dict[str, tuple[Any, str]] = {
    "a number": (7, "of type int"),
    "a row of numbers": ([1, 2], "item 0 of data is of type int"),
    "splits": (DatasetDict(train=Dataset.from_list(ROWS)), r'Choose one split, data\["train"\]'),
}


@pytest.mark.parametrize("name", NOT_ROWS)
def test_what_is_no_data_is_refused_by_both_in_the_same_words(name, model, tmp_path):
    data, said = NOT_ROWS[name]
    part = {"data": {"train": data}} if name == "splits" else {"data": data}
    with pytest.raises(DataError, match=said):
        pt.train(settings(model, tmp_path / "run", **part), rewards=[count_a])
    with pytest.raises(DataError, match=said):
        pt.evaluate(str(model), data, count_a)
    assert not (tmp_path / "run").exists()


@catalogue("names", [("train", "test"), ("train", "validation"), ("validation",), ("de", "en")])
def test_splits_of_other_names_are_refused_with_the_names_to_give_them(names, model, tmp_path):
    splits = DatasetDict({name: Dataset.from_list(ROWS[:2]) for name in names})
    lists = [dict.fromkeys(names, ROWS)] if names[-1] in objects.SPLITS else []
    for given in (splits, dict(splits), *lists):
        with pytest.raises(DataError, match=rf'data holds the splits .*\n  Name what .*"eval": data\["{names[-1]}"\]'):
            pt.train(settings(model, tmp_path / "run"), data=given, rewards=[count_a])


NOT_MODELS: dict[str, Callable[[Any, Any], Any]] = {
    "a model alone": lambda model, tokenizer: model,
    "a list": lambda model, tokenizer: [model, tokenizer],
    "swapped": lambda model, tokenizer: (tokenizer, model),
    "three things": lambda model, tokenizer: (model, tokenizer, 1),
    "a number": lambda model, tokenizer: 3,
}


@catalogue("name", NOT_MODELS)
def test_what_is_no_model_is_refused_in_the_same_words(name, model, tmp_path):
    given = NOT_MODELS[name](torch.nn.Linear(1, 1), AutoTokenizer.from_pretrained(model))
    for use in (
        lambda: pt.train(settings(model, tmp_path), model=given, data=ROWS, rewards=count_a),
        lambda: pt.train(settings(model, tmp_path), model={"path": given}, data=ROWS, rewards=count_a),
        lambda: pt.evaluate(given, ROWS, count_a),
        lambda: Policy(given),
    ):
        with pytest.raises(
            ConfigError, match=r"model is of type .*; allowed: a folder, a name, or \(model, tokenizer\)"
        ):
            use()


ACTORS: dict[str, tuple[dict[str, Any], str]] = {
    "a tool": ({"tools": worlds.look}, "tools: [{file}:look]"),
    "tools": ({"tools": [worlds.look, "calculator"]}, "tools: [{file}:look, calculator]"),
    "a class": ({"environment": worlds.Guess}, "environment: {{function: {file}:Guess}}"),
    "a class with settings": (
        {"environment": {"function": worlds.Guess, "settings": {"pause": 0.5}}},
        "environment: {{function: {file}:Guess, settings: {{pause: 0.5}}}}",
    ),
    "a class by its key": ({"environment.function": worlds.Guess}, "environment: {{function: {file}:Guess}}"),
    "an agent": ({"agent": worlds.look}, "agent: {{function: {file}:look}}"),
}


@catalogue("given, written", ACTORS.values(), ids=ACTORS)
def test_tools_environments_and_agents_are_written_by_file_and_name(given, written, model, tmp_path):
    file = Path(worlds.__file__).relative_to(Path.cwd())
    plain = settings(model, tmp_path / "run", data={"train": "task:sort"})
    found = objects.resolve(plain, given, lambda _: tmp_path).resolved.config
    assert found == load_config(plain | yaml.safe_load(written.format(file=file))).config
    if "." not in next(iter(given)):
        assert objects.resolve(plain | given, {}, lambda _: tmp_path).resolved.config == found


@pytest.mark.slow
def test_a_loaded_model_and_its_tokenizer_are_a_model(model, tmp_path, from_a_file):
    """A loaded model is trained and evaluated as its folder is; the caller's own weights do not change."""
    given = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    before = {name: tensor.clone() for name, tensor in given[0].state_dict().items()}
    plain = settings(model, tmp_path / "run")
    run = pt.train({**plain, "model": {"path": given, "device": "cpu"}}, data=ROWS, rewards=count_a)
    assert same_weights(run, from_a_file)
    assert all(torch.equal(tensor, before[name]) for name, tensor in given[0].state_dict().items())
    assert f"path: {run.folder / 'start'}" in (run.folder / "config.yaml").read_text()
    assert pt.resume(run.folder, steps=2).step == 2
    scored = [pt.evaluate(one, ROWS, count_a, k=1, max_completion_length=4) for one in (given, str(model))]
    assert [one.greedy.ids for one in scored[0].records] == [one.greedy.ids for one in scored[1].records]


@pytest.mark.parametrize("call", ["evaluate", "train"])
def test_the_mode_and_dropout_of_a_loaded_model_stay_and_its_answers_are_without_dropout(call, model, tmp_path):
    """Module by module, because a part of a model may be frozen in evaluation mode."""
    given = AutoModelForCausalLM.from_pretrained(model, attention_dropout=0.5), AutoTokenizer.from_pretrained(model)
    given[0].train().model.layers[0].eval()
    before = {name: dict(vars(module)) for name, module in given[0].named_modules()}
    if call == "train":
        pt.train(settings(model, tmp_path / "run"), model=given, data=ROWS, rewards=count_a)
    else:
        found, plain = (pt.evaluate(one, ROWS, count_a, k=1, max_completion_length=4) for one in (given, str(model)))
        assert [one.greedy.ids for one in found.records] == [one.greedy.ids for one in plain.records]
    for name, module in given[0].named_modules():
        for attribute in ("training", *(one for one in before[name] if "drop" in one)):
            assert getattr(module, attribute) == before[name][attribute], f"{name}.{attribute}"


def test_a_model_in_less_than_float32_or_whose_answers_never_end_is_refused(model, tmp_path):
    given = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16), AutoTokenizer.from_pretrained(model)
    with pytest.raises(ModelError, match=r"weights of torch\.bfloat16; allowed: float32"):
        pt.evaluate(given, ROWS, count_a)
    with pytest.raises(ModelError, match=r"weights of torch\.bfloat16"):
        pt.train(settings(model, tmp_path / "run"), model=given, data=ROWS, rewards=count_a)
    assert not (tmp_path / "run").exists()


def test_values_are_stored_as_json_or_refused_with_their_row(model, tmp_path):
    rows = [{**row, "n": np.int64(3), "many": np.arange(2), "day": datetime.date(2026, 1, 2)} for row in ROWS]
    run = pt.train(settings(model, tmp_path / "run"), data=rows, rewards=[count_a])
    (kept,) = (run.folder / "rows").iterdir()
    assert json.loads(kept.read_text().splitlines()[0]) == {**ROWS[0], "n": 3, "many": [0, 1], "day": "2026-01-02"}
    with pytest.raises(DataError, match="row 1 of the data holds a object"):
        pt.train(
            settings(model, tmp_path / "other"), data=[ROWS[0], {"prompt": "a", "answer": object()}], rewards=[count_a]
        )


@pytest.mark.parametrize(
    ("answer", "key"), [({1: "x"}, "1"), ([{"a": ({"b": {True: 1, "True": 2}},)}], "True"), ({None: 1}, "None")]
)
def test_nested_keys_that_json_would_make_text_of_are_refused_by_training_and_evaluation(model, tmp_path, answer, key):
    """The reward of a run would find the key "1", and that of an evaluation of the same rows the key 1."""
    rows = [ROWS[0], {"prompt": "a", "answer": answer}]
    said = f"row 1 of the data has the key {key} in its column 'answer'; allowed: text .*\n  Write the key as text"
    with pytest.raises(DataError, match=said):
        pt.train(settings(model, tmp_path / "run"), data=rows, rewards=[count_a])
    with pytest.raises(DataError, match=said):
        pt.evaluate(str(model), rows, count_a)


def test_rows_of_given_answers_are_taken_too(model, tmp_path):
    pairs = [{"prompt": row["prompt"], "chosen": "ab", "rejected": "ba"} for row in ROWS]
    run = pt.train(settings(model, tmp_path / "run", algorithm="dpo", data={"train": pairs, "eval": pairs[:4]}))
    assert run.step == 1
    assert sorted(path.name.partition("-")[0] for path in (run.folder / "rows").iterdir()) == ["eval", "train"]
