"""Columns with other names: `data.columns` maps some, and others are recognised by their usual names."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from posttrain.errors import DataError

if TYPE_CHECKING:
    from posttrain.data.read import Row

Names = Mapping[str, str]
"""Our name of a column -> its name in the data."""

PROMPT_NAMES = ("prompt", "question", "problem", "instruction", "query", "user_prompt", "input", "context")
ANSWER_NAMES = ("completion", "response", "output", "reply", "generation")
LABEL_NAMES = ("label", "desirable", "is_desirable", "is_correct", "correct", "thumbs_up", "liked", "kto_tag")
SCORE_NAMES = ("score", "rating", "reward")
_BETTER = (
    "chosen",
    "accepted",
    "preferred",
    "better",
    "best",
    "winner",
    "winning",
    "win",
    "good",
    "positive",
    "pos",
    "w",
)
_WORSE = (
    "rejected", "dispreferred", "non_preferred", "unpreferred", "worse", "worst", "loser", "losing", "lose", "bad",
    "negative", "neg", "l",
)  # fmt: skip
_NO_ANSWER = ("model", "id", "source", "policy", "name", "type")
"""Suffixes of chosen and rejected for columns that describe the answer but do not hold it."""

_ANSWER = re.compile(
    r"output|response|answer|completion|reply|generation|target|conversation|summary|ref", re.IGNORECASE
)
_SIDE = re.compile(r"(?P<what>.+?)[_ ]?(?P<side>[0-9]|[a-hA-H])")
_SIDES = ({"0", "1"}, {"1", "2"}, {"a", "b"})
_VERDICT = re.compile(r"prefer|winner|better|label|choice|chosen|verdict|best", re.IGNORECASE)
_TIES = re.compile(
    r"\b(tie|tied|both|equal|neither|same|draw|none)\b|tie$|^\s*(0\.50*|[a-z0-9] ?=+ ?[a-z0-9])\s*$", re.IGNORECASE
)
_ORDER = re.compile(r"(?P<left>[^<>]+)(?P<sign>>+|<+)(?P<right>[^<>]+)")
"""A verdict that compares: A>B, A >> B, response_b < response_a."""
_BEFORE_A_SIDE = {
    "model", "system", "assistant", "agent", "candidate", "option", "choice", "text", "output", "response", "answer",
    "completion", "reply", "generation", "summary", "the", "final", "verdict", "label", "human", "user", "judge",
    "prefer", "prefers", "pref", "slightly", "much", "clearly", "strongly", "significantly", "is", *_BETTER,
}  # fmt: skip
"""Words that a verdict may have before the side: model_a, winner: model a. Any other word may reverse it: not a."""


def spelled(value: str | Sequence[str] | Mapping[str, str]) -> str:
    """A name, names or a mapping as a config has to spell them, in one line: quoted if YAML would read something else.

    >>> spelled({"prompt": "Question ", "chosen": "better"}), spelled("yes")
    ("{prompt: 'Question ', chosen: better}", "'yes'")
    """
    text = ""
    for style in (None, '"'):  # double quotes escape line breaks
        text = yaml.safe_dump(
            value, default_flow_style=True, default_style=style, allow_unicode=True, sort_keys=False, width=math.inf
        )
        text = text.removesuffix("...\n").strip()
        if len(text.splitlines()) == 1:
            break
    return text


def listed(columns: Iterable[str]) -> str:
    """The names of the columns in one line, each spelled as in a config.

    >>> listed(["prompt", "Question ", "good, bad", ""]), listed([])
    ("prompt, 'Question ', 'good, bad', ''", '(none)')
    """
    return ", ".join(spelled([name])[1:-1] for name in columns) or "(none)"


def in_template(columns: Iterable[str]) -> str:
    """A template of `data.prompt` over the first column that can stand in braces and, for the message, in quotes.

    >>> in_template(["", "a:b", "Question"])
    '{Question}'
    """
    names = (name for name in columns if name.isprintable() and not set(name) & set('{}[]:!"\\'))
    return f"{{{next(filter(None, names), 'column')}}}"


def renamed(values: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """The values of a row under our column names. A row of another file that already uses our name keeps its column.

    >>> renamed({"better": "a", "id": 1}, {"chosen": "better"}), renamed({"chosen": "b"}, {"chosen": "better"})
    ({'chosen': 'a', 'id': 1}, {'chosen': 'b'})
    """
    ours = {theirs: name for name, theirs in names.items()}
    replaced = {name for name, theirs in names.items() if theirs in values}
    return {ours.get(name, name): value for name, value in values.items() if name in ours or name not in replaced}


def require_columns(names: Names, columns: Sequence[str]) -> None:
    """Raise `DataError` if `data.columns` names a column that is not one of `columns`."""
    for ours, theirs in names.items():
        if theirs not in columns:
            close = difflib.get_close_matches(theirs, columns, n=1, cutoff=0.5)
            raise DataError(
                given=f"data.columns has {ours}: {theirs}, but the data has no column {theirs!r}",
                allowed=f"its columns {listed(columns)}",
                fix=f"Set data.columns = {spelled({ours: close[0]})}." if close else "Name one of its columns.",
            )


def other_names(kind: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The mapping from our column names to the names in the data; empty if the mapping is not certain.

    >>> other_names("pairs", ["query", "response_w", "response_l"], [])
    {'prompt': 'query', 'chosen': 'response_w', 'rejected': 'response_l'}
    """
    sample = list(rows)
    prompt = next((name for name in PROMPT_NAMES if name in columns), None)
    found = {} if prompt is None else {"prompt": prompt}
    if kind == "pairs":
        couples = _couples([name for name in columns if _may_be_answer(name, sample)])
        if len(couples) != 1 or (prompt is not None and prompt in couples[0]):
            return {}
        return found | dict(zip(("chosen", "rejected"), couples[0], strict=True))
    judged = {"labels": ("label", LABEL_NAMES), "ratings": ("score", SCORE_NAMES)}.get(kind)
    answer = next((name for name in ANSWER_NAMES if name in columns and name != prompt), None)
    if judged is None or prompt is None or answer is None:
        return {}
    verdict = next((name for name in judged[1] if name in columns), None)
    return {} if verdict is None else found | {"completion": answer, judged[0]: verdict}


