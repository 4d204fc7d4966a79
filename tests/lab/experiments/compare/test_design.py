"""Designs of comparisons: read from a file or from arguments, and refused before any run costs time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.data import split
from posttrain.errors import ConfigError
from posttrain.lab.experiments.compare import api
from posttrain.lab.experiments.compare.design import Budget, Design, check_same_split, read_design

BASE: dict[str, Any] = {
    "model": "tiny:sort",
    "algorithm": {"name": "grpo", "clip_high": 0.28},
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "train": {"steps": 50, "prompts_per_step": 8},
}
TWO = {"base": BASE, "arms": {"grpo": {}, "careful": {"train.learning_rate": 1e-7}}}


def refused(source: Any, **given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read_design(source, **given)
    assert caught.value.fix, "every refusal says what to do"
    assert caught.value.allowed or "Did you mean" in caught.value.fix
    return str(caught.value)


def test_algorithms_may_be_one_text_as_on_the_command_line():
    names = [list(read_design(BASE, algorithms=given).arms) for given in ("grpo, rloo", ["grpo", "rloo"])]
    assert names == [["grpo", "rloo"]] * 2


def test_algorithms_become_arms_and_leave_the_settings_of_another_behind():
    design = read_design(BASE, algorithms=["grpo", "rloo"], seeds=2)
    assert list(design.arms) == ["grpo", "rloo"]
    assert design.resolved("grpo", 1).config.algorithm.settings["clip_high"] == 0.28
    config = design.resolved("rloo", 1).config
    assert (config.algorithm.name, config.seed, config.train.steps) == ("rloo", 1, 50)


def test_a_file_names_its_base_beside_it(tmp_path: Path):
    (tmp_path / "base.yaml").write_text(json.dumps(BASE))
    (tmp_path / "arms.yaml").write_text(
        "base: base.yaml\narms: {a: {algorithm: rloo}, b: {train: {learning_rate: 1e-4}}}\nseeds: [3, 5]\n"
        "budget: {tokens: 2e6}\nmeasures: {spread: policy/ratio_std}\n"
    )
    design = read_design(tmp_path / "arms.yaml")
    assert (design.seeds, str(design.budget)) == ((3, 5), "2,000,000 tokens")
    assert design.resolved("b", 3).config.train.learning_rate == 1e-4
    assert read_design(design.record()) == design


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("steps=7", {"steps": 7, "stop_after_tokens": None, "stop_after_seconds": None}),
        ("tokens=2e4", {"steps": 2500, "stop_after_tokens": 20_000, "stop_after_seconds": None}),
        ({"seconds": 1.5}, {"steps": 100_000, "stop_after_tokens": None, "stop_after_seconds": 1.5}),
    ],
)
def test_a_budget_is_the_same_limit_for_every_run(budget: Any, expected: dict[str, Any]):
    design = read_design(TWO, budget=budget)
    for arm in design.arms:
        train = design.resolved(arm, 0).config.train
        assert {name: getattr(train, name) for name in expected} == expected


def test_settings_for_all_arms_stand_below_those_of_an_arm():
    design = read_design(TWO, overrides=["train.learning_rate=1e-3", "model=tiny:reverse", "sampling.group_size=4"])
    assert design.resolved("grpo", 0).config.train.learning_rate == 1e-3
    assert design.resolved("careful", 0).config.train.learning_rate == 1e-7
    assert design.resolved("careful", 0).config.model.path == "tiny:reverse"
    assert design.resolved("careful", 0).config.sampling.group_size == 4


@pytest.mark.parametrize(
    "given", ["tokens", "steps=0", "minutes=3", "tokens=1.5", {"steps": 1, "tokens": 2}, "steps=x"]
)
def test_a_budget_that_cannot_be_meant(given: Any):
    with pytest.raises(ConfigError, match="one of steps, tokens and seconds"):
        Budget.read(given)


def test_what_is_refused_before_anything_is_trained():
    assert "1 arms; allowed: at least two" in refused(BASE, algorithms=["grpo"])
    assert "arm typo: algorithm.name = grpoo" in refused(
        {"base": BASE, "arms": {"a": {}, "typo": {"algorithm": "grpoo"}}}
    )
    assert "Did you mean seeds?" in refused({**TWO, "seed": 3})
    assert "seeds = [1, 1]" in refused({**TWO, "seeds": [1, 1]})
    assert "arm a/b" in refused({"base": BASE, "arms": {"a/b": {}, "c": {}}}).replace("an arm named 'a/b'", "arm a/b")
    assert "arm b sets seed" in refused({"base": BASE, "arms": {"a": {}, "b": {"seed": 1}}})
    assert "evaluation.every = 0: nothing measures" in refused(TWO, target=0.5)
    assert "measures.x: take = middle" in refused({**TWO, "measures": {"x": {"metric": "entropy", "take": "middle"}}})
    assert "algorithms together with a file with arms" in refused(TWO, algorithms=["rloo"])
    assert "score = best" in refused({**TWO, "score": "best"})
    assert "data.hold_out = all" in refused(TWO, overrides=["data.hold_out=all"])
    assert "hold_out" not in refused({**TWO, "hold_out": "rows"}).replace("hold_out is not a setting", "")
    assert "confidence = 2" in refused({**TWO, "confidence": 2})


def test_a_schedule_has_to_know_its_last_step():
    linear = {**BASE, "train": {**BASE["train"], "schedule": "linear"}}
    assert "the number of its last step is unknown" in refused(linear, algorithms=["grpo", "rloo"], budget="tokens=1e5")
    read_design(linear, algorithms=["grpo", "rloo"], budget="steps=9")


def test_arms_with_other_rewards_need_a_judge_of_their_own():
    arms = {"plain": {}, "half": {"rewards": [{"name": "exact_match", "weight": 0.5}]}}
    assert "the held-out scores of plain and half mean different things" in refused({"base": BASE, "arms": arms})
    assert "score = check, but the base has no check" in refused({"base": BASE, "arms": arms, "score": "check"})
    checked = {**BASE, "check": [{"name": "exact_match"}]}
    assert read_design({"base": checked, "arms": arms, "score": "check"}).score == "check"


FILE = {"train": "a.jsonl"}
EVAL = {"train": "a.jsonl", "eval": "test.jsonl"}


@pytest.mark.parametrize(
    ("data", "change"),
    [
        (FILE, {"data.train": "b.jsonl"}),
        (FILE, {"data.split": "other"}),
        (FILE, {"data.eval_fraction": 0.2}),
        (FILE, {"data.max_rows": 50}),
        (FILE, {"data.eval": "test.jsonl"}),
        (EVAL, {"data.eval": "other.jsonl"}),
        (EVAL, {"data.eval_split": "validation"}),
        (BASE["data"], {"data.train": "task:reverse"}),
    ],
)
def test_arms_that_hold_out_other_rows_are_refused_before_training(data: dict[str, Any], change: dict[str, Any]):
    said = refused({"base": {**BASE, "data": data}, "arms": {"one": {}, "two": change}})
    assert "arms one and two hold out different rows" in said
    assert "Set data.eval in the base" in said


@pytest.mark.parametrize(
    ("data", "change"),
    [
        (FILE, {"data.prompt": "{prompt}!"}),
        (FILE, {"data.system_prompt": "Be brief."}),
        (EVAL, {"data.train": "b.jsonl"}),
        (EVAL, {"data.split": "other"}),
        (EVAL, {"data.max_rows": 50}),
    ],
)
def test_arms_may_train_on_other_rows_or_word_them_otherwise(data: dict[str, Any], change: dict[str, Any]):
    read_design({"base": {**BASE, "data": data}, "arms": {"one": {}, "two": change}})


def rows_file(folder: Path, each: int) -> dict[str, Any]:
    """A data section of a file with `each` rows per question."""
    rows = [{"question": f"q{n // each}", "other": f"o{n // each}", "tag": str(n), "answer": "1"} for n in range(60)]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"train": str(path), "eval_fraction": 0.1}


WORDED: list[tuple[dict[str, Any], bool]] = [
    ({"data.hold_out": "rows"}, False),
    ({"data.prompt": "{tag}: {question}"}, False),
    ({"data.prompt": "tag"}, False),
    ({"data.columns": {"prompt": "tag"}}, False),
    ({"data.prompt": "{question} Be brief."}, True),
    ({"data.prompt": "other"}, True),
    ({"data.system_prompt": "Be brief."}, True),
]


@pytest.mark.parametrize(("change", "same"), WORDED)
@pytest.mark.parametrize("each", [1, 5])
def test_arms_may_word_prompts_otherwise_if_they_hold_out_the_same_rows(tmp_path, change, same, each):
    design = {"base": {**BASE, "data": rows_file(tmp_path, each)}, "arms": {"one": {}, "two": change}}
    if same or each == 1:
        check(design)
        check({**design, "settings": {"data.hold_out": "rows"}})
        return
    with pytest.raises(ConfigError) as refusal:
        posttrain.compare(design, out=tmp_path / "out")
    said = "arms one and two hold out different rows with seed 0: data.hold_out = prompts, and data."
    assert said in str(refusal.value)
    assert not (tmp_path / "out").exists()
    check({**design, "arms": {"one": {"data.hold_out": "rows"}, "two": {**change, "data.hold_out": "rows"}}})


def check(source: dict[str, Any]) -> None:
    design = read_design(source)
    check_same_split(design, design.seeds)


def begun(folder: Path, **changes: Any) -> Design:
    """The design that `compare` would carry out, and then saves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "carry_out", lambda design, folder, **options: None)
        patch.setattr(api, "conclude", lambda folder: None)
        posttrain.compare({**TWO, **changes}, out=folder)
    return read_design(folder / "compare.yaml")


