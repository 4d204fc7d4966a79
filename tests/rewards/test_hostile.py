"""Completions that would stall a grader: each gets a verdict, the training continues, and no process remains."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.catalogue import few
from tests.rewards.battery import OWN, PUBLISHED
from tests.rewards.rollouts import completion, prompt

from posttrain.rewards import Reward, Scores, build_rewards

HOSTILE = [case for case in PUBLISHED + OWN if case.key.split()[-1].startswith("dos_") and not case.missed]
DEADLINE = 10.0
GENEROUS = 30.0
"""Limit in seconds for a busy machine. Without a deadline, or with an uninterruptible call, it would take minutes."""


@contextmanager
def heartbeat() -> Iterator[list[float]]:
    """The seconds between the beats of a thread that beats every 5 ms, while the body runs."""
    gaps: list[float] = []
    stop = threading.Event()

    def beat() -> None:
        last = time.perf_counter()
        while not stop.wait(0.005):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield gaps
    finally:
        stop.set()
        thread.join()


def reasons_of(scores: Scores, label: str) -> list[str | None]:
    return [None if verdict is None else verdict.reason for verdict in scores.verdicts[label][0]]


@pytest.mark.parametrize("every", few([1, 6], 6))
def test_hostile_answers_come_back_while_the_main_process_goes_on(every: int):
    with build_rewards([Reward(name="math", timeout=DEADLINE)], workers=1) as rewards:
        rewards.score([prompt(0, answer=r"\tan^2 y+1")], [[completion(r"\boxed{\sec^2 y}")]])  # the worker is warm
        slowest = 0.0
        with heartbeat() as gaps:
            for case in HOSTILE[::every]:
                start = time.perf_counter()
                scores = rewards.score([prompt(0, answer=case.gold)], [[completion(case.completion)]])
                slowest = max(slowest, time.perf_counter() - start)
                assert scores.parts["math"] == [[0.0]], case.key
        print(f"{len(HOSTILE[::every])} hostile answers: slowest {slowest:.3f} s, longest gap {max(gaps):.3f} s")
        assert slowest < DEADLINE + GENEROUS
        assert max(gaps) < 5


@pytest.mark.slow
def test_a_hostile_answer_in_a_batch_costs_the_others_nothing():
    texts = [case.completion for case in HOSTILE] + [r"\boxed{7}"] * 50
    with build_rewards([Reward(name="math", timeout=DEADLINE)], workers=1) as rewards:
        scores = rewards.score([prompt(0, answer="7")], [[completion(text) for text in texts]])
    assert scores.parts["math"] == [[0.0] * len(HOSTILE) + [1.0] * 50]
    assert len(scores.verdicts["math"][0]) == len(texts)


def test_every_completion_keeps_its_place_whichever_of_them_fail():
    """One verdict per completion, in order, for every subset of failing ones."""
    texts = {"right": r"\boxed{7}", "huge": r"\boxed{9^{9^{9}}}", "none": "", "several": r"\boxed{6} \boxed{7}"}
    reasons = {"right": "correct", "huge": "too_large", "none": "no_answer", "several": "ambiguous"}
    with build_rewards(["math"], workers=1) as rewards:
        for pattern in range(4**3):
            kinds = [list(texts)[pattern // 4**place % 4] for place in range(3)]
            scores = rewards.score([prompt(0, answer="7")], [[completion(texts[kind]) for kind in kinds]])
            assert reasons_of(scores, "math") == [reasons[kind] for kind in kinds]


@pytest.mark.slow
def test_a_thousand_timeouts_leave_no_process(reward_file, children):
    hang = reward_file("import time\n\n\ndef reward(completion):\n    time.sleep(1000)\n")
    with build_rewards([Reward(function=hang, timeout=0.05)], workers=4) as rewards:
        scores = rewards.score([prompt(0)], [[completion("") for _ in range(1000)]])
        assert reasons_of(scores, "reward") == ["timeout"] * 1000
        assert scores.parts["reward"] == [[None] * 1000]
        assert len(children()) <= 4
    assert children() == []
