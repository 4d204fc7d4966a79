"""Turns of gpt-oss (Harmony): messages in channels. A user reads only the channel `final`.

    <|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>
    <|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "x"}<|call|>

The recipient of a call follows the channel when the model writes it, and precedes it in the chat template:

     to=functions.look<|channel|>commentary json<|message|>{"at": "x"}<|call|>

`<|return|>` and `<|call|>` end a turn, `<|end|>` a message. Source: docs/format.md of github.com/openai/harmony.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
"""The beginning of a message in these channels."""
CALL, END, MESSAGE, RETURN = "<|call|>", "<|end|>", "<|message|>", "<|return|>"
NEXT = "<|end|><|start|>assistant"
"""The tokens between two messages of a turn."""
_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", CALL, END, MESSAGE, RETURN)
_MARK = re.compile("|".join(map(re.escape, _MARKS)))
_HEADER = re.compile(r"\s*assistant(?![^\s<])")
_CHANNEL = re.compile(r"<\|channel\|>\s*([^\s<]*)")
_RECIPIENT = re.compile(r"\bto=([^\s<]*)")


class Part(NamedTuple):
    """One message of a turn."""

    channel: str
    recipient: str
    """Name of the called function; empty if the message is no call."""
    text: str | None
    """Text of the message; None if the turn ends within the header."""


def parts(turn: str) -> list[Part]:
    """The messages of the assistant in a turn. `turn` is the text after `<|start|>assistant`. Messages of other roles,
    which a policy may make up, are left out.

    >>> parts("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=f<|channel|>commentary<|message|>{}")
    [Part(channel='analysis', recipient='', text='Hm.'), Part(channel='commentary', recipient='f', text='{}')]
    """
    found = []
    for piece in f"assistant{turn}".split("<|start|>"):
        header, mark, body = piece.partition(MESSAGE)
        if _HEADER.match(header) is None:
            continue
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        text = _MARK.split(body, maxsplit=1)[0] if mark else None
        found.append(Part(channel[1] if channel else "", recipient[1] if recipient else "", text))
    return found


def final_text(turn: str) -> str:
    """The part of a turn that a user reads: its messages in the channel `final`, joined by line breaks; empty if there
    are none."""
    return "\n".join(part.text for part in parts(turn) if part.channel == "final" and part.text is not None)


@dataclass(frozen=True)
class Channels:
    """Recognises turns in channels by their token ids, for a tokenizer with Harmony's special tokens."""

    tokenizer: PreTrainedTokenizerBase
    opening: frozenset[int]
    """Ids of the tokens of which every turn with a message has at least one."""
    unread: frozenset[int]
    """Ids of special tokens that are not Harmony's. They do not appear in the text."""

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase) -> Channels | None:
        """The channels of a tokenizer; None if it lacks one of Harmony's special tokens."""
        if tokenizer.convert_tokens_to_ids(MESSAGE) in (None, tokenizer.unk_token_id):
            return None  # a cheap test: this runs for each row of a file, and there may be thousands of added tokens
        tokens = tokenizer.added_tokens_decoder
        added = {str(token): number for number, token in tokens.items()}
        if not added.keys() >= set(_MARKS):
            return None
        own = {added[name] for name in _MARKS}
        special = {number for number, token in tokens.items() if token.special}
        return Channels(tokenizer, frozenset({added["<|channel|>"], added[MESSAGE]}), frozenset(special - own))

    def turn(self, ids: Sequence[int]) -> str | None:
        """The text of a turn for `parts` and `final_text`; None for other text, such as a base model's."""
        if self.opening.isdisjoint(ids):
            return None
        own = [token for token in ids if token not in self.unread]
        return str(self.tokenizer.decode(own, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def require_ends(tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int], *, calls: bool) -> None:
    """Raise ConfigError unless the EOS tokens end turns, and calls if there are tools, but not single messages."""
    ends = {str(tokenizer.convert_ids_to_tokens(token)) for token in eos_ids}
    missing = {RETURN, *([CALL] if calls else [])} - ends
    if not missing and END not in ends:
        return
    raise ConfigError(
        given="a chat template in the format of gpt-oss (Harmony), and a model whose turns "
        + (f"do not end with {' and '.join(sorted(missing))}" if missing else f"end with {END}, as each message does"),
        allowed=f"{RETURN} and {CALL} as EOS, and not {END}",
        fix="Set eos_token_id in the model's generation_config.json to their ids.",
    )
