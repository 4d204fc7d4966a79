"""Rows with a common prefix compute it once, and nothing else changes: no value, no gradient."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples, few
from tests.models.tiny_architectures import (
    CONFIGS,
    PADDED,
    VOCAB,
    gradients,
    one_row_at_a_time,
    tiny_model,
)
from torch import Tensor, nn

from posttrain.config import LoRAConfig
from posttrain.data.collate import collate
from posttrain.models.adapters import apply_lora
from posttrain.models.forward import token_logprobs, token_values
from posttrain.models.forward_path import forward_path
from posttrain.models.packing import LEAST_SAVING, Family, find_families, make_buckets, pack, pack_whole
from posttrain.testing.on_a_model import exact_norms
from posttrain.types import Tokens

EXACT = {
    "dense": "gpt2, learned positions",
    "grouped heads": "llama, grouped heads",
    "tied embeddings": "qwen3, tied",
    "sliding window": "mistral, sliding window",
    "experts": "qwen3-moe, experts",
}
"""Architectures that are float64 throughout if their norms are (`exact_norms`)."""
OWN_MASKS = ("gemma2, soft caps and sliding window", "gpt-oss, sinks", "llama4, chunked attention")
"""Architectures whose masks or scores no member of `EXACT` has."""


def groups(prompts: Sequence[int], completions: Sequence[Sequence[int]], seed: int = 0) -> tuple[Tokens, Tensor]:
    """Rows of random ids: prompts of these lengths, each with completions of these lengths."""
    dice = random.Random(seed)

    def draw(n: int) -> list[int]:
        return [dice.randrange(3, VOCAB) for _ in range(n)]

    rows = []
    for length, answers in zip(prompts, completions, strict=True):
        prompt = draw(length)
        rows += [(prompt, draw(answer)) for answer in answers]
    return collate(rows, pad_id=0)


def step() -> tuple[Tokens, Tensor]:
    """A group with an empty completion, two equal prompts that are not neighbours, a pair, a group of one."""
    tokens, mask_BT = groups([18, 20, 25, 4], [[6, 1, 9, 3], [0, 4, 1], [7, 12], [11]])
    again = tokens.input_ids_BT.clone()
    again[0, :18], again[8, :18] = tokens.input_ids_BT[0, :18], tokens.input_ids_BT[0, :18]
    return Tokens(input_ids_BT=again, lengths_B=tokens.lengths_B), mask_BT


def weights_of(mask_BT: Tensor) -> Tensor:
    return torch.linspace(-1, 2, mask_BT.numel(), dtype=torch.float64).view_as(mask_BT)


def loss_and_gradient(model: nn.Module, tokens: Tokens, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and gradient: every log-probability and every entropy has a different weight."""
    outputs = token_logprobs(model, tokens, mask_BT, temperature=0.7, with_entropy=True, chunk_tokens=5)
    weights_BT = weights_of(mask_BT)
    loss = (weights_BT * outputs.logprobs_BT - weights_BT.flip(0) * outputs.entropy_BT).sum()
    return loss.detach(), flat(gradients(loss, model))


