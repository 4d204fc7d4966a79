"""Runs that sample from a server, and every kind of wrong server: each is found, and the error names the fault.

The server is a stub with planted faults that a real one has only by accident; test_vllm_server.py has the real one.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import math
import time
from typing import ClassVar

import pyarrow.parquet as pq
import pytest
import torch
from tests.catalogue import few
from tests.engines.stub_server import StubServer
from tests.tiny import tiny_model, write_prompts
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen3MoeConfig

import posttrain as pt
from posttrain.engines.vllm import served
from posttrain.engines.vllm.client import Client
from posttrain.engines.vllm.rows import Rows
from posttrain.errors import ConfigError, EngineError, ModelError, NonFiniteError

SMALL = {"evaluation": {"prompts": 2, "samples": 1, "writing": 0}, "guards": {"max_truncated": 1.0}, "report": False}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    tiny_model(folder / "model")
    tiny_model(folder / "tied", tie_word_embeddings=True)
    mixture(folder / "experts", Qwen3MoeConfig, num_experts=4, moe_intermediate_size=16)
    mixture(folder / "mixtral", MixtralConfig, num_local_experts=4)
    write_prompts(folder / "prompts.jsonl", count=200)
    return folder


def mixture(folder, kind, **sizes):
    like = AutoConfig.from_pretrained(tiny_model(folder)).to_dict()
    known = {name: like[name] for name in inspect.signature(LlamaConfig).parameters if name in like}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(kind(**known | sizes, num_experts_per_tok=2)).save_pretrained(folder)


def config(place, name, url, **changes):
    return {
        "model": {"path": str(place / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(place / "prompts.jsonl"), "eval_fraction": 0.05},
        "rewards": [{"name": "repetition", "settings": {"n": 1}}],
        "sampling": {"group_size": 4, "max_completion_length": 12},
        "train": {"steps": 4, "prompts_per_step": 4, "learning_rate": 1e-2},
        "output": str(place / name),
        "rollout": {"engine": "vllm", "url": [url], "deadline": 20},
        **SMALL,
        **changes,
    }


def rows_of(run):
    files = sorted((run / "rollouts").glob("step-*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def messages(run):
    return [json.loads(line)["message"] for line in (run / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("model", few(["model", "tied", "experts"], "model"))
def test_a_run_samples_and_evaluates_with_a_server(place, model):
    evaluation = {"prompts": 6, "samples": 1, "writing": 0}
    server = StubServer(place / model)
    with server.serving() as url:
        ahead = {"train.run_ahead": 2, "train.max_staleness": 8}
        changes = {"model": {"path": str(place / model), "device": "cpu"}, "evaluation": evaluation}
        run = pt.train(config(place, f"by a server {model}", url, **changes), **ahead)
    assert 2 <= server.loads <= 5, "a publication may be skipped if it arrives while another one is loaded"
    rows = rows_of(run.folder)
    assert len(rows) == 4 * 4 * 4
    assert all(0 <= row["step"] - 1 - version <= 8 for row in rows for version in row["versions"])
    assert all(step["publish/tensors_compared"] == len(server.tensors()) for step in run.metrics[1:-1])
    local = pt.train(config(place, f"here {model}", url, **changes) | {"rollout": {}}, **{"train.steps": 1})
    answers = [
        [
            json.loads(line)["greedy"]["text"]
            for line in (one.folder / "evaluations" / "baseline.jsonl").read_text().splitlines()
        ]
        for one in (run, local)
    ]
    assert answers[0] == answers[1], "greedy answers of the same weights"
    assert run.trainer.algorithm.correction_name != "none", "an engine with other numerics needs a correction"


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "prompts"), few([(1, 2), (2, 4)], (1, 2)))
def test_a_server_that_was_started_without_our_route_answers_by_its_own(place, steps, prompts):
    class Alone(StubServer):
        alone = True

    class Plain(Alone):
        together = False

    rows, size = [], {"train.steps": steps, "train.prompts_per_step": prompts}
    for kind in (Plain, Alone):
        with kind(place / "model").serving() as url:
            run = pt.train(config(place, f"{kind.__name__} {steps}", url), **size)
        rows.append([(row["completion_ids"], row["versions"]) for row in rows_of(run.folder)])
    assert rows[0] == rows[1]


def test_a_row_that_is_not_read_to_its_end_stops_in_the_server(place):
    server = StubServer(place / "model")
    sampling = {"temperature": 1.0, "max_tokens": 100_000}

    async def ask(url):
        client = Client(url, 5.0)
        rows = Rows(client)
        assert await rows.open()
        one, other = (
            rows.generate({"request_id": name, "token_ids": [5], "cache_salt": "", "sampling_params": sampling})
            for name in ("one", "other")
        )
        await anext(one)
        await anext(other)
        await one.aclose()
        until = time.monotonic() + 5
        while "one" in server.running and time.monotonic() < until:
            await asyncio.sleep(0.01)
        running = set(server.running)
        await rows.close()
        await client.close()
        return running

    with server.serving() as url:
        assert asyncio.run(ask(url)) == {"other"}
        until = time.monotonic() + 5
        while server.running and time.monotonic() < until:
            time.sleep(0.01)
        assert not server.running, "the end of the connection ends all requests"


@pytest.mark.slow
def test_without_a_lead_every_token_is_of_the_newest_version(place):
    server = StubServer(place / "model")
    with server.serving() as url:
        run = pt.train(config(place, "in turns", url))
    assert all(version == row["step"] - 1 for row in rows_of(run.folder) for version in row["versions"])
    assert all(step["mismatch/k3"] < 1e-6 for step in run.metrics), "the trainer's log-probabilities are used"


@pytest.mark.slow
def test_stop_strings_end_a_completion_where_the_local_sampler_ends_it(place):
    server = StubServer(place / "model")
    with server.serving() as url:
        run = pt.train(config(place, "stopped", url), **{"sampling.stop": ["a", "b", "c", "d"], "train.steps": 1})
    rows = rows_of(run.folder)
    stopped = [row for row in rows if row["finish_reason"] == "stop"]
    assert stopped
    assert not any(letter in row["completion"] for row in rows for letter in "abcd")


# --- wrong servers ---------------------------------------------------------------------------------------------------


class StaleShard(StubServer):
    def load(self, sent):
        before = self.tensors()["model.layers.1.mlp.up_proj.weight"].detach().clone()
        super().load(sent)
        with torch.no_grad():
            self.tensors()["model.layers.1.mlp.up_proj.weight"].copy_(before if self.loads else before * 1)


class MissedTiedHead(StubServer):
    """Loads new embeddings, but keeps the old ones as the head."""

    def __init__(self, folder):
        super().__init__(folder)
        self.model.lm_head.weight = torch.nn.Parameter(self.model.lm_head.weight.detach().clone())

    def load(self, sent):
        super().load({name: tensor for name, tensor in sent.items() if name != "lm_head.weight"} | {
            "lm_head.weight": self.model.lm_head.weight.detach().clone()
        })  # fmt: skip


class KeepsItsPrefixCache(StubServer):
    """Reuses the prefix cache of older weights, even after it was told to clear it."""

    def weights(self, asked):
        return super().weights(asked | {"cache_salt": ""})

    async def on_pause(self, body, request):
        read = dict(self.read)
        await super().on_pause(body, request)
        self.read = read


class AnotherShape(StubServer):
    facts: ClassVar = {"shape": {"num_hidden_layers": 3}}


class HoldsMore(StubServer):
    """Its model has a tensor that the trainer does not have."""

    def digests(self):
        return super().digests() | {"model.layers.0.self_attn.q_proj.bias": ("float32", "0" * 64)}


class AnotherTemperature(StubServer):
    def scaled(self, logits, sampling):
        return logits.log_softmax(-1)


class TopKOfItsOwn(StubServer):
    def scaled(self, logits, sampling):
        kept = logits.masked_fill(logits < logits.topk(5).values[-1], -math.inf)
        return super().scaled(kept, sampling)


class AnotherTokenizer(StubServer):
    facts: ClassVar = {"vocabulary": 41}


class AnotherModel(StubServer):
    def load(self, sent):
        """Keep the server's own weights, and report that it took ours."""


