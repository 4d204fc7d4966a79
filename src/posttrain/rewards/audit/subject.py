"""The reward under audit: the calls to it, its answers, and its inferred kind.

Every call is made as in a run: built-ins decide simple cases in this process, and all other calls run in the killable
worker processes of `WorkerPool`, each with its deadline.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from posttrain.rewards.audit.cheats import Target
from posttrain.rewards.audit.renderings import FORMS, WORK, differ, fill, sort_of
from posttrain.rewards.call_batch import token_problem
from posttrain.rewards.calls import Outcome
from posttrain.rewards.components import Component, Row
from posttrain.rewards.missing import columns_known
from posttrain.rewards.pool import Job, WorkerPool

if TYPE_CHECKING:  # the records import torch, which a process that watches a reward does not need
    from posttrain.types import Completion, Prompt

Kind = Literal["exact", "literal", "judge", "code", "format", "length"]
"""The purpose of a reward.

    exact     the right answer, in any spelling of its value
    literal   the right answer, character by character
    judge     answers that a model finds good: it is sometimes wrong and sometimes inconsistent
    code      programs that pass tests
    format    the form of an answer, whatever its content
    length    the length of an answer
"""
KINDS: tuple[str, ...] = get_args(Kind)
BATCH = 32
"""Number of completions in one call of a list function."""
MOST_TOKENS = 20_000
"""Maximum tokens of a made-up completion."""
READ_BY = 0.9
"""A reward counts as reading a form if it accepts at least this share of the plain gold answers in it."""
SECONDS_PER_CHECK = 10.0
"""Target duration of one check, in seconds. A slow reward gets fewer rows to reach it."""
LEAST_ROWS, MOST_ROWS = 8, 64
"""Minimum and maximum number of rows for which a check makes up completions."""


LONGEST_CALL = 1 / 12
"""Maximum share of the audit's time for one call: a slower reward cannot be audited in that time."""


class OutOfTime(Exception):
    """The audit has used up its time."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One completion to score, and the row that it answers."""

    row: int
    text: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Columns that replace columns of the row."""
    without: tuple[str, ...] = ()
    """Columns to leave out."""
    truncated: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The reward's answer to a case."""

    value: float | None
    """The score; None if there is no usable score."""
    problem: str = ""
    """The reason why there is no score; empty if the reward returned None on purpose."""
    kind: str = "value"
    """The kind of the outcome: value, invalid, exception, timeout, crash."""
    seconds: float = 0.0


