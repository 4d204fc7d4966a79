"""A run whose updates are smaller than the rounding of bfloat16 computes in float32, or warns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.tiny import tiny_model, write_prompts
from torch import nn

import posttrain
from posttrain.config import RunConfig
from posttrain.cpu import choice, onednn
from posttrain.lab.plan.workload import assumed_compute
from posttrain.models.compute import Compute
from posttrain.models.load import load_model
from posttrain.train import computing, rounding
from posttrain.train.computing import with_compute
from posttrain.train.rounding import (
    LEAST_ROUNDED,
    distance_of,
    drawn,
    loses_typical,
    lost,
    moved,
    share_rounded,
    spacing,
)

WIDE = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3, "head_dim": 64}
"""1.2 million parameters: below a million nothing is measured, and auto is float32 on a CPU."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounding")
    tiny_model(folder / "model", **WIDE)
    write_prompts(folder / "prompts.jsonl", count=8)
    return folder


def config(folder: Path, *, precision: str = "auto", lora: object = None, **train: object) -> RunConfig:
    settings = {
        "model": {"path": str(folder / "model"), "device": "cpu", "precision": precision},
        "algorithm": "grpo",
        "lora": lora,
        "data": {"train": str(folder / "prompts.jsonl")},
        "rewards": ["repetition"],
        "train": {"steps": 4, "learning_rate": 1e-6, **train},
    }
    return RunConfig.model_validate(settings)


def model_of(*weights: float) -> nn.Module:
    model = nn.Linear(len(weights), 1, bias=True)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights]))
    return model


@pytest.mark.parametrize("value", [1.0, 1.99, 0.5, 0.0168, 3.0, 1e-20])
def test_the_spacing_is_the_distance_to_the_next_number_of_bfloat16(value):
    lower = torch.tensor(value).bfloat16()
    if float(lower) > value:
        lower = torch.nextafter(lower, torch.tensor(0.0, dtype=torch.bfloat16))
    following = torch.nextafter(lower, torch.tensor(torch.inf, dtype=torch.bfloat16))
    assert float(spacing(torch.tensor([value]))) == float(following) - float(lower)


def test_the_distance_is_the_sum_of_the_learning_rates(folder):
    """4 steps of 2 passes over 3 minibatches at 1e-6; a linear schedule of 4 steps has 1 + 3/4 + 2/4 + 1/4 of that."""
    assert distance_of(config(folder, epochs=2, minibatches=3)) == pytest.approx(24e-6)
    assert distance_of(config(folder, schedule="linear")) == pytest.approx(2.5e-6)


def test_steps_that_train_the_critic_alone_move_no_weight_of_the_policy(folder):
    given = config(folder).model_dump(mode="json", exclude_unset=True)
    ppo = RunConfig.model_validate(given | {"algorithm": "ppo", "critic": {"warmup_steps": 3}})
    assert distance_of(ppo) == pytest.approx(1e-6)


def test_the_share_is_that_of_each_weight_and_of_each_matrix_by_its_size(folder):
    """4e-6 is 4e-6 * 2^7 of the spacing at 1, four times that share at 0.25, and more than the spacing at 1e-6."""
    assert moved(model_of(1.0, -1.5), config(folder)).share == pytest.approx(4e-6 * 2**7)
    assert moved(model_of(0.25), config(folder)).share == pytest.approx(4e-6 * 2**9)
    assert moved(model_of(1e-6), config(folder)).share == 1.0
    two = nn.ModuleList([model_of(1.0, 1.0, 1.0), model_of(1e-6)])
    assert moved(two, config(folder)).share == pytest.approx((3 * 4e-6 * 2**7 + 1) / 4)


def test_weights_are_drawn_from_everywhere_in_a_matrix():
    """A stride that divides the length of a row would sample only a few columns."""
    columns = torch.arange(1.0, 4097.0).expand(1024, 4096)
    assert len(drawn(columns).unique()) > 2000


def test_there_is_nothing_to_compare_for_adapters_and_frozen_weights(folder):
    assert moved(model_of(1.0), config(folder, lora={"rank": 2})) is None
    assert moved(model_of(1.0).requires_grad_(False), config(folder)) is None


def test_a_weight_that_is_still_in_its_file_counts_as_a_typical_one(folder):
    waiting = model_of(1.0).to("meta")
    assert moved(waiting, config(folder)).share == pytest.approx(moved(model_of(0.02), config(folder)).share)


def test_a_plan_knows_the_rule_without_the_weights(folder):
    """For a weight of 0.02, bfloat16 has a spacing of 2^-13; a quarter of the spacing is 3.05e-5."""
    few, enough = (config(folder, learning_rate=rate) for rate in (7.5e-6, 7.7e-6))
    assert [loses_typical(one) for one in (few, enough, config(folder, lora={"rank": 2}))] == [True, False, False]
    assert assumed_compute(few, 2_000_000, "cpu").dtype == torch.float32
    assert assumed_compute(enough, 2_000_000, "cpu").dtype == torch.bfloat16
    assert assumed_compute(few, 2_000_000, "cuda").dtype == torch.bfloat16


