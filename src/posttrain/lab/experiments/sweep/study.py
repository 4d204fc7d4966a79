"""The Optuna study of a sweep, in `study.db`: open it, list its trials, and record how they ended.

The attributes of a trial hold its full result, so the file is complete even if a process is killed. Higher values are
always better; a loss is stored with a minus sign.
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
"""Fewest finished trials before median pruning starts.

Among trials of the best quarter, 12.5 % fall below the score of a single other trial, 5.5 % below the median of three,
and 3 % below the median of four (scores normally distributed). Four is the smallest number with less than 5 %. Eight
would give 1 %, but cost four more full runs. The noise of the held-out score adds to this: evaluate on more rows.
"""
LEFT_ALONE = 3
"""The first third of a trial is never pruned: learning rates that win in the end are often behind at first."""
AT_RANDOM = 8
"""Number of random trials before the sampler has enough data."""


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial: its values and its result."""

    number: int
    values: dict[str, Any]
    """Setting -> value."""
    outcome: Outcome
    """`collapsed`: a guard stopped it, or it ended significantly worse than it began. This is a valid result."""
    reason: str = ""
    """Why the trial did not finish."""
    step: int | None = None
    """The step of the last measurement."""
    score: float | None = None
    """Held-out score at the end, in the measure's units. `low` and `high` are its interval over the held-out rows."""
    low: float | None = None
    high: float | None = None
    course: tuple[tuple[int, float], ...] = ()
    tokens: int = 0
    """Number of tokens trained on. Some settings make a step more expensive."""
    is_default: bool = False


def need_optuna() -> Any:
    """Import optuna and silence its logs. Raises ConfigError if it is not installed."""
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
    """Open the study in a file, or create it."""
    optuna = need_optuna()
    study = optuna.create_study(
        study_name=NAME,
        storage=f"sqlite:///{file}",
        load_if_exists=True,
        direction="maximize",
        pruner=_pruner(optuna, pruner, steps),
    )
    drawn = len(study.get_trials(deepcopy=False))  # a continued sweep must not draw the same numbers again
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
    """Yield the trials that were running when their supervising process ended, and the steps that they reported."""
    import optuna

    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        yield optuna.trial.Trial(study, trial._trial_id), set(trial.intermediate_values)


def begun(study: Study) -> int:
    """Count the trials that were started, however they ended."""
    import optuna

    return sum(t.state is not optuna.trial.TrialState.WAITING for t in study.get_trials(deepcopy=False))


def tell(study: Study, trial: Trial, outcome: Outcome, value: float | None) -> None:
    """Record how a trial ended. A collapsed trial counts as pruned: the sampler avoids it without a made-up score."""
    from optuna.trial import TrialState

    if outcome == "finished" and value is not None:
        study.tell(trial, value)
    else:
        study.tell(trial, state=TrialState.FAIL if outcome == "failed" else TrialState.PRUNED)


def records(study: Study, knobs: tuple[Knob, ...]) -> list[TrialRecord]:
    """Return all started trials in order."""
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
