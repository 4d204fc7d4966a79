"""Rows that can be read but not used, one of each kind, with the reason that a run must give.

test_malformed.py and a section of docs/bad-inputs.md use this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ASK, ANSWER = {"role": "user", "content": "ab"}, {"role": "assistant", "content": "ba"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": "{n: 1"}}]}
MEDIUM = "a" * 300

GOOD: Mapping[str, Mapping[str, Any]] = {
    "prompts": {"prompt": "ab", "answer": "ba"},
    "examples": {"prompt": "ab", "completion": "ba"},
    "conversations": {"messages": [ASK, ANSWER]},
    "ShareGPT": {"conversations": [{"from": "human", "value": "ab"}, {"from": "gpt", "value": "ba"}]},
    "Alpaca": {"instruction": "ab", "output": "ba", "history": [["a", "b"]]},
    "text": {"text": "abba"},
    "pairs": {"prompt": "ab", "chosen": "ba", "rejected": "bb"},
    "labels": {"prompt": "ab", "completion": "ba", "label": True},
    "ratings": {"prompt": "ab", "completion": "ba", "score": 1.5},
    "steps": {"prompt": "ab", "completions": ["b", "a"], "labels": [True, False]},
}
"""A valid row of each layout; the bad rows are made from these."""
KINDS = {"conversations": "examples", "ShareGPT": "examples", "Alpaca": "examples", "text": "examples"}
"""The kind of data of each layout whose name is not itself a kind."""


@dataclass(frozen=True, kw_only=True)
class Malformed:
    """A valid row with other values in some columns; None stands for null."""

    name: str
    layout: str
    change: Mapping[str, Any]
    reason: str

    @property
    def kind(self) -> str:
        return KINDS.get(self.layout, self.layout)

    @property
    def row(self) -> dict[str, Any]:
        return {**GOOD[self.layout], **self.change}


def _(name: str, layout: str, reason: str, **change: Any) -> Malformed:
    return Malformed(name=name, layout=layout, change=change, reason=reason)


TABLE: tuple[Malformed, ...] = (
    _("A prompt that is missing", "prompts", "no value in column 'prompt'", prompt=None),
    _("A prompt of nothing but spaces", "prompts", "empty prompt", prompt="  "),
    _("A number for a prompt", "prompts", "prompt: an int, neither text nor messages", prompt=7),
    _("A prompt without messages", "prompts", "prompt: no messages", prompt=[]),
    _("A prompt that is answered already", "prompts", "prompt: messages that end with an assistant turn",
      prompt=[ASK, ANSWER]),
    _("A prompt that is too long", "prompts", "prompt longer than 256 tokens", prompt=MEDIUM),
    _("An answer that is missing", "examples", "no value in column 'completion'", completion=None),
    _("An answer of nothing but spaces", "examples", "an empty answer", completion=" "),
    _("Messages in the notation of Python", "conversations",
      "messages: messages as text that is not JSON: write JSON, with json.dumps", messages=str([ASK, ANSWER])),
    _("A list of texts for an answer", "examples", "completion: message without role and content", completion=["ba"]),
    _("An answer without the assistant", "examples", "completion without an assistant turn", completion=[ASK]),
    _("An example that is too long", "examples", "longer than 256 tokens", completion=MEDIUM),
    _("Text where messages belong", "conversations", "messages: text, not messages", messages="ab"),
    _("A conversation without messages", "conversations", "messages: no messages", messages=[]),
    _("A message without content", "conversations", "messages: message without role and content",
      messages=[{"role": "user"}, ANSWER]),
    _("A role that nobody has", "conversations", "messages: unknown role 'bot'",
      messages=[ASK, {"role": "bot", "content": "ba"}]),
    _("An empty question", "conversations", "messages: empty user turn",
      messages=[{"role": "user", "content": " "}, ANSWER]),
    _("An empty answer in a conversation", "conversations", "messages: empty assistant turn",
      messages=[ASK, {"role": "assistant", "content": ""}]),
    _("Two questions in a row", "conversations", "messages: two user turns in a row", messages=[ASK, ASK, ANSWER]),
    _("A conversation without an answer", "conversations", "messages without an assistant turn", messages=[ASK]),
    _("A number for a message's content", "conversations", "messages: content is an int, not text",
      messages=[ASK, {"role": "assistant", "content": 4}]),
    _("A picture in a conversation", "conversations", "messages: content with parts that are not text (image_url)",
      messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}, ANSWER]),
    _("A tool call whose arguments are broken JSON", "conversations",
      "messages: arguments of a tool call: broken JSON", messages=[ASK, CALL]),
    _("The result of a tool that nobody called", "conversations", "messages: tool turn that follows no assistant turn",
      messages=[ASK, {"role": "tool", "content": "1"}, ANSWER]),
    _("Tools that are broken JSON", "conversations", "tools: broken JSON", tools='[{"name": '),
    _("Tools without names", "conversations", "tools: one has no name", tools=[{"description": "adds"}]),
    _("A function call that is broken JSON", "ShareGPT", "conversations: tool call: broken JSON",
      conversations=[{"from": "human", "value": "ab"}, {"from": "function_call", "value": "add(1)"}]),
    _("A history that is no list of pairs", "Alpaca", "history: not pairs of question and answer",
      history=[["a"]]),
    _("An instruction that is missing", "Alpaca", "no value in column 'instruction'", instruction=None),
    _("An empty text", "text", "empty text", text="\n"),
    _("Chosen and rejected that are the same", "pairs", "chosen and rejected are the same", chosen="bb"),
    _("Chosen and rejected that are the same tokens", "pairs", "chosen and rejected are the same tokens",
      chosen="bb<eos>"),
    _("A chosen answer that is missing", "pairs", "no value in column 'chosen'", chosen=None),
    _("An empty rejected answer", "pairs", "an empty answer", rejected=""),
    _("Text against messages", "pairs", "one answer is text, the other messages", rejected=[ANSWER]),
    _("A chosen answer that ends with a question", "pairs",
      "chosen: messages that do not end with an assistant turn", chosen=[ANSWER, ASK], rejected=[ANSWER]),
    _("No prompt, and answers that do not begin alike", "pairs",
      "no prompt, and chosen and rejected do not begin alike", prompt=None, chosen="ab", rejected="ba"),
    _("A margin that is no number", "pairs", "margin is not a finite number", margin="much"),
    _("A margin that is NaN", "pairs", "margin is not a finite number", margin=float("nan")),
    _("A pair that is too long", "pairs", "longer than 256 tokens", rejected=MEDIUM),
    _("A label in words", "labels", "label is neither true nor false", label="yes"),
    _("A label that is a number", "labels", "label is neither true nor false", label=2),
    _("A label that is missing", "labels", "no value in column 'label'", label=None),
    _("An empty answer with a label", "labels", "an empty answer", completion=" "),
    _("A labelled answer that is too long", "labels", "longer than 256 tokens", completion=MEDIUM),
    _("A score that is no number", "ratings", "score is not a finite number", score="good"),
    _("A score that is infinite", "ratings", "score is not a finite number", score=float("inf")),
    _("More steps than labels", "steps", "completions and labels of different length", labels=[True]),
    _("A label of a step that is neither right nor wrong", "steps",
      "a label of a step that is neither true, false nor between 0 and 1", labels=[True, 2]),
    _("One text for all steps", "steps", "completions: a str, not a list with one entry per step", completions="b a"),
    _("A solution without steps", "steps", "no steps", completions=[], labels=[]),
    _("A step without text", "steps", "a step without text", completions=["b", ""]),
)  # fmt: skip
