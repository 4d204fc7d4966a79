"""`audit` runs every check of the table on one reward with rows of a dataset."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.errors import ConfigError, DataError, RewardError
from posttrain.rewards.audit.checks import CHECKS
from posttrain.rewards.audit.finding import AuditReport
from posttrain.rewards.audit.games import solved
from posttrain.rewards.audit.programs import PROGRAM_FORM, PROGRAMS, references
from posttrain.rewards.audit.renderings import last_line
from posttrain.rewards.audit.samples import sampled
from posttrain.rewards.audit.subject import KINDS, Case, Kind, OutOfTime, Subject
from posttrain.rewards.components import Component, RewardLike
from posttrain.rewards.load import suggestion
from posttrain.rewards.making import make_component
from posttrain.rewards.missing import columns_known
from posttrain.rewards.pool import WorkerPool
from posttrain.rewards.reward_set import RewardSet, as_reward
from posttrain.rewards.verifiers import BUILTINS
from posttrain.verify.mathematics.places import final_of
from posttrain.verify.programs.suite import holds_tests

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.types import Prompt

LEAST_ROWS = 50
"""Minimum number of rows. With fewer, a share of 2 % cannot be told from none."""
MOST_ROWS = 256
"""Maximum number of rows to read."""
DECLARED: dict[str, Kind] = {
    "exact_match": "literal",
    "fuzzy_match": "literal",
    "regex": "format",
    "countdown": "exact",
    "code": "code",
    **dict.fromkeys(("soft_overlong", "l1_exact", "l1_max", "cosine", "kimi_length", "arora_zanette"), "length"),
}
"""The kinds of built-ins whose columns do not reveal it."""
TEST_COLUMNS = frozenset({"tests", "test", "test_list", "test_cases", "input_output", "verification_info"})
ASKED_ROWS = 24


@dataclass(frozen=True, kw_only=True)
class Options:
    """The input of an audit: facts about the reward, and how to audit it."""

    kind: Kind | None = None
    """The purpose of the reward: exact, literal, judge, code, format or length. None: it is inferred."""
    stochastic: bool = False
    """The reward may score the same completion differently at times. The audit then measures how much instead of
    failing the reward."""
    form: str | None = None
    """How completions state an answer, around the word GOLD: "<final>GOLD</final>". None: try the usual forms."""
    completions: Sequence[Sequence[str]] | None = None
    """Groups of completions of a model, one group for each of the first rows, to measure the share without signal."""
    model: str | None = None
    """Folder or name of a model that generates such completions."""
    completions_per_step: int = 256
    """Number of completions that a training step scores."""
    step_seconds: float = 60.0
    """Duration of a training step, in seconds."""
    only: Sequence[str] = ()
    """Names of the checks to run; empty for all."""
    seconds: float = 120.0
    """Maximum duration of the audit of one reward, in seconds. Checks that do not fit are skipped."""
    progress: Callable[[str], None] = lambda what: None
    """Called with a description of each step when it begins."""

    def __post_init__(self) -> None:
        known = [check.name for check in CHECKS]
        if self.kind is not None and self.kind not in KINDS:
            raise ConfigError(
                given=f"kind = {self.kind!r}{suggestion(self.kind, KINDS)}",
                allowed=", ".join(KINDS),
                fix="Leave it out to have it inferred.",
            )
        for name in self.only:
            if name not in known:
                given = f"there is no check {name!r}{suggestion(name, known)}"
                raise ConfigError(given=given, allowed=", ".join(known))
        if not self.seconds > 0:
            raise ConfigError(given=f"seconds = {self.seconds}", allowed="seconds, more than 0", fix="Leave it out.")
        if self.form is not None and "GOLD" not in self.form:
            raise ConfigError(
                given=f"form = {self.form!r}",
                allowed="a text with the word GOLD in place of the answer",
                fix="Write for example '<final>GOLD</final>'.",
            )


def audit(
    reward: RewardLike | str | Callable[..., Any],
    rows: str | Sequence[Mapping[str, Any]],
    *,
    prompt: str | None = None,
    answer: str | None = None,
    split: str = "train",
    folder: str | Path | None = None,
    **options: Any,
) -> AuditReport:
    """Try to game and break a reward before a model is trained on it.

    `reward` is a built-in's name, `path/to/file.py:function`, a callable or a `Reward`. `rows` are at least 50 rows, or
    a source of them: anything that `data.train` takes, with `prompt`, `answer` and `split` as in `data`. A relative
    path is looked up in the working directory, then in `folder`. `options` are the fields of `Options`.

        audit("my_rewards.py:grade", "gsm8k_train.jsonl").ok
        audit(my_judge, rows, kind="judge", only=["false_accepts", "noise"]).render()

    Raises the `ConfigError` or `DataError` that a run would raise for the reward or the data.
    """
    prompts = read_prompts(rows, prompt=prompt, answer=answer, split=split)
    return audit_prompts(reward, prompts, Options(**options), folder=folder)


def audit_config(config: RunConfig, folder: str | Path, **options: Any) -> list[AuditReport]:
    """Audit every reward of a run on its training rows. `folder` is the folder of the config.

    The reward of an environment is audited together with it: `posttrain.evaluate.environment_trial`.
    """
    from posttrain.config import in_folder
    from posttrain.data.prompts import plain_prompts
    from posttrain.data.split import first_training_rows

    sizes = {"completions_per_step": config.train.prompts_per_step * config.sampling.group_size}
    told = Options(**{**sizes, **options})
    given = [one for one in config.rewards if one.name != "environment"]
    if not given:
        return []
    prompts = plain_prompts(first_training_rows(config.data, config.seed, MOST_ROWS), config.data)
    rewards = [as_reward(reward, training=True) for reward in in_folder(given, Path(folder))]
    return [audit_prompts(reward, prompts, told, folder=folder) for reward in rewards]


def audit_prompts(
    reward: RewardLike | str | Callable[..., Any],
    prompts: Sequence[Prompt],
    options: Options,
    *,
    folder: str | Path | None = None,
) -> AuditReport:
    """Audit one reward on prompts in the form that rewards receive."""
    start = time.perf_counter()
    _enough(prompts)
    with WorkerPool() as pool, ExitStack() as stack:
        component = make_component(as_reward(reward), pool, Path(folder) if folder else None)
        if component.runner is not None:
            stack.callback(component.runner.close)
        component.columns(columns_known(prompts))
        if not component.receives_gate:  # a reward that receives its gate takes no gold answer and needs the gate
            RewardSet([replace(component, weight=1.0, gate=None)], pool).check(prompts, "the rows of the audit")
        kind, why = (options.kind, "declared") if options.kind else _inferred(component, pool, prompts, options)
        golds = [final_of(prompt.columns.get("answer")) for prompt in prompts]
        if kind == "code":
            prompts, golds = references(prompts)
        elif component.builtin is BUILTINS["countdown"]:
            prompts, golds = solved(prompts)
        subject = Subject(
            component=component,
            pool=pool,
            prompts=prompts,
            golds=golds,
            kind=kind,
            stochastic=options.stochastic or component.judge is not None,
            form=PROGRAM_FORM if kind == "code" else options.form,
            completions=options.completions or (sampled(options.model, prompts) if options.model else None),
            completions_per_step=options.completions_per_step,
            step_seconds=options.step_seconds,
            seconds=options.seconds,
            start=start,
        )
        _calibrate(subject, options.progress)
        findings = []
        for check in CHECKS:
            if not options.only or check.name in options.only:
                options.progress(f"{component.label}: {check.name}")
                findings.append(check(subject))
    return AuditReport(
        reward=component.label,
        kind=kind,
        why=why,
        rows=len(prompts),
        reads=(PROGRAMS,) if kind == "code" else tuple(map(last_line, subject.forms)),
        checks=findings,
        seconds=time.perf_counter() - start,
    )


def _calibrate(subject: Subject, progress: Callable[[str], None]) -> None:
    """Calibrate the subject. RewardError if a judge cannot be reached or the reward needs all of the time."""
    label = subject.component.label
    if (judge := subject.component.judge) is not None:
        progress(f"{label}: asking the judge one question")
        asked = judge(subject.calls([Case(row=0, text=subject.right(0, subject.form or "bare"))])).judgements
        replies = [reply for judgement in asked for reply in judgement.replies]
        if replies and all(reply.error for reply in replies):
            raise RewardError(
                given=f'the judge "{label}" does not answer: {replies[0].error}',
                fix="Start its server, or correct judge.url, judge.model and judge.api_key_env.",
            )
    progress(f"{label}: looking for the forms of an answer that it reads")
    try:
        subject.calibrate()
    except OutOfTime:
        raise _too_slow(label, subject.seconds) from None


def _inferred(component: Component, pool: WorkerPool, prompts: Sequence[Prompt], options: Options) -> tuple[Kind, str]:
    """The kind of the reward, and how it was inferred."""
    if component.judge is not None or component.model is not None:
        return "judge", "a model scores"
    name = next((name for name, builtin in BUILTINS.items() if builtin is component.builtin), "")
    if name in DECLARED:
        return DECLARED[name], "a built-in"
    named = set(component.signature.named) - component.settings.keys()
    if tests := sorted(named & TEST_COLUMNS & prompts[0].columns.keys()):
        return "code", f"it takes the column {tests[0]!r}"
    if "answer" in named and holds_tests(prompts[0].columns.get("answer")):
        return "code", "it takes the column 'answer', which holds tests"
    if "answer" in named:
        return "exact", "it takes the gold answer"
    if component.signature.takes_any and _reads_gold(component, pool, prompts, options.seconds):
        return "exact", "its scores depend on the gold answer"
    return "format", "it does not take the gold answer"


def _reads_gold(component: Component, pool: WorkerPool, prompts: Sequence[Prompt], seconds: float) -> bool:
    """Whether any score changes with the gold answer. Needed for rewards that take every column."""
    if not any("answer" in prompt.columns for prompt in prompts):
        return False
    golds = [final_of(prompt.columns.get("answer")) for prompt in prompts]
    subject = Subject(component=component, pool=pool, prompts=prompts, golds=golds, seconds=seconds)
    own = [Case(row=row, text=subject.right(row, "boxed")) for row in range(min(len(prompts), ASKED_ROWS))]
    other = [Case(row=case.row, text=case.text, columns={"answer": "a gold that nobody states"}) for case in own]
    try:
        return [answer.value for answer in subject.score(own)] != [answer.value for answer in subject.score(other)]
    except OutOfTime:
        raise _too_slow(component.label, seconds) from None


def _too_slow(label: str, seconds: float) -> RewardError:
    return RewardError(
        given=f'reward "{label}" did not score the first right and wrong answers within {seconds:g} s',
        fix="Make it faster, or give the audit more time (--seconds).",
    )


def _enough(prompts: Sequence[Prompt]) -> None:
    if len(prompts) < LEAST_ROWS:
        raise DataError(
            given=f"an audit of {len(prompts)} usable rows",
            allowed=f"at least {LEAST_ROWS}: with fewer rows, a share of 2 % cannot be told from none",
            fix="Give more rows of the data that the reward will be trained on.",
        )


def read_prompts(rows: str | Sequence[Mapping[str, Any]], **columns: Any) -> list[Prompt]:
    """The rows in the form that rewards receive. `columns` are settings of `data`: prompt, answer, split."""
    from posttrain.config import DataConfig  # imports torch, which the probe processes do not need
    from posttrain.data.prompts import plain_prompts
    from posttrain.data.read import Row, read_rows

    config = DataConfig(train=rows if isinstance(rows, str) else "rows", **columns)
    if isinstance(rows, str):
        return plain_prompts(read_rows(rows, split=config.split, max_rows=MOST_ROWS), config)
    given = [Row(values=dict(row), origin=f"row {place}") for place, row in enumerate(rows[:MOST_ROWS])]
    return plain_prompts(given, config)
