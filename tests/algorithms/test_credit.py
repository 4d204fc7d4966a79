"""Credit for turns: worked numbers, limits, invariances and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.catalogue import catalogue
from torch import Tensor

from posttrain.algorithms import (
    ALGORITHMS,
    CISPO,
    DAPO,
    GRPO,
    PPO,
    REINFORCE,
    RLOO,
    ComposedPolicyGradient,
    DrGRPO,
    PolicyGradient,
    ReinforcePlusPlus,
    ReMax,
)
from posttrain.algorithms.credit import ByTurn, Whole, credit_of, no_turns_for
from posttrain.errors import ConfigError
from posttrain.functional.gae import gae
from posttrain.types import Batch, Experience, Outputs, count_totals

MASK = torch.tensor(
    [
        [0, 1, 1, 0, 0, 1, 0],  # two turns: two tokens, then one
        [0, 1, 0, 1, 1, 1, 0],  # two turns: one token, then three
        [0, 1, 1, 1, 0, 0, 0],  # one turn
    ],
    dtype=torch.bool,
)


def experience(
    turn_rewards: list[list[float]], rewards: list[float], mask_BT: Tensor = MASK, **more: Any
) -> Experience:
    """Return one group in float64. The reward of a turn is on its last token."""
    token_rewards_BT = torch.zeros(mask_BT.shape, dtype=torch.float64)
    for row, own in enumerate(turn_rewards):
        ends = [t for t in range(mask_BT.shape[1]) if mask_BT[row, t] and not mask_BT[row, t + 1 : t + 2].any()]
        for place, reward in zip(ends, own, strict=True):
            token_rewards_BT[row, place] = reward
    return Experience.from_rewards(
        torch.tensor([rewards], dtype=torch.float64),
        completion_mask_BT=mask_BT,
        token_rewards_BT=token_rewards_BT if any(map(any, turn_rewards)) else None,
        **more,
    )


PAID = experience([[1, 2], [0, 1], [3]], [0, 3, 0])
"""Returns with a discount of 1/2: 1 + 2/2 = 2 and 2; 0 + 4/2 = 2 and 1 + 3 = 4; 3."""


def by_turn(advantages_BT: Tensor, mask_BT: Tensor = MASK) -> list[list[float]]:
    """Return the advantage of each turn, and check that all tokens of the turn share it."""
    found = []
    for row_T, own_T in zip(advantages_BT, mask_BT, strict=True):
        assert not row_T[~own_T].any()
        turns: list[list[float]] = []
        for t in range(len(own_T)):
            if own_T[t]:
                if t == 0 or not own_T[t - 1]:
                    turns.append([])
                turns[-1].append(row_T[t].item())
        assert all(len(set(turn)) == 1 for turn in turns)
        found.append([turn[0] for turn in turns])
    return found


def credited(algorithm: PolicyGradient, given: Experience = PAID, discount: float = 0.5) -> Batch:
    return ByTurn(discount=discount).to_batch(algorithm, given, algorithm.initial_state())


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_turn_is_compared_with_the_same_turn_of_the_others():
    """The first turns have the returns 2, 2 and 3, and the second turns 2 and 4."""
    centred = by_turn(credited(DrGRPO(max_completion_length=8)).advantages_BT)
    assert centred[0] == pytest.approx([2 - 7 / 3, -1])
    assert centred[1] == pytest.approx([2 - 7 / 3, 1])
    assert centred[2] == pytest.approx([3 - 7 / 3])
    left_out = by_turn(credited(RLOO()).advantages_BT)
    assert left_out == [[-0.5, -2], [-0.5, 2], [1]]
    std_1, std_2 = (1 / 3) ** 0.5, 2**0.5
    normalised = by_turn(credited(GRPO()).advantages_BT)
    assert normalised[0] == pytest.approx([(2 - 7 / 3) / (std_1 + 1e-6), -1 / (std_2 + 1e-6)])
    assert normalised[2] == pytest.approx([(3 - 7 / 3) / (std_1 + 1e-6)])


def test_a_turn_that_no_other_has_is_compared_with_the_last_turns_of_the_others():
    """Without a discount the first trajectory returns 3 and 2. The others have one turn each, with returns 1 and 3."""
    mask_BT = torch.stack([MASK[0], MASK[2], MASK[2]])
    given = experience([[1, 2], [1], [3]], [0, 0, 0], mask_BT)
    assert by_turn(credited(RLOO(), given, 1.0).advantages_BT, mask_BT) == [[1, 0], [-2], [1]]
    alone = replace(given, scored_PG=torch.tensor([[True, False, False]]))
    assert not credited(RLOO(), alone, 1.0).advantages_BT.any(), (
        "nothing is learned if there is nothing to compare with"
    )


def test_a_discount_of_0_leaves_each_turn_its_own_reward():
    assert by_turn(credited(RLOO(), discount=0.0).advantages_BT) == [[1 - 1.5, -2], [-2, 2], [2.5]]


def test_with_an_outcome_alone_and_as_many_turns_a_turn_is_credited_as_the_trajectory():
    """Without a discount both agree bit for bit, for every algorithm that compares the completions of a prompt."""
    mask_BT = MASK[[0, 1, 1, 0]].repeat(2, 1)
    rewards_PG = torch.tensor([[0.3, 1.0, 0.1, 0.7], [0.0, 0.0, 1.0, 0.2]])
    given = Experience.from_rewards(rewards_PG, completion_mask_BT=mask_BT)
    compared = 0
    for algorithm in comparing(max_completion_length=8):
        if algorithm.key in ("opo", "reinforce_plus_plus_baseline", "lite_ppo", "gpg"):
            continue  # these weight by tokens, or by completions of the batch
        compared += 1
        whole, turns = (credit.to_batch(algorithm, given) for credit in (Whole(), ByTurn()))
        assert torch.equal(whole.advantages_BT, turns.advantages_BT), algorithm.key
    assert compared > 8


def comparing(**settings: Any) -> list[PolicyGradient]:
    """Return the algorithms that can treat turns as completions."""
    found = []
    for key, cls in ALGORITHMS.items():
        if cls.data_kind != "prompts":
            continue
        own = {name: value for name, value in settings.items() if name in cls.__dataclass_fields__}
        algorithm = cls(**own) if key in ("dr_grpo", "dapo") else cls()
        if no_turns_for(algorithm) is None and not algorithm.reads_token_rewards:
            found.append(algorithm)
    return found


def one_turn() -> Experience:
    """Return two groups of three answers: one answer is unscored, one has no trained token, one is truncated."""
    torch.manual_seed(3)
    mask_BT = torch.zeros(6, 9, dtype=torch.bool)
    for row, length in enumerate((3, 5, 1, 4, 0, 2)):
        mask_BT[row, 2 : 2 + length] = True
    return Experience.from_rewards(
        torch.tensor([[0.1, 1.0, 0.3], [float("nan"), 0.7, 0.2]]),
        completion_mask_BT=mask_BT,
        truncated_PG=torch.tensor([[False, True, False], [False, False, False]]),
        greedy_rewards_P=torch.tensor([0.4, 0.1]),
        old_logprobs_BT=-torch.rand(6, 9),
    )


@catalogue("algorithm", comparing(max_completion_length=8), ids=lambda algorithm: algorithm.key)
def test_of_one_turn_nothing_is_other_than_without_turns(algorithm: PolicyGradient):
    given = one_turn()
    whole, turns = (credit.to_batch(algorithm, given) for credit in (Whole(), ByTurn(discount=0.3)))
    for name in ("advantages_BT", "completion_mask_BT", "rewards_B", "truncated_B", "groups_B", "row_ids_B"):
        pair = getattr(whole, name), getattr(turns, name)
        torch.testing.assert_close(*pair, rtol=0, atol=0, equal_nan=True)
    logprobs_BT = -torch.rand(6, 9)
    losses = [
        algorithm.loss(Outputs(logprobs_BT), batch, count_totals(batch))[0]
        for batch in (replace(one, current_logprobs_BT=logprobs_BT) for one in (whole, turns))
        for batch in [algorithm.prepare(batch)]
    ]
    assert torch.equal(*losses)


@pytest.mark.parametrize(
    "algorithm",
    [
        REINFORCE(),
        REINFORCE(baseline="none"),
        ReMax(),
        ReinforcePlusPlus(whiten_over="sequences"),
        ComposedPolicyGradient(baseline="batch_mean", normalisation="none", kl="none"),
    ],
    ids=["reinforce", "without baseline", "remax", "reinforce++", "composed"],
)
def test_of_one_turn_returns_are_those_of_tokens_too(algorithm: PolicyGradient):
    """This holds if no critic estimates the value of single tokens."""
    given = one_turn()
    whole, turns = (credit.to_batch(algorithm, given, algorithm.initial_state()) for credit in (Whole(), ByTurn()))
    assert torch.equal(whole.advantages_BT, turns.advantages_BT)
    assert torch.equal(whole.completion_mask_BT, turns.completion_mask_BT)


def test_what_hit_a_limit_is_fined_in_each_of_its_turns():
    """The penalty is part of the return of every turn of the trajectory."""
    fined = ComposedPolicyGradient(
        baseline="leave_one_out", normalisation="none", kl="none", shaping="score", missing_eos_penalty=1.0
    )
    cut = replace(PAID, truncated_PG=torch.tensor([[True, False, False]]))
    before, after = (by_turn(credited(fined, one, 1.0).advantages_BT) for one in (PAID, cut))
    assert [b - a for b, a in zip(before[0], after[0], strict=True)] == pytest.approx([1, 1])


def test_a_long_turn_is_overlong_and_a_long_trajectory_is_not():
    """The turns have 2, 1, 1, 3 and 3 tokens. The limit is 3, so the penalty begins at 2."""
    given = experience([[0, 0], [0, 0], [0]], [1, 1, 1])
    dapo = DAPO(overlong_buffer=2, max_completion_length=3)
    lengths = by_turn(credited(dapo, given, 1.0).advantages_BT)
    first = torch.tensor([0.5, 1.0, 0.0])  # 1 minus the penalties 1/2, 0 and 1
    expected_3 = (first - first.mean()) / (first.std() + 1e-6)
    assert [turns[0] for turns in lengths] == pytest.approx(expected_3.tolist())
    assert lengths[0][1] > 0 > lengths[1][1]


# --- a critic ---------------------------------------------------------------------------------------------------------

VALUES = torch.tensor(
    [
        [9, 0.5, 9, 9, 9, 1.5, 9],
        [9, 1.0, 9, 2.0, 9, 9, 9],
        [9, 0.25, 9, 9, 9, 9, 9],
    ],
    dtype=torch.float64,
)
"""The critic's values before the first token of each turn. All other places hold 9, and nothing reads them."""
CRITIC = PPO(kl_coef=0.0, whiten_advantages=False, gae_lambda=0.5)


