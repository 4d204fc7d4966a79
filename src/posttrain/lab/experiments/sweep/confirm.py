"""Runs the best configuration and the default on fresh seeds: does the gain hold?

The score of a selected configuration is the highest of many, and therefore too high by luck (selection bias). Seeds
that played no part in the selection are free of this bias. Both sides run with each seed and are compared seed by seed.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.functional.intervals import Interval, paired_interval
from posttrain.lab.experiments.children import Child, ChildResult, start_child
from posttrain.lab.experiments.sweep.comparable import measured
from posttrain.lab.experiments.sweep.settings import with_values
from posttrain.lab.experiments.sweep.trials import COLLAPSED, Course, Say, goodness, read_course
from posttrain.report.heldout import LOWER_IS_BETTER

SIDES = ("best", "default")
ROUNDING = 1e-9
"""Differences that are equal up to this share of the scores are equal."""
FIRST_SEED = 1000
"""Offset from the config's seed to the first fresh seed."""


class SeedScore(NamedTuple):
    """The score of one side at one seed. None if its run collapsed or failed."""

    side: str
    seed: int
    score: float | None
    collapsed: bool = False
    reason: str = ""


@dataclass(kw_only=True)
class SeedTask:
    """A run of one side with one fresh seed."""

    side: str
    seed: int
    folder: Path
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    say: Say

    def start(self) -> Child | None:
        if self.folder.is_dir() and read_course(self.folder).state != "unfinished":
            return None
        return start_child(self.settings, self.folder, environment=self.environment)

    def look(self, child: Child) -> None:
        """Do nothing: these runs are not stopped early, so that both sides get the same budget."""

    def ended(self, result: ChildResult) -> None:
        found = score_of(self.side, self.seed, self.folder)
        shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
        shown = "no score" if found.score is None else f"{found.score:.4g}"
        self.say(f"{self.side}, seed {self.seed}: {shown}{': ' + found.reason if found.reason else ''}")


def fresh_seeds(seed: int, count: int) -> list[int]:
    return [seed + FIRST_SEED + number for number in range(count)]


def seed_tasks(
    base: Mapping[str, Any],
    best: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    folder: Path,
    environment: Mapping[str, str],
    say: Say,
) -> Iterator[SeedTask]:
    """Yield both sides for each seed, seed by seed, so that the finished runs are paired at any time."""
    for seed in seeds:
        for side, values in zip(SIDES, (best, {}), strict=True):
            yield SeedTask(
                side=side,
                seed=seed,
                folder=seed_folder(folder, side, seed),
                settings=with_values(base, {**values, "seed": seed}),
                environment=environment,
                say=say,
            )


def seed_folder(folder: Path, side: str, seed: int) -> Path:
    return folder / f"{side}-seed-{seed}"


def score_of(side: str, seed: int, folder: Path) -> SeedScore:
    """Read the score of a run with a fresh seed."""
    course = read_course(folder)
    if course.state == "finished" and course.last is not None:
        return SeedScore(side, seed, course.last.mean)
    collapsed = course.error.get("exit_code") == COLLAPSED
    return SeedScore(side, seed, None, collapsed, _reason(course))


def scores_of(seeds: Sequence[int], folder: Path) -> list[SeedScore]:
    """Read the scores of both sides. A seed with which they measured different rows has no scores."""
    return [score for seed in seeds for score in _both(seed, folder)]


def _both(seed: int, folder: Path) -> list[SeedScore]:
    places = {side: seed_folder(folder, side, seed) for side in SIDES}
    scores = [score_of(side, seed, place) for side, place in places.items()]
    best, default = map(measured, places.values())
    if best is None or default is None or not best.differs(default):
        return scores
    reason = "not comparable: with this seed the two sides measured different held-out rows"
    return [score if score.score is None else score._replace(score=None, reason=reason) for score in scores]


def _reason(course: Course) -> str:
    if course.error:
        return f"{course.error.get('type')}: {str(course.error.get('message', '')).splitlines()[0]}"
    return "it did not finish"


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The scores of the best configuration and of the default on fresh seeds."""

    measure: str
    scores: tuple[SeedScore, ...]

    def of(self, side: str) -> list[SeedScore]:
        return [found for found in self.scores if found.side == side]

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """(default, best) for each seed with which both runs finished."""
        both = zip(self.of("default"), self.of("best"), strict=True)
        return [(a.score, b.score) for a, b in both if a.score is not None and b.score is not None]

    @property
    def difference(self) -> Interval:
        """The mean of best minus default over the seeds, with Student's t interval. Infinite if all seeds agree."""
        found = paired_interval([before for before, _ in self.pairs], [after for _, after in self.pairs])
        return found._replace(low=-math.inf, high=math.inf) if self.is_tied else found

    @property
    def is_tied(self) -> bool:
        """Is the difference the same with every seed? Then its spread over other seeds is unknown, not 0."""
        apart = [after - before for before, after in self.pairs]
        size = max((abs(score) for pair in self.pairs for score in pair), default=0.0)
        return len(apart) > 1 and max(apart) - min(apart) <= ROUNDING * size

    def collapses(self, side: str) -> int:
        return sum(found.collapsed for found in self.of(side))

    def lost(self, side: str) -> int:
        """Count the runs without a score, for whatever reason. They might have been the worst."""
        return sum(found.score is None for found in self.of(side))

    @property
    def verdict(self) -> int:
        """1: the best configuration is shown to be better; -1: worse; 0: neither. A side that lost more runs than the
        other, by a collapse or otherwise, is never called better. Nor is one whose seeds do not vary."""
        if len(self.pairs) < 2:
            return 0
        low, high = sorted(goodness(self.measure, edge) for edge in self.difference[1:3])
        if low > 0 and self.lost("best") <= self.lost("default"):
            return 1
        return -1 if high < 0 and self.lost("default") <= self.lost("best") else 0

    def to_json(self) -> dict[str, Any]:
        mean, low, high, n = self.difference
        shown = {"mean": mean, "low": low, "high": high, "n": n}
        return {
            "measure": self.measure,
            "lower_is_better": self.measure in LOWER_IS_BETTER,
            "scores": [found._asdict() for found in self.scores],
            "difference": {name: value if math.isfinite(value) else None for name, value in shown.items()},
            "verdict": self.verdict,
        }
