"""A reward model: one score per row at its last token, in a folder that transformers loads and scores equally."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.tiny import tiny_model
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from posttrain.config import LoRAConfig, ModelConfig
from posttrain.errors import ModelError
from posttrain.models.adapters import apply_lora, trainable_parameters
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import (
    ScoringFacts,
    load_reward_model,
    row_scores,
    save_reward_model,
    score_head,
)
from posttrain.types import Tokens

EOS, PAD = 2, 0
ROWS = [[1, 9, 8, 7, EOS], [1, 9, EOS], [1, 5, 6, 7, 8, 9, EOS], [4]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("language") / "model")


def load(folder: Path, **settings) -> LoadedModel:
    return load_reward_model(ModelConfig(path=str(folder), device="cpu"), **settings)


@pytest.fixture(scope="module")
def model(folder) -> nn.Module:
    """Tests only read it."""
    return load(folder).model


def right_padded(rows: list[list[int]], fill: int = PAD) -> Tokens:
    longest = max(map(len, rows))
    ids_BT = torch.tensor([row + [fill] * (longest - len(row)) for row in rows])
    return Tokens(input_ids_BT=ids_BT, lengths_B=torch.tensor([len(row) for row in rows]))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


# scores


def test_the_score_of_a_row_does_not_depend_on_the_rows_beside_it(model):
    alone = torch.cat([row_scores(model, right_padded([row])) for row in ROWS])
    close(row_scores(model, right_padded(ROWS)), alone)
    assert len({round(score, 5) for score in alone.tolist()}) == len(ROWS)


def test_transformers_scores_alike_with_padding_on_either_side(model):
    """The score is read at the last real token, wherever the padding is."""
    longest = max(map(len, ROWS))
    scores_B = row_scores(model, right_padded(ROWS))
    for left in (False, True):
        padding = [[PAD] * (longest - len(row)) for row in ROWS]
        ids = [pad + row if left else row + pad for row, pad in zip(ROWS, padding, strict=True)]
        real = [[int(id != PAD) for id in row] for row in ids]
        logits = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(real)).logits
        close(scores_B, logits[:, 0])


@pytest.mark.parametrize("fill", [PAD, EOS, 17])
def test_what_stands_in_the_padding_is_never_read(model, fill):
    assert torch.equal(row_scores(model, right_padded(ROWS, fill)), row_scores(model, right_padded(ROWS)))


def test_an_answer_that_was_cut_is_scored_at_its_last_token(model):
    cut, ended = row_scores(model, right_padded([[1, 9, 8], [1, 9, 8, EOS]])).tolist()
    assert cut != ended
    assert cut == pytest.approx(model(input_ids=torch.tensor([[1, 9, 8]])).logits.item(), rel=1e-5)


def test_an_answer_may_end_with_the_pad_token(model):
    """If pad and EOS are one id, a search for the last other token would find the token before."""
    assert row_scores(model, right_padded([[1, 9, PAD]])) != row_scores(model, right_padded([[1, 9]]))


def test_the_gradient_reaches_head_and_body(folder):
    model = load(folder).model
    row_scores(model, right_padded(ROWS)).sum().backward()
    assert score_head(model).weight.grad is not None
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_row_without_tokens_is_refused(folder):
    tokens = Tokens(input_ids_BT=torch.tensor([[5, 6], [0, 0]]), lengths_B=torch.tensor([2, 0]))
    with pytest.raises(ValueError, match="row 1 has no tokens"):
        row_scores(load(folder).model, tokens)


# the head


def test_a_new_head_depends_on_the_seed_alone(folder):
    torch.manual_seed(123)
    heads = [score_head(load(folder, seed=seed).model).weight.detach() for seed in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert heads[0].std().item() == pytest.approx(1 / 33, rel=0.3)


def test_a_saved_head_is_kept(folder, tmp_path):
    first = load(folder, seed=3)
    save_reward_model(first, tmp_path / "saved", ScoringFacts())
    again = load(tmp_path / "saved", seed=4)
    assert torch.equal(score_head(again.model).weight, score_head(first.model).weight)


# folders


def test_transformers_opens_what_was_saved_and_scores_alike(folder, tmp_path):
    loaded = load(folder)
    loaded.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    facts = ScoringFacts(chat=True, system_prompt="be kind", eos_ids=(EOS,), mean=0.5, std=2.0, answers=8)
    saved = save_reward_model(loaded, tmp_path / "saved", facts)
    theirs = AutoModelForSequenceClassification.from_pretrained(saved)
    assert theirs.config.num_labels == 1
    tokens = right_padded(ROWS)
    real_BT = torch.arange(tokens.input_ids_BT.shape[1]) < tokens.lengths_B[:, None]
    logits = theirs(input_ids=tokens.input_ids_BT, attention_mask=real_BT.long()).logits[:, 0]
    close(row_scores(loaded.model, tokens), logits)
    assert AutoTokenizer.from_pretrained(saved).chat_template == loaded.tokenizer.chat_template
    assert ScoringFacts.read(saved) == facts


def test_adapters_are_merged_into_what_is_saved(folder, tmp_path):
    loaded = load(folder)
    head = score_head(loaded.model)
    model = apply_lora(loaded.model, LoRAConfig(rank=2), head=head)
    assert any(parameter is head.weight for parameter in trainable_parameters(model).values())
    with torch.no_grad():
        for parameter in trainable_parameters(model).values():
            parameter.add_(0.05)
    loaded = LoadedModel(**{**vars(loaded), "model": model.eval()})
    saved = save_reward_model(loaded, tmp_path / "saved", ScoringFacts())
    tokens = right_padded(ROWS)
    close(row_scores(load(saved, trained=True).model, tokens), row_scores(model, tokens))
    assert not torch.allclose(row_scores(load(folder).model, tokens), row_scores(model, tokens))


def test_a_classifier_of_transformers_alone_is_a_reward_model(tmp_path, folder):
    config = LlamaConfig.from_pretrained(folder)
    config.num_labels = 1
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    loaded = load(tmp_path, trained=True)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    close(row_scores(loaded.model, right_padded(ROWS[:1])), theirs(input_ids=torch.tensor(ROWS[:1])).logits[:, 0])
    assert ScoringFacts.read(tmp_path) == ScoringFacts()


def test_an_architecture_with_other_names_works(tmp_path, folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=16, n_layer=1, n_head=2, eos_token_id=EOS)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load(tmp_path).model
    for row in ROWS:
        close(row_scores(model, right_padded([row])), model(input_ids=torch.tensor([row])).logits[:, 0])


# errors


def test_a_language_model_gives_no_score(folder):
    with pytest.raises(ModelError, match="holds LlamaForCausalLM, which gives no score"):
        load(folder, trained=True)


def test_a_classifier_with_several_labels_gives_no_score(folder, tmp_path):
    config = LlamaConfig.from_pretrained(folder)
    config.num_labels = 3
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="holds LlamaForSequenceClassification with 3 labels"):
        load(tmp_path)


def test_a_head_that_is_not_there_is_not_drawn_at_random(folder, tmp_path):
    """A folder that calls itself a classifier, but holds a language model's weights."""
    tiny_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "score"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"weights are missing \(1\): score.weight"):
        load(tmp_path, trained=True)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ModelError, match="there is no such folder"):
        load(tmp_path / "nowhere" / "at" / "all", trained=True)


def test_damaged_facts_are_an_error(folder, tmp_path):
    saved = save_reward_model(load(folder), tmp_path / "saved", ScoringFacts())
    (saved / "reward_model.json").write_text("{")
    with pytest.raises(ModelError, match=r"reward_model\.json cannot be read"):
        ScoringFacts.read(saved)