def test_gae_goes_from_turn_to_turn():
    """First deltas: 1 + 1.5/2 - 0.5 = 1.25 and 2 - 1.5 = 0.5. Second deltas: 0 + 2/2 - 1 = 0 and 4 - 2 = 2."""
    batch = credited(CRITIC, replace(PAID, values_BT=VALUES))
    assert by_turn(batch.advantages_BT) == [[1.25 + 0.25 * 0.5, 0.5], [0 + 0.25 * 2, 2], [2.75]]
    assert by_turn(batch.returns_BT) == [[1.375 + 0.5, 2], [0.5 + 1, 4], [3]]


def test_it_is_the_gae_of_a_trajectory_with_a_token_for_each_turn():
    rewards_BS, values_BS = torch.tensor([[1.0, 2], [0, 4], [3, 0]]), torch.tensor([[0.5, 1.5], [1, 2], [0.25, 0]])
    has_BS = torch.tensor([[True, True], [True, True], [True, False]])
    for discount, lam in ((1.0, 1.0), (0.9, 0.8), (0.0, 0.5)):
        expected_BS, returns_BS = gae(rewards_BS.double(), values_BS.double(), has_BS, discount, lam)
        found = credited(replace(CRITIC, gae_lambda=lam), replace(PAID, values_BT=VALUES), discount)
        for turns, expected_S, own_S in zip(by_turn(found.advantages_BT), expected_BS, has_BS, strict=True):
            assert turns == pytest.approx(expected_S[own_S].tolist())
        for turns, expected_S, own_S in zip(by_turn(found.returns_BT), returns_BS, has_BS, strict=True):
            assert turns == pytest.approx(expected_S[own_S].tolist())


