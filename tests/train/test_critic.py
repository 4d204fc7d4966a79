"""A run with a critic: which critic it gets, what learns when, and a resumed run that equals an uninterrupted one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.catalogue import few
from tests.tiny import tiny_model, write_prompts
from torch import nn

import posttrain
from posttrain.algorithms.critic import KLController
from posttrain.algorithms.ppo import PPO
from posttrain.config import ModelConfig, TrainConfig, load_config
from posttrain.data.collate import collate_examples
from posttrain.errors import CheckpointError, ConfigError, NonFiniteError
from posttrain.functional.masks import masked
from posttrain.models.reward_head import ScoringFacts, load_reward_model, save_reward_model, score_head
from posttrain.store.checkpoint import load_state
from posttrain.train.advantages import Remembering
from posttrain.train.optimizer import CriticUpdates, Updater
from posttrain.train.run import Run
from posttrain.train.setup import Policy
from posttrain.types import Example

KINDS = {
    "separate": {},
    "lora": {"lora.rank": 2, "lora.dropout": 0.1, "critic.rank": 4},
    "shared": {"critic.kind": "shared"},
    "lora-shared": {"lora.rank": 2, "critic.kind": "shared"},
}
every_kind = pytest.mark.parametrize("kind", few(KINDS, "lora"))
"""A critic with adapters of its own. In the warm-up below, the one on the body of the policy learns as well."""
two_kinds = pytest.mark.parametrize("kind", few(["lora", "shared", "separate", "lora-shared"], "shared"))
"""A critic on the body of the policy. The slow tests cover the other kinds of critic and of training."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("critics")
    tiny_model(folder / "model")
    tiny_model(folder / "letters", characters="abc ")
    write_prompts(folder / "prompts.jsonl", count=20)
    return folder


def train(folder: Path, name: str, **overrides) -> Run:
    config = {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": "ppo",
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0},
        "rewards": [{"name": "repetition", "settings": {"n": 1}}],
        "sampling": {"group_size": 4, "max_completion_length": 6},
        "train": {"steps": 2, "prompts_per_step": 2, "learning_rate": 1e-3, "minibatches": 2},
        "evaluation": {"writing": 0},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / name),
        "report": False,
    }
    return posttrain.train(config, **overrides)


def saved(run: Run) -> tuple[dict, dict]:
    checkpoint = run.checkpoints.newest()
    assert checkpoint is not None
    return load_state(checkpoint.state)


def measured(run: Run) -> list[dict]:
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in run.metrics]


def assert_equal(actual, expected, where="") -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for name, value in expected.items():
            assert_equal(actual[name], value, f"{where}/{name}")
    else:
        assert torch.equal(actual, expected), where


# --- which critic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        pytest.param({}, "separate", marks=pytest.mark.slow),
        pytest.param({"lora.rank": 2}, "lora", marks=pytest.mark.slow),
        ({"lora.rank": 2, "critic.kind": "separate"}, "separate"),
    ],
)
def test_a_critic_is_there_without_being_asked_for(folder, settings, kind):
    run = train(folder, f"default-{kind}-{len(settings)}", **settings, **{"train.steps": 1})
    assert run.trainer.critic is not None
    assert run.trainer.critic.kind == kind
    assert run.describe()["critic"].startswith(f"{kind}, ")
    assert {"value/loss", "value/explained_variance", "critic/grad_norm"} <= run.metrics[0].keys()


@pytest.mark.slow
def test_an_algorithm_without_one_has_none(folder):
    run = train(folder, "none", algorithm="grpo", **{"train.steps": 1})
    assert run.trainer.critic is None
    assert "critic/grad_norm" not in run.metrics[0]


@pytest.mark.slow
def test_a_critic_starts_where_its_path_says(folder):
    """It starts from a reward model: the model's head becomes the critic's first head."""
    model = load_reward_model(ModelConfig(path=str(folder / "model"), device="cpu"), seed=5)
    with torch.no_grad():
        score_head(model.model).weight.fill_(0.125)
    save_reward_model(model, folder / "scores", ScoringFacts())
    settings = {"critic.path": str(folder / "scores"), "critic.learning_rate": 0.0, "train.steps": 1}
    run = train(folder, "from-reward-model", **settings)
    assert run.trainer.critic is not None
    assert (run.trainer.critic.head.weight == 0.125).all()


