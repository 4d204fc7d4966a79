r"""Extract the one final answer of a completion, or the reason why there is none.

1. Only the text after the reasoning in the final turn counts (`places.py`).
2. Boxes and `<answer>` tags contain the answer. All of them must have the same value, and so must every statement
   ("The answer is", "Answer:", "####"): several different answers are not an answer.
3. Without a box or tag, the statements decide by the same rule.
4. Without any of these, the last sentence with a number or a formula decides, if it has only one, or if it ends in the
   only one that it claims ("... is 12", "... = 12").

The reader decides whether values are the same, not the spelling: 1/2 and 0.5 are one answer.
"""

from __future__ import annotations

import re
from itertools import pairwise

from posttrain.verify.mathematics import places
from posttrain.verify.mathematics.conclusions import JOINT, concluded, has_number, of_sentence
from posttrain.verify.mathematics.denials import is_changed, is_denied, retractions
from posttrain.verify.mathematics.guard import MAX_CHARS, NeedsAlgebra, check_deadline
from posttrain.verify.mathematics.reader import Extracted, Reader, ambiguous
from posttrain.verify.mathematics.sentences import AMOUNTS, FORMULA, HEDGE, atoms_of, without_dollars
from posttrain.verify.mathematics.tokens import script_of

__all__ = ["MAX_TEXT", "Extracted", "NeedsAlgebra", "Reader", "extract", "final_segment"]

MAX_TEXT = 1_000_000
"""Maximum length of a completion, in characters. Longer ones are not read."""
MAX_SEGMENT = 250_000
"""Maximum length of the text after the reasoning, in characters: about 60,000 tokens."""

_NAMED_JOINT = re.compile(
    r"(?:[^\n0-9.!?\\]|_\{?[0-9]\}?|\\[()\[\],;]|\\q?quad|\\text)*?(?:,|;|\band\b)(?:[^\n0-9.!?]|_\{?[0-9]\}?){0,40}"
)
_FINAL = re.compile(r"\bfinal\s+answer(?:\s+is\b|\s*:)", re.IGNORECASE)
_HEDGE_BEFORE = re.compile(rf"[\s,]+(?:{HEDGE}[\s,]*)+(?:it\s+is|is|it's)?[\s$(]*$", re.IGNORECASE)


