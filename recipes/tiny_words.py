"""Shared parts of the recipes with tiny models: a tokenizer whose tokens are whole words, and demonstrations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from posttrain.types import Example

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
"""Special tokens, with which every list of words begins."""
CALL = "<tool_call>"
CALLS_TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</tool_call>{% endfor %}"
    "{% if m.role == 'assistant' %}<eos>{% else %}={% endif %}{% endfor %}"
)
"""A chat template with calls in the format of Hermes. `=` prompts for an answer."""


def word_tokenizer(words: Sequence[str], template: str, *, spaced: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each word. `spaced`: words are separated by spaces; otherwise the text is split at
    the known words."""
    found = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    if spaced:
        found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    else:
        longer = sorted((word for word in words if len(word) > 1), key=len, reverse=True)
        pieces = Regex("|".join([*map(re.escape, longer), "\n", "."]))
        found.pre_tokenizer = pre_tokenizers.Split(pieces, "isolated")  # pyright: ignore[reportAttributeAccessIssue]
        found.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    names = {name: f"<{name.removesuffix('_token')}>" for name in ("pad_token", "bos_token", "eos_token", "unk_token")}
    made = PreTrainedTokenizerFast(tokenizer_object=found, **names)
    made.chat_template = template
    return made


def example(index: int, pieces: Sequence[tuple[Sequence[str], bool]], words: Sequence[str]) -> Example:
    """A demonstration made of pieces, which are lists of words. Each piece is either imitated or given as context."""
    parts = [(words.index(word), trained) for piece, trained in pieces for word in piece]
    ids, mask = zip(*parts, strict=True)
    return Example(index=index, input_ids=ids, completion_mask=mask)