SPREAD = ScoringFacts(mean=1.0, std=4.0, target_mean=3.0, target_std=2.0)


@pytest.mark.parametrize(
    ("facts", "reward", "scale", "offset"),
    [
        (SPREAD, {"settings": {"normalize": True}, "weight": 0.5}, 0.25, 0.5 * (3 - 1) / 4),
        (SPREAD, {}, 2.0, 3.0),
        (ScoringFacts(), {"weight": 3.0}, 3.0, 0.0),
        (SPREAD, {"weight": 0.0}, 1.0, 0.0),
        (replace(SPREAD, link="logistic"), {"weight": 3.0}, 1.0, 0.0),
        (SPREAD, None, 1.0, 0.0),
    ],
)
def test_a_critic_from_a_reward_model_starts_with_what_the_model_adds_to_the_reward(
    folder, tmp_path, monkeypatch, facts, reward, scale, offset
):
    """0.5 (2 z + 3 - 1) / 4 = 0.25 z + 0.25; a logistic score follows no line, and other rewards have none. The reward
    may name the folder in another way."""
    model = load_reward_model(ModelConfig(path=str(folder / "model"), device="cpu"), seed=5)
    begun = score_head(model.model).weight.detach().clone()
    save_reward_model(model, tmp_path / "scores", facts)
    monkeypatch.chdir(tmp_path)
    tree = {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": "ppo",
        "critic": {"path": str(tmp_path / "scores")},
        "data": {"train": str(folder / "prompts.jsonl")},
        "rewards": [{"name": "exact_match"}, *([] if reward is None else [{"model": "scores", **reward}])],
        "train": {"steps": 1},
    }
    config = load_config(tree).config
    critic = Policy.of(config, config.algorithm.build(), tmp_path).critic
    assert critic is not None
    torch.testing.assert_close(critic.head.weight.detach(), scale * begun)
    tokens, mask_BT = collate_examples([Example(index=0, input_ids=(4, 5, 6), completion_mask=(False, True, True))], 0)
    values_BT = critic(tokens, mask_BT)
    critic.offset.value = 0.0
    torch.testing.assert_close(values_BT, masked(critic(tokens, mask_BT) + offset, mask_BT))


@pytest.mark.slow
def test_a_resumed_critic_keeps_the_constant_that_its_run_began_with(folder):
    """A checkpoint of an earlier version has none: its critic has learnt without."""
    model = load_reward_model(ModelConfig(path=str(folder / "model"), device="cpu"), seed=5)
    save_reward_model(model, folder / "apart", SPREAD)
    settings = {"critic.path": str(folder / "apart"), "rewards": [{"model": str(folder / "apart")}]}
    whole = train(folder, "constant-whole", **settings, **{"train.steps": 3})
    first = train(folder, "constant-first", **settings, **{"train.steps": 2})
    resumed = posttrain.resume(first.folder, steps=3)
    assert isinstance(resumed, Run)
    assert_equal(saved(resumed)[0]["critic"], saved(whole)[0]["critic"])
    assert resumed.trainer.critic is not None
    assert resumed.trainer.critic.offset.value == 3.0
    tensors, state = saved(first)
    resumed.trainer.restore(tensors, {k: v for k, v in state.items() if k != "critic_offset"}, first.folder)
    assert resumed.trainer.critic.offset.value == 0.0


def test_a_critic_that_reads_other_ids_is_refused(folder):
    with pytest.raises(ConfigError, match=r"critic.path = .*letters, whose tokenizer differs from the policy's"):
        train(folder, "other-tokenizer", **{"critic.path": str(folder / "letters")})


# --- what learns, and when --------------------------------------------------------------------------------------------


