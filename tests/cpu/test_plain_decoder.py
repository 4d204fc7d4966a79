"""A plain decoder equals its modules; a model with the same structure but another computation is not taken for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from tests.catalogue import catalogue, few
from tests.engines.policies import (
    EOS,
    SIZES,
    Settings,
    lora_model,
    random_prompts,
    tiny_model,
    tiny_tokenizer,
    trainer_logprobs,
)
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import AutoModelForCausalLM, GraniteConfig, HeliumConfig, SmolLM3Config

from posttrain.cpu import group_rows, joint_linear, onednn, plain_decoder
from posttrain.cpu import kernels as made
from posttrain.cpu.choice import multiplies_by_kernels
from posttrain.cpu.group_attention import Groups, Heads, SlotBlocks, attend_rows
from posttrain.cpu.group_rows import GroupRows, filled_up
from posttrain.cpu.kernels import Kernels, kernels, why_none
from posttrain.cpu.onednn import PackedLinear
from posttrain.engines import DeliveryProof, LocalSampler
from posttrain.engines import decoding_path as module
from posttrain.engines.decoding_path import DecodingPath, decoding_path
from posttrain.engines.delivery import deliver
from posttrain.engines.engine import Arrival
from posttrain.engines.slots import Slots
from posttrain.errors import PublishError
from posttrain.models.compute import Compute
from posttrain.types import Completion

PLAIN = ["llama", "qwen2, tied", "qwen3-moe, experts", "mistral, sliding window"]
needs_kernels = pytest.mark.skipif(kernels() is None, reason=f"no compiled kernels: {why_none()}")
OTHERS = ["gpt2, learned positions", "gpt-neox", "olmoe, experts", "gemma2, soft caps and sliding window"]


def sampler_of(model: nn.Module, **options: Any) -> LocalSampler:
    given: dict[str, Any] = {"shared": True, "version": 1} | options
    return LocalSampler(model, tiny_tokenizer(), [EOS], **given)


COMPILED = Compute(kernels="compiled")
_kernels: dict[str, Any] = {}


def computing(by: Any) -> Compute:
    """The settings with these kernels, or without any."""
    if by is None:
        return Compute()
    _kernels[str(id(by))] = by
    return Compute(kernels="compiled", compiler=str(id(by)))


@pytest.fixture(autouse=True)
def kernels_that_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = made.chosen
    monkeypatch.setattr(made, "chosen", lambda compute: _kernels.get(compute.compiler) or chosen(compute))


def in_groups(model: nn.Module) -> bool:
    return decoding_path(model).decoder is not None


# ---------------------------------------------------------------- attention


@settings(deadline=None, max_examples=30)
@given(
    prompt_n=st.lists(st.integers(0, 3), min_size=1, max_size=7),
    per_key=st.integers(1, 3),
    keys=st.integers(1, 3),
    extra=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_rows_that_share_prompts_attend_as_each_would_alone(prompt_n, per_key, keys, extra, seed):
    """Compared with softmax(scaling q K + mask) V over the row's prompt and the row's own columns, in float64.

    Filler rows of a batch change nothing.
    """
    torch.manual_seed(seed)
    heads = Heads(query=keys * per_key, key=keys, width=4, scaling=0.3)
    num_rows, tokens = len(prompt_n) + extra, heads.query + 2 * keys
    qkv = torch.randn(num_rows, tokens, 4, dtype=torch.float64)
    prompts, rows = ([torch.randn(n, keys, c, 4).double() for _ in range(2)] for n, c in ((4, 5), (num_rows, 3)))
    visible = torch.rand(num_rows, 8) < 0.7
    visible[:, -1] = True
    mask = torch.zeros(num_rows, 1, 8).double().masked_fill(~visible[:, None], -torch.inf)
    stored = [(k.transpose(2, 3).flatten(0, 1), v.flatten(0, 1)) for k, v in (prompts, rows)]
    groups = Groups.of(prompt_n, 4, heads, qkv.device, num_filled=num_rows)
    found = attend_rows(qkv, groups, *stored, mask, heads)  # type: ignore[arg-type]
    assert len(found) == num_rows
    for row, prompt in enumerate(prompt_n):
        key, value = (torch.cat([p[prompt], r[row]], dim=1) for p, r in zip(prompts, rows, strict=True))
        key, value = (x.repeat_interleave(per_key, dim=0) for x in (key, value))
        scores_HC = 0.3 * torch.einsum("hd,hcd->hc", qkv[row, : heads.query], key) + mask[row]
        expected = torch.einsum("hc,hcd->hd", scores_HC.softmax(dim=-1), value).flatten()
        torch.testing.assert_close(found[row], expected)


def test_slots_keep_what_they_hold_when_memory_grows():
    blocks = SlotBlocks(1)
    blocks.use(2, 3, num_held=0)
    key, value = torch.randn(2, 3, 2, 4)
    blocks.write_prompt(0, 1, key, value)
    assert blocks.use(5, 40, num_held=2)
    keys_NDC, values_NCD = blocks.stored(0, 2)
    assert torch.equal(keys_NDC.view(2, 2, 4, 48)[1, :, :, :3], key.permute(1, 2, 0))
    assert torch.equal(values_NCD.view(2, 2, 48, 4)[1, :, :3], value.transpose(0, 1))
    assert not blocks.use(5, 48, num_held=5)


def test_rows_that_began_together_write_the_column_that_each_would_write():
    key, value = torch.randn(2, 3, 2, 4)
    together, each = SlotBlocks(1), SlotBlocks(1)
    for blocks, place in ((together, (slice(0, 3), 7)), (each, (torch.arange(3), torch.full((3,), 7)))):
        blocks.use(4, 9, num_held=0)
        blocks.write_token(0, place, key, value)
    assert all(torch.equal(a, b) and a.any() for a, b in zip(together.stored(0, 4), each.stored(0, 4), strict=True))


# ---------------------------------------------------------------- whole models


@catalogue("name", [*PLAIN, *OTHERS])
def test_models_are_told_apart_by_what_they_compute(name):
    assert in_groups(tiny_model(name)) == (name in PLAIN)


@pytest.mark.parametrize(
    ("name", "packed"),
    few(
        [(name, packed) for packed in (False, True) for name in PLAIN],
        *[("qwen3-moe, experts", False), ("qwen2, tied", True)],
    ),
)
def test_groups_and_the_models_own_forward_pass_sample_the_same(name, packed):
    sampler = sampler_of(tiny_model(name), shared=not packed, packed=packed)
    prompts = random_prompts((12, 1, 7))
    in_force = decoding_path(sampler.model)
    assert in_force.decoder is not None
    found = sampler.generate(prompts, Settings(max_batch_rows=4), group_size=3, seed=3)
    hook = sampler.model.register_forward_pre_hook(lambda *_: None)
    assert not in_groups(sampler.model), "a hook on the model must still be called"
    expected = sampler.generate(prompts, Settings(max_batch_rows=4), group_size=3, seed=3)
    hook.remove()
    for ours, theirs in zip(found, expected, strict=True):
        assert [c.ids for c in ours] == [c.ids for c in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


@pytest.mark.parametrize("lengths", [(12, 1, 7), pytest.param((30, 2), marks=pytest.mark.slow)])
def test_keys_and_values_of_a_layer_are_freed_before_the_next_layer_grows(lengths, monkeypatch):
    """Views of the old ones once kept all layers twice in memory while they grew."""
    olds: list[StorageWeakRef] = []
    most, grown = [0], SlotBlocks._grown

    def watched(blocks: SlotBlocks, block: Tensor, *given: Any) -> Tensor:
        olds.append(StorageWeakRef(block.untyped_storage()))
        most.append(sum(not old.expired() for old in olds))
        return grown(blocks, block, *given)

    monkeypatch.setattr(SlotBlocks, "_grown", watched)
    sampler = sampler_of(tiny_model("llama"), compute=computing(None))
    sampler.eos_ids = frozenset((EOS, 5))
    sampler.generate(
        random_prompts(lengths), Settings(max_batch_rows=4, max_completion_length=60), group_size=3, seed=3
    )
    assert len(olds) >= 3 * 2 * 2, "the test needs several growths of two layers or more"
    assert max(most) <= 2, "only one layer may be there twice"


# ---------------------------------------------------------------- compiled kernels


class _Counted:
    """Kernels that record the names of their calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        function = getattr(kernels(), name)
        if name == "can_multiply":  # a question, no product
            return function

        def called(*given: Any, **named: Any) -> Any:
            self.calls.append(name)
            return function(*given, **named)

        return called


