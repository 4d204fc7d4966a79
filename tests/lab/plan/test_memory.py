"""The planner's bytes: the library's own numbers, roles, limits, and two real steps measured for comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.algorithms import ALGORITHMS
from posttrain.config import load_config
from posttrain.lab.plan.activations import Pass
from posttrain.lab.plan.architecture import Linear, read_architecture
from posttrain.lab.plan.generate import columns
from posttrain.lab.plan.layout import Grid, lay_out, microbatches
from posttrain.lab.plan.phases import predict
from posttrain.lab.plan.records import Adapters, MemoryPlan, Workload
from posttrain.lab.plan.workload import model_architecture, workload_of
from posttrain.models.compute import DTYPES, Compute

RUN: dict[str, Any] = {
    "model": "tiny:sort",
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "train": {"steps": 2, "prompts_per_step": 8},
}


def workload(algorithm: str, **fields: Any) -> Workload:
    """Return a step of a model with half a billion parameters."""
    made = ALGORITHMS[algorithm](**fields.pop("settings", {}))
    found = {"architecture": read_architecture("0.5b"), "needs": made.needs, "data_kind": made.data_kind}
    if "values" in found["needs"]:
        found["critic"] = "separate"
    return Workload(algorithm=algorithm, **{**found, **fields})


def plan(algorithm: str, **fields: Any) -> MemoryPlan:
    return predict(workload(algorithm, **fields))


# --- what a step computes ---------------------------------------------------------------------------------------------


def test_the_old_pass_is_planned_where_training_makes_it() -> None:
    """RULE 6 requires it with several updates, dropout or coupled rows, but never if the ratio is centred at the
    sampler. `correction: auto` centres it there for some algorithms as soon as sampling is not exact."""

    def planned(name: str, precision: Literal["float32", "bfloat16"], **changes: Any) -> bool:
        config = load_config(RUN | {"algorithm": name}, changes).config
        return workload_of(config, computing=Compute(dtype=DTYPES[precision])).old_pass

    several = {"train.minibatches": 2}
    assert [planned("grpo", "float32", **how) for how in ({}, several, {"lora.dropout": 0.1})] == [False, True, True]
    assert planned("grpo", "float32", **{"algorithm.correction": "m2po"})
    assert not planned("grpo", "float32", **several, **{"algorithm.correction": "bypass"})
    assert planned("cispo", "float32", **several)
    assert not planned("cispo", "bfloat16", **several)
    assert not planned("cispo", "float32", **several, **{"train.publish_every": 2})


# --- roles -----------------------------------------------------------------------------------------------------------


def test_ppo_holds_four_models_grpo_with_a_reference_two_and_simpo_one() -> None:
    policy = read_architecture("0.5b")
    ppo = plan("ppo", settings={"kl_coef": 0.05}, reward_models=(policy,))
    assert set(ppo.models) == {"policy", "critic", "reference", "reward model"}
    assert set(plan("grpo", settings={"kl_coef": 0.04}).models) == {"policy", "reference"}
    assert plan("grpo", settings={"kl_coef": 0.0}).models == ("policy",)
    assert plan("simpo").models == ("policy",)
    assert plan("dpo").models == ("policy",)  # the reference's log-probabilities are on disk before the first step
    assert plan("grpo", settings={"kl_coef": 0.04}, lora=Adapters()).models == (
        "policy",
    )  # the base model is the reference


def test_a_reference_of_given_data_stays_in_memory_only_over_ranks() -> None:
    """One process drops a separate reference after its pass over the rows. Ranks keep their parts."""
    other = read_architecture("0.5b")
    alone, apart = (plan("dpo", reference=other, ranks=ranks, sharding="full") for ranks in (1, 4))
    (train,) = apart.phases
    assert alone.models == plan("dpo", ranks=4, sharding="full").models == ("policy",)
    assert train.of("reference", "weights") == train.of("policy", "weights") == other.parameters  # 4 bytes, 4 ranks
    assert plan("dpo", reference=other, rank_processes=3).models == ("policy", "reference")


def test_a_reference_of_given_data_is_beside_the_policy_before_the_first_step() -> None:
    """It is loaded in float32. Adapters need less in a step than that; training all weights needs more."""
    fields: dict[str, Any] = {"device": "cuda", "precision": "bfloat16", "prompts_per_step": 1, "completion_tokens": 8}
    other = read_architecture("0.5b")
    (adapted,) = plan("dpo", reference=other, lora=Adapters(), **fields).phases
    assert adapted.moment == "reference's pass over the rows"
    assert adapted.bytes == adapted.of("policy", "weights") + adapted.of("policy", "adapters") + 4 * other.parameters
    assert plan("dpo", reference=other, **fields).phases == plan("dpo", **fields).phases


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_pass_of_a_reference_in_float32_is_counted_beside_its_weights(device: str) -> None:
    """Its weights stay float32, so what it computes comes on top, and longer rows need more."""
    other = read_architecture("7b")

    def beyond_the_weights(tokens: int) -> int:
        fields: dict[str, Any] = {"device": device, "prompts_per_step": 1, "completion_tokens": tokens}
        (train,) = plan("dpo", reference=other, lora=Adapters(), precision="float32", **fields).phases
        assert train.moment == "reference's pass over the rows"
        held = train.of("policy", "weights") + train.of("policy", "adapters")
        return train.bytes - held - 4 * other.parameters

    assert 0 < beyond_the_weights(8) < beyond_the_weights(256)


def test_what_stays_follows_from_the_parameters() -> None:
    train = plan("ppo", settings={"kl_coef": 0.05}).phase("train")
    assert train is not None
    parameters = read_architecture("0.5b").parameters
    assert train.of("policy", "weights") == train.of("reference", "weights") == 4 * parameters
    assert train.of("policy", "optimizer state") == 8 * parameters
    assert train.of("critic", "weights") == 4 * (parameters + 896)  # tied: the trunk is everything, plus a scalar head
    assert train.of("critic", "optimizer state") == 2 * train.of("critic", "weights")


def test_a_frozen_model_holds_its_linear_layers_in_the_precision_of_the_run() -> None:
    train = plan("grpo", settings={"kl_coef": 0.05}, precision="bfloat16").phase("train")
    assert train is not None
    parameters = read_architecture("0.5b").parameters
    attention = (896 * 896 + 896) + 2 * (896 * 128 + 128) + 896 * 896
    linear = 24 * (attention + 3 * 896 * 4864)
    assert train.of("reference", "weights") == 2 * linear + 4 * (parameters - linear)
    assert train.of("policy", "weights") == 4 * parameters


def test_critic_free_training_needs_about_half_of_ppo() -> None:
    ppo, grpo = plan("ppo", settings={"kl_coef": 0.0}), plan("grpo", settings={"kl_coef": 0.0})
    assert 0.4 < grpo.bytes / ppo.bytes < 0.6


def test_adapters_take_their_own_gradients_and_moments_only() -> None:
    rank = 8
    train = plan("sft", lora=Adapters(rank=rank)).phase("train")
    assert train is not None
    trained = read_architecture("0.5b").lora_parameters(rank)
    assert train.of("policy", "optimizer state") == 8 * trained
    assert train.of("policy", "adapters") == 4 * trained


def test_on_a_gpu_the_base_of_adapters_is_half_as_large_but_for_a_moment() -> None:
    """Linear layers take 2 bytes per weight, and the rest takes 4. While the model is loaded, all of it takes 4."""
    on_gpu = plan("grpo", lora=Adapters(rank=16), device="cuda", precision="bfloat16", completion_tokens=8)
    a = on_gpu.workload.architecture
    linear = sum(number * layer.parameters for number, block in a.blocks for layer in block.linears)
    (held,) = [part for part in on_gpu.phases[0].parts if part.role == "policy" and part.what == "weights"]
    assert held.bytes == 2 * linear + 4 * (a.parameters - linear)
    assert max(phase.bytes for phase in on_gpu.phases) >= 4 * a.parameters
    on_cpu = plan("grpo", lora=Adapters(rank=16), precision="bfloat16")
    assert [part.bytes for part in on_cpu.phases[0].parts if part.what == "weights"] == [4 * a.parameters]


def test_checkpointing_and_shorter_micro_batches_take_less() -> None:
    whole = plan("sft", tokens_per_microbatch=4096)
    assert plan("sft", tokens_per_microbatch=4096, gradient_checkpointing=True).bytes < whole.bytes
    assert plan("sft", tokens_per_microbatch=1024).bytes < whole.bytes


@pytest.mark.parametrize("stage", ["optimizer", "gradients", "full"])
def test_sharding_divides_what_its_stage_says(stage: str) -> None:
    alone = plan("sft").phase("train")
    shared = plan("sft", ranks=8, sharding=stage, prompts_per_step=128).phase("train")
    assert alone is not None
    assert shared is not None
    for what, stages in (("optimizer state", "optimizer gradients full"), ("weights", "full")):
        by = 8 if stage in stages.split() else 1
        assert shared.of("policy", what) == alone.of("policy", what) // by
    assert any("ZeRO" in note for note in plan("sft", ranks=8, sharding=stage).notes)


def test_divided_weights_come_together_layer_by_layer_so_that_more_ranks_need_less() -> None:
    """At 64 ranks a rank of the 70B model has 16 N / 64 bytes of state. All weights gathered would take 4 N more."""
    shape = read_architecture("70b")
    fields: dict[str, Any] = {"sharding": "full", "precision": "bfloat16", "device": "cuda"}
    fields |= {"gradient_checkpointing": True}
    plans = [plan("grpo", architecture=shape, ranks=ranks, **fields) for ranks in (8, 16, 64)]
    assert plans[0].bytes > plans[1].bytes > plans[2].bytes
    table, layer = shape.vocabulary * shape.hidden, 856e6
    state = 16 * shape.parameters / 64
    gathered = 4 * (2 * layer + 2 * table)
    summed = (4 + 4) * layer + 4 * table  # a layer's gradient and the copy that is sent, and the head's gradient
    peak = plans[2].peak
    assert peak.moment == "sum of the policy's last layer"
    assert peak.bytes - peak.of("policy", "activations") == pytest.approx(state + gathered + summed, rel=0.02)
    whole = plan("grpo", architecture=shape, **{**fields, "sharding": "none"})
    assert whole.bytes > (16 + 2 * 0.95) * shape.parameters, "without sharding, all casts live until the pass has ended"


def test_divided_weights_come_together_in_float32_and_products_keep_their_casts_of_them() -> None:
    """Activations grow with the rows of a micro-batch. Extrapolated to no rows, the casts remain: 2 bytes for each
    number in a layer's matrices."""
    fields = {"sharding": "full", "precision": "bfloat16", "device": "cuda", "ranks": 8, "prompts_per_step": 64}

    def kept(rows: int) -> int:
        train = plan("sft", tokens_per_microbatch=rows * 512, prompt_tokens=256, completion_tokens=256, **fields)
        return train.phase("train").of("policy", "activations")  # pyright: ignore[reportOptionalMemberAccess]

    shape = read_architecture("0.5b")
    matrices = sum(number * layer.parameters for number, block in shape.blocks for layer in block.linears)
    assert 2 * kept(1) - kept(2) == pytest.approx(2 * matrices, rel=0.01)
    generate = plan("grpo", **fields).phase("generate")
    assert generate is not None
    outside = shape.counts.embeddings + shape.counts.head
    layers = 2 * (shape.counts.total - outside) / shape.layers
    assert generate.of("policy", "gathered layers") == pytest.approx(4 * (layers + outside), rel=1e-6)