@pytest.mark.slow
@two_kinds
def test_in_its_warm_up_the_critic_learns_and_the_policy_stays(folder, kind):
    settings = {"critic.warmup_steps": 2, "train.steps": 3, "train.minibatches": 1, "algorithm.kl_coef": 0.1}
    run = train(folder, f"warm-up-{kind}", **KINDS[kind] | settings)
    assert [row["learning_rate"] for row in run.metrics] == [0.0, 0.0, 1e-3]
    assert [row["critic/learning_rate"] for row in run.metrics] == [1e-2] * 3
    assert [row["kl"] == 0 for row in run.metrics] == [True, True, True], "the KL of the policy before its first update"
    one_more = train(folder, f"warm-up-longer-{kind}", **KINDS[kind] | settings | {"train.steps": 4})
    assert one_more.metrics[3]["kl"] > 0
    losses = [row["value/loss"] for row in run.metrics]
    assert losses[0] != losses[1] != losses[2]


@every_kind
def test_policy_and_critic_both_learn(folder, kind):
    run = train(folder, f"both-{kind}", **KINDS[kind])
    assert run.trainer.critic is not None
    assert run.trainer.critic.kind == kind.removeprefix("lora-")
    tensors, _ = saved(run)
    start, _ = load_state(run.folder / "checkpoints" / "step-000000" / "state")
    for part in ("policy", "critic"):
        assert any(not torch.equal(tensor, start[part][name]) for name, tensor in tensors[part].items()), part
    assert not any("critic" in name or "value_head" in name for name in tensors["policy"])


@pytest.mark.slow
@two_kinds
def test_splitting_a_step_does_not_change_its_gradients(folder, kind):
    """Promise 1 through a whole run: policy and critic, each with its own gradient norm. tests/end_to_end shows it of
    gradients."""
    settings = KINDS[kind] | {"train.steps": 1, "train.minibatches": 1, "lora.dropout": 0.0}
    if "lora.rank" not in settings:
        del settings["lora.dropout"]
    whole = train(folder, f"whole-{kind}", **settings).metrics[0]
    parts = train(folder, f"parts-{kind}", **settings, **{"train.tokens_per_microbatch": 12}).metrics[0]
    for name in ("loss", "grad_norm", "critic/grad_norm", "value/loss", "value/explained_variance"):
        assert parts[name] == pytest.approx(whole[name], rel=1e-4), name


@pytest.mark.slow
def test_gradient_checkpointing_changes_nothing(folder):
    for kind in ("separate", "lora"):
        settings = KINDS[kind] | {"train.steps": 2} | ({"lora.dropout": 0.0} if kind == "lora" else {})
        plain = train(folder, f"plain-{kind}", **settings)
        again = train(folder, f"checkpointed-{kind}", **settings, **{"train.gradient_checkpointing": True})
        for name in ("grad_norm", "critic/grad_norm", "value/loss"):
            assert [r[name] for r in again.metrics] == pytest.approx([r[name] for r in plain.metrics], rel=1e-4), name


def critic_and_policy() -> tuple[nn.Parameter, nn.Parameter]:
    policy, critic = (nn.Parameter(torch.zeros(1, 2)) for _ in range(2))
    policy.grad, critic.grad = torch.tensor([[3.0, 4.0]]), torch.tensor([[30.0, 40.0]])
    return policy, critic


def test_each_is_clipped_by_its_own_norm():
    config = TrainConfig(steps=10, learning_rate=0.1, max_grad_norm=1.0)
    policy, critic = critic_and_policy()
    updates = CriticUpdates(parameters=[critic], learning_rate=0.5, max_grad_norm=100.0, warmup_steps=0)
    seen = []
    metrics = Updater([policy, critic], config, updates).step(1, seen.append)
    assert seen == [pytest.approx((5**2 + 50**2) ** 0.5)]
    assert (float(metrics["grad_norm"]), float(metrics["critic/grad_norm"])) == (5.0, 50.0)
    torch.testing.assert_close(policy.data, torch.full((1, 2), -0.1))  # Adam's first step moves by the learning rate
    torch.testing.assert_close(critic.data, torch.full((1, 2), -0.5))


