"""Compare `math` with math-verify on published answer pairs: what each accepts, and why the two differ.

    python benchmarks/answer_pairs.py        write the tables of docs/math.md, with the pairs that a verifier misjudges

The pairs are math-verify's own regression cases (268) and the answers of a model to 100 problems of MATH, labelled by
the graders of Qwen2.5-Math (800). In addition to the strict `math`, the tables have `math_lenient`, which declares
math-verify's own conventions. There are three counts: with default settings; with the options that a row declares for
all verifiers; and the same without the rows whose label contradicts a rule of docs/math.md. `REASONS` says why `math`
departs from a label, `LENIENT_REASONS` says why `math_lenient` does, and `CONTRADICTIONS` says which labels contradict
a rule. A departure without a reason ends the script.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import math_verify

from posttrain.errors import DataError
from posttrain.rewards import Verdict, math
from posttrain.verify.mathematics.presets import MATH_LENIENT

HERE = Path(__file__).parent
DATA = HERE.parent.parent / "shared" / "data" / "math"
PAGE = HERE.parent / "docs" / "math.md"
BEGIN, END = "<!-- answer pairs: begin -->", "<!-- answer pairs: end -->"
FILES = {"answer_pairs_math_verify.jsonl": "math-verify's cases", "answer_pairs_qwen_math100.jsonl": "Qwen's answers"}

COMMA = "`math` reads a decimal comma in the gold as a list: `decimal_comma`"
CHAIN = "a chain of equations whose sides differ gives no answer: `last_side`"
INEXACT = "a decimal is not an exact value, however many digits it has: `rounded_places`"
REASONS: dict[tuple[str, int], str] = {
    **{("answer_pairs_math_verify.jsonl", row): COMMA for row in (6, 17)},
    **{("answer_pairs_math_verify.jsonl", row): CHAIN for row in (35, 98, 100, 101, 104, 114, 115)},
    **{("answer_pairs_math_verify.jsonl", row): INEXACT for row in (126, 133, 139)},
    ("answer_pairs_math_verify.jsonl", 30): "a computation is not evaluated: `require_evaluated`",
    ("answer_pairs_math_verify.jsonl", 123): "a sum of two matrices is not evaluated: `require_evaluated`",
    ("answer_pairs_math_verify.jsonl", 124): "a product of two matrices is not evaluated: `require_evaluated`",
    ("answer_pairs_math_verify.jsonl", 15): "`10 which is 1,000.99` names two numbers: `last_side`",
    ("answer_pairs_math_verify.jsonl", 172): "boxes have 200 and 255, the statement has 10,455: `final_statement`",
    ("answer_pairs_math_verify.jsonl", 31): "the label assumes a stricter extraction: a formula may span lines",
    ("answer_pairs_math_verify.jsonl", 32): "the label assumes a stricter extraction: a formula may span lines",
    ("answer_pairs_math_verify.jsonl", 103): "an estimate, `x ≈ 11`, is not an exact value: `last_side`",
    ("answer_pairs_math_verify.jsonl", 109): "the gold is a chain of equations whose sides differ: `last_side`",
    (
        "answer_pairs_math_verify.jsonl",
        162,
    ): "LaTeX prints `{1,3}` as 1,3, which is not a point: `bare_points`",
    (
        "answer_pairs_math_verify.jsonl",
        187,
    ): "an interval and its inequality are the same set: `inequality_as_set`",
    (
        "answer_pairs_math_verify.jsonl",
        190,
    ): "if signs separate several boxes, only the last box counts: `every_box`",
    ("answer_pairs_math_verify.jsonl", 217): "the gold is cut off inside its box, an error in the data",
    ("answer_pairs_math_verify.jsonl", 253): "f(x) and f(y) are different symbols",
    ("answer_pairs_math_verify.jsonl", 263): "1 + 1/e is not 1 - 1/e: the label is wrong",
    ("answer_pairs_qwen_math100.jsonl", 583): "`10{,}000` is 10000: the label comes from comparing characters",
}
LENIENT_REASONS: dict[tuple[str, int], str] = {
    **{key: REASONS[key] for key in REASONS if key[1] in (31, 32, 217, 253, 263, 583)},
    ("answer_pairs_math_verify.jsonl", 186): "`inequality_as_set` is off, as in math-verify; the row turns it on",
}


_CASES = "answer_pairs_math_verify.jsonl"
RULES = {
    "one answer": (15, 35, 98, 100, 101, 104, 109, 114, 115, 172),
    "an exact gold accepts no decimals": (126, 133, 139),
    "an estimate is not an exact value": (103,),
    "a set is not a tuple": (162,),
    "symbols differ": (253,),
    "an interval is its inequality": (187,),
    "a formula may span lines": (31, 32),
    "thousands may be grouped": (583,),
    "a gold is one readable answer": (190, 217),
    "the label is wrong": (263,),
}
"""Rule -> rows whose label contradicts it. The third count leaves these rows out for both verifiers."""
CONTRADICTIONS = {
    ("answer_pairs_qwen_math100.jsonl" if row == 583 else _CASES, row): rule
    for rule, rows in RULES.items()
    for row in rows
}
OPTIONS: dict[str, dict[str, Any]] = {
    "all/number_extraction": {"decimal_comma": True},
    "all/latex_notation": {"require_evaluated": False},
    "all/matrix_extraction": {"require_evaluated": False},
}
"""Options of `math` for groups of math-verify's cases that test a behaviour which is off by default."""
ROW_OPTIONS = {"precision": "rounded_places", "allow_set_relation_comp": "inequality_as_set"}
"""Math-verify's name of an option in the file -> the option of `math_lenient` that a row declares with it."""


