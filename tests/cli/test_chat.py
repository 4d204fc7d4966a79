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


@pytest.mark.slow
def test_with_a_chat_template_each_question_follows_the_turns_before_it(with_template):
    session = ChatSession(with_template, system="be brief", max_completion_length=3)
    first, second = asked(session, "hello", "and then")
    answer = session.turns[1]["content"]
    assert first == "s be brief u hello a "
    assert second == f"s be brief u hello a {answer} u and then a "
    assert [turn["role"] for turn in session.turns] == ["user", "assistant"] * 2


def test_without_a_template_the_model_goes_on_writing_and_every_text_stands_for_itself(plain):
    assert asked(ChatSession(plain, max_completion_length=3), "once", "upon") == ["once", "upon"]


@pytest.mark.slow
def test_greedy_answers_are_the_same_twice_and_sampled_ones_depend_on_the_seed(plain):
    def answer(**settings):
        return ChatSession(plain, max_completion_length=8, **settings).ask("abc")

    assert answer() == answer()
    assert answer(temperature=1.0, seed=1) == answer(temperature=1.0, seed=1)
    assert len({answer(temperature=1.0, seed=seed) for seed in range(4)}) > 1


def test_an_answer_is_no_longer_than_what_the_context_leaves(plain):
    assert len(ChatSession(plain, max_completion_length=256).ask("a" * 60)) <= 4


def test_a_conversation_that_fills_the_context_is_an_error(with_template):
    session = ChatSession(with_template, max_completion_length=1)
    session.ask("a" * 56)
    with pytest.raises(
        DataError, match=r"conversation has \d+ tokens; allowed: fewer than the model's context of 64.\n  Start a new"
    ):
        session.ask("a")


@pytest.mark.parametrize("first", [1, 20, 40])
def test_a_long_message_after_others_is_to_be_shortened_if_a_short_one_still_fits(with_template, first):
    session = ChatSession(with_template, max_completion_length=1)
    session.ask("a" * first)
    with pytest.raises(
        DataError, match=r"conversation has \d+ tokens with this message; .*\n  Shorten the message, or"
    ):
        session.ask("a" * 64)
    session.ask("a")


@pytest.mark.parametrize("chat", [True, False])
def test_a_text_without_earlier_turns_that_fills_the_context_is_to_be_shortened(plain, with_template, chat):
    session = ChatSession(with_template if chat else plain, max_completion_length=1)
    for _ in range(1 if chat else 2):  # without a template, the second text does not follow the first
        with pytest.raises(
            DataError, match=r"the message has \d+ tokens; .* the model's context of 64.\n  Shorten it\.$"
        ):
            session.ask("a" * 64)
        if not chat:
            session.ask("a")


def test_a_system_prompt_that_leaves_no_room_for_any_message_is_to_be_shortened(with_template):
    session = ChatSession(with_template, max_completion_length=1, system="s" * 70)
    with pytest.raises(DataError, match=r"what the chat template writes before it; .*\n  Shorten the system prompt\.$"):
        session.ask("a")


@pytest.mark.slow
def test_a_run_folder_answers_with_its_newest_checkpoint(place):
    session = ChatSession("finished", max_completion_length=4)
    assert session.model_path == "finished/checkpoints/step-000002/model"
    assert session.ask("ab") == ChatSession(session.model_path, max_completion_length=4).ask("ab")


@pytest.mark.slow
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


TOO_LONG = b"a" * 64


BAD = (TOO_LONG, b"abc\xff", b"ab\xc3", b"\xe2\x82 ab")


