"""Operations, compared with 2 N per token and with PyTorch's own count, and seconds, compared with numbers by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.catalogue import catalogue
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from posttrain.config import load_config
from posttrain.lab.plan import cost
from posttrain.lab.plan.api import from_flags, make_plan, plan_for, with_lengths
from posttrain.lab.plan.architecture import architecture_of, read_architecture
from posttrain.lab.plan.collectives import told
from posttrain.lab.plan.cost import Trained, Work
from posttrain.lab.plan.hardware import Efficiency, find_hardware, this_processor
from posttrain.lab.plan.layout import Step
from posttrain.lab.plan.mesh import Group
from posttrain.lab.plan.records import Adapters, Workload
from posttrain.lab.plan.target import target_of
from posttrain.lab.plan.timing import cost_of_step, step_of, useful_devices

AVX512 = {"flags": "avx512f avx512_bf16"}
"""The processor that docs/speed.md was measured with."""
MEASURED = Path(__file__).parents[3] / "benchmarks" / "results" / "steps_and_rates.json"
SIZES = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
ROWS, TOKENS = 2, 24


def count_flops(model: torch.nn.Module, *, backward: bool = False) -> dict[str, int]:
    """Return PyTorch's count for one pass over ROWS x TOKENS ids, by kind of product."""
    ids = torch.arange(ROWS * TOKENS).view(ROWS, TOKENS) % 96
    with FlopCounterMode(display=False) as counter:
        logits = model(ids).logits
        if backward:
            logits.sum().backward()
    counts = {
        str(op).removeprefix("aten.").partition(".")[0]: n for op, n in counter.get_flop_counts()["Global"].items()
    }
    linear = sum(n for op, n in counts.items() if op in ("mm", "addmm", "_grouped_mm"))
    return {"linear": linear, "attention": sum(counts.values()) - linear}


def llama() -> tuple[torch.nn.Module, dict]:
    config = LlamaConfig(**SIZES, tie_word_embeddings=True, attn_implementation="eager")
    return LlamaForCausalLM(config), config.to_dict()


def test_a_forward_pass_has_the_operations_that_pytorch_counts():
    model, config = llama()
    counted, shape = count_flops(model), architecture_of(config)
    tokens = ROWS * TOKENS
    assert counted["linear"] == tokens * (cost.linear_flops(shape) + cost.head_flops(shape))
    # plain products compute the scores of the whole row, a causal kernel those of (T + 1) / 2 tokens on average
    assert counted["attention"] == tokens * cost.attention_flops(shape, TOKENS)


def test_training_has_three_times_the_linear_operations_of_a_forward_pass():
    model, config = llama()
    counted, shape = count_flops(model, backward=True), architecture_of(config)
    assert counted["linear"] == 3 * ROWS * TOKENS * (cost.linear_flops(shape) + cost.head_flops(shape))
    step = Step(prompts=ROWS, per_prompt=1, rows_are="examples", prompt_tokens=0, answer_tokens=TOKENS)
    ours = cost.training(shape, step, "float32", Trained(trained_parameters=shape.parameters)).flops
    assert ours == pytest.approx(
        counted["linear"] + 3.5 * ROWS * TOKENS * cost.attention_flops(shape, (TOKENS + 1) / 2)
    )


def test_a_token_meets_only_its_experts():
    config = Qwen3MoeConfig(
        **SIZES, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, tie_word_embeddings=True
    )
    shape = architecture_of(config.to_dict())
    dense = architecture_of({**config.to_dict(), "num_experts_per_tok": 8})
    experts_met = 3 * (2 * 3 * 32 * 24)  # layers x (2 of 8 experts x gate, up, down)
    all_experts = 4 * experts_met
    assert cost.linear_flops(dense) - cost.linear_flops(shape) == 2 * (all_experts - experts_met)


