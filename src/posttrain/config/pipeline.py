"""Several runs in one file: each stage starts from the policy that an earlier stage trained.

    model: tiny:sort                       all stages share the settings next to `stages`
    stages:
      - {algorithm: sft, data: ..., train: ...}
      - {name: prefer, algorithm: dpo, repeat: 3, data: {train: ..., part: "{round}/3"}, train: ...}
    export: {to: hf}

    read_pipeline("sft_dpo.yaml", ["stages.prefer.train.steps=5", "seed=1"])  ->  PipelineConfig

A stage is an ordinary run. Its settings override the shared settings, and the command line overrides both. A stage
starts with the model of the last stage that trained a policy, unless it names another model. `stage:NAME` stands for
the model of an earlier stage in every setting that takes a model. One error reports all problems of all stages,
before the first stage trains.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, NamedTuple

from posttrain.config.load import Check, Layers, Resolved, check, load_config, saved_tree
from posttrain.config.run import RunConfig, models_named
from posttrain.config.schema import Problem, combine
from posttrain.config.text import COMMENT, SAVED, dotted, leaves, read_mapping, read_override, show, write_tree
from posttrain.config.values import Part, PathText
from posttrain.errors import ConfigError

STAGES = "stages"
"""The key that makes a file a pipeline."""
MARK = "stage:"
"""Prefix of a stage's name in a setting that takes the path of a model."""

_REFERENCE = re.compile(rf"{MARK}(\S*)")
_TAKES_POLICY = re.compile(r"(reference|teacher)\.path|(rewards|check)\.\d+\.judge\.model|reward_model\.model(\.path)?")
_TAKES_SCORES = re.compile(r"(rewards|check)\.\d+\.model")
_TAKES_EITHER = re.compile(r"critic\.path")

Entries = Sequence[dict[str, Any]]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class ExportConfig(Part):
    """The export of the last policy."""

    to: Literal["hf", "gguf"] = "hf"
    """Format: a Hugging Face folder with a model card, or a GGUF file."""
    output: PathText | None = None
    """Path of the export. null: the folder export of the pipeline."""


class PipelineSettings(Part):
    """The settings of a pipeline outside its stages."""

    output: PathText | None = None
    """Folder of the pipeline; each stage is a run in it. null: the first free runs/<name of the file>-<n>."""
    stop_if_worse: bool = False
    """Stop if a stage made its own held-out measure worse, beyond the intervals. If false, warn and continue."""
    export: ExportConfig | None = None
    """Export of the last policy when all stages are done. null: no export."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of a pipeline."""

    name: str
    number: int
    """Number of the stage, counted from 1, as in the name of its folder."""
    resolved: Resolved
    """Settings of the stage, with `stage:NAME` in place of the model of an earlier stage."""
    uses: Mapping[str, str] = field(default_factory=dict)
    """Dotted setting -> name of the earlier stage whose model it takes."""

    @property
    def folder(self) -> str:
        """Name of the stage's folder in the pipeline's folder."""
        return f"{self.number:02d}-{self.name}"

    @property
    def config(self) -> RunConfig:
        return self.resolved.config

    @property
    def makes(self) -> Literal["text", "scores", "steps"]:
        """The output of the model that the stage trains: text, one score for an answer, or one for each step of the
        answer."""
        algorithm = self.config.algorithm.build()
        if "scores" not in algorithm.needs:
            return "text"
        return "steps" if algorithm.data_kind == "steps" else "scores"

    @property
    def trains_policy(self) -> bool:
        return self.makes == "text"

    def with_models(self, paths: Mapping[str, str]) -> Resolved:
        """Return the settings with the paths of earlier stages' models; `paths` has one for each name in `uses`."""
        tree, origins = self.config.model_dump(mode="json"), dict(self.resolved.origins)
        for setting, name in self.uses.items():
            *above, last = [int(step) if step.isdecimal() else step for step in setting.split(".")]
            node: Any = tree
            for step in above:
                node = node[step]
            node[last] = paths[name]
            origins[setting] = f"{MARK}{name}"
        return Resolved(config=RunConfig.model_validate(tree), origins=origins)


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """A valid pipeline: every stage is valid and takes its models from earlier stages."""

    stages: tuple[Stage, ...]
    settings: PipelineSettings
    source: str = ""
    """Path of the file; empty for a mapping."""

    def with_start_models(self) -> dict[str, RunConfig]:
        """Return stage name -> settings, with the initial models of earlier stages in place of their trained models.

        A trained model has the shape of its initial model, and a plan needs nothing else.
        """
        configs: dict[str, RunConfig] = {}
        for stage in self.stages:
            starts = {name: configs[name].model for name in stage.uses.values()}
            config = stage.with_models({name: start.path for name, start in starts.items()}).config
            if (start := starts.get(stage.uses.get("model.path", ""))) is not None:
                same = {"revision": start.revision, "gguf_file": start.gguf_file}
                config = config.model_copy(update={"model": config.model.model_copy(update=same)})
            configs[stage.name] = config
        return configs

    @property
    def last_policy(self) -> Stage | None:
        """The last stage that trains a policy."""
        return next((stage for stage in reversed(self.stages) if stage.trains_policy), None)


