"""`posttrain init`: every project that it writes runs unchanged."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import json
import os
import pty
from itertools import cycle
from pathlib import Path

import pytest
import yaml
from tests.catalogue import catalogue, few
from tests.processes import Command
from tests.test_docs import blocks

from posttrain.cli import run
from posttrain.config import check, load_config
from posttrain.errors import ConfigError
from posttrain.lab.advise.advisor import advise
from posttrain.lab.advise.facts import Facts
from posttrain.lab.advise.ranges import remarks
from posttrain.lab.init import QUESTIONS, Answers, make_example, make_project
from posttrain.lab.init.samples import sample

CHOICES = {question.key: tuple(question.choices) for question in QUESTIONS}
KINDS = CHOICES["data"]


PAGE = Path(__file__).parents[3] / "docs" / "init.md"


def test_the_page_shows_the_config_and_the_first_lines_that_init_writes(tmp_path, capsys):
    shown = make_project(Answers(data="answers", folder=tmp_path / "shown"))
    assert blocks(PAGE, "yaml") == [(shown.folder / "config.yaml").read_text()]
    with contextlib.chdir(tmp_path):
        assert run(["init", "my-run", "--data", "pairs"]) == 0
    assert "".join(blocks(PAGE, "text")[0].splitlines(keepends=True)[1:]).rstrip() in capsys.readouterr().out


@pytest.mark.parametrize(
    "kind", [kind if kind == "pairs" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_project_runs_as_it_is(tmp_path, kind):
    project = make_project(Answers(data=kind, folder=tmp_path / "first"))
    for command in project.commands[1:]:
        short = ["train.steps=2", "train.warmup_steps=0"] if command.startswith("posttrain train") else []
        process = Command(*command.split()[1:], *short, cwd=project.folder)
        printed = process.communicate()
        assert process.returncode == 0, (command, printed)
    (folder,) = (project.folder / "runs").iterdir()
    assert {"baseline", "trained"} <= json.loads((folder / "evaluation.json").read_text()).keys()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", few(["tiny", "Qwen/Qwen3-0.6B"], "tiny"))
def test_each_config_is_one_of_a_run_whatever_is_answered(kind, model, tmp_path):
    wheres = [(where, "balance") for where in CHOICES["where"]]
    goals = [("auto", goal) for goal in CHOICES["goal"] if goal != "balance"]
    answers = [*wheres, *goals, ("cpu", "memory")]
    if model == "tiny":  # every answer once, together with another; the slow cases have each alone
        places = cycle(CHOICES["where"])
        answers = [(next(places), goal) for goal in CHOICES["goal"]]
        assert {where for where, _ in answers} == set(CHOICES["where"])
    for number, (where, goal) in enumerate(answers):
        folder = tmp_path / str(number)
        make_project(Answers(data=kind, model=model, where=where, goal=goal, folder=folder))
        text = (folder / "config.yaml").read_text()
        check(load_config(folder / "config.yaml").config)
        assert 10 <= len(text.splitlines()) <= 18
        assert max(map(len, text.splitlines())) <= 120


ALONE = [(kind, "auto", "balance") for kind in KINDS]
ELSEWHERE = [(kind, *answers) for answers in (("cpu", "memory"), ("gpu", "quality")) for kind in KINDS]


@pytest.mark.parametrize(
    ("kind", "where", "goal"), few([*ALONE, *ELSEWHERE], *ALONE, *(one for one in ELSEWHERE if one[0] == "answers"))
)
def test_sizes_rates_and_adapters_of_a_real_model_are_those_that_advise_says(kind, where, goal, tmp_path):
    make_project(Answers(data=kind, model="Qwen/Qwen3-0.6B", where=where, goal=goal, folder=tmp_path))
    ours = yaml.safe_load((tmp_path / "config.yaml").read_text())
    facts = {"data": kind, "model": "Qwen/Qwen3-0.6B", "answer_length": 256}
    facts |= {"auto": {}, "cpu": {"gpus": 0}, "gpu": {"gpus": 1}}[where]
    facts |= {} if goal == "balance" else {"priority": goal}
    facts |= {"online": False} if kind in ("pairs", "thumbs", "demonstrations") else {}
    theirs = yaml.safe_load(advise(facts).best.config)
    assert ours["algorithm"] == theirs["algorithm"]
    assert {name: ours.get(name) for name in ("train", "sampling", "lora")} == {
        name: theirs.get(name) for name in ("train", "sampling", "lora")
    }
    assert ours.get("environment", {}).keys() == theirs.get("environment", {}).keys()
    assert ("lora" in ours) == (goal == "memory")
    assert remarks(load_config(ours).config) == []


def test_the_advisor_and_the_project_understand_each_others_words():
    assert Answers(data="verifier") == Answers(data="answers")
    assert Facts(data="answers") == Facts(data="verifier", reward="exact")
    assert Facts(data="function") == Facts(data="nothing", reward="noisy")
    assert Facts(data="environment") == Facts(data="verifier", reward="exact", turns="environment")
    assert Facts(data="function,pairs") == Facts(data="pairs", reward="noisy")
    assert Facts(data="answers", reward="noisy") == Facts(data="verifier", reward="noisy")
    for kind in KINDS:
        assert advise(data=kind).best is not None


@pytest.mark.slow
@catalogue("kind", KINDS)
@catalogue("tiny", [True, False])
def test_the_sample_holds_out_what_it_does_not_train_on_and_is_the_same_each_time(kind, tiny):
    rows = sample(kind, tiny=tiny)
    assert rows == sample(kind, tiny=tiny)
    prompts = [{json.dumps(row.get("prompt", row.get("messages"))) for row in part} for part in rows]
    assert not prompts[0] & prompts[1]
    assert [len(found) for found in prompts] == [len(part) for part in rows]
    assert min(map(len, rows)) >= 10


def test_the_sample_of_thumbs_has_both_labels():
    for part in (*sample("thumbs", tiny=True), *sample("thumbs", tiny=False)):
        assert {row["label"] for row in part} == {True, False}


@pytest.mark.parametrize(
    "name", ["answers", "answers_tiny", "environment", "environment_tiny", "function", "function_tiny"]
)
def test_what_reward_files_say_of_themselves_is_so(name):
    path = (
        Path(importlib.util.find_spec("posttrain.lab.init").submodule_search_locations[0]) / "templates" / f"{name}.py"
    )
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert doctest.testmod(module).attempted > 0
    assert doctest.testmod(module).failed == 0


def test_nothing_is_overwritten(tmp_path):
    make_project(Answers(folder=tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "README.md").unlink()
    with pytest.raises(
        ConfigError, match=r"holds config.yaml, train.jsonl, eval.jsonl; allowed: .*nothing is overwritten"
    ):
        make_project(Answers(data="pairs", folder=tmp_path))
    assert not (tmp_path / "README.md").exists()
    assert all(path.read_bytes() == text for path, text in before.items() if path.exists())


def test_a_folder_with_other_files_is_welcome(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    make_project(Answers(folder=tmp_path))
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"data": "pair"}, r"--data pair; allowed: answers, function, .*\n  Did you mean pairs\?"),
        ({"goal": "fame"}, r"--goal fame; allowed: balance, quality, stability, speed, memory"),
        ({"where": "cloud"}, r"--where cloud; allowed: auto, cpu, gpu"),
        ({"model": "./nowhere"}, r"--model ./nowhere: there is no such folder.*\n  Use --model tiny"),
    ],
)
def test_an_answer_that_cannot_be_meant_is_named(answers, message):
    with pytest.raises(ConfigError, match=message):
        Answers(**answers)


def test_a_local_model_is_named_by_its_whole_path_and_must_be_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        Answers(model="model")
    (tmp_path / "model" / "config.json").write_text("{}")
    make_project(Answers(model="model", folder=tmp_path / "p"))
    assert yaml.safe_load((tmp_path / "p" / "config.yaml").read_text())["model"] == str(tmp_path / "model")


def test_a_model_that_is_not_here_is_said_to_be_a_name_on_the_hub(tmp_path, monkeypatch):
    """A misspelt folder, and one that an earlier step did not write, look the same as a name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "config.json").write_text("{}")
    for model, noted in {"gone": True, "here": False, "tiny": False}.items():
        said = make_project(Answers(model=model, folder=tmp_path / f"of-{model}")).render()
        assert ("not a folder here: the run takes it as a name on the Hugging Face Hub." in said) == noted, model
    assert "gone is not a folder here" in make_example("siblings", "gone", tmp_path / "example").render()


def test_without_a_terminal_the_defaults_are_taken_and_json_is_one_object(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115
    assert run(["init", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["folder"] == "my-run"
    assert sorted(said["files"]) == sorted(path.name for path in (tmp_path / "my-run").iterdir())
    assert said["commands"][0] == "cd my-run"
    assert run(["init", "--json"]) == 2
    assert "nothing is overwritten" in json.loads(capfd.readouterr().out)["error"]["message"]


def test_on_a_terminal_five_questions_are_asked_and_asked_again(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ours, theirs = pty.openpty()
    os.write(ours, b"pear\npairs\n\nspeed\nmine\n")
    with os.fdopen(theirs) as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", terminal)
        code = run(["init", "--where", "cpu"])
    os.close(ours)
    out = capfd.readouterr().out
    assert code == 0, out
    assert out.count("What do you have to learn from?") == 1
    assert "Did you mean pairs?" in out
    assert "Where will you train it?" not in out
    assert yaml.safe_load((tmp_path / "mine" / "config.yaml").read_text())["model"]["device"] == "cpu"
