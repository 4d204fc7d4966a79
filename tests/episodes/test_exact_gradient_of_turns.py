"""The gradient of a trajectory is that of its drawn tokens alone.

A world of two turns: the policy says a word, the world answers by chance (which answer how often depends on the word),
the policy says another word; or it ends at once. Every trajectory is enumerated, and goes the way of a run: records,
assembly, the packed forward pass, advantages, loss. Averaged with its probability, the gradient is that of the expected
reward, which autograd gives in one line.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from posttrain.algorithms import REINFORCE, RLOO, PolicyGradient
from posttrain.experience.assemble import assemble
from posttrain.experience.group import Group
from posttrain.models.forward import token_logprobs
from posttrain.types import Batch, Completion, Experience, Outputs, Prompt, count_totals

PROMPT = Prompt(index=0, ids=(1, 5), text="")
WORDS, END, ANSWERS = (7, 8), 2, (20, 21)
HEADER = (30, 31)
"""What stands between an answer of the world and the next word."""


def chance(word: int, answer: int) -> float:
    """Of the world's answer."""
    right = {7: 0.8, 8: 0.35}[word]
    return right if answer == ANSWERS[0] else 1 - right


def trajectory(first: int, answer: int | None = None, second: int | None = None, *, anew: bool = False) -> Completion:
    """`anew`: the second turn sees a history that was written for it, and not what was sampled."""
    if answer is None or second is None:
        return Completion(ids=(first,), logprobs=(0.0,), versions=(0,), finish_reason="eos", text="")
    between = (*PROMPT.ids, 9, answer, *HEADER) if anew else (answer, *HEADER)
    return Completion(
        ids=(first, *between, second),
        logprobs=(0.0, 0.0),
        versions=(0, 0),
        finish_reason="eos",
        text="",
        given=((1, 1 + len(between)),),
        starts=(1,) if anew else (),
    )


class Everything:
    """All trajectories of the world, with what the policy and the world make of each."""

    def __init__(self, *, anew: bool) -> None:
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=32, initializer_range=0.3)
        model = GPT2LMHeadModel(config).double().eval().requires_grad_(False)  # all of it in float64, norms too
        self.weights = dict(model.named_parameters())["transformer.h.0.mlp.c_proj.weight"].requires_grad_()
        paths = [(END,), *itertools.product(WORDS, ANSWERS, (*WORDS, END))]
        self.trajectories = [trajectory(*path, anew=anew) for path in paths]
        chances = [chance(*path[:2]) if len(path) > 1 else 1.0 for path in paths]
        self.chances_C = torch.tensor(chances, dtype=torch.float64)
        self.rewards_C = (1 + (2.3 * torch.arange(1, len(paths) + 1).double()).sin()) / 2
        experience = assemble([Group(prompt=PROMPT, completions=tuple(self.trajectories))], pad_id=0)
        assert experience.tokens is not None
        self.mask_CT = experience.completion_mask_BT
        logprobs_CT = token_logprobs(model, experience.tokens, self.mask_CT, temperature=1.0).logprobs_BT
        self.logprobs_CT = self._among_these(model, experience, logprobs_CT)

    def _among_these(self, model, experience: Experience, logprobs_CT: Tensor) -> Tensor:
        """Of a policy that can say these three words alone, so that the enumeration is complete."""
        assert experience.tokens is not None
        total_CT = torch.zeros_like(logprobs_CT)
        for word in (*WORDS, END):
            ids_CT = experience.tokens.input_ids_BT.masked_fill(self.mask_CT, word)
            for place in range(self.mask_CT.shape[1]):  # each word in its place, behind what was really said
                only_CT = self.mask_CT & (torch.arange(self.mask_CT.shape[1]) == place)
                if only_CT.any():
                    own_CT = torch.where(only_CT, ids_CT, experience.tokens.input_ids_BT)
                    tokens = replace(experience.tokens, input_ids_BT=own_CT)
                    found_CT = token_logprobs(model, tokens, only_CT, temperature=1.0).logprobs_BT
                    total_CT = total_CT + torch.where(only_CT, found_CT.exp(), 0.0)
        return torch.where(self.mask_CT, logprobs_CT - total_CT.clamp(min=1e-300).log(), 0.0)

    @property
    def probabilities_C(self) -> Tensor:
        return self.logprobs_CT.sum(dim=-1).exp() * self.chances_C

    def exact(self) -> Tensor:
        return torch.autograd.grad((self.probabilities_C * self.rewards_C).sum(), self.weights, retain_graph=True)[0]

    def expected(self, algorithm: PolicyGradient, group_size: int) -> Tensor:
        """Minus the mean gradient of the loss over every group that can be drawn."""
        expected = torch.zeros((), dtype=torch.float64)
        for group in itertools.combinations_with_replacement(range(len(self.trajectories)), group_size):
            orders = math.factorial(group_size) // math.prod(map(math.factorial, Counter(group).values()))
            chosen = list(group)
            logprobs_BT = self.logprobs_CT[chosen]
            experience = Experience.from_rewards(
                self.rewards_C[chosen][None],
                completion_mask_BT=self.mask_CT[chosen],
                old_logprobs_BT=logprobs_BT.detach(),
                sampling_logprobs_BT=logprobs_BT.detach(),
            )
            batch = algorithm.prepare(algorithm.to_batch(experience, algorithm.initial_state()))
            assert isinstance(batch, Batch)
            loss, _ = algorithm.loss(Outputs(logprobs_BT), batch, count_totals(batch))
            expected = expected + orders * self.probabilities_C[chosen].detach().prod() * loss
        return -torch.autograd.grad(expected, self.weights, retain_graph=True)[0]


@pytest.fixture(scope="module", params=[False, True], ids=["goes on", "begins anew"])
def everything(request: pytest.FixtureRequest) -> Everything:
    return Everything(anew=request.param)


def test_every_trajectory_is_there(everything: Everything):
    assert len(everything.trajectories) == 13
    assert everything.probabilities_C.sum().item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "group_size"),
    [(REINFORCE(baseline="none"), 1), (REINFORCE(baseline="none"), 2), (RLOO(), 2)],
    ids=["reinforce-1", "reinforce-2", "rloo-2"],
)
def test_averages_to_the_gradient_of_the_expected_reward(
    everything: Everything, algorithm: PolicyGradient, group_size: int
):
    exact = everything.exact()
    assert exact.norm() > 1e-4
    torch.testing.assert_close(everything.expected(algorithm, group_size), exact, atol=1e-9, rtol=0)