@needs_kernels
@pytest.mark.parametrize(
    ("name", "packed"),
    few(
        [(name, packed) for packed in (False, True) for name in PLAIN],
        *[("qwen3-moe, experts", False), ("mistral, sliding window", True)],
    ),
)
def test_kernels_and_operations_of_pytorch_sample_the_same(name, packed):
    """Rows that leave and join, split groups, sliding windows, experts, tied embeddings."""
    model, used = tiny_model(name, head_dim=32), _Counted()
    samplers = [sampler_of(model, shared=not packed, packed=packed, compute=computing(k)) for k in (used, None)]
    for sampler in samplers:
        sampler.eos_ids = frozenset((EOS, 5, 17, 40, 9))
    lengths = Settings(max_batch_rows=4, max_completion_length=40)
    found, expected = (s.generate(random_prompts((12, 1, 7)), lengths, group_size=3, seed=3) for s in samplers)
    assert {"attend_rows", "rms_norm", "rotate_", "choose"} <= set(used.calls)
    assert ("silu_gate" in used.calls) == (name != "qwen3-moe, experts") != ("experts" in used.calls)
    assert ("linear" in used.calls) == (not packed)
    assert len({len(c.ids) for group in found for c in group}) > 3, "the test needs rows of several lengths"
    for ours, theirs in zip(found, expected, strict=True):
        assert [c.ids for c in ours] == [c.ids for c in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


@needs_kernels
@pytest.mark.parametrize("name", few(["llama", "qwen2, tied", "mistral, sliding window"], "llama"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_by_kernels_gets_the_same_bits_in_a_batch_of_any_size(name, dtype):
    """With PyTorch's products, the shape of a batch decides the order of their sums."""
    half = dtype == torch.bfloat16
    if half and not kernels().can_multiply(dtype, 2, 16):  # type: ignore[union-attr]
        pytest.skip("no products of bfloat16 in pairs on this processor, or better ones in tiles")
    sampler = sampler_of(tiny_model(name, head_dim=32), shared=not half, packed=half, dtype=dtype, compute=COMPILED)
    prompts = random_prompts((12, 1, 7, 30))
    settings = [Settings(max_batch_rows=rows, max_completion_length=24) for rows in (1, 3, 64)]
    alone, few, all_at_once = (sampler.generate(prompts, s, group_size=5, seed=1) for s in settings)
    assert alone == few == all_at_once


@needs_kernels
@pytest.mark.parametrize(
    ("name", "packed"),
    few(
        [(name, packed) for packed in (False, True) for name in PLAIN],
        *[("llama", False), ("mistral, sliding window", True)],
    ),
)
def test_kernels_in_bfloat16_are_no_further_from_the_trainer_than_operations_of_pytorch(name, packed):
    """Both are compared with the forward pass in float32, by the mean over all tokens."""
    model = tiny_model(name, head_dim=32)
    prompts = random_prompts((12, 1, 7))
    tokens = [ids for g in range(3) for ids in [tuple((7 * g + 5 * t) % 61 + 3 for t in range(24))]]
    exact = sampler_of(model).score([p.ids for p in prompts], tokens, temperature=1.0)
    error = {}
    for k in (kernels(), None):
        sampler = sampler_of(model, shared=not packed, packed=packed, dtype=torch.bfloat16, compute=computing(k))
        scores = sampler.score([p.ids for p in prompts], tokens, temperature=1.0)
        difference = [
            abs(a - b) for ours, theirs in zip(scores, exact, strict=True) for a, b in zip(ours, theirs, strict=True)
        ]
        error[k is None] = sum(difference) / len(difference)
    assert error[False] <= 1.3 * error[True] + 1e-3


@pytest.mark.slow
@needs_kernels
def test_an_adapter_decodes_by_kernels_as_it_is_trained():
    model = lora_model(head_dim=32)
    sampler = sampler_of(model, compute=COMPILED)
    prompts = random_prompts()
    groups = sampler.generate(prompts, Settings(), group_size=2, seed=0)
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            (expected,) = sampler_of(model).score([prompt.ids], [completion.ids], temperature=1.0)
            assert completion.logprobs == pytest.approx(expected, abs=1e-4)


@needs_kernels
@pytest.mark.parametrize(
    ("head_dim", "dtype", "decoded", "calls"),
    [
        (8, torch.float32, None, {"linear", "rms_norm", "silu_gate", "choose"}),
        pytest.param(32, torch.float64, None, set(), marks=pytest.mark.slow),
        (32, torch.float32, torch.float16, set()),
    ],
    ids=["narrow heads", "float64", "float16"],
)
def test_what_kernels_do_not_know_is_computed_without_them(head_dim, dtype, decoded, calls):
    """Heads of width 8, which have no sixteen adjacent numbers; other precisions."""
    model = tiny_model(head_dim=head_dim).to(dtype)
    used = _Counted()
    found, expected = (
        sampler_of(model, compute=computing(k), dtype=decoded).generate(
            random_prompts(), Settings(), group_size=2, seed=0
        )
        for k in (used, None)
    )
    assert set(used.calls) == calls
    assert [[c.ids for c in group] for group in found] == [[c.ids for c in group] for group in expected]


@needs_kernels
def test_a_hook_on_the_gate_is_called_although_there_is_a_kernel():
    model: Any = tiny_model(head_dim=32)
    calls = []
    model.model.layers[1].mlp.act_fn.register_forward_hook(lambda *_: calls.append(1))
    used = _Counted()
    sampler_of(model, compute=computing(used)).generate(random_prompts(), Settings(), group_size=1, seed=0)
    by_kernel = used.calls.count("silu_gate")
    assert len(calls) > by_kernel == used.calls.count("rotate_") / 2, "one layer of two, and the trials of the model"


def test_a_prompt_is_held_once_for_its_group_and_until_its_last_row_has_left():
    model = tiny_model()
    path: DecodingPath = decoding_path(model)
    assert path.decoder is not None
    with torch.no_grad():
        rows = GroupRows(model, path.decoder.mask_functions)
        rows.step(torch.zeros(0, dtype=torch.long), [Arrival([5, 6, 7], 3, more=False), Arrival([8, 9], 2, more=True)])
        assert rows._prompts.num_slots == 2
        rows.step(torch.full((5,), 3), [])
        rows.select([0, 2])
        assert rows._lengths_P == [3, 2], "the second prompt waits for the rest of its group"
        rows.step(torch.full((2,), 3), [Arrival([8, 9], 1, more=False)])
        rows.select([2])
        assert (rows._lengths_P, rows._prompt_n) == ([2], [0])


@given(st.integers(0, 5000))
def test_rows_are_filled_up_by_a_quarter_at_most(rows):
    assert rows <= filled_up(rows) <= 1.25 * rows
    assert filled_up(filled_up(rows)) == filled_up(rows)


def test_all_numbers_of_rows_come_to_a_few():
    assert len({filled_up(rows) for rows in range(1, 257)}) == 28


@pytest.mark.slow
@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16], torch.float32))
def test_rows_that_fill_up_change_no_completion(dtype, monkeypatch):
    sampler = sampler_of(tiny_model(), shared=False, packed=True, dtype=dtype)
    sampler.eos_ids = frozenset((EOS, 2, 5, 17, 40, 9, 33))
    lengths = Settings(max_completion_length=30)
    found, computed = _sampled(sampler, lengths, monkeypatch)
    monkeypatch.setattr(group_rows, "filled_up", lambda rows: rows)
    expected, needed = _sampled(sampler, lengths, monkeypatch)
    assert set(computed[1:]) < set(map(filled_up, range(1, 34))), "row counts for which kernels exist"
    assert len(set(needed)) > len(set(computed)), "the test needs rows that leave one by one"
    tolerance = 1e-4 if dtype == torch.float32 else 0.2
    same = [ours.ids == theirs.ids for ours, theirs in zip(found, expected, strict=True)]
    assert all(same) if dtype == torch.float32 else sum(same) > len(same) / 2
    for ours, theirs, is_same in zip(found, expected, same, strict=True):
        assert not is_same or ours.logprobs == pytest.approx(theirs.logprobs, abs=tolerance)


