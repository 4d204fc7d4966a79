"""What the model sees between two turns: the template's text, found without tokenising again what was drawn."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import compress
from typing import Any

import pytest
from tests.catalogue import catalogue
from tests.episodes.families import FAMILIES, eos_of, renderer_of, tokenizer_of

from posttrain.data.prompts import Renderer
from posttrain.episodes.bridge import Bridge
from posttrain.episodes.calls import Said, recognised
from posttrain.episodes.play import Play
from posttrain.errors import ConfigError
from posttrain.experience.assemble import assemble
from posttrain.experience.group import Group
from posttrain.types import Completion, Prompt

LOOK: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look somewhere.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string", "description": "Where."}}},
    },
}
OF_THE_FOLDER = ("qwen2.5", "smollm2")
WITH_TOOLS = tuple(name for name, family in FAMILIES.items() if family.calls)


def bridge_of(name: str, role: str = "user", history: Any = "keep") -> Bridge:
    tools = [LOOK] if role == "tool" else []
    return Bridge.of(renderer_of(name), {eos_of(name)}, tools=tools, roles=[role], history=history)


def words(dice: random.Random, names: list[str]) -> str:
    """Text with anything in it, special tokens of the model among it."""
    parts = ["a", " ", "\n", "Zürich", "18.5", "{", '"', "\\", "</tool_response>", "\u2028", "🙂", *names]
    return "".join(dice.choices(parts, k=dice.randint(0, 12)))


def play_one(bridge: Bridge, role: str, dice: random.Random) -> tuple[Play, list[tuple[int, ...]], list[str]]:
    """A trajectory of random ids: what was drawn, turn by turn, and what came back."""
    tokenizer, eos = bridge.renderer.tokenizer, min(bridge.eos_ids)
    names, size = list(bridge.literal.names), len(tokenizer)
    prompt = Prompt(index=0, ids=bridge.whole([{"role": "user", "content": "One?"}], []), text="")
    play, drawn, back = Play(0, 0, prompt), [], []
    for turn in range(dice.randint(1, 5)):
        if turn:
            back.append(words(dice, names))
            play.hear([{"role": role, "content": back[-1]}])
            play.give(bridge.between(play.messages[-1:], last=play.ids[-1]))
        ids = tuple(dice.randrange(size) for _ in range(dice.randint(0, 8)))
        ids = (*(one for one in ids if one not in bridge.eos_ids), *([eos] if dice.random() < 0.9 else [5]))
        numbers = tuple(-float(n) for n in range(len(ids)))
        piece = Completion(ids=ids, logprobs=numbers, versions=(turn,) * len(ids), finish_reason="eos", text="")
        before = play.context
        play.draw(piece, Said("", []))
        drawn.append(ids)
        assert play.context[: len(before)] == before, "a turn begins with the very ids of those before it"
    return play, drawn, back


@pytest.mark.parametrize("trajectories", [50, pytest.param(1000, marks=pytest.mark.slow)])
@catalogue("name", [*OF_THE_FOLDER, *FAMILIES])
def test_trained_ids_are_those_that_were_sampled_bit_for_bit(name: str, trajectories: int):
    """Of random trajectories of every family; their text from outside spells its special tokens."""
    bridge, dice = bridge_of(name), random.Random(0)
    special = set(bridge.literal.names.values())
    plays = [play_one(bridge, "user", dice) for _ in range(trajectories)]
    group = Group(prompt=plays[0][0].prompt, completions=tuple(play.completion() for play, _, _ in plays))
    experience = assemble([group], pad_id=0)
    assert experience.tokens is not None
    assert experience.sampling_logprobs_BT is not None
    plain = bridge.between([{"role": "user", "content": ""}], last=min(bridge.eos_ids))
    for row, (play, drawn, _) in enumerate(plays):
        mask_T = experience.completion_mask_BT[row]
        sampled = [token for ids in drawn for token in ids]
        assert experience.tokens.input_ids_BT[row][mask_T].tolist() == sampled
        assert experience.sampling_logprobs_BT[row][mask_T].tolist() == play.logprobs
        given = [play.ids[begin:end] for begin, end in play.given]
        ends = [ids[-1] in bridge.eos_ids for ids in drawn]
        for ids in compress(given, ends):
            assert [one for one in ids if one in special] == [one for one in plain if one in special]


@catalogue("name", [*OF_THE_FOLDER, *FAMILIES])
def test_what_stands_between_reads_as_the_template_writes_it(name: str):
    """In a conversation of three turns that the template appends to, letter for letter."""
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
    for role in ("user", *(["tool"] if name in WITH_TOOLS else [])):
        assert bridge_of(name, role).history == ("keep" if role in rewrites else "append"), role


def test_a_template_that_rewrites_history_asks_what_to_do():
    with pytest.raises(ConfigError, match=r"rewrites history: it writes '.*Four.*' where '.*<think>.*split.*keep"):
        bridge_of("thinking", history="auto")


@catalogue("name", WITH_TOOLS)
def test_the_format_of_calls_is_recognised_and_results_are_context(name: str):
    bridge, tokenizer = bridge_of(name, "tool"), tokenizer_of(name)
    assert recognised(FAMILIES[name].template).name == FAMILIES[name].calls
    results = [{"role": "tool", "content": "found", "name": "look"}] * (1 if bridge.one_result else 2)
    text = str(tokenizer.decode(list(bridge.between(results, last=eos_of(name)))))
    assert text.count("found") == len(results)
    assert "standin" not in text


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
