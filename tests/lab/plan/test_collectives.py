"""Traffic between ranks, compared with numbers by hand: bytes, steps, seconds, and exposed waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from posttrain.lab.plan.architecture import read_architecture
from posttrain.lab.plan.collectives import Collective, Kind, together, told
from posttrain.lab.plan.cost import Work
from posttrain.lab.plan.hardware import find_hardware
from posttrain.lab.plan.mesh import Group
from posttrain.lab.plan.records import Adapters, Workload
from posttrain.lab.plan.timing import cost_of_step

H100 = find_hardware("64xh100")
"""Expected rates: 360 GB/s between devices of a machine, and 40 GB/s from each device to other machines."""
MACHINE = Group(8, 8)
EIGHT_MACHINES = Group(64, 8)
ONE_OF_EACH = Group(8, 1)


def one(kind: Kind, size: float, group: Group, times: float = 1.0) -> Collective:
    (found,) = told(kind, size, group, times)
    return found


# --- one collective --------------------------------------------------------------------------------------------------


def test_gathering_inside_a_machine_takes_seven_eighths_over_the_link_and_seven_steps():
    gather = one("all-gather", 3.6e9, MACHINE)
    assert (gather.received, gather.across, gather.steps) == (3.15e9, 0.0, (7, 0))
    assert gather.seconds(H100) == pytest.approx(3.15e9 / 360e9 + 8.4e-6 + 7 * 3.4e-6)


def test_rings_enter_a_machine_through_all_of_its_cards():
    """64 ranks take 63 steps, 7 of them between machines. 8 cards of 40 GB/s receive 320 GB/s."""
    gather = one("all-gather", 3.2e9, EIGHT_MACHINES)
    assert gather.steps == (56, 7)
    assert gather.across == gather.received / 8 == 63 / 64 * 3.2e9 / 8
    assert gather.seconds(H100) == pytest.approx(63 / 64 * 3.2e9 / 320e9 + 8.4e-6 + 56 * 3.4e-6 + 7 * 14e-6)


def test_a_group_with_one_rank_on_each_machine_has_one_card():
    summed = one("all-reduce", 1e9, ONE_OF_EACH)
    assert (summed.received, summed.steps) == (2 * 7 / 8 * 1e9, (0, 14))
    assert summed.seconds(H100) == pytest.approx(2 * 7 / 8 * 1e9 / 40e9 + 8.4e-6 + 14 * 14e-6)


def test_a_fast_network_is_no_faster_than_the_link():
    fast = replace(H100, device=replace(H100.device, network=1e12))
    gather = one("all-gather", 3.2e9, EIGHT_MACHINES)
    assert gather.seconds(fast) == pytest.approx(63 / 64 * 3.2e9 / 360e9 + 8.4e-6 + 56 * 3.4e-6 + 7 * 14e-6)


def test_a_short_message_goes_by_the_protocol_with_the_least_latency():
    """The LL protocol takes 6.6 us, plus 14 steps of 0.6 us, at half of the bandwidth."""
    summed = one("all-reduce", 1000, MACHINE)
    assert summed.seconds(H100) == pytest.approx(6.6e-6 + 14 * 0.6e-6 + 2 * 7 / 8 * 1000 / 180e9)


def test_three_times_take_three_times_as_long_and_nobody_talks_alone():
    once, thrice = (one("all-gather", 1e9, MACHINE, times).seconds(H100) for times in (1, 3))
    assert thrice == pytest.approx(3 * once)
    assert told("all-reduce", 1e9, Group(1, 1)) == ()
    assert told("all-reduce", 0, MACHINE) == ()


def test_scattering_and_gathering_are_one_all_reduce():
    parts = [one(kind, 1e10, EIGHT_MACHINES) for kind in ("reduce-scatter", "all-gather")]
    whole = one("all-reduce", 1e10, EIGHT_MACHINES)
    assert sum(part.received for part in parts) == whole.received
    assert sum(part.seconds(H100) for part in parts) == pytest.approx(
        whole.seconds(H100) + 8.4e-6
    )  # two starts instead of one


def test_those_of_a_kind_and_group_are_told_together():
    first, second = one("all-gather", 1e9, MACHINE, 2), one("all-gather", 5e8, MACHINE)
    (found,) = together([first, second], H100)
    assert (found.times, found.received) == (3, 7 / 8 * 2.5e9)
    assert found.latency + found.bandwidth == pytest.approx(first.seconds(H100) + second.seconds(H100))


# --- waiting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flops", "hidden", "waits"), [(10.0, True, 0.0), (1.0, True, 1.5), (10.0, False, 2.5)])
def test_what_goes_on_meanwhile_is_waited_for_as_far_as_it_outlasts_the_computation(flops, hidden, waits):
    """A gather of 2.5 s overlaps with 10 s or 1 s of computation."""
    messages = told("all-gather", 2.5 * 360e9 * 8 / 7, MACHINE, hidden=hidden)
    work = Work(flops=flops * H100.rate("bfloat16"), messages=messages)
    assert work.waiting(H100, "bfloat16") == pytest.approx(waits, abs=1e-4)
    assert work.seconds(H100, "bfloat16") == pytest.approx(flops + waits, abs=1e-4)


# --- traffic of a step -----------------------------------------------------------------------------------------------

SHAPE = read_architecture("70b")
ROOT = 2 * 128256 * 8192
LAYER = (SHAPE.parameters - ROOT) / 80
SFT = Workload(
    architecture=SHAPE, algorithm="sft", needs=frozenset(), data_kind="examples", prompts_per_step=128,
    prompt_tokens=1, completion_tokens=4095, tokens_per_microbatch=4096, precision="bfloat16", device="cuda",
    gradient_checkpointing=True, ranks=64, sharding="full",
)  # fmt: skip
"""Two micro-batches of one row on each of 64 ranks."""


def received(workload: Workload) -> dict[tuple[str, Group], float]:
    """Return the bytes that one rank receives, by kind and group."""
    messages = cost_of_step(workload, H100).messages("train")
    return {(found.kind, found.group): found.received for found in together(messages, H100)}


def test_full_sharding_gathers_layers_twice_and_the_root_once_in_a_micro_batch_and_scatters_float32():
    assert received(SFT) == {
        ("all-gather", EIGHT_MACHINES): pytest.approx(2 * 63 / 64 * 4 * (2 * 80 * LAYER + ROOT)),
        ("reduce-scatter", EIGHT_MACHINES): pytest.approx(2 * 63 / 64 * 4 * SHAPE.parameters),
    }
    narrow = received(replace(SFT, reduced="bfloat16"))
    assert narrow["reduce-scatter", EIGHT_MACHINES] == pytest.approx(2 * 63 / 64 * 2 * SHAPE.parameters)


def test_frozen_matrices_travel_as_they_are_held():
    """The matrices travel in the products' precision. Norms, embeddings and head of a frozen model stay float32."""
    norms = 2 * SHAPE.hidden
    frozen = sum(
        one.received
        for one in cost_of_step(replace(SFT, lora=Adapters(rank=16)), H100).messages("train")
        if one.kind == "all-gather"
    )
    layer = 2 * (LAYER - norms) + 4 * norms
    assert frozen == pytest.approx(2 * 63 / 64 * (2 * 80 * layer + 4 * ROOT), rel=1e-4)