def _sampled(
    sampler: LocalSampler, lengths: Settings, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Completion], list[int]]:
    """33 completions of three prompts, and the tokens of every pass; the first pass includes the prompts."""
    assert in_groups(sampler.model), "decided before passes are counted"
    passes: list[int] = []
    own = plain_decoder.PlainDecoder.hidden

    def counted(self: plain_decoder.PlainDecoder, ids_L: Tensor, *given: Any, **named: Any) -> Tensor:
        passes.append(len(ids_L))
        return own(self, ids_L, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(plain_decoder.PlainDecoder, "hidden", counted)
        groups = sampler.generate(random_prompts((12, 1, 7)), lengths, group_size=11, seed=3)
    return [completion for group in groups for completion in group], passes


def test_products_without_kernels_of_their_own_are_of_the_rows_alone(monkeypatch):
    sampler = sampler_of(tiny_model())
    sampler.eos_ids = frozenset((EOS, 2, 5, 17, 40, 9, 33))
    completions, passes = _sampled(sampler, Settings(max_completion_length=30), monkeypatch)
    assert sum(passes[1:]) == sum(len(completion.ids) - 1 for completion in completions)


@pytest.mark.parametrize("packed", [False, True])
def test_a_bfloat16_copy_is_decoded_as_the_exact_model_would_be(packed, monkeypatch):
    """A second trial on the copy could differ by rounding, and another path would draw other tokens."""
    same = module._same
    monkeypatch.setattr(module, "_same", lambda a, b: b.dtype == torch.float32 and same(a, b))
    sampler = sampler_of(tiny_model(), shared=False, packed=packed, dtype=torch.bfloat16)
    assert decoding_path(sampler.model).decoder is not None
    assert decoding_path(tiny_model().bfloat16()).decoder is None


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(Slots, DecodingPath(implementation=None)), (GroupRows, DecodingPath(implementation="slots_sdpa"))],
)
def test_rows_that_give_something_else_than_each_row_alone_are_not_decoded_by(rows, expected, monkeypatch):
    step = rows.step
    monkeypatch.setattr(rows, "step", lambda self, *given: step(self, *given).flip(-1))
    assert replace(decoding_path(tiny_model()), note="") == expected