def test_the_share_that_is_rounded_otherwise_is_the_distance_over_the_spacing():
    """The weights are spread evenly over the interval."""
    sizes = torch.rand(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1.0
    for share in (0.05, LEAST_ROUNDED, 0.5):
        distance = share * 2.0**-7
        changed = (sizes.float().bfloat16() != (sizes + distance).float().bfloat16()).double().mean()
        assert float(changed) == pytest.approx(share, abs=0.005)
        assert share_rounded(sizes.float(), distance) == pytest.approx(share)


def test_a_weight_of_a_bfloat16_checkpoint_that_moves_less_than_half_the_spacing_stays_what_it_was():
    """A run on such a model would learn nothing that bfloat16 can show."""
    stored = torch.randn(1000, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    step = 0.2 * spacing(stored.abs())  # below a power of two the spacing is half as large
    assert torch.equal((stored + step).bfloat16().float(), stored)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor on which bfloat16 measures as the fastest precision, whatever this processor is. oneDNN gains nothing
    there, because on this processor its float32 products may not be float32."""
    if not onednn.available():
        pytest.skip("nothing is measured here: PyTorch is built without oneDNN")
    training = {"plain": 8.0, "onednn": 8.0, "bfloat16": 2.0}
    ways = [choice.Decoder(dtype, packed) for dtype in (torch.float32, torch.bfloat16) for packed in (False, True)]
    decoding = dict(zip(ways, (8.0, 4.0, 3.0, 1.0), strict=True))
    measured = choice.Measured(training=training, decoding=decoding, inexact={"onednn": 1.5, "packed": 1.2})
    monkeypatch.setattr(choice, "measure_products", lambda *given, **more: measured)
    for module in (choice, rounding):
        monkeypatch.setattr(module, "has_bfloat16", lambda: True)


def computed(folder: Path, config: RunConfig) -> tuple[torch.dtype, str]:
    """The precision of a run in this folder, and its note on rounding."""
    found = with_compute(load_model(config.model), config, folder, decodes=False)
    return found.compute.dtype, " ".join(note for note in found.notes if "moves a weight by" in note)


def test_auto_is_float32_where_bfloat16_would_lose_the_updates(folder, tmp_path, fast):
    dtype, told = computed(tmp_path, config(folder))
    assert dtype == torch.float32
    assert "auto is float32 here: this run moves a weight by about 4e-06" in told


@pytest.mark.parametrize("more", [{"learning_rate": 1e-3}, {"lora": {"rank": 2}}])
def test_auto_is_what_is_fastest_elsewhere(folder, tmp_path, fast, more):
    assert computed(tmp_path, config(folder, **more)) == (torch.bfloat16, "")


def test_a_run_that_is_told_to_compute_in_bfloat16_does_and_warns_whenever_it_starts(folder, tmp_path, fast):
    for _ in range(2):
        dtype, told = computed(tmp_path, config(folder, precision="bfloat16"))
        assert dtype == torch.bfloat16
        assert "may not hold in float32. Set model.precision=float32" in told


def test_bfloat16_warns_on_a_processor_that_has_no_instructions_for_it(folder, tmp_path, monkeypatch):
    for has in (True, False):
        monkeypatch.setattr(computing, "has_bfloat16", lambda has=has: has)
        for precision in ("float32", "bfloat16"):
            settings = config(folder, learning_rate=1e-3, precision=precision)
            notes = with_compute(load_model(settings.model), settings, None, decodes=False).notes
            slow = any("no bfloat16 instructions" in note for note in notes)
            assert slow == (precision == "bfloat16" and not has)


def test_a_run_that_began_in_bfloat16_before_there_was_the_rule_goes_on_so_and_warns(folder, tmp_path, fast):
    assert computed(tmp_path, config(folder, learning_rate=1e-3))[0] == torch.bfloat16
    dtype, told = computed(tmp_path, config(folder))
    assert dtype == torch.bfloat16
    assert "may not hold in float32" in told


def test_float32_stays_float32_when_steps_are_added_and_on_another_processor(folder, tmp_path, fast):
    long = config(folder, learning_rate=1e-3)
    assert computed(tmp_path, config(folder))[0] == torch.float32
    kept = Compute.read(tmp_path / "compute.json")
    assert kept is not None
    assert computed(tmp_path, long) == (torch.float32, "")
    replace(kept, machine="another processor").write(tmp_path / "compute.json")
    assert computed(tmp_path, long) == (torch.float32, "")


def test_nothing_is_said_where_auto_is_float32_anyway(folder, tmp_path, monkeypatch):
    assert lost(config(folder, precision="float32"), load_model(config(folder).model)) is None
    monkeypatch.setattr(rounding, "has_bfloat16", lambda: False)
    assert lost(config(folder), load_model(config(folder).model)) is None
    monkeypatch.setattr(rounding, "has_bfloat16", lambda: True)
    tiny_model(tmp_path / "model")
    assert lost(config(folder), load_model(config(tmp_path).model)) is None


@pytest.mark.slow
def test_a_run_says_on_file_why_it_is_slower(folder, tmp_path, fast):
    settings = config(folder).model_dump(mode="json", exclude_unset=True)
    settings |= {
        "train": {"steps": 1, "prompts_per_step": 2, "learning_rate": 1e-6},
        "sampling": {"group_size": 2, "max_completion_length": 4},
        "evaluation": {"prompts": 1, "writing": 0},
        "guards": {"max_truncated": 1.0},
        "output": str(tmp_path / "run"),
        "report": False,
    }
    run = posttrain.train(settings)
    assert run.trainer.loaded.compute_dtype == torch.float32
    assert "auto is float32 here: this run moves a weight by" in (run.folder / "events.jsonl").read_text()
