r"""Words that retract an answer, question it or only ask for one."""

from __future__ import annotations

import re

from posttrain.verify.mathematics.units import FRACTIONS

_DENIAL = (
    r"(?:\bnot|n['’]t|\bnever|\bcannot|\bneither|\bnor|\bno\s+longer|\bother\s+than|\banything\s+but|\bexcept|"
    r"\bnicht|\bno\s+es|\bnão(?:\s+é)?|(?<!\w)не\b|\bnon\s+è|\bpas|不是|不等于|并非|\binstead\s+of|\brather\s+than|\bfar\s+from|\bdifferent\s+from|\bwrong\s+to\s+say|\bdoubt|\bdeny)"
)
_BARE = r"(?:\s|[$*_`\"'“(\[{:]|\\[(\[]|\\text(?:bf)?\{)"
_STRUCK = (
    r"(?:~~|<(?:del|s|strike)>)|(?:<!--|\\(?:x?cancel|bcancel|[hv]?phantom|sout|st|iffalse)\b|\\neq?\b|≠|\\[lg]t\b|"
    r"[\w)}\]](?:[ ]+[<>]|<)|^%|\n%)[\s{$]*"
)
_NUMBER_WORDS = "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_COUNT = (
    rf"(?:an?|(?:{_NUMBER_WORDS}|(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)"
    rf"(?:[\s-]+(?:{_NUMBER_WORDS}))?)"
)
_PERIOD = "".join(
    rf"(?<!\b{word}\s)"
    for word in ("first", "second", "third", "fourth", "1st", "2nd", "3rd", "4th", "last", "next", "this", "each")
)
"""No word with which a half or a quarter is a time: `in the second half 24`."""
_CHANGED_BEFORE = re.compile(
    r"(?:\b(?:(?:more|less|greater|fewer|bigger|smaller|higher|lower|larger)\s+than|(?:half|third|root|opposite|reciprocal|"
    rf"inverse|logarithm)\s+of|minus|negative|{_PERIOD}(?:half|quarter)|twice|double|triple|thrice|log|ln))[\s$({{]*$",
    re.IGNORECASE,
)
_BOUND_BEFORE = re.compile(r"^[^\w<>]*(?<![-=<>])(?:[<≤≥]|>(?!\s)|\\(?:lt|gt|leq?|geq?)(?![a-z]))=?[\s$({]*$")
_CHANGED_BEHIND = re.compile(
    rf"\s?[‰‱…]|[\s$)}}*-]*(?:(?:and\s+{_COUNT}[\s-]+{FRACTIONS}|(?!quarter){FRACTIONS}(?<=s))\b"
    r"|per\s*(?:mille?|hundred|thousand|[a-z]*illion)\b"
    r"|\(\s*(?:negative|minus\b)|negative(?=[\s$)}*]*(?:$|[.,;:!?\n]))|minus\b(?!\s*[$(\d]|\s+signs?\b)"
    r"|\(?\s*with\s+a\s+(?:minus|negative))",
    re.IGNORECASE,
)
"""What changes the number before it: `7 tenths`, `7 and a half`, `7‰`, `7 (negative)`."""
_DENIED_BEFORE = re.compile(
    rf"(?:{_STRUCK})$|{_DENIAL}(?:{_BARE}+(?:be|is|it|it's|that|equal|equals|to|exactly|simply|just|really|actually|the|a|an|my|our|"
    rf"final|correct|right|number|value|answer|result|say|called)(?![A-Za-z]))*+{_BARE}*$",
    re.IGNORECASE,
)
_DENIED_BEHIND = re.compile(
    r"\W{0,3}\?\s*(?:no|nope|wrong)\b|\W{0,3}(?:incorrect|wrong|ではない|じゃない|不是|不对)|(?:[\s$*_`\"'”)\]},.;:—-]|\\[)\]])*(?:(?:but|and|which|that|it|this)\s+)*(?:(?:is|was|are|would\s+be|seems|looks|can|could|must)\s*)?"
    r"(?:(?:not|n['’]t|never)\s+(?:be\s+)?(?:the|right|correct|true|my|our|it\b|what|possible|an?\s+answer)|"
    r"(?:(?<=is\s)|(?<=was\s)|(?<=be\s)|(?<=seems\s)|(?<=looks\s))(?:wrong|incorrect|false|untrue|impossible|mistaken))",
    re.IGNORECASE,
)
_REFERENCE_BEFORE = re.compile(
    r"\b(?:step|question|problem|exercise|task|part|case|chapter|section|page|figure|fig|table|equation|eq|example|line|"
    r"item|hint|note|theorem|lemma|stage|phase|round|lesson|version|draft|no|q|#)s?[.:]?[\s*_#]*(?:(?:no|number)\.?\s*)?$"
    r"|^\W*(?:day|number|level|unit)[\s*_]*$|^[\s*_]*#\s*$",
    re.IGNORECASE,
)
"""Words before a number that is only a label: `Step 7`, `Question 7`."""
_GUESS = re.compile(
    r"\b(?:guess|candidates?|attempt|option\s+[A-Z0-9]\b|(?:might|may)\s+be|maybe|perhaps|possibly)", re.IGNORECASE
)
_OTHER = (
    r"(?:(?:or|nope|no|wait|sorry|alternatively|hm+|oops|perhaps|maybe|correction|actually|scratch\s+that|I\s+meant|rather|"
    r"on\s+second\s+thought|otherwise|else|also\s+be|be)\b[\s,:.!*—-]*)+"
    r"(?:(?:I|meant|mean|it['’]s|that['’]s|it|is|that|the|answer|final|correct|should|be|was|probably|might|could|also|even|"
    r"equals?|if\s+not|less|more|fewer|greater)\b[\s,:*]*)*+"
    rf"(?P<other>[$\\(=]*[0-9]|\$|\\[(\[f]|(?:{_NUMBER_WORDS}|(?<=\bless)|(?<=\bmore)|(?<=fewer))\b)"
)
_TAKEN_BACK_AT_ONCE = re.compile(rf"(?:\\footnote\{{)?[\s$*_)\],.;:!?(\[—-]*(?:but\s+|and\s+)?{_OTHER}", re.IGNORECASE)
_TAKEN_BACK_LATER = re.compile(
    rf"(?:[.!?]\s|\n)[\s*_]*(?:but\s+)?(?:(?:it|this|that|the\s+answer)\s+(?=could|might|may)(?:could|might|may)\s+)?{_OTHER}",
    re.IGNORECASE,
)
_ALSO_POSSIBLE = re.compile(
    r"(?<!\w)(?P<other>\$?[0-9][0-9.,/]*\$?)\s+(?:is|are|was|were|would\s+be|seems|looks|remains)\s+"
    r"(?:(?:also|equally|just\s+as|quite|very|still|more|another)\s+)*(?:possible|plausible|likely|possibility)\b(?!\s+to)"
    r"|^[^.!?\n0-9]{0,40}\b(?:could|might|may)\s+(?:(?:also|well|even|instead|just\s+as\s+well)\s+)*be\s+(?P<another>\$?[0-9])",
    re.IGNORECASE,
)
"""Phrases that offer another answer in addition: `but 8 is possible`, `though it might be 8`."""
_POSSIBLE = re.compile(r"possib|plausib|likely|could|might|may", re.IGNORECASE)
_TASK = re.compile(
    r"(?:[\s*_#>]|\\\[)*(?:(?:please|now|first|then|let\s+us|let's|hence|problem|question|task|exercise|q)\b[\s:.,)*_]*|[0-9]+[.)]\s+)*"
    r"(?:find|compute|evaluate|simplify|determine|calculate|express|write|factor|factori[sz]e|expand|convert|rationali[sz]e|"
    r"(?:completely|fully)\s+\w+|multiply|add|subtract|divide|reduce|rewrite|solve|prove|show|estimate|round|enter|give|list|state|what|which|who|when(?!\s+\w+ing\b[^.?]*:)|where|why|how|is|are|does|do|can|could)\b",
    re.IGNORECASE,
)
"""The beginning of a question or an instruction."""