@dataclass(kw_only=True)
class Subject:
    """A reward with its rows. `calibrate` has to run before the checks."""

    component: Component
    pool: WorkerPool
    prompts: Sequence[Prompt]
    golds: Sequence[str]
    """The final answer of each row, or the program that has to pass."""
    kind: Kind = "exact"
    stochastic: bool = False
    """True if the reward is declared to give different scores for the same completion."""
    form: str | None = None
    """The only form in which answers are stated, as a template around GOLD. None: the audit tries FORMS."""
    completions: Sequence[Sequence[str]] | None = None
    """Groups of completions of a model, one group per row."""
    completions_per_step: int = 256
    step_seconds: float = 60.0
    """Duration of a training step in seconds, to compare with the scoring time."""
    seconds: float = math.inf
    """Maximum duration of the audit, in seconds."""
    start: float = field(default_factory=time.perf_counter)

    forms: tuple[str, ...] = ()
    scale: float = 1.0
    """The difference between the score of a right answer and the score of a wrong one."""
    accept: float = math.inf
    """Score from which a completion counts as accepted: halfway between the usual wrong and the usual right answer."""
    seconds_per_call: float = 0.0
    seen: list[Answer] = field(default_factory=list)
    """All answers to completions that a model could have given."""

    @property
    def seconds_left(self) -> float:
        return self.start + self.seconds - time.perf_counter()

    def require_time(self) -> None:
        """Raise OutOfTime if no time is left."""
        if self.seconds_left <= 0:
            raise OutOfTime(f"out of time: the audit may take {self.seconds:g} s")

    def rows_for(self, cases_per_row: int) -> range:
        """The rows that a check can use in the time that it has."""
        afford = min(SECONDS_PER_CHECK, self.seconds / 16) / max(self.seconds_per_call * cases_per_row, 1e-9)
        return range(min(len(self.prompts), max(LEAST_ROWS, min(MOST_ROWS, int(afford)))))

    def target(self, row: int, form: str | None = None) -> Target:
        """The facts about a row that a cheat needs."""
        own, golds = self.golds[row], [*self.golds[row + 1 :], *self.golds[:row]]
        others = [other for other in dict.fromkeys((*golds, "1234567", "89", "-55")) if differ(other, own)]
        others.sort(key=lambda other: sort_of(other) != sort_of(own))  # "Evelyn = 9" is no contradiction, "8 = 9" is
        prompt = self.prompts[row].text
        return Target(prompt=prompt, gold=own, form=form or self.forms[0], others=tuple(others))

    def right(self, row: int, form: str | None = None) -> str:
        """The completion that states the gold answer of a row, or the reference program."""
        return fill(form or self.forms[0], self.golds[row])

    def wrong(self, row: int, form: str | None = None) -> str:
        """A completion that states the answer of another row."""
        target = self.target(row, form)
        return target.says(target.others[0])

    def accepts(self, answer: Answer) -> bool:
        return answer.value is not None and answer.value >= self.accept

    def score(self, cases: Sequence[Case], *, timeout: float | None = None, watch: bool = True) -> list[Answer]:
        """One answer per case. `watch`: a model could have given these completions, so failures on them count."""
        answers = self._batches(cases, timeout) if self.component.signature.batch else self._each(cases, timeout)
        if watch:
            self.seen += answers
        return answers

    def batch(self, cases: Sequence[Case]) -> Outcome:
        """The outcome of one call of a list function."""
        return self._run(self.calls(cases))[0]

    def calibrate(self) -> None:
        """Find the forms that the reward reads, the score from which it accepts, and the duration of a call."""
        rows = range(min(len(self.prompts), 24))
        if self.kind in ("format", "length"):
            self._timed([Case(row=row, text=f"{WORK}{row}") for row in rows])
            return
        candidates = [self.form] if self.form else ["bare"] if self.kind == "literal" else list(FORMS)
        for _ in range(2):  # in the first call the reward loads its files and modules
            self._timed([Case(row=0, text=self.right(0, candidates[0]))], watch=False)
        rows = self.rows_for(2 * len(candidates))[: len(rows)]
        scores: dict[str, tuple[list[float | None], list[float | None]]] = {}
        for form in candidates:
            cases = [Case(row=row, text=make(row, form)) for make in (self.right, self.wrong) for row in rows]
            values = [answer.value for answer in self._timed(cases)]
            scores[form] = values[: len(rows)], values[len(rows) :]
        full = max((_median(right) for right, _ in scores.values()), default=0.0)
        floor = min((_median(wrong) for _, wrong in scores.values()), default=0.0)
        self.accept = (full + floor) / 2 if full > floor else (full if full > 0 else math.inf)
        self.scale = full - floor if full > floor else 1.0
        self.forms = tuple(
            form
            for form, (right, _) in scores.items()
            if sum(value is not None and value >= self.accept for value in right) >= READ_BY * len(rows)
        )

    def _timed(self, cases: Sequence[Case], *, watch: bool = True) -> list[Answer]:
        """Score, and note the seconds per completion: as the workers report them or, without workers, by the clock."""
        start = time.perf_counter()
        answers = self.score(cases, watch=watch)
        elapsed = time.perf_counter() - start
        if self.component.target is not None:
            elapsed = sum(answer.seconds for answer in answers) / self.pool.size
        self.seconds_per_call = elapsed / len(cases)
        return answers

    def _each(self, cases: Sequence[Case], timeout: float | None) -> list[Answer]:
        outcomes = self._run(self.calls(cases), timeout)
        return [self.answer(outcome, case) for outcome, case in zip(outcomes, cases, strict=True)]

    def _batches(self, cases: Sequence[Case], timeout: float | None) -> list[Answer]:
        """Score in batches. If a batch fails, its completions are tried one by one, to find the cause."""
        portions = [cases[i : i + BATCH] for i in range(0, len(cases), BATCH)]
        outcomes = self._run([call for portion in portions for call in self.calls(portion)], timeout)
        answers: list[Answer] = []
        for portion, outcome in zip(portions, outcomes, strict=True):
            if len(portion) > 1 and not _fits(outcome, len(portion)):
                answers += [one for case in portion for one in self._batches([case], timeout)]
            else:
                answers += self._answers(outcome, portion)
        return answers

    def answer(self, outcome: Outcome, case: Case) -> Answer:
        """The answer to a case: of a reward that gives each token a number, the sum, which a run shows too."""
        gives_tokens = self.component.signature.per_token and self.component.builtin is None
        return _answer(_summed(outcome, completion(case.text)) if gives_tokens else outcome)

    def _answers(self, outcome: Outcome, cases: Sequence[Case]) -> list[Answer]:
        """The answers of one call for all of these cases."""
        size = len(cases)
        if outcome.kind != "value":
            return [_answer(outcome)] * size
        values = outcome.value if isinstance(outcome.value, list) else [outcome.value]
        if len(values) != size or not isinstance(outcome.value, list):
            got = f"{len(values)} values" if isinstance(outcome.value, list) else "one number"
            return [Answer(value=None, problem=f"{got} for {size} completions", kind="invalid")] * size
        verdicts = outcome.verdict or [None] * size
        return [
            self.answer(Outcome(kind="value", value=value, verdict=verdict, seconds=outcome.seconds / size), case)
            for value, verdict, case in zip(values, verdicts, cases, strict=True)
        ]

    def calls(self, cases: Sequence[Case]) -> Sequence[Mapping[str, Any]]:
        """The keyword arguments of the calls, as a run makes them."""
        rows = [self._row(case) for case in cases]
        names = columns_known(row.prompt for row in rows)
        columns = {name: [row.prompt.columns.get(name) for row in rows] for name in names}
        is_open = [True] * len(rows) if self.component.receives_gate else ()
        calls = self.component.calls(rows, columns, is_open)
        if self.component.signature.batch:
            return calls
        return [
            {name: value for name, value in call.items() if name not in case.without}
            for call, case in zip(calls, cases, strict=True)
        ]

    def _row(self, case: Case) -> Row:
        prompt = self.prompts[case.row]
        if case.columns:
            prompt = replace(prompt, columns={**prompt.columns, **case.columns})
        return Row(prompt, completion(case.text, truncated=case.truncated), 0, 1)

    def _run(self, calls: Sequence[Mapping[str, Any]], timeout: float | None = None) -> list[Outcome]:
        """The outcomes of the calls. OutOfTime if the audit's time passes before they have arrived."""
        decided = [None if self._is_model else self.component.decide(call) for call in calls]
        rest = [call for call, outcome in zip(calls, decided, strict=True) if outcome is None]
        asked: list[Outcome] = []
        while len(asked) < len(rest):
            self.require_time()
            limit = min(timeout or self.component.timeout, LONGEST_CALL * self.seconds)
            asked += self._ask(rest[len(asked) :][: self._portion(limit)], min(limit, self.seconds_left))
            self.require_time()
        replies = iter(asked)
        return [next(replies) if outcome is None else outcome for outcome in decided]

    @property
    def _is_model(self) -> bool:
        return self.component.judge is not None or self.component.model is not None

    def _portion(self, timeout: float) -> int:
        """Number of calls that end in the remaining time even if each one takes its whole timeout."""
        if math.isinf(self.seconds):
            return sys.maxsize
        return BATCH if self._is_model else max(1, int(self.seconds_left / timeout)) * self.pool.size

    def _ask(self, calls: Sequence[Mapping[str, Any]], timeout: float) -> list[Outcome]:
        component = replace(self.component, timeout=timeout)
        if component.judge is not None:
            return component.judge(calls).outcomes
        if component.model is not None:
            return component.model(calls)
        if component.runner is not None:
            return component.runner.run(calls, component.settings, component.timeout)
        job: Job = component.job(calls)
        return self.pool.run([job])[0]


