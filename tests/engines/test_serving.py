"""Evaluations and conversations that a server answers: proven weights, the local sampler's greedy answers, no row lost.

The server is the stub of test_vllm.py; test_vllm_server.py has real servers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import ClassVar

import pytest
from tests.engines.stub_server import StubServer
from tests.tiny import tiny_model, write_prompts

import posttrain as pt
from posttrain.cli import run
from posttrain.config import RolloutConfig
from posttrain.errors import ConfigError, EngineError, ModelError
from posttrain.evaluate.api import evaluate
from posttrain.evaluate.chat import ChatSession
from posttrain.evaluate.rollout import rollout_of

REWARD = [{"name": "repetition", "settings": {"n": 1}}]
PROMPTS = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=PROMPTS)
    return folder


def evaluated(place, **changes):
    given = {"k": 2, "temperature": 0.7, "max_completion_length": 8, **changes}
    return evaluate(place / "model", str(place / "prompts.jsonl"), REWARD, **given)


def by(url):
    return {"engine": "vllm", "url": [url], "deadline": 20}


def emptied(server):
    """Let the server have none of the weights that it will receive."""
    for tensor in server.tensors().values():
        tensor.data.zero_()
    return server


@pytest.mark.slow
def test_an_evaluation_is_answered_by_a_server_with_the_weights_of_the_model(place):
    server = emptied(StubServer(place / "model"))
    with server.serving() as url:
        served = evaluated(place, rollout=by(url))
    here = evaluated(place)
    assert server.loads == 1
    assert [one.greedy for one in served.records] == [one.greedy for one in here.records]
    assert served.greedy_score == here.greedy_score
    assert [len(one.samples) for one in served.records] == [2] * PROMPTS
    assert served.pass_at_k.keys() == here.pass_at_k.keys()


class Dies(StubServer):
    """Its connections break once, in the middle of an answer."""

    dead: ClassVar = False

    async def decode(self, asked):
        told = 0
        async for choice in super().decode(asked):
            if asked.get("request_id") and told == 1 and not Dies.dead:
                Dies.dead = True
                raise ConnectionError("the server has ended")
            told += 1
            yield choice


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_is_replaced_nothing_is_lost_and_it_is_said_in_one_line(place, capfd):
    server = Dies(place / "model")
    with server.serving() as url:
        served = evaluated(place, rollout=by(url))
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("engine")]
    assert len(said) == 1
    assert "engine 0 is lost: a request failed: ConnectionError: the server has ended" in said[0]
    assert "its rows continue from the tokens that it delivered" in said[0]
    assert server.loads == 2, "the next evaluation loads the weights and proves them again"
    assert [one.greedy for one in served.records] == [one.greedy for one in evaluated(place).records]


class Stale(StubServer):
    def load(self, sent):
        """Report success without taking the weights."""


def test_a_server_with_other_weights_answers_nothing_and_its_log_is_named(place):
    with emptied(Stale(place / "model")).serving() as url, pytest.raises(EngineError) as raised:
        evaluated(place, rollout=by(url))
    assert "differ from version 0" in str(raised.value)
    assert "With rollout.engine = local, this process answers" in raised.value.fix
    folder = Path(raised.value.fix.split()[2].split("/engines")[0])
    assert folder.is_dir()
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_run_that_sampled_with_servers_is_evaluated_with_servers(place, capsys):
    settings = {
        "model": {"path": str(place / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(place / "prompts.jsonl"), "eval_fraction": 0.5},
        "rewards": REWARD,
        "sampling": {"group_size": 2, "max_completion_length": 8},
        "train": {"steps": 1, "prompts_per_step": 2, "learning_rate": 1e-2},
        "evaluation": {"prompts": 3, "samples": 1, "writing": 0},
        "guards": {"max_truncated": 1.0},
        "report": False,
        "output": str(place / "run"),
    }
    server = StubServer(place / "model")
    with server.serving() as url:
        trained = pt.train({**settings, "rollout": by(url)})
        loads = server.loads
        again = evaluate(trained.folder)
        assert server.loads == loads + 1
        here = evaluate(trained.folder, rollout={"engine": "local"})
        assert run(["eval", str(trained.folder), "rollout.engine=local", "--json"]) == 0
        assert server.loads == loads + 1, "nothing asked the server for an answer"
    lines = (trained.folder / "evaluations" / "trained.jsonl").read_text().splitlines()
    greedy = [tuple(json.loads(line)["greedy"]["ids"]) for line in lines]
    assert greedy == [one.greedy.ids for one in again.records] == [one.greedy.ids for one in here.records]
    assert again.before is not None
    assert again.before == here.before
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(here.to_json()))


@pytest.mark.slow
def test_a_conversation_is_answered_by_a_server(place, capsys):
    with ChatSession(place / "model", max_completion_length=8) as here:
        expected = [here.ask("abc"), here.ask("dcba")]
    server = StubServer(place / "model")
    with server.serving() as url:
        with ChatSession(place / "model", max_completion_length=8, rollout=by(url)) as session:
            assert [session.ask("abc"), session.ask("dcba")] == expected
        assert server.loads == 1
        asked = ["chat", str(place / "model"), "rollout.engine=vllm", f"rollout.url=[{url}]", "-m", "abc"]
        assert run([*asked, "--max-completion-length", "8"]) == 0
    assert capsys.readouterr().out.strip("\n") == expected[0]


# --- impossible configurations -------------------------------------------------------------------------------------


def test_without_an_installation_it_is_said_how_to_make_one(place, monkeypatch, tmp_path):
    monkeypatch.setenv("POSTTRAIN_ENGINES", str(tmp_path))
    with pytest.raises(ConfigError, match="posttrain engine install vllm"):
        evaluated(place, rollout={"engine": "vllm"})


def test_heads_that_the_cpu_build_has_no_attention_for_are_refused_before_a_server_is_started(
    place, monkeypatch, tmp_path
):
    monkeypatch.setenv("POSTTRAIN_ENGINES", str(tmp_path))
    (tmp_path / "vllm-0.32.0").mkdir()
    (tmp_path / "vllm-0.32.0" / "installed").touch()
    with pytest.raises(
        ModelError, match=r"heads have \d+ numbers; allowed: on a CPU: 32, 48, 64, .*\n.*engine = local"
    ):
        evaluated(place, rollout={"engine": "vllm"})


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        (None, None, {"engine": "local"}),
        (None, {"engine": "vllm"}, {"engine": "vllm"}),
        ({"engine": "vllm", "engines": 2, "deadline": 30}, None, {"engine": "vllm", "engines": 2, "deadline": 30}),
        ({"engine": "vllm", "engines": 2, "deadline": 30}, {"engine": "local"}, {"engine": "local"}),
        ({"engine": "vllm", "engines": 2}, {"url": ["http://a"]}, {"engine": "vllm", "url": ["http://a"]}),
        ({"engine": "vllm", "url": ["http://a"]}, {"engines": 1}, {"engine": "vllm", "engines": 1}),
        ({"engine": "local", "engines": 2, "deadline": 30}, None, {"engine": "local"}),
    ],
)
def test_what_answers_is_what_the_run_sampled_with_unless_it_is_said(own, given, expected):
    run = None if own is None else RolloutConfig(**own)
    assert rollout_of(run, given) == RolloutConfig(**expected)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engines": 2}, "rollout.engines = 2 with rollout.engine = local, but nothing is trained here"),
        ({"url": ["http://a"]}, "rollout.url = http://a with rollout.engine = local, which uses no server"),
        (
            {"engine": "vllm", "url": ["http://a"], "engines": 2},
            "rollout.engines = 2 together with 1 servers in rollout.url",
        ),
    ],
)
def test_settings_that_would_do_nothing_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        rollout_of(None, given)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["eval", "model", "train.steps=3"], "the argument train.steps=3"),
        (["chat", "model", "hello"], "the argument hello"),
        (["eval", "model", "--data", "x.jsonl", "--as", "pairs", "rollout.engine=vllm"], "on given answers"),
    ],
)
def test_arguments_that_mean_nothing_are_named(arguments, said, capsys):
    assert run(arguments) == 2
    assert said in capsys.readouterr().err