class _Counting(nn.Module):
    """A norm that replaces its buffer by another one in every call."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.norm(x)


def test_a_buffer_that_is_replaced_in_decoding_can_be_written_and_trained_with():
    policy: Any = tiny_model()
    policy.model.norm = _Counting(policy.model.norm)
    sampler = sampler_of(policy, shared=False)
    sampler.generate(random_prompts(), Settings(), group_size=2, seed=0)
    assert sampler.model.model.norm.calls > policy.model.norm.calls == 0  # type: ignore[union-attr]
    deliver(policy, sampler, 2)
    assert sampler.model.model.norm.calls == 0  # type: ignore[union-attr]
    shared = sampler_of(policy)
    shared.generate(random_prompts(), Settings(), group_size=2, seed=0)
    policy(input_ids=torch.tensor([[5, 9, 33]])).logits.sum().backward()


class _ClampedMLP(nn.Module):
    """A gated MLP whose inner numbers are clamped: a short text shows no difference."""

    def __init__(self, mlp: Any, limit: float = 5) -> None:
        super().__init__()
        self.limit = limit
        self.gate_proj, self.up_proj, self.down_proj, self.act_fn = mlp.children()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj((self.act_fn(self.gate_proj(x)) * self.up_proj(x)).clamp(-self.limit, self.limit))


def _cap_logits(model: Any) -> None:
    own = model.forward

    def capped(*args: Any, **kwargs: Any) -> Any:
        output = own(*args, **kwargs)
        output.logits = 30 * torch.tanh(output.logits / 30)
        return output

    model.__class__ = type("Capped", (type(model),), {"forward": lambda self, *a, **k: capped(*a, **k)})


def _limit_mlp(model: Any) -> None:
    model.model.layers[1].mlp = _ClampedMLP(model.model.layers[1].mlp)


def _scale_late_queries(model: Any) -> None:
    attention = model.model.layers[0].self_attn
    own = type(attention).forward

    def forward(self: Any, hidden_states: Tensor, position_ids: Tensor | None = None, **given: Any) -> Any:
        late = 1.0 if position_ids is None else float(1 + position_ids.max() // 32)
        given["position_embeddings"] = tuple(x * late for x in given["position_embeddings"])
        return own(self, hidden_states, position_ids=position_ids, **given)

    attention.__class__ = type("Late", (type(attention),), {"forward": forward})


@pytest.mark.parametrize("change", [_cap_logits, _limit_mlp, _scale_late_queries])
def test_what_shows_only_at_large_numbers_or_late_positions_is_seen(change: Callable[[Any], None]):
    """All of them have the structure of a plain decoder and give its logits on a few ordinary tokens."""
    model = tiny_model()
    change(model)
    plain_decoder.PlainDecoder(model)
    assert not in_groups(model)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        (SmolLM3Config(**SIZES, no_rope_layers=[1, 0]), torch.float32),
        (SmolLM3Config(**SIZES, no_rope_layers=[1, 0]), torch.bfloat16),
        (HeliumConfig(**SIZES, head_dim=8), torch.bfloat16),
        (GraniteConfig(**SIZES, residual_multiplier=0.5), torch.bfloat16),
        (GraniteConfig(**SIZES, embedding_multiplier=1.3), torch.bfloat16),
    ],
    ids=["a layer without rotation", "in half precision", "pairs rotated", "less is added", "more is added to"],
)
def test_what_small_weights_hide_is_seen(config, dtype):
    """With the weights of a new model scores are near 0, and the rotation of the queries has no effect on attention."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval().to(dtype)
    plain_decoder.PlainDecoder(model)
    assert not in_groups(model)


