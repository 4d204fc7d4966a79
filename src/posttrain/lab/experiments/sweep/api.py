"""`sweep`: search for the best configuration, given a config and some knobs, and collect the evidence for it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.config import RunConfig, check, load_config
from posttrain.config.pipeline import holds_stages
from posttrain.config.text import leaves, read_mapping, write_tree
from posttrain.errors import ConfigError
from posttrain.files import write_atomically
from posttrain.lab.experiments.pool import let_orphans_end, planned_time, share_of_processor, work
from posttrain.lab.experiments.sweep.analysis import boundaries, importance
from posttrain.lab.experiments.sweep.comparable import check_same_rows, not_comparable
from posttrain.lab.experiments.sweep.confirm import (
    SIDES,
    Confirmation,
    fresh_seeds,
    scores_of,
    seed_tasks,
)
from posttrain.lab.experiments.sweep.knobs import Knob, check_knobs, knob_of, parse_knob
from posttrain.lab.experiments.sweep.page import write_page
from posttrain.lab.experiments.sweep.results import SweepResult, best_of, show
from posttrain.lab.experiments.sweep.settings import (
    STEPS,
    WARMUP,
    SweepSettings,
    for_trials,
    given_settings,
    read_settings,
    with_values,
)
from posttrain.lab.experiments.sweep.study import Pruner, TrialRecord, need_optuna, open_study, records
from posttrain.lab.experiments.sweep.trials import Say, goodness, read_course, trial_folder, trial_tasks
from posttrain.shown import shown

if TYPE_CHECKING:
    from optuna.study import Study

TRIALS = "trials"
"""Folder of the runs of the trials."""


def sweep(
    source: str | Path | Mapping[str, Any] | RunConfig,
    knobs: Sequence[str] | Mapping[str, str] = (),
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    trials: int | None = None,
    workers: int = 1,
    pruner: Pruner | None = None,
    seeds: int | None = None,
    folder: str | Path | None = None,
    tell: Say = lambda line: None,
) -> SweepResult:
    """Search the values of some settings for the best held-out score, and test the best on fresh seeds.

    `source` is a config, a YAML file with `base` and `knobs`, or the folder of a sweep to continue. A knob is
    `setting=log(low, high)` (or `float`, `int`, `choice`). The same call continues a killed sweep. Raises ConfigError
    for invalid knobs. Runs that collapse or fail are results.
    """
    need_optuna()
    settings, folder = settings_for(source, knobs, overrides, folder, trials=trials, pruner=pruner, seeds=seeds)
    check(load_config(settings.base).config)
    if not (folder / "study.db").exists():
        check_same_rows(settings)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        settings.keep(folder)
        try:
            return _carry_out(settings, folder, workers, tell)
        except BaseException as error:
            error.add_note(f"The sweep is in {folder}; `posttrain sweep {shown(folder)}` continues it.")
            raise


def _carry_out(settings: SweepSettings, folder: Path, workers: int, tell: Say) -> SweepResult:
    config, base = settings.config, settings.base
    notes = tuple(filter(None, (settings.default_left_out, for_trials(config, settings.whole)[1])))
    if (folder / "study.db").exists():
        let_orphans_end()
    study = open_study(folder / "study.db", pruner=settings.pruner, seed=config.seed, steps=config.train.steps)
    environment = share_of_processor(workers)
    tell(announcement(settings))
    tasks = trial_tasks(
        study,
        settings.knobs,
        base,
        trials=settings.trials,
        folder=folder / TRIALS,
        environment=environment,
        default=None if settings.default_left_out else settings.default,
        say=tell,
    )
    work(tasks, workers)
    result = _result(study, settings, folder, notes)
    if result.best is not None and not result.best.is_default and settings.seeds:
        tell(
            f"trial {result.best.number} is best; now it and the default run on {settings.seeds} fresh seeds: "
            f"{len(SIDES) * settings.seeds} more runs"
        )
        seeds, places = fresh_seeds(config.seed, settings.seeds), folder / "fresh"
        again = seed_tasks(base, result.best.values, seeds, folder=places, environment=environment, say=tell)
        work(again, workers)
        scores = tuple(scores_of(seeds, places))
        result = replace(result, confirmation=Confirmation(measure=result.measure, scores=scores))
    write(result)
    return result


def announcement(settings: SweepSettings) -> str:
    """Return what to show before the first trial: the number of runs, their planned duration, and whether no trial is
    the unchanged config."""
    again = len(SIDES) * settings.seeds
    runs = f"{settings.trials} trials of at most {settings.config.train.steps} steps"
    more = f", then {again} runs on fresh seeds (--seeds 0 skips them)" if again else ""
    planned = planned_time([load_config(settings.base).config] * (settings.trials + again))
    return "\n".join(filter(None, (f"{runs}{more}{planned}", settings.default_left_out)))


def _result(study: Study, settings: SweepSettings, folder: Path, notes: tuple[str, ...]) -> SweepResult:
    trials = records(study, settings.knobs)
    told = [t.user_attrs.get("measure") for t in study.get_trials(deepcopy=False)]
    measure = next((name for name in told if name), "score")
    data = settings.config.data
    odd = not_comparable(trials, {trial.number: trial_folder(folder / TRIALS, trial.number) for trial in trials})
    best = None if odd else best_of(trials, measure)
    before = None if best is None else read_course(trial_folder(folder / TRIALS, best.number)).baseline
    return SweepResult(
        folder=folder,
        settings=settings,
        measure=measure,
        trials=tuple(trials),
        best=best,
        importance={} if odd else importance(settings.knobs, trials, goodness(measure, 1.0)),
        boundaries=boundaries(settings.knobs, trials),
        confirmation=None,
        fresh_rows=data.eval is None,
        notes=notes,
        not_comparable=odd,
        untrained=before,
    )


def write(result: SweepResult) -> None:
    """Write results.json, the report page, and the best configuration with its evidence as comments."""
    if result.best is None:
        (result.folder / "best.yaml").unlink(missing_ok=True)
    write_atomically(result.folder / "results.json", json.dumps(result.to_json(), indent=1) + "\n")
    if result.best is not None and result.best_config is not None:
        write_atomically(result.best_config, best_config_text(result, result.best))
    write_page(result.to_json(), result.folder)


def best_config_text(result: SweepResult, best: TrialRecord) -> str:
    """Return a config to train with. A comment on each tuned setting gives its range and its default."""
    tree = with_values(result.settings.whole, best.values)
    tree.pop("output", None)
    default = result.settings.default
    said = {
        key: f"{knob.text} was tried; the default is {show(default[key])}"
        for key, knob in ((knob.key, knob) for knob in result.settings.knobs)
    }
    known = {".".join(map(str, path)) for path, _ in leaves(tree)}
    head = "\n".join(f"# {line}" for line in result.sentences())
    return f"{head}\n# The trials: {result.folder / 'results.json'}\n" + write_tree(
        tree, {key: text for key, text in said.items() if key in known}
    )


def settings_for(
    source: str | Path | Mapping[str, Any] | RunConfig,
    knobs: Sequence[str] | Mapping[str, str],
    overrides: Sequence[str] | Mapping[str, Any],
    folder: str | Path | None,
    **asked: Any,
) -> tuple[SweepSettings, Path]:
    """Return the sweep's settings and its folder. `asked` are fields of the settings; None means not given."""
    said = {name: value for name, value in asked.items() if value is not None}
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        return _go_on(Path(source), knobs, overrides, folder, said)
    if not isinstance(source, RunConfig) and holds_stages(source):
        raise ConfigError(
            given="a pipeline with stages",
            allowed="the config of one run",
            fix="Sweep the config of one stage, on the model of the previous stage.",
        )
    told: Mapping[str, Any] = {}
    name = Path(source).stem if isinstance(source, (str, Path)) else "config"
    if isinstance(source, (str, Path)):
        content = read_mapping(source)
        if "knobs" in content:
            told, source = content, _named_base(content, Path(source))
    unknown = told.keys() - {"base", "knobs", "trials", "pruner", "seeds"}
    if unknown:
        raise ConfigError(
            given=f"{', '.join(sorted(unknown))} in a file with knobs",
            allowed="base, knobs, trials, pruner, seeds",
            fix="Move settings of the runs to the config that `base` names.",
        )
    given = _given(source, overrides)
    turned = [*_knobs(told.get("knobs", {})), *_knobs(knobs)]
    in_file = {key: told[key] for key in ("trials", "pruner", "seeds") if key in told}
    place = Path(folder) if folder is not None else Path("sweeps") / name
    begun = read_settings(place) if place.is_dir() else None
    if begun is not None:
        said["hold_out"] = begun.hold_out
    return SweepSettings(given=given, knobs=check_knobs(turned, given), **{**in_file, **said}), place


