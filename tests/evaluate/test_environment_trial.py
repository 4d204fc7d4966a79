"""Simple scripted players try an environment and its tools: errors, endless games, unearned rewards and leaked
answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.cli import run as command
from posttrain.config import load_config
from posttrain.evaluate.environment_trial import audit_environment
from posttrain.rewards.audit.finding import AuditReport

WORLDS = '''
import random
import time


class Game:
    """As it should be."""

    def __init__(self, pay=0.0, tells=False, ends=True, breaks=False):
        self.pay, self.tells, self.ends, self.breaks, self.turns = pay, tells, ends, breaks, 0

    def reset(self, row):
        self.answer = row["answer"]
        return f"The answer is {self.answer}." if self.tells else "Guess."

    def step(self, message):
        self.turns += 1
        if self.breaks:
            raise RuntimeError("the board is gone")
        return None if self.ends and self.turns == 2 else "No."

    def reward(self):
        return self.pay


class Coin(Game):
    """It pays in some games, whatever is said."""

    def reward(self):
        return float(random.random() < 0.4)


class Clock(Game):
    def step(self, message):
        return str(time.time_ns())


def works(place: str) -> str:
    """Look.

    Args:
        place: Where.
    """
    return "a cat"


def broken(place: str) -> str:
    """Look.

    Args:
        place: Where.
    """
    return undefined_name


def picky(place: str) -> str:
    """Look.

    Args:
        place: Where.
    """
    raise KeyError(place)


def hangs(place: str) -> str:
    """Look.

    Args:
        place: Where.
    """
    time.sleep(600)


def gossip(place: str) -> str:
    """Look.

    Args:
        place: Where.
    """
    return "All answers: " + " ".join(f"secret{n}" for n in range(1))
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds")
    (folder / "worlds.py").write_text(WORLDS)
    rows = [{"prompt": f"Guess word {n}.", "answer": f"secret{n}"} for n in range(60)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def tried(folder: Path) -> AuditReport:
    return audited(folder, world="", tools=("works", "broken", "picky"))


def audited(
    folder: Path,
    *,
    tools: tuple[str, ...] = (),
    world: str = "Game",
    data: dict[str, object] | None = None,
    **settings: object,
) -> AuditReport:
    tree = {
        "model": "none",
        "algorithm": "grpo",
        "data": data or {"train": str(folder / "rows.jsonl")},
        "rewards": ["environment"] if world else [{"name": "exact_match"}],
        "tools": [f"{folder}/worlds.py:{tool}" for tool in tools],
        "train": {"steps": 1},
    }
    if world:
        tree["environment"] = {"function": f"{folder}/worlds.py:{world}", "settings": settings, "timeout": 1.0}
    elif tools == ("hangs",):
        tree["environment"] = {"timeout": 0.3}
    report = audit_environment(load_config(tree, []).config)
    assert report is not None
    return report


def statuses(report: AuditReport) -> dict[str, str]:
    return {one.check: one.status for one in report.checks}


def test_an_environment_gets_the_columns_that_its_run_gets(folder, tmp_path):
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    renamed = [{"said": row["prompt"], "answer": "another", "word": row["answer"]} for row in rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in renamed))
    data = {"train": str(tmp_path / "rows.jsonl"), "columns": {"prompt": "said", "answer": "word"}}
    assert statuses(audited(folder, data=data)) == statuses(audited(folder))


def test_an_environment_that_is_as_it_should_be_passes(folder):
    report = audited(folder)
    assert statuses(report) == {
        "environment works": "ok",
        "environment ends": "ok",
        "nothing is given away": "ok",
        "environment repeats": "ok",
        "seconds per answer": "ok",
        "answers are kept": "ok",
    }
    assert report.ok
    (seconds,) = [one.measured for one in report.checks if one.check == "seconds per answer"]
    assert seconds is not None
    assert 0 < seconds < 1, "an environment that answers immediately"


@pytest.mark.parametrize(
    ("settings", "check", "status", "says"),
    [
        ({"breaks": True}, "environment works", "fail", "16 of 16 games failed"),
        ({"ends": False}, "environment ends", "warn", "0 of 16 games ended within 4 turns"),
        ({"pay": 1.0}, "nothing is given away", "fail", "16 of 16 got 1 or more, mean 1"),
        ({"tells": True}, "answers are kept", "fail", "in 100% of the rows, replies stated the answer"),
        ({"world": "Clock"}, "environment repeats", "warn", "8 of 8 games went differently"),
    ],
)
def test_what_is_wrong_with_an_environment_is_named(folder, settings, check, status, says):
    report = audited(folder, **settings)
    assert (report[check].status, says in report[check].text) == (status, True)
    assert report.ok == (status != "fail")


def test_each_game_has_a_seed_of_its_own(folder):
    report = audited(folder, world="Coin")
    share = report["nothing is given away"].measured
    assert share is not None
    assert 0 < share < 1
    assert report["nothing is given away"].status == "fail"
    assert report["environment repeats"].status == "ok"


@pytest.mark.parametrize(
    ("tool", "status", "example"),
    [
        ("works", "ok", ""),
        ("broken", "fail", "NameError: name 'undefined_name' is not defined"),
        ("picky", "warn", "KeyError"),
        pytest.param("hangs", "fail", "no result after 0.3 s", marks=pytest.mark.slow),
    ],
)
def test_a_broken_tool_is_told_from_one_that_asks_for_more(folder, tried, tool, status, example):
    report = audited(folder, world="", tools=(tool,)) if tool == "hangs" else tried
    assert report[f"tool {tool}"].status == status
    assert example in " ".join(report[f"tool {tool}"].examples)


@pytest.mark.slow
def test_what_says_every_answer_tells_no_row_its_own(folder):
    """The constant answer is that of one row in eight, by chance."""
    assert audited(folder, tools=("gossip",))["answers are kept"].status in ("ok", "warn")


def test_the_command_makes_the_same_checks(folder, capsys):
    config = folder / "run.yaml"
    config.write_text(
        f"model: none\nalgorithm: grpo\ndata: {{train: {folder}/rows.jsonl}}\nrewards: [environment]\n"
        f"environment: {{function: '{folder}/worlds.py:Game', settings: {{tells: true}}}}\ntrain: {{steps: 1}}\n"
    )
    assert command(["reward", "audit", str(config), "--json"]) == 1
    [audit] = json.loads(capsys.readouterr().out)["audits"]
    assert [one["check"] for one in audit["checks"] if one["status"] == "fail"] == ["answers are kept"]
    assert command(["reward", "test", str(config), "--no-model", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {one["check"]: one["status"] for one in findings}["answers are kept"] == "fail"
