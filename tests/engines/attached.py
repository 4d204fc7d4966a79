"""An engine that is attached to a stub server without a run; the test collects its answers one by one."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager

from tests.engines.stub_server import CARD, GIB
from transformers import AutoTokenizer

from posttrain.config import SamplingConfig
from posttrain.engines.delivery import DeliveryProof
from posttrain.engines.published import Published, new_files
from posttrain.engines.vllm.port import ServerSetup, VllmEngine
from posttrain.engines.vllm.sleeping import SharedDevice

WHOLE = 24 * GIB
"""Memory of the GPU, in bytes."""


class Heard:
    """Receives the messages of an engine, one after the other."""

    def __init__(self, engine):
        self.engine, self.answers = engine, []

    def until(self, kind, also=lambda answer: True):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            self.answers += self.engine.answers()
            while self.answers:
                answer = self.answers.pop(0)
                if isinstance(answer, kind) and also(answer):
                    return answer
            time.sleep(0.01)
        raise AssertionError(f"no {kind}")


@contextmanager
def engine_of(place, server, url, *, seconds=20):
    """An engine that is attached to a server, with two published versions of the weights."""
    model = server.model
    tensors = {name: ("float32", tuple(tensor.shape)) for name, tensor in server.tensors().items()}
    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    setup = ServerSetup(
        launch=None,
        url=url,
        tensors=tensors,
        sampling=SamplingConfig(group_size=2),
        tokenizer=tokenizer,
        eos_ids=[tokenizer.eos_token_id],
        vocabulary=model.config.vocab_size,
        longest=64,
        call_seconds=seconds,
        patience=5,
        device=SharedDevice(CARD, lambda: WHOLE - server.taken()),
    )
    files = new_files()
    published = Published(files, tensors, write=True)
    for number in (0, 1):
        published.write(number, [(name, tensor * (1 + number / 8)) for name, tensor in server.tensors().items()])
    proof = DeliveryProof.from_prompts([(3, 4, 5)], tolerance=1e-3, temperature=1.0)
    engine = VllmEngine("engine 0", setup, files, {0: 0, 1: 1}, proof, place / "engine.log")
    try:
        yield engine
    finally:
        engine.kill()
        for file in files:
            os.close(file)
