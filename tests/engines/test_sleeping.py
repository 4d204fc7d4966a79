"""A server on the trainer's GPU sleeps while a step is trained. Each fault here only looks like a sleep.

The GPU is simulated by the stub: it says how much the server holds, and a number stands for the driver's free memory.
"""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from starlette.responses import JSONResponse
from tests.catalogue import few
from tests.engines.attached import WHOLE, Heard, engine_of
from tests.engines.stub_server import CARD, GIB, StubServer
from tests.engines.test_vllm import config, messages, rows_of
from tests.tiny import tiny_model, write_prompts

import posttrain as pt
from posttrain.config import ModelConfig
from posttrain.engines.port import Asleep, Piece, Ready, Task, WeightsLoaded
from posttrain.engines.vllm.served import on_card, tensors_of, token_bytes
from posttrain.engines.vllm.server import Launch, arguments, environment
from posttrain.engines.vllm.sleeping import SharedDevice
from posttrain.errors import DoesNotFit, EngineError
from posttrain.experience import servers
from posttrain.models.load import load_model
from posttrain.placement import ServerMemory
from posttrain.train import fleet, trainer


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sleeping")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=200)
    return folder


@pytest.fixture
def shares(monkeypatch):
    """Let trainer and server share the stub's GPU."""

    def put(server):
        device = server and SharedDevice(CARD, lambda: WHOLE - server.taken())
        monkeypatch.setattr(fleet, "shared_device", lambda *of: device)

    return put


def trained(place, shares, server, name, **changes):
    shares(server)
    with server.serving() as url:
        return pt.train(config(place, name, url, **changes))


class Alone(StubServer):
    """Gives every row the same bits whenever it comes."""

    alone = True