@dataclass(frozen=True)
class Pair:
    """One labelled pair and the verdicts of two verifiers."""

    file: str
    row: int
    gold: str
    given: str
    label: bool
    ours: Verdict | None
    """Our verdict; None if the gold answer is refused."""
    theirs: bool
    rule: str = ""
    """The rule that the label contradicts, if any."""

    @property
    def accepted(self) -> bool:
        return self.ours is not None and self.ours == 1.0


def pairs(file: str, *, lenient: bool = False, declared: bool = False) -> Iterator[Pair]:
    """Judge the pairs of a file. `lenient`: use `math_lenient`; `declared`: use the options that each row declares."""
    for row, line in enumerate((DATA / file).read_text(encoding="utf-8").splitlines()):
        case = json.loads(line)
        bare = "group" not in case  # Qwen's answers have no sentences around them
        given = f"\\boxed{{{case['pred']}}}" if bare else case["pred"]
        gold = f"${case['gold']}$" if bare else case["gold"]
        try:
            ours = math(given, case["gold"], **_options(case, lenient=lenient, declared=declared))
        except DataError:
            ours = None
        theirs = _math_verify(gold, given, case if declared else {})
        rule = CONTRADICTIONS.get((file, row), "")
        yield Pair(file, row, case["gold"], given, case["equivalent"], ours, theirs, rule)


def _options(case: dict[str, Any], *, lenient: bool, declared: bool) -> dict[str, Any]:
    if not lenient:
        return OPTIONS.get(case.get("group", ""), {}) if declared else {}
    row = {name: case[key] for key, name in ROW_OPTIONS.items() if declared and key in case}
    return {**asdict(MATH_LENIENT), **row}


_PATIENCE = 60
"""Time limit of math-verify, in seconds. With its default of 5, its verdicts depend on the load of the machine."""
_EXTRACTION = {"latex": math_verify.LatexExtractionConfig, "expr": math_verify.ExprExtractionConfig}


def _math_verify(gold: str, given: str, case: dict[str, Any]) -> bool:
    """The verdict of math-verify, with the settings of its own test as far as the case declares them."""
    settings = tuple((name, case[key]) for key, name in _SETTINGS.items() if key in case)
    return _verdict(gold, given, tuple(case.get("extract", ("latex", "expr"))), settings)


@cache
def _verdict(gold: str, given: str, kinds: tuple[str, ...], settings: tuple[tuple[str, Any], ...]) -> bool:
    """The verdict of math-verify. It is cached, because the same pairs are judged several times."""
    found = [_EXTRACTION[kind]() for kind in kinds]
    try:
        read = [math_verify.parse(text, found, parsing_timeout=_PATIENCE) for text in (gold, given)]
        return math_verify.verify(read[0], read[1], timeout_seconds=_PATIENCE, **dict(settings))
    except Exception:  # math-verify fails on some gold answers
        return False


_SETTINGS = {
    "strict": "strict",
    "precision": "float_rounding",
    "allow_set_relation_comp": "allow_set_relation_comp",
}