class RawLogprobs(StubServer):
    facts: ClassVar = {"logprobs_mode": "raw_logprobs"}


class AnotherPrecision(StubServer):
    facts: ClassVar = {"dtype": "bfloat16"}


class OnAnotherMachine(StubServer):
    facts: ClassVar = {"machine": "elsewhere"}


class TakesShortRows(StubServer):
    facts: ClassVar = {"max_model_len": 16}


class SplitAmongWorkers(StubServer):
    facts: ClassVar = {"workers": 2}


class TruncatedLogprobs(StubServer):
    def choice(self, told):
        return super().choice([one | {"logprob": round(one["logprob"], 1)} for one in told])


class RestartedInBetween(StubServer):
    """After its second publication it has the weights of its folder and no version."""

    def on_resume(self, body, request):
        super().on_resume(body, request)
        if self.loads == 2:
            self.version = "default"


class HalfAnUpdate(StubServer):
    def load(self, sent):
        if self.loads == 1:
            raise RuntimeError("the disk is full")
        super().load(sent)


class WrongLabel(StubServer):
    def spans(self, versions):
        return super().spans([f"somebody else's {version}" for version in versions])


class LabelsTooFew(StubServer):
    def spans(self, versions):
        return super().spans(versions[:1])


class NoLabel(StubServer):
    def spans(self, versions):
        return []


