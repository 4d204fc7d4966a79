"""Environments that fail: started again, then unscored, never scored 0; nothing is lost, and no process remains."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.engines.policies import Settings
from tests.episodes.talkers import EOS, episodes, play, prompts

from posttrain.episodes.episodes import Round
from posttrain.episodes.play import Play
from posttrain.experience.group import groups_of
from posttrain.experience.metrics import sampled_metrics
from posttrain.rewards import Reward, build_rewards
from posttrain.types import Completion


def drawn(completion: Completion) -> list[int]:
    return list(completion.drawn_ids)


@pytest.mark.parametrize("fault", ["raises", "dies", "gives nan", "speaks nonsense"])
def test_what_fails_is_begun_anew_and_then_unscored(tmp_path: Path, fault: str):
    with episodes("Faulty", attempts=2) as one:
        passing = play(one, prompts(1, fault=fault, times=1, begun=str(tmp_path / "one")))[0][0]
        failing = play(one, prompts(1, fault=fault, times=9, begun=str(tmp_path / "other")))[0][0]
    assert passing.episode is not None
    assert failing.episode is not None
    assert (passing.episode.attempts, passing.failure, passing.episode.reward) == (2, "", 1.0)
    assert drawn(passing)[: len(drawn(failing))] == drawn(failing), "the same random numbers"
    assert (failing.episode.attempts, failing.episode.ended) == (2, "failed")
    assert failing.failure == ("crash" if fault == "dies" else "exception")
    assert (tmp_path / "other").read_text() == "xx"
    with build_rewards([Reward(name="environment"), Reward(function=lambda completion: 1.0, label="any")]) as rewards:
        scores = rewards.score(prompts(1), [[failing, passing]])
    assert scores.scored_PG == [[False, True]]
    assert scores.rewards_PG[0][1] == 2.0
    assert [(f.label, f.completion, f.kind) for f in scores.failures] == [("the environment", 0, failing.failure)]
    assert scores.parts == {"environment": [[None, 1.0]], "any": [[None, 1.0]]}


def test_a_message_that_the_template_does_not_write_is_a_failure():
    """The template accepts this message only after a question."""
    with episodes("Demands", attempts=1) as one:
        bridge = replace(one.scene.bridge, refused={"system": "it is not written"})
        refused = replace(one, scene=replace(one.scene, bridge=bridge))
        [[completion]] = play(refused, prompts(1))
    assert completion.episode is not None
    assert (completion.failure, completion.episode.reward) == ("template", None)
    assert completion.episode.detail == "a message of the role system came back, but it is not written"


def test_an_environment_that_dies_while_its_policy_draws_is_begun_anew():
    with episodes("Guess", attempts=2) as one:
        round_ = Round(one, [], Settings(max_completion_length=6), 3)
        trial = Play(0, 0, prompts(1)[0])
        round_.turns.ask(trial, "reset", row={"secret": "b"})
        round_._reply(round_.waiting.popleft())
        assert trial.session is not None
        assert trial.session.pid is not None
        psutil.Process(trial.session.pid).kill()
        while trial.session in one.scene.sessions._open:
            one.scene.sessions.poll(0.05)
        round_.turns.ask(trial, "step", message={"role": "assistant", "content": "b"}, calls=[])
        round_.turns.answered(round_.waiting.popleft(), round_._reply(trial))
        again = round_.waiting.popleft()
        assert (again.attempt, again.stage, again.session is trial.session) == (2, "reset", False)
        assert round_._reply(again).kind == "value"


def test_rewards_that_fail_do_so_in_counted_order():
    """A restarted trajectory takes a place in the batch, and timing must not decide which place."""
    with episodes("FailsAtTheEnd", attempts=1) as one:
        round_ = Round(one, [], Settings(max_completion_length=6), 3)
        plays = [Play(place, 0, prompt) for place, prompt in enumerate(prompts(2))]
        for play_, pause in zip(plays, (1.0, 0.0), strict=True):
            round_.turns.ask(play_, "reset", row={"pause": pause})
            round_._reply(round_.waiting.popleft())
        for play_ in plays:
            round_.turns.ask(play_, "finish")
        assert round_._reply(plays[1]).kind == "exception"
        assert plays[0].session is not None
        assert plays[0].session.reply is None
        round_._look()
        assert [place for place, _, _ in round_.run()] == [0, 1]


FAILURES: Mapping[str, str] = {
    "raises": "exception",
    "gives nan": "exception",
    "speaks nonsense": "exception",
    "dies": "crash",
    "is killed": "crash",
    "hangs": "timeout",
}
"""The faults of environments in worlds.py, and the cause under which each is counted."""
TEXTS = ("floods", "speaks bytes", "spells special tokens")
"""Cases that are no faults: the model reads the text."""


@pytest.mark.parametrize(
    ("sessions", "every", "faults", "timeout"),
    [
        (48, 6, [*(fault for fault in FAILURES if fault != "hangs"), *TEXTS], 60.0),
        pytest.param(1000, 20, [*FAILURES, *TEXTS], 15.0, marks=pytest.mark.slow),
    ],
)
def test_of_many_sessions_none_is_lost_and_none_is_scored_zero(
    tmp_path: Path,
    started: Callable[[], list[psutil.Process]],
    sessions: int,
    every: int,
    faults: list[str],
    timeout: float,
):
    """One session in `every` fails at each start, and as many fail at their first start only; all faults mixed."""
    asked = []
    for place, prompt in enumerate(prompts(sessions)):
        kind = faults[place // every * len(faults) // -(-sessions // every)]  # those that hang do so at the same time
        fault = kind if place % every < 2 else ""
        own = {"fault": fault, "times": 1 if place % every else 9, "begun": str(tmp_path / str(place))}
        asked.append(replace(prompt, columns=own))
    began = time.monotonic()
    with episodes("Faulty", attempts=2, timeout=timeout) as one:
        found = [group[0] for group in play(one, asked)]
        assert started(), "at least the host"
    seconds, until = time.monotonic() - began, time.monotonic() + 30
    while started() and time.monotonic() < until:
        time.sleep(0.02)
    assert not started()
    with build_rewards([Reward(name="environment")]) as rewards:
        scores = rewards.score(asked, [[completion] for completion in found])

    expected = Counter[str]()
    for place, (prompt, completion) in enumerate(zip(asked, found, strict=True)):
        assert completion.episode is not None
        assert EOS not in [completion.ids[at] for begin, end in completion.given for at in range(begin, end)]
        fault, ended = prompt.columns["fault"], completion.episode.ended
        reached = ended != "max_completion_length" or fault == "gives nan"  # a turn that was cut is no step
        cause = FAILURES[fault] if fault in FAILURES and reached else ""
        assert completion.episode.attempts == (2 if cause else 1)
        if cause and place % every == 0:
            expected[cause] += 1
            assert (completion.failure, ended, scores.scored_PG[place]) == (cause, "failed", [False])
        else:
            assert (completion.failure, scores.scored_PG[place], scores.rewards_PG[place]) == ("", [True], [1.0])
        if fault in TEXTS and reached:
            assert ended == ("context" if fault == "floods" else "done")
    assert len(scores.failures) == expected.total()
    groups = groups_of(asked, [[completion] for completion in found], scores)
    metrics = {name: float(metric) for name, metric in sampled_metrics(groups, groups, (), 0).items()}
    assert metrics["unscored_fraction"] == pytest.approx(expected.total() / sessions)
    for cause in {FAILURES[fault] for fault in faults if fault in FAILURES}:
        assert expected[cause]
        assert metrics[f"environment/failed/{cause}"] == pytest.approx(expected[cause] / sessions)
    print(f"{sessions} sessions, {expected.total()} of them unscored, in {seconds:.0f} s: {dict(expected)}")


def test_whoever_stops_listening_leaves_no_process():
    with episodes("Guess", settings={"pause": 0.05}) as one:
        answers = one.each(prompts(8), Settings(max_completion_length=6), group_size=2, seed=3)
        next(answers)
        answers.close()  # type: ignore[attr-defined]
        assert not one.scene.sessions._open