@pytest.mark.slow
def test_a_mixture_of_experts_has_the_operations_that_pytorch_counts():
    config = Qwen3MoeConfig(
        **SIZES, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, tie_word_embeddings=True
    )
    model = Qwen3MoeForCausalLM(config)
    model.set_experts_implementation("eager")  # PyTorch does not count the fused product of experts
    counted, shape = count_flops(model), architecture_of(config.to_dict())
    assert counted["linear"] == ROWS * TOKENS * (cost.linear_flops(shape) + cost.head_flops(shape))


@pytest.mark.parametrize("size", ["0.5b", "7b"])
def test_short_rows_cost_two_operations_per_active_weight_and_token(size):
    """Training costs six: 2 forward and 4 backward. Attention adds little in a row of 128 tokens."""
    shape = read_architecture(size)
    step = Step(prompts=8, per_prompt=1, rows_are="examples", prompt_tokens=0, answer_tokens=128, microbatch_tokens=512)
    met = shape.parameters - (0 if shape.tied else shape.counts.embeddings)
    forward = cost.scoring(shape, step, "bfloat16").flops
    training = cost.training(shape, step, "bfloat16", Trained(trained_parameters=shape.parameters)).flops
    assert forward == pytest.approx(2 * met * step.tokens, rel=0.02)
    assert training == pytest.approx(6 * met * step.tokens, rel=0.02)


def test_checkpointing_adds_a_forward_pass_and_adapters_spare_the_gradients_of_the_base():
    shape = read_architecture("7b")
    step = Step(prompts=8, per_prompt=1, rows_are="examples", prompt_tokens=0, answer_tokens=128)

    def flops(**how: int) -> float:
        return cost.training(
            shape, step, "bfloat16", Trained(**{"trained_parameters": 1, **how}), with_head=False
        ).flops

    forward = step.tokens * (cost.linear_flops(shape) + cost.attention_flops(shape, step.context))
    assert flops(recomputes=True) - flops() == pytest.approx(forward)
    adapters = shape.lora_parameters(16)
    spared = step.tokens * (cost.linear_flops(shape) - 6 * adapters)
    assert flops() - flops(adapter_parameters=adapters) == pytest.approx(spared)


def test_decoding_one_row_reads_all_weights_for_every_token():
    shape = read_architecture("7b")
    work = cost.generating(
        shape, prompts=1, rows=1, prompt_tokens=1, answer_tokens=100, rows_together=64, precision="bfloat16"
    )
    cache = 100 * (1 + 101 / 2) * shape.layers * shape.kv_width * 2
    assert work.bytes == pytest.approx(101 * cost.weight_bytes(shape, "bfloat16") + cache)
    together = cost.generating(
        shape, prompts=64, rows=64, prompt_tokens=1, answer_tokens=100, rows_together=64, precision="bfloat16"
    )
    assert together.bytes < 1.1 * work.bytes  # 64 answers share one read of the weights
    assert together.flops == pytest.approx(64 * work.flops)


def test_a_batch_is_decoded_until_its_longest_answer_ends():
    """64 answers have 50 tokens on average and 100 at most, so there are 100 passes, and the work of 64 x 50 tokens."""
    fields = {"prompts": 64, "rows": 64, "prompt_tokens": 1, "answer_tokens": 50, "precision": "bfloat16"}
    shape = read_architecture("7b")
    alike, longest = (cost.generating(shape, rows_together=64, longest=n, **fields) for n in (0, 100))
    assert longest.layer_calls - alike.layer_calls == 50 * shape.layers
    assert longest.flops == alike.flops
    assert longest.bytes - alike.bytes == pytest.approx(50 * cost.weight_bytes(shape, "bfloat16"))
    several = (cost.generating(shape, rows_together=16, longest=n, **fields) for n in (0, 100))
    assert len({work.layer_calls for work in several}) == 1, (
        "four batches of 50 tokens take longer than one answer of 100"
    )


def test_few_tokens_read_few_experts():
    shape = read_architecture("30b-a3b")
    one, many = (cost.weight_bytes(shape, "bfloat16", tokens) for tokens in (1, 4096))
    assert one / 2 == pytest.approx(shape.active_parameters - shape.counts.embeddings, rel=0.01)
    assert many == pytest.approx(cost.weight_bytes(shape, "bfloat16"))


