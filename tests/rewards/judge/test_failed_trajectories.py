"""Judges of groups in which the environment failed for some answers: nobody judges these, and the others as ever."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.rewards.rollouts import completion, prompt

from posttrain.rewards import Scores, build_rewards
from posttrain.rewards.judge.records import Reply
from posttrain.types import Completion, Episode


class Here:
    """A judge in this process, which keeps what it was asked. It scores an answer by its last digit, and of two answers
    prefers the first."""

    is_policy, control = False, ()

    def __init__(self) -> None:
        self.asked: list[str] = []

    def identity(self) -> None:
        return None

    def answer(self, conversations, keep) -> list[Reply]:
        replies = []
        for place, conversation in enumerate(conversations):
            self.asked.append(conversation.messages[-1]["content"])
            numbers = re.findall(r"spoken-\d-(\d)", self.asked[-1])
            replies.append(Reply(text=f"Score: {numbers[0]}" if len(numbers) == 1 else "Verdict: A"))
            keep(place, replies[-1])
        return replies


def played(name: str, *, failed: bool) -> Completion:
    reward, failure = (None, "exception") if failed else (1.0, "")
    episode = Episode(messages=(), turns=1, ended="failed" if failed else "done", reward=reward, failure=failure)
    return replace(completion(name), episode=episode)


def judged(failed: set[tuple[int, int]], here: Here | None, **settings) -> Scores:
    prompts = [prompt(p, f"asked-{p}") for p in range(2)]
    groups = [[played(f"spoken-{p}-{g}", failed=(p, g) in failed) for g in range(3)] for p in range(2)]
    judge = {"url": "http://127.0.0.1:1/v1", "model": "judge", "cache": False, **settings}
    with build_rewards([{"judge": judge}]) as rewards:
        own = rewards.components[0].judge
        assert own is not None
        if here is not None:
            own.backend = own.asks.backend = here
        return rewards.score(prompts, groups)


@pytest.mark.parametrize("failed", [{(0, 0)}, {(1, 0)}, {(1, 1)}, {(0, 0), (0, 1), (0, 2)}, {(0, 2), (1, 0)}])
@pytest.mark.parametrize("mode", ["score", "pairwise"])
def test_a_judge_in_this_process_sees_each_answer_beside_its_own_question(failed, mode):
    here = Here()
    scores = judged(failed, here, mode=mode)
    for text in here.asked:
        assert len(set(re.findall(r"(?:asked|spoken)-(\d)", text))) == 1
    assert scores.scored_PG == [[(p, g) not in failed for g in range(3)] for p in range(2)]
    asked = {(judgement.prompt, judgement.completion) for judgement in scores.judgements}
    asked |= {(judgement.prompt, judgement.opponent) for judgement in scores.judgements if mode == "pairwise"}
    assert asked == {(p, g) for p in range(2) for g in range(3)} - failed


def test_a_judge_behind_a_url_names_the_answers_that_it_judged(server):
    failed = {(0, 0), (1, 1)}
    scores = judged(failed, None, url=server.url, mode="score")
    named = [(judgement.prompt, judgement.completion) for judgement in scores.judgements]
    assert named == [(0, 1), (0, 2), (1, 0), (1, 2)]


def test_groups_scored_one_by_one_are_those_scored_together_if_all_answers_of_one_failed():
    """An asynchronous run scores each group alone and joins them."""
    rewards = [
        {"name": "environment"},
        {"name": "finished", "gate": {"label": "environment", "at_least": 2.0}},
    ]
    prompts = [prompt(p) for p in range(2)]
    groups = [[played(f"spoken-{p}-{g}", failed=p == 0) for g in range(2)] for p in range(2)]
    with build_rewards(rewards) as scorers:
        together = scorers.score(prompts, groups)
        alone = [scorers.score([one], [group]).each([one.index])[0] for one, group in zip(prompts, groups, strict=True)]
    for order in ([0, 1], [1, 0]):
        joined = Scores.joined([alone[place] for place in order])
        assert joined.counted == together.at(order).counted
        assert joined.is_open == together.at(order).is_open
        assert joined.seconds.keys() == together.seconds.keys()