def _couples(columns: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of columns that differ in a word for better or worse: response_w and response_l, better and worse."""
    found: dict[str, dict[str, str]] = {}
    for name in columns:
        for side, words in (("better", _BETTER), ("worse", _WORSE)):
            stem = _stem(name.lower(), words)
            if stem is not None:
                found.setdefault(stem, {})[side] = name
    return [(sides["better"], sides["worse"]) for sides in found.values() if len(sides) == 2]


def _stem(name: str, words: Sequence[str]) -> str | None:
    """A name without the one of `words` that it contains; None if it contains none of them."""
    for word in words:
        if name == word and len(word) > 1:
            return ""
        for begins, rest in ((f"{word}_", name[len(word) + 1 :]), (f"_{word}", name[: -len(word) - 1])):
            fits = name.startswith(begins) if begins.endswith("_") else name.endswith(begins)
            if fits and rest and rest not in _NO_ANSWER:
                return rest
    return None


def _may_be_answer(name: str, sample: Iterable[Mapping[str, Any]]) -> bool:
    values = [row[name] for row in sample if row.get(name) is not None]
    return all(isinstance(value, str | list | dict) for value in values)


# --- two answers and a verdict ----------------------------------------------------------------------------------------


def two_answers(columns: Iterable[str]) -> tuple[str, str] | None:
    """Two answer columns that end with 1 and 2, 0 and 1, or a and b. Three such columns are choices, not a pair.

    >>> two_answers(["instruction", "output_1", "output_2", "preference"])
    ('output_1', 'output_2')
    """
    found: dict[str, dict[str, str]] = {}
    for name in columns:
        match = _SIDE.fullmatch(name)
        if match and _ANSWER.search(match["what"]):
            found.setdefault(match["what"], {})[match["side"].lower()] = name
    pairs = (tuple(sides[side] for side in sorted(sides)) for sides in found.values() if set(sides) in _SIDES)
    return next(((first, second) for first, second in pairs), None)


def verdict_column(sides: tuple[str, str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str | None:
    """The column that says which of the two answers is better, if its value is clear in every row; otherwise None."""
    sample = list(rows)
    for name in columns:
        if _VERDICT.search(name) and name not in sides:
            said = [row[name] for row in sample if row.get(name) is not None]
            if said and all(is_tie(value) or better_side(value, sides) is not None for value in said):
                return name
    return None


def better_side(verdict: Any, sides: tuple[str, str]) -> int | None:
    """Index (0 or 1) of the column that a verdict names: by its name, its last letter, or as first and second. A
    comparison such as A>B names the better one.

    >>> [better_side(verdict, ("response_a", "response_b")) for verdict in ("B", "model_a", "response_b", "first", 1)]
    [1, 0, 1, 0, None]
    >>> [better_side(verdict, ("response_0", "response_1")) for verdict in ("0 > 1", "0<<1", 1.0, "0.0", -1, 0.3)]
    [0, 1, 1, 0, None, None]
    """
    said = _said(verdict)
    order = _ORDER.fullmatch(said)
    if order is None:
        return _named(said, sides)
    left, right = _named(order["left"].strip(), sides), _named(order["right"].strip(), sides)
    if None in (left, right) or left == right:
        return None
    return left if order["sign"].startswith(">") else right


def _said(verdict: Any) -> str:
    """A verdict in lower case. Whole numbers lose their decimals: pandas makes a column of numbers with gaps float.

    >>> _said(1.0), _said("1.0"), _said(" Model_A ")
    ('1', '1', 'model_a')
    """
    said = str(verdict).strip().lower()
    whole = re.fullmatch(r"(\d+)\.0+", said)
    return whole[1] if whole else said


def _named(said: str, sides: tuple[str, str]) -> int | None:
    """Index of the column that a text names and nothing else, or None."""
    names = [side.lower() for side in sides]
    if said in names:
        return names.index(said)
    *before, last = re.split(r"[ _:#-]+", said)
    if not re.match("[a-z0-9#]", said) or not set(before) <= _BEFORE_A_SIDE | set(
        re.split(r"[ _-]+", names[0][:-1])
    ) | {""}:
        return None
    for way in ([name[-1] for name in names], ["first", "second"]):
        if last in way:
            return way.index(last)
    return None


def is_tie(verdict: Any) -> bool:
    """Whether a verdict says that neither answer is better.

    >>> [is_tie(verdict) for verdict in ("tie", "winner_tie", "both bad", "A", 0.5, "A=B")]
    [True, True, True, False, True, True]
    """
    return verdict == 0.5 or (isinstance(verdict, str) and bool(_TIES.search(verdict)))


def renamed_rows(rows: Iterable[Row], names: Names) -> Iterable[Row]:
    return (row._replace(values=renamed(row.values, names)) for row in rows) if names else rows
