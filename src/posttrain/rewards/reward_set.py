"""The rewards of a run: built once, applied to every completion of every step, closed at the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.child import Start
from posttrain.config.scorers import Scorer, wrong_gate
from posttrain.errors import ConfigError, DataError
from posttrain.rewards.call_batch import CallBatch
from posttrain.rewards.calls import Runner
from posttrain.rewards.components import Component, Reward, RewardLike
from posttrain.rewards.dispatch import Dispatcher, open_dispatcher
from posttrain.rewards.load import IN_MEMORY, given_function, suggestion
from posttrain.rewards.making import make_component
from posttrain.rewards.missing import columns_known
from posttrain.rewards.pool import WorkerPool
from posttrain.rewards.scores import CORRECT_AT, Scores
from posttrain.rewards.scoring import Scoring
from posttrain.rewards.verifiers import BUILTINS
from posttrain.rewards.worker_process import LocalWorker

if TYPE_CHECKING:
    from posttrain.engines.sampler import Judging
    from posttrain.types import Completion, Prompt

MOST_NAMED = 20
"""Maximum number of rows that an error names."""


def build_rewards(
    rewards: Sequence[RewardLike | str | Callable[..., Any] | Mapping[str, Any]],
    *,
    folder: str | Path | None = None,
    workers: int | None = None,
    device: str = "auto",
    training: bool = False,
    by_turn: bool = False,
    start: Start = LocalWorker,
) -> RewardSet:
    """Find and check every reward of a config.

    An element may also be a mapping of the fields of `Reward`, or a name, a path or a callable, which gets its
    defaults. `folder` is the folder of the config: paths are looked up in the working directory, then there. At most
    `workers` processes (default: 4, or the number of cores if that is less) score at the same time. Reward models
    compute on `device`. `training`: missing settings get their values for training, which fix the place of the answer
    (`Builtin.training`). `by_turn`: the reward `environment` gives each turn its own reward. `start` starts the
    processes.
    """
    pool = WorkerPool(workers, start)
    try:
        components = [
            make_component(
                as_reward(item, training=training), pool, Path(folder) if folder else None, device, by_turn=by_turn
            )
            for item in rewards
        ]
        return RewardSet(components, pool)
    except BaseException:
        pool.close()
        raise


def check_gold(rows: Iterable[Mapping[str, Any]], *, reward: str = "math", column: str = "answer") -> None:
    """Raise DataError, with the numbers of the rows, if a built-in verifier cannot use the gold answer of a row."""
    with build_rewards([reward]) as rewards:
        rewards.check_rows((number, {**row, "answer": row.get(column)}) for number, row in enumerate(rows))


class RewardSet:
    """A weighted sum of components. Use as a context manager, or call `close`: it owns worker processes."""

    def __init__(self, components: Sequence[Component], pool: WorkerPool) -> None:
        labels = [component.label for component in components]
        double = next((label for label in labels if labels.count(label) > 1), None)
        if double is not None:
            raise ConfigError(given=f'two rewards are called "{double}"', fix="Give one of them another `label`.")
        if not any(component.weight for component in components):
            raise ConfigError(
                given="no reward has a weight other than 0" if components else "no reward is configured",
                fix="Add one under `rewards`, for example `- name: math`.",
            )
        gates = {component.label: component.gate.label if component.gate else None for component in components}
        if (wrong := wrong_gate(gates)) is not None:
            raise wrong
        self.components = tuple(components)
        self._pool = pool
        self._costs: dict[str, float] = {}
        self._unasked: list[str] = []
        """Labels of rewards that read the answer in a form for which no prompt asks."""

    def __enter__(self) -> RewardSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the worker processes and the processes of sandboxes."""
        for _, runner in self._runners:
            runner.close()
        self._pool.close()

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(component.label for component in self.components)

    @property
    def verifiers(self) -> tuple[str, ...] | None:
        """Labels of the built-in rewards that tell whether an answer is right. Without one: () if a single reward can
        tell, None if several could, because nobody knows which of them does."""
        verifying, unknown, formal = (self._that_verify(kind) for kind in (True, None, False))
        return tuple(verifying) or (() if len(unknown or formal) == 1 else None)

    def is_right(self, parts: Mapping[str, float | None], gates: Mapping[str, bool | None] | None = None) -> bool:
        """Do these scores, by label, mean that the answer is right? `gates` says which gates are open; None:
        unknown, so that the reward drops out.

        The verifiers decide: a bonus for the form makes no answer right, and a penalty makes none wrong. If no verifier
        applies to the answer, rewards that are not about form or length decide, and those last. All whose gate is open
        must give 1. If all verifiers are behind shut gates, only rewards behind open gates of their own can decide.
        """
        gates, shut = gates or {}, False
        for kind in (True, None, False):
            scored = {label: part for label in self._that_verify(kind) if (part := parts[label]) is not None}
            found = [label for label in scored if gates.get(label, True) is not None]
            if heard := [scored[label] for label in found if gates.get(label, not shut)]:
                return all(part >= CORRECT_AT for part in heard)
            shut = shut or bool(found)
            if shut and kind is None:
                break  # form and length do not stand in for what a shut gate keeps out
        return False

    def _that_verify(self, kind: bool | None) -> list[str]:
        """The labels of these rewards (see `Builtin.verifies`): those in the sum, else those that are only logged."""
        kinds = [(one, None if one.builtin is None else one.builtin.verifies) for one in self.components]
        found = [one for one, its in kinds if its is kind]
        return [one.label for one in found if one.weight > 0] or [one.label for one in found if one.weight == 0]

    @property
    def reads_environment(self) -> bool:
        """Whether a component reads the reward of an environment or agent."""
        read = {"environment_reward", "environment_token_rewards"}
        return any(read.intersection(component.signature.named) for component in self.components)

    @property
    def notes(self) -> list[str]:
        """Warnings to show to the user in each run."""
        models = [(component.label, component.model) for component in self.components if component.model is not None]
        notes = [f'reward "{label}": {note}' for label, one in [*self._runners, *models] for note in one.notes]
        return notes + [
            f'reward "{label}" reads \\boxed{{...}} alone, and no prompt asks for a box: say so in the prompts '
            "(data.system_prompt), or set its settings.answer_from"
            for label in self._unasked
        ]

    @property
    def facts(self) -> list[str]:
        """Sentences on how the rewards judge, as decided at the start of a run. Complete after `check`."""
        places = [(one.label, one.settings["answer_from"]) for one in self.components if one.reads_one_place]
        read = [f'reward "{label}" reads the answer from: {place} (settings.answer_from)' for label, place in places]
        return read + [f'reward "{label}": {fact}' for label, runner in self._runners for fact in runner.facts]

    @property
    def _runners(self) -> list[tuple[str, Runner]]:
        return [(component.label, component.runner) for component in self.components if component.runner is not None]

    def check(self, prompts: Sequence[Prompt], what: str = "") -> None:
        """Check columns and gold answers before training. ConfigError for a missing column, DataError for a bad answer.

        `what` names the prompts in errors (`missing.HELD_OUT`: the held-out prompts of a run). Rows of unknown origin
        are identified by their number among these prompts.
        """
        available = columns_known(prompts)
        boxes = any("boxed" in prompt.text for prompt in prompts)
        asking = [one for one in self.components if one.reads_one_place and one.settings["answer_from"] == "box"]
        self._unasked = [] if boxes or not prompts else [one.label for one in asking]
        for component in self.components:
            component.columns(available, what)
            if component.model is not None:
                component.model.check(prompts)
            if component.judge is not None:
                component.judge.check(prompts, what)
        self.check_rows(((prompt.origin or prompt.index, prompt.columns) for prompt in prompts), what)

    def bind(self, policy: Judging, template_kwargs: Mapping[str, Any], *, ledger: Path | None = None) -> None:
        """Tell the judges what they need from the run: the sampler that has the policy's current weights, and the file
        that records their cost."""
        for component in self.components:
            if component.judge is not None:
                component.judge.bind_policy(policy, template_kwargs)
                if ledger is not None:
                    label = re.sub(r"[^\w.-]", "_", component.label)
                    component.judge.keep_ledger(ledger.with_name(f"{ledger.name}-{label}.jsonl"))

    def check_rows(self, rows: Iterable[tuple[int | str, Mapping[str, Any]]], what: str = "") -> None:
        """Score a trivial completion of each row. An error of a built-in verifier then means a bad gold answer.

        `rows` are pairs of the place or number of a row and its columns. Equal gold answers are checked only once.
        `what` names all the rows in the error.
        """
        known = list(rows)
        batches: list[tuple[CallBatch, dict[str, list[int]]]] = []
        for component in self.components:
            if component.builtin is None or not (columns := component.gold_columns):
                continue
            golds: dict[str, dict[str, Any]] = {}
            rows_of: dict[str, list[int]] = {}
            for place, (_, row) in enumerate(known):
                gold = {name: row.get(name) for name in columns}
                rows_of.setdefault(repr(gold), []).append(place)
                golds[repr(gold)] = gold
            calls = [component.trial() | gold for gold in golds.values()]
            batches.append((CallBatch(component, calls), rows_of))
        self._fill([batch for batch, _ in batches])
        for batch, rows_of in batches:
            found = zip(rows_of, batch.outcomes, strict=True)
            problems = {key: outcome.message for key, outcome in found if outcome.kind != "value"}
            if problems:
                wrong = sorted((place, message) for key, message in problems.items() for place in rows_of[key])
                names = [known[place][0] for place, _ in wrong]
                raise _gold_error(batch.component.label, wrong[0][1], names, len(known), what)

    def score(self, prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]]) -> Scores:
        """Score G completions of each of P prompts; `groups[p][g]` answers `prompts[p]`.

        A component that returns None is not applicable and drops out. A component that raises, is late or crashes its
        process leaves the completion unscored. RewardError when a component breaks its contract: it returns a value
        that is not a finite number, or a list of the wrong length.
        """
        with self.open(prompts) as scoring:
            for place, group in zip(range(len(prompts)), groups, strict=True):
                scoring.add(place, group)
            return scoring.result()

    def open(self, prompts: Sequence[Prompt]) -> Scoring:
        """Like `score`, for completions or groups that arrive one by one, in any order: see `Scoring`."""
        return Scoring(self.components, self._pool, prompts, self._costs)

    def _fill(self, batches: Sequence[CallBatch]) -> None:
        """Get the missing outcomes of all components concurrently."""
        dispatchers: list[Dispatcher] = []
        try:
            for batch in batches:
                if batch.open:
                    dispatchers.append(open_dispatcher(batch.component, self._pool))
                    dispatchers[-1].add(batch)
                    dispatchers[-1].close()
            for dispatcher in dispatchers:
                dispatcher.wait()
        except BaseException:
            for dispatcher in dispatchers:
                dispatcher.abandon()
            raise


