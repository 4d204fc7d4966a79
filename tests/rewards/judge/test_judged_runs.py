"""Whole runs with a judge: its verdicts decide the training, all is on file, and a resumed run repeats no request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rewards.judge.server import Server, longer_wins, one_point_per_letter, same_text
from tests.tiny import tiny_model, write_prompts

from posttrain import cli
from posttrain.errors import RewardError
from posttrain.evaluate.api import evaluate
from posttrain.rewards import Reward
from posttrain.train.api import resume, train


@pytest.fixture
def config(tmp_path, server) -> dict[str, Any]:
    """Two steps on a random model of letters, judged by the server."""
    return {
        "model": {"path": str(tiny_model(tmp_path / "model")), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(write_prompts(tmp_path / "prompts.jsonl", count=16)), "eval_fraction": 0.25},
        "rewards": [{"judge": {"model": "judge", "url": server.url}}],
        "sampling": {"group_size": 3, "max_completion_length": 5},
        "train": {"steps": 2, "prompts_per_step": 2, "learning_rate": 1e-2},
        "evaluation": {"writing": 0, "prompts": 2, "samples": 2},
        "guards": {"max_truncated": 1.0},
        "output": str(tmp_path / "run"),
        "report": False,
    }


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def calls(path: Path) -> int:
    return sum(reply["calls"] for judgement in lines(path) for reply in judgement["replies"])


@pytest.mark.slow
def test_a_run_learns_from_comparisons_and_keeps_them_all(config, server):
    run = train(config)
    table = lines(run.folder / "judgements" / "step-000001.jsonl")
    assert len(table) == 2 * 3, "two prompts, three pairs each"
    assert {name.name for name in (run.folder / "judgements").iterdir()} >= {"baseline.jsonl", "trained.jsonl"}
    asked = [judgement for judgement in table if judgement["replies"]]
    assert all(len(judgement["replies"]) == 2 for judgement in asked)
    first = run.metrics[0]
    assert first["judge/position_bias"] == 0.0
    assert first["judge/calls"] == sum(r["calls"] for j in asked for r in j["replies"])
    assert 0 < first["rewards/judge/mean"] < 1
    spent = lines(run.folder / "judgements" / "spent-rewards-judge.jsonl")
    assert sum(part["calls"] for part in spent) == len(server.requests)


@pytest.mark.slow
def test_a_run_that_is_resumed_asks_nothing_twice_and_is_the_same(config, server, tmp_path, monkeypatch):
    """The server fails from the second step on; once it works again, the run continues as if nothing had happened."""
    config = {**config, "checkpoint": {"every": 1}}
    config["rewards"][0]["judge"]["retries"] = 0
    whole = train({**config, "output": str(tmp_path / "whole")})
    expected = sorted(map(json.dumps, server.requests))
    until = sum(calls(whole.folder / "judgements" / f"{name}.jsonl") for name in ("baseline", "step-000001"))

    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "another"))
    server.requests.clear()
    server.faults = {number: (500, {}) for number in range(until, 1000)}
    with pytest.raises(RewardError, match="step 2: "):
        train(config)
    del server.requests[until:]
    server.faults = {}
    resumed = resume(config["output"])
    assert sorted(map(json.dumps, server.requests)) == expected
    assert [m["grad_norm"] for m in resumed.metrics] == [m["grad_norm"] for m in whole.metrics]
    tables = [lines(run.folder / "judgements" / "step-000002.jsonl") for run in (resumed, whole)]
    assert [[j["score"] for j in table] for table in tables[:1]] == [
        [j["score"] for j in table] for table in tables[1:]
    ]


def test_a_judge_that_is_gone_stops_the_run_and_says_so(config, server):
    server.always = (500, {})
    config["rewards"][0]["judge"]["retries"] = 0
    with pytest.raises(RewardError, match=r'(?s)have no reward.*reward "judge".*returned 500'):
        train(config)


@pytest.mark.slow
def test_a_judge_that_fails_now_and_then_costs_single_answers(config, server):
    server.rule = lambda texts: "Hm." if "aa" in texts["request"] else longer_wins(texts)
    server.faults = {n: (500, {}) for n in range(0, 200, 5)}
    run = train({**config, "guards": {"max_truncated": 1.0, "max_unscored": 0.9}})
    assert run.step == 2


@pytest.mark.slow
def test_the_policy_can_be_its_own_judge(config):
    """A random model never gives a verdict: with the limit lifted the run continues, and every completion is
    unscored."""
    config["model"]["path"] = str(tiny_model(Path(config["output"]).parent / "roomy", max_position_embeddings=4096))
    config["rewards"] = [
        {"judge": {"model": "policy", "mode": "score", "max_tokens": 4}},
        {"name": "exact_match"},
    ]
    run = train({**config, "guards": {"max_truncated": 1.0, "max_unscored": 1.0, "no_signal_steps": 9}})
    assert [m["judge/unparsable"] for m in run.metrics] == [1.0, 1.0]
    assert lines(run.folder / "judgements" / "step-000001.jsonl")[0]["replies"][0]["text"]


@pytest.mark.slow
def test_a_check_is_judged_too_and_evaluating_the_run_repeats_it(config, server, tmp_path):
    server.rule = lambda texts: same_text(texts) if "reference" in texts else longer_wins(texts)
    judge = {"model": "judge", "url": server.url, "mode": "reference"}
    run = train({**config, "check": [{"judge": judge, "label": "right"}]})
    assert run.evaluation["check"]["right"]["trained"]["n"] == 2
    asked = len(server.requests)
    again = evaluate(run.folder)
    assert again.check["right"].mean == run.evaluation["check"]["right"]["trained"]["mean"]
    assert len(server.requests) == asked
    assert again.judgements
    written = again.write_judgements(tmp_path / "said.jsonl")
    assert written is not None
    assert len(lines(written)) == len(again.judgements)


def test_any_model_can_be_judged(config, server: Server):
    server.rule = one_point_per_letter
    judge = Reward(judge={"model": "judge", "url": server.url, "mode": "score"})
    rows = [{"prompt": "abc"}, {"prompt": "de"}]
    found = evaluate(config["model"]["path"], rows, judge, k=1, max_completion_length=5)
    lengths = [
        min(5, len(answer.text.strip())) for record in found.records for answer in (record.greedy, *record.samples)
    ]
    scores = [answer.score for record in found.records for answer in (record.greedy, *record.samples)]
    assert scores == [pytest.approx(length / 5) for length in lengths]


def test_the_command_line_takes_an_entry_as_it_stands_in_a_config(config, server, tmp_path, capsys):
    server.rule = one_point_per_letter
    judge = f"{{judge: {{model: judge, url: '{server.url}', mode: score}}, label: points}}"
    told = tmp_path / "answers.jsonl"
    model, data = config["model"]["path"], config["data"]["train"]
    options = ["--max-prompts", "2", "-k", "1", "--max-completion-length", "5", "--answers", str(told), "--json"]
    assert cli.run(["eval", model, "--data", data, "--reward", judge, *options]) == 0
    assert json.loads(capsys.readouterr().out)["rewards"]["points"]["n"] == 2
    assert {judgement["label"] for judgement in lines(tmp_path / "answers.judgements.jsonl")} == {"points"}