def test_seeds_and_arms_may_be_added_but_not_changed(tmp_path: Path):
    begun(tmp_path)
    begun(tmp_path, seeds=5, title="More seeds", target=None)
    begun(tmp_path, seeds=5, arms={**TWO["arms"], "third": {"algorithm": "rloo"}})
    with pytest.raises(ConfigError, match="other settings: budget, seeds"):
        begun(tmp_path, seeds=[7], budget={"steps": 3}, arms={**TWO["arms"], "third": {"algorithm": "rloo"}})
    with pytest.raises(ConfigError, match=r"other settings: arms\.careful, arms\.third"):
        begun(tmp_path, seeds=5, arms={"grpo": {}, "careful": {"train.learning_rate": 1e-3}})


def forget_hold_out(folder: Path) -> None:
    """Make the design one that an earlier version saved."""
    saved = json.loads((folder / "compare.yaml").read_text())
    del saved["settings"]["data.hold_out"]
    (folder / "compare.yaml").write_text(json.dumps(saved))


@pytest.mark.parametrize("then", ["prompts", "rows"])
def test_new_arms_and_seeds_hold_out_rows_as_the_comparison_began(tmp_path, then):
    """An earlier version did not save `hold_out`, and held out single rows."""
    given = {"base": {**BASE, "data": FILE}}
    explicit = {"base": {**BASE, "data": {**FILE, "hold_out": then}}}  # as in the saved config of a run
    begun(tmp_path, **given)
    if then == "rows":
        forget_hold_out(tmp_path)
    arms = {**TWO["arms"], "third": {"algorithm": "rloo"}, "own": {"data.hold_out": "rows"}}
    for way in (given, explicit, {**given, "settings": {"data.hold_out": then}}, given):
        design = begun(tmp_path, **way, seeds=5, arms=arms)
        found = {arm: design.resolved(arm, 4).config.data.hold_out for arm in arms}
        assert found == {"grpo": then, "careful": then, "third": then, "own": "rows"}
        assert read_design(design.record()) == design
    other = {"data.hold_out": "rows" if then == "prompts" else "prompts"}
    with pytest.raises(ConfigError, match=r"other settings: data\.hold_out;"):
        begun(tmp_path, **given, seeds=5, arms=arms, settings=other)