def extract(text: str, reader: Reader | None = None) -> Extracted:
    r"""The one answer of a completion. Raises NeedsAlgebra if only algebra can tell whether its candidates differ.

    >>> extract(r"I think \boxed{\frac{1}{2}}, that is \boxed{0.5}.").answer
    '0.5'
    >>> extract(r"\boxed{6}? No, \boxed{7}.").reason, extract("0 1 2 3 4 5 6 7").reason
    ('ambiguous', 'ambiguous')
    >>> extract("She sells 9 eggs.\n#### 18").answer, extract("That makes 9 * 2 = $18 every day.").answer
    ('18', '$18')
    """
    check_deadline(len(text) // 10)
    segment = final_segment(text) if len(text) <= MAX_TEXT else text
    if len(segment) > MAX_SEGMENT:
        return Extracted(None, reason="too_large", detail=f"a text of {len(segment)} characters")
    check_deadline(len(segment))
    reader = reader or Reader()
    match reader.options.answer_from:
        case "box":
            return _in_boxes(segment, reader)
        case "tag":
            return _in_tags(segment, reader)
        case "last_line":
            return _decide(places.last_line(segment), reader)
    return _decide(segment, reader)


def _in_boxes(segment: str, reader: Reader) -> Extracted:
    boxes = places.find_boxes(segment)
    if boxes is None:
        return _too_many(segment)
    if (problem := _unfinished(segment, boxes)) is not None:
        return problem
    contents = [content for box in boxes if (content := places.box_content(segment, box))]
    return _shown(segment, boxes, contents, reader)


def _in_tags(segment: str, reader: Reader) -> Extracted:
    tags = places.find_tags(segment)
    if tags is None:
        return _too_many(segment)
    contents = [content for tag in tags if (content := _tagged(tag.content))]
    return _shown(segment, [], contents, reader)


def _unfinished(segment: str, boxes: list[places.Box]) -> Extracted | None:
    if boxes and boxes[-1].closing < 0:
        return Extracted(None, reason="no_answer", detail="the last box is never closed")
    if boxes and not places.box_content(segment, boxes[-1]):
        return Extracted(None, reason="no_answer", detail="the last box is empty")
    return None


def _shown(segment: str, boxes: list[places.Box], contents: list[str], reader: Reader) -> Extracted:
    """The one value in boxes and tags."""
    if not contents:
        where = {"box": "no box", "tag": "no <answer> tag"}.get(reader.options.answer_from, "the answer tag is empty")
        return Extracted(None, reason="no_answer", detail=where)
    if any(len(content) > MAX_CHARS for content in contents):
        return Extracted(
            None, len(contents), reason="too_large", detail=f"an answer of {max(map(len, contents))} characters"
        )
    distinct = _distinct(contents, reader)
    if len(distinct) > 1:
        written = [box for box in boxes if places.box_content(segment, box)]
        joined = len(written) == len(contents) and _are_joined(segment, written)
        return ambiguous(len(distinct), distinct if joined else None)
    if any(_is_part(segment, box) for box in boxes):
        return Extracted(None, reason="ambiguous", detail="the box is a part of a larger formula")
    return Extracted(distinct[0], 1)


def final_segment(text: str) -> str:
    """The text after the reasoning in the final turn."""
    return places.after_reasoning(places.final_turn(text))


def _decide(segment: str, reader: Reader) -> Extracted:
    boxes, tags = places.find_boxes(segment), places.find_tags(segment)
    if boxes is None or tags is None:
        return _too_many(segment)
    if (problem := _unfinished(segment, boxes)) is not None:
        return problem
    statements = places.find_statements(places.with_empty_boxes(segment, boxes))
    if statements is None:
        return _too_many(segment)
    shown = [content for box in boxes if (content := places.box_content(segment, box))]
    tagged = [_tagged(tag.content) for tag in tags if "\\boxed" not in tag.content]
    explicit = shown + [tag for tag in tagged if tag]
    if not explicit and (boxes or tags):
        return Extracted(None, reason="no_answer", detail="the answer tag is empty")
    if reader.options.final_statement and (final := _final_statement(segment, boxes, reader)):
        return final
    statements = [said for statement in statements if (said := _before_box(statement))]
    claims = [claim for said in statements if not _denied(said) and (claim := _claim(said, reader))]
    denied = [one for said in statements if (one := _denied(said))]
    if not explicit:
        return _stated(claims, denied, segment, reader)
    found = _shown(segment, boxes, explicit, reader)
    if (answer := found.answer) is None:
        return found
    spans = [(box.start, box.closing + 1) for box in boxes] + [(tag.start, tag.end) for tag in tags]
    if any(is_denied(segment, *span) or is_changed(segment, span[0]) for span in spans):
        return Extracted(None, reason="no_answer", detail="the words around the answer deny it")
    others = [
        other for start, _ in spans for other in _offered_before(segment, start) if not reader.same(answer, other)
    ]
    others += _taken_back(answer, segment, max(end for _, end in spans), reader)
    if others:
        return ambiguous(2, detail=f"{others[0]!r} is offered next to the answer {answer!r}")
    contradicting = [claim for claim in claims if _is_definite(claim, reader) and not reader.same(answer, claim)]
    contradicting += [claim for claim in denied if reader.same(answer, claim)]
    if contradicting:
        return ambiguous(2, detail=f"the statement {contradicting[0]!r} contradicts the answer {answer!r}")
    return Extracted(answer, 1)


def _final_statement(segment: str, boxes: list[places.Box], reader: Reader) -> Extracted | None:
    """The final answer that the text after the boxes states; None if it is neither a number nor a formula."""
    if not boxes or not _FINAL.search(segment, boxes[-1].closing):
        return None
    found = _decide(segment[boxes[-1].closing + 1 :], reader)
    return found if found.answer is not None and _is_definite(found.answer, reader) else None


def _too_many(segment: str) -> Extracted:
    if sum(map(segment.count, places.BOXES)) in range(1, places.MAX_PLACES):
        return Extracted(
            None, 1, reason="too_large", detail=f"the box does not end within {places.MAX_SCANNED} characters"
        )
    return ambiguous(places.MAX_PLACES, detail=f"more than {places.MAX_PLACES} answers")


def _before_box(statement: str) -> str:
    """The text before the box at the end of a statement, if it is only a number: the 8 of `8: \\boxed{7}`."""
    said, box, _ = statement.partition("\\boxed")
    alone = not box or re.fullmatch(r"[-+\s]*[0-9][0-9.,]*[\s:;,.)(*]+\$*", said)
    return said.rstrip(" :;,.(*$") if box and alone else said if alone else ""


def _denied(statement: str) -> str:
    """The value that a statement denies, such as the 7 of "not 7"; empty if it denies none."""
    first = next(iter(atoms_of(statement)), None)
    return first[0] if first and is_denied(statement, *first[1:]) else ""


def _stated(claims: list[str], denied: list[str], segment: str, reader: Reader) -> Extracted:
    """The answer of a text without boxes: its statements decide, else the conclusion of the last sentence."""
    definite = [claim for claim in claims if _is_definite(claim, reader)]
    if definite or claims:
        distinct = _distinct(definite or claims[-1:], reader)
        if len(distinct) > 1:
            return ambiguous(len(distinct))
        others = _taken_back(distinct[0], segment, places.end_of_statements(segment), reader)
        return ambiguous(2, detail=f"{others[0]!r} retracts the statement") if others else Extracted(distinct[0], 1)
    if denied:
        return Extracted(None, reason="no_answer", detail=f"{denied[-1]!r} is denied, and nothing else stated")
    return concluded(segment, reader)


def _distinct(answers: list[str], reader: Reader) -> list[str]:
    """The last spelling of each value, in the order in which the values first appear."""
    found: list[str] = []
    for answer in dict.fromkeys(answers):
        for index, other in enumerate(found):
            if reader.same(other, answer):
                found[index] = answer
                break
        else:
            found.append(answer)
    return found


def _are_joined(segment: str, boxes: list[places.Box]) -> bool:
    """Whether the boxes are one list: `\\boxed{1}, \\boxed{2}`, `y_1 = \\boxed{1} and y_2 = \\boxed{2}`."""
    for one, other in pairwise(boxes):
        between = segment[one.closing + 1 : other.start]
        if len(between) > 80 or not (JOINT.fullmatch(between) or _NAMED_JOINT.fullmatch(between)):
            return False
    return True


def _is_part(segment: str, box: places.Box) -> bool:
    """Whether a digit, a decimal or an exponent directly touches a box: `1\\boxed{7}`, `\\boxed{7}.5`."""
    behind = segment[box.closing + 1 : box.closing + 4] if segment[box.closing : box.closing + 1] == "}" else ""
    before = segment[max(box.start - 6, 0) : box.start]
    return bool(
        re.match(r"[0-9]|\.[0-9]|[\^_][0-9{]|[\[{(][0-9]", behind)
        or any(map(script_of, behind[:1]))
        or re.search(r"[0-9][{$]?$|\\sqrt\{?$", before)
    )


def _taken_back(answer: str, segment: str, start: int, reader: Reader) -> list[str]:
    """The other answers that retract the answer which ends at `start`."""
    found: list[str] = []
    for at in retractions(segment, start):
        other = next(iter(atoms_of(segment[at : at + 120])), ("", 1, 1))
        text = other[0] if other[1] == 0 else segment[at : at + 10]
        listed = text in answer and re.search(r"\bor\b|[,;]", answer) is not None
        if not listed and not reader.same(answer, text) and "\\boxed" not in text:
            found.append(text)
    return found


def _offered_before(segment: str, start: int) -> list[str]:
    """The alternative directly before an answer: the 8 of `8 or \\boxed{7}`. Other boxes are checked elsewhere."""
    found: list[str] = []
    before = segment[max(start - 200, 0) : start]
    if hedge := _HEDGE_BEFORE.search(before):
        said = before[: hedge.start()].rstrip(" ,")
        start = said.rfind("$", 0, -1) if said.endswith("$") else -1
        found += (
            [said[start + 1 : -1]] if start >= 0 else [text for text, _, end in atoms_of(said)[-1:] if end == len(said)]
        )
    return [other for other in found if "\\boxed" not in other]


def _tagged(content: str) -> str:
    """The answer in a tag; for a sentence, the answer that it states."""
    if boxes := [box for box in places.find_boxes(content) or [] if box.closing >= 0]:
        return places.box_content(content, boxes[-1])
    statements = places.find_statements(content)
    return without_dollars(statements[-1] if statements else content)


def _claim(statement: str, reader: Reader) -> str:
    """The answer in a statement: 7 for `$7$ in all`, the number for `9 eggs per day`, the whole text for `7 or 8`."""
    text = statement.strip(" ,;:*")
    formula = FORMULA.match(text)
    if formula and not AMOUNTS.match(text):
        rest = text[formula.end() :]
        percent = places.PERCENT_BEHIND.match(rest)
        if not re.search(rf"[0-9$\\]|\b{HEDGE}", rest[percent.end() if percent else 0 :]):
            return formula[formula.lastgroup or 0].strip() + ("\\%" if percent else "")
    if re.search(r"[0-9]|\\[(\[]|\$", text) and (answer := of_sentence(text, reader).answer) is not None:
        return answer
    return without_dollars(text)


def _is_definite(claim: str, reader: Reader) -> bool:
    """Whether a statement gives a value or begins with one. "the sum of both" does not."""
    return bool(re.match(r"[-−+]?\s*\\?[$€£]?\s*[0-9.]|\\[a-z{(]", claim)) or has_number(reader.value(claim))
