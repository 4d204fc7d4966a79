"""The recipes in several turns: tiny models learn to halve the remaining range, and to call a calculator."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as parquet
import pytest
import yaml
from tests.data.samples import shared_file
from transformers import AutoTokenizer

import posttrain
from posttrain.data.prompts import Renderer
from posttrain.episodes.bridge import Bridge
from posttrain.episodes.calls import proven
from posttrain.episodes.ready import python
from posttrain.episodes.tools import calculator, schema_of

RECIPES = Path(__file__).parents[2] / "recipes"
RECIPE = RECIPES / "guess_a_number"


def module(name: str, recipe: str = "guess_a_number") -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{recipe}_{name}", RECIPES / recipe / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def config(folder: Path, **train: object) -> dict[str, object]:
    """The configuration of the recipe, with its files in the folder."""
    module("start").make(folder)
    found = yaml.safe_load((RECIPE / "config.yaml").read_text())
    found["model"]["path"], found["output"] = str(folder / "model"), str(folder / "run")
    found["data"] = {"train": str(folder / "rows.jsonl"), "eval": str(folder / "rows.jsonl")}
    found["environment"]["function"] = f"{RECIPE / 'game.py'}:Game"
    found["train"] |= train
    return found


def test_the_best_player_finds_every_number_in_three_guesses_and_three_of_seven_in_two():
    """Counted by hand: two guesses suffice for the middle number and for one number on either side."""
    game = module("game")
    assert game.best_score() == 1.0
    assert [game.most_found(7, guesses) for guesses in range(4)] == [0, 1, 3, 7]


def test_the_tokenizer_of_the_game_writes_what_stands_between_two_guesses():
    words = module("start").tokenizer()
    bridge = Bridge.of(Renderer(tokenizer=words, chat=True), {words.eos_token_id})
    between = bridge.between([{"role": "user", "content": "higher"}], last=words.eos_token_id)
    assert words.convert_ids_to_tokens(between) == ["higher", ">"]


def test_the_model_with_a_calculator_is_shown_what_a_run_writes():
    """Its demonstrations have exactly the ids of a trajectory: prompt, call, result, answer."""
    start, schema = module("start", "calculator"), schema_of(calculator, "calculator")
    words = start.tokenizer()
    bridge = Bridge.of(Renderer(tokenizer=words, chat=True), {words.eos_token_id}, tools=[schema], roles=["tool"])
    call = bridge.turn_that_calls("calculator", {"expression": "12*34"})
    assert proven(words.chat_template, bridge).read(call).calls == [("calculator", {"expression": "12*34"}, "")]
    asked = bridge.whole([{"role": "user", "content": "12*34"}], ())
    back = bridge.between([{"role": "tool", "content": "408"}], last=words.eos_token_id)
    said = [words(text + "<eos>", add_special_tokens=False).input_ids for text in (call, "408")]
    shown = start.demonstration(0, {"prompt": "12*34", "answer": "408"}, calls=True)
    assert shown.input_ids == (*asked, *said[0], *back, *said[1])


def test_the_model_that_corrects_itself_is_shown_what_a_run_writes():
    """Its demonstrations have exactly the ids of a trajectory: prompt, program, the program's output, expression."""
    start, schema = module("start", "self_correction"), schema_of(python, "python")
    words = start.tokenizer()
    bridge = Bridge.of(Renderer(tokenizer=words, chat=True), {words.eos_token_id}, tools=[schema], roles=["tool"])
    row = {"prompt": "3 4 5 23", "answer": "3+4*5"}
    printed = {form.format(3, 4, 5): python(f"print({form.format(3, 4, 5)})") for form in start.FORMS}
    assert printed == {"3+4+5": "12\n", "3+4*5": "23\n", "3*4*5": "60\n"}
    for seed in range(8):  # right first and wrong first, careful or not
        shown = start.demonstration(0, row, random.Random(seed))
        tried = random.Random(seed).choice(start.FORMS).format(3, 4, 5)
        call = bridge.turn_that_calls("python", {"code": f"print({tried})"})
        asked = bridge.whole([{"role": "user", "content": row["prompt"]}], ())
        back = bridge.between([{"role": "tool", "content": printed[tried]}], last=words.eos_token_id)
        first = words(call + "<eos>", add_special_tokens=False).input_ids
        begun = (*asked, *first, *back)
        assert shown.input_ids[: len(begun)] == begun
        assert shown.completion_mask[: len(asked)] == (False,) * len(asked)
        assert shown.completion_mask[len(asked) : len(begun)] == (True,) * len(first) + (False,) * len(back)
        said = words.decode(shown.input_ids[len(begun) : -1])
        assert said in [form.format(3, 4, 5) for form in start.FORMS]
        assert shown.input_ids[-1] == words.eos_token_id
        assert all(shown.completion_mask[len(begun) :])


def test_the_real_model_is_shown_games_as_a_run_writes_them():
    """The games use its own chat template, and have no text after the last guess."""
    start = module("start", "guess_a_number_minimind2")
    shared_file("models/minimind2-small")
    words = AutoTokenizer.from_pretrained(start.REAL_MODEL)
    bridge = Bridge.of(Renderer(tokenizer=words, chat=True), {words.eos_token_id}, roles=["user"])
    first, second = (words(guess + words.eos_token, add_special_tokens=False).input_ids for guess in "35")
    asked = bridge.whole([start.ASKED], ())
    back = bridge.between([{"role": "user", "content": "higher"}], last=words.eos_token_id)
    text = words.apply_chat_template(start.messages([("3", "higher"), ("5", "")]), tokenize=False).rstrip("\n")
    assert words(text, add_special_tokens=False).input_ids == [*asked, *first, *back, *second]
    assert start.messages([("3", "higher"), ("5", "lower")])[-1]["role"] == "assistant"


@pytest.mark.slow
def test_a_tiny_model_learns_to_find_a_number(tmp_path: Path):
    run = posttrain.train(config(tmp_path))
    before, after = (run.evaluation[name]["sampled"]["score"] for name in ("baseline", "trained"))
    print(f"before {before}, after {after}")
    assert before["high"] < after["low"]
    assert after["mean"] >= 0.7


@pytest.mark.slow
def test_a_run_in_turns_goes_on_bit_for_bit(tmp_path: Path):
    """Resumed after its second step, it makes the same third step as an uninterrupted run."""
    small = {"steps": 3, "schedule": "constant", "warmup_steps": 0}
    given = config(tmp_path, **small) | {"report": False, "checkpoint": {"every": 1}}
    given["sampling"] |= {"group_size": 8}  # type: ignore[operator]
    given["evaluation"] = {"prompts": 2, "samples": 1, "writing": 0}
    whole = posttrain.train(given)
    part = posttrain.train(given | {"output": str(tmp_path / "part"), "train": {**given["train"], "steps": 2}})  # type: ignore[dict-item]
    again = posttrain.resume(part.folder, steps=3)
    measured = ("time/", "memory/")
    metrics = [
        [{name: repr(value) for name, value in line.items() if not name.startswith(measured)} for line in run.metrics]
        for run in (whole, again)
    ]
    assert metrics[0] == metrics[1]
    tables = [parquet.read_table(Path(run.folder) / "rollouts" / "step-000003.parquet") for run in (whole, again)]
    assert "given" in tables[0].column_names
    rows = [table.drop_columns(["reward/environment/seconds"]).to_pylist() for table in tables]
    assert rows[0] == rows[1]
    weights = [next(Path(run.model_path).glob("*.safetensors")).read_bytes() for run in (whole, again)]  # type: ignore[arg-type]
    assert weights[0] == weights[1]
