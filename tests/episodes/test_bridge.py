"""The tokens between two turns: the template's text, found without tokenising the drawn tokens again."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
from tests.catalogue import catalogue
from tests.episodes.families import (
    FAMILIES,
    OF_THE_FOLDER,
    WITH_TOOLS,
    bridge_of,
    eos_of,
    special_of,
    tokenizer_of,
)
from tests.episodes.talkers import tokenizer as toy_tokenizer

from posttrain.data.dropped import Unusable
from posttrain.data.literal import Literal
from posttrain.data.prompts import Renderer
from posttrain.episodes.bridge import Bridge
from posttrain.episodes.calls import Call, Said
from posttrain.episodes.play import Play
from posttrain.errors import ConfigError
from posttrain.experience.assemble import assemble
from posttrain.experience.group import Group
from posttrain.types import Completion, Prompt


def words(dice: random.Random, names: list[str]) -> str:
    """Random text that may contain special tokens of the model."""
    parts = ["a", " ", "\n", "Zürich", "18.5", "{", '"', "\\", "</tool_response>", "\u2028", "🙂", *names]
    return "".join(dice.choices(parts, k=dice.randint(0, 12)))


class Drawn(NamedTuple):
    """A random trajectory, and its drawn tokens, turn by turn."""

    play: Play
    turns: list[tuple[int, ...]]
    plain: list[tuple[int, ...]]
    """The given ids if no text had come from outside."""


def random_trajectory(name: str, bridge: Bridge, role: str, dice: random.Random) -> Drawn:
    """Draw turns of random ids, few of which are text; the replies contain the spelling of special tokens."""
    tokenizer, eos = bridge.renderer.tokenizer, min(bridge.eos_ids)
    names, split = list(special_of(name)), bridge.history == "split"
    asked = ({"role": "user", "content": "One?"},)
    one = Drawn(Play(0, 0, Prompt(index=0, ids=bridge.whole(asked, []), text="", messages=asked)), [], [])
    play = one.play
    for turn in range(dice.randint(1, 5)):
        if turn:
            before = play.context
            play.hear([{"role": role, "name": "look", "content": words(dice, names)}])
            talk, outside = play.conversation
            empty = [{**said, "content": ""} if place in outside else said for place, said in enumerate(talk)]
            if split:
                play.give(bridge.whole(talk, outside), anew=True)
                one.plain.append(bridge.whole(empty, []))
            else:
                play.give(bridge.between(play.messages[-1:], last=play.ids[-1]))
                one.plain.append(bridge.between(empty[-1:], last=one.turns[-1][-1]))
                assert play.context[: len(before)] == before, "a turn begins with the same ids as the turns before it"
        ids = [dice.randrange(len(tokenizer)) for _ in range(dice.randint(0, 8))]
        ids = (*(one for one in ids if one not in bridge.eos_ids), *([eos] if dice.random() < 0.9 else [5]))
        piece = Completion(
            ids=ids,
            logprobs=tuple(-float(place) for place in range(len(ids))),
            versions=(turn,) * len(ids),
            finish_reason="eos",
            text=str(tokenizer.decode(list(ids), skip_special_tokens=True)),
        )
        play.draw(piece, Said(piece.text, [Call("look", {"at": "x"})] if role == "tool" else []))
        one.turns.append(ids)
    return one


def ways(name: str) -> list[tuple[str, str]]:
    """The pairs (role, history) of all trajectories that the template allows."""
    rewrites = FAMILIES[name].rewrites if name in FAMILIES else ()
    roles = ("user", "tool") if name in WITH_TOOLS else ("user",)
    return [(role, history) for role in roles for history in ("keep", *(["split"] if role in rewrites else []))]


@pytest.mark.parametrize("trajectories", [4, pytest.param(1000, marks=pytest.mark.slow)])
@catalogue("name, role, history", [(name, *way) for name in (*OF_THE_FOLDER, *FAMILIES) for way in ways(name)])
def test_trained_ids_are_those_that_were_sampled_bit_for_bit(name: str, role: str, history: Any, trajectories: int):
    """Random trajectories of every family, with environments and tools; outside text never gives special tokens."""
    bridge, dice, special = bridge_of(name, role, history), random.Random(0), set(special_of(name).values())
    found = [random_trajectory(name, bridge, role, dice) for _ in range(trajectories)]
    group = Group(prompt=found[0].play.prompt, completions=tuple(one.play.completion() for one in found))
    experience = assemble([group], pad_id=0)
    assert experience.tokens is not None
    assert experience.sampling_logprobs_BT is not None
    for row, (play, turns, plain) in enumerate(found):
        mask_T = experience.completion_mask_BT[row]
        assert experience.tokens.input_ids_BT[row][mask_T].tolist() == [token for ids in turns for token in ids]
        assert experience.sampling_logprobs_BT[row][mask_T].tolist() == play.logprobs
        given = [play.ids[begin:end] for begin, end in play.given]
        assert len(given) == len(plain) == len(turns) - 1
        for ids, expected in zip(given, plain, strict=True):
            assert [token for token in ids if token in special] == [token for token in expected if token in special]


@catalogue("name", [*OF_THE_FOLDER, *FAMILIES])
def test_each_special_token_from_outside_is_letters(name: str):
    """This includes the unknown token, which is an ordinary token for tokenizers of bytes."""
    bridge, tokenizer, special = bridge_of(name), tokenizer_of(name), special_of(name)
    text = "a" + "b".join(special) + "c"
    plain, ids = (bridge.between([{"role": "user", "content": one}], last=eos_of(name)) for one in ("abc", text))
    expected, found = ([token for token in one if token in special.values()] for one in (plain, ids))
    assert found == expected
    assert text in str(tokenizer.decode(list(ids), skip_special_tokens=False))


def test_the_token_for_what_is_unknown_is_hidden_and_stands_for_unknown_letters_alone():
    smollm2, toy = tokenizer_of("smollm2"), toy_tokenizer()
    assert smollm2.unk_token == "<|endoftext|>"
    assert smollm2.unk_token_id not in Literal.of(smollm2).letters("<|endoftext|>")
    literal = Literal.of(toy)
    known = [int(toy.convert_tokens_to_ids(letter)) for letter in "<e>"]  # pyright: ignore
    unknown = toy.unk_token_id
    assert literal.letters("<eos>") == [known[0], known[1], unknown, unknown, known[2]]
    assert not literal.knows_its_letters()


@pytest.mark.parametrize("reads", ["<unk>", "left out"])
def test_a_tokenizer_that_reads_text_as_something_else_is_refused(monkeypatch, reads: str):
    bridge = bridge_of("smollm2")
    unknown = [bridge.renderer.tokenizer.unk_token_id] if reads == "<unk>" else []
    monkeypatch.setattr(Literal, "letters", lambda self, name: unknown)
    with pytest.raises(ConfigError, match="would not reach the model unchanged"):
        bridge.prove("user")


@catalogue("name", [*OF_THE_FOLDER, *FAMILIES])
def test_what_stands_between_reads_as_the_template_writes_it(name: str):
    """The test uses a conversation of three turns that the template appends to, and compares each character."""
    bridge, tokenizer = bridge_of(name), tokenizer_of(name)
    if bridge.history != "append":
        return
    talk = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "Two."}]
    talk += [{"role": "user", "content": "Three <|im_end|> 3?"}, {"role": "assistant", "content": "Four."}]
    talk += [{"role": "user", "content": "Five?"}]
    text = bridge.renderer.render(talk[:1], add_generation_prompt=True)
    for said, asked in ((talk[1], talk[2]), (talk[3], talk[4])):
        text += said["content"] + str(tokenizer.decode([eos_of(name)]))
        text += str(tokenizer.decode(list(bridge.between([asked], last=eos_of(name)))))
    whole = bridge.renderer.render(talk, add_generation_prompt=True)
    assert "".join(text.split()) == "".join(whole.split())


@catalogue("name", [*OF_THE_FOLDER, *FAMILIES])
def test_each_template_that_rewrites_history_is_recognised(name: str):
    rewrites = FAMILIES[name].rewrites if name in FAMILIES else ()
    for role in ("user", "tool") if name in WITH_TOOLS else ("user",):
        assert bridge_of(name, role).history == ("keep" if role in rewrites else "append"), role


def test_a_template_that_rewrites_history_asks_what_to_do():
    with pytest.raises(ConfigError, match=r"rewrites history: it writes '.*Four.*', but '.*<think>.*split.*keep"):
        bridge_of("thinking", history="auto")


LEAVES_OUT_LATER_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LIFTS_SYSTEM = (
    "{% for m in messages if m.role == 'system' %}<|im_start|>system\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (LEAVES_OUT_LATER_SYSTEM, "cannot write a message of the role system after an answer"),
        (LIFTS_SYSTEM, "cannot write a message of the role system after an answer"),
        (FAMILIES["gemma"].template, "cannot write a message of the role system after an answer"),
        (FAMILIES["chatml"].template, ""),
    ],
)
def test_only_messages_of_proven_roles_may_come_back(template: str, why: str):
    """An environment may return any role; a template that omits or moves it would hide the message from the model."""
    renderer = Renderer(tokenizer=tokenizer_of("chatml"), chat=True, template_kwargs={"chat_template": template})
    bridge = Bridge.of(renderer, {eos_of("gemma" if "end_of_turn" in template else "chatml")})
    bridge.check([{"role": "user", "content": "x"}])
    back = [{"role": "user", "content": "x"}, {"role": "system", "content": "Be brief."}]
    if why:
        with pytest.raises(Unusable, match=f"a message of the role system came back, but .*{why}"):
            bridge.check(back)
    else:
        bridge.check(back)


def test_a_turn_that_a_stop_string_ended_gets_the_end_that_the_template_writes():
    bridge, tokenizer = bridge_of("qwen2.5"), tokenizer_of("qwen2.5")
    ended = bridge.between([{"role": "user", "content": "x"}], last=eos_of("qwen2.5"))
    stopped = bridge.between([{"role": "user", "content": "x"}], last=5)
    assert tokenizer.decode(list(stopped)) == "<|im_end|>" + str(tokenizer.decode(list(ended)))


def test_split_gives_a_turn_the_history_that_the_template_writes():
    bridge, tokenizer = bridge_of("thinking", history="split"), tokenizer_of("thinking")
    talk = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\nFour."},
        {"role": "user", "content": "And <|im_end|>?"},
    ]
    ids = bridge.whole(talk, [2])
    text = str(tokenizer.decode(list(ids)))
    assert "Two and two" not in text
    assert text.count("<|im_end|>") == 4
    assert list(ids).count(eos_of("thinking")) == 3


def test_a_tokenizer_without_a_template_is_refused():
    renderer = Renderer(tokenizer=tokenizer_of("chatml"), chat=True)
    template, renderer.tokenizer.chat_template = renderer.tokenizer.chat_template, None
    try:
        with pytest.raises(ConfigError, match="no chat template"):
            Bridge.of(renderer, {1})
    finally:
        renderer.tokenizer.chat_template = template
