"""The memory of a pass is the memory that the planner counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from tests.tiny import tiny_model
from transformers import LlamaForCausalLM

from posttrain.lab.plan.architecture import architecture_of
from posttrain.lab.plan.records import Workload
from posttrain.lab.plan.roles import layer_bytes, root_bytes
from posttrain.models import layout, sharding
from posttrain.models.layout import Layout
from posttrain.models.policy import hold_in
from posttrain.ranks.agreement import ONE


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()
    layout._mesh.cache_clear()
    sharding._sharded.clear()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("frozen", [False, True])
def test_a_layer_and_the_root_are_as_large_in_a_pass_as_the_planner_says(tmp_path, frozen):
    folder = tiny_model(tmp_path / "model", num_hidden_layers=2)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    shape = architecture_of(model.config.to_dict())
    if frozen:
        hold_in(model.requires_grad_(False), torch.bfloat16)
    entry = sharding.shard("policy", model, Layout(ranks=ONE, group=1), torch.bfloat16)
    layer, seen = model.model.layers[1], list[int]()
    outside = [model.model.embed_tokens, model.model.norm, model.lm_head]

    def look(*args: object) -> None:
        seen.append(sum(parameter.nbytes for parameter in layer.parameters()))
        seen.append(sum(parameter.nbytes for module in outside for parameter in module.parameters()))

    layer.self_attn.register_forward_pre_hook(look)
    entry.accompany()
    work = Workload(architecture=shape, algorithm="sft", needs=frozenset(), precision="bfloat16")
    norm = 4 * shape.hidden  # the last one, which the planner counts with the layers
    assert seen == [layer_bytes(work, shape, narrow=frozen) - norm // shape.layers, root_bytes(work, shape) + norm]