def test_layers_that_add_nothing_yet_are_plain():
    """Such layers are inserted between others to be trained (LLaMA Pro, arXiv:2401.02415)."""
    model: Any = tiny_model()
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.zero_()
        model.model.layers[1].mlp.down_proj.weight.zero_()
    assert in_groups(model)


def test_no_hook_of_a_trial_is_left():
    model = tiny_model()
    assert in_groups(model)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("where", "other"),
    [
        ("model.norm", lambda norm: nn.LayerNorm(norm.weight.numel())),
        ("model.layers.1.mlp", lambda mlp: _ClampedMLP(mlp, limit=0.1)),
        ("model.layers.0.self_attn.k_proj", nn.Sequential),
    ],
)
def test_a_module_that_was_replaced_since_is_tried_again(where, other):
    model = tiny_model()
    assert in_groups(model)
    model.set_submodule(where, other(model.get_submodule(where)))
    assert not in_groups(model)
    prompt, completion = [3, 4, 5], [6, 7, 8, 9]
    with torch.no_grad():
        logits_TV = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    expected = logits_TV.log_softmax(dim=-1)[range(len(completion)), completion].tolist()
    (found,) = sampler_of(model).score([prompt], [completion], temperature=1.0)
    assert found == pytest.approx(expected, abs=1e-4)


