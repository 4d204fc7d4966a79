"""The script in which a completion is written: the part of its language that can be checked without a model.

A script is not a language. The check tells Russian from English and finds Chinese words in a Japanese or English chain
of thought. Policies that are trained on correctness alone drift in this way (arXiv:2501.12948). The check cannot tell
English from French, nor Chinese from Japanese that is written in Chinese characters alone.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Mapping

from posttrain.errors import ConfigError
from posttrain.verify.verdict import Verdict

_LANGUAGES = {
    "LATIN": "cs da de en es et fi fr hr hu id it lt lv ms nl no pl pt ro sk sl sv sw tl tr vi",
    "ARABIC": "ar fa ur",
    "CYRILLIC": "be bg ru uk",
    "DEVANAGARI": "hi mr",
    "BENGALI": "bn", "GREEK": "el", "HEBREW": "he", "ARMENIAN": "hy", "GEORGIAN": "ka", "HANGUL": "ko", "TAMIL": "ta",
    "TELUGU": "te", "THAI": "th",
    "CJK HIRAGANA KATAKANA KATAKANA-HIRAGANA IDEOGRAPHIC": "ja",
    "CJK IDEOGRAPHIC BOPOMOFO": "zh",
}  # fmt: skip
SCRIPTS: Mapping[str, frozenset[str]] = {
    code: frozenset(names.split()) for names, codes in _LANGUAGES.items() for code in codes.split()
}
"""The first words of the Unicode names of a language's letters, by language code (ISO 639-1)."""


def language(completion: str, *, language: str, at_least: float | None = None) -> Verdict:
    """Share of the letters that belong to the script of a language. With `at_least`: 1 from that share on, else 0.

    Digits, signs and marks do not count. Full-width letters count as the letters that they represent. A completion
    without letters earns 0. Otherwise saying nothing would be the surest way to stay within a language.

    >>> float(language("Ответ: 42", language="ru")), float(language("Ответ yes", language="ru"))
    (1.0, 0.625)
    """
    if language not in SCRIPTS:
        raise ConfigError(given=f"language = {language!r}", allowed=", ".join(sorted(SCRIPTS)))
    if at_least is not None and not 0 < at_least <= 1:
        raise ConfigError(given=f"at_least = {at_least}", allowed="a share above 0, up to 1")
    scripts = [script_of(letter) for letter in unicodedata.normalize("NFKC", completion) if letter.isalpha()]
    if not scripts:
        return Verdict(0.0, "no_answer", detail="no letters")
    own = sum(script in SCRIPTS[language] for script in scripts)
    share = own / len(scripts)
    score = share if at_least is None else float(share >= at_least)
    reason = "correct" if score == 1 else "partial" if score else "wrong"
    return Verdict(score, reason, detail=f"{own} of {len(scripts)} letters")


@functools.lru_cache(maxsize=8192)
def script_of(letter: str) -> str:
    """The first word of a letter's Unicode name. The long vowel mark of Japanese belongs to both of its scripts.

    >>> script_of("я"), script_of("字"), script_of("ー")
    ('CYRILLIC', 'CJK', 'KATAKANA-HIRAGANA')
    """
    return unicodedata.name(letter, "UNNAMED").partition(" ")[0]
