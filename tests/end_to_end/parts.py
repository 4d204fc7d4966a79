"""Parts of a run, made from its config as a run makes them and shown by what they do, without the run around them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from peft import PeftModel
from tests.end_to_end.recorded import Effort
from tests.rewards.rollouts import completion, prompt
from torch import Tensor, nn

from posttrain.algorithms import PolicyGradient
from posttrain.config import RunConfig
from posttrain.data.split import read_split
from posttrain.experience.sampled_pairs import AnsweredPrompt, choose
from posttrain.models.policy import load_frozen
from posttrain.rewards import RewardSet
from posttrain.train.critic import Critic, critic_updates
from posttrain.train.judges import Judges
from posttrain.train.optimizer import Updater
from posttrain.train.setup import Policy

PROMPTS = [
    prompt(0, "1 2", answer="12", other_answer="7", hint="3 0"),
    prompt(1, "4 4", answer="4000", other_answer="1", hint="5 0"),
]
ANSWERS = [["12", "2600", "<think>1</think>7", "x9"], ["4000", "99", "7 7 7", "3"]]


def scores(config: RunConfig) -> object:
    """Return what the rewards and the check say about fixed answers. Judges are asked twice, so that they may remember
    and may spend a budget. For a judge that runs here, return how many questions it reads together."""
    groups = [[completion(text) for text in texts] for texts in ANSWERS]

    def said(scorer: RewardSet) -> list[object]:
        judged = any(component.judge is not None for component in scorer.components)
        found = [scorer.score(PROMPTS, groups) for _ in range(2 if judged else 1)]
        return [repr((each.rewards_PG, each.scored_PG, each.parts, len(each.judgements))) for each in found]

    effort = Effort()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as resources:
        rewards, check = Judges.of(config, Path(folder), resources)
        resources.enter_context(effort.measured())
        sets = [*([] if rewards is None else [rewards]), *([] if check is None else [check.in_evaluations])]
        return [said(one) for one in sets], effort.decoded_rows


def policy(config: RunConfig) -> object:
    """Return the weights of policy and critic, and their adapters."""
    made = _policy(config)
    model = made.loaded.model
    adapters = model.peft_config if isinstance(model, PeftModel) else {}
    return (
        _numbers(dict(model.named_parameters())),
        {n: (a.r, a.lora_alpha, a.lora_dropout, sorted(a.target_modules)) for n, a in adapters.items()},
        None if made.critic is None else _numbers(made.critic.parameters),
    )


def frozen(config: RunConfig) -> object:
    """Return the weights of the teacher and of the reference."""
    made, found = _policy(config), dict[str, object]()
    for section in ("teacher", "reference"):
        if (entry := getattr(config, section)) is not None:
            model = load_frozen(section, entry, config, made.loaded, made.forward).model
            found[section] = _numbers(dict(model.named_parameters()))
    return found


def rows(config: RunConfig) -> object:
    """Return the training rows and the held-out rows."""
    return [list(part) for part in read_split(config.data, config.seed)]


def updates(config: RunConfig) -> object:
    """Return a matrix after four updates with fixed gradients."""
    settings = config.train.model_copy(update={"steps": 4})
    matrix = nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0]]))
    updater = Updater([matrix], settings)
    for step in range(1, 5):
        matrix.grad = torch.tensor([[3.0, 0.01], [-2.0 * step, step - 2.5]])
        updater.step(step, lambda norm: None)
    return matrix.tolist()


def updates_of_critic(config: RunConfig) -> object:
    """Return a matrix of the policy and one of the critic after four updates with fixed gradients."""
    policy, critic = (nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0]])) for _ in range(2))
    of_critic = critic_updates(config, cast(Critic, SimpleNamespace(parameters={"head": critic})))
    updater = Updater([policy], config.train.model_copy(update={"steps": 4}), of_critic)
    for step in range(1, 5):
        for matrix in (policy, critic):
            matrix.grad = torch.tensor([[3.0, 0.01], [-2.0 * step, step - 2.5]])
        updater.step(step, lambda norm: None)
    return policy.tolist(), critic.tolist()


def correction(config: RunConfig) -> object:
    """Return the correction of the loss. tests/algorithms/test_correction.py shows what each of its settings does."""
    algorithm = config.algorithm.build()
    assert isinstance(algorithm, PolicyGradient)
    return algorithm.correction


def pairs(config: RunConfig) -> object:
    """Return the pairs that are made of answers with these scores."""
    assert config.sampled_pairs is not None
    groups = [(0.1, 0.9, 0.5, 0.3), (0.6, 0.1, 0.2), (0.5, 0.2, 0.4)]
    return [choose(config.sampled_pairs, _answered(*group), config.seed) for group in groups]


def _policy(config: RunConfig) -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        return Policy.of(config, config.algorithm.build(), Path(folder))


def _numbers(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Sequence[int], Any]]:
    return {name: (tuple(x.shape), x.detach().double().sum().item()) for name, x in tensors.items()}


def _answered(*scores: float) -> AnsweredPrompt:
    texts = [completion(f"{number}") for number, _ in enumerate(scores)]
    return AnsweredPrompt(prompt=prompt(7), completions=texts, scores=scores, parts={})
