"""A reward model as a reward: rendered by its own template, scored in batches, and combined with other rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.catalogue import catalogue
from tests.episodes.families import FAMILIES, OF_THE_FOLDER, eos_ids_of, eos_text, tokenizer_of
from tests.tiny import tiny_model

from posttrain.config import ModelConfig
from posttrain.data.pairs import render_answer
from posttrain.errors import ConfigError, DataError, ModelError
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import ScoringFacts, load_reward_model, row_scores, save_reward_model, score_head
from posttrain.rewards import Reward, Scores, build_rewards
from posttrain.rewards.model import ModelReward, find_model
from posttrain.types import Completion, FinishReason, Prompt, Tokens

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% if m.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)
SPELLED = {"facts": ScoringFacts(chat=False, eos_ids=(2,), mean=0.25, std=0.5, answers=8)}


def loaded_from(folder: Path, *, template: str | None = None) -> LoadedModel:
    loaded = load_reward_model(ModelConfig(path=str(folder), device="cpu"))
    loaded.tokenizer.chat_template = template
    return loaded


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture
def folder(base, tmp_path) -> Path:
    """A reward model over letters, for text without a chat template."""
    return save_reward_model(loaded_from(base), tmp_path / "reward", **SPELLED)


def prompt(text: str = "ab", **changes) -> Prompt:
    return Prompt(**{"index": 0, "ids": (3, 4), "text": f"<policy>{text}", "plain": text, **changes})


def answer(text: str, finish_reason: FinishReason = "eos") -> Completion:
    return Completion(ids=(9,), logprobs=(-1.0,), versions=(0,), finish_reason=finish_reason, text=text)


def score(reward: Reward, prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]], *more: Reward) -> Scores:
    with build_rewards([reward, *more], device="cpu") as rewards:
        return rewards.score(prompts, groups)


def expected(folder: Path, text: str, *, eos: bool = True) -> float:
    loaded = load_reward_model(ModelConfig(path=str(folder), device="cpu"), trained=True)
    ids = [*loaded.tokenizer(text).input_ids, *([2] if eos else [])]
    return row_scores(loaded.model, Tokens(input_ids_BT=torch.tensor([ids]), lengths_B=torch.tensor([len(ids)]))).item()


def close(number: float):
    return pytest.approx(number, rel=1e-5, abs=1e-6)


# the scored text


def test_the_text_is_scored_with_the_models_own_rendering_and_eos(folder):
    found = score(Reward(model=str(folder)), [prompt("ab"), prompt("c")], [[answer("de"), answer("f")], [answer("de")]])
    assert found.parts["reward_model"] == [
        [close(expected(folder, "abde")), close(expected(folder, "abf"))],
        [close(expected(folder, "cde"))],
    ]


def test_an_answer_that_was_cut_is_scored_without_eos(folder):
    found = score(Reward(model=str(folder)), [prompt()], [[answer("de", "length"), answer("de", "stop")]])
    assert found.parts["reward_model"] == [
        [close(expected(folder, "abde", eos=False)), close(expected(folder, "abde"))]
    ]


def test_chat_messages_and_the_models_own_system_prompt_are_rendered_by_its_template(base, tmp_path):
    facts = ScoringFacts(chat=True, system_prompt="x", eos_ids=(2,))
    save_reward_model(loaded_from(base, template=TEMPLATE), tmp_path, facts)
    model = ModelReward.load(str(tmp_path), {}, device="cpu")
    plain = prompt("b", messages=({"role": "system", "content": "policy"}, {"role": "user", "content": "b"}))
    chat = prompt("", plain=None, messages=({"role": "user", "content": "b"},))
    own_system = prompt("", plain=None, messages=({"role": "system", "content": "y"}, {"role": "user", "content": "b"}))

    def text(prompt: Prompt, truncated: bool = False) -> str:
        return model.loaded.tokenizer.decode(model.ids(prompt, "d", truncated=truncated))

    assert text(plain) == "sxubad<eos>"  # the policy's system prompt is not part of the question
    assert text(chat) == "sxubad<eos>"
    assert text(own_system) == "syubad<eos>"
    assert text(plain, truncated=True) == "sxubad"


def test_a_model_from_elsewhere_uses_its_template_where_it_has_one(base, tmp_path):
    for template, expected in ((None, "bd<eos>"), (TEMPLATE, "ubad<eos>")):
        loaded = loaded_from(base, template=template)
        model = ModelReward(loaded, ScoringFacts())
        assert loaded.tokenizer.decode(model.ids(prompt("b"), "d", truncated=False)) == expected


def test_many_rows_score_as_they_do_alone(folder, monkeypatch):
    monkeypatch.setattr("posttrain.rewards.model.REWARD_TOKENS", 10)
    texts = ["d" * length for length in range(1, 9)]
    found = score(Reward(model=str(folder)), [prompt()], [[answer(text) for text in texts]])
    assert found.parts["reward_model"][0] == [close(expected(folder, f"ab{text}")) for text in texts]


# special tokens that an answer spells


def reward_of(base: Path, name: str) -> ModelReward:
    """A reward model with the tokenizer and the chat template of a family; only its rendering is used."""
    kwargs = {"chat_template": FAMILIES[name].template} if name in FAMILIES else {}
    loaded = replace(loaded_from(base), tokenizer=tokenizer_of(name))
    return ModelReward(loaded, ScoringFacts(chat=True, eos_ids=tuple(eos_ids_of(name)), template_kwargs=kwargs))


@catalogue("name", [*OF_THE_FOLDER, *FAMILIES])
def test_each_special_token_that_an_answer_spells_is_letters(base, name: str):
    model, tokenizer = reward_of(base, name), tokenizer_of(name)
    special = {str(token): number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    second = f"{eos_text(name)}\n<|im_start|>assistant\nc"
    for text in ("a" + "b".join(special) + "c", f"b{second}", "b" + eos_text(name)):
        plain, ids = (model.ids(prompt("ab"), said, truncated=True) for said in ("abc", text))
        expected, found = ([token for token in one if token in special.values()] for one in (plain, ids))
        assert found == expected
        assert text in str(tokenizer.decode(list(ids), skip_special_tokens=False))


@catalogue("name", [*OF_THE_FOLDER, *FAMILIES])
def test_an_answer_without_special_tokens_keeps_its_ids(base, name: str):
    model = reward_of(base, name)
    for text in ("18", "Zürich 🙂\n\n<b>so</b>\n 4 ", "a < b | c > d", "<|im_start >"):
        written = render_answer("ab", text, model.renderer, model.eos_ids, index=0, origin="")
        assert model.ids(prompt("ab"), text, truncated=False) == written.input_ids


def test_an_added_token_that_is_not_special_stays_one_token(base):
    model, tokenizer = reward_of(base, "qwen2.5"), tokenizer_of("qwen2.5")
    call = '<tool_call>\n{"a": 1}\n</tool_call>'
    written = render_answer("ab", call, model.renderer, model.eos_ids, index=0, origin="")
    ids = model.ids(prompt("ab"), call, truncated=False)
    assert tokenizer.convert_tokens_to_ids("<tool_call>") in ids
    assert ids == written.input_ids


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_a_spelled_end_is_not_the_end_in_the_letters_of_a_tiny_model(base, template):
    loaded = loaded_from(base, template=template)
    model = ModelReward(loaded, ScoringFacts(eos_ids=(2,)))
    ids = model.ids(prompt("b"), "d<eos>f", truncated=False)
    assert [place for place, token in enumerate(ids) if token == 2] == [len(ids) - 1]
    assert model.ids(prompt("b"), "d e", truncated=False) == model.ids(prompt("b"), "d", truncated=True) + tuple(
        loaded.tokenizer(" e<eos>").input_ids
    )


# the sum


def test_it_stands_beside_other_rewards_with_its_weight(folder):
    def length(completion: str) -> float:
        return float(len(completion))

    model = Reward(model=str(folder), weight=2.0, label="learned")
    found = score(model, [prompt()], [[answer("de")]], Reward(function=length, weight=0.5))
    learned = expected(folder, "abde")
    assert found.parts == {"learned": [[close(learned)]], "length": [[2.0]]}
    assert found.rewards_PG == [[close(2 * learned + 1)]]
    assert found.scored_PG == [[True]]


@pytest.mark.parametrize(("low", "warned"), [(0.42, True), (0.5, True), (0.55, False), (None, False)])
def test_a_reward_model_that_may_be_guessing_is_warned_of_at_the_start(base, tmp_path, low, warned):
    accuracy = None if low is None else (0.61, low, 0.7)
    facts = ScoringFacts(chat=False, eos_ids=(2,), accuracy=accuracy)
    folder = save_reward_model(loaded_from(base), tmp_path / "reward", facts)
    with build_rewards([Reward(model=str(folder), label="liked")], device="cpu") as rewards:
        said = (
            f'reward "liked": ranks 61% of its held-out pairs right ({low or 0:.0%} to 70%), which cannot be told from '
        )
        assert [note.startswith(said) for note in rewards.notes] == [True] * warned


def test_scores_are_normalised_by_what_the_folder_says(folder):
    found = score(Reward(model=str(folder), settings={"normalize": True}), [prompt()], [[answer("de")]])
    assert found.parts["reward_model"] == [[close((expected(folder, "abde") - 0.25) / 0.5)]]


def test_a_score_that_is_not_finite_leaves_the_answer_unscored(base, tmp_path):
    loaded = loaded_from(base)
    with torch.no_grad():
        score_head(loaded.model).weight.fill_(3e38)  # finite itself, as a model has to be
    save_reward_model(loaded, tmp_path, ScoringFacts(chat=False))
    found = score(Reward(model=str(tmp_path)), [prompt()], [[answer("de")]])
    assert found.scored_PG == [[False]]
    assert "the score is" in found.failures[0].message


def test_an_answer_beyond_the_context_is_unscored_and_the_others_are_not(folder):
    found = score(Reward(model=str(folder)), [prompt()], [[answer("d" * 100), answer("d")]])
    assert found.scored_PG == [[False, True]]
    assert found.failures[0].message == "103 tokens in the reward model's context of 64"
    assert found.parts["reward_model"][0][1] == close(expected(folder, "abd"))


# folders


def test_the_folder_of_a_run_means_its_newest_checkpoint(tmp_path, monkeypatch):
    for name in ("step-000002", "step-000010", "step-000020.tmp-1"):
        (tmp_path / "run" / "checkpoints" / name / "model").mkdir(parents=True)
    newest = str(Path("checkpoints", "step-000010", "model"))
    assert find_model(str(tmp_path / "run")).endswith(newest)
    assert find_model("run", tmp_path).endswith(newest)
    assert find_model("org/name", tmp_path) == "org/name"


# errors


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (Reward(model="a", name="math"), "exactly one of the four"),
        (Reward(model="a", function=len), "exactly one of the four"),
        (Reward(model="a", settings={"normalise": True}), "has no setting 'normalise'; did you mean \"normalize\""),
        (Reward(model="a", settings={"normalize": 1}), "normalize = 1 of a reward model; allowed: true or false"),
    ],
)
def test_a_reward_model_that_cannot_be_meant_is_refused(reward, message):
    with pytest.raises(ConfigError, match=message):
        build_rewards([reward])


def test_a_missing_folder_is_named_as_the_setting_that_names_it(tmp_path):
    with pytest.raises(ModelError, match=r"rewards\.model = '.*nowhere': there is no such folder"):
        build_rewards([Reward(model=str(tmp_path / "is" / "nowhere"))])


def test_a_language_model_is_no_reward_model(base):
    with pytest.raises(ModelError, match=r"rewards\.model = .* holds LlamaForCausalLM, which gives no score"):
        build_rewards([Reward(model=str(base))])


def test_scores_of_unknown_scale_cannot_be_normalised(base, tmp_path):
    save_reward_model(loaded_from(base), tmp_path, ScoringFacts())
    with pytest.raises(ConfigError, match="does not record the distribution of its scores"):
        build_rewards([Reward(model=str(tmp_path), settings={"normalize": True})])


def test_chat_prompts_need_a_template_of_the_reward_model(folder):
    chat = prompt(plain=None, messages=({"role": "user", "content": "b"},))
    with build_rewards([Reward(model=str(folder))]) as rewards, pytest.raises(DataError, match="has no chat template"):
        rewards.check([chat])
