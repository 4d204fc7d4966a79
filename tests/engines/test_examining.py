"""Examining an engine's mismatch does not disturb it: weights and rows have priority, and late answers are
dropped."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.engines.attached import Heard, engine_of
from tests.engines.stub_server import StubServer
from tests.tiny import tiny_model

from posttrain.engines.port import Asleep, Examined, Piece, Ready, Task, WeightsLoaded

TOKENS = [((3, 4, 5), 6), ((3, 4, 5, 6), 7)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examining")
    tiny_model(folder / "model")
    return folder


class Busy(StubServer):
    """A server that hashes slowly and, if `holds` is set, holds requests for named tokens until they are aborted."""

    holds = False
    hashing = 0.0

    def __init__(self, folder):
        super().__init__(folder)
        self.waiting = set()

    async def decode(self, asked):
        name = asked.get("request_id", "")
        if self.holds and "logprob_token_ids" in asked["sampling_params"]:
            self.waiting.add(name)
            self.running.add(name)
            while name not in self.aborted:
                await asyncio.sleep(0.001)
            self.waiting.discard(name)
        async for choice in super().decode(asked):
            yield choice

    async def call(self, request):
        if self.hashing and b"posttrain_digests" in await request.body():
            self.calls.append("hashes")
            await asyncio.sleep(self.hashing)
        return await super().call(request)


def wait_for(there):
    end = time.monotonic() + 10
    while not there():
        assert time.monotonic() < end, "the condition was not met in 10 s"
        time.sleep(0.005)


def loaded(engine):
    """The receiver of an engine that has loaded its first weights."""
    heard = Heard(engine)
    heard.until(Ready)
    engine.load(0)
    assert heard.until(WeightsLoaded).version == 0
    return heard


def examined(engine, heard, number):
    """The next examination, which is the first answer of the engine."""
    engine.examine(number, TOKENS)
    answer = heard.until(Examined)
    assert answer.number == number
    assert (len(answer.fresh), answer.fresh) == (len(TOKENS), pytest.approx(answer.cached))
    return answer


def test_weights_that_come_while_it_asks_for_tokens_end_the_examination_and_not_the_engine(place):
    server = Busy(place / "model")
    with server.serving() as url, engine_of(place, server, url) as engine:
        heard = loaded(engine)
        server.holds = True
        engine.examine(1, TOKENS)
        wait_for(lambda: len(server.waiting) == len(TOKENS))
        server.holds = False
        engine.load(1)
        assert heard.until(WeightsLoaded).version == 1
        assert examined(engine, heard, 2).version == 1


def test_hashes_are_those_of_the_version_that_is_asked_about(place):
    server = Busy(place / "model")
    with server.serving() as url, engine_of(place, server, url) as engine:
        heard = loaded(engine)
        server.hashing = 0.3
        server.calls.clear()
        engine.examine(1, TOKENS)
        wait_for(lambda: "hashes" in server.calls)
        engine.load(1)
        assert heard.until(WeightsLoaded).version == 1
        calls = [name for name in server.calls if name in ("collective_rpc", "start_weight_update")]
        assert calls == ["collective_rpc", "start_weight_update", "collective_rpc"]
        server.hashing = 0.0
        second = examined(engine, heard, 2)
        assert second.version == 1
        assert {name: (str(one.dtype)[6:], one.sha256) for name, one in second.digests.items()} == server.digests()


def test_rows_go_on_while_it_hashes_and_their_tokens_are_held_back(place):
    server = Busy(place / "model")
    with server.serving() as url, engine_of(place, server, url) as engine:
        heard = loaded(engine)
        server.hashing = 0.3
        server.calls.clear()
        engine.load(1)
        wait_for(lambda: "hashes" in server.calls)
        engine.submit([Task(row=(0, 0), attempt=1, prompt_ids=(3, 4), seed=1, stream=(0, 0), max_new_tokens=4)])
        said = []
        while not said or not getattr(said[-1], "reason", None):
            said.append(heard.until(Piece | WeightsLoaded))
        proof = next(at for at, one in enumerate(said) if isinstance(one, WeightsLoaded))
        assert proof > 0, "no row continued before the hashes arrived"
        assert not any(one.ids for one in said[:proof]), "tokens came before the proof of their weights"
        assert len(said[-1].ids) == 4


def test_it_falls_asleep_when_it_is_told_to(place):
    server = Busy(place / "model")
    with server.serving() as url, engine_of(place, server, url) as engine:
        heard = loaded(engine)
        server.holds = True
        engine.examine(1, TOKENS)
        wait_for(lambda: len(server.waiting) == len(TOKENS))
        server.holds = False
        engine.sleep()
        heard.until(Asleep)
        engine.examine(2, TOKENS)  # the engine has no weights to examine
        engine.load(1)
        assert heard.until(WeightsLoaded).version == 1
        examined(engine, heard, 3)


def test_a_server_that_is_too_busy_to_be_examined_is_not_lost(place):
    server = Busy(place / "model")
    with server.serving() as url, engine_of(place, server, url, seconds=1) as engine:
        heard = loaded(engine)
        server.holds = True
        engine.examine(1, TOKENS)
        wait_for(lambda: len(server.waiting) == len(TOKENS))
        wait_for(lambda: not server.waiting)  # its requests are aborted
        server.holds = False
        engine.submit([Task(row=(0, 0), attempt=1, prompt_ids=(3, 4), seed=1, stream=(0, 0), max_new_tokens=4)])
        assert heard.until(Piece, lambda piece: piece.ids).version == 0
        examined(engine, heard, 2)


def test_a_server_that_refuses_to_be_examined_is_not_lost(place):
    refused = []

    class Refuses(Busy):
        def on_collective_rpc(self, body, request):
            if self.holds and body["method"] == "posttrain_digests":
                refused.append(body)
                raise RuntimeError("no")
            return super().on_collective_rpc(body, request)

    server = Refuses(place / "model")
    with server.serving() as url, engine_of(place, server, url) as engine:
        heard = loaded(engine)
        server.holds = True
        engine.examine(1, TOKENS)
        wait_for(lambda: refused)
        server.holds = False
        examined(engine, heard, 2)