def plain_loss_and_gradient(model: nn.Module, tokens: Tokens, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The same loss and gradient, by one plain forward pass per row."""
    logprobs_BT, entropy_BT = one_row_at_a_time(model, tokens, mask_BT, temperature=0.7)
    weights_BT = weights_of(mask_BT)
    loss = (weights_BT * logprobs_BT - weights_BT.flip(0) * entropy_BT).sum()
    return loss.detach(), flat(gradients(loss, model))


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in tensors])


def assert_same(actual: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], tolerance: float) -> None:
    """The tolerance is relative to the loss, and to the largest entry of the gradient."""
    scale = expected[1].abs().max()
    assert scale > 1e-3, "a gradient of zero proves nothing"
    assert abs(float(actual[0] - expected[0])) <= tolerance * max(1.0, abs(float(expected[0])))
    assert (actual[1] - expected[1]).abs().max() <= tolerance * scale


# the same numbers


@pytest.mark.parametrize(
    ("name", "lora"),
    few(
        [(name, lora) for lora in (False, True) for name in EXACT.values()],
        *((name, False) for kind, name in EXACT.items() if kind != "grouped heads"),
        (EXACT["grouped heads"], True),
    ),
    ids=[f"{kind}-{trained}" for trained in ("full", "lora") for kind in EXACT],
)
def test_in_float64_loss_and_gradient_are_those_of_single_rows(name, lora):
    """1e-10 of the largest entry; 1e-7 with experts, whose router has a softmax in float32."""
    model: nn.Module = exact_norms(tiny_model(name))
    if lora:
        model = with_adapters(model)
    tokens, mask_BT = step()
    expected = plain_loss_and_gradient(model, tokens, mask_BT)
    actual = loss_and_gradient(model, tokens, mask_BT)
    path = forward_path(model)
    assert path.shares_prefixes
    assert not path.note
    packed = path.pack(tokens, mask_BT)
    assert packed.num_tokens < 0.7 * packed.num_real_tokens
    assert_same(actual, expected, 1e-7 if "experts" in name else 1e-10)


def with_adapters(model: nn.Module) -> nn.Module:
    adapted = apply_lora(model, LoRAConfig(rank=4, alpha=8), seed=0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
    return adapted.double().eval()


@pytest.mark.parametrize("name", few(CONFIGS, *OWN_MASKS))
def test_every_architecture_shares_with_its_own_masks(name):
    """Sliding windows, chunks, soft caps, sinks. 1e-5: most have float32 norms, and the eager softmax is float32,
    too."""
    model = tiny_model(name, attention="eager" if name.startswith(("gemma", "gpt-oss", "llama,")) else "sdpa")
    tokens, mask_BT = step()
    expected = plain_loss_and_gradient(model, tokens, mask_BT)
    actual = loss_and_gradient(model, tokens, mask_BT)
    assert forward_path(model).shares_prefixes
    assert_same(actual, expected, 1e-5)


@pytest.mark.parametrize("name", few(EXACT.values(), EXACT["experts"]), ids=EXACT)
def test_in_float32_the_difference_is_rounding(name):
    model = tiny_model(name, dtype=torch.float32)
    tokens, mask_BT = step()
    assert_same(loss_and_gradient(model, tokens, mask_BT), plain_loss_and_gradient(model, tokens, mask_BT), 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", few(EXACT.values(), EXACT["sliding window"]), ids=EXACT)
def test_bfloat16_autocast_is_no_further_from_float32_than_single_rows_are(name):
    """The distance is at most twice as large, because shared and single rows round differently."""
    model = tiny_model(name, dtype=torch.float32)
    tokens, mask_BT = step()
    exact = plain_loss_and_gradient(model, tokens, mask_BT)[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        single = plain_loss_and_gradient(model, tokens, mask_BT)[1]
        shared = loss_and_gradient(model, tokens, mask_BT)[1]
    assert (shared - exact).norm() <= 2 * (single - exact).norm()


@examples(10, 20)
@given(st.randoms(use_true_random=False))
def test_any_rows_give_the_gradient_of_single_rows(dice):
    """Groups of one to four with completions that may be empty or equal, gaps in the mask, rows in any order."""
    model = MODEL
    rows: list[tuple[list[int], list[int]]] = []
    for _ in range(dice.randint(1, 3)):
        prompt = [dice.randrange(3, VOCAB) for _ in range(dice.randint(1, 24))]
        prompt = rows[0][0] if rows and dice.random() < 0.3 else prompt
        for _ in range(dice.randint(1, 4)):
            new = [dice.randrange(3, VOCAB) for _ in range(dice.choice((0, 1, 2, 5, 12)))]
            rows.append((prompt, rows[-1][1] if rows and dice.random() < 0.2 else new))
    dice.shuffle(rows)
    tokens, mask_BT = collate(rows, pad_id=0)
    gaps_BT = torch.tensor([[dice.random() < 0.2 for _ in row] for row in mask_BT.tolist()], dtype=torch.bool)
    mask_BT = mask_BT & ~gaps_BT.view_as(mask_BT)
    expected, actual = plain_loss_and_gradient(model, tokens, mask_BT), loss_and_gradient(model, tokens, mask_BT)
    scale = max(1.0, float(expected[1].abs().max()))
    assert abs(float(actual[0] - expected[0])) <= 1e-10 * max(1.0, abs(float(expected[0])))
    assert (actual[1] - expected[1]).abs().max() <= 1e-10 * scale


MODEL = tiny_model("gpt2, learned positions")


def test_the_values_of_a_critic_are_read_at_the_same_places():
    """The state before a completion's first token is one packed place, which every row of the group reads."""
    model, head = tiny_model("gpt2, learned positions"), nn.Linear(16, 1, dtype=torch.float64)
    tokens, mask_BT = step()
    values_BT = token_values(forward_path(model), head, tokens, mask_BT)
    for row, length in enumerate(tokens.lengths_B.tolist()):
        hidden_TD = model.transformer(input_ids=tokens.input_ids_BT[row, None, :length]).last_hidden_state[0]
        before_T = mask_BT[row, 1:length]
        torch.testing.assert_close(values_BT[row, 1:length][before_T], head(hidden_TD)[:-1, 0][before_T])


def test_gradient_checkpointing_shares_as_well():
    model = exact_norms(tiny_model("mistral, sliding window")).train()
    tokens, mask_BT = step()
    expected = loss_and_gradient(model, tokens, mask_BT)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_same(loss_and_gradient(model, tokens, mask_BT), expected, 1e-12)


@pytest.mark.parametrize("name", list(PADDED))
def test_what_cannot_be_packed_cannot_share_and_gives_the_same(name):
    model = tiny_model(name)
    tokens, mask_BT = step()
    path = forward_path(model)
    assert not path.shares_prefixes
    assert path.pack(tokens, mask_BT).num_tokens == path.pack(tokens, mask_BT).num_real_tokens
    expected = one_row_at_a_time(model, tokens, mask_BT, temperature=1.0)[0]
    actual = token_logprobs(model, tokens, mask_BT, temperature=1.0).logprobs_BT
    torch.testing.assert_close(actual, expected.double(), rtol=0, atol=1e-5)


def test_a_model_that_changes_when_prefixes_are_shared_is_packed_without_and_says_why():
    """This model adds the token right before each token, but only if prefixes are shared."""
    model = tiny_model("gpt2, learned positions")

    def mix(module: nn.Module, args: object, output: Tensor) -> Tensor:
        shared = output.shape[1] == 49 - 2 * 12  # the four rows of the probe, three of which share a prefix
        return output + output.roll(1, dims=1) if shared else output

    model.transformer.wte.register_forward_hook(mix)
    path = forward_path(model)
    assert path.attention == "packed"
    assert not path.shares_prefixes
    assert path.note == "shared prefixes: a row changes when it is run with others"


# which tokens are computed


@examples(25, 60)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=60), min_size=1, max_size=10), st.booleans())
def test_every_row_can_be_read_back_through_its_segments(rows, whole):
    """The ids at the places of a row are the row; each segment sees its prefix, which is the beginning of the row."""
    rows = [row * dice for row, dice in zip(rows, (1, 9, 20, 1, 3, 1, 2, 8, 1, 1), strict=False)]
    tokens, _ = collate([(row, ()) for row in rows], pad_id=0)
    mask_BT = torch.arange(tokens.input_ids_BT.shape[1]) < tokens.lengths_B[:, None]
    mask_BT[:, 0] = False
    packed = pack_whole(tokens) if whole else pack(tokens, mask_BT)
    ids_L = tokens.input_ids_BT.flatten()[packed.token_index_L]
    seen = {}
    for start, length, prefix_start, prefix_length in packed.segments:
        before = ids_L[prefix_start : prefix_start + prefix_length].tolist()
        for n in range(length):
            seen[start + n] = before + ids_L[start : start + n + 1].tolist()
    for row, places_T in zip(rows, packed.place_BT, strict=True):
        needed = len(row) if whole else len(row) - 1
        assert (places_T[needed:] == -1).all()
        for t, place in enumerate(places_T[:needed].tolist()):
            if place in seen:
                assert seen[place] == row[: t + 1]
            assert packed.position_ids_L[place] == t
    assert packed.num_real_tokens == sum(len(row) - (not whole) for row in rows)
    assert packed.num_tokens == len(ids_L) <= packed.num_real_tokens
    assert sorted(set(packed.place_BT[packed.place_BT >= 0].tolist())) == list(range(packed.num_tokens))
    buckets = make_buckets(packed.segments, torch.device("cpu"))
    assert [b.start for b in buckets] + [packed.num_tokens] == [0, *(b.stop for b in buckets)]


