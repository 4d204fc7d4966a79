"""A resumed run whose rewards changed since its start says so, and continues."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.catalogue import few
from tests.tiny import tiny_model

import posttrain as pt
from posttrain.config import load_config
from posttrain.rewards.load import Target
from posttrain.train.same_rewards import Facts, _file_of, changes, facts_of

REWARD = """def reward(prompts, completions, **columns):
    return [float(len(set(completion)) % 3) for completion in completions]


other = reward
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("rewards") / "model")


@pytest.fixture
def begun(tmp_path: Path, model: Path) -> Path:
    """A run after its first step."""
    for part, words in (("train", "abcdefgh"), ("eval", "ijkl")):
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps({"prompt": word}) + "\n" for word in words))
    (tmp_path / "mine.py").write_text(REWARD)
    config = {
        "model": {"path": str(model), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(tmp_path / "train.jsonl"), "eval": str(tmp_path / "eval.jsonl")},
        "rewards": [{"function": f"{tmp_path / 'mine.py'}:reward", "weight": 2.0}],
        "sampling": {"max_completion_length": 4, "group_size": 2},
        "guards": {"max_truncated": 1.0},
        "evaluation": {"writing": 0, "samples": 0},
        "train": {"steps": 1, "prompts_per_step": 4},
        "output": str(tmp_path / "run"),
        "report": False,
    }
    return pt.train(config).folder


def warnings(folder: Path) -> list[str]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event["message"] for event in events if event["kind"] == "warning" and event.get("about") == "rewards"]


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "file": (lambda folder: edit(folder.parent / "mine.py", "% 3", "% 3 + 10"), "rewards.reward (its file)"),
    "weight": (
        lambda folder: edit(folder / "config.yaml", "weight: 2.0", "weight: 3.0"),
        "rewards.reward (its weight)",
    ),
    "function": (
        lambda folder: edit(folder / "config.yaml", "mine.py:reward", "mine.py:other"),
        "rewards.reward is gone; rewards.other is new",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", few(CHANGES, "file"))
def test_a_reward_that_was_changed_is_pointed_out_and_the_run_goes_on(begun, change):
    how, said = CHANGES[change]
    how(begun)
    pt.resume(begun, steps=2)
    (warning,) = warnings(begun)
    assert warning.startswith(f"changed since the run was started: {said}. The baseline and earlier steps were judged")
    pt.resume(begun, steps=3)
    assert warnings(begun) == [warning] * 2, "the baseline is still the one of the start"


@pytest.mark.slow
def test_the_changed_reward_is_what_the_run_learns_from(begun):
    edit(begun.parent / "mine.py", "% 3", "% 3 + 10")
    pt.resume(begun, steps=2)
    before, after = (json.loads(line)["reward"] for line in (begun / "metrics.jsonl").read_text().splitlines())
    assert before < 10 < after


DAMAGES = [None, "", "[]", '{"rewards": 1, "check": {}}', '{"rewards": {"reward": {}}, "check": {}}']


@pytest.mark.parametrize("damage", few(DAMAGES, None, DAMAGES[-1]))
def test_nothing_is_said_of_a_run_of_an_earlier_version_or_with_a_damaged_file(begun, damage):
    edit(begun.parent / "mine.py", "% 3", "% 3 + 10")
    if damage is None:
        (begun / "rewards.json").unlink()
    else:
        (begun / "rewards.json").write_text(damage)
    pt.resume(begun, steps=2)
    assert warnings(begun) == []


@pytest.mark.slow
def test_the_same_rewards_are_passed_over(begun):
    pt.resume(begun, steps=2)
    assert warnings(begun) == []


# --- what counts as a change ------------------------------------------------------------------------------------------


def facts(**rewards: dict[str, Any]) -> Facts:
    common = {"name": "score", "weight": 1.0, "gate": None, "settings": {}, "file": "a"}
    return {"rewards": {label: common | one for label, one in rewards.items()}, "check": {}}


def test_a_label_alone_and_a_file_that_is_not_found_are_no_change():
    assert changes(facts(a={}), facts(b={})) == []
    assert changes(facts(a={}), facts(a={"file": ""})) == []
    assert changes(facts(a={"file": ""}), facts(a={})) == []


def test_all_that_was_changed_of_a_reward_is_named():
    gated = {"gate": {"label": "b", "at_least": 1.0}, "file": "b", "settings": {"x": 2}}
    assert changes(facts(a={}, b={}), facts(a=gated, b={})) == ["rewards.a (its gate, its settings, its file)"]
    assert changes(facts(a={}), facts(a={"name": "other", "file": "b"})) == ["rewards.a (its function)"]


def test_a_check_that_was_changed_is_named_and_one_more_or_less_is_no_change():
    one, other = facts(a={})["rewards"], facts(a={"file": "b"})["rewards"]
    assert changes({"rewards": {}, "check": one}, {"rewards": {}, "check": other}) == ["check.a (its file)"]
    assert changes({"rewards": {}, "check": one}, {"rewards": {}, "check": {}}) == []
    assert changes({"rewards": {}, "check": {}}, {"rewards": {}, "check": one}) == []


def test_no_secret_of_the_settings_is_kept(tmp_path):
    (tmp_path / "mine.py").write_text(REWARD)
    scorer = {"function": f"{tmp_path / 'mine.py'}:reward", "settings": {"api_key": "sk-secret", "limit": 0.5}}
    given = {"model": "m", "algorithm": "grpo", "data": {"train": "d"}, "rewards": [scorer], "train": {"steps": 1}}
    config = load_config(given, {}).config
    found = facts_of(config)["rewards"]["reward"]
    assert "sk-secret" not in str(found)
    assert found["settings"] == {"api_key": "<redacted>", "limit": 0.5}
    assert len(found["file"]) == 64


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("package", "package/__init__.py"),
        ("package.inner", "package/inner.py"),
        ("package.deep", "package/deep/__init__.py"),
        ("single", "single.py"),
        ("spaced.inner", "spaced/inner.py"),
        ("package.none", None),
        ("nowhere.at.all", None),
        ("sys", None),
    ],
)
def test_the_file_of_a_module_is_found_without_importing_it(tmp_path, monkeypatch, module, file):
    for name in ("package/__init__.py", "package/inner.py", "package/deep/__init__.py", "single.py", "spaced/inner.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    assert _file_of(Target(module=module, name="score")) == (None if file is None else tmp_path / file)