def read_pipeline(
    source: str | PathLike[str] | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    checks: Sequence[Check] = (),
) -> PipelineConfig:
    """Read the pipeline in a YAML or TOML file (or a mapping).

    Overrides: `stages.NAME.train.steps=5` for one stage (by its name, or by its position in the list, from 0),
    `model=...` for the initial model of the pipeline, `train.steps=5` for every stage, and `output=...` or another
    field of `PipelineSettings` for the pipeline. Raises one ConfigError with the problems of all stages, including
    those that `checks` find.
    """
    from_file = isinstance(source, (str, PathLike))
    given = read_mapping(source) if from_file else {str(key): value for key, value in source.items()}
    path = fspath(source) if from_file else ""
    listed = listed_stages(given.pop(STAGES))
    changes = Changes.of(overrides, listed, own=PipelineSettings.model_fields)
    layers = Layers(expand=lambda section, value: value)
    own = {name: given.pop(name) for name in PipelineSettings.model_fields if name in given}
    layers.put((), own, "")
    for change in changes.of_pipeline:
        layers.put(tuple(change.key.replace("-", "_").split(".")), change.value, "")
    settings = PipelineSettings(**layers.tree)
    for change in changes.of_start:
        given = with_start(given, change)
    builder = _Builder(shared=given, origin=f"file:{path}" if path else "caller", changes=changes, checks=checks)
    for draft in drafts_of(listed):
        builder.add(draft)
    builder.finish(path or "the pipeline", settings)
    return PipelineConfig(stages=tuple(builder.stages), settings=settings, source=path)


def to_yaml(pipeline: PipelineConfig, output: str | None) -> str:
    """Return the pipeline as YAML, with every setting of every stage and its origin. It reads back the same."""
    head = f"{SAVED} all stages, each with where its value came from.\n"
    return head + write_tree(*_tree(pipeline, output))


def read_saved(path: str | PathLike[str]) -> PipelineConfig:
    """Read the output of `to_yaml`. The comment after a value gives its origin; without a comment, the origin is this
    file."""
    pipeline = read_pipeline(path)
    tree, origins = _tree(pipeline, pipeline.settings.output)
    marked = write_tree(tree, {setting: setting for setting in origins}).splitlines()
    lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for ours, theirs in zip(marked, lines, strict=False):
        value, behind, setting = ours.rpartition(COMMENT)
        if behind and theirs.startswith(value + behind):
            origins[setting] = theirs.removeprefix(value + behind)
    stages: list[Stage] = []
    for place, stage in enumerate(pipeline.stages):
        own = {setting: origins[f"{STAGES}.{place}.{setting}"] for setting in stage.resolved.origins}
        stages.append(replace(stage, resolved=Resolved(config=stage.config, origins=own)))
    return replace(pipeline, stages=tuple(stages))


