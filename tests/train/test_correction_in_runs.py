"""Off-policy correction in a run: when `auto` applies one, which passes it costs, what is logged, what is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import tiny_model, write_prompts

from posttrain.config import load_config, to_yaml
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore
from posttrain.train.loop import train_step
from posttrain.train.metrics import MetricLog
from posttrain.train.run import Run
from posttrain.train.setup import set_up
from posttrain.types import Batch

STALE = {"train.publish_every": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("correction")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=20)
    return folder


@pytest.fixture
def build(folder, tmp_path) -> Iterator[Callable[..., Run]]:
    """`build(algorithm, settings)`: a run before its first step."""
    with ExitStack() as resources:

        def built(algorithm: Any, settings: Mapping[str, Any] | None = None, output: str = "run") -> Run:
            config = {
                "model": {"path": str(folder / "model"), "device": "cpu"},
                "algorithm": algorithm,
                "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0},
                "rewards": [{"name": "repetition", "settings": {"n": 1}}],
                "sampling": {"group_size": 4, "max_completion_length": 6},
                "train": {"steps": 3, "prompts_per_step": 2, "learning_rate": 0.05},
            }
            resolved = load_config(config, settings or {})
            store = resources.enter_context(RunStore.create(tmp_path / output, to_yaml(resolved)))
            return set_up(resolved, store, TerminalView(quiet=True), resources)

        yield built


def steps(run: Run, number: int) -> tuple[Batch, dict[str, float]]:
    """The batch and the metrics of step `number`, after the steps before it."""
    batch, metrics = None, MetricLog()
    for step in range(1, number + 1):
        batch, metrics = train_step(run.trainer, run.feed.take(step, version=step - 1).experience, step)
        run.trainer.publish(step)
    assert batch is not None
    return batch, metrics.reduce()


def plain_passes(run: Run) -> int:
    """The number of forward passes of the policy without gradient in one step."""
    experience = run.feed.take(1, version=0).experience
    train_step(run.trainer, experience, 1)  # the first pass of a model also decides how the model is run
    seen: list[bool] = []
    handle = run.trainer.loaded.model.model.register_forward_pre_hook(lambda *_: seen.append(torch.is_grad_enabled()))  # type: ignore[operator,union-attr]
    train_step(run.trainer, experience, 2)
    handle.remove()
    return seen.count(False)


# When a correction is applied


@pytest.mark.parametrize(
    ("algorithm", "settings", "applied"),
    [
        ("grpo", {}, "none"),
        pytest.param("cispo", {}, "none", marks=pytest.mark.slow),
        ("grpo", STALE, "tis"),
        ("cispo", STALE, "bypass"),
        pytest.param("policy_gradient", STALE, "tis", marks=pytest.mark.slow),
        ({"name": "policy_gradient", "trust_region": "weight_clip"}, STALE, "bypass"),
        ("grpo", {"model.precision": "bfloat16"}, "tis"),
        pytest.param("vespo", {"model.precision": "bfloat16"}, "bypass", marks=pytest.mark.slow),
        ({"name": "grpo", "correction": "none"}, STALE, "none"),
        ({"name": "grpo", "correction": "icepop"}, {}, "icepop"),
    ],
)
def test_auto_corrects_as_soon_as_the_sampler_is_not_the_trainers_own_numerics(build, algorithm, settings, applied):
    run = build(algorithm, settings)
    assert run.trainer.algorithm.correction == applied
    named = algorithm if isinstance(algorithm, dict) else {}
    saved = run.resolved.config.algorithm.settings["correction"]
    assert saved == named.get("correction", "auto"), "the config keeps the value that the user gave"


def test_stale_data_is_weighed_and_the_difference_is_logged(build):
    batch, metrics = steps(build("grpo", STALE), 3)
    assert batch.correction_BT is None, "the weights belong to the update, not to the batch"
    assert metrics["mismatch/k3"] > 1e-3
    assert metrics["mismatch/abs_mean"] == pytest.approx(metrics["sampling/sampling_logp_difference/mean"], rel=1e-5)
    assert 0 < metrics["is/ess_fraction"] < 1
    assert metrics["is/truncated_fraction"] > 0
    assert metrics["mismatch/unreported_fraction"] == 0


def test_fresh_data_has_no_weights_and_next_to_no_difference(build):
    _, metrics = steps(build("grpo"), 2)
    assert metrics["mismatch/abs_max"] < 1e-4
    assert not [name for name in metrics if name.startswith("is/")]


# What a correction costs


@pytest.mark.parametrize(
    ("correction", "settings", "passes"),
    [
        ("tis", {}, 0),
        ("tis", {"train.epochs": 2}, 1),
        ("bypass", {"train.epochs": 2}, 0),
        ("a3po", {"train.epochs": 2}, 0),
        ("m2po", {}, 1),
        ({"high": 2, "normalize": True}, {"train.minibatches": 2}, 1),
        ({"anchor": "loglinear", "high": 2, "normalize": True}, {"train.minibatches": 2}, 2),
    ],
)
def test_a_pass_before_the_update_is_made_only_where_the_weights_need_it(build, correction, settings, passes):
    assert plain_passes(build({"name": "grpo", "correction": correction}, settings)) == passes


def test_the_age_of_a_token_reaches_the_anchor(build):
    """Version 0 sampled the data of step 3: the anchor is two thirds of the way from the sampler to the policy."""
    run = build({"name": "grpo", "correction": "a3po"}, STALE)
    batch, _ = steps(run, 3)
    assert batch.version == 2
    assert batch.versions_BT is not None
    assert batch.sampling_logprobs_BT is not None
    assert batch.versions_BT[batch.completion_mask_BT].tolist() == [0] * int(batch.completion_mask_BT.sum())
    now_BT = torch.full_like(batch.sampling_logprobs_BT, -0.5)
    _, anchored = run.trainer.algorithm.start(now_BT, batch)  # type: ignore[attr-defined]
    expected_BT = batch.sampling_logprobs_BT + 2 / 3 * (now_BT - batch.sampling_logprobs_BT)
    mask_BT = batch.completion_mask_BT
    torch.testing.assert_close(anchored.old_logprobs_BT[mask_BT], expected_BT[mask_BT])


def test_an_update_of_which_everything_is_rejected_is_no_update(build):
    rejecting = {"action": "reject", "high": 1e-6, "rejected_in_denominator": False}
    run = build({"name": "grpo", "correction": rejecting})
    before = {name: p.detach().clone() for name, p in run.trainer.loaded.model.named_parameters()}
    _, metrics = steps(run, 1)
    assert "loss" not in metrics
    assert all(torch.equal(p, before[name]) for name, p in run.trainer.loaded.model.named_parameters())


def test_rejected_tokens_leave_the_denominator_of_the_update(build):
    """Some stale tokens are rejected: if they leave the denominator, the other tokens count for more."""
    norms = []
    for kept in (True, False):
        band = {"action": "reject", "low": 0.9, "high": 1.1, "rejected_in_denominator": kept}
        run = build({"name": "policy_gradient", "aggregation": "token_mean", "correction": band}, STALE, f"kept {kept}")
        _, metrics = steps(run, 1)
        assert metrics["is/masked_fraction"] == 0
        _, log = train_step(run.trainer, run.feed.take(2, version=1).experience, 2)
        norms.append(log.reduce())
    assert norms[0]["is/masked_fraction"] > 0.1
    assert norms[1]["grad_norm"] > 1.05 * norms[0]["grad_norm"]
