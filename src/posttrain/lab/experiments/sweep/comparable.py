"""Do all trials measure the same? Their scores can be ranked only if they have the same held-out rows, and of given
answers the same tokens.

Many settings can change these: limits of lengths, columns, the number of rows, the chat template. So the rows
themselves are compared: before the sweep for the ends and choices of each knob, and after it as each trial measured
them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.config import RunConfig, load_config
from posttrain.data.dropped import counted
from posttrain.errors import ConfigError, DataError
from posttrain.lab.experiments.sweep.knobs import Knob
from posttrain.lab.experiments.sweep.settings import SweepSettings, with_values
from posttrain.lab.experiments.sweep.study import TrialRecord
from posttrain.lab.plan.workload import model_architecture, tokenizer_of
from posttrain.report.heldout import WORDS, kind_of
from posttrain.report.store import number, read_run


class Measured(NamedTuple):
    """What a held-out score is of. None for what is not known."""

    kind: str
    rows: Sequence[Any] | None = None
    """Name of each row."""
    count: int | None = None
    tokens: int | None = None
    answers: Sequence[Any] | None = None
    """Of each row what the score judges by: the gold answer, or the tokens of the given answers."""

    def differs(self, other: Measured) -> bool:
        """Is anything different that is known of both?"""
        return any(a is not None and b is not None and a != b for a, b in zip(self, other, strict=True))

    def __str__(self) -> str:
        tokens = "" if self.tokens is None else f" with {self.tokens:,} tokens"
        rows = "held-out rows" if self.count is None else counted(self.count, "held-out row")
        return f"{self.kind} of {rows}{tokens}"


def check_same_rows(settings: SweepSettings) -> None:
    """Refuse a knob that changes what the held-out score measures. Data or a tokenizer that cannot be read here are
    left to the trials."""
    base = load_config(settings.base).config
    expected: Measured | None = None
    for knob in settings.knobs:
        for value in knob.samples():
            config = load_config(with_values(settings.base, {knob.key: value})).config
            _require_same_limit(knob, config, base)
            if _decides(config) == _decides(base):
                continue
            expected = expected or _held_out(base)
            found = _held_out(config)
            if config.model != base.model and found.kind not in ("examples", "prompts"):
                found = found._replace(tokens=None, answers=None)  # whichever tokens, the same answers are ranked
            if found.differs(expected):
                others = " other" if str(found) == str(expected) else ""
                raise ConfigError(
                    given=f"{knob.key} as a knob: the default measures {expected}, {value} measures{others} {found}",
                    allowed="settings that keep the held-out rows and their answers: trials are compared by them",
                    fix=f"Give {knob.key} one value for all trials, such as {knob.key}={value}.",
                )


def _require_same_limit(knob: Knob, config: RunConfig, base: RunConfig) -> None:
    """Refuse a knob that changes how long the held-out answers may become: the score would show the limit."""
    if config.algorithm.build().data_kind != "prompts" or config.evaluation.max_completion_length is not None:
        return
    limit = base.sampling.max_completion_length
    if config.sampling.max_completion_length != limit:
        raise ConfigError(
            given=f"{knob.key} as a knob, which is also the limit of the held-out answers",
            allowed="settings that leave the held-out answers alone: trials are compared by them",
            fix=f"Set evaluation.max_completion_length, such as {limit}, so that all trials answer at most so long.",
        )


def _decides(config: RunConfig) -> tuple[Any, ...]:
    """Return the settings that can change the held-out rows or their tokens."""
    return config.data, config.model, config.sampling.max_completion_length, config.algorithm.build().data_kind


def _held_out(config: RunConfig) -> Measured:
    """Return what a run with this config will measure, as far as data and tokenizer are on this machine."""
    from posttrain.data.split import read_split  # slow to import, and rarely needed

    kind = config.algorithm.build().data_kind
    if config.sampled_pairs is not None:
        return Measured(kind)
    try:
        rows = list(read_split(config.data, config.seed).heldout[: 2 * config.evaluation.prompts])
    except DataError:
        return Measured(kind)
    with suppress(Exception):  # the trials report it, and their measurements are compared
        return _rendered(config, kind, rows)
    places = [row.origin for row in rows][: config.evaluation.prompts]
    return Measured(kind, places, len(places))


def _rendered(config: RunConfig, kind: Any, rows: Sequence[Any]) -> Measured:
    """Return what is measured of the held-out rows: the rows that the limits of lengths keep, and their answers."""
    from posttrain.data.dataset import type_of
    from posttrain.data.looks import LOOKS, Looking
    from posttrain.data.prompts import Renderer

    tokenizer = tokenizer_of(config)
    if tokenizer is None:
        raise LookupError("no tokenizer on this machine")
    data = config.data.model_copy(update={"max_dropped": 1.0})
    room = model_architecture(config.model.path).context or 2**31
    look = Looking(
        rows=rows,
        settings=data,
        renderer=Renderer.of(data, tokenizer, config.model.chat_template_kwargs),
        eos_ids=frozenset({int(tokenizer.eos_token_id)} if isinstance(tokenizer.eos_token_id, int) else ()),
        max_length=room - config.sampling.max_completion_length
        if kind == "prompts"
        else min(room, data.max_length or room),
        unit="tokens",
    )
    records = list(LOOKS[kind].render(look)[0][: config.evaluation.prompts])
    places = [rows[record.index].origin for record in records]
    if kind == "prompts":
        return Measured(kind, places, len(records), None, [record.columns.get("answer") for record in records])
    how = type_of(records)
    answers = [
        ([_trained(example) for _, example in how.sequences(record)], list(how.numbers(record))) for record in records
    ]
    return Measured(kind, places, len(records), sum(len(ids) for sides, _ in answers for ids in sides), answers)


def _trained(example: Any) -> list[int]:
    return [token for token, wanted in zip(example.input_ids, example.completion_mask, strict=True) if wanted]


# --- what the trials measured -----------------------------------------------------------------------------------------


def measured(folder: Path) -> Measured | None:
    """Read what the run in a folder measured before training; None if it measured nothing. Runs of earlier versions
    have the same files."""
    found = read_run(folder).evaluations.get(0)
    if not found:
        return None
    kind = kind_of(found)
    count = number(found.get(WORDS[kind].count))
    tokens = number(found.get("tokens")) if kind == "loss" else None
    return Measured(
        kind,
        _indices(folder / "evaluations" / "baseline.jsonl"),
        None if count is None else int(count),
        None if tokens is None else int(tokens),
        _lengths(folder / "evaluations" / "baseline-scores.json") if kind == "loss" else None,
    )


def _indices(file: Path) -> list[Any] | None:
    """Return the row of each answered prompt; None without a complete file."""
    with suppress(OSError, ValueError, AttributeError):
        return [json.loads(line).get("index") for line in file.read_bytes().splitlines() if line]
    return None


def _lengths(file: Path) -> list[Any] | None:
    """Return the number of measured tokens of each given answer; None without a complete file."""
    with suppress(OSError, ValueError, AttributeError):
        return json.loads(file.read_text(encoding="utf-8")).get("tokens")
    return None


def not_comparable(trials: Sequence[TrialRecord], folders: Mapping[int, Path]) -> str:
    """Say which trials measured different things, and which settings may be the cause; "" if all measured the same."""
    known = [(trial, found) for trial in trials if (found := measured(folders[trial.number])) is not None]
    if not known:
        return ""
    first, expected = known[0]
    odd = [(trial, found) for trial, found in known[1:] if found.differs(expected)]
    if not odd:
        return ""
    trial, found = odd[0]
    keys = [key for key, value in trial.values.items() if value != first.values.get(key)]
    others = "other " if str(found) == str(expected) else ""
    return (
        f"The trials are not comparable, so none is called the best: trial {first.number} measured {expected}, trial "
        f"{trial.number} measured {others}{found}. {len(odd)} of {len(known)} trials differ from the first. "
        f"Sweep again with one value for the setting that changes the held-out rows ({' or '.join(keys)})."
    )
