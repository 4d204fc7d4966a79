"""`math` beside math-verify on published answer pairs: who accepts what, and why the two differ.

    python benchmarks/answer_pairs.py        the tables of docs/math.md, and the pairs on which somebody errs

The pairs are math-verify's own regression cases (268) and the answers of a model to 100 problems of MATH, labelled by
the graders of Qwen2.5-Math (800). Three counts: with default settings; with the options that a row declares given to
both; and that again without the rows whose label contradicts a rule of docs/math.md, for both. `REASONS` says why
`math` departs from a label, and `CONTRADICTIONS` which of these labels contradict a rule. A departure without a reason
ends the script.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import math_verify

from posttrain.errors import DataError
from posttrain.rewards import Verdict, math

HERE = Path(__file__).parent
DATA = HERE.parent.parent / "shared" / "data" / "math"
PAGE = HERE.parent / "docs" / "math.md"
BEGIN, END = "<!-- answer pairs: begin -->", "<!-- answer pairs: end -->"
FILES = {"answer_pairs_math_verify.jsonl": "math-verify's cases", "answer_pairs_qwen_math100.jsonl": "Qwen's answers"}

COMMA = "a decimal comma is an option: `decimal_comma`"
CHAIN = "a chain of equations whose sides differ gives no answer"
INEXACT = "a decimal is not an exact value, however many digits it has"
REASONS: dict[tuple[str, int], str] = {
    **{("answer_pairs_math_verify.jsonl", row): COMMA for row in (5, 6, 7, 17)},
    **{("answer_pairs_math_verify.jsonl", row): CHAIN for row in (35, 98, 100, 101, 104, 114, 115)},
    **{("answer_pairs_math_verify.jsonl", row): INEXACT for row in (126, 133, 139)},
    ("answer_pairs_math_verify.jsonl", 30): "a computation is left to the reader; `require_evaluated: false` allows it",
    ("answer_pairs_math_verify.jsonl", 123): "a sum of two matrices is left to the reader",
    ("answer_pairs_math_verify.jsonl", 124): "a product of two matrices is left to the reader",
    ("answer_pairs_math_verify.jsonl", 15): "`10 which is 1,000.99` names two numbers",
    ("answer_pairs_math_verify.jsonl", 172): "boxes with 200 and 255 beside a statement of 10,455",
    ("answer_pairs_math_verify.jsonl", 31): "label of a stricter extraction: a formula may span lines",
    ("answer_pairs_math_verify.jsonl", 32): "label of a stricter extraction: a formula may span lines",
    ("answer_pairs_math_verify.jsonl", 103): "an estimate, `x ≈ 11`, is no exact value",
    ("answer_pairs_math_verify.jsonl", 109): "the gold is a chain of equations whose sides differ",
    ("answer_pairs_math_verify.jsonl", 162): "a set without order is no ordered pair",
    (
        "answer_pairs_math_verify.jsonl",
        187,
    ): "the label of an option of math-verify; an interval and its inequality are one",
    ("answer_pairs_math_verify.jsonl", 190): "braces without backslash are no set, and 35 cm is no part of one",
    ("answer_pairs_math_verify.jsonl", 196): "the range of an absolute value is not that of z",
    ("answer_pairs_math_verify.jsonl", 217): "the gold is cut off within its box: an error of the data",
    ("answer_pairs_math_verify.jsonl", 253): "f(x) and f(y) are different symbols",
    ("answer_pairs_math_verify.jsonl", 263): "1 + 1/e is not 1 - 1/e: the label is wrong",
    ("answer_pairs_qwen_math100.jsonl", 583): "`10{,}000` is 10000: the label is of a comparison of characters",
}


_CASES = "answer_pairs_math_verify.jsonl"
RULES = {
    "one answer": (15, 35, 98, 100, 101, 104, 109, 114, 115, 172),
    "exact golds take no decimals": (126, 133, 139),
    "an estimate is no exact value": (103,),
    "an answer is evaluated": (123, 124),
    "a set is no tuple": (162,),
    "symbols are told apart": (253,),
    "an interval is its inequality": (187,),
    "a formula may span lines": (31, 32),
    "thousands may be grouped": (583,),
    "a gold is one readable answer": (190, 217),
    "the label is wrong": (196, 263),
}
"""Which labels contradict which rule: these rows are set aside for both in the third count."""
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
"""Options of `math` for the groups of math-verify's cases that are about a reading which is off by default."""


@dataclass(frozen=True)
class Pair:
    """One labelled pair and what two verifiers say."""

    file: str
    row: int
    gold: str
    given: str
    label: bool
    ours: Verdict | None
    """None: the gold is refused."""
    theirs: bool
    rule: str = ""
    """The rule that the label contradicts."""

    @property
    def accepted(self) -> bool:
        return self.ours is not None and self.ours == 1.0


