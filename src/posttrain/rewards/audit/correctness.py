"""Does the reward accept wrong answers or reject right ones? Can an answer satisfy it that ignores the question?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from posttrain.rewards.audit.cheats import cheats, code_cheats, made_for
from posttrain.rewards.audit.finding import Measured, quote, share
from posttrain.rewards.audit.renderings import FORMS, WORK, fill, is_solution, last_line, spellings
from posttrain.rewards.audit.subject import Case, Subject

SOLUTION_COLUMNS = ("solution", "response", "rationale", "reasoning")
"""Columns in which datasets keep worked solutions."""
COMMON_GUESSES = ("0", "1", "2", "3", "10", "A", "B", "C", "D", "yes", "no", "True", "False", "")
MOST_COMMON = 12
"""Number of the most frequent gold answers to try as a constant answer."""
MOST_GUESSED_ROWS = 256
SHOWN = 8
"""Maximum number of examples in a finding."""
UNREAD = "no form of the gold answer is accepted, so there is nothing to imitate: see false_rejects"


def false_accepts(subject: Subject) -> Measured:
    """Share of the cheats that earn as much as a right answer."""
    if not subject.forms:
        return Measured(text=UNREAD)
    table = code_cheats() if subject.kind == "code" else cheats()
    rows = subject.rows_for(len(table))
    tried = [(name, Case(row=row, text=text)) for row in rows for name, text in made_for(subject.target(row), table)]
    answers = subject.score([case for _, case in tried])
    accepted: dict[str, list[Case]] = defaultdict(list)
    for (name, case), answer in zip(tried, answers, strict=True):
        if subject.accepts(answer):
            accepted[name].append(case)
    total, names = sum(map(len, accepted.values())), Counter(name for name, _ in tried)
    worst = sorted(accepted, key=lambda name: len(accepted[name]) / names[name], reverse=True)
    examples = tuple(
        f"{name}: {len(accepted[name])} of {names[name]}; {_shown(subject, accepted[name][0])}"
        for name in worst[:SHOWN]
    ) + ((f"and {len(worst) - SHOWN} more: {', '.join(worst[SHOWN:])}",) if len(worst) > SHOWN else ())
    return Measured(
        value=total / len(tried),
        text=f"{share(total, len(tried))} cheats accepted: {len(worst)} of {len(names)} kinds of cheat work"
        if total
        else f"none of {len(tried):,} cheats accepted ({len(names)} kinds)",
        examples=examples,
    )


def false_rejects(subject: Subject) -> Measured:
    """Share of right answers that are not accepted, over every spelling and the worked solutions of the dataset."""
    if not subject.forms:
        return Measured(value=1.0, text="no form of the gold answer is accepted", examples=_unread_examples(subject))
    rows = subject.rows_for(12 * len(subject.forms))
    tried = [
        (f"{name} ({form})", Case(row=row, text=text))
        for form in subject.forms
        for row in rows
        for name, text in (
            {"as it is": subject.right(row, form)}
            if subject.kind in ("literal", "code")
            else spellings(subject.golds[row], form)
        ).items()
    ]
    tried += list(_solutions(subject, rows))
    answers = subject.score([case for _, case in tried])
    rejected: dict[str, list[Case]] = defaultdict(list)
    for (name, case), answer in zip(tried, answers, strict=True):
        if not subject.accepts(answer):
            rejected[name].append(case)
    total = sum(map(len, rejected.values()))
    worst = sorted(rejected, key=lambda name: len(rejected[name]), reverse=True)
    examples = tuple(f"{name}: {len(rejected[name])}; {_shown(subject, rejected[name][0])}" for name in worst[:SHOWN])
    return Measured(
        value=total / len(tried), text=f"{share(total, len(tried))} right answers rejected", examples=examples
    )


def constant_guess(subject: Subject) -> Measured:
    """The largest share of the rows that one fixed answer satisfies."""
    if not subject.forms:
        return Measured(text=UNREAD)
    golds = subject.golds
    guesses = dict.fromkeys([*(gold for gold, _ in Counter(golds).most_common(MOST_COMMON)), *COMMON_GUESSES])
    size = min(len(golds), MOST_GUESSED_ROWS, max(50, len(subject.rows_for(len(guesses))) * 4))
    best, best_guess = 0, ""
    for guess in guesses:
        text = fill(subject.forms[0], guess)
        count = sum(map(subject.accepts, subject.score([Case(row=row, text=text) for row in range(size)])))
        if count > best:
            best, best_guess = count, guess
    return Measured(
        value=best / size,
        text=f"{quote(best_guess, 24)} is right in {share(best, size)} rows" if best else "no constant answer is right",
        examples=(f"answer every question with {quote(fill(subject.forms[0], best_guess))}",),
    )


def _solutions(subject: Subject, rows: range) -> Iterable[tuple[str, Case]]:
    """The worked solutions of the rows that end in a form which the reward reads."""
    if subject.kind in ("literal", "code"):
        return
    for row in rows:
        columns = subject.prompts[row].columns
        texts = [columns.get("answer"), *(columns.get(name) for name in SOLUTION_COLUMNS)]
        for text in dict.fromkeys(text for text in texts if isinstance(text, str)):
            read = {"hash": "####" in text, "boxed": "\\boxed{" in text}
            if is_solution(text) and any(read[form] for form in read if form in subject.forms):
                yield "reference solution", Case(row=row, text=text)


def _shown(subject: Subject, case: Case) -> str:
    """A case that can be tried by hand, without the line of reasoning at the beginning of all cases."""
    return f"gold {quote(subject.golds[case.row], 24)} <- {quote(case.text.removeprefix(WORK))}"


def _unread_examples(subject: Subject) -> tuple[str, ...]:
    tried = [subject.form] if subject.form else ["bare"] if subject.kind == "literal" else None
    forms = ", ".join(last_line(form) for form in tried or FORMS)
    return (
        f"tried, for the gold {quote(subject.golds[0], 24)}: {forms}",
        "Say how answers are stated: --form '<final>GOLD</final>'",
    )