def _tree(pipeline: PipelineConfig, output: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings to save, and the origin of each dotted setting."""
    trees: list[dict[str, Any]] = []
    origins: dict[str, str] = {}
    for place, stage in enumerate(pipeline.stages):
        tree = saved_tree(stage.config)
        del tree["output"]
        trees.append({"name": stage.name, **tree})
        origins |= {f"{STAGES}.{place}.{setting}": origin for setting, origin in stage.resolved.origins.items()}
    return {**pipeline.settings.model_dump(mode="json"), "output": output, STAGES: trees}, origins


def notes(pipeline: PipelineConfig) -> list[str]:
    """Return notes on settings that are allowed but seldom intended; each is printed before training."""
    found: list[str] = []
    imitating: Stage | None = None
    for stage in filter(lambda stage: stage.trains_policy, pipeline.stages):
        if stage.config.algorithm.build().data_kind == "examples":
            imitating = stage
        elif imitating is not None and (stage.config.lora is None) == (imitating.config.lora is None):
            rate, before = stage.config.train.learning_rate, imitating.config.train.learning_rate
            if rate >= before > 0:
                found.append(
                    f"stage {stage.name} ({stage.config.algorithm.name}) has the learning rate {rate:g}, and stage "
                    f"{imitating.name}, which imitates, {before:g}: preferences and rewards usually take 10 to 100 "
                    f"times less than imitation; set stages.{stage.name}.train.learning_rate"
                )
    return found


# --- building --------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Builder:
    """Resolves one stage after the other and collects their problems."""

    shared: Mapping[str, Any]
    origin: str
    changes: Changes
    checks: Sequence[Check] = ()
    stages: list[Stage] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """Name that `stage:` may use -> stage. The base name of a repeated stage means its latest round."""
    problems: list[tuple[str, ConfigError]] = field(default_factory=list)
    last_policy: str = ""
    number: int = 0

    def add(self, draft: Draft) -> None:
        self.number += 1
        try:
            if draft.problem:
                raise draft.problem
            given = _with_model(draft.given, self.last_policy)
            shared = _without_another_algorithm(self.shared, given)
            overrides, at = self.changes.of_stage(draft), (STAGES, draft.place)
            resolved = load_config(given, overrides, shared=shared, origin=self.origin, at=at, checks=self.checks)
            stage = Stage(name=draft.name, number=self.number, resolved=resolved, uses=dict(links_of(resolved.config)))
            stage = self._linked(stage)
            refuse_unmarked(resolved.config, self.names)
            check(resolved, *self.checks)
        except ConfigError as error:
            self.problems.append((draft.name, error))
            self.last_policy = draft.name  # any name will do: the pipeline does not run
        else:
            self.stages.append(stage)
            self.last_policy = stage.name if stage.trains_policy else self.last_policy
        self.names |= {draft.name: draft.name, draft.base: draft.name}

    def _linked(self, stage: Stage) -> Stage:
        """Return the stage with the full names of the stages that it uses. Raise ConfigError for unsuitable ones."""
        linked = {setting: self._find(setting, name) for setting, name in stage.uses.items()}
        kinds = {known.name: known.trains_policy for known in self.stages}
        for setting, name in linked.items():
            wanted = wants_policy(setting, trains_policy=stage.trains_policy)
            if wanted is not None and kinds.get(name, wanted) != wanted:
                what = "a policy, which gives no score" if not wanted else "a model that gives scores, not text"
                raise ConfigError(
                    given=f"{setting} = {MARK}{name}, and that stage trains {what}",
                    allowed="a stage that trains a policy" if wanted else "a stage that trains a reward model",
                    fix="Name another stage.",
                )
        return replace(stage, uses=linked)

    def _find(self, setting: str, name: str) -> str:
        if name in self.names:
            return self.names[name]
        close = difflib.get_close_matches(name, self.names, n=1)
        before = "A stage can use only earlier stages." if self.names else "There is no earlier stage; name a model."
        raise ConfigError(
            given=f"{setting} = {MARK}{name}, and no earlier stage is called {name!r}",
            allowed=", ".join(f"{MARK}{known}" for known in self.names) or "the path of a model",
            fix=f"Did you mean {MARK}{close[0]}?" if close else before,
        )

    def finish(self, where: str, settings: PipelineSettings) -> None:
        """Raise ConfigError with all problems. A mistake that several stages share is reported once."""
        told: dict[tuple[str, str, str], list[str]] = {}
        for name, error in self.problems:
            told.setdefault((error.given, error.allowed, error.fix), []).append(name)
        found: list[Problem] = []
        for (given, allowed, fix), names in told.items():
            whose = f"{'stage' if len(names) == 1 else 'stages'} {', '.join(names)}"
            found.append(Problem(path=(), given=f"{whose}: {given}", allowed=allowed, fix=fix))
        if settings.export is not None and not self.problems and not any(stage.trains_policy for stage in self.stages):
            found.append(
                Problem(
                    path=(),
                    given="export, but no stage trains a policy",
                    allowed="a pipeline with a policy",
                    fix="Remove export: a reward model is already saved as a Hugging Face folder.",
                )
            )
        if found:
            raise combine(found, where)


def _with_model(given: Mapping[str, Any], last_policy: str) -> dict[str, Any]:
    """Return the settings with the stage's initial model, if it names none, without files of the pipeline's model."""
    model = given.get("model", {})
    if isinstance(model, (str, PathLike)):
        model = {"path": fspath(model)}
    if not isinstance(model, Mapping) or ("path" not in model and not last_policy):
        return dict(given)
    path = model.get("path", f"{MARK}{last_policy}")
    elsewhere = {"gguf_file": None, "revision": None} if str(path).startswith(MARK) else {}
    return {**given, "model": {**elsewhere, **model, "path": path}}


def _without_another_algorithm(shared: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shared settings, without the algorithm if the stage has another algorithm."""

    def name(section: Any) -> Any:
        return section.get("name") if isinstance(section, Mapping) else getattr(section, "key", section)

    other = name(given.get("algorithm"))
    drop = other is not None and other != name(shared.get("algorithm"))
    return {key: value for key, value in shared.items() if key != "algorithm" or not drop}


# --- the stages as they were given -----------------------------------------------------------------------------------


class Draft(NamedTuple):
    """A stage as given in the file; a repeated stage has one for each round."""

    name: str
    base: str
    """Name without the number of the round."""
    place: int
    """Position of its entry in the file, counted from 0."""
    given: dict[str, Any]
    problem: ConfigError | None = None


def holds_stages(source: Any) -> bool:
    """Return true if this file or mapping is a pipeline. Raises ConfigError for a file that cannot be read."""
    given = read_mapping(source) if isinstance(source, (str, PathLike)) else source
    return isinstance(given, Mapping) and STAGES in given


def listed_stages(listed: Any) -> list[dict[str, Any]]:
    """Return the entries under `stages`. Raises ConfigError if they are not a list of settings."""
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, Mapping) for entry in listed):
        raise ConfigError(
            given=f"stages = {show(listed)}",
            allowed="a list with the settings of one run in each entry",
            fix="Write stages: [{algorithm: sft, data: ..., train: ...}, {algorithm: dpo, data: ..., train: ...}].",
        )
    return [{str(key): value for key, value in entry.items()} for entry in listed]


