"""A run computes in the way chosen before its first step, up to its last evaluation and also after a resume."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.catalogue import few
from tests.tiny import tiny_model, write_prompts

import posttrain
from posttrain.cpu import choice, onednn
from posttrain.cpu.kernels import SWITCH, found, kernels, made_by, why_none
from posttrain.cpu.onednn import PackedLinear
from posttrain.models.compute import Compute, machine
from posttrain.train import computing
from posttrain.train.run import Run

pytestmark = pytest.mark.skipif(not onednn.available(), reason="PyTorch is built without oneDNN here")

WIDE = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3, "head_dim": 64}
"""A model of 1.2 million parameters: large enough to be measured, with head sizes that the kernels support."""
PLANTED = {"hidden_size": 64, "head_dim": 64}
"""A model for choices that a test plants, with the same head sizes."""


def is_float32(product: choice.Product) -> bool:
    """Whether a run may choose this float32 product here. Processors with AMX round the factors to bfloat16."""
    generator = torch.Generator().manual_seed(0)
    (weight,) = choice.random_weights(choice.Shape(192, 512, layers=1), generator)
    a, b = choice.factors_of_training(weight, generator)[0]
    return choice.error(product, a, b) <= choice.EXACT * choice.error(choice.plain, a, b)


ONEDNN = onednn.available() and is_float32(choice.through_onednn)
EVERYTHING = Compute(
    matmul="onednn" if ONEDNN else "plain",
    sampler="packed",
    kernels="compiled" if kernels() else "torch",
    compiler=made_by(),
    why="planted",
    precision="auto",
    machine=machine(),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("computing")
    tiny_model(folder / "model", **PLANTED)
    tiny_model(folder / "wide", **WIDE)
    write_prompts(folder / "prompts.jsonl", count=20)
    return folder


def settings(folder: Path, name: str, **train) -> dict[str, object]:
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0.2},
        "rewards": [{"name": "repetition", "settings": {"n": 1}}],
        "sampling": {"group_size": 4, "max_completion_length": 6},
        "train": {"steps": 4, "prompts_per_step": 2, "learning_rate": 1e-3, **train},
        "evaluation": {"writing": 0, "prompts": 3, "samples": 1},
        "checkpoint": {"every": 2, "keep": 9},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / name),
        "report": False,
    }


def train(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, chosen: Compute = EVERYTHING, **train) -> Run:
    monkeypatch.setattr(computing, "choose_compute", lambda *given, saved=None, **more: saved or chosen)
    return posttrain.train(settings(folder, name, **train))


def weights(run: Run) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in run.trainer.loaded.model.state_dict().items()}


def events(run: Run, kind: str) -> list[str]:
    lines = (run.folder / "events.jsonl").read_text().splitlines()
    return [event["message"] for event in map(json.loads, lines) if event["kind"] == kind]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16], torch.float32))
def test_a_run_samples_from_packed_weights_and_proves_each_delivery(dtype, folder, monkeypatch):
    run = train(folder, f"packed-{dtype}", monkeypatch, replace(EVERYTHING, dtype=dtype))
    sampler = run.feed.generator.sampler
    assert any(isinstance(module, PackedLinear) for module in sampler.model.modules())
    assert sampler.compute.kernels == EVERYTHING.kernels
    assert sampler.version == 4
    compared = [row["publish/tensors_compared"] for row in run.metrics]
    assert compared == [len(list(run.trainer.loaded.model.named_parameters(remove_duplicate=False))) + 2] * 4
    assert events(run, "compute") == [f"{run.trainer.loaded.compute.describe()} (planted)"]


@pytest.mark.slow
def test_float32_products_through_onednn_and_packed_sampling_change_rounding_only(folder, monkeypatch):
    """One step from the same start draws the same samples, and the log-probabilities agree to 1e-4."""
    plain = train(folder, "plain", monkeypatch, Compute(), steps=1)
    fast = train(folder, "fast", monkeypatch, steps=1)
    for name in ("loss", "grad_norm", "reward/mean"):
        ours, theirs = ([row.get(name) for row in run.metrics] for run in (plain, fast))
        assert ours == pytest.approx(theirs, abs=1e-4), name
    gap = [row["sampling/sampling_logp_difference/max"] for row in fast.metrics]
    assert max(gap) < 1e-4


@pytest.mark.parametrize(
    ("name", "every", "dtype"),
    [
        ("resumed", 1, torch.bfloat16),
        pytest.param("resumed, held", 3, torch.float32, marks=pytest.mark.slow),
        pytest.param("resumed", 1, torch.float32, marks=pytest.mark.slow),
        pytest.param("resumed, held", 3, torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_computes_as_it_began_and_ends_in_the_same_bits(name, every, dtype, folder, monkeypatch):
    """The choice of the start holds, also if the sampler's weights are older than those of the checkpoint."""
    chosen = replace(EVERYTHING, dtype=dtype)
    whole = train(folder, f"{name} {dtype} whole", monkeypatch, chosen, publish_every=every)
    stopped = train(folder, f"{name} {dtype} stopped", monkeypatch, chosen, publish_every=every, steps=2)
    monkeypatch.setattr(computing, "choose_compute", lambda *given, saved=None, **more: saved or Compute())
    resumed = posttrain.resume(stopped.folder, steps=4)
    assert resumed.trainer.loaded.compute == chosen
    expected = weights(whole)
    assert all(torch.equal(tensor, expected[key]) for key, tensor in weights(resumed).items())


