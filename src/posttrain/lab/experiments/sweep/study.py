"""The study: what Optuna keeps about a sweep in `study.db`, opened, asked for trials and told how they ended.

All that a trial came to is in its attributes there, so that the file alone says everything, whatever was killed when.
Higher is better always: of a loss the negative is kept.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posttrain.errors import ConfigError
from posttrain.lab.experiments.sweep.knobs import Knob

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

Outcome = Literal["finished", "pruned", "collapsed", "failed", "running"]
Pruner = Literal["median", "hyperband", "none"]
PRUNERS: tuple[Pruner, ...] = ("median", "hyperband", "none")
NAME = "sweep"
BEFORE_PRUNING = 4
"""Finished trials that the median is of, at least.

Of trials from the best quarter, 12.5 % fall below the score of a single other one, 5.5 % below the median of three, 3 %
below that of four (scores normally distributed): four are the fewest with less than 5 %. With eight it would be 1 %, at
the price of four more runs to their end. The noise of a held-out score comes on top: evaluate on more rows, not later.
"""
LEFT_ALONE = 3
"""The first third of each trial is never stopped: learning rates that win in the end are often behind at first."""
AT_RANDOM = 8
"""First trials, drawn at random, before the sampler has something to go by."""


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial: what it was given, and what became of it."""

    number: int
    values: dict[str, Any]
    """Setting -> value."""
    outcome: Outcome
    """`collapsed`: a guard stopped it, or it ended shown to be worse than it began. That is a result, no accident."""
    reason: str = ""
    """Why it did not finish."""
    step: int | None = None
    """The step of the last measurement."""
    score: float | None = None
    """At its end, of the held-out rows, in its own units; with its interval over them."""
    low: float | None = None
    high: float | None = None
    course: tuple[tuple[int, float], ...] = ()
    tokens: int = 0
    """That it was trained on: some settings make a step cost more than others do."""
    is_default: bool = False


def need_optuna() -> Any:
    """The module, quiet. Raises ConfigError where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            given="posttrain sweep needs optuna, which is not installed",
            allowed="an environment with the extra `sweep`",
            fix='pip install "posttrain[sweep]"',
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def open_study(file: Path, *, pruner: Pruner, seed: int, steps: int) -> Study:
    """The study of a folder, made where there is none."""
    optuna = need_optuna()
    study = optuna.create_study(
        study_name=NAME,
        storage=f"sqlite:///{file}",
        load_if_exists=True,
        direction="maximize",
        pruner=_pruner(optuna, pruner, steps),
    )
    drawn = len(study.get_trials(deepcopy=False))  # a sampler that goes on must not draw the same numbers again
    study.sampler = optuna.samplers.TPESampler(
        n_startup_trials=AT_RANDOM, multivariate=True, constant_liar=True, seed=seed + drawn
    )
    return study


def _pruner(optuna: Any, pruner: Pruner, steps: int) -> BasePruner:
    match pruner:
        case "median":
            return optuna.pruners.MedianPruner(n_startup_trials=BEFORE_PRUNING, n_warmup_steps=steps // LEFT_ALONE)
        case "hyperband":
            return optuna.pruners.HyperbandPruner(min_resource=max(1, steps // 9), max_resource=steps)
        case "none":
            return optuna.pruners.NopPruner()


def unfinished(study: Study) -> Iterator[tuple[Trial, set[int]]]:
    """Trials that were at work when the process that looked after them ended, and the steps that they reported."""
    import optuna

    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        yield optuna.trial.Trial(study, trial._trial_id), set(trial.intermediate_values)


def begun(study: Study) -> int:
    """Trials that were started, however they ended."""
    import optuna

    return sum(t.state is not optuna.trial.TrialState.WAITING for t in study.get_trials(deepcopy=False))


def tell(study: Study, trial: Trial, outcome: Outcome, value: float | None) -> None:
    """How a trial ended. A collapsed one counts as pruned: the sampler turns away from it, and no score is made up."""
    from optuna.trial import TrialState

    if outcome == "finished" and value is not None:
        study.tell(trial, value)
    else:
        study.tell(trial, state=TrialState.FAIL if outcome == "failed" else TrialState.PRUNED)


def records(study: Study, knobs: tuple[Knob, ...]) -> list[TrialRecord]:
    """All trials that were started, in their order."""
    import optuna

    waiting = optuna.trial.TrialState.WAITING
    return [_record(t, knobs) for t in study.get_trials(deepcopy=False) if t.state is not waiting]


def _record(trial: FrozenTrial, knobs: tuple[Knob, ...]) -> TrialRecord:
    told = trial.user_attrs
    return TrialRecord(
        number=trial.number,
        values={knob.key: knob.value_of(trial.params[knob.key]) for knob in knobs if knob.key in trial.params},
        outcome=told.get("outcome", "running") if trial.state.is_finished() else "running",
        reason=told.get("reason", ""),
        step=told.get("step"),
        score=told.get("score"),
        low=told.get("low"),
        high=told.get("high"),
        course=tuple((int(step), float(value)) for step, value in told.get("course", ())),
        tokens=int(told.get("tokens", 0)),
        is_default=bool(told.get("default", False)),
    )
