"""`posttrain init --example`: the project for a real model, its rows and its files."""

from __future__ import annotations

import doctest
import importlib.util
import json
import re
from collections import Counter

import pytest

from posttrain.cli import run
from posttrain.config import check, load_config
from posttrain.errors import ConfigError
from posttrain.lab.init import EXAMPLES, make_example
from posttrain.lab.init.siblings import WORDS_FILE
from posttrain.lab.init.siblings import siblings as rows_of

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
ASKED = re.compile(r"(\w+) has (\d) sisters? and (\d) brothers?\. How many sisters does \1's brother \w+ have\?")


def numbers(prompt: str) -> tuple[int, int]:
    """Return the numbers of sisters and brothers in a question."""
    found = ASKED.fullmatch(prompt)
    assert found, prompt
    return int(found[2]), int(found[3])


def test_every_answer_is_one_more_than_her_sisters():
    rows = rows_of()
    for row in rows.train + rows.eval:
        assert int(row["answer"]) == numbers(row["prompt"])[0] + 1
    for row in rows.sft + rows.sft_eval:
        assert int(row["completion"]) == numbers(row["prompt"])[0] + 1


def test_held_out_pairs_of_numbers_are_in_no_training_row_and_hold_every_answer():
    rows = rows_of()
    trained, held_out = ({numbers(row["prompt"]) for row in part} for part in (rows.train, rows.eval))
    assert not trained & held_out
    assert len(trained) + len(held_out) == 36
    assert {row["prompt"] for row in rows.sft} <= {row["prompt"] for row in rows.train}
    for part in (rows.train, rows.eval):
        assert set(Counter(row["answer"] for row in part)) == set("234567")
    assert set(Counter(row["completion"] for row in rows.sft).values()) == {5}


def test_the_rows_are_the_same_each_time_and_no_other_prompt_is_one_of_the_replay():
    rows = rows_of()
    assert rows == rows_of()
    plain, others = ({row["prompt"] for row in part} for part in (rows.plain, rows.others))
    assert len(plain) == len(rows.plain)
    assert not plain & others


def test_both_configs_are_those_of_runs_and_the_second_begins_where_the_first_ends(tmp_path):
    project = make_example("siblings", MODEL, tmp_path)
    first, second = (load_config(tmp_path / name).config for name in ("sft.yaml", "grpo.yaml"))
    check(first)
    check(second)
    assert first.model.path == MODEL
    assert second.model.path == f"{first.output}/checkpoints/step-{first.train.steps:06d}/model"
    assert {path.name for path in tmp_path.iterdir()} == set(project.files)
    named = {*first.data.train, *second.data.train, first.data.eval, second.data.eval, first.evaluation.other_prompts}
    assert named - {"replay.jsonl"} == {name for name in project.files if name.endswith(".jsonl")}
    assert all(command in (tmp_path / "README.md").read_text() for command in project.commands[1:])
    assert max(len(line) for name in ("sft.yaml", "grpo.yaml") for line in (tmp_path / name).open()) <= 121


def test_a_folder_with_a_space_is_a_model_too(tmp_path):
    model = tmp_path / "my model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    project = make_example("siblings", str(model), tmp_path / "p")
    assert load_config(tmp_path / "p" / "sft.yaml").config.model.path == str(model)
    assert f"'{model}'" in project.commands[1]


def test_what_the_reward_says_of_itself_is_so():
    path = WORDS_FILE.with_name("reward.py")
    spec = importlib.util.spec_from_file_location("reward_of_siblings", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert doctest.testmod(module) == (0, 1)


def test_from_the_command_line_and_never_over_files(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["init", "--example", "siblings", "--model", MODEL, "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["folder"] == "siblings"
    assert said["commands"][0] == "cd siblings"
    assert run(["init", "--example", "siblings", "--model", MODEL, "--json"]) == 2
    assert "nothing is overwritten" in json.loads(capfd.readouterr().out)["error"]["message"]
    assert run(["init", "--example", "siblings", "--model", MODEL, "--goal", "speed", "--json"]) == 2
    assert "Leave --goal out" in json.loads(capfd.readouterr().out)["error"]["message"]


def test_another_name_and_a_tiny_model_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--example sisters; allowed: siblings"):
        make_example("sisters", MODEL, tmp_path)
    with pytest.raises(ConfigError, match="the tiny model, which only reads letters"):
        make_example("siblings", "tiny", tmp_path)
    assert EXAMPLES.keys() == {"siblings"}