def sample(subject: Subject, per_row: int) -> list[Case]:
    """Ordinary completions for several rows: right, wrong and empty ones, and the prompt itself."""
    rows = subject.rows_for(4 * per_row)[:16]
    cases = []
    for row in rows:
        texts = [subject.right(row), subject.wrong(row)] if subject.forms else [f"{WORK}{row}", "# Title\n- a\n- b"]
        cases += [Case(row=row, text=text) for text in (*texts, "", subject.prompts[row].text)]
    return cases


def completion(text: str, *, truncated: bool = False) -> Completion:
    """A made-up completion. Its token ids are the bytes of the text; of a long text only some, because no model writes
    that many tokens."""
    from posttrain.types import Completion

    content = text.encode(errors="surrogatepass")
    ids = tuple(content[:: 1 + len(content) // MOST_TOKENS])
    reason = "length" if truncated else "eos"
    return Completion(ids=ids, logprobs=(0.0,) * len(ids), versions=(0,) * len(ids), finish_reason=reason, text=text)


def _summed(outcome: Outcome, answered: Completion) -> Outcome:
    """The outcome with the sum of the tokens' numbers as its value; invalid unless each token has a number."""
    value = outcome.value
    if outcome.kind != "value" or value is None:
        return outcome
    problem = token_problem(value, answered.drawn) if isinstance(value, list) else f"{value}"
    if problem:
        problem = f"{problem} instead of one finite number per token of completion_ids"
        return Outcome(kind="invalid", message=problem, seconds=outcome.seconds)
    return replace(outcome, value=math.fsum(value))


def _answer(outcome: Outcome) -> Answer:
    if outcome.kind != "value":
        return Answer(value=None, problem=outcome.message, kind=outcome.kind, seconds=outcome.seconds)
    value, verdict = outcome.value, outcome.verdict
    if isinstance(value, list):
        return Answer(value=None, problem=f"a list of {len(value)}", kind="invalid", seconds=outcome.seconds)
    if value is None and verdict is not None and verdict["reason"] in ("timeout", "error"):
        kind = "timeout" if verdict["reason"] == "timeout" else "exception"
        return Answer(value=None, problem=verdict["detail"] or kind, kind=kind, seconds=outcome.seconds)
    if value is not None and not math.isfinite(value):
        return Answer(value=None, problem=f"the value {value}", kind="invalid", seconds=outcome.seconds)
    return Answer(value=value, seconds=outcome.seconds)


def _fits(outcome: Outcome, size: int) -> bool:
    return outcome.kind == "value" and isinstance(outcome.value, list) and len(outcome.value) == size


def _median(values: Sequence[float | None]) -> float:
    """The median of the scores that exist; 0 if there is none."""
    scores = [value for value in values if value is not None]
    return statistics.median(scores) if scores else 0.0
