"""Turns of gpt-oss (Harmony): messages in channels, of which a user reads the one that is called `final`.

    <|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>
    <|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "x"}<|call|>

The recipient of a call stands behind its channel, as the model writes it, or before, as its chat template does:

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
"""How messages of these channels begin."""
CALL, END, MESSAGE, RETURN = "<|call|>", "<|end|>", "<|message|>", "<|return|>"
NEXT = "<|end|><|start|>assistant"
"""Between two messages of a turn."""
_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", CALL, END, MESSAGE, RETURN)
_MARK = re.compile("|".join(map(re.escape, _MARKS)))
_HEADER = re.compile(r"\s*assistant(?![^\s<])")
_CHANNEL = re.compile(r"<\|channel\|>\s*([^\s<]*)")
_RECIPIENT = re.compile(r"\bto=([^\s<]*)")


class Part(NamedTuple):
    """One message of a turn."""

    channel: str
    recipient: str
    """Whom it calls; empty where nobody."""
    text: str | None
    """None where the turn ends within the header."""


def parts(turn: str) -> list[Part]:
    """The messages of a turn; `turn` follows `<|start|>assistant`. Those of others, which a policy may make up, are
    left out.

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
    """The part of a turn that a user reads: its messages of the channel `final`, one below the other. Empty if there is
    none."""
    return "\n".join(part.text for part in parts(turn) if part.channel == "final" and part.text is not None)


@dataclass(frozen=True)
class Channels:
    """Tells turns in channels from other text, by the ids of a tokenizer with Harmony's special tokens."""

    tokenizer: PreTrainedTokenizerBase
    opening: frozenset[int]
    """One of them is in each turn that has a message."""
    unread: frozenset[int]
    """Special tokens that are none of Harmony's: no text shows them."""

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase) -> Channels | None:
        """None where the tokenizer lacks one of the special tokens."""
        if tokenizer.convert_tokens_to_ids(MESSAGE) in (None, tokenizer.unk_token_id):
            return None  # asked for each row of a file, and a list of added tokens may have thousands
        tokens = tokenizer.added_tokens_decoder
        added = {str(token): number for number, token in tokens.items()}
        if not added.keys() >= set(_MARKS):
            return None
        own = {added[name] for name in _MARKS}
        special = {number for number, token in tokens.items() if token.special}
        return Channels(tokenizer, frozenset({added["<|channel|>"], added[MESSAGE]}), frozenset(special - own))

    def turn(self, ids: Sequence[int]) -> str | None:
        """What `parts` and `final_text` read; None of other text, such as that of a base model."""
        if self.opening.isdisjoint(ids):
            return None
        own = [token for token in ids if token not in self.unread]
        return str(self.tokenizer.decode(own, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def require_ends(tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int], *, calls: bool) -> None:
    """ConfigError unless a turn ends where its template and its tools need it to."""
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
