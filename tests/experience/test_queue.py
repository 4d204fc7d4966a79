"""The queue returns groups in order of arrival, to a policy that may learn from them, and survives a checkpoint."""

from __future__ import annotations

import json

import pytest

from posttrain.errors import GuardStop
from posttrain.experience.group import Group, GroupQueue, groups_of
from posttrain.rewards import Failure, Scores, Verdict
from posttrain.rewards.judge.records import Judgement, Reply
from posttrain.types import Completion, Episode, Prompt

NAN = float("nan")


def group(index: int, *versions: int) -> Group:
    answer = Completion(
        ids=(5,) * len(versions), logprobs=(-0.5,) * len(versions), versions=versions, finish_reason="eos", text="x"
    )
    return Group(prompt=Prompt(index=index, ids=(1,), text="?"), completions=(answer,))


def queue_of(max_lag: int, *groups: Group) -> GroupQueue:
    queue = GroupQueue(max_lag)
    for one in groups:
        queue.put(one)
    return queue


def test_the_oldest_groups_come_first():
    queue = queue_of(2, group(3, 1), group(1, 2), group(2, 3))
    assert [one.prompt.index for one in queue.take(2, version=3)] == [3, 1]
    assert len(queue) == 1


def test_with_lag_0_only_what_the_present_policy_sampled_is_given_out():
    assert queue_of(0, group(0, 5, 5)).take(1, version=5)
    with pytest.raises(GuardStop, match=r"prompt 0 has tokens of policy version 4, but version 5 would learn"):
        queue_of(0, group(0, 4)).take(1, version=5)


def test_it_is_the_oldest_token_of_a_completion_that_counts():
    assert queue_of(2, group(0, 3, 5)).take(1, version=5)
    with pytest.raises(GuardStop, match="tokens of version 3 or later"):
        queue_of(2, group(0, 2, 5)).take(1, version=5)


def test_a_token_of_a_version_that_does_not_exist_yet_is_our_own_mistake():
    with pytest.raises(ValueError, match="version 7 cannot exist yet at version 6"):
        queue_of(9, group(0, 6, 7)).take(1, version=6)


def test_more_groups_than_wait_are_not_given_out():
    with pytest.raises(ValueError, match="2 groups are requested, but only 1 wait"):
        queue_of(0, group(0, 0)).take(2, version=0)


def test_a_negative_lag_is_refused():
    with pytest.raises(ValueError, match="max_lag = -1"):
        GroupQueue(-1)


def test_what_waits_is_the_same_after_a_checkpoint():
    """Missing rewards, verdicts, failures, judgements and text of an environment all survive JSON."""
    prompts = [Prompt(index=7, ids=(1, 2), text="a"), Prompt(index=9, ids=(3,), text="b")]
    answers = [
        [
            Completion(
                ids=(5, 6, 7),
                logprobs=(-0.1, -0.30000000000000004),
                versions=(3, 4),
                finish_reason="eos",
                text="ü\u2028",
                given=((1, 2),),
                starts=(1,),
                episode=Episode(messages=({"role": "user", "content": "ü"},), turns=2, ended="done", reward=0.1),
            ),
            Completion(ids=(), logprobs=(), versions=(), finish_reason="length", text=""),
        ]
        for _ in prompts
    ]
    verdict = Verdict(1.0, "correct", extracted="18", seconds=0.25, detail="d")
    scores = Scores(
        rewards_PG=[[1.0, NAN], [0.5, 0.0]],
        scored_PG=[[True, False], [True, True]],
        parts={"math": [[1.0, None], [0.5, 0.0]], "form": [[0.0, 1.0], [1.0, 1.0]]},
        failures=(Failure(label="math", prompt=7, completion=1, kind="timeout", message="late"),),
        seconds={"math": 2.0, "form": 0.5},
        verdicts={"math": [[verdict, None], [Verdict(None, "not_applicable"), None]]},
        is_open={"form": [[True, None], [False, True]]},
        judgements=(Judgement(label="j", prompt=9, completion=0, score=None, replies=(Reply(text="A", verdict="A"),)),),
    )
    groups = groups_of(prompts, answers, scores)
    assert [len(one.scores.failures) for one in groups if one.scores] == [1, 0]
    assert [len(one.scores.judgements) for one in groups if one.scores] == [0, 1]
    saved = json.loads(json.dumps(queue_of(9, *groups).state(), allow_nan=False))
    loaded = GroupQueue(9)
    loaded.load_state(saved, {prompt.index: prompt for prompt in prompts})
    again = loaded.take(2, version=9)
    assert repr(again) == repr(groups)
    assert [one.completions for one in again] == [one.completions for one in groups]
