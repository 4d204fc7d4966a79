"""An engine in its own process, addressed as its driver does."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest
import torch
from tests.processes import ForkedEngine
from tests.tiny import tiny_model

from posttrain.config import ModelConfig, SamplingConfig
from posttrain.engines import make_sampler
from posttrain.engines.delivery import DeliveryProof
from posttrain.engines.port import Answer, EngineGone, GivenBack, Piece, Ready, Task, WeightsLoaded
from posttrain.engines.process import EngineProcess, EngineSetup
from posttrain.engines.published import Published, new_files
from posttrain.engines.weights import named_tensors
from posttrain.models.load import load_model
from posttrain.types import Prompt

PROMPTS = [tuple(range(3, 3 + length)) for length in (4, 9)]
PROOF = DeliveryProof.from_prompts(PROMPTS, tolerance=1e-3)
SAMPLING = SamplingConfig(max_completion_length=20)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_model(ModelConfig(path=str(tiny_model(tmp_path_factory.mktemp("model"))), device="cpu"))


@pytest.fixture(scope="module")
def started(loaded, tmp_path_factory) -> Iterator[tuple[EngineProcess, Published, dict[int, int]]]:
    """One engine for all tests of this file, its published weights, and the publication of each version."""
    files, numbers = new_files(), dict[int, int]()
    setup = EngineSetup(
        model=ModelConfig(path=loaded.model.name_or_path, device="cpu").model_dump(mode="json"),
        lora=None,
        sampling=SAMPLING.model_dump(mode="json"),
        seed=0,
        compute=loaded.compute.to_json(),
        keep_cache=False,
        threads=torch.get_num_threads(),
    )
    log = tmp_path_factory.mktemp("log") / "engine.log"
    engine = EngineProcess("engine 0", setup, files, numbers, PROOF, log, start=ForkedEngine)
    try:
        [ready] = heard(engine)
        assert isinstance(ready, Ready)
        yield engine, Published(files, ready.tensors, write=True), numbers
    finally:
        engine.kill()
        for file in files:
            os.close(file)


def heard(engine: EngineProcess, seconds: float = 60) -> list[Answer]:
    """The next answers."""
    while True:
        more = engine.push()
        if select.select([engine], [], [], 0.01 if more else seconds)[0]:
            if found := engine.answers():
                return found
        elif not more:
            raise TimeoutError(engine.death())


def finished(engine: EngineProcess, count: int) -> dict[tuple[int, int], list[Piece]]:
    """The pieces of `count` rows, by row."""
    rows, ended = dict[tuple[int, int], list[Piece]](), 0
    while ended < count:
        for piece in heard(engine):
            assert isinstance(piece, Piece)
            rows.setdefault(piece.row, []).append(piece)
            ended += piece.reason is not None
    return rows


def publish(started, loaded, version: int, change: float = 0.0) -> WeightsLoaded:
    engine, published, numbers = started
    numbers[version] = len(numbers)
    digests = published.write(numbers[version], ((name, x + change) for name, x in named_tensors(loaded.model)))
    engine.load(version)
    [found] = heard(engine)
    assert isinstance(found, WeightsLoaded)
    assert dict(found.digests) == digests, "the engine found the written values"
    return found


def task(p: int, g: int, **changes: object) -> Task:
    plain = {"attempt": 1, "prompt_ids": PROMPTS[p], "seed": 5, "stream": (p, g), "max_new_tokens": 20}
    return Task(**{"row": (p, g), **plain, **changes})


def test_it_draws_what_the_sampler_of_this_process_draws(started, loaded):
    loaded_now = publish(started, loaded, 0)
    assert loaded_now.version == 0
    ours = make_sampler(loaded)
    assert (
        PROOF.compare(ours.score(PROOF.prompt_ids, PROOF.completion_ids, temperature=1.0), loaded_now.probe, 0) < 1e-5
    )
    started[0].submit([task(p, g) for p in range(2) for g in range(3)])
    rows = finished(started[0], 6)
    prompts = [Prompt(index=p, ids=ids, text="") for p, ids in enumerate(PROMPTS)]
    for p, group in enumerate(ours.generate(prompts, SAMPLING, group_size=3, seed=5)):
        for g, completion in enumerate(group):
            pieces = rows[p, g]
            assert tuple(token for piece in pieces for token in piece.ids) == completion.ids
            assert tuple(x for piece in pieces for x in piece.logprobs) == completion.logprobs
            assert (pieces[-1].reason, pieces[-1].text) == (completion.finish_reason, completion.text)


def test_a_message_longer_than_any_buffer_arrives_whole(started, loaded):
    publish(started, loaded, 1)
    many = [task(g % 2, g, max_new_tokens=1) for g in range(6000)]
    started[0].submit(many)
    rows = finished(started[0], len(many))
    assert set(rows) == {one.row for one in many}
    assert {len(piece.ids) for pieces in rows.values() for piece in pieces} == {1}


def test_it_gives_back_what_it_is_asked_for(started, loaded):
    publish(started, loaded, 2)
    started[0].submit([task(0, 0, seed=1), task(1, 1, seed=1)])
    started[0].interrupt([((0, 0), 1), ((1, 1), 7)])
    answers = []
    while not any(isinstance(one, Piece) and one.row == (1, 1) and one.reason for one in answers):
        answers += heard(started[0])
    given_back = [one for one in answers if isinstance(one, GivenBack)]
    assert [one.row for one in given_back] == [(0, 0)]


def test_the_end_of_the_process_is_told_with_its_cause(started):
    """This is the last test of this engine."""
    started[0].child.signal(signal.SIGKILL)
    with pytest.raises(EngineGone, match="killed by signal 9"):
        heard(started[0])
