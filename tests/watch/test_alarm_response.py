"""The files that an alarm leaves, after any kill, damaged file or repeated row."""

from __future__ import annotations

import json
import random
from dataclasses import asdict

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.processes import run_code
from tests.tiny import tiny_model, write_prompts

import posttrain
from posttrain.errors import AlarmStop
from posttrain.evaluate.evaluation import Answer, Record
from posttrain.experience.group import groups_of
from posttrain.rewards import Scores
from posttrain.rewards.judge import Judgement
from posttrain.types import Completion, Prompt
from posttrain.watch import Alarm, IndependentCheck
from posttrain.watch.evidence import KEPT, first_of_each, suspicion_of, suspicious
from posttrain.watch.heldout import first_look

ALARM = Alarm(kind="disagreement", step=6, change_point=3, message="the check rejects what the reward accepts")


def store_rollouts(folder, seed=0):
    """Store six steps of answers, some of which are repeated; return the rows since the change."""
    dice = random.Random(seed)
    (folder / "rollouts").mkdir()
    since = []
    for step in range(1, 7):
        rows = [
            {
                "step": step,
                "prompt_index": n,
                "row": n,
                "prompt": "?",
                "completion": f"answer {dice.randrange(60)}",
                "completion_ids": [1, 2, 3],
                "reward": dice.choice([0.0, 0.5, 1.0, None]),
                "advantage": 0.0,
                "discarded": n == 30,
                "check/sound": dice.choice([0.0, 1.0, None]),
            }
            for n in range(40)
        ]
        parquet.write_table(pa.Table.from_pylist(rows), folder / "rollouts" / f"step-{step:06d}.parquet")
        since += rows if step >= ALARM.change_point else []
    return since


@pytest.mark.parametrize("seed", range(5))
def test_the_answers_kept_are_those_that_all_steps_together_would_give(tmp_path, seed):
    rows = [row for row in store_rollouts(tmp_path, seed) if row["reward"] is not None and not row["discarded"]]

    def key(row):
        checked = row["check/sound"]
        return (0.0 if checked is None else 0.5 - checked, row["reward"], row["step"], -row["row"])

    best = {}
    for row in sorted(rows, key=key, reverse=True):
        best.setdefault(row["completion"], (row["step"], row["row"]))
    found = suspicious(tmp_path, ALARM, 0.5)
    assert [(row["step"], row["row"]) for row in found] == list(best.values())[:KEPT]


@pytest.mark.parametrize(
    ("accepts_at", "rejected", "accepted"),
    [(7.0, [3.0, 6.9], [7.0, 10.0]), (-2.0, [-5.0, -2.1], [-2.0, -1.0]), (0.0, [-0.1, -9.0], [0.0, 0.4])],
)
def test_the_answers_that_the_check_rejects_come_first_on_every_scale(accepts_at, rejected, accepted):
    """Unseen answers come after them, although their reward is higher."""
    scores = [*[None] * 2 * KEPT, *accepted, *rejected]
    rows = [
        {"step": 1, "row": n, "completion": str(n), "completion_ids": [1], "reward": float(s is None), "check/judge": s}
        for n, s in enumerate(scores)
    ]
    found = first_of_each(rows, suspicion_of(ALARM, accepts_at))
    assert [row["check/judge"] for row in found] == [*sorted(rejected), *[None] * (KEPT - 2)]
    seen = first_of_each([row for row in rows if row["check/judge"] is not None], suspicion_of(ALARM, accepts_at))
    assert [row["check/judge"] for row in seen] == sorted([*rejected, *accepted])


def test_rollouts_that_cannot_be_read_are_left_out(tmp_path):
    store_rollouts(tmp_path)
    (tmp_path / "rollouts" / "step-000004.parquet").write_bytes(b"PAR1 cut")
    (tmp_path / "rollouts" / "step-000005.parquet").unlink()
    assert {row["step"] for row in suspicious(tmp_path, ALARM, 0.5)} == {3, 6}


def test_a_row_that_comes_twice_in_a_step_keeps_apart_what_a_judge_says_of_its_answers():
    """This happens when an epoch ends within a step: more answers of its first group are judged than of its second."""

    class Judges:
        def score(self, prompts, groups):
            said = [
                Judgement(label="judge", prompt=prompt.index, completion=j, score=float(answer.text))
                for prompt, group in zip(prompts, groups, strict=True)
                for j, answer in enumerate(group)
            ]
            scores = [[float(answer.text) for answer in group] for group in groups]
            scored = [[True for _ in group] for group in groups]
            return Scores(
                rewards_PG=scores,
                scored_PG=scored,
                parts={"judge": scores},
                failures=(),
                seconds={},
                judgements=tuple(said),
            )

    def answers(*texts):
        return [Completion(ids=(1,), logprobs=(0.0,), versions=(0,), finish_reason="eos", text=t) for t in texts]

    prompts = [Prompt(index=index, ids=(1,), text="?") for index in (7, 8, 7)]
    groups = [answers("0", "1", "0"), answers("1", "1", "1"), answers("1", "0", "1")]
    places = [(0, 0), (0, 1), (0, 2), (1, 1), (2, 1)]
    checked = IndependentCheck(Judges()).look_at(groups_of(prompts, groups, None), places, accepted=9, accepts_at=0.5)
    assert checked.scores["judge"] == {(0, 0): 0.0, (0, 1): 1.0, (0, 2): 0.0, (1, 1): 1.0, (2, 1): 0.0}
    said = sorted((one.prompt, one.completion, one.score) for one in checked.judgements)
    assert said == [(7, 0, 0.0), (7, 1, 0.0), (7, 1, 1.0), (7, 2, 0.0), (8, 1, 1.0)]