class LosesLogprobs(StubServer):
    def choice(self, told):
        choice = super().choice(told)
        choice["logprobs"]["content"] = choice["logprobs"]["content"][:-1]
        return choice


class LosesLogprobsOfRows(StubServer):
    async def lines(self, state, asked):
        async for ids, logprobs, *rest in super().lines(state, asked):
            yield [ids, logprobs[:-1], *rest]


class FailsRows(StubServer):
    async def lines(self, state, asked):
        raise RuntimeError("no room for keys and values")
        yield


class EndsTooEarly(StubServer):
    async def decode(self, asked):
        shorter = copy.deepcopy(asked)
        shorter["sampling_params"]["max_tokens"] = min(2, asked["sampling_params"]["max_tokens"])
        async for choice in super().decode(shorter):
            yield choice


WRONG = {
    StaleShard: "model.layers.1.mlp.up_proj.weight and 0 other tensors differ from version 1",
    MissedTiedHead: "lm_head.weight and 0 other tensors differ from version",
    KeepsItsPrefixCache: "has log-probability",
    AnotherTemperature: "has log-probability",
    TopKOfItsOwn: "has log-probability",
    AnotherTokenizer: "its model has 41 tokens, but the trained one has 40",
    AnotherShape: "its model has num_hidden_layers = 3, but the trained one has 2",
    HoldsMore: "it decodes with model.layers.0.self_attn.q_proj.bias, which is not trained",
    AnotherModel: "other tensors differ from version",
    RawLogprobs: "it reports raw_logprobs, which ignore temperature and truncation",
    AnotherPrecision: "it computes in bfloat16, but the run in float32: start it with --dtype float32",
    OnAnotherMachine: "it runs on another machine",
    TakesShortRows: "it takes rows of 16 tokens, but the run needs 64: start it with --max-model-len 64",
    SplitAmongWorkers: "it has 2 workers",
    TruncatedLogprobs: "has log-probability",
    RestartedInBetween: "version -1",
    HalfAnUpdate: "/update_weights",
    WrongLabel: "weights \"somebody else's",
    NoLabel: "some tokens carry no version: 0 of",
    LabelsTooFew: "some tokens carry no version: 1 of",
    LosesLogprobs: "tokens and log-probabilities of",
    LosesLogprobsOfRows: "tokens came with",
    FailsRows: "a request failed: RuntimeError: no room for keys and values",
    EndsTooEarly: "a row ended (length) after 2 tokens, but none of them may end it",
}


MENDED = (RestartedInBetween,)
"""Servers that are right again after they are attached a second time and get the same version again."""


QUICK = (
    *(StaleShard, KeepsItsPrefixCache, AnotherShape, AnotherTemperature, AnotherTokenizer, RawLogprobs),
    *(HalfAnUpdate, WrongLabel, LosesLogprobs, FailsRows, EndsTooEarly),
)
"""One server of each kind of detection."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(WRONG, *QUICK), ids=lambda kind: kind.__name__)
def test_a_wrong_server_is_found_and_what_is_wrong_is_said(place, kind):
    model = "tied" if kind is MissedTiedHead else "model"
    changes = {"model": {"path": str(place / model), "device": "cpu"}}
    ended = ""
    with kind(place / "model").serving() as url:
        try:
            pt.train(config(place, kind.__name__, url, **changes), **{"sampling.temperature": 0.7})
        except EngineError as error:
            ended = str(error)
    assert bool(ended) == (kind not in MENDED)
    said = [*messages(place / kind.__name__), ended]
    assert any(WRONG[kind] in text for text in said), said


def test_numbers_that_are_not_finite_are_the_trainers_fault(place):
    class NotANumber(StubServer):
        def choice(self, told):
            return super().choice(
                [one | {"logprob": math.nan} for one in told] if self.loads and len(told) > 1 else told
            )

    with NotANumber(place / "model").serving() as url, pytest.raises(NonFiniteError):
        pt.train(config(place, "not a number", url))


def test_a_mixture_of_experts_whose_tensors_have_other_names_in_vllm_is_refused(place):
    with pytest.raises(ModelError, match=r"of the kind mixtral .* qwen2_moe, qwen3_moe, olmoe"):
        pt.train(config(place, "mixtral", "http://127.0.0.1:9") | {"model": str(place / "mixtral")})


def test_a_server_that_is_not_there_is_named(place, monkeypatch):
    monkeypatch.setattr(served, "AWAY", 0.2)
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
        pt.train(config(place, "not there", "http://127.0.0.1:9"))


def test_without_an_installation_it_is_said_how_to_make_one(place, monkeypatch, tmp_path):
    monkeypatch.setenv("POSTTRAIN_ENGINES", str(tmp_path))
    with pytest.raises(ConfigError, match="posttrain engine install vllm"):
        pt.train(config(place, "not installed", "") | {"rollout": {"engine": "vllm"}})
