"""No question is sent twice: replies are stored by content, shared, and either complete or absent."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from tests.rewards.rollouts import completion, prompt

from posttrain.rewards.judge import judge_metrics

PAIR = ["long answer", "short"]


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.json"))


def test_the_same_question_is_asked_once_and_gives_the_same_scores(score, server):
    first, second = score(PAIR), score(PAIR)
    assert first.rewards_PG == second.rewards_PG
    assert len(server.requests) == 2
    assert float(judge_metrics(second.judgements)["judge/cached"]) == 1.0
    assert float(judge_metrics(second.judgements)["judge/calls"]) == 0.0
    assert [r.text for r in second.judgements[0].replies] == [r.text for r in first.judgements[0].replies]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"max_tokens": 5},
        {"temperature": 0.5},
        {"rubric": "Be strict."},
        {"request": {"stop": ["."]}},
    ],
    ids=str,
)
def test_whatever_may_change_an_answer_asks_anew(score, server, change):
    score(PAIR)
    score(PAIR, **change)
    assert len(server.requests) == 4


@pytest.mark.parametrize("change", [{"concurrency": 1}, {"timeout": 5}, {"retries": 0}, {"max_calls": 9}], ids=str)
def test_how_it_is_asked_does_not(score, server, change):
    score(PAIR)
    score(PAIR, **change)
    assert len(server.requests) == 2


def test_samples_with_a_temperature_are_kept_one_by_one(score, server):
    server.rule = lambda texts: f"Score: {len(server.requests) % 6}"
    settings = {"mode": "score", "temperature": 1.0}
    once = score(["answer"], samples=2, **settings)
    assert len(server.requests) == 2
    assert score(["answer"], samples=2, **settings).rewards_PG == once.rewards_PG
    score(["answer"], samples=3, **settings)
    assert len(server.requests) == 3, "only the third judgement is new"


def test_failures_and_missing_verdicts_are_not_kept_as_such(score, server):
    server.always = (500, {})
    assert score(PAIR, retries=0).scored_PG == [[False, False]]
    server.always = None
    assert score(PAIR).rewards_PG == [[1.0, 0.0]]


def test_the_cache_lies_where_it_is_told_to(score, tmp_path, server):
    score(PAIR)
    assert len(files(tmp_path / "cache" / "judgements")) == 2
    score(PAIR, cache=str(tmp_path / "mine"))
    assert len(files(tmp_path / "mine")) == 2
    score(PAIR, cache=False)
    assert len(server.requests) == 6


def test_a_damaged_file_is_asked_for_again(score, tmp_path, server):
    score(PAIR)
    damaged, whole = files(tmp_path / "cache")
    damaged.write_text('{"te')
    assert score(PAIR).rewards_PG == [[1.0, 0.0]]
    assert len(server.requests) == 3
    assert json.loads(damaged.read_text())["text"]
    assert {path for path in (tmp_path / "cache").rglob("*") if path.is_file()} == {damaged, whole}


def test_a_folder_that_cannot_be_written_costs_questions_only(score, tmp_path, server):
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert score(PAIR, cache=str(tmp_path / "file")).rewards_PG == [[1.0, 0.0]]
    assert len(server.requests) == 4


def test_what_came_before_an_interruption_is_kept(judged, server, monkeypatch):
    """Each reply is on disk before the judge waits for the next one."""
    rewards = judged(concurrency=1)
    kept = rewards.components[0].judge.asks
    write, written = kept._write, []

    def write_one(key, reply):
        write(key, reply)
        written.append(key)
        if len(written) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(kept, "_write", write_one)
    groups = [[completion("a" * n), completion("b" * (n + 1))] for n in (1, 2, 3)]
    prompts = [prompt(n) for n in range(3)]
    with pytest.raises(KeyboardInterrupt):
        rewards.score(prompts, groups)
    monkeypatch.undo()
    scores = judged(concurrency=1, cache=str(kept.folder)).score(prompts, groups)
    assert sum(reply.cached for judgement in scores.judgements for reply in judgement.replies) == 3


def test_a_full_disk_costs_questions_and_leaves_nothing_behind(score, server, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert score(PAIR, cache=str(tmp_path / "kept")).scored_PG == [[True, True]]
    assert [path for path in (tmp_path / "kept").rglob("*") if path.is_file()] == []