def is_denied(text: str, start: int, end: int) -> bool:
    """Whether the words around an answer deny it: `not 7`, `isn't 7`, `7 is wrong`.

    >>> is_denied("It is not 7.", 10, 11), is_denied("It is not odd, so 7.", 18, 19), is_denied("7 is not it", 0, 1)
    (True, False, True)
    """
    before = text[max(start - 60, 0) : start]
    return bool(_DENIED_BEFORE.search(before) or _DENIED_BEHIND.match(text, end, end + 80))


def is_changed(text: str, start: int) -> bool:
    """Whether the word before a number changes its value: `negative 7`, `half of 7`, `more than 7`."""
    if _CHANGED_BEFORE.search(text, max(start - 40, 0), start) is not None:
        return True
    return start < 40 and _BOUND_BEFORE.match(text[:start]) is not None


def is_changed_behind(text: str, end: int) -> bool:
    """Whether what follows a number changes its value.

    >>> is_changed_behind("7 tenths", 1), is_changed_behind("7 and a half", 1), is_changed_behind("7 sixth graders", 1)
    (True, True, False)
    """
    return _CHANGED_BEHIND.match(text, end, end + 60) is not None


def is_reference(text: str, start: int) -> bool:
    """Whether the word before a number makes it a label: `Step 7`.

    >>> is_reference("Step 7", 5), is_reference("### Question 7:", 13), is_reference("It takes 7", 9)
    (True, True, False)
    """
    return _REFERENCE_BEFORE.search(text[max(start - 40, 0) : start]) is not None


def is_task(sentence: str) -> bool:
    r"""Whether a sentence is a question or an instruction, and so concludes nothing.

    >>> is_task("Simplify $\\sqrt{242}$"), is_task("What is 3 + 4?"), is_task("So it is 7")
    (True, True, False)
    """
    return _TASK.match(sentence) is not None or sentence.rstrip(" *_").endswith("?")


def is_guess(sentence: str) -> bool:
    """Whether a sentence offers its content as a guess."""
    return _GUESS.search(sentence) is not None


def retractions(text: str, start: int) -> list[int]:
    """Positions of answers that retract the text before `start`: `. Actually, 8`, `(or 8)`."""
    at_once = _TAKEN_BACK_AT_ONCE.match(text, start, start + 120)
    later = _TAKEN_BACK_LATER.finditer(text, start, start + 400)
    begun = [match.start("other") for match in ([at_once] if at_once else []) + list(later)]
    behind = text[start : start + 200]
    also = _ALSO_POSSIBLE.finditer(behind) if _POSSIBLE.search(behind) else ()
    return begun + [start + match.start(match.lastgroup or 0) for match in also]
