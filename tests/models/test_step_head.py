"""A model that scores steps: one logit at the end of each step, read in the packed pass; folders are told apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.tiny import tiny_model
from transformers import AutoModelForTokenClassification, GPT2Config, GPT2LMHeadModel

from posttrain.config import LoRAConfig, ModelConfig
from posttrain.errors import ModelError
from posttrain.models.adapters import apply_lora, trainable_parameters
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import (
    ScoringFacts,
    load_reward_model,
    load_step_model,
    save_reward_model,
    score_head,
    scores_steps,
    step_scores,
)
from posttrain.types import Tokens

ROWS = [[1, 9, 8, 7, 5], [1, 9, 6], [1, 5, 6, 7, 8, 9, 6], [4, 6]]
ENDS = [[2, 4], [2], [1, 3, 6], [0, 1]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("language") / "model")


def load(folder: Path, **settings) -> LoadedModel:
    return load_step_model(ModelConfig(path=str(folder), device="cpu"), **settings)


@pytest.fixture(scope="module")
def model(folder) -> torch.nn.Module:
    """Tests only read it."""
    return load(folder).model


def padded(rows: list[list[int]], ends: list[list[int]], fill: int = 0) -> tuple[Tokens, torch.Tensor]:
    longest = max(map(len, rows))
    ends_BT = torch.zeros(len(rows), longest, dtype=torch.bool)
    for row, places in enumerate(ends):
        ends_BT[row, places] = True
    ids_BT = torch.tensor([row + [fill] * (longest - len(row)) for row in rows])
    return Tokens(input_ids_BT=ids_BT, lengths_B=torch.tensor([len(row) for row in rows])), ends_BT


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fill", [0, 2, 17])
def test_packed_scores_are_those_of_transformers_row_by_row(model, fill):
    """Scores are compared at the ends of steps, for any other rows and any padding; all other places are 0."""
    scores_BT = step_scores(model, *padded(ROWS, ENDS, fill))
    for row, (ids, ends) in enumerate(zip(ROWS, ENDS, strict=True)):
        logits_T = model(input_ids=torch.tensor([ids])).logits[0, :, 0]
        close(scores_BT[row, ends], logits_T[ends])
        assert scores_BT[row].count_nonzero() == len(ends)


def test_packed_and_alone_give_the_same_gradient(folder):
    gradients = []
    for parts in ([range(4)], [[0], [1], [2], [3]]):
        model = load(folder).model
        for part in parts:
            rows = list(part)
            step_scores(model, *padded([ROWS[r] for r in rows], [ENDS[r] for r in rows])).square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for whole, alone in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, alone, rtol=1e-4, atol=1e-6)


def test_a_step_knows_nothing_of_what_comes_after(model):
    before, after = (step_scores(model, *padded([row], [[2]]))[0, 2] for row in ([1, 9, 6], [1, 9, 6, 8, 8, 6]))
    close(before, after)


def test_a_new_head_depends_on_the_seed_alone_and_has_no_bias_yet(folder):
    heads = [score_head(load(folder, seed=seed).model) for seed in (0, 0, 1)]
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)
    assert heads[0].bias is not None
    assert heads[0].bias.tolist() == [0.0]


def test_what_is_saved_is_opened_by_transformers_and_by_us(folder, tmp_path):
    loaded = load(folder)
    torch.nn.init.constant_(score_head(loaded.model).bias, 0.5)  # type: ignore[arg-type]
    saved = save_reward_model(loaded, tmp_path / "saved", ScoringFacts(separator="\n\n", aggregate="prod"))
    again = load(saved, seed=7, trained=True)
    assert torch.equal(score_head(again.model).bias, torch.tensor([0.5]))  # type: ignore[arg-type]
    close(step_scores(again.model, *padded(ROWS, ENDS)), step_scores(loaded.model, *padded(ROWS, ENDS)))
    peer = AutoModelForTokenClassification.from_pretrained(saved)
    assert peer.config.num_labels == 1
    facts = ScoringFacts.read(saved)
    assert (facts.separator, facts.aggregate) == ("\n\n", "prod")


def test_folders_are_told_apart(folder, tmp_path):
    steps = save_reward_model(load(folder), tmp_path / "steps", ScoringFacts())
    rows = load_reward_model(ModelConfig(path=str(folder), device="cpu"))
    answers = save_reward_model(rows, tmp_path / "answers", ScoringFacts())
    assert [scores_steps(str(place)) for place in (steps, answers, folder, tmp_path)] == [True, False, False, False]


def test_adapters_leave_the_head_trained_whole(folder):
    loaded = load(folder)
    adapted = apply_lora(loaded.model, LoRAConfig(rank=4), head=score_head(loaded.model))  # type: ignore[arg-type]
    trained = trainable_parameters(adapted)
    assert {name.rpartition(".")[2] for name in trained if "lora" not in name} == {"weight", "bias"}
    close(step_scores(adapted, *padded(ROWS, ENDS)), step_scores(load(folder).model, *padded(ROWS, ENDS)))


def test_an_architecture_with_dropout_before_its_head_scores_without_it(tmp_path):
    """GPT-2's class has dropout before the classifier."""
    place = tiny_model(tmp_path / "model")
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2)
    GPT2LMHeadModel(config).save_pretrained(place)
    model = load(place).model
    scores_BT = step_scores(model, *padded(ROWS, ENDS))
    close(scores_BT[0, ENDS[0]], model(input_ids=torch.tensor([ROWS[0]])).logits[0, ENDS[0], 0])


def test_a_model_that_scores_answers_is_not_one_that_scores_steps(folder, tmp_path):
    rows = load_reward_model(ModelConfig(path=str(folder), device="cpu"))
    place = save_reward_model(rows, tmp_path / "answers", ScoringFacts())
    with pytest.raises(ModelError, match=r"gives no score of steps; allowed: a classifier with one label"):
        load(place, trained=True)


def test_a_classifier_of_tokens_into_classes_is_refused(folder, tmp_path):
    model = AutoModelForTokenClassification.from_pretrained(folder, num_labels=3)
    tiny_model(tmp_path / "classes")
    model.save_pretrained(tmp_path / "classes")
    with pytest.raises(ModelError, match=r"with 3 labels; allowed: one label: the score of steps"):
        load(tmp_path / "classes")
