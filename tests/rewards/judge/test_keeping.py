"""No question is sent twice: replies are stored by content, shared, and either complete or absent."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from tests.rewards.judge.server import longer_wins
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


def body(content, **more):
    """A completion that ended for this reason, or with these further fields of the message."""
    reason = more.pop("finish_reason", "stop")
    return json.dumps({"choices": [{"message": {"content": content, **more}, "finish_reason": reason}]}).encode()


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (body("Hard to say."), "its reply ends with 'Hard to say. Hard to say.'"),
        (body(None), "its reply is empty"),
        (body(None, reasoning_content="Hm", finish_reason="length"), "empty (finish_reason length): raise judge.max_"),
        (body("First, I", finish_reason="length"), "First, I' (finish_reason length): raise judge.max_tokens, or turn"),
        (body("", finish_reason="content_filter"), "its reply is empty (finish_reason content_filter)"),
        (body(None, refusal="I cannot help."), "its reply ends with 'I cannot help. I cannot help.'"),
    ],
    ids=["evades", "empty", "reasoned only", "cut", "filtered", "refused"],
)
def test_a_reply_without_verdict_says_why_and_is_not_kept(score, server, tmp_path, raw, told):
    """Once the server behind the same name is mended, it is asked again."""
    server.raw = raw
    assert told in score(PAIR).failures[0].message
    assert files(tmp_path / "cache") == []
    server.raw = None
    assert score(PAIR).rewards_PG == [[1.0, 0.0]]


def test_what_earlier_versions_kept_without_a_verdict_is_asked_again(judged, score, server, tmp_path):
    earlier = judged()
    earlier.components[0].judge.asks.is_final = lambda text: True
    server.rule = lambda texts: "Hard to say."
    earlier.score([prompt(7)], [[completion(text) for text in PAIR]])
    assert len(files(tmp_path / "cache")) == 4
    server.rule = longer_wins
    assert score(PAIR).rewards_PG == [[1.0, 0.0]]


@pytest.mark.parametrize("first", ["Hard to say.", "", "<think>The first is"])
def test_a_verdict_that_came_when_asked_again_is_kept_with_the_first_reply(score, server, first):
    server.rule = lambda texts: first if texts["turns"] == "1" else "Verdict: tie"
    once, again = score(PAIR), score(PAIR)
    assert once.rewards_PG == again.rewards_PG == [[0.5, 0.5]]
    assert len(server.requests) == 4
    assert [r.text for r in once.judgements[0].replies] == [r.text for r in again.judgements[0].replies]
    assert float(judge_metrics(again.judgements)["judge/cached"]) == 1.0


def test_the_cache_lies_where_it_is_told_to(score, tmp_path, server):
    score(PAIR)
    assert len(files(tmp_path / "cache" / "judgements")) == 2
    score(PAIR, cache=str(tmp_path / "mine"))
    assert len(files(tmp_path / "mine")) == 2
    score(PAIR, cache=False)
    assert len(server.requests) == 6


@pytest.mark.parametrize("content", ['{"te', "[]", '{"text": null}', '{"text": 5}'])
def test_a_damaged_file_is_asked_for_again(score, tmp_path, server, content):
    score(PAIR)
    damaged, whole = files(tmp_path / "cache")
    damaged.write_text(content)
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
