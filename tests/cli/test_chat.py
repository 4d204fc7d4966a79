"""A conversation is rendered like in training. A model without a template continues the text."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
import yaml
from tests.tiny import tiny_model

from posttrain.errors import DataError, ModelError
from posttrain.evaluate.chat import ChatSession

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }} {{ m.content }} {% endfor %}{% if add_generation_prompt %}a {% endif %}"
)
"""The format is `s ... u ... a ...`, with one letter per role."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("plain") / "model")


@pytest.fixture(scope="module")
def with_template(plain: Path) -> Path:
    folder = shutil.copytree(plain, plain.parent / "chat")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return folder


def asked(session: ChatSession, *texts: str) -> list[str]:
    """Return the text that the model reads before each answer."""
    read: list[str] = []
    generate = session._sampler.generate

    def listening(prompts, *args, **kwargs):
        read.extend(prompt.text for prompt in prompts)
        return generate(prompts, *args, **kwargs)

    session._sampler.generate = listening
    for text in texts:
        session.ask(text)
    return read


def test_with_a_chat_template_each_question_follows_the_turns_before_it(with_template):
    session = ChatSession(with_template, system="be brief", max_completion_length=3)
    first, second = asked(session, "hello", "and then")
    answer = session.turns[1]["content"]
    assert first == "s be brief u hello a "
    assert second == f"s be brief u hello a {answer} u and then a "
    assert [turn["role"] for turn in session.turns] == ["user", "assistant"] * 2


def test_without_a_template_the_model_goes_on_writing_and_every_text_stands_for_itself(plain):
    assert asked(ChatSession(plain, max_completion_length=3), "once", "upon") == ["once", "upon"]


def test_greedy_answers_are_the_same_twice_and_sampled_ones_depend_on_the_seed(plain):
    def answer(**settings):
        return ChatSession(plain, max_completion_length=8, **settings).ask("abc")

    assert answer() == answer()
    assert answer(temperature=1.0, seed=1) == answer(temperature=1.0, seed=1)
    assert len({answer(temperature=1.0, seed=seed) for seed in range(4)}) > 1


def test_an_answer_is_no_longer_than_what_the_context_leaves(plain):
    assert len(ChatSession(plain, max_completion_length=256).ask("a" * 60)) <= 4


def test_a_conversation_that_fills_the_context_is_an_error(plain):
    with pytest.raises(
        DataError, match=r"has 64 tokens; allowed: fewer than the model's context of 64.\n  Start a new"
    ):
        ChatSession(plain).ask("a" * 64)


def test_a_run_folder_answers_with_its_newest_checkpoint(place):
    session = ChatSession("finished", max_completion_length=4)
    assert session.model_path == "finished/checkpoints/step-000002/model"
    assert session.ask("ab") == ChatSession(session.model_path, max_completion_length=4).ask("ab")


def test_the_stop_strings_of_a_run_end_its_answers(place):
    whole = ChatSession("finished", max_completion_length=8).ask("ab")
    shutil.copytree("finished", "stopping")
    config = yaml.safe_load(Path("stopping", "config.yaml").read_text())
    config["sampling"]["stop"] = ["?!", whole[2]]
    Path("stopping", "config.yaml").write_text(yaml.safe_dump(config))
    assert ChatSession("stopping", max_completion_length=8).ask("ab") == whole[: whole.index(whole[2])]


def test_a_run_without_a_checkpoint_is_an_error(place):
    (place / "early").mkdir()
    shutil.copy(place / "finished" / "config.yaml", place / "early")
    with pytest.raises(ModelError, match="early has no checkpoint yet"):
        ChatSession("early")


def test_lines_from_standard_input_are_asked_one_by_one(posttrain, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("ab\n\ncd\n"))
    exit_code, found = posttrain.json("chat", "model", "--max-completion-length", "2")
    assert exit_code == 0
    assert [turn["message"] for turn in found["turns"]] == ["ab", "cd"]
    assert all(isinstance(turn["reply"], str) for turn in found["turns"])
