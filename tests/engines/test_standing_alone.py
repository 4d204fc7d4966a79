"""For which models a row gets the same bits in any batch depends on the operations that compute it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.catalogue import catalogue
from tests.cpu.test_plain_decoder import COMPILED, needs_kernels, sampler_of
from tests.engines.policies import CONFIGS, Settings, lora_model, random_prompts, tiny_model

from posttrain.cpu import joint_linear
from posttrain.cpu.kernels import kernels
from posttrain.engines.engine import Draw, Request
from posttrain.engines.local import LocalSampler
from posttrain.engines.row_stream import RowStream
from posttrain.engines.standing_alone import stand_alone
from posttrain.types import Completion

PLAIN = ("llama", "qwen2, tied", "mistral, sliding window")


def alone(sampler: LocalSampler, settings: Settings | None = None) -> bool:
    call, draw = sampler.begin(), Draw(settings or Settings(), 0, sampler.compute)
    return stand_alone(call, sampler.open(call, draw, 8).rows, draw, sampler.device)


@pytest.mark.slow
@needs_kernels
@catalogue("name", sorted(CONFIGS))
def test_rows_of_plain_decoders_stand_alone_by_kernels(name):
    assert alone(sampler_of(tiny_model(name, head_dim=32), compute=COMPILED)) == (name in PLAIN)


@needs_kernels
def test_adapters_are_merged_and_stand_alone():
    assert alone(sampler_of(lora_model(head_dim=32), compute=COMPILED))


@needs_kernels
def test_a_copy_in_bfloat16_stands_alone_where_pairs_are_multiplied():
    copied: dict[str, Any] = {"shared": False, "packed": True, "dtype": torch.bfloat16}
    expected = kernels().can_multiply(torch.bfloat16, 2, 16)  # type: ignore[union-attr]
    assert alone(sampler_of(tiny_model(head_dim=32), compute=COMPILED, **copied)) == expected


@needs_kernels
@pytest.mark.parametrize("what", ["no kernels", "narrow heads", "large layers", "a hook", "top-p", "greedy"])
def test_whatever_pytorch_sums_does_not_stand_alone(what, monkeypatch):
    """Narrow heads attend by products; a layer with a hook is called; the rest of a distribution is summed before a
    token of its top is drawn."""
    if what == "large layers":
        monkeypatch.setattr(joint_linear, "COPIED_WEIGHTS", 100)
    model = tiny_model(head_dim=8 if what == "narrow heads" else 32)
    sampler = sampler_of(model, **({} if what == "no kernels" else {"compute": COMPILED}))
    if what == "a hook":
        model.model.layers[1].mlp.down_proj.register_forward_hook(lambda *_: None)
    settings = {"top-p": Settings(top_p=0.9), "greedy": Settings(temperature=0.0)}.get(what)
    assert not alone(sampler, settings)


@needs_kernels
@pytest.mark.parametrize("copied", [False, True])
@catalogue("name", PLAIN)
def test_rows_that_come_at_any_time_get_the_same_bits(name, copied):
    """Earlier trials leave no trace, and the other rows of the batch change nothing."""
    half: dict[str, Any] = {"shared": False, "packed": True, "dtype": torch.bfloat16} if copied else {}
    sampler, prompts = sampler_of(tiny_model(name, head_dim=32), compute=COMPILED, **half), random_prompts((12, 1, 30))
    if not alone(sampler):
        pytest.skip("no products of bfloat16 in pairs on this processor, or better ones in tiles")
    expected = [group[0] for group in sampler.generate(prompts, Settings(), group_size=1, seed=5)]
    for steps_between in (1, 40):
        stream: RowStream[int] = RowStream(sampler, Settings(), seed=5)
        assert stream.stand_alone
        found: dict[int, Completion] = {}
        for place, prompt in enumerate(prompts):
            request = Request(prompt_ids=tuple(prompt.ids), max_new_tokens=16, stream=(prompt.index, 0))
            stream.submit(place, request)
            for _ in range(steps_between):
                found |= dict(stream.step())
        while len(stream):
            found |= dict(stream.step())
        assert [found[place] for place in range(len(prompts))] == expected
