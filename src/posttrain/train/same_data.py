"""The check that a resumed run continues with the data that it was started with.

The rows of a step are a pure function of the seed, the step and the number of rows. If somebody added, removed or
reordered rows while the run was stopped, the run would treat the new rows as the old ones. So data.json in the run's
folder keeps a hash of the rows as the model reads them. For prompts to which answers are sampled, the hash covers the
columns that rewards read, too:

    {"training data": {"rows": 48, "sha256": ...}, "held-out data": {"rows": 12, "sha256": ...}}

For streamed rows the hash covers their texts and what tokenises them. It is marked "of texts".
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.data.dataset import type_of
from posttrain.data.labels import Unpaired
from posttrain.data.prompt_key import prompt_bytes
from posttrain.data.stream import StreamedRecords
from posttrain.errors import DataError
from posttrain.store.folders import settings_of
from posttrain.types import Example, Prompt

if TYPE_CHECKING:
    from posttrain.config import DataConfig
    from posttrain.evaluate.measure import Measure
    from posttrain.experience.feed import Feed
    from posttrain.train.run import Run

FILE = "data.json"
TRAIN, HELDOUT = "training data", "held-out data"
OF_TEXTS = "of texts"
"""Prefix of the hash of streamed rows."""

Facts = dict[str, dict[str, Any]]


def put_on_file(run: Run) -> None:
    """Write data.json at the start of a run, over the file of an earlier attempt."""
    run.store.record(FILE, facts_of(run.feed, run.measure))


def check_same(run: Run) -> None:
    """Raise DataError if the rows differ from data.json. Facts that an earlier version left out are added to it."""
    before = run.store.read_record(FILE)
    if before is None:
        put_on_file(run)
        return
    require_same(before, run.feed, run.measure, run.config.data, run.folder)
    if any(not isinstance(before.get(what), dict) for what in (TRAIN, HELDOUT)):
        put_on_file(run)


def require_same(before: Facts, feed: Feed, measure: Measure, data: DataConfig, folder: Path) -> None:
    """Raise DataError if the rows of the run in `folder` do not match the facts `before`."""
    now = facts_of(feed, measure, like=before)
    known = [what for what in (TRAIN, HELDOUT) if isinstance(before.get(what), dict)]
    different = [f"{what}: {_difference(before[what], now[what])}" for what in known if before[what] != now[what]]
    if different:
        error = DataError(
            given=f"the data differs from the data that the run was started with ({_places(data)}): "
            + "; ".join(different),
            allowed="the same rows in the same order, read by the same tokenizer and template",
            fix=f"Restore the data and the settings in {settings_of(folder)}. Or start a new run on the new data, "
            "with the model folder of the newest checkpoint as model.path.",
        )
        error.is_lasting = True
        raise error


def facts_of(feed: Feed, measure: Measure, like: Facts | None = None) -> Facts:
    """Number and hash of the training rows and of the held-out rows, hashed in the same way as in `like`."""
    rows = {TRAIN: rows_of(feed), HELDOUT: rows_of(measure)}
    return {
        what: {"rows": len(one), "sha256": rows_key(one, _by_tokens(like, what)) if len(one) else ""}
        for what, one in rows.items()
    }


def _by_tokens(facts: Facts | None, what: str) -> bool:
    return facts is not None and what in facts and not str(facts[what].get("sha256")).startswith(OF_TEXTS)


def tell_of_rows_left_out(run: Run) -> None:
    """Warn of streamed rows that the run left out. It tokenises them as it goes, so it finds them only then."""
    rows = rows_of(run.feed)
    records = getattr(rows, "pairs", rows)
    if isinstance(records, StreamedRecords):
        records.tell(partial(run.warn, "data"))


def rows_of(part: Any) -> Sequence[Any]:
    """The given rows of a feed or of a measure, found inside its wrappers."""
    for name in ("measure", "subject"):
        if (inner := getattr(part, name, None)) is not None:
            return rows_of(inner)
    names = ("examples", "pairs", "rows", "prompts")
    return next((rows for name in names if (rows := getattr(part, name, None)) is not None), ())


def rows_key(rows: Sequence[Any], by_tokens: bool = False) -> str:
    """A hash that changes with any token, mask, label, score or margin, and with the order of the rows.

    For streamed rows it changes with any text. `by_tokens` tokenises all of them, as a run in memory would.
    """
    if isinstance(rows, Unpaired):
        return f"both sides of {rows_key(rows.pairs, by_tokens)}"
    if isinstance(rows, StreamedRecords) and not by_tokens:
        return f"{OF_TEXTS} {rows.key()}"
    if isinstance(rows[0], Prompt):
        return _prompts_key(rows)
    files, end = [hashlib.sha256() for _ in range(4)], 0
    for number in range(len(rows)):
        examples, numbers = _parts(rows[number])
        for example in examples:
            end += len(example.input_ids)
            files[0].update(array("i", example.input_ids).tobytes())
            files[1].update(bytes(example.completion_mask))
            files[2].update(array("q", [end]).tobytes())
        files[3].update(array("d", numbers).tobytes())
    return _joined([file.hexdigest() for file in files])


def _prompts_key(prompts: Sequence[Prompt]) -> str:
    """Hash of the prompts' tokens and of the other columns that rewards read."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(prompt_bytes(prompt) + b"\n")
    return digest.hexdigest()


def _parts(row: Any) -> tuple[tuple[Example, ...], Sequence[float]]:
    """Token sequences and numbers of a row; a row without numbers gets NaN."""
    kind = type_of([row])
    numbers = [math.nan if number is None else number for number in kind.numbers(row)]
    return tuple(example for _, example in kind.sequences(row)), numbers or [math.nan]


def _joined(hashes: Sequence[str]) -> str:
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    counts = [facts["rows"] for facts in (before, now)]
    if counts[0] != counts[1]:
        return f"{counts[1]:,} rows, but there were {counts[0]:,}"
    return f"{counts[0]:,} rows as before, but their content or their order differs"


def _places(data: DataConfig) -> str:
    named = {"data.train": data.train, "data.eval": data.eval}
    return ", ".join(f"{name} = {value}" for name, value in named.items() if value)
