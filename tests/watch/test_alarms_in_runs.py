"""Alarms in whole runs: a reward that can be cheated is noticed, and the alarm is stored."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.catalogue import few
from tests.house import nodes_of, tree_of
from tests.processes import run_code
from tests.tiny import tiny_model, write_prompts

import posttrain
from posttrain.errors import AlarmStop
from posttrain.rewards import RewardSet, Scores, build_rewards
from posttrain.watch import IndependentCheck
from posttrain.watch.check import Checked

SOURCE = Path(posttrain.__file__).parent
FUNCTIONS = """
def pays_for_q(prompt, completion, **row):
    assert not [name for name in row if "check" in name]
    return float("q" in completion)


def rejects(prompt, completion, **row):
    return 0.0


def agrees(prompt, completion, **row):
    return float("q" in completion)


def fails(prompt, completion, **row):
    raise OSError("the service is down")


def wants_hints(completions, hint, **columns):
    return [0.0 for _ in completions]
"""
FIRES_AT = 5
"""Four prompts a step; each adds log(target / baseline) = 1.08 after the check rejects all accepted answers."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alarms")
    tiny_model(folder / "model", characters="abcdqrs ")
    write_prompts(folder / "prompts.jsonl", count=32)
    (folder / "functions.py").write_text(FUNCTIONS)
    return folder


def config_of(folder, name, check="rejects", **alarms) -> dict:
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0.25},
        "rewards": [{"function": f"{folder / 'functions.py'}:pays_for_q"}],
        "check": [{"function": f"{folder / 'functions.py'}:{check}", "label": "sound"}] if check else [],
        "sampling": {"group_size": 8, "max_completion_length": 6},
        "train": {"steps": 8, "prompts_per_step": 4, "learning_rate": 3e-3},
        "evaluation": {"writing": 0, "prompts": 4, "samples": 0},
        "checkpoint": {"every": 2, "keep": 1},
        "guards": {"max_truncated": 1.0},
        "alarms": ({"cusum_limit": 17, "baseline_disagreement": 0.01} if check else {}) | alarms,
        "output": str(folder / name),
        "report": False,
    }


def events_of(folder: Path, kind: str = "alarm") -> list[dict]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def without_clock(record: dict) -> dict:
    return {name: value for name, value in record.items() if not name.startswith(("time/", "memory/"))}


def learned(record: dict) -> dict:
    """The metrics that belong to learning."""
    return {k: v for k, v in without_clock(record).items() if not k.startswith(("check/", "alarms/", "text/"))}


@pytest.fixture(scope="module")
def gamed(folder):
    """The run that the others are compared with; it warns."""
    return posttrain.train(config_of(folder, "gamed"))


def test_a_reward_that_is_cheated_sets_off_the_alarm_and_the_run_goes_on(gamed):
    (alarm,) = [event for event in events_of(gamed.folder) if event["alarm"] == "disagreement"]
    assert gamed.step == 8
    assert (alarm["step"], alarm["change_point"], alarm["checkpoint"]) == (FIRES_AT, 1, 0)
    assert alarm["evidence"]["cusum"] >= 17 > gamed.metrics[FIRES_AT - 2]["alarms/cusum"]
    assert "the independent check rejects" in alarm["message"]