# ---------------------------------------------------------------- joined layers


@pytest.mark.parametrize(
    "kind",
    [nn.Linear, pytest.param(PackedLinear, marks=pytest.mark.skipif(not onednn.available(), reason="no oneDNN"))],
)
@pytest.mark.parametrize("bias", [False, True])
def test_joined_layers_give_what_they_give_one_by_one(kind, bias):
    layers = [nn.Linear(6, n, bias=bias).requires_grad_(False) for n in (4, 2, 3)]
    x = torch.randn(5, 6)
    own = [layer if kind is nn.Linear else PackedLinear(layer) for layer in layers]
    torch.testing.assert_close(joint_linear.joint_linear(own)(x), torch.cat([layer(x) for layer in layers], dim=-1))


@needs_kernels
@catalogue("outputs", [(32, 48, 16), (80,), (24, 5), (24, 8)])
@catalogue("dtype", [torch.float32, torch.bfloat16])
@catalogue("bias", [False, True])
@catalogue("packed", [False, True])
def test_layers_of_whole_registers_are_multiplied_by_a_kernel(outputs, dtype, bias, packed):
    """oneDNN computes packed float32 weights; not every processor has the kernel for bfloat16, or can pack it."""
    if packed and not onednn.packs(dtype):
        return
    layers = [nn.Linear(6, n, bias=bias, dtype=dtype).requires_grad_(False) for n in outputs]
    used, x = _Counted(), torch.randn(3, 5, 6).to(dtype)
    given = [PackedLinear(layer) for layer in layers] if packed else layers
    found = joint_linear.joint_linear(given, used)(x)  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.cat([layer(x) for layer in layers], dim=-1))
    known = used.can_multiply(dtype, 6, sum(outputs)) and not (packed and dtype == torch.float32)
    assert used.calls == (["linear"] if known else [])
    assert known == (sum(outputs) % 16 == 0) or dtype == torch.bfloat16 or packed


