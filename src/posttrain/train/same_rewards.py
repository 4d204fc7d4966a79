"""The warning of a resumed run whose rewards or checks have changed since it was started.

People often resume a run because they edited a reward, so a change is no error. But the old rewards judged the baseline
and every earlier step, and the report compares these with what the new rewards judge. So rewards.json in the run's
folder keeps the known facts about each reward:

    {"rewards": {"brevity": {"name": "brevity", "weight": 0.5, "gate": null, "settings": {}, "file": "<sha256>"}},
     "check": {}}

The hash is of the file that defines the function. It does not cover what that file imports. Nothing here looks into
reward models or judges.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.config.text import redact
from posttrain.errors import ConfigError
from posttrain.rewards.load import Target, find_named, resolve
from posttrain.rewards.verifiers import BUILTINS

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.config.scorers import Scorer
    from posttrain.train.run import Run

FILE = "rewards.json"
_SAID = {"name": "its function", "weight": "its weight", "gate": "its gate", "settings": "its settings"}

Facts = dict[str, dict[str, dict[str, Any]]]


def put_on_file(run: Run) -> None:
    """Write rewards.json at the start of a run, over the file of an earlier attempt."""
    run.store.record(FILE, facts_of(run.config))


def point_out(run: Run) -> None:
    """Warn of changed rewards and checks; does nothing if the run has no rewards.json."""
    before = run.store.read_record(FILE)
    try:
        changed = changes(before, facts_of(run.config)) if before is not None else []
    except (TypeError, AttributeError, KeyError):  # a file of an earlier version
        return
    if changed:
        judged = "The baseline and earlier steps were" if "baseline" in run.evaluation else "Earlier steps were"
        run.warn(
            "rewards",
            f"changed since the run was started: {'; '.join(changed)}. {judged} judged before this change, so a "
            "difference from them may come from the change and not from training.",
        )


def facts_of(config: RunConfig) -> Facts:
    """Facts about every reward and check of a run, by section of the config and label."""
    parts = {"rewards": config.rewards, "check": config.check}
    return {part: {one.metric_name: _facts(one) for one in scorers} for part, scorers in parts.items()}


def changes(before: Facts, now: Facts) -> list[str]:
    """Rewards and checks that judge differently, and what changed in each.

    A new label alone is no change, nor is an added or a removed check.
    """
    kept = [label for label in now["check"] if label in before["check"]]
    found = [_change(f"check.{label}", before["check"][label], now["check"][label]) for label in kept]
    old, new = before["rewards"], now["rewards"]
    for label in old | new:
        if label in old and label in new:
            found.append(_change(f"rewards.{label}", old[label], new[label]))
        elif label in new and new[label] not in old.values():
            found.append(f"rewards.{label} is new")
        elif label in old and old[label] not in new.values():
            found.append(f"rewards.{label} is gone")
    return [change for change in found if change]


def _change(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    different = [said for name, said in _SAID.items() if before[name] != now[name]]
    if before["file"] and now["file"] and before["file"] != now["file"] and "its function" not in different:
        different.append("its file")
    return f"{what} ({', '.join(different)})" if different else ""


def _facts(scorer: Scorer) -> dict[str, Any]:
    gate = getattr(scorer, "gate", None)
    return {
        "name": scorer.name or str(scorer.function or "").replace(":", ".").rpartition(".")[2],
        "weight": getattr(scorer, "weight", 1.0),
        "gate": None if gate is None else gate.model_dump(),
        "settings": redact(scorer.settings),
        "file": file_digest(scorer),
    }


def file_digest(scorer: Scorer) -> str:
    """Hash of the file that defines the scorer's function; empty if there is none."""
    try:
        if scorer.function is not None:
            file = _file_of(resolve(scorer.function))
        else:
            file = None if scorer.name is None or scorer.name in BUILTINS else _file_of(find_named(scorer.name))
        return "" if file is None else hashlib.sha256(file.read_bytes()).hexdigest()
    except (ConfigError, OSError):  # the file has gone since the function was loaded
        return ""


def _file_of(target: Target) -> Path | None:
    """The source file of a function, found without importing anything; None if there is none."""
    if target.path:
        return Path(target.path)
    package, *inner = target.module.split(".")
    spec = PathFinder.find_spec(package, [str(Path.cwd()), *sys.path])
    if spec is None:
        return None
    if not inner:
        places = [Path(spec.origin)] if spec.origin else []
    else:
        below = [Path(place, *inner) for place in spec.submodule_search_locations or ()]
        places = [place for one in below for place in (one.with_suffix(".py"), one / "__init__.py")]
    return next((place for place in places if place.suffix == ".py" and place.is_file()), None)