def test_a_gradient_of_the_critic_that_is_not_finite_changes_no_weight():
    config = TrainConfig(steps=10, learning_rate=0.1)
    policy, critic = critic_and_policy()
    critic.grad = torch.tensor([[float("nan"), 1.0]])
    updates = CriticUpdates(parameters=[critic], learning_rate=0.5, max_grad_norm=1.0, warmup_steps=0)

    def stop(norm: float) -> None:
        if norm != norm:
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        Updater([policy, critic], config, updates).step(1, stop)
    assert policy.abs().sum() == critic.abs().sum() == 0


def test_in_the_warm_up_the_moments_of_the_policy_stay_empty():
    config = TrainConfig(steps=10, learning_rate=0.1)
    policy, critic = critic_and_policy()
    updates = CriticUpdates(parameters=[critic], learning_rate=0.5, max_grad_norm=1.0, warmup_steps=1)
    updater = Updater([policy, critic], config, updates)
    updater.step(1, lambda norm: None)
    assert policy.abs().sum() == 0
    assert list(updater.tensors()) == ["1"], "only the tensors of the critic"


# --- resuming ---------------------------------------------------------------------------------------------------------


@two_kinds
def test_a_resumed_run_is_the_run_that_was_never_stopped(folder, kind):
    """The weights and moments of the critic, after its warm-up, and the adapted KL weight are restored."""
    settings = KINDS[kind] | {"critic.warmup_steps": 1, "algorithm.kl_target": 0.5}
    whole = train(folder, f"never-stopped-{kind}", **settings, **{"train.steps": 3})
    stopped = train(folder, f"stopped-{kind}", **settings, **{"train.steps": 2})
    resumed = posttrain.resume(stopped.folder, steps=3)
    assert measured(resumed) == measured(whole)
    tensors, plain = saved(whole)
    again, plain_again = saved(resumed)
    assert_equal(again, tensors)
    assert plain_again == plain
    assert plain["algorithm"]["kl_coef"] != 0.02


def test_a_kl_coef_that_is_changed_at_resume_counts_and_is_adapted_from_there(folder):
    run = train(folder, "other-kl-coef", **{"algorithm.kl_target": 0.5})
    first = run.metrics[1]["algorithm/kl_coef"]
    assert 0.019 < first < 0.02, "adapted from 0.02"
    file = run.folder / "config.yaml"
    file.write_text(file.read_text().replace("kl_coef: 0.02", "kl_coef: 1.0"))
    again = posttrain.resume(run.folder, steps=4).metrics
    assert again[2]["algorithm/kl_coef"] == 1.0
    assert 0.95 < again[3]["algorithm/kl_coef"] < 1.0
    unchanged = posttrain.resume(run.folder, steps=5).metrics
    assert unchanged[4]["algorithm/kl_coef"] < again[3]["algorithm/kl_coef"], "it does not begin anew twice"


def test_a_state_of_an_earlier_version_which_does_not_say_where_it_began_is_restored_as_it_is():
    held = Remembering(PPO(kl_coef=1.0, kl_target=0.5), [])
    held.load_state_dict({"kl_coef": 0.3})
    assert held.state == KLController(kl_coef=0.3)


@pytest.mark.slow
def test_a_checkpoint_with_another_critic_is_refused(folder):
    checkpoint = train(folder, "critic-a", **{"train.steps": 1, "lora.rank": 2}).checkpoints.newest()
    other = train(folder, "critic-b", **{"train.steps": 1, "lora.rank": 2, "critic.kind": "shared"})
    assert checkpoint is not None
    with pytest.raises(CheckpointError, match="holds other trained weights than this critic has"):
        other.restore(checkpoint)


def test_numbers_that_are_not_finite_stop_the_run_before_any_weight(folder):
    """A critic's learning rate of 1e30 makes its values infinite in the second step."""
    with pytest.raises(NonFiniteError, match="step 2: the loss is"):
        train(folder, "infinite", **{"critic.learning_rate": 1e30, "train.minibatches": 1})
    error = json.loads((folder / "infinite" / "error.json").read_text())
    assert "value" in str(error)
