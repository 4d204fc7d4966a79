"""Rewards for the form of a completion: sections in tags, JSON by a schema.

Form is cheap to learn and says nothing about the answer. Give it a small weight, or let it count only where the answer
is right: `{name: format, gate: math, weight: 0.2}`.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posttrain.errors import ConfigError
from posttrain.rewards.fuzzy import after_reasoning
from posttrain.verify.verdict import Verdict

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?```", re.DOTALL)


def format_tags(
    completion: str,
    *,
    sections: Sequence[str] = ("think", "answer"),
    opened: bool = False,
    partial: bool = False,
    truncated: bool = False,
) -> Verdict:
    """1 when the whole completion is its sections, each in its tags: `<think>...</think> <answer>...</answer>`.

    The rules: each tag stands there exactly once (one rule per section); the sections follow each other with nothing
    but white space around them; the last one holds a letter or a digit. `partial` gives the share of the rules that
    hold. `opened` says that the prompt ends with the first opening tag, as some chat templates do.
    """
    _check_sections(sections)
    text = f"<{sections[0]}>{completion}" if opened else completion
    spans = {name: _span(text, name) for name in sections}
    last = spans[sections[-1]]
    content = None if last is None else text[last[1] : last[2]].strip()
    rules = {f"<{name}> exactly once, and closed": span is not None for name, span in spans.items()}
    rules["the sections in order, and nothing else"] = _covered(text, list(spans.values()))
    rules["something in the last section"] = content is not None and any(letter.isalnum() for letter in content)
    broken = [rule for rule, holds in rules.items() if not holds]
    share = 1 - len(broken) / len(rules)
    score = share if partial or not broken else 0.0
    reason = _reason(score, content, truncated)
    return Verdict(score, reason, extracted=content, detail=f"not {'; not '.join(broken)}" if broken else "")


def _reason(score: float, content: str | None, truncated: bool) -> str:
    if score == 1:
        return "correct"
    if not content:
        return "truncated" if truncated else "no_answer"
    return "partial" if score else "wrong"


def _check_sections(sections: Sequence[str]) -> None:
    names = [name for name in sections if isinstance(name, str) and re.fullmatch(r"[A-Za-z][\w-]*", name)]
    if isinstance(sections, str) or not names or len(names) != len(sections) or len(set(names)) != len(names):
        raise ConfigError(given=f"sections = {sections!r}", allowed="a list of different names, such as think, answer")


Span = tuple[int, int, int, int]
"""Where a section's opening tag begins, where its content does, where that ends, and where the closing tag does."""


def _span(text: str, name: str) -> Span | None:
    """None unless both tags stand there once, in order."""
    begin, end = f"<{name}>", f"</{name}>"
    if text.count(begin) != 1 or text.count(end) != 1:
        return None
    start, stop = text.index(begin), text.index(end)
    return (start, start + len(begin), stop, stop + len(end)) if start < stop else None


def _covered(text: str, spans: Sequence[Span | None]) -> bool:
    """Is the text these sections in this order, white space aside?"""
    place = 0
    for span in spans:
        if span is None or span[0] < place or text[place : span[0]].strip():
            return False
        place = span[3]
    return not text[place:].strip()


def json_schema(completion: str, *, schema: Mapping[str, Any], fenced: bool = False) -> Verdict:
    """1 when the final text, as a whole, is JSON that fits the schema (Draft 2020-12 unless `$schema` says otherwise).

    What follows the last </think> counts. Keys that occur twice, NaN and Infinity are no JSON. With `fenced` the JSON
    may stand in a code fence, which then has to be all there is. The schema refers to nothing outside itself. Needs the
    package jsonschema. Where patterns of the schema meet the text, they run in a worker.
    """
    if not isinstance(schema, Mapping):
        raise ConfigError(given=f"schema = {schema!r}", allowed="a JSON schema as an object")
    problems = _validator(json.dumps(schema))
    text = after_reasoning(completion)
    if fenced and (found := _FENCE.fullmatch(text)):
        text = found[1]
    if not text:
        return Verdict(0.0, "no_answer")
    try:
        value = read_json(text)
    except ValueError as error:
        return Verdict(0.0, "no_answer", extracted=text, detail=f"no JSON: {error}")
    try:
        problem = problems(value)
    except RecursionError:
        return Verdict(0.0, "too_large", extracted=text, detail="nested too deep")
    if problem is None:
        return Verdict(1.0, "correct", extracted=text)
    return Verdict(0.0, "wrong", extracted=text, detail=problem)


def read_json(text: str) -> Any:
    """The value; ValueError for what is no JSON, has a key twice or a number that is not finite, or is nested too deep.

    >>> read_json('{"a": [1]}')
    {'a': [1]}
    """
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is too large for a number")
    return number


@functools.lru_cache(maxsize=64)
def _validator(text: str) -> Callable[[Any], str | None]:
    """What a value has against the schema, or None; ConfigError where the schema is none, or the package is missing."""
    try:
        from jsonschema import Draft202012Validator, SchemaError, validators
        from referencing import Registry
        from referencing.exceptions import Unresolvable
    except ImportError:
        raise ConfigError(
            given="the reward json_schema needs the package jsonschema", fix='pip install "posttrain[schema]"'
        ) from None
    schema = json.loads(text)
    kind = validators.validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(given=f"the schema is invalid: {error.json_path}: {error.message}") from None
    validator = kind(schema, registry=Registry())  # an empty registry: nothing is fetched

    def problem(value: Any) -> str | None:
        try:
            found = next(validator.iter_errors(value), None)
        except Unresolvable as error:
            raise ConfigError(
                given=f"the schema refers to {error.ref}, which is not in it", fix="Write that part under $defs."
            ) from None
        return None if found is None else f"{found.json_path}: {found.message}"

    return problem