@needs_kernels
@pytest.mark.parametrize("inputs", [0, 5])
def test_an_odd_number_of_bfloat16_inputs_is_left_to_pytorch(inputs):
    layer = nn.Linear(inputs, 32, dtype=torch.bfloat16).requires_grad_(False)
    used, x = _Counted(), torch.randn(3, inputs).bfloat16()
    torch.testing.assert_close(joint_linear.joint_linear([layer], used)(x), layer(x))  # type: ignore[arg-type]
    assert used.calls == []


@needs_kernels
def test_layers_that_are_too_large_together_are_multiplied_one_by_one(monkeypatch):
    monkeypatch.setattr(joint_linear, "COPIED_WEIGHTS", 6 * 32)
    layers = [nn.Linear(6, n).requires_grad_(False) for n in (32, 48, 16)]
    used, x = _Counted(), torch.randn(5, 6)
    found = joint_linear.joint_linear(layers, used)(x)  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.cat([layer(x) for layer in layers], dim=-1))
    assert used.calls == ["linear", "linear"], "PyTorch multiplies by the largest one"


@pytest.mark.parametrize(
    ("model", "does"),
    [
        (lambda: tiny_model(head_dim=32), True),
        (lambda: tiny_model("gpt-neox"), False),
        (lambda: lora_model(head_dim=32), True),
        (lambda: lora_model(head_dim=32, use_dora=True), False),
    ],
    ids=["plain", "another kind", "adapters", "adapters that are more than a product"],
)
def test_models_are_told_apart_of_which_kernels_multiply_by_the_weights(model, does, monkeypatch):
    """The measurement before a run uses the same methods as the sampler."""
    assert multiplies_by_kernels(model()) == does
    monkeypatch.setattr("posttrain.cpu.choice.COPIED_WEIGHTS", 100)
    assert not multiplies_by_kernels(model())


def _adapted(changed: str = "") -> list[Any]:
    """Two layers with the same input, with adapters of rank 3 and one difference, `changed`."""
    model = nn.ModuleDict({"q": nn.Linear(6, 32), "k": nn.Linear(6, 16)})
    settings = {"use_dora": True} if changed == "DoRA" else {"lora_bias": True} if changed == "bias" else {}
    config = LoraConfig(r=3, target_modules=["q", "k"], init_lora_weights=False, lora_dropout=0.5, **settings)
    peft_model = get_peft_model(model, config)  # type: ignore[arg-type]
    if changed == "two adapters":
        peft_model.add_adapter("second", config)
        peft_model.base_model.set_adapter(["default", "second"])
    layers: list[Any] = [model[name] for name in ("q", "k")]
    if changed == "float64":
        peft_model.double()
    if changed == "merged":
        layers[0].merge()
    if changed == "off":
        peft_model.base_model.disable_adapter_layers()
    if changed == "something in the place of dropout":
        layers[1].lora_dropout["default"] = nn.Tanh()
    if changed in ("lora_A", "base_layer", "lora_dropout"):
        inside = getattr(layers[1], changed)
        (inside if changed == "base_layer" else inside["default"]).register_forward_hook(lambda *_: None)
    peft_model.eval().requires_grad_(False)
    return layers