def _given(source: Any, overrides: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the runs. An override of train.steps scales the warm-up, as a knob would."""
    resolved = load_config(source, overrides)
    given, steps = given_settings(resolved), resolved.config.train.steps
    named = overrides if isinstance(overrides, Mapping) else [text.partition("=")[0] for text in overrides]
    if any(name.endswith(STEPS) for name in named) and not any(name.endswith(WARMUP) for name in named):
        before = with_values(given_settings(load_config(source)), {STEPS: steps})
        return with_values(given, {WARMUP: before["train"].get("warmup_steps", 0)})
    return given


def _go_on(
    source: Path, knobs: Any, overrides: Any, folder: str | Path | None, said: Mapping[str, Any]
) -> tuple[SweepSettings, Path]:
    found = read_settings(source)
    if found is None or knobs or overrides or folder is not None:
        given = (
            f"{source}, which holds no sweep" if found is None else f"{source}, a sweep, and other settings or a folder"
        )
        raise ConfigError(
            given=given,
            allowed="a config with knobs, or only the folder of a sweep, perhaps with more trials",
            fix="For example, run posttrain sweep base.yaml 'train.learning_rate=log(1e-5, 1e-2)'.",
        )
    return replace(found, **said), source


def _named_base(content: Mapping[str, Any], file: Path) -> Path:
    base = content.get("base")
    if not isinstance(base, str):
        raise ConfigError(
            given=f"{file} has knobs but no base", allowed="base: the config of the runs", fix="Add base: base.yaml."
        )
    beside = file.parent / base
    return beside if beside.exists() else Path(base)


def _knobs(given: Sequence[str] | Mapping[str, str]) -> list[Knob]:
    if isinstance(given, Mapping):
        return [knob_of(str(key), form) for key, form in given.items()]
    return [parse_knob(text) for text in ([given] if isinstance(given, str) else given)]


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock the sweep, because two processes would each run every trial. The lock ends with the process."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                given=f"{folder}: another process is running this sweep",
                allowed="one process at a time, with as many --workers as the machine can run",
                fix="Wait for it, or name another folder with --out.",
            ) from None
        yield
