"""How a CPU computes: only ways that measure as faster and are no less exact; the choice is made once and kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.tiny import tiny_model
from torch import nn
from transformers import AutoModelForCausalLM

from posttrain.cpu import choice, kernels, onednn
from posttrain.cpu.choice import (
    EXACT,
    PRODUCTS,
    Decoder,
    Measured,
    Shape,
    decide,
    in_bfloat16,
    linear_shapes,
    measure_products,
)
from posttrain.errors import CheckpointError
from posttrain.models.compute import SMALL, Compute, choose_compute, machine

pytestmark = pytest.mark.skipif(not onednn.available(), reason="PyTorch is built without oneDNN here")

FAST = Measured(
    training={"plain": 8.0, "onednn": 4.0, "bfloat16": 2.0},
    decoding={
        Decoder(torch.float32, False): 8.0,
        Decoder(torch.float32, True): 4.0,
        Decoder(torch.bfloat16, False): 3.0,
        Decoder(torch.bfloat16, True): 1.0,
    },
    inexact={"onednn": 1.5, "packed": 1.2},
)
"""A measurement in which every other way is exact and at least twice as fast."""
GIB = 2**30
MEDIUM = 50_000_000
"""Number of parameters."""


def decided(measured: Measured = FAST, precision: str = "auto", *, size: int = MEDIUM, free: int = 64 * GIB) -> Compute:
    return decide(measured, precision, size=size, free_bytes=free)


def of_size(parameters: int) -> nn.Module:
    return nn.Sequential(nn.Linear(1000, parameters // 1000, bias=False))


@pytest.fixture(autouse=True)
def a_processor_with_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice depends on the instructions of the processor and on the measured times; the tests supply the times."""
    monkeypatch.setattr(choice, "has_bfloat16", lambda: True)


# ---------------------------------------------------------------- the choice after a measurement


def test_what_is_faster_and_exact_is_taken():
    chosen = decided()
    assert (chosen.dtype, chosen.matmul, chosen.sampler) == (torch.bfloat16, "onednn", "packed")
    assert chosen.why == (
        "float32 through oneDNN 2.0 times as fast; bfloat16 2.0 times as fast; "
        "decoding from packed bfloat16 weights 3.0 times as fast"
    )


def test_float32_never_computes_in_less_and_bfloat16_is_taken_as_it_is_asked_for():
    assert decided(precision="float32").dtype == torch.float32
    slow = replace(FAST, training=FAST.training | {"bfloat16": 99.0})
    assert decided(slow, "bfloat16", size=SMALL).dtype == torch.bfloat16


@pytest.mark.parametrize(("case", "seconds"), [("slow", 3.4), ("no instructions", 2.0)])
def test_auto_stays_in_float32_where_bfloat16_gains_too_little(case, seconds, monkeypatch):
    """4.0 / 3.4 seconds is a gain of less than 1.2 times."""
    monkeypatch.setattr(choice, "has_bfloat16", lambda: case != "no instructions")
    measured = replace(FAST, training=FAST.training | {"bfloat16": seconds})
    assert decided(measured).dtype == torch.float32


@pytest.mark.parametrize("size", [SMALL, MEDIUM, 1_000_000_000])
def test_auto_takes_bfloat16_whatever_the_size_of_a_model_that_is_measured(size):
    assert decided(size=size).dtype == torch.bfloat16


def test_a_gain_of_less_than_the_threshold_is_not_taken():
    slower = replace(
        FAST,
        training=FAST.training | {"onednn": 6.8},
        decoding=FAST.decoding | {Decoder(torch.float32, True): 6.8},
    )
    chosen = decided(slower, "float32")
    assert (chosen.matmul, chosen.sampler) == ("plain", "shared")
    assert "1.2 times as fast" in chosen.why


def test_bfloat16_always_decodes_from_a_copy_because_the_shared_weights_are_float32():
    no_gain = replace(FAST, decoding=FAST.decoding | {Decoder(torch.bfloat16, True): 3.0})
    assert decided(no_gain, "bfloat16").sampler == "packed"


def test_a_faster_way_that_is_less_exact_is_refused_and_the_reason_is_told():
    chosen = decided(replace(FAST, inexact={"onednn": 300.0, "packed": 250.0}), "float32")
    assert (chosen.dtype, chosen.matmul, chosen.sampler) == (torch.float32, "plain", "shared")
    assert "but not used: its rounding errors are 300 times those of float32" in chosen.why


def test_a_copy_that_would_take_too_much_memory_is_not_made():
    """50 million parameters in float32 take 0.19 GiB; a quarter of 0.7 GiB is less."""
    assert decided(precision="float32", free=GIB).sampler == "packed"
    chosen = decided(precision="float32", free=int(0.7 * GIB))
    assert chosen.sampler == "shared"
    assert chosen.why.endswith("but a copy for sampling takes 0.2 GiB and 0.7 are free")


