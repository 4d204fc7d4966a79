r"""The one final answer of a completion, or the reason why there is none.

1. Only the final turn counts, and of it what follows the reasoning (`places.py`).
2. Boxes and `<answer>` tags say what the answer is; all of them must have the same value. So must every statement
   ("The answer is", "Answer:", "####"): who writes down several answers has not given one.
3. Without box or tag the statements decide, by the same rule.
4. Without any of these the last sentence does that has a number or a formula, if it has one only, or ends in the only
   one that it claims ("... is 12", "... = 12").

"The same value" is decided by the reader, not by the spelling: 1/2 and 0.5 are one answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from posttrain.rewards.mathematics import places
from posttrain.rewards.mathematics.compare import same
from posttrain.rewards.mathematics.denials import is_changed, is_denied, is_guess, is_task, retractions
from posttrain.rewards.mathematics.guard import MAX_CHARS, NeedsAlgebra, Unreadable, look_at_the_clock
from posttrain.rewards.mathematics.options import Options
from posttrain.rewards.mathematics.parse import parse
from posttrain.rewards.mathematics.prose import NUMBER
from posttrain.rewards.mathematics.sentences import (
    AMOUNTS,
    FORMULA,
    HEDGE,
    atoms_of,
    is_claimed,
    is_offered,
    is_prose,
    pattern_of,
    without_dollars,
)
from posttrain.rewards.mathematics.values import Unread, Value, Words
from posttrain.rewards.verdict import Reason

MAX_TEXT = 1_000_000
"""Characters of a completion that is read at all."""
MAX_SEGMENT = 250_000
"""Of these, characters behind the reasoning: some 60,000 tokens that are no reasoning."""
STRICT = Options()

_JOINT = re.compile(
    r"(?:[\s$,;.&]|\\[,;!()\[\]]|\\q?quad(?![a-z])|\\text\s?\{\s*(?:and|or|,)\s*\}|(?<!\w)(?:and|or)(?!\w))*+"
)
_NAMED_JOINT = re.compile(
    r"(?:[^\n0-9.!?\\]|_\{?[0-9]\}?|\\[()\[\],;]|\\q?quad|\\text)*?(?:,|;|\band\b)(?:[^\n0-9.!?]|_\{?[0-9]\}?){0,40}"
)
_HEDGE_BEHIND = re.compile(
    r"[ $,.;:)]*[(,—-]?\s*(?:or|maybe|perhaps|possibly)\b[^.\n0-9\\$]{0,30}(?=[$0-9]|\\(?!boxed|fbox))",
    re.IGNORECASE,
)
_HEDGE_BEFORE = re.compile(rf"[\s,]+(?:{HEDGE}[\s,]*)+(?:it\s+is|is|it's)?[\s$(]*$", re.IGNORECASE)
_FILLER = re.compile(
    r"^(?:(?:simply|just|exactly|clearly|thus|therefore|equal\s+to|approximately|about|option|choice|that|now)\s+)+",
    re.IGNORECASE,
)
_EXPLANATION = re.compile(
    r"[,;]?\s+(?:because|since|which|where|when|if|so\s+that|as\s+(?:the|we|it))\b.*|\s+\((?!or\b|maybe|perhaps|possibly|alternat)[A-Za-z][^()]*\)$",
    re.DOTALL,
)
_RESULT = re.compile(r"=|≈|\b(?:get|gives?|obtain|yields?|makes?)\b")
"""What an order says with its result: `Multiply by 2 to get 18`."""
_OPENING = re.compile(r"^(?:so|thus|hence|therefore|then|and|now)\b[\s,:]*", re.IGNORECASE)
_CONCLUSION = re.compile(r"\b(?:therefore|thus|hence|so|final answer)\b[\s,:*]*", re.IGNORECASE)
_ABOUT = r"\s*(?:exactly|only|now|about|approximately|at\s+(?:least|most)|a\s+total\s+of|equal\s+to)?\s*$"
_CLAIM = re.compile(
    rf"(?:\b(?:is|are|be|was|were|it's|equals?|gives?|makes?)|=|≈|:|->|→|\\approx){_ABOUT}", re.IGNORECASE
)
_MENTION = re.compile(rf"\b(?:get|have|has|total|of|costs?|to|by|than|answer){_ABOUT}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Extracted:
    """What a completion gives as its answer."""

    answer: str | None
    """As it was written; None when there is none, or not one."""
    candidates: int = 0
    """How many different answers were found."""
    reason: Reason | None = None
    """Why there is no answer."""
    listed: str | None = None
    """The different answers, joined by commas, where nothing but commas, "and" or "or" stood between them: that is an
    answer to a question that asks for a list, and to no other."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads answers and says which are the same."""

    options: Options = STRICT
    algebra: Callable[[str, str], bool] | None = None
    """Decides what takes symbolic algebra; without it such a question raises NeedsAlgebra."""
    read: dict[str, Value | None] = field(default_factory=dict, compare=False)
    """What was read before: an answer is compared with every other one."""

    def value(self, text: str) -> Value | None:
        """None for what has no value."""
        if text not in self.read:
            look_at_the_clock()
            try:
                self.read[text] = parse(text, self.options)
            except Unreadable:
                self.read[text] = None
        return self.read[text]

    def same(self, one: str, other: str) -> bool:
        """Whether two answers have the same value, or the same spelling."""
        if one == other:
            return True
        look_at_the_clock()
        first, second = self.value(one), self.value(other)
        if first is None or second is None:
            return False
        try:
            return self.equal(first, second, one, other)
        except Unreadable:
            return False

    def equal(self, gold: Value, given: Value, gold_text: str, given_text: str) -> bool:
        """`compare.same`, with algebra where it takes that. Unreadable where `given` leaves a computation undone."""
        verdict = same(gold, given, self.options)
        if verdict is None:
            if self.algebra is None:
                raise NeedsAlgebra
            verdict = self.algebra(gold_text, given_text)
        return verdict


