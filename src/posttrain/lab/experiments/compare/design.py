"""The design of a comparison: arms, seeds and a budget, from a file or from arguments.

    base: base.yaml                       # a config file, or its settings inline
    settings: {train.learning_rate: 1e-5} # for all arms; they override the base
    arms:                                 # name -> its changes, with nested or dotted keys
      grpo: {algorithm: grpo}
      careful: {algorithm: grpo, train.learning_rate: 1e-4}
    seeds: 5                              # 0 to 4, or a list
    budget: {tokens: 2e6}                 # or steps, or seconds; default: the steps of the base
    target: 0.8                           # held-out score; the report gives the tokens and seconds to reach it
    measures: {spread: {metric: policy/ratio_std, take: mean}}

Every arm gets the same seeds. Runs with the same seed share the start, the order of the data and the random numbers.
"""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from posttrain.config import DataConfig, Resolved, check, load_config
from posttrain.config.text import read_mapping, read_override
from posttrain.errors import ConfigError, DataError
from posttrain.lab.experiments.compare.measures import Measure, measure_of

Unit = Literal["steps", "tokens", "seconds"]
Settings = Mapping[str, Any]
KEYS = ("title", "base", "settings", "arms", "seeds", "budget", "target", "score", "measures", "confidence")
HOLD_OUT = "data.hold_out"
MOST_STEPS = 100_000
"""Upper limit on the steps of a run with a budget in seconds."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The budget of each run; the run ends with the step that reaches it."""

    unit: Unit
    amount: float

    @classmethod
    def read(cls, given: Any) -> Budget:
        """Parse `{"tokens": 2e6}` or `tokens=2e6`."""
        pairs = list(given.items()) if isinstance(given, Mapping) else [str(given).partition("=")[::2]]
        unit, amount = pairs[0] if len(pairs) == 1 else ("", None)
        value = _number(amount)
        known = next((one for one in get_args(Unit) if one == unit), None)
        if known is None or value is None or value <= 0 or (unit != "seconds" and value % 1):
            raise ConfigError(
                given=f"budget = {given}",
                allowed="one of steps, tokens and seconds, with a number above 0",
                fix="For example, write tokens=2e6; in a file, budget: {tokens: 2e6}.",
            )
        return cls(unit=known, amount=value)

    def __str__(self) -> str:
        return f"{self.amount:,.10g} {self.unit}"


@dataclass(frozen=True, kw_only=True)
class Design:
    """A valid comparison. `read_design` refuses invalid ones."""

    base: Settings
    settings: Settings = field(default_factory=dict)
    """Settings for all arms. They override the base."""
    arms: Mapping[str, Settings]
    seeds: tuple[int, ...]
    budget: Budget
    title: str = ""
    target: float | None = None
    score: Literal["auto", "check"] = "auto"
    """The score that compares the arms: the held-out score of the rewards, or the score of the independent check."""
    measures: Mapping[str, Measure] = field(default_factory=dict)
    confidence: float = 0.95
    hold_out: str = "prompts"
    """`data.hold_out` of arms that do not set it."""

    def resolved(self, arm: str, seed: int) -> Resolved:
        """Return the settings of one run, except its folder. A ConfigError names the arm."""
        base, changes = self.base, {**self.settings, **self.arms[arm], "seed": seed}
        try:
            resolved = _settled(base, changes)
            resolved = _settled(base, {**changes, **_spending(self.budget, resolved), **self._own(resolved)})
            check(resolved.config)
        except ConfigError as error:
            raise ConfigError(given=f"arm {arm}: {error.given}", allowed=error.allowed, fix=error.fix) from error
        return resolved

    def _own(self, resolved: Resolved) -> dict[str, Any]:
        """Return what the comparison sets in place of defaults. It keeps only the newest checkpoint, because many runs
        fill a disk."""
        own = {"checkpoint.keep": 1, HOLD_OUT: self.hold_out}
        return {key: value for key, value in own.items() if resolved.origins.get(key) == "default"}

    def record(self) -> dict[str, Any]:
        """Return plain data from which `read_design` restores the design."""
        return {
            "title": self.title,
            "base": dict(self.base),
            "settings": {HOLD_OUT: self.hold_out, **self.settings},
            "arms": {name: dict(changes) for name, changes in self.arms.items()},
            "seeds": list(self.seeds),
            "budget": {self.budget.unit: self.budget.amount},
            "target": self.target,
            "score": self.score,
            "measures": {name: measure.record() for name, measure in self.measures.items()},
            "confidence": self.confidence,
        }


