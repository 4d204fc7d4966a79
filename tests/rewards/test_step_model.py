"""A model that scores steps as a reward: answers split at separators, one number for all steps, unscored answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.rewards.test_model_reward import answer, close, prompt, score
from tests.tiny import tiny_model

from posttrain.config import ModelConfig
from posttrain.data.steps import Solution
from posttrain.errors import ConfigError, DataError
from posttrain.functional.step_scores import AGGREGATES, Aggregate, aggregate
from posttrain.models.reward_head import (
    ScoringFacts,
    load_reward_model,
    load_step_model,
    row_scores,
    save_reward_model,
    score_head,
    step_scores,
)
from posttrain.rewards import Reward, build_rewards
from posttrain.rewards.model import StepModelReward
from posttrain.types import Tokens

FACTS = ScoringFacts(chat=False, eos_ids=(2,), separator=" ", aggregate="min")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def folder(base, tmp_path_factory) -> Path:
    """A model over letters whose steps end with a space."""
    loaded = load_step_model(ModelConfig(path=str(base), device="cpu"))
    with torch.no_grad():
        score_head(loaded.model).weight.mul_(10)  # so that steps differ
    return save_reward_model(loaded, tmp_path_factory.mktemp("steps"), FACTS)


def expected(folder: Path, asked: str, steps: Sequence[str], how: Aggregate = "min") -> float:
    loaded = load_step_model(ModelConfig(path=str(folder), device="cpu"), trained=True)
    ids, ends = list(loaded.tokenizer(asked).input_ids), []
    for step in steps:
        ids += loaded.tokenizer(f"{step} ").input_ids
        ends.append(len(ids) - 1)
    ends_BT = torch.zeros(1, len(ids), dtype=torch.bool)
    ends_BT[0, ends] = True
    tokens = Tokens(input_ids_BT=torch.tensor([ids]), lengths_B=torch.tensor([len(ids)]))
    return float(aggregate(step_scores(loaded.model, tokens, ends_BT)[ends_BT].sigmoid(), how))


@pytest.mark.slow
def test_an_answer_is_worth_its_worst_step_by_default(folder):
    groups = [[answer("de fg"), answer("de"), answer("de  fg h")], [answer("h")]]
    found = score(Reward(model=str(folder)), [prompt("ab"), prompt("c")], groups)
    assert found.parts["reward_model"] == [
        [close(expected(folder, "ab", steps)) for steps in (["de", "fg"], ["de"], ["de", "fg", "h"])],
        [close(expected(folder, "c", ["h"]))],
    ]
    assert len({round(x or 0, 6) for group in found.rewards_PG for x in group}) > 1


@pytest.mark.parametrize("how", AGGREGATES)
def test_settings_choose_how_steps_become_one_number(folder, how):
    found = score(Reward(model=str(folder), settings={"aggregate": how}), [prompt()], [[answer("de fg h")]])
    assert found.rewards_PG == [[close(expected(folder, "ab", ["de", "fg", "h"], how))]]


def test_the_unfinished_step_of_an_answer_that_was_cut_is_not_scored(folder):
    groups = [[answer("de fg", "length"), answer("de", "stop"), answer("de ", "length")]]
    found = score(Reward(model=str(folder)), [prompt()], groups)
    assert found.rewards_PG == [[close(expected(folder, "ab", ["de"]))] * 3]


def test_an_answer_without_a_finished_step_is_unscored(folder):
    found = score(Reward(model=str(folder)), [prompt()], [[answer("defg", "length"), answer(""), answer("d")]])
    assert found.scored_PG == [[False, False, True]]
    assert [failure.message for failure in found.failures] == ["no finished step", "no finished step"]


def test_an_answer_beyond_the_context_is_unscored(folder):
    found = score(Reward(model=str(folder)), [prompt()], [[answer("d " * 50), answer("d")]])
    assert found.scored_PG == [[False, True]]
    assert found.failures[0].message == "102 tokens in the reward model's context of 64"


@pytest.mark.slow
def test_many_answers_score_as_they_do_alone(folder, monkeypatch):
    monkeypatch.setattr("posttrain.rewards.model.REWARD_TOKENS", 12)
    texts = ["d " * steps + "e" for steps in range(6)]
    found = score(Reward(model=str(folder)), [prompt()], [[answer(text) for text in texts]])
    assert found.parts["reward_model"][0] == [close(expected(folder, "ab", text.split())) for text in texts]


def test_a_model_from_elsewhere_is_cut_at_line_breaks(base, tmp_path):
    loaded = load_step_model(ModelConfig(path=str(base), device="cpu"))
    place = save_reward_model(loaded, tmp_path / "peer", ScoringFacts())
    (place / "reward_model.json").unlink()
    found = score(Reward(model=str(place)), [prompt()], [[answer("de fg")]])
    assert found.scored_PG == [[True]]
    cut = score(Reward(model=str(place)), [prompt()], [[answer("de fg", "length")]])
    assert cut.failures[0].message == "no finished step"


def test_scores_of_a_regression_come_out_in_the_units_of_its_data(base, tmp_path):
    loaded = load_reward_model(ModelConfig(path=str(base), device="cpu"))
    ids = torch.tensor([[*loaded.tokenizer("abde").input_ids, 2]])
    raw = row_scores(loaded.model, Tokens(input_ids_BT=ids, lengths_B=torch.tensor([5]))).item()
    units = {"identity": 7 + 2 * raw, "logistic": 7 + 2 * torch.tensor(raw).sigmoid().item()}
    for link, value in units.items():
        facts = ScoringFacts(chat=False, eos_ids=(2,), link=link, target_mean=7.0, target_std=2.0)  # type: ignore[arg-type]
        place = save_reward_model(loaded, tmp_path / link, facts)
        assert score(Reward(model=str(place)), [prompt()], [[answer("de")]]).rewards_PG == [[close(value)]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregate": "sum"}, "aggregate = 'sum' of a model that scores steps; allowed: min, prod, last, mean"),
        ({"normalize": True}, "normalize of a model that scores steps; allowed: normalize for models that score whole"),
        ({"separator": " "}, "has no setting 'separator'"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(folder, settings, message):
    with pytest.raises(ConfigError, match=message):
        build_rewards([Reward(model=str(folder), settings=settings)])


def test_an_aggregate_of_whole_answers_is_refused(base, tmp_path):
    rows = load_reward_model(ModelConfig(path=str(base), device="cpu"))
    place = save_reward_model(rows, tmp_path, ScoringFacts())
    with pytest.raises(ConfigError, match=r"aggregate = 'min' of a reward model that scores whole answers"):
        build_rewards([Reward(model=str(place), settings={"aggregate": "min"})])


def test_chat_prompts_need_a_template_of_the_model(folder):
    chat = prompt(plain=None, messages=({"role": "user", "content": "b"},))
    with build_rewards([Reward(model=str(folder))]) as rewards, pytest.raises(DataError, match="has no chat template"):
        rewards.check([chat])


def test_a_special_token_that_a_step_spells_is_letters(base):
    """Only the separator ends a step, also if the answer spells the end of the answer."""
    model = StepModelReward(load_step_model(ModelConfig(path=str(base), device="cpu")), FACTS)
    row, plain = (model.read(prompt("ab"), answer(text)) for text in ("de<eos>f g", "def g"))
    assert isinstance(row, Solution)
    assert isinstance(plain, Solution)
    assert 2 not in row.ids
    assert len(row.ends) == 2
    assert plain.ids == tuple(model.loaded.tokenizer("abdef g ").input_ids)