@pytest.mark.parametrize("decoding", ["strict", "surrogateescape"])
@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_lines_that_cannot_be_answered_do_not_end_the_chat(posttrain, monkeypatch, decoding, first):
    """Each of them once comes first, last, alone, and beside another one."""
    one, two, three, four = BAD[first:] + BAD[:first]
    lines = [one, b"ab", two, three, b"cd\r", four]
    for flags in ([], ["--json"]):
        sent = io.TextIOWrapper(io.BytesIO(b"\n\n".join(lines)), encoding="utf-8", errors=decoding)
        monkeypatch.setattr("sys.stdin", sent)
        exit_code, out, err = posttrain("chat", "model", "--max-completion-length", "2", *flags)
        assert exit_code == 2
        assert err.count("DataError: ") == len(BAD)
        assert "Traceback" not in err
    turns = json.loads(out)["turns"]
    assert [turn["message"] for turn in turns if "reply" in turn] == ["ab", "cd"]
    assert [place for place, turn in enumerate(turns) if "DataError" in turn.get("error", "")] == [0, 2, 3, 5]


def test_a_message_that_is_too_long_ends_with_its_error(posttrain):
    exit_code, out, err = posttrain("chat", "model", "-m", TOO_LONG.decode())
    assert (exit_code, out) == (2, "")
    assert err.startswith("DataError: the message has 64 tokens")
    exit_code, found = posttrain.json("chat", "model", "-m", "ab\n", "--max-completion-length", "1")
    assert (exit_code, found["turns"][0]["message"]) == (0, "ab\n"), "a message is sent as it is given"


NOT_UTF_8 = (b"abc\xff", b"\xff", b"ab\xc3", b"\xe2\x82 ab", b"\xed\xa0\x80", b"a\x80b", b"caf\xe9")


@pytest.mark.parametrize("decoding", ["strict", "surrogateescape"])
@pytest.mark.parametrize("sent", [NOT_UTF_8[:1], NOT_UTF_8], ids=["one", "all"])
def test_a_line_that_is_not_utf_8_is_an_error_of_the_data(posttrain, monkeypatch, sent, decoding):
    """Python decodes standard input strictly in most locales, and with surrogates in the locale C."""
    stdin = io.TextIOWrapper(io.BytesIO(b"\n".join([b"ab", *sent, b""])), encoding="utf-8", errors=decoding)
    monkeypatch.setattr("sys.stdin", stdin)
    exit_code, _, err = posttrain("chat", "model", "--max-completion-length", "2")
    assert exit_code == 2
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("DataError: a ")]
    assert len(errors) == len(sent)
    assert all("UTF-8" in error for error in errors)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("half", ["\ud800", "ab\udcff", "\udfff\ud800"])
def test_half_a_character_is_refused_in_a_message_and_in_the_system_prompt(plain, with_template, chat, half):
    folder = with_template if chat else plain
    for session, text in ((ChatSession(folder), half), (ChatSession(folder, system=half), "ab")):
        with pytest.raises(DataError, match="half a character") as caught:
            session.ask(text)
        assert ("chat template" in caught.value.allowed) == chat
        assert session.turns == []


def test_text_in_any_script_is_asked(with_template):
    session = ChatSession(with_template, max_completion_length=1)
    for text in ("caf\u00e9", "\u00e9", "\U0001f600", "\u65e5"):
        session.turns.clear()
        session.ask(text)
        assert session.turns[0]["content"] == text


@pytest.mark.parametrize(
    ("condition", "system", "refused"),
    [
        ("messages[0].role == 'system'", "be brief", "ab"),
        ("messages | length > 1", None, "cd"),
        ("'bad' in messages[-1].content", None, "bad"),
        ("messages[0].content.nothing.more", None, "ab"),
    ],
)
def test_a_message_that_the_chat_template_refuses_is_an_error_of_the_data(plain, tmp_path, condition, system, refused):
    folder = shutil.copytree(plain, tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{% if " + condition + " %}{{ raise_exception('not like this') }}{% endif %}" + TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    session = ChatSession(folder, system=system, max_completion_length=1)
    if refused != "ab":
        session.ask("ab")
    with pytest.raises(DataError, match="the chat template refuses it"):
        session.ask(refused)


def test_text_that_the_tokenizer_cannot_write_is_told_once(plain, capsys):
    session = ChatSession(plain, max_completion_length=1)
    session.ask("a")
    assert capsys.readouterr().err == ""
    session.ask("日a")
    session.ask("本a")
    assert capsys.readouterr().err == "The tokenizer cannot write '日': the model reads <pad> instead.\n"
