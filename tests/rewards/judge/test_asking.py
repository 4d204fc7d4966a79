"""A flaky, slow, rate-limited, refusing, dripping or nonsensical endpoint: completions are unscored, and never 0."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from email.utils import formatdate

import pytest
from tests.rewards.judge.server import longer_wins, serving
from tests.rewards.rollouts import IN_TIME, completion, prompt

from posttrain.errors import ConfigError, DoesNotFit, RewardError
from posttrain.rewards import enforce_limit
from posttrain.rewards.dispatch import JudgeDispatcher
from posttrain.rewards.judge import judge_metrics
from posttrain.rewards.judge.budget import Budget

PAIR = ["long answer", "short"]


def replies(scores):
    return [reply for judgement in scores.judgements for reply in judgement.replies]


# retries and deadlines


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_what_may_pass_is_tried_again(score, server, status):
    server.faults = {0: (status, {}), 1: (status, {})}
    scores = score(PAIR, concurrency=1)
    assert scores.rewards_PG == [[1.0, 0.0]]
    assert [reply.calls for reply in replies(scores)] == [3, 1]


def test_the_pause_is_what_the_endpoint_asks_for(score, server):
    server.faults = {0: (429, {"Retry-After": "0.4"})}
    score(PAIR, concurrency=1)
    assert server.times[1] - server.times[0] >= 0.4


def test_the_pause_may_be_a_date(score, server):
    date = int(time.time()) + 2
    server.faults = {0: (503, {"Retry-After": formatdate(date, usegmt=True)})}
    score(PAIR, concurrency=1)
    assert time.time() >= date - 0.1


def test_whoever_never_answers_leaves_the_answers_unscored(score, server):
    server.always = (503, {})
    scores = score(PAIR, retries=2)
    assert scores.scored_PG == [[False, False]]
    assert scores.parts["judge"] == [[None, None]]
    assert "returned 503" in scores.failures[0].message
    assert "(3 tries)" in scores.failures[0].message
    assert len(server.requests) == 2 * 3


def test_a_wrong_request_is_not_repeated(score, server):
    server.always = (400, {})
    score(PAIR)
    assert len(server.requests) == 2


def test_a_refused_key_ends_the_asking(judged, server, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    server.always = (401, {})
    groups = [[completion("a" * n), completion("b" * (n + 1))] for n in range(1, 11)]
    prompts = [prompt(n) for n in range(10)]
    scores = judged(api_key_env="JUDGE_KEY", concurrency=1).score(prompts, groups)
    assert len(server.requests) <= 2, "only the requests that were active when the refusal came"
    assert "judge.api_key_env = JUDGE_KEY" in scores.failures[0].message
    with pytest.raises(RewardError, match=r"(?s)20 of 20 completions .* returned 401"):
        enforce_limit(scores, 0.2)


def test_nobody_there_is_unscored_too(score):
    with serving() as gone:
        url = gone.url
    scores = score(PAIR, url=url, retries=1)
    assert scores.scored_PG == [[False, False]]
    assert "Connection refused" in scores.failures[0].message


def test_a_late_reply_is_a_failure(score, server):
    server.seconds = 60
    scores = score(PAIR, timeout=0.1, retries=0)
    assert "no reply within judge.timeout = 0.1 s" in scores.failures[0].message


def test_a_reply_that_drips_is_late_as_a_whole(score, server):
    server.drip = True
    started = time.monotonic()
    scores = score(PAIR, timeout=0.3, retries=0)
    assert time.monotonic() - started < 60, "the server would drip for ever"
    assert "no reply within judge.timeout = 0.3 s" in scores.failures[0].message


def scores_of_five(judged, server, deadline):
    """Each request has a minute; the server answers the first two, and the third only after the step is over."""
    over = threading.Event()
    server.requests.clear()

    def stalls(texts):
        if len(server.requests) > 2:
            over.wait(60)
        return longer_wins(texts)

    server.rule = stalls
    many = [[completion("a" * n), completion("b" * (n + 1))] for n in range(1, 6)]
    rewards = judged(deadline=deadline, timeout=60, concurrency=1)
    try:
        return rewards.score([prompt(n) for n in range(5)], many)
    finally:
        over.set()


def test_a_deadline_bounds_the_whole_step(judged, server):
    deadline = 3.0
    scores = scores_of_five(judged, server, deadline)
    if len(server.requests) < 3:  # a busy machine took longer than that for the first two
        deadline = 40.0
        scores = scores_of_five(judged, server, deadline)
    assert scores.scored_PG[0] == [True, True]
    assert scores.scored_PG[-1] == [False, False]
    assert f"no reply within judge.deadline = {deadline:g} s" in scores.failures[-1].message


def test_requests_go_out_side_by_side_up_to_the_limit(judged, server):
    """There are twelve requests; each waits until four have arrived."""
    four = threading.Barrier(4)
    server.hold = lambda: four.wait(60)
    groups = [[completion("a" * n), completion("b" * (n + 1))] for n in range(1, 7)]
    scores = judged(concurrency=4, retries=0).score([prompt(n) for n in range(6)], groups)
    assert server.most_busy == 4
    assert scores.scored_PG == [[True, True]] * 6


@pytest.mark.parametrize(
    "raw",
    [b"<html>", b"[]", b'{"choices": []}', b'{"choices": [{"message": "hi"}]}', b"\xff\xfe"]
    + [b'{"choices": [{"message": {"content": [%s]}}]}' % part for part in (b"1", b'{"type": "text"}', b'{"text": 1}')],
)
def test_what_is_no_completion_is_a_failure(score, server, raw):
    server.raw = raw
    scores = score(PAIR, retries=1)
    assert "returned no chat completion" in scores.failures[0].message
    assert len(server.requests) == 4


def test_a_redirect_is_not_followed(score, server):
    """A redirect would send the key to another host."""
    with serving() as elsewhere:
        server.always = (302, {"Location": elsewhere.url + "/chat/completions"})
        scores = score(PAIR)
        assert elsewhere.requests == []
    assert "returned 302" in scores.failures[0].message


# replies without a verdict


def test_a_reply_without_verdict_is_asked_for_once_more(score, server):
    server.rule = lambda texts: "Hard to say." if texts["turns"] == "1" else "Verdict: tie"
    scores = score(PAIR)
    assert scores.rewards_PG == [[0.5, 0.5]]
    assert [reply.text for reply in replies(scores)] == ["Hard to say.\n\nVerdict: tie"] * 2
    second = server.requests[-1]["messages"]
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[2]["content"].endswith("Verdict: A, Verdict: B or Verdict: tie")


def test_without_a_verdict_the_answers_are_unscored_and_counted(score, server):
    server.rule = lambda texts: "Hard to say."
    scores = score(PAIR)
    assert scores.scored_PG == [[False, False]]
    assert (
        "gave no verdict when asked twice; its reply ends with 'Hard to say. Hard to say.'"
        in scores.failures[0].message
    )
    assert float(judge_metrics(scores.judgements)["judge/unparsable"]) == 1.0
    assert len(server.requests) == 4


def test_if_the_second_question_fails_its_failure_is_told(score, server):
    server.rule = lambda texts: "Hard to say."
    server.faults = {2: (400, {}), 3: (400, {})}
    scores = score(PAIR)
    assert 'returned 400: {"error": "not now"}' in scores.failures[0].message
    assert [reply.text for reply in replies(scores)] == ["Hard to say."] * 2


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "text", "text": "Fine.\nScore: 4"}],
        [{"text": "Fine.\n"}, {"type": "text", "text": "Score: 4"}],
        [
            {"type": "thinking", "thinking": [{"type": "text", "text": "Score: 1"}]},
            {"type": "text", "text": "Score: 4"},
        ],
    ],
    ids=["one", "two", "reasoning"],
)
def test_a_reply_in_parts_is_their_text(score, server, parts):
    server.rule = lambda texts: parts
    scores = score(["an answer"], mode="score")
    assert scores.rewards_PG == [[0.8]]
    assert replies(scores)[0].text.endswith("Score: 4")


def test_one_unreadable_comparison_does_not_take_the_others_with_it(score, server):
    server.rule = lambda texts: (
        "Hm."
        if "bb" in texts.values() and "a" in texts.values()
        else f"Verdict: {'A' if len(texts['answer_a']) > 2 else 'B'}"
    )
    scores = score(["a", "bb", "ccc"])
    assert scores.parts["judge"] == [[0.0, 0.0, 1.0]]


# keys


def test_the_key_comes_from_the_environment_and_stays_there(score, server, monkeypatch, caplog):
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    server.faults = {0: (500, {})}
    caplog.set_level(logging.DEBUG)
    scores = score(PAIR, api_key_env="JUDGE_KEY")
    assert set(server.keys) == {"Bearer sk-secret"}
    told = json.dumps([judgement.to_json() for judgement in scores.judgements]) + caplog.text
    assert "sk-secret" not in told


@pytest.mark.parametrize(
    "body",
    [
        b"no key is as good as sk-secret",
        b"x" * 76 + b"sk-secret",
        json.dumps({"choices": [{"message": {"content": "sk-secret is invalid"}}]}).encode(),
        rb'{"choices": [{"message": {"content": "\u0073k-secret"}}]}',
        b'{"choices": [{"message": {"content": ""}, "finish_reason": "sk-secret"}]}',
    ],
    ids=["no completion", "cut within the key", "completion", "escaped", "reason"],
)
def test_a_server_that_repeats_the_key_with_status_200_does_not_bring_it_to_disk(
    score, server, monkeypatch, tmp_path, body
):
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    server.raw = body
    scores = score(PAIR, api_key_env="JUDGE_KEY", retries=0)
    told = json.dumps([judgement.to_json() for judgement in scores.judgements]) + str(scores.failures)
    assert "sk-s" not in told
    assert all(b"sk-secret" not in file.read_bytes() for file in tmp_path.rglob("*.json"))


def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(judged, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-secret\nsecond")
    with pytest.raises(ConfigError, match="value cannot be sent in a header") as caught:
        judged(api_key_env="JUDGE_KEY")
    assert "secret" not in str(caught.value)


def test_a_status_whose_body_stalls_counts_as_that_status(score, server):
    server.always, server.drip = (503, {}), True
    scores = score(PAIR, retries=1, timeout=IN_TIME)
    assert re.search(r"returned 503.* \(2 tries\)", scores.failures[0].message)
    assert len(server.requests) == 4
    assert [reply.calls for reply in replies(scores)] == [2, 2]


def test_a_missing_variable_is_an_error_before_anything_is_asked(judged):
    with pytest.raises(ConfigError, match=r"judge.api_key_env = NO_SUCH_KEY.*\n  Set it before the run"):
        judged(api_key_env="NO_SUCH_KEY")


# the budget


def test_a_spent_budget_of_calls_leaves_answers_unscored(judged, server):
    groups = [[completion("a" * n), completion("b" * (n + 1))] for n in range(1, 6)]
    scores = judged(max_calls=6, concurrency=1).score([prompt(n) for n in range(5)], groups)
    assert [scored for scored, _ in scores.scored_PG] == [True, True, True, False, False]
    assert "the budget of 6 calls (judge.max_calls) is spent" in scores.failures[0].message
    assert len(server.requests) == 6
    with pytest.raises(RewardError, match=r"(?s)4 of 10 completions \(40%\) have no reward.*judge.max_calls"):
        enforce_limit(scores, 0.2)


def test_failed_attempts_count_against_the_budget(score, server):
    server.always = (500, {})
    scores = score(PAIR, max_calls=3, retries=9, concurrency=1)
    assert len(server.requests) == 3
    assert "judge.max_calls) is spent; before that: " in scores.failures[0].message


def test_a_spent_budget_of_tokens_too(judged):
    groups = [[completion("a" * n), completion("b" * (n + 1))] for n in range(1, 4)]
    scores = judged(max_total_tokens=200, concurrency=1).score([prompt(n) for n in range(3)], groups)
    assert [scored for scored, _ in scores.scored_PG] == [True, False, False]
    assert "200 tokens (judge.max_total_tokens)" in scores.failures[0].message


def test_one_question_at_a_time_spends_the_budget_in_the_order_of_the_prompts(judged, monkeypatch):
    """This holds even if the thread with the first prompts starts late."""
    ask, begun = JudgeDispatcher._ask, list[int]()

    def ask_late(lane, sheets):
        begun.append(len(sheets))
        if len(begun) == 1:
            time.sleep(0.3)
        ask(lane, sheets)

    monkeypatch.setattr(JudgeDispatcher, "_ask", ask_late)
    groups = [[completion("a" * n), completion("b" * (n + 1))] for n in range(1, 4)]
    scores = judged(max_calls=2, concurrency=1).score([prompt(n) for n in range(3)], groups)
    assert [scored for scored, _ in scores.scored_PG] == [True, False, False]
    assert sum(begun) == 3


def test_tokens_that_the_endpoint_does_not_count_are_estimated(score, server):
    server.without_usage = True
    tokens = [reply.tokens for reply in replies(score(PAIR))]
    sent = [len(json.dumps(request)) for request in server.requests]
    assert tokens == [pytest.approx(size / 4, rel=0.1) for size in sent]


def test_a_resumed_run_goes_on_with_what_is_left_of_the_budget(judged, tmp_path):
    def run(text):
        rewards = judged(max_calls=3, concurrency=1, cache=False)
        rewards.bind(None, {}, ledger=tmp_path / "judgements" / "spent-rewards")
        return rewards.score([prompt(0)], [[completion(text), completion(text + "!!")]]).scored_PG[0][0]

    assert [run("one"), run("two")] == [True, False]


def test_the_calls_of_a_process_that_was_killed_count(tmp_path):
    """Calls are noted before they are sent; a line that the kill has cut counts as one call."""
    ledger = tmp_path / "judgements" / "spent.jsonl"
    killed = Budget(max_calls=5)
    killed.keep_in(ledger)
    assert killed.allow() == killed.allow() == ""
    killed.add_tokens(70)
    with ledger.open("ab") as file:
        file.write(b'{"calls": 1, "tok')
    for calls, tokens in ((3, 70), (4, 80)):
        resumed = Budget(max_calls=5)
        resumed.keep_in(ledger)
        assert (resumed.calls, resumed.tokens) == (calls, tokens)
        assert resumed.allow() == ""
        resumed.add_tokens(10)
    assert "the budget of 5 calls" in resumed.allow()
    assert ledger.read_bytes().count(b"\n") == 8


def test_what_cannot_be_written_down_is_not_asked_and_the_run_ends_for_the_full_disk(judged, server, tmp_path):
    """/dev/full acts as a disk that is always full."""
    rewards = judged(retries=0)
    rewards.bind(None, {}, ledger=tmp_path / "spent-rewards")
    (tmp_path / "spent-rewards-judge.jsonl").symlink_to("/dev/full")
    with pytest.raises(DoesNotFit, match=r"spent-rewards-judge\.jsonl cannot be written: No space left on device"):
        rewards.score([prompt(0)], [[completion("a"), completion("bb")]])
    assert server.requests == []


# the request


def test_what_is_sent(score, server):
    score(PAIR, temperature=0.5, top_p=0.9, max_tokens=77)
    body = server.requests[0]
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("judge", 0.5, 0.9, 77)
    assert isinstance(body["seed"], int)


def test_further_fields_of_the_request_replace_or_remove_the_usual_ones(score, server):
    score(PAIR, request={"max_tokens": None, "max_completion_tokens": 50, "reasoning_effort": "low"})
    body = server.requests[0]
    assert "max_tokens" not in body
    assert (body["max_completion_tokens"], body["reasoning_effort"]) == (50, "low")


# scoring while other completions are sampled


def test_a_group_is_asked_about_before_the_next_is_there(judged, server):
    server.seconds = 0.05
    groups = [[completion("a" * n), completion("b" * (n + 1))] for n in (1, 2, 3)]
    prompts = [prompt(n) for n in range(3)]
    rewards = judged(cache=False, concurrency=2)
    with rewards.open(prompts) as scoring:
        scoring.add(2, groups[2])
        end = time.monotonic() + 60
        while len(server.requests) < 2:
            assert time.monotonic() < end, "no request arrived"
            time.sleep(0.01)
        for place in (1, 0):
            scoring.add(place, groups[place])
        scores = scoring.result()
    expected = rewards.score(prompts, groups)
    assert scores.rewards_PG == expected.rewards_PG == [[0.0, 1.0]] * 3
    assert [judgement.prompt for judgement in scores.judgements] == [0, 1, 2]
    assert server.most_busy <= 2, "two calls of the judge share one limit of concurrent requests"


def test_who_stops_sampling_stops_the_asking(judged, server):
    server.seconds = 0.2
    rewards = judged(cache=False, concurrency=1)
    with rewards.open([prompt(n) for n in range(30)]) as scoring:
        for n in range(29):
            scoring.add(n, [completion("a" * n), completion("b" * (n + 1))])
        while not server.requests:
            time.sleep(0.01)
    asked = len(server.requests)
    time.sleep(0.6)
    assert len(server.requests) <= asked + 1


# interrupts


@pytest.mark.slow
def test_an_interrupt_does_not_wait_for_the_judge(tmp_path):
    """Ctrl-C while the endpoint hangs ends the process immediately."""
    code = (
        "import signal, sys; from tests.rewards.rollouts import completion, prompt\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it\n"
        "from posttrain.rewards import Reward, build_rewards\n"
        "rewards = build_rewards([Reward(judge={'model': 'm', 'url': sys.argv[1], 'cache': False, 'timeout': 600})])\n"
        "print('asking', flush=True)\n"
        "rewards.score([prompt(0)], [[completion('a'), completion('bb')]])\n"
    )
    with serving(seconds=600) as slow:
        process = subprocess.Popen(
            [sys.executable, "-c", code, slow.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert process.stdout is not None
        process.stdout.readline()
        while len(slow.requests) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
