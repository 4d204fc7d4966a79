"""The runs behind a model: what it was trained from, back to a model that no run here has trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.config import RunConfig, load_config
from posttrain.errors import ConfigError
from posttrain.export.origin import Origin
from posttrain.files import is_inside


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One run, up to the checkpoint that was gone on with."""

    run: Path
    config: RunConfig
    step: int

    @property
    def data(self) -> list[str]:
        train = self.config.data.train
        return [train] if isinstance(train, str) else list(train)


def lineage(origin: Origin) -> list[Trained]:
    """The first run first, that of the origin last; none for a model without a run."""
    if origin.run is None or origin.config is None or origin.step is None:
        return []
    found = [Trained(run=origin.run, config=origin.config, step=origin.step)]
    while (before := _before(found[0])) is not None and before.run not in [known.run for known in found]:
        found.insert(0, before)
    return found


def first_model(origin: Origin, runs: Sequence[Trained]) -> str:
    """The model that the first of the runs started with."""
    return runs[0].config.model.path if runs else origin.model.path


def _before(trained: Trained) -> Trained | None:
    """The run whose checkpoint this one started with: where it was, or beside it in a pipeline that was moved."""
    *_, folder, _, step, last = ("", "", "", *Path(trained.config.model.path).parts)
    if last != "model" or not step.removeprefix("step-").isdecimal():
        return None
    for run in (Path(trained.config.model.path).parents[2], trained.run.resolve().parent / folder):
        if is_inside(run, "config.yaml"):
            try:
                config = load_config(run / "config.yaml").config
            except ConfigError:  # of another version: what cannot be read is not told
                return None
            return Trained(run=run, config=config, step=int(step.removeprefix("step-")))
    return None
