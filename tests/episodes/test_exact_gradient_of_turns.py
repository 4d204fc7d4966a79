"""The gradient of a trajectory comes from its drawn tokens alone.

The environment has two turns: the policy says a word, the environment answers by chance (with probabilities that depend
on the word), and the policy says another word; or the policy ends after the first word. Each turn may have its own
reward. The test enumerates every trajectory and passes it through the parts of a run: records, assembly, the packed
forward pass, advantages, loss. The mean gradient, weighted with the probabilities, must be the gradient of the expected
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

from posttrain.algorithms import REINFORCE, RLOO, ComposedPolicyGradient, PolicyGradient
from posttrain.algorithms.credit import ByTurn, Credit, Whole
from posttrain.experience.assemble import assemble
from posttrain.experience.group import Group
from posttrain.models.forward import token_logprobs
from posttrain.types import Batch, Completion, Experience, Outputs, Prompt, count_totals

PROMPT = Prompt(index=0, ids=(1, 5), text="")
WORDS, END, ANSWERS = (7, 8), 2, (20, 21)
HEADER = (30, 31)
"""The tokens between an answer of the environment and the next word."""
WHOLE = Whole()


def chance(word: int, answer: int) -> float:
    """The probability of the environment's answer after a word."""
    right = {7: 0.8, 8: 0.35}[word]
    return right if answer == ANSWERS[0] else 1 - right


def trajectory(first: int, answer: int | None = None, second: int | None = None, *, anew: bool = False) -> Completion:
    """One trajectory; with `anew`, the second turn sees a rewritten history and not the sampled tokens."""
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
    """All trajectories of the environment, with their probabilities and rewards."""

    def __init__(self, *, anew: bool) -> None:
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=32, initializer_range=0.3)
        model = GPT2LMHeadModel(config).double().eval().requires_grad_(False)  # the whole model in float64, norms too
        self.weights = dict(model.named_parameters())["transformer.h.0.mlp.c_proj.weight"].requires_grad_()
        paths = [(END,), *itertools.product(WORDS, ANSWERS, (*WORDS, END))]
        self.trajectories = [trajectory(*path, anew=anew) for path in paths]
        chances = [chance(*path[:2]) if len(path) > 1 else 1.0 for path in paths]
        self.chances_C = torch.tensor(chances, dtype=torch.float64)
        self.rewards_C = (1 + (2.3 * torch.arange(1, len(paths) + 1).double()).sin()) / 2
        first = torch.tensor([0.4 * path[0] - 0.1 * (len(path) > 1 and path[1]) for path in paths], dtype=torch.float64)
        self.first_rewards_C = torch.where(torch.tensor([len(path) > 1 for path in paths]), first.sin(), 0.0)
        experience = assemble([Group(prompt=PROMPT, completions=tuple(self.trajectories))], pad_id=0)
        assert experience.tokens is not None
        self.mask_CT = experience.completion_mask_BT
        logprobs_CT = token_logprobs(model, experience.tokens, self.mask_CT, temperature=1.0).logprobs_BT
        self.logprobs_CT = self._among_these(model, experience, logprobs_CT)

    def _among_these(self, model, experience: Experience, logprobs_CT: Tensor) -> Tensor:
        """Log-probabilities of a policy that has only these three words, so that the enumeration is complete."""
        assert experience.tokens is not None
        total_CT = torch.zeros_like(logprobs_CT)
        for word in (*WORDS, END):
            ids_CT = experience.tokens.input_ids_BT.masked_fill(self.mask_CT, word)
            for place in range(self.mask_CT.shape[1]):  # each word in its place, after the words that were really said
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
        return self.gradient_of(self.rewards_C)

    def gradient_of(self, rewards_C: Tensor) -> Tensor:
        """The gradient of the expected reward."""
        return torch.autograd.grad((self.probabilities_C * rewards_C).sum(), self.weights, retain_graph=True)[0]

    def expected(
        self,
        algorithm: PolicyGradient,
        group_size: int,
        credit: Credit = WHOLE,
        *,
        of_turns: bool = False,
        values_CT: Tensor | None = None,
    ) -> Tensor:
        """Minus the mean gradient of the loss over every group that can be drawn. `of_turns`: first turns that are not
        the last have rewards of their own."""
        first_CT = torch.zeros_like(self.mask_CT, dtype=torch.float64)
        first_CT[:, len(PROMPT.ids)] = self.first_rewards_C
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
                token_rewards_BT=first_CT[chosen] if of_turns else None,
                values_BT=None if values_CT is None else values_CT[chosen],
            )
            batch = algorithm.prepare(credit.to_batch(algorithm, experience, algorithm.initial_state()))
            assert isinstance(batch, Batch)
            outputs = Outputs(logprobs_BT, values_BT=batch.values_BT)
            loss, _ = algorithm.loss(outputs, batch, count_totals(batch))
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
    [
        (REINFORCE(baseline="none"), 1),
        pytest.param(REINFORCE(baseline="none"), 2, marks=pytest.mark.slow),
        (RLOO(), 2),
    ],
    ids=["reinforce-1", "reinforce-2", "rloo-2"],
)
def test_averages_to_the_gradient_of_the_expected_reward(
    everything: Everything, algorithm: PolicyGradient, group_size: int
):
    exact = everything.exact()
    assert exact.norm() > 1e-4
    torch.testing.assert_close(everything.expected(algorithm, group_size), exact, atol=1e-9, rtol=0)


