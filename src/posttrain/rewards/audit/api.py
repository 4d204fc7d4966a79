"""`audit`: one reward, rows of a dataset, and every check of the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.errors import ConfigError, DataError
from posttrain.rewards.audit.checks import CHECKS
from posttrain.rewards.audit.finding import AuditReport
from posttrain.rewards.audit.kinds import kind_of
from posttrain.rewards.audit.programs import PROGRAM_FORM, references
from posttrain.rewards.audit.renderings import final_of, last_line
from posttrain.rewards.audit.subject import KINDS, Subject
from posttrain.rewards.components import RewardLike, make_component
from posttrain.rewards.pool import WorkerPool
from posttrain.rewards.reward_set import as_reward

if TYPE_CHECKING:
    from posttrain.types import Prompt

LEAST_ROWS = 50
"""With fewer rows a share of 2 % cannot be told from none."""
MOST_ROWS = 256
"""More rows are not read."""


def audit(
    reward: RewardLike | str | Callable[..., Any],
    rows: str | Sequence[Mapping[str, Any]],
    *,
    kind: str | None = None,
    stochastic: bool = False,
    form: str | None = None,
    completions: Sequence[Sequence[str]] | None = None,
    completions_per_step: int = 256,
    step_seconds: float = 60.0,
    prompt: str | None = None,
    answer: str | None = None,
    split: str = "train",
    folder: str | Path | None = None,
    workers: int | None = None,
) -> AuditReport:
    """Try to game, break and trip a reward before a model is trained on it.

    `reward` is a built-in's name, `path/to/file.py:function`, a callable or a `Reward`. `rows` are at least 50 rows, or
    where to read them: anything that `data.train` takes, with `prompt`, `answer` and `split` as in `data`.

    `kind` says what the reward is meant to reward (exact, literal, judge, code, format, length); without it, it is
    inferred. `stochastic` declares that scores vary; `form` how answers are stated, as in "<final>GOLD</final>".
    `completions` are groups of completions of a model, for the share of groups without signal.

    Raises the `ConfigError` or `DataError` that a run would raise for the reward or the data.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(given=f"kind = {kind!r}", allowed=", ".join(KINDS), fix="Leave it out to have it inferred.")
    start = time.perf_counter()
    prompts = read_prompts(rows, prompt=prompt, answer=answer, split=split)
    with WorkerPool(workers) as pool:
        component = make_component(as_reward(reward), pool, Path(folder) if folder else None)
        component.columns({name for prompt in prompts for name in prompt.columns})
        found, why = kind_of(component, pool, prompts) if kind is None else (kind, "declared")
        golds = [final_of(prompt.columns.get("answer")) for prompt in prompts]
        if found == "code":
            prompts, golds = references(prompts)
        subject = Subject(
            component=component,
            pool=pool,
            prompts=prompts,
            golds=golds,
            kind=found,
            stochastic=stochastic or found == "judge",
            form=PROGRAM_FORM if found == "code" else form,
            completions=completions,
            completions_per_step=completions_per_step,
            step_seconds=step_seconds,
        )
        subject.calibrate()
        findings = [check(subject) for check in CHECKS]
    return AuditReport(
        reward=component.label,
        kind=found,
        why=why,
        rows=len(prompts),
        reads=tuple(map(last_line, subject.forms)),
        checks=findings,
        seconds=time.perf_counter() - start,
    )


def read_prompts(
    rows: str | Sequence[Mapping[str, Any]],
    *,
    prompt: str | None = None,
    answer: str | None = None,
    split: str = "train",
) -> list[Prompt]:
    """The rows as rewards see them, without a tokenizer."""
    from posttrain.config import DataConfig  # these load torch, which the processes that watch a reward do not need
    from posttrain.data.dropped import Dropped
    from posttrain.data.prompts import prompt_form
    from posttrain.data.read import Row, read_rows

    if isinstance(rows, str):
        given = read_rows(rows, split=split, max_rows=MOST_ROWS)
    else:
        given = [Row(values=dict(row), origin=f"row {place}") for place, row in enumerate(rows[:MOST_ROWS])]
    form = prompt_form(given, DataConfig(train="rows", prompt=prompt, answer=answer))
    read = [form.read(row) for row in given]
    prompts = [_prompt(number, columns) for number, columns in enumerate(read) if not isinstance(columns, Dropped)]
    if len(prompts) < LEAST_ROWS:
        raise DataError(
            given=f"an audit of {len(prompts)} usable rows",
            allowed=f"at least {LEAST_ROWS}: with fewer, a share of 2 % cannot be told from none",
            fix="Give more rows of the data that the reward will be trained on.",
        )
    return prompts


def _prompt(number: int, columns: dict[str, Any]) -> Prompt:
    from posttrain.types import Prompt

    prompt = columns.pop("prompt")
    if isinstance(prompt, str):
        return Prompt(index=number, ids=(), text=prompt, plain=prompt, columns=columns)
    text = "\n".join(str(message["content"]) for message in prompt)
    return Prompt(index=number, ids=(), text=text, messages=tuple(prompt), columns=columns)