class Watched(Alone):
    """Records the memory that it holds whenever the trainer computes a step."""

    def __init__(self, folder):
        super().__init__(folder)
        self.while_training = list[int]()


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "prompts"), few([(2, 2), (4, 4)], (2, 2)))
def test_it_sleeps_while_a_step_is_trained_and_wakes_with_its_weights(place, shares, monkeypatch, steps, prompts):
    server, update = Watched(place / "model"), trainer.Trainer.update

    def watched(*given, **named):
        server.while_training.append(server.taken())
        return update(*given, **named)

    monkeypatch.setattr(trainer.Trainer, "update", watched)
    changes = {
        "evaluation": {"prompts": prompts, "samples": 1, "writing": 0, "every": steps // 2},
        "train": {"steps": steps, "prompts_per_step": prompts, "learning_rate": 1e-2},
    }
    run = trained(place, shares, server, f"in turns {steps}", **changes)
    assert server.while_training == [0] * steps
    called = [server.calls.count(name) for name in ("sleep", "wake_up")]
    assert called == [steps, 2 * steps], "once per step; weights, then cache"
    assert all(version == row["step"] - 1 for row in rows_of(run.folder) for version in row["versions"])
    assert [step["queue/gave_back_gib"] for step in run.metrics] == [6.0] * steps
    asleep = server.calls[server.calls.index("sleep") :]
    between = asleep[: asleep.index("resume")]
    order = ["sleep", "wake_up", "start_weight_update", "update_weights", "finish_weight_update", "wake_up"]
    assert [name for name in between if name in order] == order, "the cache is mapped after the weights arrived"
    shares(None)
    with Alone(place / "model").serving() as url:
        awake = pt.train(config(place, f"awake {steps}", url, **changes))
    assert [step["loss"] for step in awake.metrics] == [step["loss"] for step in run.metrics]
    assert [row["completion_ids"] for row in rows_of(awake.folder)] == [
        row["completion_ids"] for row in rows_of(run.folder)
    ], "sleeping changes no training result"


@pytest.mark.slow
def test_a_server_is_left_alone_until_the_longest_rows_were_tried_also_on_a_resume(place, shares, monkeypatch):
    """An awake server would hold memory that the rehearsal of the longest rows needs."""
    server, rehearse, before = StubServer(place / "model"), trainer.Trainer.rehearse, list[list[str]]()

    def noting(self, longest):
        rehearse(self, longest)
        before.append(list(server.calls))

    monkeypatch.setattr(trainer.Trainer, "rehearse", noting)
    shares(server)
    with server.serving() as url:
        run = pt.train(config(place, "tried first", url), **{"train.steps": 2})
        server.calls.clear()
        resumed = pt.resume(run, steps=4)
    assert before == [[], []]
    assert "update_weights" in server.calls
    later = [row for row in rows_of(resumed.folder) if row["step"] > 2]
    assert all(version == row["step"] - 1 for row in later for version in row["versions"])


# --- wrong servers ---------------------------------------------------------------------------------------------------


class KeepsItsMemory(StubServer):
    """A server that says that it freed all its memory."""

    def taken(self):
        return sum(self.maps.values()) - (GIB if self.sleeps else 0)


class SaysThatItKeepsSome(StubServer):
    def held(self):
        return super().held() + (GIB if self.sleeps else 0)


class AnswersWithoutSleeping(StubServer):
    def on_sleep(self, body, request):
        return {"status": "sleeping", "level": 2}


class HasNothingToGive(StubServer):
    """A server without --enable-sleep-mode that claims to have it: none of its memory can be freed."""

    def held(self):
        return 0


class StartedWithoutSleep(StubServer):
    facts: ClassVar = {"sleeps": False}


class OnAnotherGpu(StubServer):
    facts: ClassVar = {"device": "GPU-of-somebody-else"}


class WakesWithOldWeights(StubServer):
    """A server that writes the received weights to memory that is not mapped."""

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
        time.sleep(1.3)


class DiesAsleep(StubServer):
    """A server that stops listening while it sleeps."""

    def on_is_sleeping(self, body, request):
        told = super().on_is_sleeping(body, request)
        if self.sleeps:
            self.server.should_exit = self.server.force_exit = True
        return told


WRONG = {
    KeepsItsMemory: "5.00 GiB of the 6.00 GiB that it claims to have given back are not free on the GPU (19.00 "
    "GiB are)",
    SaysThatItKeepsSome: "it sleeps, but reports that it holds 1.00 GiB of 6.00 GiB",
    AnswersWithoutSleeping: "it answers /sleep with 200, but does not sleep",
    HasNothingToGive: "it could give back only 0.00 GiB of the GPU, but its weights alone take",
    StartedWithoutSleep: "it shares the trainer's GPU and cannot sleep: start it with --enable-sleep-mode",
    OnAnotherGpu: "it is on GPU-of-somebody-else, but the trainer is on GPU-of-the-stub: set rollout.placement "
    "= beside",
    WakesWithOldWeights: "other tensors differ from version 1",
    WakesWithoutACache: "it woke without its cache: it holds 2.00 GiB of the 6.00 GiB from before",
    StaysAsleep: "it was woken, but still sleeps",
    CannotWake: 'answered 500: {"error":"CUDA error: out of memory"}',
    NeverAnswersAWake: "/wake_up at",
    DiesAsleep: "the connection broke",
}


@pytest.mark.parametrize("kind", few(WRONG, KeepsItsMemory, WakesWithOldWeights))
def test_a_server_that_only_seems_to_sleep_or_to_wake_is_found_and_said_by_its_name(place, shares, kind, monkeypatch):
    monkeypatch.setattr(servers, "START_DEADLINE", 1.0)  # for the server that does not come back
    ended, server = "", kind(place / "model")
    shares(server)
    with server.serving() as url:
        seconds = 1 if kind is NeverAnswersAWake else 20
        rollout = {"engine": "vllm", "url": [url], "deadline": seconds}
        try:
            pt.train(config(place, kind.__name__, url, rollout=rollout), **{"train.steps": 2})
        except EngineError as error:
            ended = str(error)
    said = [*messages(place / kind.__name__), ended]
    assert any(WRONG[kind] in text for text in said), said


@pytest.mark.slow
def test_a_server_that_somebody_left_asleep_is_woken(place, shares):
    """Its trainer was killed during the sleep: the next one finds a server without weights, but with requests."""
    server = StubServer(place / "model")
    server.on_sleep({}, SimpleNamespace(query_params={"level": "2"}))
    trained(place, shares, server, "left asleep", train={"steps": 1, "prompts_per_step": 4, "learning_rate": 1e-2})
    assert server.calls.index("wake_up") < server.calls.index("update_weights")


def test_a_row_that_arrives_asleep_is_drawn_with_the_weights_that_it_wakes_to(place):
    """A server would keep the request and answer it after waking, with weights that have not been proven."""
    asked = list[str]()

    class Counts(StubServer):
        async def decode(self, request):
            asked.append("asleep" if self.sleeps else "awake")
            async for choice in super().decode(request):
                yield choice

    server = Counts(place / "model")
    with server.serving() as url, engine_of(place, server, url) as engine:
        heard = Heard(engine)
        heard.until(Ready)
        engine.load(0)
        assert heard.until(WeightsLoaded).version == 0
        engine.sleep()
        assert heard.until(Asleep).gave == 6 * GIB
        asked.clear()
        engine.submit([Task(row=(0, 0), attempt=1, prompt_ids=(3, 4), seed=1, stream=(0, 0), max_new_tokens=4)])
        time.sleep(0.2)
        assert asked == []
        engine.load(1)
        assert heard.until(WeightsLoaded).version == 1
        piece = heard.until(Piece, lambda piece: piece.ids)
        assert piece.version == 1
    assert set(asked) == {"awake"}


# --- how it is started -----------------------------------------------------------------------------------------------


@pytest.fixture
def on_a_gpu(place, monkeypatch):
    """The tiny model as if on a GPU with `free` bytes: its keys and values for decoding take 10 GiB."""
    loaded = load_model(ModelConfig(path=str(place / "model"), device="cpu"))
    tensors = tensors_of(loaded)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    def started(*, free, number=0, servers=1, device=None):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, WHOLE))
        rows = 10 * GIB // (64 * token_bytes(loaded))
        moved = replace(loaded, device=torch.device("cuda"))
        return on_card(moved, number, tensors, servers=servers, longest=64, rows=rows, device=device).get("shares")

    return started