def _names(text: str) -> list[str]:
    """
    >>> _names("grpo, rloo,")
    ['grpo', 'rloo']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def read_design(
    source: str | Path | Settings,
    *,
    algorithms: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    budget: Any = None,
    target: float | None = None,
    overrides: Settings | Sequence[str] = (),
    hold_out: str = "prompts",
) -> Design:
    """Read a comparison file, or a config and algorithms (a list or a comma-separated string). Arguments override the
    file.

    `overrides` are settings for all arms. `hold_out` is the default of `data.hold_out`. Raises ConfigError.
    """
    algorithms = _names(algorithms) if isinstance(algorithms, str) else algorithms
    given = copy.deepcopy(dict(source)) if isinstance(source, Mapping) else read_mapping(source)
    folder = Path() if isinstance(source, Mapping) else Path(source).parent
    if "arms" not in given:
        given = {"base": given, "arms": {name: {"algorithm": name} for name in algorithms}}
    elif algorithms:
        raise ConfigError(
            given="algorithms together with a file with arms", allowed="one of the two", fix="Add them to its arms."
        )
    _known_keys(given)
    base = given["base"] if isinstance(given.get("base"), Mapping) else read_mapping(folder / str(given.get("base")))
    settings = {**(given.get("settings") or {}), **_read_settings(overrides)}
    hold_out = _take_hold_out(base, settings, hold_out)
    arms = _arms(given["arms"])
    design = Design(
        title=str(given.get("title") or ""),
        base=base,
        settings=settings,
        arms=arms,
        seeds=_seeds(given.get("seeds", 3) if seeds is None else seeds),
        budget=_budget(
            given.get("budget") if budget is None else budget, base, {**settings, **next(iter(arms.values()))}
        ),
        target=_target(given.get("target") if target is None else target),
        score=_score(given.get("score", "auto")),
        measures={str(name): measure_of(name, how) for name, how in (given.get("measures") or {}).items()},
        confidence=_confidence(given.get("confidence", 0.95)),
        hold_out=hold_out,
    )
    _check(design)
    return design


# --- the budget of a run ---------------------------------------------------------------------------------------------


def _spending(budget: Budget, resolved: Resolved) -> dict[str, Any]:
    """Return settings that end a run when its budget is spent. A learning-rate schedule needs to know its last step."""
    train = resolved.config.train
    if budget.unit == "steps":
        return {"train.steps": int(budget.amount)}
    if train.schedule != "constant":
        raise ConfigError(
            given=f"train.schedule = {train.schedule} with a budget in {budget.unit}: the number of its last step "
            "is unknown",
            allowed="train.schedule = constant, or a budget in steps",
            fix="Set train.schedule = constant, or use a budget such as steps=200.",
        )
    if budget.unit == "seconds":
        return {"train.stop_after_seconds": budget.amount, "train.steps": MOST_STEPS}
    most = math.ceil(budget.amount / train.prompts_per_step)  # a row has at least one token
    return {"train.stop_after_tokens": int(budget.amount), "train.steps": most}


# --- reading ---------------------------------------------------------------------------------------------------------


def _known_keys(given: Settings) -> None:
    for key in given:
        if key not in KEYS:
            close = difflib.get_close_matches(str(key), KEYS, n=1)
            raise ConfigError(
                given=f"{key} is not a setting of a comparison",
                allowed=", ".join(KEYS),
                fix=f"Did you mean {close[0]}?" if close else "Settings of the runs belong below base.",
            )


def _read_settings(overrides: Settings | Sequence[str]) -> dict[str, Any]:
    return dict(overrides) if isinstance(overrides, Mapping) else dict(read_override(text) for text in overrides)


def _take_hold_out(base: Settings, settings: dict[str, Any], default: str) -> str:
    """Take `data.hold_out` out of the base and the settings: designs with the same value are the same, wherever it
    stands."""
    data = base.get("data")
    in_base = data.pop("hold_out", default) if isinstance(data, dict) else default
    return settings.pop(HOLD_OUT, in_base)


def _arms(given: Any) -> dict[str, Settings]:
    found = given.items() if isinstance(given, Mapping) else ()
    arms: dict[str, Settings] = {str(name): dict(changes or {}) for name, changes in found}
    if len(arms) < 2:
        raise ConfigError(
            given=f"{len(arms)} arms",
            allowed="at least two to compare",
            fix="Give --algorithms grpo,rloo, or a file with arms: {a: {algorithm: grpo}, b: {algorithm: rloo}}.",
        )
    for name, changes in arms.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(
                given=f"an arm named {name!r}",
                allowed="a letter or digit, then letters, digits and _ . + -: folders of runs get this name",
                fix="Name it first-arm, for example.",
            )
        reserved = [key for key in changes if key in ("seed", "output", "train.steps")]
        if reserved:
            raise ConfigError(
                given=f"arm {name} sets {reserved[0]}",
                allowed="any other setting: seeds, budget and --out apply to all arms",
                fix=f"Remove {reserved[0]} from the arm.",
            )
    return arms


def _seeds(given: Any) -> tuple[int, ...]:
    numbers = [_number(one) for one in given] if isinstance(given, list | tuple) else []
    count = None if isinstance(given, list | tuple) else _number(given)
    if count is not None and count >= 1 and count % 1 == 0:
        return tuple(range(int(count)))
    if numbers and all(n is not None and n >= 0 and n % 1 == 0 for n in numbers) and len(set(numbers)) == len(numbers):
        return tuple(int(n) for n in numbers if n is not None)
    raise ConfigError(
        given=f"seeds = {given}", allowed="a number, or a list of different seeds", fix="Write seeds: 5, or [0, 1, 2]."
    )


def _budget(given: Any, base: Settings, changes: Settings) -> Budget:
    """Read the budget. By default it is the number of steps of the first arm."""
    return Budget.read({"steps": _settled(base, changes).config.train.steps} if given is None else given)


def _target(given: Any) -> float | None:
    value = _number(given)
    if given is not None and value is None:
        raise ConfigError(given=f"target = {given}", allowed="a held-out score", fix="Write target: 0.8, for example.")
    return value


def _score(given: Any) -> Literal["auto", "check"]:
    if given not in ("auto", "check"):
        raise ConfigError(
            given=f"score = {given}",
            allowed="auto (the held-out score of the rewards) or check (the independent check)",
            fix="Write score: auto.",
        )
    return given


def _confidence(given: Any) -> float:
    value = _number(given)
    if value is None or not 0 < value < 1:
        raise ConfigError(given=f"confidence = {given}", allowed="between 0 and 1", fix="Write confidence: 0.95.")
    return value


def _number(given: Any) -> float | None:
    """Return a finite number, or None. Accepts text, because YAML reads 2e6 as a string."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    try:
        value = float(given)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _settled(base: Settings, changes: Settings) -> Resolved:
    """Apply changes to the base. If they name another algorithm, the base's algorithm settings are dropped."""
    below = {key: value for key, value in base.items() if key != "algorithm"}
    same = _algorithm(changes) in ("", _algorithm(base))
    return load_config(dict(base) if same else below, dict(changes), origin="base")


