"""The follower ranks: each builds the same trainer as the leader, and takes part in every announced operation.

A follower reads no data except auxiliary rows, samples nothing and measures nothing. It writes only its part of a
checkpoint. It ends when the first rank says so, or as soon as the first rank is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.data.split import read_auxiliary
from posttrain.models import sharding
from posttrain.models.policy import OPEN, load_frozen
from posttrain.ranks.group import ProcessRanks, lost_ranks
from posttrain.train.guards import NonFinite
from posttrain.train.loop import STEP, train_step
from posttrain.train.publish import FINITE, FiniteWeights
from posttrain.train.setup import POLICY, SCORER, TRAINER, Policy, Scorer
from posttrain.train.sharded_state import SAVE, save_part
from posttrain.train.trainer import REHEARSE, RESTORE, Trainer

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.config.sections import ReferenceConfig, TeacherConfig

END = "end"
"""The announcement that the run is over."""


class Follower:
    """One follower rank. It builds and uses its parts in the same order as the first rank."""

    config: RunConfig
    """The config of the run as the first rank announces it, including the sizes that the first rank chose."""

    def __init__(self, ranks: ProcessRanks) -> None:
        self.ranks = ranks
        self.folder: Path | None = None
        """The folder of the run, once the first rank has announced it."""
        self.commands: Mapping[str, Callable[..., object]] = {
            POLICY: self.make_policy,
            OPEN: self.open,
            TRAINER: self.make_trainer,
            SCORER: self.make_scorer,
            sharding.PASS: sharding.accompany,
            sharding.WHOLE: sharding.bring,
            REHEARSE: lambda longest: self.trainer.rehearse(longest),
            STEP: lambda experience, step: train_step(self.trainer, experience, step),
            FINITE: lambda step: FiniteWeights(self.trainer.loaded.model, self.ranks)(step),
            SAVE: lambda state, step: save_part(self.trainer, Path(state), step),
            RESTORE: lambda state, path: self.trainer.restore_parts(Path(state), Path(path)),
        }

    def run(self) -> None:
        """Carry out announced operations until the run is over."""
        while True:
            command, args = self.ranks.follow()
            if command == END:
                return
            with lost_ranks(self.ranks.deadline):
                self.commands[command](*args)

    def make_policy(self, folder: str, config: RunConfig) -> None:
        self.folder, self.config = Path(folder), config
        self.policy = Policy.of(config, config.algorithm.build(), Path(folder), self.ranks)

    def open(self, section: str, entry: TeacherConfig | ReferenceConfig) -> None:
        load_frozen(section, entry, self.config, self.policy.loaded, self.policy.forward)

    def make_trainer(self) -> None:
        rows = read_auxiliary(self.config.data, self.config.seed)
        self.trainer, _ = self.policy.trainer(self.config, rows, **self._beside())

    def make_scorer(self, folder: str, config: RunConfig) -> None:
        self.folder, self.config = Path(folder), config
        scorer = Scorer.of(config, config.algorithm.build(), Path(folder), self.ranks)
        self.trainer: Trainer = scorer.trainer(config, **self._beside())

    def _beside(self) -> dict[str, Any]:
        assert self.folder is not None, "the policy is made first"
        return {"numbers": NonFinite(partial(_evidence, self.folder)), "publish": lambda version: {}}


def _evidence(folder: Path, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """The path that a follower's error names. A follower saves no rows: they are part of its error."""
    return folder / "error.json"
