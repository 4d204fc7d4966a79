"""`model: policy` judges behind a vLLM server: they use the server's weights, in their run and in an evaluation.

The server is a stub. The tests recognise the questions of a judge by their length.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.engines.stub_server import StubServer
from tests.tiny import tiny_model, write_prompts

import posttrain as pt
from posttrain.config import ModelConfig, load_config
from posttrain.evaluate.api import evaluate
from posttrain.experience.servers import room_for_judges
from posttrain.models.load import load_model
from posttrain.train.fleet import longest_row

QUESTION = 60
"""Number of tokens that every question of a judge exceeds, and no prompt of these runs does."""
JUDGE = {"judge": {"model": "policy", "mode": "score", "max_tokens": 6}}
REPETITION = {"name": "repetition", "settings": {"n": 1}}
SAMPLED = JUDGE["judge"] | {"temperature": 0.5, "top_p": 0.9}
LIFTED = {"max_truncated": 1.0, "max_unscored": 1.0, "no_signal_steps": 9}


class Recording(StubServer):
    """Records each request with the weights that answer it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked: list[tuple[str, dict]] = []

    async def decode(self, asked):
        self.asked.append((self.version, asked))
        async for choice in super().decode(asked):
            yield choice

    @property
    def questions(self):
        return [(version, asked) for version, asked in self.asked if len(asked["token_ids"]) > QUESTION]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("judging")
    tiny_model(folder / "model", max_position_embeddings=4096)
    write_prompts(folder / "prompts.jsonl", count=24)
    return folder


def settings(place: Path, name: str, url: str, **changes):
    return {
        "model": {"path": str(place / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(place / "prompts.jsonl"), "eval_fraction": 0.1},
        "rewards": [JUDGE, REPETITION],
        "sampling": {"group_size": 2, "max_completion_length": 5, "stop": list("abcde")},
        "train": {"steps": 2, "prompts_per_step": 2, "learning_rate": 1e-2},
        "evaluation": {"writing": 0, "prompts": 1, "samples": 0},
        "rollout": {"engine": "vllm", "url": [url], "deadline": 30},
        "guards": LIFTED,
        "output": str(place / name),
        "report": False,
        **changes,
    }


def replies(folder: Path, name: str) -> list[str]:
    lines = (folder / "judgements" / f"{name}.jsonl").read_text().splitlines()
    return [reply["text"] for line in lines for reply in json.loads(line)["replies"]]


@pytest.mark.slow
def test_each_group_is_judged_by_the_weights_that_have_drawn_it(place):
    server = Recording(place / "model")
    with server.serving() as url:
        run = pt.train(settings(place, "run", url), rewards=[{"judge": SAMPLED}, REPETITION])
    questions = server.questions
    labels = [int(version.rpartition(":")[2]) for version, _ in questions]
    assert labels == sorted(labels), "each request by the weights of its time"
    assert set(labels) == {0, 1, 2}, "the weights of both steps, and the last ones in the evaluation"
    told = [replies(run.folder, name) for name in ("baseline", "step-000001", "step-000002", "trained")]
    assert len(told[1]) == len(told[2]) == 4, "one score per answer"
    assert len(questions) >= sum(map(len, told)), "the server gave all replies; a reply without a verdict is repeated"
    sampling = questions[0][1]["sampling_params"]
    assert (sampling["temperature"], sampling["top_p"], sampling["max_tokens"]) == (0.5, 0.9, 6), "the judge's settings"
    assert any(letter in text for text in told[1] + told[2] for letter in "abcde"), "no stop strings of the run apply"


@pytest.mark.slow
def test_an_evaluation_asks_the_server_that_answers_it(place):
    trained = pt.train(settings(place, "trained", "", rollout={"engine": "local"}))
    server = Recording(place / "model")
    with server.serving() as url:
        served = evaluate(trained.folder, rollout={"engine": "vllm", "url": [url], "deadline": 30})
    here = evaluate(trained.folder)
    assert server.questions
    said = [[reply.text for one in found.judgements for reply in one.replies] for found in (served, here)]
    assert said[0] == said[1], "greedy replies equal those of a judge in this process"
    assert all(said[0])


def test_a_server_gets_room_for_questions_where_the_policy_judges(place):
    loaded = load_model(ModelConfig(path=str(place / "model")))
    config = load_config(settings(place, "room", "http://127.0.0.1:1")).config
    judges = [entry.judge for entry in config.rewards if entry.judge]
    assert longest_row(config, loaded) == 4096, "prompts may have any length"
    assert room_for_judges(100, judges, loaded) == 2 * 100 + 2048 + 2 * 6
    assert room_for_judges(100, [], loaded) == 100
    assert room_for_judges(3000, judges, loaded) == 4096
