"""A server starts to lie in the middle of a run, in a way that hashes and probe miss: the alarm names the cause."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from tests.catalogue import few
from tests.engines.stub_server import StubServer
from tests.tiny import tiny_model, write_prompts

import posttrain as pt
from posttrain.errors import AlarmStop

HONEST = 3
"""Publications after which a server starts to lie: the fourth is for step 4."""
STEPS = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mismatch")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=200)
    return folder


def config(place, name, url, **changes):
    return {
        "model": {"path": str(place / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(place / "prompts.jsonl"), "eval_fraction": 0.05},
        "rewards": [{"name": "repetition", "settings": {"n": 1}}],
        "sampling": {"group_size": 4, "max_completion_length": 12},
        "train": {"steps": STEPS, "prompts_per_step": 2, "learning_rate": 1e-2},
        "evaluation": {"prompts": 2, "samples": 1, "writing": 0},
        "guards": {"max_truncated": 1.0},
        "report": False,
        "output": str(place / name),
        "rollout": {"engine": "vllm", "url": [url], "deadline": 20},
        **changes,
    }


def alarms(run):
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["kind"] == "alarm" and event["alarm"] == "mismatch"]


def is_row(asked):
    """Whether a request is for a row; the probe asks for tokens by name."""
    return "logprob_token_ids" not in asked["sampling_params"]


class Liar(StubServer):
    """A server that lies about rows, but never to the probe."""

    @property
    def lies(self):
        return self.loads > HONEST

    async def decode(self, asked):
        if self.lies and is_row(asked):
            asked = self.twisted(copy.deepcopy(asked))
        async for choice in super().decode(asked):
            yield choice

    def twisted(self, asked):
        return asked


class AnotherTemperature(Liar):
    def twisted(self, asked):
        asked["sampling_params"]["temperature"] *= 0.8
        return asked


class TopK(Liar):
    def twisted(self, asked):
        asked["sampling_params"]["top_k"] = 12
        return asked

    def scaled(self, logits, sampling):
        if k := sampling.get("top_k"):
            logits = logits.masked_fill(logits < logits.topk(k).values[-1], -math.inf)
        return super().scaled(logits, sampling)


class ReadsWithBos(Liar):
    def twisted(self, asked):
        return asked | {"token_ids": [1, *asked["token_ids"]]}


class DecodesWithOldWeights(Liar):
    """Decodes only rows with old weights; it hashes and probes the new ones."""

    def twisted(self, asked):
        return asked | {"old": True}

    def weights(self, asked):
        return self.models[self.loads - 1] if asked.get("old") else super().weights(asked)


class KeepsRowsInItsCache(Liar):
    """Reuses the cache of older weights for every request with the salt of rows."""

    def twisted(self, asked):
        return asked

    def weights(self, asked):
        model = super().weights(asked)
        return self.models[1] if self.lies and asked["cache_salt"] == self.version and not self.proving else model

    proving = True
    """Whether the probe of a publication is due or running; it comes before the publication's first row."""

    async def decode(self, asked):
        if is_row(asked):
            self.proving = False
        async for choice in super().decode(asked):
            yield choice

    def update(self, info):
        super().update(info)
        self.proving = True


class SwapsWeightsBehindItsBack(Liar):
    """Writes to a tensor after the proof is done."""

    async def decode(self, asked):
        if self.lies and is_row(asked):
            with torch.no_grad():
                head = self.tensors()["lm_head.weight"]
                head.copy_(head.flip(0) if not self.swapped else head)
            self.swapped = True
        async for choice in super().decode(asked):
            yield choice

    swapped = False

    def update(self, info):
        super().update(info)
        self.swapped = False


class InBfloat16(Liar):
    def twisted(self, asked):
        return asked | {"by": copy.deepcopy(self.model).bfloat16()}

    def weights(self, asked):
        return asked.get("by") or super().weights(asked)


LIES = {
    AnotherTemperature: ("temperature", "belong to temperature 0.8, but the run draws at 1"),
    TopK: ("truncation", "belong to top_k = 12"),
    ReadsWithBos: ("template", "read with <bos> in front"),
    DecodesWithOldWeights: ("versions", "belong to version 4"),
    KeepsRowsInItsCache: ("cache", "engine 0 gives other numbers for a prompt that it has read before"),
    SwapsWeightsBehindItsBack: ("weights", "lm_head.weight and 0 other tensors differ from version 5"),
    InBfloat16: ("precision", "have the size of rounding"),
}


@pytest.mark.parametrize("kind", few(LIES, DecodesWithOldWeights))
def test_a_server_that_begins_to_lie_sets_off_an_alarm_that_names_how(place, kind):
    with kind(place / "model").serving() as url:
        run = pt.train(config(place, kind.__name__, url))
    [alarm] = alarms(run.folder)
    cause, words = LIES[kind]
    assert (alarm["step"], alarm["change_point"]) == (6, 4), "three steps in succession"
    assert (alarm["evidence"]["cause"], words in alarm["message"]) == (cause, True), alarm["message"]
    honest, lying = run.metrics[:HONEST], run.metrics[HONEST:]
    assert all(step["mismatch/fresh_max"] < 1e-4 for step in honest)
    assert all(step["mismatch/fresh_max"] > 1e-3 for step in lying)


@pytest.mark.slow
def test_an_honest_server_sets_off_nothing(place):
    with Liar(place / "model").serving() as url:
        run = pt.train(config(place, "honest", url))
    assert not alarms(run.folder)
    assert all(step["mismatch/fresh_max"] < 1e-4 for step in run.metrics)
    assert run.metrics[-1]["mismatch/drift"] < 3


@pytest.mark.slow
def test_a_run_that_shall_stop_says_what_to_do_about_the_engine(place):
    stops = {"alarms": {"on_alarm": "stop"}}
    with AnotherTemperature(place / "model").serving() as url, pytest.raises(AlarmStop) as stopped:
        pt.train(config(place, "stops", url, **stops))
    assert "engines whose log-probabilities agree with the trainer's" in str(stopped.value)
    assert "sampling.temperature" in stopped.value.fix
    assert "reward" not in str(stopped.value)


@pytest.mark.slow
def test_side_by_side_the_policy_that_moves_is_no_mismatch_and_a_lie_is(place):
    """Older tokens are far from the present policy with an honest server, too."""
    ahead = {"train.run_ahead": 1, "train.max_staleness": 8, "train.steps": 12}
    with Liar(place / "model").serving() as url:
        run = pt.train(config(place, "honest ahead", url), **ahead)
    assert not alarms(run.folder)
    stale = [step["mismatch/stale_mean"] for step in run.metrics if "mismatch/stale_mean" in step]
    assert max(stale) > 1e-2
    with AnotherTemperature(place / "model").serving() as url:
        run = pt.train(config(place, "lies ahead", url), **ahead)
    [alarm] = alarms(run.folder)
    assert alarm["evidence"]["cause"] == "temperature", alarm["message"]


@pytest.mark.slow
def test_an_engine_of_other_numerics_is_corrected_for(place):
    with Liar(place / "model").serving() as url:
        run = pt.train(config(place, "corrected", url), **{"train.steps": 1})
    assert run.trainer.algorithm.correction == "tis", "the choice of correction = auto"
    assert run.metrics[0]["is/ess_fraction"] == pytest.approx(1, abs=1e-6), "its weights are almost 1"
