"""Rewards for the form of a completion: sections in tags, or JSON that fits a schema.

Form is easy to learn and says nothing about the answer. Give it a small weight, or let it count only if the answer is
right: `{name: format, gate: math, weight: 0.2}`.
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
    """1 if the completion consists of its sections, each in its tags: `<think>...</think> <answer>...</answer>`.

    The rules: each tag occurs exactly once (one rule per section); only white space surrounds the sections, which are
    in order; the last section contains a letter or a digit. With `partial` the reward is the share of the rules that
    hold. `opened` means that the prompt ends with the first opening tag. Some chat templates end in this way.
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
"""Positions in the text: start of the opening tag, start and end of the content, end of the closing tag."""


def _span(text: str, name: str) -> Span | None:
    """The span of a section; None unless both tags occur exactly once, in order."""
    begin, end = f"<{name}>", f"</{name}>"
    if text.count(begin) != 1 or text.count(end) != 1:
        return None
    start, stop = text.index(begin), text.index(end)
    return (start, start + len(begin), stop, stop + len(end)) if start < stop else None


def _covered(text: str, spans: Sequence[Span | None]) -> bool:
    """Does the text consist of these sections in this order, apart from white space?"""
    place = 0
    for span in spans:
        if span is None or span[0] < place or text[place : span[0]].strip():
            return False
        place = span[3]
    return not text[place:].strip()


def json_schema(completion: str, *, schema: Mapping[str, Any], fenced: bool = False) -> Verdict:
    """1 if the whole final text is JSON that fits the schema (Draft 2020-12 unless `$schema` says otherwise).

    The final text is the part after the last </think>. Duplicate keys, NaN and Infinity are not valid JSON. With
    `fenced` the JSON may be in a code fence, and nothing may surround the fence. The schema must not refer to anything
    outside itself. Needs the package jsonschema. A worker runs the schema's patterns on the text.
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
    """Parse JSON. ValueError for invalid JSON, a duplicate key, a number that is not finite, or too deep nesting.

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
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is too large for a number")
    return number


@functools.lru_cache(maxsize=64)
def _validator(text: str) -> Callable[[Any], str | None]:
    """A function that returns a value's problem or None. ConfigError if the schema is invalid or a package missing."""
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