def test_seconds_are_those_of_what_takes_longer_and_of_every_start():
    hardware = replace(
        find_hardware("2xh100"),
        efficiency=Efficiency(compute=0.5, bandwidth=0.5, link=0.5, network=0.5, layer_call=1e-3),
    )
    busy = Work(flops=989e12, bytes=1.0)
    assert busy.seconds(hardware, "bfloat16") == pytest.approx(2.0)  # one device at half of 989 TFLOP/s
    assert Work(bytes=3350e9).seconds(hardware, "bfloat16") == pytest.approx(2.0)
    sent = told("send", 225e9, Group(2, 2))
    assert (busy + Work(layer_calls=2000, messages=sent)).seconds(hardware, "bfloat16") == pytest.approx(5.0, abs=1e-4)


def test_ppo_scores_and_trains_what_grpo_does_not_have():
    shape = read_architecture("7b")
    grpo = Workload(architecture=shape, algorithm="grpo", needs=frozenset())
    ppo = replace(grpo, algorithm="ppo", needs=frozenset({"values", "reference"}), critic="separate")
    parts = [{f"{p.phase}: {p.what}" for p in cost_of_step(w, find_hardware("h100")).parts} for w in (grpo, ppo)]
    assert parts[0] == {"generate: answers", "train: policy"}
    assert parts[1] - parts[0] == {"score: values", "score: reference log-probabilities", "train: critic"}


def test_data_that_is_given_is_not_sampled():
    given = Workload(architecture=read_architecture("0.5b"), algorithm="dpo", needs=frozenset(), data_kind="pairs")
    assert {part.phase for part in cost_of_step(given, find_hardware("l4")).parts} == {"train"}
    assert step_of(given).rows_are == "pairs"


REFERENCED = ("dpo", "ipo", "kto", "bco", "aot")


@pytest.mark.parametrize("algorithm", REFERENCED)
def test_given_rows_pass_through_the_reference_once_before_the_first_step(algorithm):
    config = from_flags("7b", algorithm)
    plans = {steps: make_plan(config, [f"train.steps={steps}"], gpus="h100") for steps in (1, 10)}
    for plan in plans.values():
        assert "reference log-probabilities" not in {part.what for part in plan.cost.parts}
    once, ten = plans[1].reference_seconds, plans[10].reference_seconds
    assert ten == pytest.approx(10 * once, rel=0.05), "each of ten steps has rows of its own"
    assert 0.1 * plans[1].step_seconds < once < 0.5 * plans[1].step_seconds, "a pass without gradient"
    for plan in plans.values():
        evaluations = plan.evaluations * plan.evaluation_seconds
        steps = plan.workload.steps * plan.step_seconds
        assert plan.run_seconds == pytest.approx(plan.reference_seconds + steps + evaluations)
        assert "the reference's pass over the rows, before the first step" in " ".join(plan.render().split())


@pytest.mark.parametrize("algorithm", ["simpo", "orpo", "sft", "grpo", "ppo"])
def test_there_is_no_pass_before_the_first_step_without_given_rows_and_a_reference(algorithm):
    plan = make_plan(dict(from_flags("7b", algorithm)), gpus="h100")
    assert plan.reference_seconds == 0
    assert "before the first step" not in plan.render()


def test_epochs_do_not_repeat_the_pass_of_the_reference(tmp_path: Path):
    rows = [json.dumps({"prompt": "abc", "chosen": "abcd", "rejected": "dcba"})] * 20
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows))
    config = {"model": "tiny:sort", "algorithm": "dpo", "data": {"train": str(tmp_path / "pairs.jsonl"), "chat": False}}
    found = {}
    for steps in (1, 9, 90):
        target = target_of(load_config({**config, "train": {"steps": steps, "prompts_per_step": 2}}).config, "h100")
        resolved = load_config({**config, "train": {"steps": steps, "prompts_per_step": 2}}).config
        plan = plan_for(resolved, with_lengths(resolved, target))
        found[steps] = plan.reference_seconds
    assert found[1] < found[9] == found[90], "18 rows are left to train after 2 of 20 are held out"