def as_reward(item: RewardLike | str | Callable[..., Any] | Mapping[str, Any], *, training: bool = False) -> RewardLike:
    """A reward from a name, a path or a callable, with default settings, or from a mapping of its fields. A reward
    stays unchanged, except that `training` adds the settings that its built-in has for training. ConfigError for
    anything else."""
    if isinstance(item, str):
        item = Reward(function=item) if "." in item else Reward(name=item)
    elif isinstance(item, Mapping):
        item = _of_fields(item)
    elif callable(item):
        return Reward(function=item)
    elif not isinstance(item, Reward | Scorer):
        raise ConfigError(
            given=f"a reward of type {type(item).__name__}",
            allowed='the name of a built-in, "path/to/file.py:name", a function, a Reward, or a mapping of its fields',
            fix='For example "exact_match".',
        )
    if isinstance(item.function, str) and item.function.startswith(IN_MEMORY):
        given = {one.name: getattr(item, one.name) for one in fields(Reward)}
        own = {"function": given_function(item.function), "label": item.label or item.function.removeprefix(IN_MEMORY)}
        return Reward(**given | own)
    strict = BUILTINS[item.name].training if training and item.name in BUILTINS else {}
    if not strict.keys() - item.settings.keys():
        return item
    given = {one.name: getattr(item, one.name) for one in fields(Reward)}
    return Reward(**{**given, "settings": {**strict, **item.settings}})


