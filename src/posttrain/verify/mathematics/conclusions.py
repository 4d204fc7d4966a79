r"""The conclusion in the last sentence of a text. It is used if nothing else states the answer."""

from __future__ import annotations

import re
from itertools import pairwise

from posttrain.verify.mathematics import places
from posttrain.verify.mathematics.denials import (
    is_changed,
    is_changed_behind,
    is_denied,
    is_guess,
    is_reference,
    is_task,
)
from posttrain.verify.mathematics.estimates import is_estimated, is_open_ended, rounds_to
from posttrain.verify.mathematics.guard import MAX_CHARS
from posttrain.verify.mathematics.reader import Extracted, Reader, ambiguous
from posttrain.verify.mathematics.sentences import (
    FORMULA,
    NUMBER,
    atoms_of,
    contradicts,
    is_claimed,
    is_offered,
    is_prose,
    pattern_of,
    without_dollars,
)
from posttrain.verify.mathematics.values import Unread, Value, Words

JOINT = re.compile(
    r"(?:[\s$,;.&]|\\[,;!()\[\]]|\\q?quad(?![a-z])|\\text\s?\{\s*(?:and|or|,)\s*\}|(?<!\w)(?:and|or)(?!\w))*+"
)
_OPENING = re.compile(r"^(?:so|thus|hence|therefore|then|and|now)\b[\s,:]*", re.IGNORECASE)
_RESULT = re.compile(r"=|≈|\b(?:get|gives?|obtain|yields?|makes?)\b")
"""An instruction together with its result: `Multiply by 2 to get 18`."""
_CONCLUSION = re.compile(r"\b(?:therefore|thus|hence|so|final answer)\b[\s,:*]*", re.IGNORECASE)
_ORDER = re.compile(r"\s*(?:[<>≤≥]=?|\\(?:[lg]t|[lg]eq?)(?![a-z]))\s*")
_SAME_AS = re.compile(r"[\s$,]*(?:=|which\s+(?:is|equals|gives|makes)\b)[\s$]*")
"""Words between two sides of a chain of equalities in a sentence."""
_ABOUT = r"\s*(?:exactly|only|now|about|approximately|at\s+(?:least|most)|a\s+total\s+of|equal\s+to)?\s*$"
_CLAIM = re.compile(
    rf"(?:\b(?:is|are|be|was|were|it's|equals?|gives?|makes?)|=|≈|:|->|→|\\approx){_ABOUT}", re.IGNORECASE
)


def concluded(segment: str, reader: Reader) -> Extracted:
    """The only number or formula in the last sentence with one, or the last one in it if only that is claimed."""
    conclusion = None
    for sentence in places.sentences_backwards(segment):
        atoms = atoms_of(sentence)
        if conclusion is None and is_task(sentence) and (sentence.endswith("?") or not _RESULT.search(sentence)):
            return Extracted(None, reason="no_answer", detail="the text ends in a question or a task")
        if conclusion is None and not atoms:
            continue
        if conclusion is None:
            conclusion = sentence, atoms
            continue
        if not atoms and is_task(sentence) and not NUMBER.fullmatch(conclusion[0]) and "=" not in conclusion[0]:
            return Extracted(None, reason="no_answer", detail="the question asks about the formula")
        if not atoms:
            continue
        if sentence != conclusion[0] and pattern_of(sentence, atoms) == pattern_of(
            *conclusion
        ):  # "It is 6. It is 7.", or a number on each line
            return ambiguous(2, detail="the last sentences count up")
        break
    if conclusion is None:
        return Extracted(None, reason="no_answer")
    if is_guess(conclusion[0]):
        return ambiguous(2, detail="a guess")
    return of_sentence(conclusion[0], reader)


