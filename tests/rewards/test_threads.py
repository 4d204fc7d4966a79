"""Callables that exist only in this process: they run in threads, which can be abandoned but not killed."""

import threading

import pytest
from tests.rewards.importable import process_id
from tests.rewards.rollouts import IN_TIME, completion, prompt

from posttrain.errors import RewardError
from posttrain.rewards import Reward
from posttrain.rewards.threads import MAX_ABANDONED


def test_closures_see_this_process_and_importable_functions_run_in_another(score):
    import os

    seen = []
    assert score(["ab"], lambda completion: seen.append(completion) or len(completion)).rewards_PG == [[2.0]]
    assert seen == ["ab"]
    assert score(["ab"], process_id).rewards_PG != [[float(os.getpid())]]


def test_an_object_that_can_be_called_is_a_reward(score):
    class Scorer:
        async def __call__(self, completions):
            return [len(text) for text in completions]

    assert score(["ab"], Scorer()).parts == {"Scorer": [[2.0]]}


def test_the_row_that_hangs_is_abandoned_and_the_others_are_scored(score):
    release = threading.Event()

    def sleepy(completion):
        if completion == "hang":
            release.wait(60)
        return 1.0

    scores = score(
        ["a", "hang", "b"], Reward(function=lambda completion: sleepy(completion), label="sleepy", timeout=IN_TIME)
    )
    release.set()
    assert scores.parts["sleepy"] == [[1.0, None, 1.0]]
    assert [(f.completion, f.kind) for f in scores.failures] == [(1, "timeout")]


def test_too_many_hanging_threads_stop_the_run_with_the_way_out(score):
    release = threading.Event()
    with pytest.raises(RewardError, match=r"\"stuck\" hangs in 4 threads.*\n.*function: path/to/file\.py:name"):
        score(["a"] * 6, Reward(function=lambda completion: release.wait(60), label="stuck", timeout=0.05))
    release.set()


def test_threads_that_come_back_are_forgiven(built):
    release = threading.Event()
    rewards = built(Reward(function=lambda completion: release.wait(60), label="slow", timeout=0.05))
    for _ in range(2 * MAX_ABANDONED):
        assert len(rewards.score([prompt(0)], [[completion("a")]]).failures) == 1
        release.set()
        for thread in threading.enumerate():
            if thread.name == "reward slow":
                thread.join(60)
        release.clear()