@needs_kernels
@pytest.mark.parametrize("changed", ["", "two adapters", "off"])
def test_adapters_are_merged_into_one_product(changed):
    layers, used, x = _adapted(changed), _Counted(), torch.randn(5, 6)
    before = [{name: tensor.clone() for name, tensor in layer.state_dict().items()} for layer in layers]
    found = joint_linear.joint_linear(layers, used)(x)  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.cat([layer(x) for layer in layers], dim=-1))
    assert used.calls == ["linear"]
    assert all(
        torch.equal(tensor, old[name])
        for layer, old in zip(layers, before, strict=True)
        for name, tensor in layer.state_dict().items()
    ), "the policy itself does not change"


@needs_kernels
@pytest.mark.parametrize(
    "changed", ["DoRA", "bias", "merged", "lora_A", "base_layer", "lora_dropout", "something in the place of dropout"]
)
def test_adapters_that_are_more_than_a_product_are_called(changed):
    layers, x = _adapted(changed), torch.randn(5, 6)
    torch.testing.assert_close(
        joint_linear.joint_linear(layers, kernels())(x), torch.cat([layer(x) for layer in layers], dim=-1)
    )
    assert not all(map(joint_linear.merges_adapters, layers))


def test_adapters_of_half_precision_are_not_merged():
    """Rounding the weight would lose the small changes of an adapter; float64 loses nothing."""
    assert all(map(joint_linear.merges_adapters, _adapted("float64")))
    layers = _adapted()
    layers[0].base_layer.to(torch.bfloat16)
    assert [*map(joint_linear.merges_adapters, layers)] == [False, True]


@pytest.mark.parametrize("changed", ["hooked", "another kind", "large"])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_kernels)])
def test_layers_that_are_more_than_a_small_product_are_called(changed, compiled, monkeypatch):
    layers, called = [nn.Linear(6, 16), nn.Linear(6, 16)], []
    if changed == "hooked":
        layers[1].register_forward_hook(lambda *_: called.append(1))
    elif changed == "another kind":
        layers[1].__class__ = type(
            "Other", (nn.Linear,), {"forward": lambda self, x: called.append(1) or x.repeat(1, 4)[:, :16]}
        )
    else:
        monkeypatch.setattr(joint_linear, "COPIED_WEIGHTS", 95)
        monkeypatch.setattr(nn.Linear, "forward", lambda self, x: called.append(1) or x.repeat(1, 4)[:, :16])
    found = joint_linear.joint_linear(layers, kernels() if compiled else None)
    assert found(torch.randn(2, 6)).shape == (2, 32)
    assert called


# ---------------------------------------------------------------- the proof of delivery


@pytest.mark.skipif(not onednn.available(), reason="PyTorch is built without oneDNN here")
@pytest.mark.parametrize("packed", [False, True])
def test_joined_weights_that_are_kept_for_another_version_are_found(packed, monkeypatch):
    """The size of the step does not matter: decoding no longer reads the layers that were compared."""
    kept: dict[tuple[int, ...], Callable[[Tensor], Tensor]] = {}
    fresh = joint_linear.joint_linear

    def stale(layers: list[nn.Module], kernels: Kernels | None) -> Callable[[Tensor], Tensor]:
        key = tuple(map(id, layers))
        if key not in kept:
            kept[key] = fresh(layers, kernels)
        return kept[key]

    policy = tiny_model()
    sampler = sampler_of(policy, shared=not packed, packed=packed)
    assert in_groups(sampler.model)
    monkeypatch.setattr(plain_decoder, "joint_linear", stale)
    proof = DeliveryProof.from_prompts([p.ids for p in random_prompts((9, 6))], tolerance=1e-3)
    sampler.score([[3, 4]], [[5]], temperature=1.0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 1e-9
    deliver(policy, sampler, 2)
    with pytest.raises(PublishError, match=r"decoding does not read model\.layers\.0\.self_attn\.\w_proj\.weight"):
        proof.check(trainer_logprobs(policy), policy, sampler, sampler.receipt(), 2)
