"""Plain tokenisation of text from outside in a rendered conversation, whatever special tokens it spells.

A tokenizer reads "<|im_end|>" in the result of a tool as the end of the turn. To prevent this, each name of a special
token in such text is replaced by a placeholder character before rendering. When the rendered text is tokenised, the
placeholder becomes the letters of the name again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FIRST = 0xF0000
"""The first character of Unicode's supplementary private use area, from which the placeholders are taken."""
_FORM = ("role", "type")
"""Keys of a message whose values are no text."""


@dataclass(frozen=True)
class Literal:
    """Names of tokens that a tokenizer finds in any text, whatever stands around them."""

    tokenizer: PreTrainedTokenizerBase
    names: Mapping[str, int]
    _pattern: re.Pattern[str] | None = field(repr=False)

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int] = (), *, ordinary: bool = True) -> Literal:
        """The names of the special tokens, and of all tokens added to the vocabulary except white space.

        Without `ordinary`, only those that are left out when an answer is decoded: an answer may well contain an added
        token such as <think>, and a special token only if the policy has spelled it.
        """
        added = (token for token, about in tokenizer.added_tokens_decoder.items() if ordinary or about.special)
        ids = {*added, *tokenizer.all_special_ids, *eos_ids}
        named = {str(tokenizer.convert_ids_to_tokens(token)): token for token in ids}
        names = {name: token for name, token in named.items() if name.strip(" \t\r\n▁")}
        longest_first = sorted(names, key=lambda name: (-len(name), name))
        pattern = re.compile("|".join(map(re.escape, longest_first))) if names else None
        return Literal(tokenizer, names, pattern)

    def hide(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Return the messages with each special token in their texts replaced, and the name behind each placeholder.

        >>> from posttrain.tasks.tiny import build_tokenizer
        >>> asked = [{"role": "tool", "name": "<eos>", "content": "a<eos>b"}]
        >>> hidden, known = Literal.of(build_tokenizer()).hide(asked)
        >>> len(hidden[0]["name"]), len(hidden[0]["content"]), list(known.values())
        (1, 3, ['<eos>'])
        """
        known: dict[str, str] = {}
        if self._pattern is None:
            return [dict(message) for message in messages], known
        texts = [text for message in messages for text in _texts(message)]
        taken = {letter for text in texts for letter in text if ord(letter) >= _FIRST}
        free = (chr(code) for code in range(_FIRST, 0x10FFFE) if chr(code) not in taken)
        for text in texts:
            for name in self._pattern.findall(text):
                if name not in known.values():
                    known[next(free)] = name
        stands_for, pattern = {name: letter for letter, name in known.items()}, self._pattern

        def without(text: str) -> str:
            return pattern.sub(lambda found: stands_for[found[0]], text)

        return [_changed(message, without) for message in messages], known

    def ids(self, text: str, known: Mapping[str, str], *, after: int | None = None) -> tuple[int, ...]:
        """Return the ids of a rendered text, with the names of special tokens spelled out for the placeholders.

        `after` is the special token before the text. Some tokenizers start a text with a space, but not after such a
        token.
        """
        if not known:
            return tuple(self._encode(text, after))
        found: list[int] = []
        for part in re.split("([" + "".join(map(re.escape, known)) + "])", text):
            found += self.letters(known[part]) if part in known else self._encode(part, after if not found else None)
        return tuple(found)

    def letters(self, name: str) -> list[int]:
        """Return the ids of a name as text, split at places where the tokenizer recognises no special token any more.

        A letter that the tokenizer does not know becomes the token for unknown letters, as anywhere else.
        """
        special = set(self.names.values())
        ids = [*self._encode(name[:1]), *self._encode(name[1:])]
        if special.intersection(ids):
            ids = [token for letter in name for token in self._encode(letter)]
        return [token for token in ids if token not in special or token == self.unknown]

    def knows_its_letters(self) -> bool:
        """Return whether every letter of every name has a token."""
        letters = {letter for name in self.names for letter in name} - set(self.names)
        return all(self.unknown not in self._encode(letter) for letter in letters)

    @property
    def unknown(self) -> int | None:
        """The token for unknown letters. A byte-level tokenizer never needs it, and may define another token as it."""
        unknown = self.tokenizer.unk_token_id
        return int(unknown) if isinstance(unknown, int) else None

    def special(self, ids: Sequence[int]) -> list[int]:
        """Return the ids that are special tokens, in their order."""
        known = set(self.names.values())
        return [token for token in ids if token in known]

    def _encode(self, text: str, after: int | None = None) -> list[int]:
        if not text:
            return []
        text = text.encode("utf-8", "replace").decode("utf-8")  # replaces lone surrogates
        if after is not None:
            name = str(self.tokenizer.convert_ids_to_tokens(after))
            whole = list(self.tokenizer(name + text, add_special_tokens=False).input_ids)
            if whole[:1] == [after]:
                return whole[1:]
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a message, or in a part of it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if name not in _FORM:
                yield from (name, *_texts(part))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return the value with each of these texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            name if name in _FORM else change(name): part if name in _FORM else _changed(part, change)
            for name, part in value.items()
        }
    return [_changed(part, change) for part in value] if isinstance(value, list | tuple) else value