def test_twice_the_devices_take_about_half_the_time():
    many = Workload(
        architecture=read_architecture("7b"), algorithm="grpo", needs=frozenset(), prompts_per_step=512, ranks=1
    )
    alone = cost_of_step(many, find_hardware("h100")).seconds
    shared = cost_of_step(replace(many, ranks=2), find_hardware("2xh100")).seconds
    assert 0.45 * alone < shared < 0.75 * alone


def seconds(workload: Workload, gpus: str) -> dict[str, float]:
    hardware = find_hardware(gpus)
    cost = cost_of_step(replace(workload, ranks=hardware.count), hardware)
    return {part.what: part.seconds - part.waiting for part in cost.parts}


def test_devices_without_a_prompt_do_not_make_a_step_faster():
    """There are 16 prompts, each with its whole group on one device. 16 devices have one each, any more have none."""
    few = Workload(architecture=read_architecture("7b"), algorithm="grpo", needs=frozenset(), prompts_per_step=16)
    for name in ("answers", "policy"):
        took = {count: seconds(few, f"{count}xh100")[name] for count in (8, 12, 16, 64)}
        assert took[8] == took[12], "some of twelve devices still have two prompts"
        assert took[16] == took[64] < took[8]
    assert [useful_devices(replace(few, ranks=count)) for count in (1, 8, 12, 16, 64)] == [1, 8, 8, 16, 16]


@pytest.mark.parametrize("devices", [2, 8, 12, 64])
def test_the_operations_of_a_step_are_the_same_however_many_devices_do_them(devices):
    few = Workload(
        architecture=read_architecture("7b"), algorithm="grpo", needs=frozenset(), prompts_per_step=16, engine="copy"
    )
    alone = cost_of_step(few, find_hardware("h100")).work
    shared = cost_of_step(replace(few, ranks=devices), find_hardware(f"{devices}xh100")).work
    assert shared.flops == pytest.approx(alone.flops, rel=0.01)  # smaller micro-batches keep more logits


SHAPE = read_architecture("7b")
GATHERED = 7 / 8 * 4 * SHAPE.parameters
"""Bytes of all float32 weights that one of eight devices lacks."""
ROOT = 7 / 8 * 4 * (SHAPE.counts.embeddings + SHAPE.counts.head)
"""The part of these outside of layers."""
FROZEN = GATHERED - 7 / 8 * 2 * 28 * (2 * 3584 * (3584 + 512) + 3 * 3584 * 18944 + 3584 + 2 * 512)
"""The same for a frozen model, whose linear layers are in bfloat16: q, k, v and o, the MLP, three biases."""
GRPO = Workload(
    architecture=SHAPE, algorithm="grpo", needs=frozenset({"reference"}), prompts_per_step=16, group_size=4,
    completion_tokens=100, precision="bfloat16", ranks=8,
)  # fmt: skip


def received(workload: Workload) -> dict[str, float]:
    """Return the bytes that one device receives, for the parts with any traffic. Each device has two prompts."""
    devices = {"answers": workload.engine_ranks} if workload.engine == "separate" else {}
    parts = cost_of_step(workload, find_hardware("8xh100")).parts
    return {p.what: p.work.link_bytes / devices.get(p.what, 8) for p in parts if p.work.link_bytes}


def test_divided_weights_are_gathered_for_every_pass_of_the_sampler_too():
    found = received(replace(GRPO, sharding="full", tokens_per_microbatch=2**20))
    assert found == {
        "answers": pytest.approx(101 * GATHERED),  # the prompts, then one token at a time
        "reference log-probabilities": pytest.approx(FROZEN),
        "policy": pytest.approx(
            2 * GATHERED - ROOT + 7 / 8 * 4 * SHAPE.parameters
        ),  # the root stays gathered until the end
    }
    with_copy = received(replace(GRPO, sharding="full", engine="copy", tokens_per_microbatch=2**20))
    assert with_copy == {
        **{name: size for name, size in found.items() if name != "answers"},
        "weights to the sampler": pytest.approx(GATHERED),
    }


