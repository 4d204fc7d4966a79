"""Agents in real processes with real HTTP requests: the run trains the answers that they received."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.catalogue import few
from tests.engines.policies import Settings
from tests.episodes.talkers import EOS, play, prompts, talker, tokenizer

from posttrain.data.prompts import Renderer
from posttrain.engines.local import LocalSampler
from posttrain.episodes.agents.conduct import _command
from posttrain.episodes.agents.setup import AgentSetup
from posttrain.episodes.agents.turns import AgentScene
from posttrain.episodes.episodes import Episodes
from posttrain.episodes.scene import Limits
from posttrain.episodes.sessions import Sessions, Setup
from posttrain.errors import ConfigError
from posttrain.experience.metrics import turn_metrics
from posttrain.rewards import Reward, build_rewards
from posttrain.rewards.load import Target
from posttrain.types import Completion, Mean, Prompt

HERE = Path(__file__).parent
DRAWING = {"temperature": 1.0, "top_p": 1.0, "stop": []}


@contextmanager
def agents(
    function: str = "",
    *,
    file: str = "askers.py",
    timeout: float = 60.0,
    history: Any = "auto",
    context: int = 256,
    limits: Mapping[str, Any] | None = None,
    **setup: Any,
) -> Iterator[Episodes]:
    """Trajectories of the random model with an agent of askers.py."""
    target = Target(path=str(HERE / file), name=function) if function else None
    sessions = Sessions(Setup(agent=AgentSetup(function=target, sampling=DRAWING, **setup), timeout=timeout))
    try:
        sessions.start()
        words = tokenizer()
        sampler = LocalSampler(talker(context=context), words, {EOS}, shared=True)
        most = Limits(**{"max_turns": 6, "attempts": 2, **(limits or {})})
        renderer = Renderer(tokenizer=words, chat=True)
        scene = AgentScene.proven(renderer, {EOS}, sessions, most, history, sampler.context_length)
        yield Episodes(sampler=sampler, scene=scene)
    finally:
        sessions.close()


def answers(own: Episodes, asked: Sequence[Prompt], **how: Any) -> list[Completion]:
    return list(chain(*play(own, asked, **how)))


def rewards(found: Sequence[Completion]) -> list[float | None]:
    return [one.episode.reward for one in found if one.episode]


def require_ids_are_those_that_were_drawn(own: Episodes, prompt: Prompt, found: Completion) -> None:
    """Given each context and the drawn tokens, the sampler reports the log-probabilities that it drew with."""
    starts, drawn = list(found.starts), list(found.logprobs)
    edges = [*([] if starts[:1] == [0] else [0]), *starts, len(found.ids)]
    for begin, end in pairwise(edges):
        before = () if begin in starts else prompt.ids
        ids, own_ids = found.ids[begin:end], found.drawn[begin:end]
        if not before:  # a context needs at least one token to continue from
            before, ids, own_ids = ids[:1], ids[1:], own_ids[1:]
        scores = own.sampler.score([before], [ids], temperature=1.0)[0]
        here = [score for score, is_drawn in zip(scores, own_ids, strict=True) if is_drawn]
        assert here == pytest.approx(drawn[: len(here)], abs=1e-4)
        del drawn[: len(here)]
    assert not drawn


# --- conversations ---------------------------------------------------------------------------------------------------


def test_a_conversation_goes_on_from_the_ids_that_were_drawn():
    asked = prompts(6)
    with agents("talks", settings={"turns": 3}) as own:
        found = answers(own, asked)
        between = own.scene.bridge.between([{"role": "user", "content": "c"}], last=EOS)
        for prompt, one in zip(asked, found, strict=True):
            require_ids_are_those_that_were_drawn(own, prompt, one)
    whole = [one for one in found if not one.truncated]
    assert len(whole) >= 3
    for one in whole:
        assert (one.starts, rewards([one])) == ((), [3.0])
        assert [one.ids[begin:end] for begin, end in one.given] == [between] * 2
        assert one.episode is not None
        assert [message["role"] for message in one.episode.messages] == ["assistant", "user"] * 2 + ["assistant"]


def test_the_first_answer_is_that_of_the_sampler_alone():
    with agents("talks", settings={"turns": 1}) as own:
        asked = prompts(8)
        alone = own.sampler.generate(asked, Settings(max_completion_length=30), group_size=2, seed=3)
        for one, other in zip(answers(own, asked, group_size=2), chain(*alone), strict=True):
            assert (one.ids, one.given, one.starts) == (other.ids, (), ())


@pytest.mark.slow
def test_another_history_is_another_context_of_the_same_trajectory():
    asked = prompts(4)
    with agents("edits") as own:
        found = answers(own, asked)
        words = own.scene.bridge.renderer.tokenizer
        for prompt, one in zip(asked, found, strict=True):
            require_ids_are_those_that_were_drawn(own, prompt, one)
            if one.truncated:
                continue
            assert turn_metrics([one])["turns/contexts"] == Mean(2, 1)
            [start] = one.starts
            [(begin, end)] = one.given
            assert start == begin
            letter = prompt.messages[0]["content"] if prompt.messages else ""
            assert words.decode(list(one.ids[begin:end])) == f"user {letter} assistant b <eos> user c assistant"


@pytest.mark.slow
def test_of_two_conversations_each_goes_on_from_its_own_ids():
    asked = prompts(4)
    with agents("alternates") as own:
        found = [one for one in answers(own, asked) if not one.truncated]
        for one in found:
            require_ids_are_those_that_were_drawn(own, asked[0], one)
            assert one.starts[0] == 0, "it never sent the prompt of the row"
            assert len(one.starts) == 4
            edges = [*one.starts, len(one.ids)]
            first, second, third, fourth = (one.ids[a:b] for a, b in pairwise(edges))
            assert third[: len(first)] == first
            assert fourth[: len(second)] == second
            drawn = [sum(one.drawn[a:b]) for a, b in pairwise(edges)]
            given = [end - begin for begin, end in one.given]
            assert given[2] > len(first), "tokens drawn in the first conversation are context in the third"
            assert sum(drawn) == len(one.logprobs)
    assert found


@pytest.mark.slow
def test_how_long_an_agent_thinks_changes_nothing():
    found = []
    for pause in (0.0, 0.02):
        with agents("talks", settings={"pause": pause}) as own:
            found.append(answers(own, prompts(8), group_size=2, max_batch_rows=4))
    assert found[0] == found[1]


def test_an_async_agent_gives_the_conversation_that_is_judged():
    with agents("waits") as own:
        found = answers(own, prompts(2))
        again = answers(own, prompts(2))
    for one, other in zip(found, again, strict=True):
        assert one.episode is not None
        assert one.episode.messages[-1] == {"role": "assistant", "content": one.text}
        assert one.episode.reward is None
        assert one.text == other.text, "it uses the random numbers of the trajectory"
    assert found[0].text != found[1].text


def test_a_program_reads_the_row_and_prints_the_reward():
    with agents(command=[sys.executable, str(HERE / "askers.py")]) as own:
        found = answers(own, prompts(2))
    assert {reward for reward, one in zip(rewards(found), found, strict=True) if not one.truncated} == {2.0}


def test_a_separator_of_lines_inside_json_does_not_cut_the_last_line_of_a_program():
    printed = 'text\\n{"reward": 0.5, "note": "one\\u2028line"}\\n'
    code = f"import sys; sys.stdout.buffer.write('{printed}'.encode())"
    assert _command([sys.executable, "-c", code], {}) == {"reward": 0.5, "note": "one\u2028line"}


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "context", "limit"),
    [
        ({"max_turns": 2}, 256, "max_turns"),
        ({"max_turns": 50, "max_length": 20}, 256, "max_trajectory_length"),
        ({"max_turns": 50}, 32, "context"),
    ],
)
def test_at_a_limit_requests_are_refused_and_the_agent_says_what_it_was_worth(limits, context, limit):
    with agents("persists", limits=limits, context=context) as own:
        found = answers(own, prompts(8))
    ends = Counter(one.episode.ended for one in found if one.episode)
    assert ends[limit] >= 2
    assert set(ends) <= {limit, "max_completion_length"}
    assert all(one.truncated for one in found)
    assert set(rewards(found)) == {0.5}


def test_an_agent_that_gives_up_at_a_limit_is_truncated_and_gives_nothing():
    with agents("talks", settings={"turns": 9}, limits={"max_turns": 1}) as own:
        found = answers(own, prompts(4))
    assert all(one.truncated and not one.failure for one in found)
    assert rewards(found) == [None] * 4
    for settings, scored in (({}, False), ({"when_cut": -1.0}, True)):
        with build_rewards([Reward(name="agent", settings=settings)]) as scorer:
            scores = scorer.score(prompts(4), [[one] for one in found])
        assert scores.scored_PG == [[scored]] * 4
        assert all("a limit has cut the trajectory" in failure.message for failure in scores.failures)
        assert len(scores.failures) == (0 if scored else 4)
        assert not scored or scores.rewards_PG == [[-1.0]] * 4


def test_a_request_may_ask_for_a_shorter_turn():
    with agents("short") as own:
        found = answers(own, prompts(8))
    drawn = [one for one in found if rewards([one]) == [1.0]]
    assert len(drawn) >= 4
    for one in drawn:
        assert (len(one.logprobs), one.truncated) == (2, False)


def test_requests_that_would_draw_otherwise_are_refused_or_answered_all_the_same():
    with agents("talks", settings={"temperature": 0.2}, limits={"attempts": 1}) as own:
        [refused] = answers(own, prompts(1))
    assert refused.episode is not None
    assert "temperature = 0.2, but the run samples with 1.0" in refused.episode.detail
    with agents("talks", settings={"temperature": 0.2}, ignores=True) as own:
        assert [one.failure for one in answers(own, prompts(2))] == ["", ""]


# --- faults ----------------------------------------------------------------------------------------------------------


FAULTS = ["raises", "exits", "dies", "hangs", "gives nan", "speaks nonsense", "asks nothing"]


@pytest.mark.parametrize("fault", few(FAULTS, "raises", "dies", "hangs"))
def test_an_agent_that_fails_is_begun_anew_and_then_unscored(tmp_path: Path, fault: str):
    with agents("fails", timeout=0.7 if fault == "hangs" else 60.0) as own:
        [passing] = answers(own, prompts(1, fault=fault, times=1, begun=str(tmp_path / "one")))
        [failing] = answers(own, prompts(1, fault=fault, times=9, begun=str(tmp_path / "other")))
    assert passing.episode is not None
    assert failing.episode is not None
    assert (passing.episode.attempts, passing.failure, passing.episode.reward) == (2, "", 1.0)
    assert (tmp_path / "other").read_text() == "xx"
    cause = {"dies": "crash", "hangs": "timeout"}.get(fault, "exception")
    assert (failing.failure, failing.episode.attempts) == (cause, 2)
    assert passing.drawn_ids[: len(failing.ids)] == failing.drawn_ids, "the same random numbers"
    with build_rewards([Reward(name="agent")]) as scorer:
        scores = scorer.score(prompts(1), [[failing, passing]])
    assert scores.scored_PG == [[False, True]]
    assert scores.rewards_PG[0][1] == 1.0


def test_no_process_is_left():
    before = set(psutil.Process().children(recursive=True))
    with agents("talks") as own:
        each = own.each(prompts(6), Settings(max_completion_length=30), group_size=1, seed=3)
        next(each)
        each.close()  # type: ignore[attr-defined]
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ({"function": "talk"}, "'talk' does not exist .*did you mean \"talks\""),
        ({"function": "talks", "settings": {"turn": {}}}, None),
        ({"function": "spies", "settings": {"turns": 2}}, "cannot be called with a row and agent.settings"),
        ({"command": ["no-such-program"]}, "there is no such program"),
        ({"function": "talks", "host": "192.0.2.1"}, "cannot be listened on"),
    ],
)
def test_what_cannot_be_used_is_refused_before_the_run(setup, message):
    if message is None:  # keyword arguments that the function takes
        with agents(**setup):
            return
    with pytest.raises(ConfigError, match=message), agents(**setup):
        raise AssertionError("it started")


# --- security --------------------------------------------------------------------------------------------------------


def test_no_session_reads_another(tmp_path: Path):
    """Three sessions run concurrently: each has an address and a key, and the key of another session gets 401."""
    with agents("spies") as own:
        sessions = own.scene.sessions
        opened, worth = [sessions.open(seed) for seed in range(3)], []
        for number, session in enumerate(opened):
            row = {"prompt": "a", "secret": str(number), "folder": str(tmp_path), "sessions": 3}
            sessions.ask(session, "reset", row=row)
        while len(worth) < 3:
            sessions.poll(0.05)
            for session in [one for one in opened if one.reply is not None]:
                assert session.reply is not None
                assert session.reply.kind == "value", session.reply.traceback
                if "request" in session.reply.value:
                    sessions.ask(session, "step", answer={"text": "b"})
                else:
                    worth.append(session.reply.value)
                    opened.remove(session)
    assert worth == [{"done": True, "reward": 1.0}] * 3


# --- the openai package ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def openai() -> None:
    pytest.importorskip("openai", reason="the package openai (extra dev) is not installed")


def test_a_client_of_openai_calls_tools_of_its_own(openai):
    asked = prompts(24)
    with agents("with_a_tool", file="openai_agents.py") as own:
        found = answers(own, asked)
        assert isinstance(own.scene, AgentScene)
        [bridge] = own.scene.known.values()
        for prompt, one in zip(asked, found, strict=True):
            require_ids_are_those_that_were_drawn(own, prompt, one)
            assert one.episode is not None
            results = [message for message in one.episode.messages if message["role"] == "tool"]
            if len(one.given) == 2:
                assert one.ids[slice(*one.given[1])] == bridge.between(results, last=EOS)
    assert not any(one.failure for one in found)
    called = [one for one in found if one.episode and one.episode.calls]
    assert len(called) >= 4
    assert {one.starts for one in found} == {(0,)}, "tools are in the context, but not in the prompt of the row"
    assert sum(len(one.given) == 2 for one in found) >= 4
    assert all(rewards([one])[0] in (0.2, 0.5, 0.7, 1.0) for one in called if not one.truncated)


@pytest.mark.slow
def test_a_stream_is_the_answer_in_parts(openai):
    asked = prompts(8)
    with agents("streams", file="openai_agents.py") as own:
        found = answers(own, asked)
        for prompt, one in zip(asked, found, strict=True):
            require_ids_are_those_that_were_drawn(own, prompt, one)
    assert not any(one.failure for one in found), [one.episode for one in found]
    assert max(reward or 0.0 for reward in rewards(found)) >= 2
    assert {one.starts for one in found} == {(0,)}, "its messages, joined from parts, equal those that it received"


def test_log_probabilities_are_those_of_the_sampler(openai):
    with agents("shows_logprobs", file="openai_agents.py") as own:
        found = [one for one in answers(own, prompts(4)) if not one.truncated]
    for one in found:
        assert rewards([one])[0] == pytest.approx(sum(one.logprobs[:-1]), abs=1e-6)
    assert found
