"""A server on the trainer's GPU: it sleeps while a step is trained, and every way in which it could only seem to.

The GPU is the stub's: it says how much the server holds, and a number stands for what its driver says is free.
"""

from __future__ import annotations

import copy
import time
from typing import ClassVar

import pytest
from starlette.responses import JSONResponse
from tests.engines.stub_server import CARD, GIB, StubServer
from tests.engines.test_vllm import config, messages, rows_of
from tests.tiny import tiny_model, write_prompts

import posttrain as pt
from posttrain.engines.vllm.sleeping import SharedDevice
from posttrain.errors import EngineError
from posttrain.train import fleet, trainer

WHOLE = 24 * GIB


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sleeping")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=200)
    return folder


@pytest.fixture
def shares(monkeypatch):
    """Have trainer and server share the stub's GPU."""

    def put(server):
        device = server and SharedDevice(CARD, lambda: WHOLE - server.taken())
        monkeypatch.setattr(fleet, "shared_device", lambda config, loaded: device)

    return put


def trained(place, shares, server, name, **changes):
    shares(server)
    with server.serving() as url:
        return pt.train(config(place, name, url, **changes))


class Watched(StubServer):
    """Notes what it holds whenever the trainer computes a step."""

    def __init__(self, folder):
        super().__init__(folder)
        self.while_training = list[int]()


def test_it_sleeps_while_a_step_is_trained_and_wakes_with_its_weights(place, shares, monkeypatch):
    server, update = Watched(place / "model"), trainer.Trainer.update

    def watched(*given, **named):
        server.while_training.append(server.taken())
        return update(*given, **named)

    monkeypatch.setattr(trainer.Trainer, "update", watched)
    evaluation = {"prompts": 4, "samples": 1, "writing": 0, "every": 2}
    run = trained(place, shares, server, "in turns", evaluation=evaluation)
    assert server.while_training == [0] * 4
    assert [server.calls.count(name) for name in ("sleep", "wake_up")] == [4, 8], "once a step; weights, then cache"
    assert all(version == row["step"] - 1 for row in rows_of(run.folder) for version in row["versions"])
    assert [step["queue/gave_back_gib"] for step in run.metrics] == [6.0] * 4
    asleep = server.calls[server.calls.index("sleep") :]
    between = asleep[: asleep.index("resume")]
    order = ["sleep", "wake_up", "start_weight_update", "update_weights", "finish_weight_update", "wake_up"]
    assert [name for name in between if name in order] == order, "the cache comes when the weights are there"


def test_a_run_that_sleeps_learns_what_one_that_does_not_learns(place, shares):
    asleep = trained(place, shares, StubServer(place / "model"), "asleep")
    shares(None)
    with StubServer(place / "model").serving() as url:
        awake = pt.train(config(place, "awake", url))
    curves = [[step["loss"] for step in run.metrics if "loss" in step] for run in (asleep, awake)]
    assert curves[0] == curves[1]
    drawn = [[row["completion_ids"] for row in rows_of(run.folder)] for run in (asleep, awake)]
    assert drawn[0] == drawn[1]


# --- servers that are wrong ------------------------------------------------------------------------------------------


class KeepsItsMemory(StubServer):
    """It says that it gave all back."""

    def taken(self):
        return sum(self.maps.values()) - (GIB if self.sleeps else 0)


class SaysThatItKeepsSome(StubServer):
    def held(self):
        return super().held() + (GIB if self.sleeps else 0)


class AnswersWithoutSleeping(StubServer):
    def on_sleep(self, body, request):
        return {"status": "sleeping", "level": 2}


class HasNothingToGive(StubServer):
    """Started without --enable-sleep-mode by somebody who says otherwise: its memory is in no pool."""

    def held(self):
        return 0


class StartedWithoutSleep(StubServer):
    facts: ClassVar = {"sleeps": False}


class OnAnotherGpu(StubServer):
    facts: ClassVar = {"device": "GPU-of-somebody-else"}


class WakesWithOldWeights(StubServer):
    """What it is sent goes where nothing is mapped."""

    def load(self, sent):
        if self.loads:
            self.model = copy.deepcopy(self.models[1])
        else:
            super().load(sent)


class WakesWithoutACache(StubServer):
    def held(self):
        return super().held() - (self.maps["kv_cache"] if "sleep" in self.calls and not self.sleeps else 0)


class StaysAsleep(StubServer):
    def on_wake_up(self, body, request):
        if "kv_cache" in request.query_params.getlist("tags"):
            return {"status": "sleeping"}
        return super().on_wake_up(body, request)


class CannotWake(StubServer):
    def on_wake_up(self, body, request):
        return JSONResponse({"error": "CUDA error: out of memory"}, status_code=500)


class NeverAnswersAWake(StubServer):
    def on_wake_up(self, body, request):
        time.sleep(3)


WRONG = {
    KeepsItsMemory: "5.00 GiB of the 6.00 GiB that it says it gave back are not free on the GPU (19.00 GiB are)",
    SaysThatItKeepsSome: "it sleeps, and says itself that it holds 1.00 GiB of 6.00 GiB",
    AnswersWithoutSleeping: "it answers /sleep with 200, and does not sleep",
    HasNothingToGive: "it could give 0.00 GiB of the GPU back, and its weights alone are",
    StartedWithoutSleep: "it shares the trainer's GPU and cannot sleep: start it with --enable-sleep-mode",
    OnAnotherGpu: "it is on GPU-of-somebody-else and the trainer on GPU-of-the-stub: rollout.placement = beside",
    WakesWithOldWeights: "other tensors are not those of version 1",
    WakesWithoutACache: "it woke without its cache: it holds 2.00 GiB of the 6.00 GiB from before",
    StaysAsleep: "it was woken, and sleeps still",
    CannotWake: 'answered 500: {"error":"CUDA error: out of memory"}',
    NeverAnswersAWake: "/wake_up at",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_server_that_only_seems_to_sleep_or_to_wake_is_found_and_said_by_its_name(place, shares, kind):
    ended, server = "", kind(place / "model")
    shares(server)
    with server.serving() as url:
        seconds = 1 if kind is NeverAnswersAWake else 20
        rollout = {"engine": "vllm", "url": [url], "deadline": seconds}
        try:
            pt.train(config(place, kind.__name__, url, rollout=rollout))
        except EngineError as error:
            ended = str(error)
    said = [*messages(place / kind.__name__), ended]
    assert any(WRONG[kind] in text for text in said), said
