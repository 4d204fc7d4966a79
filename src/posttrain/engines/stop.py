"""Stop strings: found in decoded text, because a string may begin inside one token and end inside another."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from posttrain.errors import ConfigError

_MARGIN = 8
"""Further tokens in the window: some decode to nothing, and the first of a text may lose its space."""


class StopStrings:
    """Tells when a completion has just completed one of the strings, and cuts the text there.

    Special tokens take part by their spelling, so that `<|im_end|>` stops a completion although `.text` never shows it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str]) -> None:
        if any(not string for string in strings):
            raise ConfigError(
                given="sampling.stop contains an empty string",
                allowed="strings of at least one character",
                fix="Remove the empty string from sampling.stop.",
            )
        self.tokenizer, self.strings = tokenizer, tuple(strings)
        self.window = max((len(string.encode()) for string in strings), default=0) + _MARGIN

    def __bool__(self) -> bool:
        return bool(self.strings)

    def completed(self, rows: Sequence[Sequence[int]]) -> list[bool]:
        """Whether each row of ids contains a stop string, given that it did not before its last token.

        Only the last `window` tokens are decoded at every step: a string of n bytes cannot spread over more than n
        tokens that have any text. A hit is confirmed on the whole row, as the text of a part need not be part of the
        text.
        """
        texts = self.tokenizer.batch_decode(
            [list(ids[-self.window :]) for ids in rows], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return [
            self._find(text) is not None and self._find(self._decode(ids)) is not None
            for text, ids in zip(texts, rows, strict=True)
        ]

    def text(self, ids: Sequence[int], *, stopped: bool) -> str:
        """Decoded without special tokens and, if a string `stopped` it, up to that string."""
        text = self._decode(ids, skip_special_tokens=True)
        return text[: self._find(text)] if stopped else text

    def _decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def _find(self, text: str) -> int | None:
        """Where the first stop string begins."""
        return min((at for at in map(text.find, self.strings) if at >= 0), default=None)