def _algorithm(settings: Settings) -> str:
    """Return the algorithm's name in the settings, or an empty string."""
    named = settings.get("algorithm", settings.get("algorithm.name", ""))
    return str(named.get("name", "")) if isinstance(named, Mapping) else str(named)


def held_out_rows(data: DataConfig) -> tuple[Any, ...]:
    """Return the settings that decide which rows are held out, and their order. Only arms that agree in them can be
    compared row by row."""
    if data.eval is not None:
        return data.eval, data.eval_split, data.max_rows
    return data.train, data.split, data.eval_fraction, data.max_rows


def _check_same_rows(data: Mapping[str, DataConfig]) -> None:
    """Refuse arms that hold out other rows: after all runs there would be nothing to compare. `data.max_rows` may
    differ where `data.eval` names the rows; then the arms are compared on the prompts that they share."""
    rows = {arm: held_out_rows(one)[: 2 if one.eval is not None else None] for arm, one in data.items()}
    first, *others = rows
    odd = next((arm for arm in others if rows[arm] != rows[first]), None)
    if odd is not None:
        raise ConfigError(
            given=f"arms {first} and {odd} hold out different rows: {_held_out(data[first])}, and "
            f"{_held_out(data[odd])}",
            allowed="the same held-out rows for all arms",
            fix="Set data.eval in the base, and leave it out of the arms.",
        )