def of_sentence(sentence: str, reader: Reader) -> Extracted:
    """The only number or formula in a sentence, or the last one if only that is claimed."""
    whole = without_dollars(_OPENING.sub("", sentence))
    if not is_prose(sentence) and len(whole) <= MAX_CHARS and has_number(reader.value(whole)):
        return Extracted(whole, 1)
    *_, start = 0, *(match.end() for match in _CONCLUSION.finditer(sentence))
    clause = sentence[start:] if NUMBER.search(sentence, start) or FORMULA.search(sentence, start) else sentence
    atoms = atoms_of(clause)
    if len(atoms) > places.MAX_PLACES:
        return ambiguous(len(atoms))
    if _compares(clause, atoms):
        return ambiguous(len(atoms), detail="a comparison of two numbers")
    if atoms and (is_changed(clause, atoms[-1][1]) or (not reader.estimates and is_estimated(clause, atoms[-1][1]))):
        return Extracted(None, reason="no_answer", detail=f"{atoms[-1][0]!r} is changed or only estimated")
    if atoms and is_changed_behind(clause, atoms[-1][2]):
        return Extracted(None, reason="no_answer", detail=f"the words behind {atoms[-1][0]!r} change it")
    if atoms and is_reference(clause, atoms[-1][1]):
        return Extracted(None, reason="no_answer", detail=f"{atoms[-1][0]!r} only numbers the word before it")
    if atoms and not reader.options.last_side and (left := contradicts(clause, atoms[-1][1])):
        return ambiguous(2, detail=f"{left} is not {atoms[-1][0]}")
    if atoms and not reader.estimates and is_open_ended(clause, atoms[-1][2]):
        return ambiguous(2, detail=f"{atoms[-1][0]!r} is open-ended")
    denied = {atom for atom, start, end in atoms if is_denied(clause, start, end)}
    if atoms and len(denied) == len({atom for atom, _, _ in atoms}):
        return Extracted(None, reason="no_answer", detail=f"{atoms[-1][0]!r} is denied")
    atoms = [atom for atom in atoms if atom[0] not in denied]
    if _breaks_a_chain(clause, atoms, reader):
        return ambiguous(len(atoms), detail="a chain of equations whose sides differ")
    if reader.options.last_side:
        atoms = [a for a, b in pairwise(atoms) if not _SAME_AS.fullmatch(clause, a[2], b[1])] + atoms[-1:]
    texts = list(dict.fromkeys(atom for atom, _, _ in atoms))
    if len(texts) == 1:
        offered = any(is_offered(clause, start, end) for _, start, end in atoms)
        return ambiguous(2, detail="a guess among others") if offered else Extracted(texts[0], 1)
    ends = [0, *(end for _, _, end in atoms)]
    if all(JOINT.fullmatch(clause, end, start) for end, (_, start, _) in zip(ends[1:], atoms[1:], strict=False)):
        return ambiguous(len(texts), texts)
    claimed = {atom for atom, start, end in atoms if is_claimed(clause, start, end, _CLAIM)}
    last, *place = atoms[-1]
    right = claimed == {last} and not is_offered(clause, *place)
    return Extracted(last, 1) if right else ambiguous(len(texts))


def _compares(clause: str, atoms: list[tuple[str, int, int]]) -> bool:
    """Whether the last two numbers are only compared: `7 > 8`."""
    return len(atoms) > 1 and _ORDER.fullmatch(clause, atoms[-2][2], atoms[-1][1]) is not None


def _breaks_a_chain(clause: str, atoms: list[tuple[str, int, int]], reader: Reader) -> bool:
    """Whether the clause equates two different numbers: `8 = 7`. In `8 - 1 = 7` the 1 is part of a formula."""
    return any(
        (sign := clause[end:start].strip()) in ("=", "→", "->", "=>", "⇒", "≈", "\\approx")
        and not (sign == "=" and reader.options.last_side)
        and not re.search(r"(?:[-−+*/×÷·^(_%:]|\\[a-z]+|\bx|\bof|\bby)\s*\$?$", clause[:begin])
        and not (rounds_to(one, other) if sign in ("≈", "\\approx") else reader.same(one, other))
        for (one, begin, end), (other, start, _) in pairwise(atoms)
    )


def has_number(value: Value | None) -> bool:
    """Whether the value is mathematics that contains a number, and not a sentence."""
    return value is not None and not isinstance(value.meaning, Words | Unread) and bool(re.search("[0-9]", value.text))
