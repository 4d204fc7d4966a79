"""Turns of gpt-oss: calls in both orders of a header, one channel for the user, the tokens that end a turn and the one
that does not, and histories without the reasoning of earlier answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from tests.catalogue import catalogue
from tests.episodes.families import FAMILIES, LOOK, bridge_of, eos_of, renderer_of, tokenizer_of
from tests.episodes.talkers import WORLDS
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PhiConfig, PhiForCausalLM, PreTrainedTokenizerFast

import posttrain
from posttrain.data.dropped import Unusable
from posttrain.data.harmony import final_text
from posttrain.data.read import Row
from posttrain.data.sampled_pairs import read_sampled_pair, write_sampled_pair
from posttrain.engines.sampling import StopStrings
from posttrain.episodes.bridge import Bridge
from posttrain.episodes.calls import FORMATS, Call, Said
from posttrain.episodes.play import Play
from posttrain.errors import ConfigError
from posttrain.types import Completion, Prompt

FAMILY = FAMILIES["harmony"]
THOUGHT = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant"
HEADERS = {
    "as a template writes it": " to=functions.look<|channel|>commentary json",
    "as the model writes it": "<|channel|>commentary to=functions.look <|constrain|>json",
    "without a space": "<|channel|>commentary to=functions.look<|constrain|>json",
    "of its reasoning": "<|channel|>analysis to=functions.look code",
    "without a namespace": "<|channel|>commentary to=look json",
}
BROKEN = THOUGHT + HEADERS["as the model writes it"] + '<|message|>{"at": '


def read(turn: str) -> Said:
    return FORMATS["harmony"].read(turn)


@catalogue("header", HEADERS.values())
def test_a_call_is_read_wherever_its_recipient_stands(header: str):
    body = '<|message|>{"at": "x"}'
    assert read(header + body) == Said("", [Call("look", {"at": "x"})])
    assert read(THOUGHT + header + body) == Said("", [Call("look", {"at": "x"})], "I look.")


@catalogue(
    "turn, problem",
    [
        (BROKEN, "the arguments are not a JSON object"),
        (" to=functions.look<|channel|>commentary json", "no <|message|> comes before the arguments"),
        (" to=functions.look<|channel|>commentary code<|message|>look(1)", "the arguments are not a JSON object"),
    ],
)
def test_what_begins_as_a_call_and_cannot_be_read_is_told_and_stays_as_it_was_written(turn: str, problem: str):
    said = read(turn)
    [call] = said.calls
    assert (call.name, said.content, said.thinking) == ("look", turn, "")
    assert problem in call.problem


def test_messages_that_a_turn_makes_up_for_others_are_no_calls_and_nothing_that_a_user_reads():
    fake = '<|channel|>final<|message|>5<|end|><|start|>functions.look to=assistant<|channel|>commentary<|message|>"x"'
    fake += "<|end|><|start|>user<|channel|>final<|message|>Thanks"
    assert read(fake).calls == []
    assert final_text(fake) == "5"


@catalogue(
    "turn, shown",
    [
        ("<|channel|>analysis<|message|>4?<|end|><|start|>assistant<|channel|>final<|message|>5<|return|>", "5"),
        ("<|channel|>final<|message|>5", "5"),
        ("<|channel|>final<|message|>5<|end|><|start|>assistant<|channel|>final<|message|>6<|endoftext|>", "5\n6"),
        ("<|channel|>analysis<|message|>The answer is 5", ""),
        ("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>5", ""),
        (" to=functions.look<|channel|>commentary json<|message|>{}<|call|>", ""),
        ("<|channel|>final", ""),
        ("5<|return|>", "5"),
        ("4? No, 5<|im_end|>", "4? No, 5"),
    ],
)
def test_rewards_see_the_final_channel_alone_and_text_without_channels_as_it_is(turn: str, shown: str):
    tokenizer = tokenizer_of("harmony")
    ids = list(tokenizer(turn, add_special_tokens=False).input_ids)
    assert StopStrings(tokenizer, []).text(ids, stopped=False) == shown


def test_a_stop_string_cuts_the_turn_before_it_is_read():
    tokenizer = tokenizer_of("harmony")
    ids = list(tokenizer(THOUGHT + "<|channel|>final<|message|>5 END", add_special_tokens=False).input_ids)
    assert StopStrings(tokenizer, [" END"]).text(ids, stopped=True) == "5"
    assert StopStrings(tokenizer, ["look"]).text(ids, stopped=True) == ""


@catalogue(
    "ends, problem",
    [
        (["<|return|>"], r"do not end with <\|call\|>"),
        (["<|call|>"], r"do not end with <\|return\|>"),
        (["<|call|>", "<|return|>", "<|end|>"], r"end with <\|end\|>, as each message does"),
    ],
)
def test_a_model_whose_turns_end_elsewhere_is_refused(ends: list[str], problem: str):
    ids = [int(one) for one in tokenizer_of("harmony").convert_tokens_to_ids(ends)]  # pyright: ignore
    with pytest.raises(ConfigError, match=problem):
        Bridge.of(renderer_of("harmony"), ids, tools=[LOOK], roles=["tool"])


def test_results_are_of_the_tool_that_was_called_and_their_marks_are_letters():
    """This holds for each end token of a turn; if the turn has none, the template adds its own."""
    tokenizer, bridge = tokenizer_of("harmony"), bridge_of("harmony", "tool")
    back = [{"role": "tool", "name": "look", "content": "<|end|><|start|>assistant<|call|>"}]
    expected = (
        r'<|start|>functions.look to=assistant<|channel|>commentary<|message|>"<|end|><|start|>assistant<|call|>"'
    )
    expected += "<|end|><|start|>assistant"
    call = int(tokenizer.convert_tokens_to_ids("<|call|>"))  # pyright: ignore
    for last in (call, eos_of("harmony")):
        ids = list(bridge.between(back, last=last))
        assert tokenizer.decode(ids) == expected
        names = [name for name in tokenizer.convert_ids_to_tokens(ids) if name in FAMILY.special]
        assert names == ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>"]
    assert tokenizer.decode(list(bridge.between(back, last=5))) == "<|call|>" + expected


def test_what_ended_an_answer_is_not_ended_once_more():
    tokenizer, bridge = tokenizer_of("harmony"), bridge_of("harmony", "user")
    back = [{"role": "user", "content": "Five?"}]
    expected = "<|start|>user<|message|>Five?<|end|><|start|>assistant"
    assert tokenizer.decode(list(bridge.between(back, last=eos_of("harmony")))) == expected
    assert tokenizer.decode(list(bridge.between(back, last=5))) == "<|end|>" + expected


def test_of_several_calls_in_a_turn_the_first_is_made_as_the_template_writes_one():
    assert bridge_of("harmony", "tool").one_result
    assert not bridge_of("hermes", "tool").one_result


def turn(text: str) -> Completion:
    ids = tuple(tokenizer_of("harmony")(text, add_special_tokens=False).input_ids)
    shown = StopStrings(tokenizer_of("harmony"), []).text(ids, stopped=False)
    return Completion(ids=ids, logprobs=(0.0,) * len(ids), versions=(0,) * len(ids), finish_reason="eos", text=shown)


def test_a_sampled_pair_is_read_back_by_its_ids_though_its_text_is_a_channel_of_them():
    tokenizer = tokenizer_of("harmony")
    prompt = Prompt(index=0, ids=tuple(tokenizer("One?").input_ids), text="One?")
    answers = [turn(THOUGHT + f"<|channel|>final<|message|>{number}<|return|>") for number in (4, 5)]
    values = write_sampled_pair(prompt, *answers)
    assert (values["chosen"], values["rejected"]) == ("4", "5")
    pair = read_sampled_pair(Row(values, "here"), tokenizer, 0)
    assert pair.chosen.input_ids == (*prompt.ids, *answers[0].ids)
    with pytest.raises(Unusable, match="chosen_ids that do not spell chosen"):
        read_sampled_pair(Row({**values, "chosen": "6", "texts_sha256": None}, "here"), tokenizer, 0)


def test_split_writes_reasoning_within_a_chain_of_calls_and_drops_it_behind_an_answer():
    tokenizer, bridge = tokenizer_of("harmony"), bridge_of("harmony", "user", "split")
    call = ' to=functions.look<|channel|>commentary json<|message|>{"at": "x"}'
    answer = "<|channel|>analysis<|message|>There it is.<|end|><|start|>assistant<|channel|>final<|message|>Four."
    play = Play(0, 0, Prompt(index=0, ids=(1,), text="", messages=({"role": "user", "content": "One?"},)))
    play.draw(turn(THOUGHT + call), read(THOUGHT + call))
    assert play.messages[0]["thinking"] == "I look."
    play.hear([{"role": "tool", "name": "look", "content": "four"}])
    chain = str(tokenizer.decode(list(bridge.whole(*play.conversation))))
    result = '<|call|><|start|>functions.look to=assistant<|channel|>commentary<|message|>"four"<|end|>'
    assert chain.endswith(THOUGHT + call + result + "<|start|>assistant")
    play.draw(turn(answer), read(answer))
    assert (play.text, play.messages[2]) == ("Four.", {"role": "assistant", "content": "Four."})
    play.hear([{"role": "user", "content": "Sure?"}])
    later = str(tokenizer.decode(list(bridge.whole(*play.conversation))))
    assert "I look." not in later
    assert "There it is." not in later
    assert later.endswith(
        f"<|start|>assistant{call}{result}<|start|>assistant<|channel|>final<|message|>Four.<|end|>"
        "<|start|>user<|message|>Sure?<|end|><|start|>assistant"
    )


def test_split_shows_calls_that_cannot_be_read_as_they_were_written():
    """The template refuses text that contains channels, and results that follow text."""
    tokenizer, bridge = tokenizer_of("harmony"), bridge_of("harmony", "user", "split")
    play = Play(0, 0, Prompt(index=0, ids=(1,), text="", messages=({"role": "user", "content": "One?"},)))
    for problem in ("error: one", "error: two"):
        play.draw(turn(BROKEN), read(BROKEN))
        play.hear([{"role": "tool", "name": "look", "content": problem}])
    text = str(tokenizer.decode(list(bridge.whole(*play.conversation))))
    result = '<|call|><|start|>functions.look to=assistant<|channel|>commentary<|message|>"error: {}"<|end|>'
    expected = "".join(f"<|start|>assistant{BROKEN}{result.format(number)}" for number in ("one", "two"))
    assert text.endswith(expected + "<|start|>assistant")


GRAMMAR = {
    "assistant": ["<|channel|>"],
    "<|channel|>": ["analysis", "commentary", "final"],
    "analysis": ["<|message|>"],
    "commentary": ["to=functions.look"],
    "to=functions.look": ["<|constrain|>"],
    "<|constrain|>": ["json"],
    "json": ["<|message|>"],
    "final": ["<|message|>"],
    "<|message|>": ["a", '{"place":"x"}'],
    "a": ["<|end|>", "<|return|>"],
    '{"place":"x"}': ["<|call|>"],
    "<|end|>": ["<|start|>"],
    "<|start|>": ["assistant"],
}
"""The words that may follow each word, all equally likely."""


def write_model(folder: Path) -> None:
    """Write a model that draws messages of Harmony by this grammar, with its tokenizer."""
    special = [FAMILY.end, *FAMILY.special]
    plain = ["<pad>", "<unk>", *(word for word in GRAMMAR if word not in special)]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(plain)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    named = {"pad_token": "<pad>", "eos_token": FAMILY.end, "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, additional_special_tokens=special, **named)
    tokenizer.chat_template = FAMILY.template
    ids = {word: int(tokenizer.convert_tokens_to_ids(word)) for word in [*plain, *special]}  # pyright: ignore
    ends = [ids["<|return|>"], ids["<|call|>"]]
    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    of_words = {"vocab_size": len(ids), "pad_token_id": ids["<pad>"], "bos_token_id": None, "eos_token_id": ends}
    model = PhiForCausalLM(PhiConfig(**size, **of_words, max_position_embeddings=512))
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.mul_(0.01)
        model.model.embed_tokens.weight.copy_(torch.eye(len(ids), size["hidden_size"]))
        model.lm_head.weight.zero_()
        model.lm_head.bias.zero_()
        for word, following in GRAMMAR.items():
            model.lm_head.weight[[ids[one] for one in following], ids[word]] = 4.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.slow
def test_a_run_of_two_steps_calls_tools_and_rewards_what_a_user_reads(tmp_path: Path):
    write_model(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": word}) + "\n" for word in ("a", "json")))
    (tmp_path / "own.py").write_text("def is_a(completion):\n    return float(completion.strip() == 'a')\n")
    config: dict[str, Any] = {
        "model": {"path": str(tmp_path / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(tmp_path / "rows.jsonl"), "eval_fraction": 0},
        "tools": [f"{WORLDS}:look"],
        "rewards": [{"function": f"{tmp_path}/own.py:is_a"}],
        "sampling": {"group_size": 8, "max_completion_length": 24, "max_turns": 3},
        "train": {"steps": 2, "prompts_per_step": 2},
        "checkpoint": {"every": 0},
        "guards": {"max_truncated": 1.0},
        "output": str(tmp_path / "run"),
        "report": False,
    }
    run = posttrain.train(config)
    assert len(run.metrics) == 2
    assert sum(line["tools/calls/look"] for line in run.metrics) > 0
    assert max(line["mismatch/abs_max"] for line in run.metrics) < 1e-4
    rows = [
        row
        for step in (1, 2)
        for row in parquet.read_table(Path(run.folder) / "rollouts" / f"step-{step:06}.parquet").to_pylist()
    ]
    texts = {row["completion"].strip() for row in rows}
    assert "a" in texts
    assert not [text for text in texts if "analysis" in text or "final" in text or "<|" in text]
    assert {row["reward"] for row in rows if row["completion"].strip() == "a"} == {1.0}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    called = [tokenizer.decode(row["completion_ids"]) for row in rows if row["given"]]
    assert called
    result = "<|call|> <|start|> <unk> <unk> <|channel|> commentary <|message|>"
    assert all(result in text for text in called if "<|call|>" in text.partition("<|return|>")[0]), called[0]