def main() -> None:
    logging.disable(logging.CRITICAL)
    strict = _judged(lenient=False, declared=False)
    lenient = _judged(lenient=True, declared=False)
    departures = [pair for pair in strict if pair.accepted != pair.label]
    remaining = [pair for pair in lenient if pair.accepted != pair.label]
    unexplained = [(pair.file, pair.row) for pair in departures if (pair.file, pair.row) not in REASONS]
    unexplained += [(pair.file, pair.row) for pair in remaining if (pair.file, pair.row) not in LENIENT_REASONS]
    if unexplained:
        sys.exit(f"no reason is given for {unexplained}")
    page = PAGE.read_text(encoding="utf-8")
    tables = [*_table(strict, lenient), "", *_departures(departures, lenient), "", *_remaining(remaining)]
    text = "\n".join([BEGIN, "", *tables, "", END])
    page = re.sub(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: text, page, flags=re.DOTALL)
    PAGE.write_text(page, encoding="utf-8")
    print(text)


def _judged(*, lenient: bool, declared: bool) -> list[Pair]:
    return [pair for file in FILES for pair in pairs(file, lenient=lenient, declared=declared)]


def counts(found: Iterable[Pair], *, ours: bool) -> tuple[int, int, int]:
    """The numbers of pairs, of wrong accepts and of wrong rejects."""
    said = [(pair.accepted if ours else pair.theirs, pair.label) for pair in found]
    return len(said), said.count((True, False)), said.count((False, True))


def _table(strict: list[Pair], lenient: list[Pair]) -> Iterator[str]:
    yield "| pairs | settings | verifier | right | wrong accepts | wrong rejects |"
    yield "|---|---|---|---|---|---|"
    declared = _judged(lenient=False, declared=True)
    declared_lenient = _judged(lenient=True, declared=True)
    kept = [pair for pair in declared if not pair.rule]
    for file, title in FILES.items():
        for settings, verifier, found in (
            ("defaults", "`math`", strict),
            ("defaults", "`math_lenient`", lenient),
            ("defaults", "math-verify 0.9.0", strict),
            ("the row's options", "`math`", declared),
            ("the row's options", "`math_lenient`", declared_lenient),
            ("the row's options", "math-verify 0.9.0", declared),
            ("the row's options, labels that follow the rules", "`math`", kept),
            ("the row's options, labels that follow the rules", "math-verify 0.9.0", kept),
        ):
            own = [pair for pair in found if pair.file == file]
            count, accepts, rejects = counts(own, ours=verifier.startswith("`"))
            right = f"{count - accepts - rejects} of {count}"
            yield f"| {title} | {settings} | {verifier} | {right} | {accepts} | {rejects} |"


def _departures(wrong: list[Pair], lenient: list[Pair]) -> Iterator[str]:
    """The table of pairs for which `math` departs from the label."""
    yield "| gold | completion | label | `math` | `math_lenient` | math-verify | reason: option | contradicted rule |"
    yield "|---|---|---|---|---|---|---|---|"
    accepted = {(pair.file, pair.row): pair.accepted for pair in lenient}
    for pair in wrong:
        cells = [_code(pair.gold), _code(pair.given), _word(pair.label), _said(pair)]
        cells += [_word(accepted[pair.file, pair.row]), _word(pair.theirs), REASONS[pair.file, pair.row]]
        yield f"| {' | '.join(cells)} | {pair.rule or '–'} |"


def _remaining(wrong: list[Pair]) -> Iterator[str]:
    """The table of pairs for which `math_lenient` departs from the label."""
    yield "| gold | completion | label | `math_lenient` | math-verify | reason |"
    yield "|---|---|---|---|---|---|"
    for pair in wrong:
        cells = [_code(pair.gold), _code(pair.given), _word(pair.label), _said(pair), _word(pair.theirs)]
        yield f"| {' | '.join(cells)} | {LENIENT_REASONS[pair.file, pair.row]} |"


def _said(pair: Pair) -> str:
    if pair.ours is None:
        return "refuses the gold"
    return f"{_word(pair.accepted)}: {pair.ours.reason}"


def _word(accepted: bool) -> str:
    return "yes" if accepted else "no"


def _code(text: str) -> str:
    """A text as a table cell, shortened to its end."""
    text = " ".join(text.split())
    text = text if len(text) <= 60 else "…" + text[-59:]
    return "`" + text.replace("|", "\\|").replace("`", "'") + "`"


if __name__ == "__main__":
    main()