def test_weights_that_others_cast_before_they_are_gathered_are_half_as_many_bytes():
    """Libraries whose published speeds are predicted do so (benchmarks/published). No run here does."""
    cast = received(replace(SFT, gathered="bfloat16"))
    assert cast["all-gather", EIGHT_MACHINES] == pytest.approx(received(SFT)["all-gather", EIGHT_MACHINES] / 2)
    assert cast["reduce-scatter", EIGHT_MACHINES] == received(SFT)["reduce-scatter", EIGHT_MACHINES]


def test_the_root_two_layers_and_the_last_sums_are_waited_for():
    """Exposed per micro-batch: root and first layer forward, last layer backward, the sums of first layer and root."""
    messages = cost_of_step(SFT, H100).messages("train")
    alone = sum(found.received for found in messages if not found.hidden)
    assert alone == pytest.approx(2 * 63 / 64 * (4 * (ROOT + 2 * LAYER) + 4 * (ROOT + LAYER)))


def test_hybrid_sharding_keeps_to_the_machine_and_sums_an_eighth_among_the_machines():
    assert received(replace(SFT, sharding="hybrid")) == {
        ("all-gather", MACHINE): pytest.approx(2 * 7 / 8 * 4 * (2 * 80 * LAYER + ROOT)),
        ("reduce-scatter", MACHINE): pytest.approx(2 * 7 / 8 * 4 * SHAPE.parameters),
        ("all-reduce", ONE_OF_EACH): pytest.approx(2 * 2 * 7 / 8 * 4 * SHAPE.parameters / 8),
    }


def test_divided_matrices_sum_two_outputs_a_layer_forward_again_and_backward():
    """8 tensor groups of 8 have 16 rows each. A recomputed layer takes 6 sums. Embedding and head are gathered."""
    states = 16 * 4096 * 8192 * 2
    found = received(replace(SFT, tensor=8))
    assert found["all-reduce", MACHINE] == pytest.approx(2 * 7 / 8 * states * (6 * 80), rel=1e-3)
    without = received(replace(SFT, tensor=8, gradient_checkpointing=False))
    assert without["all-reduce", MACHINE] == pytest.approx(2 * 7 / 8 * states * (4 * 80), rel=1e-3)
    outside = 4 * (SHAPE.counts.embeddings + SHAPE.counts.head)
    assert found["all-gather", MACHINE] == pytest.approx(16 * 7 / 8 * outside, rel=1e-3)
    assert found["reduce-scatter", ONE_OF_EACH] == pytest.approx(16 * 7 / 8 * 4 * SHAPE.parameters / 8, rel=1e-3)


def test_adapters_scatter_their_own_gradients_alone():
    found = received(replace(SFT, lora=Adapters(rank=16)))
    assert found["reduce-scatter", EIGHT_MACHINES] == pytest.approx(2 * 63 / 64 * 4 * SHAPE.lora_parameters(16))


def test_each_engine_has_its_own_prompts_and_sums_inside_of_itself():
    grpo = Workload(
        architecture=SHAPE, algorithm="grpo", needs=frozenset(), precision="bfloat16", device="cuda",
        engine="separate", engine_ranks=16, engine_tensor=8, prompts_per_step=32,
    )  # fmt: skip
    half = replace(grpo, engine_ranks=8, prompts_per_step=16)
    one_engine, two_engines = (cost_of_step(work, H100) for work in (half, grpo))
    assert two_engines.of("generate") == one_engine.of("generate")
    assert two_engines.parts[0].work.flops == pytest.approx(2 * one_engine.parts[0].work.flops)
    assert {found.group for found in two_engines.messages("generate")} == {MACHINE}


def test_one_rank_tells_nobody_anything():
    assert cost_of_step(replace(SFT, ranks=1, sharding="none"), H100).messages("train") == ()