CRITIC = ComposedPolicyGradient(
    baseline="critic",
    normalisation="none",
    ratio="none",
    trust_region="none",
    kl="none",
    aggregation="sequence_sum",
    gae_lambda=1.0,
    value_coef=0.0,
)


@pytest.mark.parametrize(
    ("algorithm", "group_size", "credit"),
    [
        (REINFORCE(baseline="none"), 1, Whole()),
        (REINFORCE(baseline="none"), 1, ByTurn()),
        pytest.param(REINFORCE(baseline="none"), 2, Whole(), marks=pytest.mark.slow),
        pytest.param(REINFORCE(baseline="none"), 2, ByTurn(), marks=pytest.mark.slow),
        (RLOO(), 2, ByTurn()),
        pytest.param(RLOO(), 3, ByTurn(), marks=pytest.mark.slow),
        (CRITIC, 1, Whole()),
        (CRITIC, 1, ByTurn()),
    ],
    ids=["tokens", "turns", "tokens-2", "turns-2", "rloo-2", "rloo-3", "critic of tokens", "critic of turns"],
)
def test_rewards_of_turns_average_to_the_gradient_of_their_expected_sum(
    everything: Everything, algorithm: PolicyGradient, group_size: int, credit: Credit
):
    """Each turn learns from its own and later rewards. The baseline may be any: the other members of the group, even if
    none of them has a second turn, or a critic that knows the turns before."""
    exact = everything.gradient_of(everything.rewards_C + everything.first_rewards_C)
    torch.manual_seed(1)
    values_CT = torch.rand(everything.mask_CT.shape, dtype=torch.float64)
    values_CT[:, len(PROMPT.ids)] = 0.3  # all trajectories are alike before the first word
    seconds = torch.rand(40, 40, dtype=torch.float64)
    for row, one in enumerate(everything.trajectories):
        if one.given:  # before the second word, those with the same first word and the same answer are
            answer = next(token for token in one.ids if token in ANSWERS)
            values_CT[row, len(PROMPT.ids) + one.given[0][1]] = seconds[one.ids[0], answer]
    found = everything.expected(algorithm, group_size, credit, of_turns=True, values_CT=values_CT)
    assert (exact - everything.exact()).norm() > 1e-4, "the rewards of first turns matter"
    torch.testing.assert_close(found, exact, atol=1e-9, rtol=0)


def test_a_turn_that_learns_from_what_came_before_is_no_gradient_of_anything(everything: Everything):
    """This shows that the test can fail: with the critic's one-step errors in place of returns, the average differs."""
    exact = everything.gradient_of(everything.rewards_C + everything.first_rewards_C)
    values_CT = torch.rand(everything.mask_CT.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = everything.expected(replace(CRITIC, gae_lambda=0.0), 1, ByTurn(), of_turns=True, values_CT=values_CT)
    assert (found - exact).norm() > 1e-3