def extract(text: str, reader: Reader | None = None) -> Extracted:
    r"""The one answer of a completion. Raises NeedsAlgebra when its candidates can only be told apart by algebra.

    >>> extract(r"I think \boxed{\frac{1}{2}}, that is \boxed{0.5}.").answer
    '0.5'
    >>> extract(r"\boxed{6}? No, \boxed{7}.").reason, extract("0 1 2 3 4 5 6 7").reason
    ('ambiguous', 'ambiguous')
    >>> extract("She sells 9 eggs.\n#### 18").answer, extract("That makes 9 * 2 = $18 every day.").answer
    ('18', '$18')
    """
    look_at_the_clock(len(text) // 10)
    segment = final_segment(text) if len(text) <= MAX_TEXT else text
    if len(segment) > MAX_SEGMENT:
        return Extracted(None, reason="too_large", detail=f"a text of {len(segment)} characters")
    look_at_the_clock(len(segment))
    return _decide(segment, reader or Reader())


def final_segment(text: str) -> str:
    """What follows the reasoning in the final turn."""
    return places.after_reasoning(places.final_turn(text))


def _decide(segment: str, reader: Reader) -> Extracted:
    boxes, tags, statements = places.find_boxes(segment), places.find_tags(segment), places.find_statements(segment)
    if boxes is None or tags is None or statements is None:
        return _too_many(segment)
    if boxes and boxes[-1].closing < 0:
        return Extracted(None, reason="no_answer", detail="the last box is never closed")
    shown = [content for box in boxes if (content := places.box_content(segment, box))]
    tagged = [_tagged(tag) for tag in tags if "\\boxed" not in tag]
    explicit = shown + [tag for tag in tagged if tag]
    if not explicit and (boxes or tags):
        return Extracted(None, reason="no_answer", detail="the box is empty" if boxes else "the answer tag is empty")
    statements = [said for statement in statements if (said := _before_box(statement))]
    claims = [claim for said in statements if not _denied(said) and (claim := _claim(said, reader))]
    denied = [one for said in statements if (one := _denied(said))]
    if not explicit:
        return _stated(claims, denied, segment, reader)
    if any(len(content) > MAX_CHARS for content in explicit):
        return Extracted(
            None, len(explicit), reason="too_large", detail=f"an answer of {max(map(len, explicit))} characters"
        )
    distinct = _distinct(explicit, reader)
    if len(distinct) > 1:
        joined = not tagged and _are_joined(segment, [box for box in boxes if places.box_content(segment, box)])
        return _ambiguous(len(distinct), distinct if joined else None)
    answer = distinct[0]
    if any(is_denied(segment, box.start, box.closing + 1) or is_changed(segment, box.start) for box in boxes):
        return Extracted(None, reason="no_answer", detail="the words around the box deny it")
    if any(_is_part(segment, box) for box in boxes):
        return Extracted(None, reason="ambiguous", detail="the box is a part of a larger formula")
    others = [other for box in boxes for other in _offered_beside(segment, box) if not reader.same(answer, other)]
    if boxes:
        others += _taken_back(answer, segment, boxes[-1].closing + 1, reader)
    if others:
        return _ambiguous(2, detail=f"{others[0]!r} is offered beside the box")
    contradicting = [claim for claim in claims if _is_definite(claim, reader) and not reader.same(answer, claim)]
    contradicting += [claim for claim in denied if reader.same(answer, claim)]
    if contradicting:
        return _ambiguous(2, detail=f"the statement {contradicting[0]!r} beside the box {answer!r}")
    return Extracted(answer, 1)


def _too_many(segment: str) -> Extracted:
    if segment.count("\\boxed") + segment.count("\\fbox") in range(1, places.MAX_PLACES):
        return Extracted(
            None, 1, reason="too_large", detail=f"no end in {places.MAX_SCANNED} characters from the box on"
        )
    return _ambiguous(places.MAX_PLACES, detail=f"more than {places.MAX_PLACES} answers")


def _before_box(statement: str) -> str:
    """What a statement that ends in a box says before it, if it is a number alone: the 8 of `8: \\boxed{7}`."""
    said, box, _ = statement.partition("\\boxed")
    alone = not box or re.fullmatch(r"[-+\s]*[0-9][0-9.,]*[\s:;,.)(*]+\$*", said)
    return said.rstrip(" :;,.(*$") if box and alone else said if alone else ""


def _denied(statement: str) -> str:
    """The value that a statement denies, if it does: the 7 of "not 7"."""
    first = next(iter(atoms_of(statement)), None)
    return first[0] if first and is_denied(statement, *first[1:]) else ""


def _stated(claims: list[str], denied: list[str], segment: str, reader: Reader) -> Extracted:
    """The answer of a text without boxes: what is stated, else what the last sentence concludes."""
    definite = [claim for claim in claims if _is_definite(claim, reader)]
    if definite or claims:
        distinct = _distinct(definite or claims[-1:], reader)
        if len(distinct) > 1:
            return _ambiguous(len(distinct))
        others = _taken_back(distinct[0], segment, places.end_of_statements(segment), reader)
        return _ambiguous(2, detail=f"{others[0]!r} takes the statement back") if others else Extracted(distinct[0], 1)
    if denied:
        return Extracted(None, reason="no_answer", detail=f"{denied[-1]!r} is denied, and nothing else stated")
    return _concluded(segment, reader)


def _ambiguous(candidates: int, listed: list[str] | None = None, *, detail: str = "") -> Extracted:
    joined = ", ".join(listed) if listed else None
    return Extracted(
        None, candidates, reason="ambiguous", listed=joined, detail=detail or f"{candidates} different answers"
    )


def _distinct(answers: list[str], reader: Reader) -> list[str]:
    """One spelling, the last, of each value, in the order in which the values first appear."""
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
        if len(between) > 80 or not (_JOINT.fullmatch(between) or _NAMED_JOINT.fullmatch(between)):
            return False
    return True


def _is_part(segment: str, box: places.Box) -> bool:
    """Whether a digit, a decimal or an exponent stands right beside a box: `1\\boxed{7}`, `\\boxed{7}.5`."""
    behind = segment[box.closing + 1 : box.closing + 4] if segment[box.closing : box.closing + 1] == "}" else ""
    before = segment[max(box.start - 6, 0) : box.start]
    return bool(re.match(r"[0-9]|\.[0-9]|\^[0-9{]|[\[{(][0-9]", behind) or re.search(r"[0-9][{$]?$|\\sqrt\{?$", before))


def _taken_back(answer: str, segment: str, start: int, reader: Reader) -> list[str]:
    """The other answers that take an answer back which ends at `start`."""
    found: list[str] = []
    for at in retractions(segment, start):
        other = next(iter(atoms_of(segment[at : at + 120])), ("", 1, 1))
        text = other[0] if other[1] == 0 else segment[at : at + 10]
        listed = text in answer and re.search(r"\bor\b|[,;]", answer) is not None
        if not listed and not reader.same(answer, text) and "\\boxed" not in text:
            found.append(text)
    return found


def _offered_beside(segment: str, box: places.Box) -> list[str]:
    """What is offered right before or behind a box as well: the 8 of `\\boxed{7} or 8`. Other boxes are seen to."""
    found: list[str] = []
    behind, before = segment[box.closing + 1 : box.closing + 120], segment[max(box.start - 200, 0) : box.start]
    if hedge := _HEDGE_BEHIND.match(behind):
        found += [atom for atom, _, _ in atoms_of(behind[hedge.end() :])[:1]]
    if hedge := _HEDGE_BEFORE.search(before):
        said = before[: hedge.start()].rstrip(" ,")
        start = said.rfind("$", 0, -1) if said.endswith("$") else -1
        found += (
            [said[start + 1 : -1]] if start >= 0 else [text for text, _, end in atoms_of(said)[-1:] if end == len(said)]
        )
    return [other for other in found if "\\boxed" not in other]


def _tagged(content: str) -> str:
    """The answer within a tag: what it states, if it is a sentence."""
    statements = places.find_statements(content)
    return without_dollars(statements[-1] if statements else content)


def _claim(statement: str, reader: Reader) -> str:
    """The answer within a statement: `$7$, because ...` is 7, `9 eggs per day` the number, `7 or 8` all of it."""
    text = _EXPLANATION.sub("", _FILLER.sub("", statement)).strip(" ,;:*")
    formula = FORMULA.match(text)
    if formula and not AMOUNTS.match(text):
        rest = text[formula.end() :]
        percent = places.PERCENT_BEHIND.match(rest)
        if not re.search(rf"[0-9$\\]|\b{HEDGE}", rest[percent.end() if percent else 0 :]):
            return formula[formula.lastgroup or 0].strip() + ("\\%" if percent else "")
    if re.search(r"[0-9]|\\[(\[]|\$", text) and (answer := _of_sentence(text, reader).answer) is not None:
        return answer
    return without_dollars(text)


def _is_definite(claim: str, reader: Reader) -> bool:
    """Whether a statement gives a value, or begins as one; "the sum of both" does not."""
    return bool(re.match(r"[-−+]?\s*\\?[$€£]?\s*[0-9.]|\\[a-z{(]", claim)) or _has_number(reader.value(claim))


def _has_number(value: Value | None) -> bool:
    """Whether it is mathematics with a number in it, and no sentence."""
    return value is not None and not isinstance(value.meaning, Words | Unread) and bool(re.search("[0-9]", value.text))


def _concluded(segment: str, reader: Reader) -> Extracted:
    """The only number or formula of the last sentence that has one, or the last one there if only it is claimed."""
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
            return Extracted(None, reason="no_answer", detail="the formula is what is asked about")
        if not atoms:
            continue
        if sentence != conclusion[0] and pattern_of(sentence, atoms) == pattern_of(
            *conclusion
        ):  # "It is 6. It is 7.", or a number on each line
            return _ambiguous(2, detail="the last sentences count up")
        break
    if conclusion is None:
        return Extracted(None, reason="no_answer")
    if is_guess(conclusion[0]):
        return _ambiguous(2, detail="a guess")
    return _of_sentence(conclusion[0], reader)


def _breaks_a_chain(clause: str, atoms: list[tuple[str, int, int]], reader: Reader) -> bool:
    """Whether two numbers are called equal that are not: `8 = 7`; of `8 - 1 = 7` the 1 is a part of a formula."""
    return any(
        clause[end:start].strip() in ("=", "→", "->", "=>", "⇒")
        and not re.search(r"(?:[-−+*/×÷·^(_%:]|\\[a-z]+|\bx|\bof|\bby)\s*\$?$", clause[:begin])
        and not reader.same(one, other)
        for (one, begin, end), (other, start, _) in pairwise(atoms)
    )


def _of_sentence(sentence: str, reader: Reader) -> Extracted:
    whole = without_dollars(_OPENING.sub("", sentence))
    if not is_prose(sentence) and len(whole) <= MAX_CHARS and _has_number(reader.value(whole)):
        return Extracted(whole, 1)
    *_, start = 0, *(match.end() for match in _CONCLUSION.finditer(sentence))
    clause = sentence[start:] if NUMBER.search(sentence, start) or FORMULA.search(sentence, start) else sentence
    atoms = atoms_of(clause)
    if len(atoms) > places.MAX_PLACES:
        return _ambiguous(len(atoms))
    if atoms and is_changed(clause, atoms[-1][1]):
        return Extracted(None, reason="no_answer", detail=f"{atoms[-1][0]!r} is what another number is told by")
    said = [(atom, start, end) for atom, start, end in atoms if not is_denied(clause, start, end)]
    if atoms and not said:
        return Extracted(None, reason="no_answer", detail=f"{atoms[-1][0]!r} is denied")
    if len(said) < len(atoms) and {atom for atom, _, _ in said}.isdisjoint(
        a for a, s, e in atoms if is_denied(clause, s, e)
    ):
        atoms = said
    if _breaks_a_chain(clause, atoms, reader):
        return _ambiguous(len(atoms), detail="a chain of equations whose sides differ")
    texts = list(dict.fromkeys(atom for atom, _, _ in atoms))
    if len(texts) == 1:
        offered = any(is_offered(clause, start, end) for _, start, end in atoms)
        return _ambiguous(2, detail="a guess among others") if offered else Extracted(texts[0], 1)
    ends = [0, *(end for _, _, end in atoms)]
    if all(_JOINT.fullmatch(clause, end, start) for end, (_, start, _) in zip(ends[1:], atoms[1:], strict=False)):
        return _ambiguous(len(texts), texts)
    for pattern in (_CLAIM, _MENTION):
        claimed = {atom for atom, start, end in atoms if is_claimed(clause, start, end, pattern)}
        if claimed:
            last = atoms[-1]
            right = claimed == {last[0]} and not is_offered(clause, *last[1:])
            return Extracted(last[0], 1) if right else _ambiguous(len(texts))
    return _ambiguous(len(texts))