def pairs(file: str, *, declared: bool = False) -> Iterator[Pair]:
    """The pairs of a file, judged; `declared`: with the options of each row."""
    for row, line in enumerate((DATA / file).read_text(encoding="utf-8").splitlines()):
        case = json.loads(line)
        bare = "group" not in case  # Qwen's answers come without their sentences
        given = f"\\boxed{{{case['pred']}}}" if bare else case["pred"]
        gold = f"${case['gold']}$" if bare else case["gold"]
        try:
            ours = math(given, case["gold"], **(OPTIONS.get(case.get("group", ""), {}) if declared else {}))
        except DataError:
            ours = None
        theirs = _math_verify(gold, given, case if declared else {})
        rule = CONTRADICTIONS.get((file, row), "")
        yield Pair(file, row, case["gold"], given, case["equivalent"], ours, theirs, rule)


_EXTRACTION = {"latex": math_verify.LatexExtractionConfig, "expr": math_verify.ExprExtractionConfig}


def _math_verify(gold: str, given: str, case: dict[str, Any]) -> bool:
    """With the settings of its own test, as far as the case declares them."""
    kinds = [_EXTRACTION[kind]() for kind in case.get("extract", ("latex", "expr"))]
    settings = {name: case[key] for key, name in _SETTINGS.items() if key in case}
    try:
        return math_verify.verify(math_verify.parse(gold, kinds), math_verify.parse(given, kinds), **settings)
    except Exception:  # it gives up on some golds in its own way
        return False


_SETTINGS = {
    "strict": "strict",
    "precision": "float_rounding",
    "allow_set_relation_comp": "allow_set_relation_comp",
}


def main() -> None:
    logging.disable(logging.CRITICAL)
    judged = {file: list(pairs(file)) for file in FILES}
    declared = {file: list(pairs(file, declared=True)) for file in FILES}
    wrong = [pair for found in judged.values() for pair in found if pair.accepted != pair.label]
    unexplained = [(pair.file, pair.row) for pair in wrong if (pair.file, pair.row) not in REASONS]
    if unexplained:
        sys.exit(f"no reason is given for {unexplained}")
    page = PAGE.read_text(encoding="utf-8")
    text = "\n".join([BEGIN, "", *_table(judged, declared), "", *_departures(wrong), "", END])
    page = re.sub(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: text, page, flags=re.DOTALL)
    PAGE.write_text(page, encoding="utf-8")
    print(text)


def counts(found: Iterable[Pair], *, ours: bool) -> tuple[int, int, int]:
    """How many pairs there are, wrong accepts, wrong rejects."""
    said = [(pair.accepted if ours else pair.theirs, pair.label) for pair in found]
    return len(said), said.count((True, False)), said.count((False, True))


def _table(judged: dict[str, list[Pair]], declared: dict[str, list[Pair]]) -> Iterator[str]:
    yield "| pairs | settings | verifier | right | wrong accepts | wrong rejects |"
    yield "|---|---|---|---|---|---|"
    for file, title in FILES.items():
        kept = [pair for pair in declared[file] if not pair.rule]
        for settings, found in (
            ("defaults", judged[file]),
            ("the row's options", declared[file]),
            ("the row's options, labels that follow the rules", kept),
        ):
            for name in ("math", "math-verify 0.9.0"):
                count, accepts, rejects = counts(found, ours=name == "math")
                right = f"{count - accepts - rejects} of {count}"
                yield f"| {title} | {settings} | {name} | {right} | {accepts} | {rejects} |"


def _departures(wrong: list[Pair]) -> Iterator[str]:
    yield "| gold | completion | label | `math` | math-verify | why | rule that the label contradicts |"
    yield "|---|---|---|---|---|---|---|"
    for pair in wrong:
        said = "refuses the gold" if pair.ours is None else f"{'yes' if pair.accepted else 'no'}: {pair.ours.reason}"
        cells = [_code(pair.gold), _code(pair.given), _word(pair.label), said, _word(pair.theirs)]
        yield f"| {' | '.join([*cells, REASONS[pair.file, pair.row], pair.rule or '–'])} |"


def _word(accepted: bool) -> str:
    return "yes" if accepted else "no"


def _code(text: str) -> str:
    """The end of a text as a cell of a table."""
    text = " ".join(text.split())
    text = text if len(text) <= 60 else "…" + text[-59:]
    return "`" + text.replace("|", "\\|").replace("`", "'") + "`"


if __name__ == "__main__":
    main()