def _base_names(listed: Entries) -> list[str]:
    """Return the given name of each stage, or the name of its algorithm, with a number if it is taken."""
    names: list[str] = []
    for entry in listed:
        algorithm = entry.get("algorithm")
        algorithm = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
        name = str(entry.get("name") or getattr(algorithm, "key", algorithm) or "stage")
        if "name" not in entry:
            wanted, number = name, 2
            while name in names:
                name, number = f"{wanted}-{number}", number + 1
        names.append(name)
    return names


def drafts_of(listed: Entries) -> Iterator[Draft]:
    """Yield every stage; a repeated stage once for each round."""
    taken: set[str] = set()
    for place, (base, entry) in enumerate(zip(_base_names(listed), listed, strict=True)):
        given = {key: value for key, value in entry.items() if key not in ("name", "repeat")}
        repeat = entry.get("repeat")
        problem = _fault(base, repeat, given)
        rounds = [None] if repeat is None or problem else range(1, repeat + 1)
        for number in rounds:
            name = base if number is None else f"{base}-{number}"
            if name in taken:
                problem = ConfigError(
                    given=f"two stages are called {name}", allowed="a name for each", fix=f"Set name: {name}-again."
                )
            taken.add(name)
            yield Draft(name, base, place, given if number is None else _in_round(given, number), problem)