@examples(20, 40)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=5))
def test_families_save_as_much_as_any_partition_could(rows):
    """Each token stands for ten, so that families pay off; the test tries every partition of the rows."""
    rows = [[token for token in row for _ in range(10)] for row in rows]
    tokens, _ = collate([(row, ()) for row in rows], pad_id=0)
    families = find_families(tokens.input_ids_BT, tokens.lengths_B)
    assert sorted(row for family in families for row in family.rows) == list(range(len(rows)))
    for family in families:
        assert len({tuple(rows[row][: family.prefix]) for row in family.rows}) == 1
    assert saving([list(family.rows) for family in families], rows) == max(
        saving(parts, rows) for parts in partitions(list(range(len(rows))))
    )


def saving(parts: list[list[int]], rows: list[list[int]]) -> int:
    def common(part: list[int]) -> int:
        beginnings = zip(*(rows[row] for row in part), strict=False)
        return next((n for n, here in enumerate(beginnings) if len(set(here)) > 1), min(len(rows[row]) for row in part))

    return sum(max(0, (len(part) - 1) * common(part) - LEAST_SAVING) for part in parts if len(part) > 1)


def partitions(items: list[int]) -> list[list[list[int]]]:
    if not items:
        return [[]]
    first, rest = items[0], partitions(items[1:])
    return [
        grown
        for parts in rest
        for grown in (
            [[first], *parts],
            *([*parts[:i], [first, *parts[i]], *parts[i + 1 :]] for i in range(len(parts))),
        )
    ]


def test_a_saving_that_is_not_worth_a_call_of_attention_is_left():
    tokens, _ = collate([((7,) * 16, (1,)), ((7,) * 16, (2,))], pad_id=0)
    assert find_families(tokens.input_ids_BT, tokens.lengths_B) == [Family((0,), 0), Family((1,), 0)]
    tokens, _ = collate([((7,) * 17, (1,)), ((7,) * 17, (2,))], pad_id=0)
    assert find_families(tokens.input_ids_BT, tokens.lengths_B) == [Family((0, 1), 17)]


def test_the_tokens_of_a_prompt_are_computed_once():
    """Four completions of one prompt of 100: one pass of the prompt, and all but the last token of each completion."""
    tokens, mask_BT = groups([100], [[10, 20, 5, 8]])
    packed = pack(tokens, mask_BT)
    assert packed.num_real_tokens == 4 * 100 + 10 + 20 + 5 + 8 - 4
    assert packed.num_tokens == 100 + 10 + 20 + 5 + 8 - 4
    first_of_each = packed.source_N[[0, 10, 30, 35]]
    assert len(set(first_of_each.tolist())) == 1, "the prompt's last token predicts the first token of each"