@pytest.mark.parametrize(
    ("sharding", "gradients"),
    [("none", 2 * 2), ("optimizer", 2 * 2), ("gradients", 8 + 2)],
    ids=lambda value: str(value),
)
def test_what_is_not_divided_is_not_gathered(sharding, gradients):
    """There are two updates of four micro-batches each. Gradients are summed once per update, which takes twice their
    bytes. Or they are scattered after each micro-batch, and the weights gathered after each update."""
    work = replace(GRPO, sharding=sharding, minibatches=2, tokens_per_microbatch=400)
    own = replace(step_of(work), prompts=2)
    assert (own.updates, own.microbatches) == (2, 8)
    assert received(work) == {"policy": pytest.approx(7 / 8 * 4 * SHAPE.parameters * gradients)}


def test_a_critic_tells_its_gradients_too():
    found = received(replace(GRPO, algorithm="ppo", needs=frozenset({"values"}), critic="separate"))
    assert found["critic"] / found["policy"] == pytest.approx(SHAPE.trunk_parameters / SHAPE.parameters)
    divided = received(replace(GRPO, algorithm="ppo", needs=frozenset({"values"}), critic="separate", sharding="full"))
    head = 7 / 8 * 4 * SHAPE.counts.head  # for one micro-batch: a critic has no trained head
    assert divided["policy"] - divided["critic"] == pytest.approx(head, rel=1e-3)
    adapters = received(replace(GRPO, lora=Adapters(rank=16)))["policy"]
    assert adapters == pytest.approx(7 / 8 * 2 * 4 * SHAPE.lora_parameters(16))


def test_an_engine_of_its_own_sums_two_outputs_per_layer_and_is_sent_the_weights():
    """In bfloat16 over 4 devices: 256 prompt tokens of 16 prompts and 100 of each of 64 answers, with embeddings."""
    found = received(replace(GRPO, needs=frozenset(), engine="separate", engine_ranks=4))
    tokens = 16 * (256 + 4 * 100)
    assert found["answers"] == pytest.approx(2 * 3 / 4 * (2 * SHAPE.layers + 1) * tokens * SHAPE.hidden * 2)
    assert found["weights to the sampler"] * 4 == pytest.approx(2 * SHAPE.parameters)


@catalogue("precision", ["float32", "bfloat16"])
@catalogue("place", [0, 1], ids=["2.7M", "110M"])
@catalogue(
    "task, rows, kind",
    [
        ("grpo", 8, "prompts"),
        ("dpo", 16, "pairs"),
        ("sft", 32, "examples"),
    ],
)
def test_measured_steps_took_half_to_twice_what_is_planned(task, rows, kind, place, precision):
    """The steps resemble those of docs/speed.md. The rates of float32 and of memory were measured on the same machine,
    and the shares are assumed. The GRPO steps are from before sampling had compiled kernels."""
    measured = json.loads(MEASURED.read_text())
    assert len({json.dumps(origin["machine"], sort_keys=True) for origin in measured["origins"].values()}) == 1
    entry, limits = measured[task][place], measured["machine_limits"]
    hardware = this_processor(2**34, (limits["float32"] * 1e9, limits["memory_gb_per_s"] * 1e9), facts=AVX512)
    answer = entry["tokens"]["sampled"] // 64
    work = Workload(
        architecture=architecture_of({**entry["model"], "model_type": "llama"}),
        algorithm=task,
        needs=frozenset(),
        data_kind=kind,
        prompts_per_step=rows,
        prompt_tokens=(entry["tokens"]["real"] - entry["tokens"]["sampled"]) // 64,
        completion_tokens=128,
        mean_completion_tokens=answer,
        precision=precision,
    )
    took = entry["sides"][f"posttrain {precision}"]
    planned = cost_of_step(work, hardware).seconds
    assert 0.5 < planned / (took.get("time/sample", 0.0) + took["time/train"]) < 2