def test_one_held_out_answer_says_what_counts_as_accepted(tmp_path):
    """The score has no full mark, and one answer is too few for a best quarter."""
    answer = Answer(text="a", ids=(1,), finish_reason="eos", score=3.5, check={"sound": 1.0})
    record = Record(index=0, prompt="?", greedy=answer)
    (tmp_path / "baseline.jsonl").write_text(json.dumps(asdict(record)) + "\n")
    look = first_look(tmp_path / "baseline.jsonl", accepted_at=None, check_accepts_at=0.5)
    assert look is not None
    assert (look.accepted_at, look.accepted, look.rejected) == (3.5, 1, 0)


@pytest.mark.parametrize(
    ("scores", "accepted_at", "accepted"),
    [([-1.0] * 7 + [0.25], 0.25, 1), ([-1.0] * 4, -1 + 1e-6, 0), ([-1.0, -1.0, 0.25, 0.5], 0.3125, 1)],
    ids=["one above the lowest", "nothing but the lowest", "a quarter"],
)
def test_answers_with_the_lowest_reward_are_not_accepted(tmp_path, scores, accepted_at, accepted):
    answers = [Answer(text="a", ids=(1,), finish_reason="eos", score=s, check={"sound": 1.0}) for s in scores]
    records = [Record(index=index, prompt="?", greedy=answer) for index, answer in enumerate(answers)]
    (tmp_path / "baseline.jsonl").write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))
    look = first_look(tmp_path / "baseline.jsonl", accepted_at=None, check_accepts_at=0.5)
    assert look is not None
    assert look.accepted_at == pytest.approx(accepted_at, abs=1e-9)
    assert look.accepted == accepted


# --- an alarm of an evaluation, whose step already has its checkpoint -------------------------------------------------

FUNCTIONS = """
def pays_for_q(prompt, completion, **row):
    return float("q" in completion)


def rejects(prompt, completion, **row):
    return 0.0
"""
DIES_BEFORE_IT_TELLS = """
import json, os, signal, sys
from posttrain.train import api

responding = sys.modules["posttrain.train.respond"]
responding.tell = lambda run, alarm: os.kill(os.getpid(), signal.SIGKILL)
api.train(json.loads(sys.argv[1]))
"""


def gamed(folder, **alarms):
    """Greedy answers learn to contain a q, which the check gives nothing for: the gap opens at step 4."""
    tiny_model(folder / "model", characters="abcdqrs ")
    write_prompts(folder / "prompts.jsonl", count=32)
    (folder / "functions.py").write_text(FUNCTIONS)
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0.25},
        "rewards": [{"function": f"{folder / 'functions.py'}:pays_for_q"}],
        "check": [{"function": f"{folder / 'functions.py'}:rejects", "label": "sound"}],
        "sampling": {"group_size": 8, "max_completion_length": 6},
        "train": {"steps": 6, "prompts_per_step": 4, "learning_rate": 3e-3},
        "evaluation": {"writing": 0, "prompts": 8, "samples": 0, "every": 2},
        "checkpoint": {"every": 2},
        "guards": {"max_truncated": 1.0},
        "alarms": {"gap": 0.05, "reference_steps": 1, "disagreement_ratio": None, "length_correlation": None} | alarms,
        "output": str(folder / "run"),
        "report": False,
    }


def told(folder):
    lines = (folder / "run" / "events.jsonl").read_text().splitlines()
    return [(event["alarm"], event["step"]) for event in map(json.loads, lines) if event["kind"] == "alarm"]


@pytest.mark.slow
def test_an_alarm_that_a_kill_kept_from_being_told_is_told_when_the_run_is_resumed(tmp_path):
    done = run_code(DIES_BEFORE_IT_TELLS, json.dumps(gamed(tmp_path, on_alarm="pause")))
    assert done.exit_code == -9, done.errors
    assert told(tmp_path) == []
    with pytest.raises(AlarmStop, match="paused after step 4: training reward rose"):
        posttrain.resume(tmp_path / "run")
    run = posttrain.resume(tmp_path / "run")
    assert run.step == 6
    assert told(tmp_path) == [("gap", 4)]


@pytest.mark.slow
def test_a_run_that_is_stopped_anew_tells_of_its_alarm_once(tmp_path):
    with pytest.raises(AlarmStop, match="stopped after step 4"):
        posttrain.train(gamed(tmp_path, on_alarm="stop"))
    with pytest.raises(AlarmStop, match="stopped after step 4"):
        posttrain.resume(tmp_path / "run")
    assert told(tmp_path) == [("gap", 4)]
