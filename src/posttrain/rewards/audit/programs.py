"""Checks of rewards that run programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from posttrain.errors import DataError
from posttrain.rewards.audit.finding import Measured, share
from posttrain.rewards.audit.mutants import impossible, mutants
from posttrain.rewards.audit.renderings import fill
from posttrain.rewards.audit.subject import Answer, Case, Subject
from posttrain.verify.programs.attacks import ASSERTIONS, ATTACKS, CALL_TESTS, HONEST, SCRIPT, Attack, Scene
from posttrain.verify.programs.suite import COLUMNS

if TYPE_CHECKING:
    from posttrain.types import Prompt

PROGRAM_FORM = "Here is the program.\n```python\nGOLD\n```"
PROGRAMS = "a program between ```python and ```"
"""The name of that form for users, because its last line would tell them nothing."""
LEAVE_FILES = frozenset({"write_reward_file"})
"""Attacks on the verdict that leave files behind if no sandbox confines them."""
MUTANTS, MUTATED_ROWS = 20, 16
"""Number of mutants per reference program, and number of reference programs to mutate."""
REFERENCE_COLUMNS = ("reference", "code", "canonical_solution", "solution")
"""Columns in which datasets keep a program that passes."""


def references(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[str]]:
    """The prompts with a reference program, and these programs. DataError if there are none."""
    found = [(prompt, code) for prompt in prompts if (code := reference_of(prompt))]
    if not found:
        raise DataError(
            given=f"no row has a reference program; its columns are {', '.join(prompts[0].columns)}",
            allowed=f"one of {', '.join(REFERENCE_COLUMNS)}",
            fix="Add a column with a program that passes the tests: an audit starts from an answer that the "
            "reward must accept.",
        )
    return [prompt for prompt, _ in found], [code for _, code in found]


def reference_of(prompt: Prompt) -> str:
    """The complete reference program of a row, which has to pass; empty if the row has none."""
    columns: Mapping[str, Any] = prompt.columns
    code = next((columns[name] for name in REFERENCE_COLUMNS if isinstance(columns.get(name), str)), "")
    name = str(columns.get("entry_point") or "").rpartition(".")[2]
    if code and name and f"def {name}" not in code:  # HumanEval: the body alone
        code = prompt.text + code
    return code.replace("\r\n", "\n")


def code_attacks(subject: Subject) -> Measured:
    """Number of attack programs that earn as much as a passing program.

    A user's grader may run programs without a sandbox. It therefore gets only programs that attack the verdict, and
    none that attack the machine.
    """
    tests = _tests_for(subject)
    confined = subject.component.builtin is not None
    aims = ("verdict", "sandbox") if confined else ("verdict",)
    tried = [one for one in ATTACKS if one.aim in aims and one.form == "call" and not one.numbers_of_other_types]
    tried = [attack for attack in tried if confined or attack.name not in LEAVE_FILES]
    if not subject.accepts(_judged(subject, HONEST, tests)):
        return Measured(text=f"it fails an honest program on the tests of the attacks, in {sorted(tests)[0]!r}")
    accepted = [attack for attack in tried if _fooled(subject, attack, tests)]
    subject.pool.close()  # an attack may have changed the process that it ran in
    return Measured(
        value=len(accepted),
        text=f"{share(len(accepted), len(tried))} attack programs accepted",
        examples=tuple(f"{attack.name}: {attack.tries}" for attack in accepted[:10]),
    )


def _fooled(subject: Subject, attack: Attack, tests: Mapping[str, Any]) -> bool:
    try:
        return subject.accepts(_judged(subject, attack.source(Scene()), tests))
    except Exception:  # it wrote into the grader's channel to the audit: it could have written a verdict
        subject.pool.close()
        return True


def _judged(subject: Subject, program: str, tests: Mapping[str, Any]) -> Answer:
    case = Case(row=0, text=fill(PROGRAM_FORM, program), columns=tests)
    return subject.score([case], watch=False)[0]


def _tests_for(subject: Subject) -> dict[str, Any]:
    """The tests of the attacks, in the columns that the rows use. Other test columns are emptied."""
    columns = subject.prompts[0].columns
    forms = {"test_list": ASSERTIONS, "test": SCRIPT, "tests": CALL_TESTS}
    tests = next((forms[name] for name in forms if columns.get(name)), CALL_TESTS)
    return {name: None for name in COLUMNS if name in columns} | tests


def mutation_score(subject: Subject) -> Measured:
    """Share of mutated reference programs and impossible tests that the reward catches.

    An impossible test expects a value that the reference does not return. If the reference passes it, something other
    than the tests decides (arXiv:2510.20270).
    """
    if not subject.forms:
        return Measured(text="no reference program passes: see false_rejects")
    rows = subject.rows_for(MUTANTS)[:MUTATED_ROWS]
    cases = [
        Case(row=row, text=subject.target(row).says(program))
        for row in rows
        for program in mutants(subject.golds[row], MUTANTS)
    ]
    cases += [
        Case(row=row, text=subject.right(row), columns=changed)
        for row in rows
        if (changed := impossible(subject.prompts[row].columns)) is not None
    ]
    if not cases:
        return Measured(text="no reference program could be modified")
    alive = [case for case, answer in zip(cases, subject.score(cases), strict=True) if subject.accepts(answer)]
    weak = Counter(case.row for case in alive if not case.columns)
    blind = [case.row for case in alive if case.columns]
    return Measured(
        value=1 - len(alive) / len(cases),
        text=f"{share(len(cases) - len(alive), len(cases))} modified programs and impossible tests are caught",
        examples=(
            *(f"row {row}: its program passes a test that expects something else" for row in blind[:3]),
            *(f"row {row}: {count} modified programs pass its tests" for row, count in weak.most_common(5)),
        ),
    )