def test_lambda_1_is_return_minus_value_and_lambda_0_one_step():
    given = replace(PAID, values_BT=VALUES)
    assert by_turn(credited(replace(CRITIC, gae_lambda=1.0), given).advantages_BT) == [[1.5, 0.5], [1, 2], [2.75]]
    assert by_turn(credited(replace(CRITIC, gae_lambda=0.0), given).advantages_BT) == [[1.25, 0.5], [0, 2], [2.75]]


def test_turns_of_one_token_are_the_tokens():
    """GAE over turns then equals GAE over tokens bit for bit, including the whitening and the KL."""
    torch.manual_seed(0)
    mask_BT = torch.tensor([[0, 1, 0, 1, 0, 1], [0, 1, 0, 0, 0, 1]], dtype=torch.bool)
    given = Experience.from_rewards(
        torch.rand(1, 2),
        completion_mask_BT=mask_BT,
        token_rewards_BT=torch.rand(2, 6) * mask_BT,
        values_BT=torch.rand(2, 6),
        old_logprobs_BT=-torch.rand(2, 6),
        ref_logprobs_BT=-torch.rand(2, 6),
    )
    for algorithm in (PPO(), ReinforcePlusPlus(kl_coef=0.1), REINFORCE()):
        whole, turns = (credit.to_batch(algorithm, given, algorithm.initial_state()) for credit in (Whole(), ByTurn()))
        assert torch.equal(whole.advantages_BT, turns.advantages_BT)
        assert whole.returns_BT is turns.returns_BT is None or torch.equal(whole.returns_BT, turns.returns_BT)