def test_ppo_of_seven_billion_on_eight_devices_is_what_is_worked_out_by_hand() -> None:
    """Policy and critic take 16 N / 8 each and the reference 4 N / 8: 32 GiB. Activations of two models take 10 GiB
    each. Products keep casts of 2 N for each model: 28 GiB."""
    fields = {"sharding": "full", "precision": "bfloat16", "device": "cuda", "settings": {"kl_coef": 0.05}}
    found = plan("ppo", architecture=read_architecture("7b"), ranks=8, prompts_per_step=2, **fields)
    assert found.bytes / 2**30 == pytest.approx(32 + 20 + 28, rel=0.1)


def test_experts_are_cast_too_and_a_shared_one_does_not_hide_them() -> None:
    layout = lay_out(129, 64, [1] * 4, prefix=0)
    mixed = read_architecture("30b-a3b")
    fields = {"needs": frozenset(), "precision": "bfloat16", "device": "cuda"}
    passed = Pass.of(Workload(architecture=mixed, algorithm="sft", **fields), mixed, layout, adapters=None)
    assert passed.cached_casts > 2 * mixed.counts.experts
    _, block = mixed.blocks[0]
    chosen = block.mixture.per_token * block.mixture.width
    small = Linear("down", chosen // 4, mixed.hidden)
    beside = replace(mixed, blocks=((1, replace(block, mlp=(small,))),))
    assert replace(passed, architecture=beside).widest_mlp == passed.widest_mlp == chosen


def test_an_engine_of_its_own_holds_its_copy_on_its_own_devices() -> None:
    found = plan("grpo", engine="separate", engine_ranks=2, precision="bfloat16", device="cuda")
    generate = found.phase("generate")
    assert generate is not None
    assert generate.place == "engine"
    assert generate.of("sampler", "copy of the weights") == read_architecture("0.5b").parameters
    assert found.peak.place == "trainer"
    assert found.peak.of("sampler", "keys and values") == 0


def test_moments_in_eight_bits_take_a_quarter_and_a_scale() -> None:
    wide, narrow = plan("sft").phase("train"), plan("sft", optimizer_bits=8).phase("train")
    assert wide is not None
    assert narrow is not None
    ratio = narrow.of("policy", "optimizer state") / wide.of("policy", "optimizer state")
    assert ratio == pytest.approx((1 + 4 / 256) / 4, rel=1e-6)


@given(
    algorithm=st.sampled_from(["sft", "dpo", "grpo", "ppo"]),
    rows=st.integers(1, 64),
    tokens=st.integers(64, 8192),
    prompt=st.integers(1, 600),
    completion=st.integers(1, 600),
)
def test_every_workload_has_a_plan_and_more_of_anything_never_takes_less(
    algorithm: str, rows: int, tokens: int, prompt: int, completion: int
) -> None:
    fields = {"prompt_tokens": prompt, "completion_tokens": completion, "tokens_per_microbatch": tokens}
    small = plan(algorithm, prompts_per_step=rows, **fields)
    assert all(part.bytes >= 0 for phase in small.phases for part in phase.parts)
    bigger = replace(small.workload, architecture=read_architecture("1.5b"))
    assert predict(bigger).bytes > small.bytes


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_micro_batches_are_those_of_the_library() -> None:
    """A group of four with a prompt of 31, as rows of 71, takes 31 + 4 * 39 + ... tokens: each prefix counts once."""
    step = workload("grpo", prompts_per_step=4, group_size=4, prompt_tokens=31, completion_tokens=40)
    found = microbatches(replace(step, tokens_per_microbatch=1024))
    assert (found.number, found.largest.tokens, found.largest.scored) == (1, 4 * (31 + 4 * 39), 640)
    assert found.largest.grids == (Grid(4, 70), *[Grid(3, 39, 31)] * 4)
    assert microbatches(replace(step, tokens_per_microbatch=400)).number == 2
    split = microbatches(replace(step, tokens_per_microbatch=128))
    assert (split.number, split.largest.tokens) == (8, 31 + 2 * 39)


@given(
    prompts=st.integers(1, 6), group=st.integers(1, 5), prompt=st.integers(17, 40), completion=st.integers(2, 30),
    budget=st.integers(30, 400),
)  # fmt: skip
def test_micro_batches_of_rows_of_one_length_are_what_planning_real_rows_gives(
    prompts: int, group: int, prompt: int, completion: int, budget: int
) -> None:
    from posttrain.models.microbatches import plan_units
    from posttrain.models.packing import Family

    step = workload("grpo", prompts_per_step=prompts, group_size=group)
    step = replace(step, prompt_tokens=prompt, completion_tokens=completion, tokens_per_microbatch=budget)
    rows, needed = range(prompts * group), prompt + completion - 1
    families = [Family(tuple(rows[g * group : (g + 1) * group]), prompt if group > 1 else 0) for g in range(prompts)]
    planned = plan_units([[row] for row in rows], families, [needed] * len(rows), budget)

    def tokens(part: list[int]) -> int:
        begun = {row // group for row in part}
        return len(begun) * prompt + len(part) * (needed - prompt)

    found = microbatches(step)
    assert found.largest.tokens == pytest.approx(max(map(tokens, planned)), rel=0.34)
    assert abs(found.number - len(planned)) <= max(1, len(planned) // 3)


@given(st.integers(1, 300), st.integers(0, 300))
def test_columns_suffice_and_are_at_most_half_too_many(first: int, more: int) -> None:
    found = columns(first, first + more)
    assert first + more <= found <= max(first + 31, 1.5 * (first + more + 31))


# --- configurations --------------------------------------------------------------------------------------------------


def test_a_configuration_becomes_the_workload_of_its_run() -> None:
    config = load_config(
        {
            "model": "tiny:sort",
            "lora": {"rank": 4},
            "algorithm": {"name": "ppo", "kl_coef": 0.05},
            "data": {"train": "task:sort", "max_prompt_length": 24},
            "rewards": [{"name": "exact_match"}],
            "sampling": {"group_size": 1, "max_completion_length": 8},
            "train": {"steps": 2, "gradient_checkpointing": True},
        }
    ).config
    found = workload_of(config)
    assert (found.critic, found.lora, found.old_pass) == ("lora", Adapters(rank=4), True)
    assert (found.prompt_tokens, found.completion_tokens, found.rows) == (24, 8, 16)
    assert found.precision == "float32"
    assert workload_of(config, computing=Compute(dtype=DTYPES["bfloat16"], sampler="packed")).engine == "copy"


@pytest.mark.parametrize("name", ["tiny:sort", "tiny-moe:sort", "tiny-wide:sort"])
def test_built_in_models_are_counted_without_being_built(name: str) -> None:
    from posttrain.tasks.catalogue import find_builtin
    from posttrain.tasks.tiny import build_model, build_tokenizer

    form, _, task = name.partition(":")
    recipe = find_builtin(task).in_form(form).tiny
    model = build_model(build_tokenizer(), recipe, seed=0)
    assert model_architecture(name).parameters == sum(p.numel() for p in model.parameters())