def test_the_command_of_an_earlier_version_continues_arms_with_other_prompts(tmp_path):
    given = {"base": {**BASE, "data": rows_file(tmp_path, 5)}, "arms": {"one": {}, "two": {"data.prompt": "tag"}}}
    begun(tmp_path / "out", **given, settings={"data.hold_out": "rows"})
    forget_hold_out(tmp_path / "out")
    assert begun(tmp_path / "out", **given).hold_out == "rows"


def test_the_data_is_read_once_per_unit_for_the_seeds_that_are_left(tmp_path, monkeypatch):
    reads: list[int] = []
    monkeypatch.setattr(
        split, "read_split", lambda data, seed, of=split.read_split: reads.append(seed) or of(data, seed)
    )
    ways = {"a": {}, "b": {"data.prompt": "{question}!"}, "c": {}, "d": {"data.prompt": "{question}?"}}
    given = {"base": {**BASE, "data": rows_file(tmp_path, 5)}, "arms": ways, "seeds": 2}
    read_design(begun(tmp_path / "out", **given).record())
    assert sorted(reads) == [0] * 3 + [1] * 3
    reads.clear()
    monkeypatch.setattr(api, "is_settled", lambda folder: folder.name.endswith("seed0"))
    begun(tmp_path / "out", **given)
    assert reads == [1] * 3


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(ConfigError, match=", which is neither empty nor a comparison"):
        begun(tmp_path)


def test_each_run_keeps_one_checkpoint_unless_asked_for_more():
    assert read_design(TWO).resolved("grpo", 0).config.checkpoint.keep == 1
    assert read_design(TWO, overrides=["checkpoint.keep=3"]).resolved("grpo", 0).config.checkpoint.keep == 3