@pytest.mark.slow
def test_a_run_that_began_before_there_was_a_choice_goes_on_in_the_plain_way(folder, monkeypatch):
    stopped = train(folder, "earlier", monkeypatch, Compute(), steps=1)
    assert not (stopped.folder / computing.FILE).exists()
    monkeypatch.setattr(computing, "choose_compute", lambda *given, saved=None, **more: saved or EVERYTHING)
    resumed = posttrain.resume(stopped.folder, steps=2)
    assert resumed.trainer.loaded.compute == Compute()


@pytest.mark.slow
def test_a_run_that_is_given_the_choice_of_another_computes_like_it(folder, monkeypatch):
    (folder / "repeated").mkdir()
    EVERYTHING.write(folder / "repeated" / computing.FILE)
    assert train(folder, "repeated", monkeypatch, Compute(), steps=1).trainer.loaded.compute == EVERYTHING


@pytest.mark.slow
def test_a_run_that_goes_on_elsewhere_says_that_its_bits_will_differ(folder, monkeypatch):
    stopped = train(folder, "moved", monkeypatch, replace(EVERYTHING, machine="another processor"), steps=1)
    here = replace(EVERYTHING, matmul="plain")
    monkeypatch.setattr(computing, "choose_compute", lambda *given, saved=None, **more: here)
    resumed = posttrain.resume(stopped.folder, steps=2)
    assert Compute.read(resumed.folder / computing.FILE) == here
    (told,) = [message for message in events(resumed, "warning") if "last bits" in message]
    assert f"{stopped.trainer.loaded.compute.describe()} on another processor" in told
    assert "and continues in float32, sampling" in told


@pytest.mark.slow
@pytest.mark.skipif(kernels() is None, reason=f"no compiled kernels: {why_none()}")
def test_a_run_whose_kernels_are_gone_goes_on_without_them_and_says_so(folder, monkeypatch):
    stopped = posttrain.train(settings(folder, "kernels gone", steps=1) | {"model": str(folder / "wide")})
    assert stopped.trainer.loaded.compute.kernels == "compiled"
    monkeypatch.setenv(SWITCH, "torch")
    found.cache_clear()
    try:
        resumed = posttrain.resume(stopped.folder, steps=2)
    finally:
        found.cache_clear()
    assert resumed.trainer.loaded.compute.kernels == "torch"
    assert resumed.feed.generator.sampler.compute.kernels == "torch"
    (told,) = [message for message in events(resumed, "warning") if "last bits" in message]
    assert f"compiled kernels on {machine()}, {stopped.trainer.loaded.compute.compiler} and continues in " in told
    assert "no compiled kernels: POSTTRAIN_KERNELS = torch" in events(resumed, "compute")[-1]


@pytest.mark.slow
def test_a_run_folder_is_evaluated_as_the_run_computed(folder, monkeypatch):
    run = train(folder, "evaluated", monkeypatch, steps=1)
    found = posttrain.evaluate(run.folder).to_json()
    assert {name: found[name] for name in run.evaluation["trained"]} == run.evaluation["trained"]
    assert not any(isinstance(module, PackedLinear) for module in run.trainer.loaded.model.modules())


@pytest.mark.slow
def test_what_a_run_measures_for_itself_is_on_file_and_told(folder):
    """The test plants no choice: the machine's own measurement decides."""
    run = posttrain.train(settings(folder, "measured", steps=1) | {"model": str(folder / "wide")})
    assert Compute.read(run.folder / computing.FILE) == run.trainer.loaded.compute
    assert run.trainer.loaded.compute.machine == machine()
    assert run.describe()["model"].endswith(run.trainer.loaded.compute.describe())
    assert events(run, "compute") == [f"{run.trainer.loaded.compute.describe()} ({run.trainer.loaded.compute.why})"]
