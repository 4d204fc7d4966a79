"""The optimal token baseline (arXiv:2602.07078): by hand, compared with its definition in loops, and in a run."""

import pytest
import torch
from tests.catalogue import catalogue
from torch import Tensor

from posttrain import presets
from posttrain.algorithms import ComposedPolicyGradient
from posttrain.errors import ConfigError
from posttrain.functional.baselines import optimal_token_baseline
from posttrain.types import Experience

OTB = ComposedPolicyGradient(baseline="optimal_token", normalisation="none", kl="none", aggregation="token_mean")


def two_answers(rewards: list[float], token_rewards_BT: Tensor | None = None) -> Experience:
    """Return answers of two and three tokens. w = [0.5, 0.8], [0.08, 0.5, 0.5] and W = [0.5, 1.3], [0.08, 0.58,
    1.08]."""
    probs_BT = torch.tensor([[0.5, 0.25, 0.0], [0.8, 0.5, 0.5]], dtype=torch.float64)
    return Experience.from_rewards(
        torch.tensor([rewards], dtype=torch.float64),
        completion_mask_BT=torch.tensor([[1, 1, 0], [1, 1, 1]]),
        old_logprobs_BT=probs_BT.log(),
        squared_probs_BT=torch.tensor([[0.5, 0.3, 0.0], [0.68, 0.5, 0.5]], dtype=torch.float64),
        token_rewards_BT=token_rewards_BT,
    )


def advantages(*given, **more) -> list[list[float]]:
    return OTB.advantages(two_answers(*given, **more)).tolist()


def test_worked_advantages():
    """The baselines are 0.5 / 0.58 and 1.3 / 1.88. No other answer has a third token, so its baseline is 0."""
    first, second = advantages([1.0, 0.0])
    assert first == pytest.approx([1 - 0.8620689655, 1 - 0.6914893617, 0])
    assert second == pytest.approx([-0.8620689655, -0.6914893617, 0])


def test_the_end_of_the_longest_answer_has_its_return():
    """The baselines are 0.08 / 0.58 and 0.58 / 1.88."""
    first, second = advantages([0.0, 1.0])
    assert first == pytest.approx([-0.1379310345, -0.3085106383, 0])
    assert second == pytest.approx([0.8620689655, 0.6914893617, 1])


def test_rewards_of_tokens_count_from_their_token_on():
    """Returns [1.2, 1], [0.3, 0.3, 0.3] give baselines (0.5 * 1.2 + 0.08 * 0.3) / 0.58, (1.3 + 0.58 * 0.3) / 1.88."""
    rewards_BT = torch.tensor([[0.2, 0.0, 9.0], [0.0, 0.0, 0.3]], dtype=torch.float64)
    first, second = advantages([1.0, 0.0], token_rewards_BT=rewards_BT)
    assert first == pytest.approx([1.2 - 1.0758620690, 1 - 0.7840425532, 0])
    assert second == pytest.approx([0.3 - 1.0758620690, 0.3 - 0.7840425532, 0.3])


def test_equal_rewards_have_advantages_of_exactly_zero():
    assert advantages([0.1, 0.1]) == [[0, 0, 0], [0, 0, 0]]


def test_an_answer_without_a_reward_is_in_no_baseline():
    assert advantages([1.0, float("nan")]) == [[0, 0, 0], [0, 0, 0]], "one answer is left: a group without signal"


@catalogue("seed", range(5))
def test_it_is_the_weighted_mean_of_the_returns_of_those_that_have_such_a_token(seed: int):
    """Positions count only tokens of the completion, whatever is between them. The weighted errors sum to 0."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns, group = 8, 9, 4
    returns_BT, probs_BT, extra_BT = torch.rand(3, rows, columns, generator=generator, dtype=torch.float64)
    squared_BT, mask_BT = probs_BT**2 + 0.1 * extra_BT, torch.rand(rows, columns, generator=generator) < 0.7
    found_BT = optimal_token_baseline(returns_BT, probs_BT.log(), squared_BT, mask_BT, group)
    places = [mask_BT[row].nonzero().flatten().tolist() for row in range(rows)]
    for start in range(0, rows, group):
        for t in range(columns):
            having = [row for row in range(start, start + group) if t < len(places[row])]
            reached = {row: places[row][: t + 1] for row in having}
            weight = {row: sum(1 - 2 * probs_BT[row, s] + squared_BT[row, s] for s in reached[row]) for row in having}
            total = sum(weight[row] * returns_BT[row, places[row][t]] for row in having)
            expected = float(total / sum(weight.values())) if len(having) > 1 else 0.0
            assert [float(found_BT[row, places[row][t]]) for row in having] == pytest.approx([expected] * len(having))
    assert (found_BT[~mask_BT] == 0).all()


def test_the_preset_of_verl_has_these_advantages_and_the_clip_of_its_loss():
    algorithm = presets["verl-otb"]
    assert isinstance(algorithm, ComposedPolicyGradient)
    assert algorithm.advantages(two_answers([0.0, 1.0])).tolist() == advantages([0.0, 1.0])
    read = {name: algorithm.values[name] for name in ("clip_low", "clip_high", "dual_clip", "kl_coef", "gamma")}
    assert read == {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0, "kl_coef": 0.0, "gamma": 1.0}


def test_without_the_squared_probabilities_it_says_what_is_missing():
    experience = Experience.from_rewards(torch.tensor([[1.0, 0.0]]), completion_mask_BT=torch.ones(2, 1))
    with pytest.raises(ConfigError, match="squared_probs_BT: the sum over the vocabulary"):
        OTB.advantages(experience)


def test_it_compares_completions_and_gives_each_token_its_own_advantage():
    assert OTB.group_size_needed == 2
    with pytest.raises(ConfigError, match="Set normalisation = none"):
        ComposedPolicyGradient(baseline="optimal_token")
    with pytest.raises(ConfigError, match="one advantage per completion"):
        ComposedPolicyGradient(baseline="optimal_token", normalisation="none", ratio="sequence")