KL_OF_TOKENS = {
    "ppo": PPO(kl_coef=0.1),
    "reinforce": REINFORCE(baseline="none", kl_coef=0.1),
    "reinforce_plus_plus": ReinforcePlusPlus(kl_coef=0.1),
    "remax": ReMax(kl_coef=0.1),
    "composed without baseline": ComposedPolicyGradient(
        baseline="none", normalisation="none", kl="reward", aggregation="token_mean", kl_coef=0.1
    ),
    "composed with critic": ComposedPolicyGradient(
        baseline="critic", normalisation="none", kl="reward", aggregation="token_mean", kl_coef=0.1
    ),
}


@catalogue("name", KL_OF_TOKENS)
@catalogue("estimator", ["k1", "k2", "k3"])
def test_the_kl_of_a_turn_is_the_sum_over_its_tokens_or_is_refused(name: str, estimator: str):
    """As a reward of each token that the environment gave, it is summed over the turn for certain."""
    algorithm = KL_OF_TOKENS[name]
    if hasattr(algorithm, "kl_estimator"):
        algorithm = replace(algorithm, kl_estimator=estimator)  # pyright: ignore[reportCallIssue]
    elif estimator != "k1":
        return
    if estimator != "k1":
        with pytest.raises(ConfigError, match=f"has the KL {estimator} of each token in its reward"):
            credited(algorithm)
        assert no_turns_for(replace(algorithm, kl_coef=0.0)) is None  # pyright: ignore[reportCallIssue]
        return
    random = torch.Generator().manual_seed(0)
    old_BT, ref_BT, values_BT = torch.randn(3, *MASK.shape, generator=random, dtype=torch.float64).unbind()
    more = {"values_BT": values_BT, "greedy_rewards_P": torch.zeros(1, dtype=torch.float64)}
    given = replace(PAID, old_logprobs_BT=old_BT, ref_logprobs_BT=ref_BT, **more)
    assert PAID.token_rewards_BT is not None
    paid = replace(PAID, token_rewards_BT=PAID.token_rewards_BT - 0.1 * (old_BT - ref_BT) * MASK, **more)
    without = replace(algorithm, kl_coef=0.0)  # pyright: ignore[reportCallIssue]
    torch.testing.assert_close(credited(algorithm, given).advantages_BT, credited(without, paid).advantages_BT)


def test_the_kl_of_a_turn_is_that_of_its_tokens():
    """A turn has two tokens, 0.1 and 0.3 above the reference. With a KL weight of 2, its reward is 1 - 0.8."""
    mask_BT = torch.tensor([[True, True]])
    given = Experience.from_rewards(
        torch.tensor([[1.0]]),
        completion_mask_BT=mask_BT,
        values_BT=torch.zeros(1, 2),
        old_logprobs_BT=torch.tensor([[-0.5, -1.0]]),
        ref_logprobs_BT=torch.tensor([[-0.6, -1.3]]),
    )
    batch = credited(PPO(kl_coef=2.0, whiten_advantages=False), given)
    assert batch.advantages_BT[0].tolist() == pytest.approx([0.2, 0.2])


