"""Runs whose trajectories are drawn by engines in separate processes, with real environments and tools."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from tests.episodes.talkers import ASKERS, WORLDS, talker
from tests.processes import Command, ForkedEngine

import posttrain as pt
from posttrain.data.order import rows_for_step
from posttrain.errors import ConfigError
from posttrain.store.checkpoint import load_state


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("turns")
    talker(folder / "model")
    rows = [{"prompt": letter, "secret": letter} for letter in "abcdefgh" * 16]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def config(place: Path, name: str, **changes: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(place / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(place / "rows.jsonl"), "eval_fraction": 0.05, "hold_out": "rows"},
        "environment": {"function": f"{WORLDS}:Guess"},
        "rewards": ["environment"],
        "sampling": {"group_size": 4, "max_completion_length": 16, "max_turns": 4},
        "train": {"steps": 3, "prompts_per_step": 4, "learning_rate": 1e-2},
        "evaluation": {"prompts": 4, "samples": 1, "writing": 0},
        "guards": {"max_truncated": 1.0},
        "checkpoint": {"every": 0},
        "output": str(place / name),
        "report": False,
    } | changes


def rows_of(run: pt.Run, step: int) -> list[dict[str, Any]]:
    """The rows of a rollout file, without the measured times."""
    rows = parquet.read_table(Path(run.folder) / "rollouts" / f"step-{step:06}.parquet").to_pylist()
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in rows]


AHEAD = {"rollout.engines": 1, "train.run_ahead": 2, "train.max_staleness": 8}
CALLS = {
    "environment": {},
    "tools": [f"{WORLDS}:look"],
    "rewards": [{"name": "repetition", "settings": {"n": 1}}],
    "train": {"steps": 3, "prompts_per_step": 8, "learning_rate": 1e-2},
}


HOST_DIES = f'''
import os, signal, sys, time
from pathlib import Path

sys.path.insert(0, {str(Path(WORLDS).parent)!r})
from {Path(WORLDS).stem} import Guess

IMPORTED, KILLED = (Path(__file__).with_suffix(ending) for ending in (".imported", ".killed"))
if KILLED.exists():
    time.sleep(6)
    IMPORTED.touch()


class World(Guess):
    """Kills the host that it was forked from, once."""

    def step(self, message):
        if not KILLED.exists():
            KILLED.touch()
            os.kill(os.getppid(), signal.SIGKILL)
        return super().step(message)
'''


def groups_of(run: Path) -> dict[int, list[int]]:
    """The steps that trained each prompt."""
    found: dict[int, list[int]] = {}
    for file in sorted((run / "rollouts").glob("step-*.parquet")):
        rows = parquet.read_table(file, columns=["step", "prompt_index"]).to_pylist()
        for step, prompt in {(row["step"], row["prompt_index"]) for row in rows}:
            found.setdefault(prompt, []).append(step)
    return found


def drawn_turns(row: dict[str, Any]) -> list[list[int]]:
    """The versions of the tokens of each turn."""
    edges = [0, *(edge for span in row["given"] or () for edge in span), len(row["completion_ids"])]
    turns, done = [], 0
    for begin, end in batched(edges, 2):
        turns.append(row["versions"][done : done + end - begin])
        done += end - begin
    assert done == len(row["versions"]) == len(row["logprobs"])
    return [turn for turn in turns if turn]


def batched(edges: list[int], size: int) -> list[list[int]]:
    return [edges[at : at + size] for at in range(0, len(edges), size)]


@pytest.mark.parametrize("changes", [{}, pytest.param(CALLS, marks=pytest.mark.slow)], ids=["environment", "tools"])
def test_engines_draw_what_the_process_itself_draws(place: Path, changes: dict[str, Any]):
    """Synchronous runs agree token for token. The trainer computes the log-probabilities that the engines drew with."""
    name = "tools" if changes else "environment"
    steps = {"train.steps": 2}
    runs = [pt.train(config(place, f"{name} {n}", **changes), **steps, **{"rollout.engines": n}) for n in (0, 2)]
    for step in (1, 2):
        alone, engines = (rows_of(run, step) for run in runs)
        for own, row in zip(alone, engines, strict=True):
            assert [row[column] for column in SAME] == [own[column] for column in SAME]
            assert row["logprobs"] == pytest.approx(own["logprobs"], abs=1e-4)  # timing decides the batches
            assert {version for turn in drawn_turns(row) for version in turn} == {step - 1}
        assert any(row["given"] for row in engines)
    assert max(line["mismatch/abs_max"] for line in runs[1].metrics) < 1e-4
    assert all(line["time/in_tools"] > 0 for line in runs[1].metrics)
    scores = [run.evaluation["trained"]["rewards"] for run in runs]
    assert scores[0] == scores[1]


SAME = ("prompt_index", "completion_ids", "given", "reward", "versions", "completion")


@pytest.mark.slow
def test_turns_of_a_trajectory_are_drawn_with_the_weights_of_their_time(place: Path):
    """With 0.2 s per turn, a trajectory sampled ahead meets several publications; each token has its own version."""
    given = {"function": f"{WORLDS}:Guess", "settings": {"pause": 0.2}}
    run = pt.train(config(place, "ahead", environment=given), **AHEAD, **{"train.steps": 8})
    rows = [row for step in range(1, 9) for row in rows_of(run, step)]
    assert Counter(map(len, groups_of(run.folder).values())) == {1: 8 * 4}
    newer = [row for row in rows if len({version for turn in drawn_turns(row) for version in turn}) > 1]
    assert newer
    assert all(row["versions"] == sorted(row["versions"]) for row in rows)
    assert any(len(set(turn)) == 1 and set(turn) != set(row["versions"]) for row in newer for turn in drawn_turns(row))
    assert all(row["step"] - 1 - version in range(9) for row in rows for version in row["versions"])
    ages = [line["staleness/max"] for line in run.metrics]
    assert max(ages) >= 1
    assert all(line["turns/mean"] > 1 for line in run.metrics)


@pytest.mark.slow
def test_a_slow_environment_holds_up_neither_the_others_nor_the_trainer(place: Path):
    """It answers after six steps: its group, of the third step, is trained after them, and the first turn keeps its old
    version. All other prompts of these steps were trained meanwhile."""
    slow, run = rows_for_step(0, 3, 4, 64)[0], place / "slow"
    metrics = str(run / "metrics.jsonl")
    rows = [{"prompt": "a", "secret": "b", "metrics": metrics if row == slow else ""} for row in range(64)]
    (place / "slow.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {
        "environment": {"function": f"{WORLDS}:Waits", "timeout": 300},
        "data": {"train": str(place / "slow.jsonl"), "eval_fraction": 0},
    }
    done = pt.train(config(place, run.name, **changes), **AHEAD, **{"train.steps": 12})
    steps = {prompt: step for prompt, [step] in groups_of(run).items()}
    assert len(steps) == 12 * 4
    assert steps[slow] >= 7
    own = [row for row in rows_of(done, steps[slow]) if row["prompt_index"] == slow]
    assert all(min(row["versions"]) <= 2 for row in own)
    assert any(max(row["versions"]) >= 6 for row in own)


@pytest.mark.slow
def test_engines_are_not_late_while_a_dead_host_of_environments_is_started_anew(place: Path):
    """The thread cannot listen while the host imports an environment for longer than rollout.deadline."""
    world = place / "slow_to_import.py"
    world.write_text(HOST_DIES)
    settings = config(place, "host", environment={"function": f"{world}:World"})
    done = pt.train(settings, **AHEAD, **{"train.steps": 4, "rollout.deadline": 2.0})
    assert world.with_suffix(".killed").exists()
    assert world.with_suffix(".imported").exists()
    told = [json.loads(line)["message"] for line in (done.folder / "events.jsonl").open()]
    assert not any("is late" in message or "is lost" in message for message in told)
    assert Counter(map(len, groups_of(done.folder).values())) == {1: 4 * 4}


@pytest.mark.slow
def test_a_killed_engine_costs_no_turn_and_an_environment_that_dies_no_trajectory(place: Path):
    """The other engine continues the rows after the last delivered token; an environment that dies is started again."""
    run, killed = place / "killed", []

    def kill() -> None:
        while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_text().splitlines()) < 3:
            time.sleep(0.01)
        killed.append(ForkedEngine.there()[-1])
        os.kill(killed[0], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    given = {"environment": {"function": f"{WORLDS}:DiesOnce", "settings": {"folder": str(place / "begun")}}}
    (place / "begun").mkdir()
    done = pt.train(config(place, "killed", **given), **AHEAD, **{"train.steps": 16})
    assert killed
    assert any("is lost: killed by signal 9" in json.loads(line)["message"] for line in (run / "events.jsonl").open())
    assert Counter(map(len, groups_of(run).values())) == {1: 16 * 4}
    assert max(line["environment/attempts"] for line in done.metrics) > 1
    rows = [row for step in range(1, 17) for row in rows_of(done, step)]
    assert all(drawn_turns(row) for row in rows)
    assert all(row["scored"] for row in rows)


@pytest.mark.slow
def test_a_resumed_run_begins_open_trajectories_anew_and_loses_none(place: Path):
    slow = {"environment": {"function": f"{WORLDS}:Guess", "settings": {"pause": 0.1}}}
    first = pt.train(config(place, "resumed", **slow), **AHEAD, **{"train.steps": 6, "checkpoint.every": 3})
    middle, last = sorted((first.folder / "checkpoints").glob("step-*"))[-2:]
    _, state = load_state(middle / "state")
    begun = state["feed"]["engines"]["controller"]["in_flight"]
    assert not all(row["ended"] for group in begun for row in group["rows"]), "some trajectories are still open"
    shutil.rmtree(last)
    done = pt.resume(first.folder, steps=6)
    assert Counter(map(len, groups_of(done.folder).values())) == {1: 6 * 4}


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint(place: Path):
    """kill -9 while trajectories are open: each prompt is trained once, and no process is left."""
    run = place / "kill -9"
    settings = config(place, run.name, rollout={"engines": 1}, checkpoint={"every": 2})
    settings["train"] = {"steps": 1000, "prompts_per_step": 4, "run_ahead": 2, "max_staleness": 8}
    settings["environment"] = {"function": f"{WORLDS}:Guess", "settings": {"pause": 0.1}}
    (place / "kill.yaml").write_text(json.dumps(settings))
    process = Command("train", "kill.yaml", cwd=place)
    while not (run / "checkpoints" / "step-000004").exists() and process.returncode is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    done = pt.resume(run, steps=8)
    assert Counter(map(len, groups_of(done.folder).values())) == {1: 8 * 4}


@pytest.mark.slow
def test_an_agent_is_drawn_by_engines(place: Path):
    """Engines answer its HTTP requests, with their log-probabilities."""
    changes = {
        "environment": {},
        "agent": {"function": f"{ASKERS}:talks"},
        "rewards": [{"name": "agent", "settings": {"when_cut": 0.0}}],
    }
    runs = [
        pt.train(config(place, f"agent {n}", **changes), **{"rollout.engines": n, "train.steps": 2}) for n in (0, 1)
    ]
    for step in (1, 2):
        alone, own = (rows_of(run, step) for run in runs)
        assert [[row[column] for column in SAME] for row in own] == [[row[column] for column in SAME] for row in alone]
    assert max(line["mismatch/abs_max"] for line in runs[1].metrics) < 1e-4


@pytest.mark.slow
def test_evaluations_of_the_process_itself_have_environments_of_their_own(place: Path):
    """With publish_every above 1 this process answers them, while engines sample for later steps."""
    more = {"train.publish_every": 2, "train.steps": 4, "evaluation.every": 2, "checkpoint.every": 2}
    run = pt.train(config(place, "every second"), **AHEAD, **more)
    assert len(run.metrics) == 4
    assert run.evaluation["trained"]["rewards"]


def test_credit_of_turns_needs_all_of_them(place: Path):
    with pytest.raises(
        ConfigError, match=r"environment\.credit = turn with train\.run_ahead = 2.*train\.run_ahead = 0"
    ):
        pt.train(config(place, "credit"), **AHEAD, **{"environment.credit": "turn"})


@pytest.mark.slow
@pytest.mark.parametrize("engines", [0, 1])
def test_two_ranks_learn_from_trajectories_as_one_does(place: Path, engines: int):
    """The first rank draws the trajectories, or an engine does."""
    more = {"model.precision": "float32", "train.steps": 2, "train.learning_rate": 1e-4, "rollout.engines": engines}
    runs = [pt.train(config(place, f"{engines} of {n}"), **more, **{"train.devices": n}) for n in (1, 2)]
    for step in (1, 2):
        one, two = (rows_of(run, step) for run in runs)
        assert [[row[column] for column in SAME] for row in two] == [[row[column] for column in SAME] for row in one]
    norms = [[line["grad_norm"] for line in run.metrics] for run in runs]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    assert max(line["mismatch/abs_max"] for line in runs[1].metrics) < 1e-4