def test_a_server_leaves_the_trainer_the_moments_that_are_still_to_come(on_a_gpu):
    first = on_a_gpu(free=10 * GIB, device=SharedDevice(CARD, lambda: 0, to_come=lambda: 3 * GIB))
    resumed = on_a_gpu(free=7 * GIB, device=SharedDevice(CARD, lambda: 0, to_come=lambda: 0))
    assert first == resumed, "the moments of a resumed run exist already, and take free memory"
    assert first.awake == 6 * GIB, "of 10 GiB, three are for moments and one for the trainer's own work"


def test_servers_on_one_gpu_share_what_is_free_of_it(on_a_gpu, monkeypatch):
    assert on_a_gpu(free=9 * GIB).awake == 8 * GIB
    both = [on_a_gpu(free=9 * GIB, number=number, servers=2) for number in range(2)]
    assert [one.awake for one in both] == [4 * GIB] * 2
    with pytest.raises(DoesNotFit, match=r"(?s)the part of one of 8 servers on this GPU.*Lower rollout\.engines"):
        on_a_gpu(free=9 * GIB, servers=8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    first, *rest = [on_a_gpu(free=9 * GIB, number=number, servers=3) for number in range(3)]
    assert first is None, "it has the next GPU to itself"
    assert [one.awake for one in rest] == [4 * GIB] * 2


@pytest.mark.slow
def test_moments_are_to_come_until_a_run_has_stepped_and_not_when_it_is_resumed(place, monkeypatch):
    server, to_come = StubServer(place / "model"), list[int]()

    def device(config, loaded, coming):
        def free():
            to_come.append(coming())
            return WHOLE - server.taken()

        return SharedDevice(CARD, free)

    monkeypatch.setattr(fleet, "shared_device", device)
    with server.serving() as url:
        run = pt.train(config(place, "moments", url), **{"train.steps": 2, "train.prompts_per_step": 2})
        trained = sum(parameter.numel() for parameter in run.trainer.trained_parameters().values())
        assert to_come[0] == 8 * trained, "two float32 numbers for each trained number"
        assert to_come[-1] == 0
        to_come.clear()
        pt.resume(run, steps=3)
    assert set(to_come) == {0}


LAUNCH = {"python": Path("python"), "model": Path("m"), "dtype": "bfloat16", "max_model_len": 64, "max_num_seqs": 8}


def test_on_a_shared_gpu_a_server_is_started_with_what_it_may_take():
    memory = ServerMemory(weights=2 * GIB, cache=4 * GIB)
    launch = Launch(**LAUNCH, threads=1, device="cuda", card="4", shares=memory, card_bytes=80 * GIB)
    words = arguments(launch, 8000)
    assert "--enable-sleep-mode" in words
    assert words[words.index("--kv-cache-memory-bytes") + 1] == str(4 * GIB)
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.1000"  # (2 + 4 + 2) / 80
    assert environment(launch)["CUDA_VISIBLE_DEVICES"] == "4"


def test_on_a_gpu_of_its_own_it_takes_what_vllm_takes_and_never_sleeps():
    launch = Launch(**LAUNCH, threads=1, device="cuda", card="5")
    assert environment(launch)["CUDA_VISIBLE_DEVICES"] == "5"
    assert not {"--enable-sleep-mode", "--gpu-memory-utilization"} & set(arguments(launch, 8000))


@pytest.mark.slow
def test_on_a_cpu_nobody_sleeps(place):
    """vLLM's CPU build refuses --enable-sleep-mode, and answers /sleep with 200 but frees no memory."""
    server = StubServer(place / "model")
    with server.serving() as url:
        pt.train(config(place, "on a CPU", url), **{"rollout.placement": "shared", "train.steps": 1})
    assert "sleep" not in server.calls
    launch = Launch(**LAUNCH, threads=1, device="cpu")
    assert "--enable-sleep-mode" not in arguments(launch, 8000)
