"""What recipes of tiny models share: a tokenizer whose tokens are whole words, and demonstrations written in them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from posttrain.types import Example

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
"""What every list of words begins with."""
CALL = "<tool_call>"
CALLS_TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</tool_call>{% endfor %}"
    "{% if m.role == 'assistant' %}<eos>{% else %}={% endif %}{% endfor %}"
)
"""A chat template with calls in the form of Hermes; `=` asks for an answer."""


def word_tokenizer(words: Sequence[str], template: str, *, spaced: bool = False) -> PreTrainedTokenizerFast:
    """One token per word; `spaced`: words are what stands between spaces, else each is found where it stands."""
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
    """A demonstration: pieces of words, and whether each is imitated or given."""
    parts = [(words.index(word), trained) for piece, trained in pieces for word in piece]
    ids, mask = zip(*parts, strict=True)
    return Example(index=index, input_ids=ids, completion_mask=mask)
