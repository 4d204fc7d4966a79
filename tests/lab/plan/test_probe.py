"""A probe measures a real step of a small model and saves its result. Later plans use the result and say so."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from posttrain.config import load_config
from posttrain.lab.plan import probe as probing
from posttrain.lab.plan import stand_in, target
from posttrain.lab.plan.api import make_plan
from posttrain.lab.plan.architecture import read_architecture
from posttrain.lab.plan.hardware import find_hardware, known_device
from posttrain.lab.plan.records import MemoryPlan, Part, Phase, Workload
from posttrain.lab.plan.target import Calibration, corrected, processor, processor_here, save, saved

CONFIG = {
    "model": "tiny:sort",
    "algorithm": "grpo",
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "sampling": {"max_completion_length": 100},
    "train": {"steps": 2},
}
FOUND = Calibration(
    machine=processor(), date="2026-11-01", what="a test", float32=2e11, bfloat16=None, bandwidth=4e10, compute=0.5,
    layer_call=1e-3, memory=1.5,
)  # fmt: skip


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_measured_replaces_peaks_and_shares_and_is_said():
    assert saved(processor()) is None
    assert "assumed" in make_plan(CONFIG).render()
    save(FOUND)
    save(replace(FOUND, machine="another"))
    assert saved(processor()) == FOUND
    hardware = processor_here()
    assert hardware.rate("float32") == 1e11
    assert hardware.bandwidth == 4e10
    told = make_plan(CONFIG).render()
    assert "measured on 2026-11-01 with a test" in told
    assert "inexact parts times 1.50" in told


def test_a_file_that_cannot_be_read_counts_as_none(empty_cache):
    file = save(FOUND)
    for content in ("{", "[]", json.dumps({processor(): {"machine": 1}})):
        file.write_text(content)
        assert saved(processor()) is None


def test_a_card_that_was_measured_elsewhere_is_planned_as_it_was_measured(tmp_path, monkeypatch):
    """Results are found by the name that the driver reports. A probe on the machine itself takes precedence."""
    name = "NVIDIA H100 80GB HBM3"
    shared = replace(FOUND, machine=name, bfloat16=7e14, compute=0.5, memory=1.0)
    monkeypatch.setattr(target, "MEASURED", tmp_path / "measured.json")
    assert target.as_measured(find_hardware("h100")).rate("bfloat16") == pytest.approx(0.55 * 989e12)
    target.MEASURED.write_text(json.dumps({name: vars(shared), "NVIDIA Unheard Of": {"machine": 1}}))
    assert target.as_measured(find_hardware("8xh100")).rate("bfloat16") == 3.5e14
    assert target.as_measured(find_hardware("a100")) == find_hardware("a100")
    told = make_plan(CONFIG, gpus="h100").render()
    assert "measured on 2026-11-01 with a test" in told
    assert "computed from data sheets" not in told
    assert "computed from data sheets" in make_plan(CONFIG, gpus="a100").render()
    here = lambda: target.gpu_here(name, total=80 * 2**30, free=70 * 2**30)  # noqa: E731
    assert here().rate("bfloat16") == 3.5e14
    save(replace(shared, compute=0.6))
    assert here().rate("bfloat16") == pytest.approx(4.2e14)
    assert here().memory == 70 * 2**30


def test_what_the_package_says_of_measured_cards_can_be_read():
    told = json.loads(target.MEASURED.read_text())
    assert {name: known_device(name) is not None for name in told} == dict.fromkeys(told, True)
    assert set(target._entries(target.MEASURED)) == set(told)


def test_only_what_is_not_exactly_known_is_corrected():
    parts = tuple(Part(role="policy", what=what, bytes=100) for what in ("weights", "optimizer state", "activations"))
    workload = Workload(architecture=read_architecture("0.5b"), algorithm="sft", needs=frozenset())
    memory = MemoryPlan(workload=workload, phases=(Phase(name="train", parts=parts),))
    assert corrected(memory, 1.0) == 300
    assert corrected(memory, 1.2) == 320


def test_a_large_model_is_stood_for_by_a_small_one_of_its_kind(tmp_path):
    stand_in.build_model(read_architecture("30b-a3b"), tmp_path / "model", torch.device("cpu"))
    built = read_architecture(str(tmp_path / "model"))
    assert 1e6 < built.parameters < stand_in.SIZES["cpu"].parameters


@pytest.mark.slow
def test_a_probe_measures_a_step_corrects_the_plan_and_is_remembered(capsys):
    config = load_config(CONFIG).config
    probed = probing.probe_and_plan(config, make_plan(config, price=2.0, mean_completion_tokens=4).target)
    assert saved(processor()) == probed.calibration
    assert probed.measured["bytes"] == pytest.approx(probed.predicted["bytes"], rel=0.5)
    for name in ("generate", "train"):
        assert probed.measured[name] > 0
    assert probed.after.hardware.efficiency.source.startswith("measured on ")
    assert probed.render().startswith("Probe    a model of ")
    assert capsys.readouterr().out == "", "warnings of the small run must not be printed"
    later = make_plan(config, price=2.0, mean_completion_tokens=4)
    assert later.step_seconds == pytest.approx(probed.after.step_seconds)
    assert later.dollars == pytest.approx(probed.after.dollars)