def test_the_most_suspicious_answers_are_kept(gamed):
    lines = (gamed.folder / f"alarms/step-00000{FIRES_AT}-disagreement.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert 1 <= len(rows) <= 20
    assert all(row["reward"] == 1.0 and row["check/sound"] == 0.0 and "q" in row["completion"] for row in rows)
    assert len({row["completion"] for row in rows}) == len(rows)


def test_the_checkpoint_from_before_the_change_is_not_pruned(gamed):
    kept = sorted(path.name for path in (gamed.folder / "checkpoints").iterdir())
    assert kept == ["step-000000", "step-000008"], "checkpoint.keep = 1, and the one before the alarm"


def test_a_sample_of_the_accepted_answers_is_checked_and_on_file(gamed):
    for record in gamed.metrics:
        file = gamed.folder / f"rollouts/step-{record['step']:06d}.parquet"
        rows = parquet.read_table(file).to_pylist()
        checked = [row for row in rows if row["check/sound"] is not None]
        assert all(row["reward"] == 1.0 for row in checked)
        assert len(checked) == record["check/checked"] == min(32, record["check/accepted"])
        assert record["check/disagreement"] == 1.0
        assert record["time/check"] > 0


@pytest.mark.slow
def test_no_more_answers_are_checked_than_asked_for(folder):
    run = posttrain.train(config_of(folder, "sample", check_sample=3) | {"seed": 0}, **{"train.steps": 2})
    assert max(record["check/accepted"] for record in run.metrics) > 3
    assert max(record["check/checked"] for record in run.metrics) == 3


@pytest.mark.slow
@pytest.mark.parametrize("check", few(["agrees", None], None))
def test_the_check_changes_nothing_of_what_is_learned(folder, gamed, check):
    """With a check that rejects, agrees or is absent: the same weights, rewards and numbers, bit for bit."""
    weights = load_file(gamed.model_path / "model.safetensors")
    other = posttrain.train(config_of(folder, f"check-{check}", check))
    assert not [event for event in events_of(other.folder) if event["alarm"] == "disagreement"]
    assert [learned(record) for record in other.metrics] == [learned(record) for record in gamed.metrics]
    assert other.model_path is not None
    for name, tensor in load_file(other.model_path / "model.safetensors").items():
        assert torch.equal(tensor, weights[name]), name


@pytest.mark.slow
def test_a_check_that_needs_a_column_of_held_out_rows_looks_at_those_only(folder):
    rows = [{"prompt": "abc", "answer": "abc", "hint": "a"}] * 4
    (folder / "hinted.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = config_of(folder, "hinted", "wants_hints")
    config["data"] = {"train": str(folder / "prompts.jsonl"), "eval": str(folder / "hinted.jsonl")}
    run = posttrain.train(config, **{"train.steps": 1})
    assert "check/checked" not in run.metrics[0]
    assert any("the check sees only held-out answers" in event["message"] for event in events_of(run.folder, "warning"))
    assert run.evaluation["baseline"]["check"]["sound"]["mean"] == 0.0


@pytest.mark.slow
def test_a_check_that_fails_is_told_once_and_neither_agrees_nor_rejects(folder):
    config = config_of(folder, "failing", "fails") | {"guards": {"max_truncated": 1.0, "max_unscored": 1.0}}
    run = posttrain.train(config, **{"train.steps": 3})
    (warning,) = [e["message"] for e in events_of(run.folder, "warning") if "the check gave no score" in e["message"]]
    assert "OSError: the service is down" in warning
    for record in run.metrics:
        assert record["check/unscored"] == min(32, record["check/accepted"])
        assert record["check/checked"] == 0
        assert "check/disagreement" not in record
    assert not [event for event in events_of(run.folder) if event["alarm"] == "disagreement"]


@pytest.mark.slow
def test_watching_can_be_switched_off(folder):
    run = posttrain.train(config_of(folder, "off", enabled=False), **{"train.steps": FIRES_AT})
    assert not events_of(run.folder)
    assert not [name for record in run.metrics for name in record if name.startswith(("check/", "alarms/", "text/"))]


# --- the response to an alarm ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_stops_ends_where_the_alarm_fired_and_again_when_it_is_resumed(folder):
    def start():
        posttrain.train(config_of(folder, "stop", on_alarm="stop"))

    def resume():
        posttrain.resume(folder / "stop")

    for attempt in (start, resume):
        with pytest.raises(AlarmStop, match=f"stopped after step {FIRES_AT}: the independent check rejects") as caught:
            attempt()
        assert caught.value.exit_code == 4
        assert [event["step"] for event in events_of(folder / "stop")] == [FIRES_AT]


@pytest.mark.slow
def test_a_run_that_pauses_goes_on_when_it_is_resumed_and_ends_like_one_that_did_not(folder, gamed):
    with pytest.raises(AlarmStop, match=f"(?s)paused after step {FIRES_AT}.*treats these alarms as seen") as caught:
        posttrain.train(config_of(folder, "pause", on_alarm="pause"))
    assert caught.value.exit_code == 4
    assert (folder / "pause" / "checkpoints" / f"step-00000{FIRES_AT}").is_dir()
    run = posttrain.resume(folder / "pause")
    assert run.step == 8
    assert len([event for event in events_of(run.folder) if event["alarm"] == "disagreement"]) == 1
    assert list(map(without_clock, run.metrics)) == list(map(without_clock, gamed.metrics))


def test_a_threshold_that_was_too_high_is_mended_for_a_resumed_run(folder):
    """In the first two steps no answer is accepted, so the check sees none."""
    config = config_of(folder, "mended", accepted_at=5.0)
    run = posttrain.train(config | {"train": config["train"] | {"steps": 2}})
    assert [record["check/accepted"] for record in run.metrics] == [0, 0]
    file = run.folder / "config.yaml"
    saved = yaml.safe_load(file.read_text())
    assert saved["alarms"]["accepted_at"] == 5.0
    saved["alarms"]["accepted_at"] = 0.0
    file.write_text(yaml.safe_dump(saved))
    run = posttrain.resume(run.folder, steps=4)
    assert [record["check/accepted"] for record in run.metrics] == [0, 0, 32, 32]
    assert run.metrics[-1]["alarms/cusum"] > 0


KILLED = """
import os, signal, sys, json
from posttrain.train import api

one_step, last = api.one_step, int(sys.argv[2])

def and_die(run):
    one_step(run)
    if run.step == last:
        os.kill(os.getpid(), signal.SIGKILL)

api.one_step = and_die
api.train(json.loads(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed_after", [FIRES_AT - 2, FIRES_AT, 7])
def test_a_run_that_was_killed_fires_where_the_other_did(folder, gamed, killed_after):
    config = config_of(folder, f"killed-{killed_after}")
    done = run_code(KILLED, json.dumps(config), str(killed_after))
    assert done.exit_code == -9, done.errors
    run = posttrain.resume(folder / f"killed-{killed_after}")
    told, expected = (
        [(e["alarm"], e["step"], e["change_point"], e["evidence"], e["checkpoint"]) for e in events_of(one.folder)]
        for one in (run, gamed)
    )
    assert told == expected
    assert list(map(without_clock, run.metrics)) == list(map(without_clock, gamed.metrics))
    files = [sorted((one.folder / "alarms").iterdir()) for one in (run, gamed)]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


@pytest.mark.slow
def test_an_evaluation_that_a_kill_cut_off_is_made_up_for(folder):
    """It comes after the checkpoint of its step: if the kill falls between the two, the resumed run evaluates first."""
    settings = {"evaluation": {"writing": 0, "prompts": 4, "samples": 0, "every": 2}}
    whole = posttrain.train(config_of(folder, "evaluated") | settings)
    config = config_of(folder, "evaluated-killed") | settings
    killed = KILLED.replace("api.one_step = and_die", SAVES_AND_DIES)
    done = run_code(killed, json.dumps(config), "4")
    assert done.exit_code == -9, done.errors
    run = posttrain.resume(folder / "evaluated-killed")
    names = [[event["message"] for event in events_of(one.folder, "evaluation")] for one in (run, whole)]
    assert names[0] == names[1] == ["baseline", "step 2", "step 4", "step 6", "trained"]
    assert run.watch.state() == whole.watch.state()


SAVES_AND_DIES = """
from posttrain.train.run import Run

save = Run.save

def save_and_die(self, **options):
    save(self, **options)
    if self.step == last:
        os.kill(os.getpid(), signal.SIGKILL)

Run.save = save_and_die
"""


# --- training has no access to the check -----------------------------------------------------------------------------


def test_a_check_is_no_reward_and_what_it_says_are_no_scores():
    with build_rewards(["exact_match"]) as rewards:
        check = IndependentCheck(rewards)
        assert not isinstance(check, RewardSet)
        assert not hasattr(check, "score")
        assert not issubclass(Checked, Scores)


def test_nothing_that_trains_names_the_check():
    """Only the code that makes it and the alarms may hold it. Its settings are read where the measure is made."""
    holders, readers, sought = set(), set(), ("IndependentCheck", "in_evaluations", "_judges")
    for path in SOURCE.rglob("*.py"):
        if not any(word in path.read_text(encoding="utf-8") for word in sought):
            continue  # it need not be parsed
        name = path.relative_to(SOURCE).as_posix()
        for node in nodes_of(tree_of(path)):
            called = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None)
            holders |= {name} if called == sought[0] else set()
            readers |= {name} if called in sought[1:] and name != "watch/check.py" else set()
    inside = {name for name in holders if name.startswith("watch/")}
    assert holders - inside == {"train/judges.py", "train/setup.py"}
    assert readers == {"train/sources.py", "train/setup.py"}
