"""What an algorithm declares that it needs is there when it is needed, and nothing is computed that is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.tiny import tiny_model, write_prompts

from posttrain.algorithms import ALGORITHMS, GRPO
from posttrain.algorithms.base import Need
from posttrain.algorithms.settings import settings
from posttrain.config import load_config, to_yaml
from posttrain.report.terminal import TerminalView
from posttrain.train.loop import train_step
from posttrain.train.run import Run
from posttrain.train.setup import set_up
from posttrain.train.store import RunStore
from posttrain.types import Batch

REWARD = "def vowels(prompt, completion, **row):\n    return sum(letter in 'aeiou' for letter in completion) / 8\n"


@settings
class Looking(GRPO):
    """Looks at the policy before each update, and keeps what it saw."""

    key: ClassVar[str] = "looking"
    seen: ClassVar[list[Batch]] = []

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"current"}

    def prepare(self, batch: Batch) -> Batch:
        self.seen.append(batch)
        return super().prepare(batch)


@pytest.fixture(autouse=True)
def looking(monkeypatch) -> type[Looking]:
    monkeypatch.setitem(ALGORITHMS, Looking.key, Looking)  # pyright: ignore[reportArgumentType]
    Looking.seen.clear()
    return Looking


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("needs")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=20)
    (folder / "rewards.py").write_text(REWARD)
    return folder


@pytest.fixture
def build(folder, tmp_path) -> Iterator[Callable[..., Run]]:
    """`build(algorithm, settings)`: a run that stands before its first step."""
    with ExitStack() as resources:

        def built(algorithm: str, settings: Mapping[str, Any] | None = None) -> Run:
            config = {
                "model": {"path": str(folder / "model"), "device": "cpu"},
                "algorithm": algorithm,
                "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0},
                "rewards": [{"function": f"{folder / 'rewards.py'}:vowels"}],
                "sampling": {"group_size": 4, "max_completion_length": 6},
                "train": {"steps": 3, "prompts_per_step": 2, "learning_rate": 0.05},
            }
            resolved = load_config(config, settings or {})
            store = resources.enter_context(RunStore.create(tmp_path / "run", to_yaml(resolved)))
            return set_up(resolved, store, TerminalView(quiet=True), resources)

        yield built


def step(run: Run, number: int = 1) -> Batch:
    batch, _ = train_step(run, run.feed.take(number, version=number - 1).experience, number)
    return batch


@contextmanager
def counted_passes(run: Run) -> Iterator[list[str]]:
    """The forward passes of the policy, in their order: "gradient" or "plain"."""
    passes: list[str] = []

    def note(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        passes.append("gradient" if torch.is_grad_enabled() else "plain")

    body = run.loaded.model.get_base_model() if hasattr(run.loaded.model, "get_base_model") else run.loaded.model
    handle = body.model.register_forward_pre_hook(note, with_kwargs=True)  # type: ignore[union-attr]
    yield passes
    handle.remove()


def passes_of_a_step(run: Run) -> list[str]:
    experience = run.feed.take(1, version=0).experience
    train_step(run, experience, 1)  # the first pass of a model also finds out how it is run
    with counted_passes(run) as passes:
        train_step(run, experience, 2)
    return passes


# --- log-probabilities of the policy ----------------------------------------------------------------------------------


def test_exactly_on_policy_there_is_one_pass_per_update(build):
    assert passes_of_a_step(build("grpo")) == ["gradient"]


def test_the_old_pass_comes_once_for_all_updates_of_a_batch(build):
    run = build("grpo", {"train.minibatches": 2, "train.epochs": 2})
    assert passes_of_a_step(run) == ["plain", *["gradient"] * 4]


@pytest.mark.parametrize(("kl_coef", "passes"), [(0.0, ["gradient"]), (0.1, ["plain", "gradient"])])
def test_the_reference_pass_is_skipped_when_its_weight_is_0(build, kl_coef, passes):
    """With adapters the reference is the same modules, so its passes are counted, too."""
    run = build("grpo", {"algorithm.kl_coef": kl_coef, "lora": {"rank": 2}})
    assert passes_of_a_step(run) == passes


def test_the_present_policy_is_looked_at_before_each_update_but_never_twice(build):
    """One update: one pass for it. Several: the old pass tells for the first of them."""
    assert passes_of_a_step(build("looking")) == ["plain", "gradient"]


def test_the_old_pass_is_the_look_before_the_first_update(build):
    run = build("looking", {"train.epochs": 3})
    assert passes_of_a_step(run) == ["plain", "gradient", *["plain", "gradient"] * 2]


def test_what_is_seen_before_an_update_is_the_policy_of_that_moment(build):
    batch = step(build("looking", {"train.epochs": 2}))
    first, second = Looking.seen
    mask_BT = batch.completion_mask_BT
    assert first.current_logprobs_BT is not None
    assert second.current_logprobs_BT is not None
    torch.testing.assert_close(first.current_logprobs_BT[mask_BT], first.sampling_logprobs_BT[mask_BT])
    assert torch.equal(first.current_logprobs_BT, first.old_logprobs_BT)
    assert (second.current_logprobs_BT - first.current_logprobs_BT)[mask_BT].abs().max() > 1e-3
    assert torch.equal(second.old_logprobs_BT, first.old_logprobs_BT), "the anchor of the ratio stays"