def _fault(name: str, repeat: Any, given: Mapping[str, Any]) -> ConfigError | None:
    if not _NAME.fullmatch(name):
        return ConfigError(
            given=f"name = {show(name)}",
            allowed="letters, digits, - and _, because it names a folder",
            fix=f"Set name: {re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-') or 'first'}.",
        )
    if repeat is not None and (isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1):
        return ConfigError(given=f"repeat = {show(repeat)}", allowed="an integer of at least 1", fix="Set repeat: 3.")
    for setting in ("output", "export", "stop_if_worse", STAGES):
        if setting in given:
            return ConfigError(
                given=f"{setting} is set in a stage",
                allowed=f"{setting} at the top level, for all stages",
                fix="A stage is a run in the pipeline's folder; move it to the top level or remove it.",
            )
    return None


def _in_round(value: Any, number: int) -> Any:
    """Return the value with `{round}` replaced in its texts."""
    if isinstance(value, str):
        return value.replace("{round}", str(number))
    if isinstance(value, Mapping):
        return {key: _in_round(inner, number) for key, inner in value.items()}
    return [_in_round(inner, number) for inner in value] if isinstance(value, list) else value


# --- overrides -------------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    key: str
    value: Any
    text: str = ""
    """The override on the command line, beginning with its key."""


@dataclass(kw_only=True)
class Changes:
    """Overrides, grouped by the part of the pipeline that they change."""

    of_pipeline: list[Change] = field(default_factory=list)
    of_start: list[Change] = field(default_factory=list)
    """Changes to the initial model of the pipeline. Later stages name another model only in their own entries."""
    of_stages: list[tuple[str, Change]] = field(default_factory=list)
    """(name, base name or position of a stage, or empty for all stages; change)."""

    @staticmethod
    def of(overrides: Sequence[str] | Mapping[str, Any], listed: Entries, own: Collection[str]) -> Changes:
        """Group the overrides. `own` has the settings of the pipeline outside its stages."""
        found = Changes()
        for change in _changes(overrides):
            first, *rest = change.key.split(".")
            if first == STAGES:
                target, inner = _aimed_at(change, listed)
                found.of_stages.append((target, inner))
            elif first.replace("-", "_") in own:
                found.of_pipeline.append(change)
            elif first == "model" and (not rest or rest[0].replace("-", "_") in ("path", "gguf_file", "revision")):
                found.of_start.append(change)
            else:
                found.of_stages.append(("", change))
        return found

    def of_stage(self, draft: Draft) -> list[str] | dict[str, Any]:
        """Return a stage's overrides for `load_config`: from overrides for all stages to overrides for this round."""
        targets = dict.fromkeys(("", str(draft.place), draft.base, draft.name))
        mine = [change for wanted in targets for target, change in self.of_stages if target == wanted]
        if any(change.text for change in mine):
            return [change.text for change in mine]
        return {change.key: change.value for change in mine}