# --- invariances ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [GRPO(), RLOO(), CRITIC, REINFORCE()], ids=lambda algorithm: algorithm.key)
def test_what_stands_between_turns_and_behind_them_makes_no_difference(algorithm: PolicyGradient):
    """Move the second turns three tokens later, add padding, and fill the gaps with arbitrary numbers."""
    moved_BT = torch.arange(7).repeat(3, 1) + 1  # new position of each token of a turn
    moved_BT[0, 5] += 3
    moved_BT[1, 3:6] += 3

    def moved(x_BT: Tensor, elsewhere: float) -> Tensor:
        spread_BT = torch.full((3, 12), elsewhere, dtype=x_BT.dtype)
        for row in range(3):
            spread_BT[row, moved_BT[row, MASK[row]]] = x_BT[row, MASK[row]]
        return spread_BT

    given = replace(PAID, values_BT=VALUES)
    assert given.token_rewards_BT is not None
    other = replace(
        given,
        completion_mask_BT=moved(MASK, False),
        token_rewards_BT=moved(given.token_rewards_BT, 77.0),
        values_BT=moved(VALUES, float("nan")),
    )
    before, after = credited(algorithm, given), credited(algorithm, other)
    assert torch.equal(after.advantages_BT, moved(before.advantages_BT, 0.0))


@pytest.mark.parametrize("algorithm", [GRPO(), CISPO(), CRITIC], ids=lambda algorithm: algorithm.key)
def test_what_has_no_reward_is_out_of_it(algorithm: PolicyGradient):
    """An unscored trajectory is in no mask, and does not affect the others."""
    rows = torch.tensor([0, 1, 2, 1])
    values = {"values_BT": VALUES[rows]}
    token_rewards_BT = PAID.token_rewards_BT[rows]  # type: ignore[index]
    rewards_PG = torch.tensor([[0, 3, 0, float("nan")]], dtype=torch.float64)
    four = Experience.from_rewards(
        rewards_PG, completion_mask_BT=MASK[rows], token_rewards_BT=token_rewards_BT, **values
    )
    batch = credited(algorithm, four)
    assert not batch.completion_mask_BT[3].any()
    three = credited(algorithm, replace(PAID, values_BT=VALUES))
    torch.testing.assert_close(batch.advantages_BT[:3], three.advantages_BT, rtol=1e-12, atol=0)


# --- refusals ---------------------------------------------------------------------------------------------------------


@catalogue(
    "algorithm, said",
    [
        (ALGORITHMS["dpo"](), "dpo has no advantages that come from rewards"),
        (ALGORITHMS["online_dpo"](), "online_dpo has no advantages that come from rewards"),
        (ALGORITHMS["distillation"](), "distillation has no advantages that come from rewards"),
        (ALGORITHMS["gspo"](), "gspo as configured has one advantage for a whole completion"),
        (RLOO(clip_low=0.2, clip_high=0.2), "rloo as configured has one advantage for a whole completion"),
        (ALGORITHMS["gdpo"](), "needs inputs that turns do not have: reward_components"),
        (ALGORITHMS["pass_at_k"](), "a turn is not an answer"),
        (RLOO(kl_coef=0.1), "a KL in the reward of the completion.*kl_coef = 0, or a KL in the loss"),
        (RLOO(gamma=0.9), r"a gamma of 0.9 per token.*environment\.turn_discount is the discount"),
        (ComposedPolicyGradient(baseline="optimal_token", normalisation="none"), "turns do not have: squared_probs"),
        (
            ComposedPolicyGradient(baseline="none", normalisation="none", shaping="budget"),
            "penalises completions by their length in tokens, but a turn counts as one token",
        ),
    ],
    ids=lambda value: getattr(value, "key", None),
)
def test_algorithms_that_cannot_credit_turns_say_why(algorithm: Any, said: str):
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        ByTurn().to_batch(algorithm, PAID)


def test_the_same_algorithms_go_where_their_settings_allow_it():
    assert no_turns_for(ALGORITHMS["deepseek_v32"](max_negative_divergence=None)) is None


def test_a_default_that_is_left_out_is_refused_like_one_that_is_written():
    given = {"baseline": "pass_at_k", "normalisation": "none", "aggregation": "token_mean"}
    composed = ALGORITHMS["policy_gradient"]
    assert "correct answers" in str(no_turns_for(composed(**given)))
    assert str(no_turns_for(composed(**given))) == str(no_turns_for(composed(**given, correct_at=1.0)))
    assert composed().correct_from is None
    assert no_turns_for(ALGORITHMS["gspo_token"]()) is None
    assert no_turns_for(GRPO(kl_coef=0.1)) is None
    assert no_turns_for(PPO()) is None, "its KL is per token, so each turn's KL is known"


def test_by_name():
    assert credit_of("trajectory", 1.0) == credit_of("token", 1.0) == Whole()
    assert credit_of("turn", 0.5) == ByTurn(discount=0.5)
