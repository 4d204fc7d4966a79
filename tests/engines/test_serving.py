"""Evaluations and conversations that a server answers: proven weights, the local sampler's greedy answers, one loss."""

from __future__ import annotations

import pytest
from tests.engines.stub_server import StubServer
from tests.tiny import tiny_model, write_prompts

import posttrain as pt

REWARD = [{"name": "repetition", "settings": {"n": 1}}]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=12)
    return folder


def evaluated(place, **changes):
    given = {"k": 2, "temperature": 0.7, "max_completion_length": 8, **changes}
    return pt.evaluate(place / "model", str(place / "prompts.jsonl"), REWARD, **given)


def by(url, **more):
    return {"engine": "vllm", "url": [url], "deadline": 20, **more}


def test_an_evaluation_is_answered_by_a_server_with_the_weights_of_the_model(place):
    server = StubServer(place / "model")
    with server.serving() as url:
        served = evaluated(place, rollout=by(url))
    here = evaluated(place)
    assert server.loads == 1
    assert [one.greedy for one in served.records] == [one.greedy for one in here.records]
    assert served.greedy_score == here.greedy_score
    assert [len(one.samples) for one in served.records] == [2] * 12
    assert served.pass_at_k.keys() == here.pass_at_k.keys()