# ---------------------------------------------------------------- the measurement


def test_products_that_were_rounded_to_bfloat16_are_seen_as_such():
    """A simulation of oneDNN on a processor that gains by bfloat16: float32 in and out, bfloat16 in between."""

    def rounded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return in_bfloat16(a, b).float()

    measured = measure_products([Shape(96, 64, 2)], PRODUCTS | {"onednn": rounded})
    assert measured.inexact["onednn"] > 50 * EXACT
    fast = replace(measured, training={"plain": 9.0, "onednn": 1.0, "bfloat16": 1.0})
    assert decided(fast, "float32").matmul == "plain"


def test_plain_products_are_as_exact_as_themselves():
    measured = measure_products([Shape(96, 64, 2)], PRODUCTS | {"onednn": PRODUCTS["plain"]})
    assert measured.inexact["onednn"] == 1.0
    assert measured.inexact["packed"] < EXACT, "packed float32 weights are float32 on every processor"
    assert min(*measured.training.values(), *measured.decoding.values()) > 0


def without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this processor one without bfloat16 instructions, and PyTorch refuse to pack such weights as it does there.

    Most laptops have such a processor."""
    pack = onednn.pack

    def refuse(weight: torch.Tensor) -> torch.Tensor:
        if weight.dtype != torch.float32:
            raise RuntimeError("mkldnn_reorder_linear_weight: bf16 path needs the cpu support avx_ne_convert or ...")
        return pack(weight)

    monkeypatch.setattr(choice, "has_bfloat16", lambda: False)
    monkeypatch.setattr(onednn, "pack", refuse)
    monkeypatch.setattr(onednn, "packs", onednn.packs.__wrapped__)


@pytest.mark.parametrize("precision", ["auto", "float32", "bfloat16"])
def test_a_processor_without_bfloat16_measures_only_what_it_has(precision, monkeypatch):
    without_bfloat16(monkeypatch)
    measured = measure_products([Shape(96, 64, 2)])
    assert set(measured.training) == {"plain", "onednn"}
    assert {way.dtype for way in measured.decoding} == {torch.float32}
    found = choose_compute(of_size(SMALL), precision)
    assert found.dtype == (torch.bfloat16 if precision == "bfloat16" else torch.float32)
    assert found.sampler == "packed" or precision != "bfloat16"


def test_a_copy_in_bfloat16_keeps_its_layers_where_they_cannot_be_packed(tmp_path, monkeypatch):
    without_bfloat16(monkeypatch)
    model = AutoModelForCausalLM.from_pretrained(tiny_model(tmp_path)).bfloat16()
    before = model(input_ids=torch.tensor([[1, 2]])).logits
    onednn.pack_linears(model)
    assert not any(isinstance(module, onednn.PackedLinear) for module in model.modules())
    assert model(input_ids=torch.tensor([[1, 2]])).logits.equal(before)


def test_the_shapes_with_most_weights_are_measured():
    layers = [nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(4, 9), nn.Linear(5, 1), nn.Linear(2, 2)]
    assert linear_shapes(nn.Sequential(*layers)) == [Shape(8, 4, 2), Shape(4, 9, 1), Shape(5, 1, 1)]
    assert linear_shapes(nn.Sequential(nn.Embedding(9, 9))) == []


def test_measuring_touches_neither_the_random_state_nor_the_settings_of_the_process():
    state, setting = torch.get_rng_state(), torch.backends.mkldnn.matmul.fp32_precision
    measure_products([Shape(16, 16, 1)])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.mkldnn.matmul.fp32_precision == setting
    assert torch.get_float32_matmul_precision() == "highest"


# ---------------------------------------------------------------- one measurement, and for which runs


def never(shapes, compiled):
    raise AssertionError("measured although there was no reason to")


def test_small_models_and_models_without_linear_layers_are_never_measured():
    assert chosen(of_size(SMALL - 1000), "auto", never) == Compute()
    assert chosen(nn.Embedding(2000, 1000), "auto", never) == Compute()
    small = chosen(of_size(1000), "bfloat16", never)
    assert (small.dtype, small.matmul, small.sampler, small.why) == (torch.bfloat16, "plain", "shared", "")


def chosen(model: nn.Module, precision: str, measure: Any, saved: Compute | None = None, **how: Any) -> Compute:
    """The result of `choose_compute` on a CPU, with another measurement."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "measure_products", measure)
        return choose_compute(model, precision, saved=saved, **how)


def fast(shapes, compiled):
    return FAST