def _changes(overrides: Sequence[str] | Mapping[str, Any]) -> Iterator[Change]:
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            if key == STAGES and isinstance(value, Mapping):
                yield from (Change(f"{STAGES}.{name}", inner) for name, inner in value.items())
            else:
                yield Change(str(key), value)
        return
    for text in [overrides] if isinstance(overrides, str) else overrides:
        key, value = read_override(text)
        yield Change(key, value, f"{key}={text.partition('=')[2]}")


def _aimed_at(change: Change, listed: Entries) -> tuple[str, Change]:
    """Return the stage that `stages.NAME.setting` names, and the change to that setting."""
    drafts = list(drafts_of(listed))
    known = [
        *dict.fromkeys(name for draft in drafts for name in (draft.base, draft.name)),
        *map(str, range(len(listed))),
    ]
    _, _, rest = change.key.partition(".")
    target, _, setting = rest.partition(".")
    if target not in known:
        close = difflib.get_close_matches(target, known, n=1)
        raise ConfigError(
            given=f"{change.key}: there is no stage {target!r}",
            allowed=f"stages.NAME.setting with one of {', '.join(dict.fromkeys(draft.name for draft in drafts))}",
            fix=f"Did you mean {close[0]}?" if close else "A stage's position in the list, counted from 0, works too.",
        )
    if setting:
        return target, Change(setting, change.value, change.text.removeprefix(f"{STAGES}.{target}."))
    if isinstance(change.value, Mapping) and not change.text and len(change.value) == 1:
        (setting, value), *_ = change.value.items()
        return target, Change(setting, value)
    raise ConfigError(
        given=f"{change.key} = {show(change.value)}",
        allowed="a setting of the stage",
        fix=f"Write {STAGES}.{target}.train.steps=5, for example.",
    )


def with_start(shared: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """Return the shared settings with a different initial model."""
    below = shared.get("model", {})
    below = {"path": fspath(below)} if isinstance(below, (str, PathLike)) else dict(below)
    value = change.value
    new = {change.key.partition(".")[2].replace("-", "_"): value} if "." in change.key else value
    new = {"path": fspath(new)} if isinstance(new, (str, PathLike)) else dict(new)
    return {**shared, "model": below | new}


# --- the models of earlier stages ------------------------------------------------------------------------------------


def links_of(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield (dotted setting, name after `stage:`). Raise ConfigError if the setting takes no model."""
    for path, value in leaves(config.model_dump(mode="json")):
        setting = dotted(path)
        for text in value if isinstance(value, list) else [value]:
            match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
            if match is None:
                continue
            if not _takes_model(setting):
                raise ConfigError(
                    given=f"{setting} = {show(value)}",
                    allowed=f"{MARK}NAME in model, reference, teacher, critic.path, rewards.N.model and check.N.model",
                    fix="Write a path here: a stage hands over only its model.",
                )
            yield setting, match[1]


def refuse_unmarked(config: RunConfig, names: Collection[str]) -> None:
    """Raise ConfigError if a model setting is the bare name of an earlier stage and no such folder exists."""
    for setting, path in models_named(config):
        if path in names and not Path(path).exists():
            raise ConfigError(
                given=f"{setting} = {path}, which is the name of an earlier stage and not of a folder",
                allowed=f"{MARK}{path} for the model of that stage, or a model",
                fix=f"Set {setting} = {MARK}{path}. If you mean a model on the Hub, rename the stage.",
            )


def wants_policy(setting: str, *, trains_policy: bool) -> bool | None:
    """Return the kind of model that a setting takes: a policy (True), a model that scores (False), or either (None).

    `trains_policy`: whether the stage with this setting trains a policy.
    """
    if _TAKES_SCORES.fullmatch(setting):
        return False
    if setting == "model.path":
        return True if trains_policy else None
    return True if _TAKES_POLICY.fullmatch(setting) else None


def _takes_model(setting: str) -> bool:
    known = (_TAKES_POLICY, _TAKES_SCORES, _TAKES_EITHER)
    return setting == "model.path" or any(pattern.fullmatch(setting) for pattern in known)