def check_same_split(design: Design, seeds: Iterable[int]) -> None:
    """Refuse arms that find other prompts in the same rows, and so hold out other rows with one of the seeds. Data that
    cannot be read is left to the runs."""
    data = {arm: design.resolved(arm, design.seeds[0]).config.data for arm in design.arms}
    arms: dict[str, str] = {}
    for arm, one in data.items():
        arms.setdefault(repr(_unit(one)), arm)
    first, *others = arms.values()
    for seed in seeds if others else ():
        expected = _rows_held_out(data[first], seed)
        for arm in others:
            rows = _rows_held_out(data[arm], seed)
            if rows is not None and expected is not None and rows != expected:
                raise ConfigError(
                    given=f"arms {first} and {arm} hold out different rows with seed {seed}: "
                    f"{_shown_unit(data[first])}, and {_shown_unit(data[arm])}",
                    allowed="the same held-out rows for all arms",
                    fix="Set data.eval, or data.hold_out = rows, in the base, and leave it out of the arms.",
                )


def _unit(data: DataConfig) -> tuple[Any, ...]:
    """Return the settings that decide which rows are held out together."""
    if data.eval is not None or data.eval_fraction == 0 or str(data.train).startswith("task:"):
        return ()
    return (data.hold_out, data.prompt, data.columns) if data.hold_out == "prompts" else (data.hold_out,)


def _shown_unit(data: DataConfig) -> str:
    named = zip(("hold_out", "prompt", "columns"), _unit(data), strict=False)
    return ", ".join(f"data.{name} = {value}" for name, value in named if value)


def _rows_held_out(data: DataConfig, seed: int) -> list[str] | None:
    """Return the places of the held-out rows; None if the data cannot be read."""
    from posttrain.data.split import read_split  # slow to import, and rarely needed

    try:
        return [row.origin for row in read_split(data, seed).heldout]
    except DataError:
        return None


def _held_out(data: DataConfig) -> str:
    if data.eval is not None:
        return f"data.eval = {data.eval}, data.eval_split = {data.eval_split}"
    most = "" if data.max_rows is None else f", data.max_rows = {data.max_rows}"
    return f"{data.eval_fraction:g} of data.train = {data.train}, data.split = {data.split}{most}"


def _check(design: Design) -> None:
    """Check that every arm is valid and that all are scored in the same way. Raises ConfigError before any training."""
    configs = {arm: design.resolved(arm, design.seeds[0]).config for arm in design.arms}
    _check_same_rows({arm: config.data for arm, config in configs.items()})
    judged = {
        arm: (config.evaluation, config.check if design.score == "check" else config.rewards)
        for arm, config in configs.items()
    }
    first, *others = judged
    odd = [arm for arm in others if judged[arm] != judged[first]]
    if odd:
        raise ConfigError(
            given=f"the held-out scores of {first} and {odd[0]} mean different things: their rewards or evaluation "
            "differ",
            allowed="the same scoring for all arms",
            fix="Add a check to the base, and score: check to the comparison. The check then scores every arm.",
        )
    if design.score == "check" and not configs[first].check:
        raise ConfigError(
            given="score = check, but the base has no check",
            allowed="an entry in check",
            fix="For example, write check: [{name: exact_match}] below base.",
        )
    if design.target is not None and configs[first].evaluation.every == 0:
        raise ConfigError(
            given=f"target = {design.target:g}, but evaluation.every = 0: nothing measures when a run reaches it",
            allowed="evaluation.every of at least 1",
            fix="For example, set evaluation.every = 10 in the base.",
        )