@pytest.mark.parametrize("by_kernels", [False, True])
def test_weights_that_kernels_multiply_by_are_measured_so(by_kernels, monkeypatch):
    have, given = object(), []
    monkeypatch.setattr(kernels, "kernels", lambda: have)
    monkeypatch.setattr(choice, "multiplies_by_kernels", lambda model: by_kernels)
    chosen(of_size(SMALL), "float32", lambda shapes, compiled: given.append(compiled) or FAST, decodes=True)
    assert given == [have if by_kernels else None]


@pytest.mark.skipif(kernels.kernels() is None, reason=f"no compiled kernels: {kernels.why_none()}")
def test_float32_weights_as_they_are_and_copies_in_bfloat16_are_multiplied_by_kernels():
    made, calls = kernels.kernels(), []

    class Counted:
        can_multiply = made.can_multiply

        def linear(self, x, panels, bias_M, outputs):
            calls.append(x.dtype)
            return made.linear(x, panels, bias_M, outputs)

    measure_products([Shape(96, 64, 2)], compiled=Counted())
    known = {dtype for dtype in (torch.float32, torch.bfloat16) if made.can_multiply(dtype, 96, 64)}
    assert set(calls) == known


def test_a_saved_choice_holds_whatever_a_measurement_would_say_now():
    saved = chosen(of_size(SMALL), "float32", fast)
    assert saved.matmul == "onednn"
    assert chosen(of_size(SMALL), "float32", never, saved) is saved


def test_kernels_are_compiled_where_they_can_be_and_the_reason_is_told_where_not(monkeypatch):
    there_is(monkeypatch, compiler="g++ 12")
    saved = chosen(of_size(SMALL), "float32", fast)
    assert (saved.kernels, saved.compiler) == ("compiled", "g++ 12")
    assert saved.describe().endswith(", compiled kernels")
    there_is(monkeypatch, why_none="no C++ compiler was found")
    without = chosen(of_size(SMALL), "float32", never, saved)
    assert without.kernels == "torch"
    assert without.matmul == saved.matmul
    assert without.why.endswith("; no compiled kernels: no C++ compiler was found")
    there_is(monkeypatch, compiler="g++ 14")
    assert chosen(of_size(SMALL), "float32", never, without) is without, "as the run began"
    assert chosen(of_size(SMALL), "float32", never, saved).compiler == "g++ 14"


def there_is(monkeypatch: pytest.MonkeyPatch, *, why_none: str = "", compiler: str = "") -> None:
    monkeypatch.setattr(kernels, "why_none", lambda: why_none)
    monkeypatch.setattr(kernels, "made_by", lambda: compiler)


@pytest.mark.parametrize("change", [{"machine": "another processor"}, {"precision": "bfloat16"}])
def test_a_choice_of_another_processor_or_another_precision_is_made_anew(change):
    slow = replace(FAST, training=FAST.training | {"onednn": 8.0})
    saved = chosen(of_size(SMALL), "float32", fast)
    again = chosen(of_size(SMALL), "float32", lambda shapes, compiled: slow, replace(saved, **change))
    assert (again.matmul, again.machine, again.precision) == ("plain", machine(), "float32")


@pytest.mark.parametrize("chosen", [Compute(), decided(), decided(precision="float32")])
def test_a_choice_is_read_as_it_was_written(chosen, tmp_path):
    assert Compute.read(tmp_path / "compute.json") is None
    chosen.write(tmp_path / "compute.json")
    assert Compute.read(tmp_path / "compute.json") == chosen


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:40],
        lambda text: "[]",
        lambda text: "\xff" + text,
        lambda text: text.replace("bfloat16", "float8"),
        lambda text: text.replace("packed", "sorted"),
        lambda text: text.replace('"kernels": "torch"', '"kernels": "fast"'),
        lambda text: text.replace('"why"', '"because"'),
    ],
    ids=["cut off", "another record", "no JSON", "dtype", "sampler", "kernels", "field"],
)
def test_a_choice_that_is_damaged_is_named_and_never_guessed(damage, tmp_path):
    file = tmp_path / "compute.json"
    decided().write(file)
    file.write_text(damage(file.read_text()))
    with pytest.raises(CheckpointError, match=r"compute\.json is damaged"):
        Compute.read(file)


# ---------------------------------------------------------------- the scope


def test_the_scope_changes_the_setting_inside_only_even_if_something_fails():
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    seen = []
    with pytest.raises(ZeroDivisionError), Compute(matmul="onednn").scope():
        seen.append(settings.fp32_precision) or 1 / 0
    assert seen == ["bf16"]
    assert settings.fp32_precision == before
    with Compute().scope():
        assert settings.fp32_precision == before


def test_the_scope_may_be_entered_inside_of_itself():
    settings = torch.backends.mkldnn.matmul
    before, scope = settings.fp32_precision, Compute(matmul="onednn").scope
    with scope():
        with scope():
            pass
        assert settings.fp32_precision == "bf16"
    assert settings.fp32_precision == before
