"""Rewards of turns: from the environment's process to the advantages of a step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.episodes.talkers import episodes, play, prompts

from posttrain.algorithms import PPO, DrGRPO
from posttrain.algorithms.credit import ByTurn
from posttrain.episodes.sessions import Sessions, Setup
from posttrain.errors import RewardError
from posttrain.experience.assemble import experience_of
from posttrain.experience.group import Group, groups_of, scores_of
from posttrain.experience.metrics import reason_metrics, turn_metrics
from posttrain.functional.baselines import place_on_last_token
from posttrain.rewards import Reward, Scores, build_rewards
from posttrain.rewards.load import Target
from posttrain.rewards.verifiers import environment
from posttrain.train.advantages import without_truncated
from posttrain.types import Completion, Episode, Experience, Prompt

PAYING = str(Path(__file__).with_name("paying.py"))
Played = tuple[list[Prompt], list[list[Completion]]]
BRIEF = Reward(function=lambda completion: 1 / (3 + len(completion)), label="brief", weight=0.3)


def played(
    name: str, count: int = 8, group_size: int = 2, settings: Mapping[str, Any] | None = None, **how: Any
) -> Played:
    """Prompts, and their completions by the random model in an environment of paying.py."""
    limits = {limit: how.pop(limit) for limit in ("max_turns", "max_length") if limit in how}
    sessions = Sessions(Setup(environment=Target(path=PAYING, name=name), settings=settings or {}))
    try:
        sessions.start()
        with episodes("Guess", **limits) as one:
            other = replace(one, scene=replace(one.scene, sessions=sessions))
            return prompts(count), play(other, prompts(count), group_size=group_size, **how)
    finally:
        sessions.close()


@cache
def of_pays(*, pays: bool = True) -> Played:
    """Trajectories of the environment Pays, for tests that only read them."""
    return played("Pays", settings=None if pays else {"pays": False})


@cache
def of_turns_alone() -> Played:
    return played("PaysTurnsAlone", max_turns=9)


def scored(asked: Sequence[Prompt], groups: Sequence[Sequence[Completion]], *rewards: str | Reward) -> Scores:
    with build_rewards(list(rewards), by_turn=True) as judges:
        return judges.score(asked, groups)


def assembled(
    asked: Sequence[Prompt],
    groups: Sequence[Sequence[Completion]],
    *rewards: str | Reward,
    weights: Sequence[float] = (1.0,),
) -> tuple[list[Group], Experience]:
    own = groups_of(asked, groups, scored(asked, groups, *rewards))
    return own, experience_of(own, weights=weights, pad_id=0, version=0)


def test_an_environment_says_after_each_step_what_the_turn_was_worth():
    _, groups = of_pays()
    lengths = set()
    for completion in chain(*groups):
        episode = completion.episode
        assert episode is not None
        said = [one["content"] for one in episode.messages if one["role"] == "assistant"]
        worth = [len(text.replace(" ", "")) / 10 for text in said]
        steps = len(worth) if episode.ended == "done" else len(worth) - 1  # the environment never sees a cut turn
        assert list(episode.turn_rewards) in (
            [*worth[:steps], *[None] * (len(worth) - steps)],
            [] if not steps else None,
        )
        assert episode.reward == 1.0
        assert episode.total_reward == pytest.approx(1.0 + sum(worth[:steps]))
        lengths.add(episode.turns)
        assert Completion.from_json(json.loads(json.dumps(asdict(completion)))) == completion
    assert 3 in lengths


def test_turns_without_a_reward_and_an_end_without_one_are_nothing():
    _, groups = of_turns_alone()
    whole = [one.episode for one in chain(*groups) if one.episode and one.episode.ended == "done"]
    assert whole
    for episode in whole:
        assert (episode.turn_rewards, episode.reward, episode.total_reward) == ((0.5, None, 0.5, None), None, 1.0)


def test_a_reward_of_a_turn_that_is_no_number_is_a_failure_of_the_environment():
    _, groups = played("PaysNan", count=2, group_size=1)
    failed = [one.episode for [one] in groups if one.episode and one.episode.failure]
    assert failed
    assert all("turn_reward() returned nan" in episode.detail for episode in failed)


@pytest.mark.parametrize("method", ["turn_reward", "reward"])
def test_a_reward_of_a_turn_beyond_all_bounds_names_the_methods_of_the_environment(method):
    """The argument completion_ids is for functions, which give a number to each token."""
    asked, groups = of_turns_alone()
    own = groups[0][0]
    assert own.episode is not None
    worth = {"turn_reward": {"turn_rewards": (1e300, *own.episode.turn_rewards[1:])}, "reward": {"reward": -1e300}}
    huge = replace(own, episode=replace(own.episode, **worth[method]))
    with pytest.raises(RewardError) as error:
        scored(asked[:1], [[huge, *groups[0][1:]]], "environment")
    assert f"the environment gave {'-' * (method == 'reward')}1e+300 to a turn of prompt" in str(error.value)
    assert "turn_reward() and reward() within 1e+12 of 0" in str(error.value)
    assert "completion_ids" not in str(error.value)


def test_rewards_of_turns_stand_on_their_last_tokens():
    asked, groups = of_pays()
    own, experience = assembled(asked, groups, "environment")
    assert experience.token_rewards_BT is not None
    placed_BT = place_on_last_token(
        experience.rewards_PG.flatten(), experience.completion_mask_BT, experience.token_rewards_BT
    )
    for row, (group, completion) in enumerate((of, one) for of in own for one in of.completions):
        episode, start = completion.episode, len(group.prompt.ids)
        assert episode is not None
        expected = [0.0] * len(completion.ids)
        for place, reward in zip(completion.turn_ends, episode.turn_rewards or [None] * episode.turns, strict=True):
            expected[place] += reward or 0.0
        expected[completion.turn_ends[-1]] += episode.reward or 0.0
        assert placed_BT[row, start : start + len(completion.ids)].tolist() == pytest.approx(expected)
        assert experience.total_rewards_PG.flatten()[row].item() == pytest.approx(episode.total_reward)


def test_each_trajectory_has_a_verdict_on_what_its_turns_earned_together():
    asked, groups = of_pays()
    own, _ = assembled(asked, groups, "environment")
    scores = scores_of(own)
    assert scores is not None
    for group, verdicts in zip(own, scores.verdicts["environment"], strict=True):
        for completion, verdict in zip(group.completions, verdicts, strict=True):
            assert completion.episode is not None
            expected = environment("", completion.episode.total_reward)
            assert verdict is not None
            assert verdict.reason == expected.reason
            assert verdict.score == pytest.approx(expected.score)
    shares = reason_metrics(scores.verdicts).values()
    assert sum(float(share) for share in shares) == pytest.approx(1.0)


def test_of_turns_that_earn_nothing_of_their_own_the_experience_is_the_usual_one():
    """The numbers are exactly the same, with one reward or with several."""
    asked, groups = of_pays(pays=False)
    rewards = ["environment", BRIEF]
    _, by_turn = assembled(asked, groups, *rewards, weights=(1.0, 0.3))
    with build_rewards(rewards) as judges:
        usual = groups_of(asked, groups, judges.score(asked, groups))
    plain = experience_of(usual, weights=(1.0, 0.3), pad_id=0, version=0)
    assert by_turn.token_rewards_BT is plain.token_rewards_BT is None
    assert torch.equal(by_turn.rewards_PG, plain.rewards_PG)
    assert torch.equal(by_turn.rewards_KPG, plain.rewards_KPG)  # type: ignore[arg-type]


def test_weights_and_gates_are_those_of_the_whole_reward():
    asked, groups = of_pays()
    _, single = assembled(asked, groups, "environment")
    _, weighed = assembled(asked, groups, Reward(name="environment", weight=0.5), weights=(0.5,))
    torch.testing.assert_close(weighed.token_rewards_BT, 0.5 * single.token_rewards_BT)  # type: ignore[operator]
    shut = Reward(name="environment", gate={"label": "brief", "at_least": 2.0})
    _, gated = assembled(asked, groups, shut, BRIEF, weights=(1.0, 0.3))
    assert gated.token_rewards_BT is not None
    assert not gated.token_rewards_BT.any()


def test_how_what_came_back_is_divided_into_pieces_changes_nothing():
    asked, groups = of_pays()
    pieces = [
        [
            replace(
                one, given=tuple(part for b, e in one.given for part in ((b, b + 1), (b + 1, e)) if part[0] < part[1])
            )
            for one in group
        ]
        for group in groups
    ]
    assert any(len(one.given) > len(other.given) for one, other in zip(chain(*pieces), chain(*groups), strict=True))
    assert [one.turn_ends for one in chain(*pieces)] == [one.turn_ends for one in chain(*groups)]
    algorithm = DrGRPO(max_completion_length=9)
    before, after = (ByTurn().to_batch(algorithm, assembled(asked, own, "environment")[1]) for own in (groups, pieces))
    assert torch.equal(before.advantages_BT, after.advantages_BT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "limit"),
    [
        ({"max_turns": 2}, "max_turns"),
        ({"max_turns": 9, "max_length": 20}, "max_trajectory_length"),
        ({"max_turns": 9, "max_completion_length": 3}, "max_completion_length"),
    ],
)
def test_what_hit_a_limit_keeps_what_it_earned_and_is_truncated(how, limit):
    """Its turns keep their rewards, the environment scores the whole, and the algorithm learns of the truncation."""
    asked, groups = played("Pays", settings={"turns": 8}, **how)
    cut = [one for one in chain(*groups) if one.episode and one.episode.ended == limit]
    assert cut
    assert all(one.truncated and one.episode and one.episode.reward == 1.0 for one in cut)
    assert any(any(one.episode.turn_rewards) for one in cut if one.episode)
    own, experience = assembled(asked, groups, "environment")
    truncated = [one.truncated for group in own for one in group.completions]
    assert experience.truncated_PG.flatten().tolist() == truncated
    batch = ByTurn().to_batch(DrGRPO(max_completion_length=9), experience)
    left = without_truncated(batch, experience)
    for row, is_cut in enumerate(truncated):
        assert left.completion_mask_BT[row].any() != is_cut
    assert torch.equal(left.advantages_BT, batch.advantages_BT), "they still count in the statistics of their group"  # type: ignore[arg-type]
    fined = PPO(kl_coef=0, missing_eos_penalty=5.0, whiten_advantages=False, gae_lambda=1.0)
    known = replace(experience, values_BT=torch.zeros_like(batch.advantages_BT))  # type: ignore[arg-type]
    penalised = ByTurn().to_batch(fined, known).advantages_BT
    usual = ByTurn().to_batch(replace(fined, missing_eos_penalty=0.0), known).advantages_BT
    assert penalised is not None
    assert usual is not None
    for row, is_cut in enumerate(truncated):
        loss_T = (usual - penalised)[row, experience.completion_mask_BT[row]]
        assert loss_T.tolist() == pytest.approx([5.0 * is_cut] * len(loss_T))


def test_the_metrics_have_what_each_turn_earned():
    """A turn without a reward is no turn with reward 0: the environment is silent after every second one."""
    _, groups = of_turns_alone()
    assert shown_rewards(list(chain(*groups))) == {"turns/reward/1": 0.5, "turns/reward/3": 0.5}
    _, groups = of_pays(pays=False)
    assert shown_rewards(list(chain(*groups))) == {}


def test_a_turn_that_a_limit_cut_does_not_lower_the_mean_reward_of_its_turn():
    episodes = [
        Episode(messages=(), turns=turns, ended=ended, turn_rewards=rewards, failure=failure)
        for turns, ended, rewards, failure in (
            (1, "max_completion_length", (), ""),
            (2, "max_completion_length", (1.0, None), ""),
            (2, "done", (0.2, -0.3), ""),
            (1, "failed", (9.0,), "crash"),
        )
    ]
    _, groups = of_pays()
    assert shown_rewards([replace(groups[0][0], episode=one) for one in episodes]) == {
        "turns/reward/1": pytest.approx(0.6),
        "turns/reward/2": -0.3,
    }


def shown_rewards(completions: Sequence[Completion]) -> dict[str, float]:
    """The metrics of the rewards of turns."""
    found = turn_metrics(completions).items()
    return {name: float(metric) for name, metric in found if name.startswith("turns/reward")}