def _of_fields(given: Mapping[str, Any]) -> Reward:
    known = [one.name for one in fields(Reward)]
    if strange := [name for name in given if name not in known]:
        raise ConfigError(
            given=f"a reward with {strange[0]!r}{suggestion(str(strange[0]), known)}",
            allowed=", ".join(known),
            fix='For example {"name": "exact_match"}.',
        )
    return Reward(**given)


def _gold_error(label: str, problem: str, rows: Sequence[int | str], total: int, what: str) -> DataError:
    """The error for bad gold answers in `rows`, out of `total` rows. `problem` is the problem of the first of them."""
    where = f"{what}: " if what else ""
    first = rows[0] if isinstance(rows[0], str) else f"row {rows[0]}"
    counted = "" if isinstance(rows[0], str) else "counted from 0: "
    return DataError(
        given=f'{where}reward "{label}" cannot use the gold answer of {first}: {problem}',
        allowed=f"an answer that the reward can read; {len(rows)} of {total} rows have none ({counted}{_named(rows)})",
        fix="Correct or drop these rows.",
    )


def _named(rows: Sequence[int | str]) -> str:
    """The names of the first rows. A file is named only where it changes.

    >>> _named(["train.jsonl:71", "train.jsonl:75", "more.jsonl:2"])
    'train.jsonl:71, :75 and more.jsonl:2'
    """
    shown: list[str] = []
    last = ""
    for row in map(str, rows[:MOST_NAMED]):
        file, _, line = row.rpartition(":")
        shown.append(f":{line}" if file and file == last and line.isdigit() else row)
        last = file
    if len(rows) > MOST_NAMED:
        shown.append(f"{len(rows) - MOST_NAMED} more")
    return ", ".join(shown[:-1]) + " and " + shown[-1] if len(shown) > 1 else shown[0]
