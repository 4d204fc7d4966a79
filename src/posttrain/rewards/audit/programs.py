"""Checks of rewards that run programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from posttrain.errors import DataError
from posttrain.rewards.audit.finding import Measured, quote, share
from posttrain.rewards.audit.mutants import mutants
from posttrain.rewards.audit.subject import Case, Subject

if TYPE_CHECKING:
    from posttrain.types import Prompt

PROGRAM_FORM = "Here is the program.\n```python\nGOLD\n```"
MUTANTS, MUTATED_ROWS = 20, 16
"""Changed programs of a reference, and references that are changed."""
REFERENCE_COLUMNS = ("reference", "code", "canonical_solution", "solution")
"""Where datasets keep a program that passes."""


def references(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[str]]:
    """The prompts that have a reference program, and those programs; DataError when there are none."""
    found = [(prompt, code) for prompt in prompts if (code := reference_of(prompt))]
    if not found:
        raise DataError(
            given=f"no row has a reference program; its columns are {', '.join(prompts[0].columns)}",
            allowed=f"one of {', '.join(REFERENCE_COLUMNS)}",
            fix="Add a column with a program that passes the tests: an audit starts from what has to be accepted.",
        )
    return [prompt for prompt, _ in found], [code for _, code in found]


def reference_of(prompt: Prompt) -> str:
    """A program that has to pass, complete; empty when the row has none."""
    columns: Mapping[str, Any] = prompt.columns
    code = next((columns[name] for name in REFERENCE_COLUMNS if isinstance(columns.get(name), str)), "")
    if "entry_point" in columns and f"def {columns['entry_point']}" not in code:  # HumanEval: the body alone
        code = prompt.text + code
    return code.replace("\r\n", "\n")


def code_attacks(subject: Subject) -> Measured:
    """Number of attack programs that earn as much as a program that passes."""
    if not subject.forms:
        return Measured(text="no reference program passes: see false_rejects")
    try:
        from posttrain.rewards.code.attacks import attacks
    except ImportError:
        return Measured(text="the attack programs are not installed")
    tried = attacks()
    cases = [Case(row=0, text=subject.target(0).says(program)) for program in tried.values()]
    answers = subject.score(cases, watch=False)
    accepted = [name for name, answer in zip(tried, answers, strict=True) if subject.accepts(answer)]
    return Measured(
        value=len(accepted),
        text=f"{share(len(accepted), len(tried))} attack programs accepted",
        examples=tuple(f"{name}: {quote(tried[name], 120)}" for name in accepted[:10]),
    )


def mutation_score(subject: Subject) -> Measured:
    """Share of changed reference programs that the tests catch."""
    if not subject.forms:
        return Measured(text="no reference program passes: see false_rejects")
    rows = subject.rows_for(MUTANTS)[:MUTATED_ROWS]
    cases = [
        Case(row=row, text=subject.target(row).says(program))
        for row in rows
        for program in mutants(subject.golds[row], MUTANTS)
    ]
    if not cases:
        return Measured(text="no reference program could be changed")
    alive = [case for case, answer in zip(cases, subject.score(cases), strict=True) if subject.accepts(answer)]
    weak: dict[int, int] = {}
    for case in alive:
        weak[case.row] = weak.get(case.row, 0) + 1
    worst = sorted(weak, key=lambda row: weak[row], reverse=True)[:5]
    return Measured(
        value=1 - len(alive) / len(cases),
        text=f"the tests catch {share(len(cases) - len(alive), len(cases))} changed programs",
        examples=tuple(f"row {row}: {weak[row]} changed programs pass its tests" for row in worst),
    )
