"""How stale are the tokens that asynchronous runs train on, and what does it cost to bound their age?

    python benchmarks/staleness.py           simulate, save, and write the tables of docs/asynchronous.md; minutes
    python benchmarks/staleness.py --page    write the tables again from the results on file

The workload: one engine with 256 slots, whose speed does not depend on the number of slots in use; 16 prompts with 8
completions in a step; log-normal lengths with a mean of 1 second. A training step takes 1.0 s, a publication 0.02 s.
All rules, ours and those of other libraries, run in the same simulator on the same answers:

- admission: only the lead of the sampler is bounded (AReaL, SkyRL). All samples are trained.
- drop: a group with a token older than the bound is dropped immediately and replaced (verl, prime-rl).
- wait: the trainer does not begin a step that would make a row in flight too old.
- ours: tokens older than the bound are masked, and the other tokens of the row are trained.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.controller.controller import Controller
from posttrain.controller.messages import GiveUp, Interrupt, Limits, Row
from posttrain.controller.simulate import Simulated, simulate
from posttrain.controller.workload import Workload

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from asynchrony.tables import table, with_tables  # noqa: E402

RESULT = HERE / "results" / "staleness.json"
PAGE = HERE.parent / "docs" / "asynchronous.md"
STEPS = 300
UNBOUNDED = 1 << 30
SPREADS = (0.5, 1.0, 1.5)
LEADS = ((1, 1), (2, 2), (1, 8), (2, 8), (4, 8))
"""(run_ahead, max_staleness)"""
EARLIER: dict[tuple[float, int, int], tuple[float, int, float, int]] = {
    (0.5, 1, 1): (2.2, 5, 0, 0),
    (0.5, 2, 2): (3.7, 12, 0, 0),
    (0.5, 1, 8): (2.2, 0, 1.0, 3),
    (0.5, 2, 8): (3.7, 0, 1.9, 6),
    (0.5, 4, 8): (4.2, 0, 3.7, 6),
    (1.0, 1, 1): (2.7, 23, 0, 0),
    (1.0, 2, 2): (4.4, 27, 0, 0),
    (1.0, 1, 8): (2.7, 0, 1.1, 3),
    (1.0, 2, 8): (4.5, 0, 2.0, 5),
    (1.0, 4, 8): (6.6, 0, 3.6, 6),
}
"""Results of an earlier model of the same workload: speed, % masked, mean and largest age (0: not recorded)."""


# --- the rules of the field ------------------------------------------------------------------------------------------


class Remembering(Controller):
    """A controller that knows the version of the first token of each group that is in flight or waiting."""

    def __init__(self, limits: Limits, **given: Any) -> None:
        super().__init__(limits, **given)
        self.oldest: dict[int, int] = {}

    def _drew(self, event):
        super()._drew(event)
        self.oldest.setdefault(event.row.group, event.version)


class Dropping(Remembering):
    """A controller that drops groups which have become too old, and samples other prompts instead."""

    def _begin(self):
        least = self._version - self.limits.max_staleness
        for number in [number for number, version in self.oldest.items() if version < least]:
            if number in self._groups:
                self._drop_in_flight(number)
            elif number in self._finished:
                self._finished.remove(number)
                self._order(GiveUp(number, "too old"))
            del self.oldest[number]
        super()._begin()

    def _drop_in_flight(self, number: int) -> None:
        for g, row in enumerate(self._groups[number].rows):
            if row.engine is not None:
                self._order(Interrupt(row.engine, Row(number, g), row.attempt))
                self._take_from(row.engine, Row(number, g))
        self._forget(number)
        self._order(GiveUp(number, "too old"))


class Waiting(Remembering):
    """A controller that does not train while that would make a row in flight too old."""

    def _deliver(self):
        least = self._version + 1 - self.limits.max_staleness
        if all(self.oldest.get(number, UNBOUNDED) >= least for number in self._groups):
            super()._deliver()


RULES: dict[str, tuple[type[Controller], bool]] = {
    "admission": (Controller, False),
    "drop": (Dropping, True),
    "wait": (Waiting, True),
    "ours": (Controller, True),
}
"""Name of a rule -> its controller, and whether it has a bound on the age of tokens."""


# --- runs ------------------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """The figures of one run."""

    sigma: float
    longest: float
    """Upper limit of the lengths, in multiples of the mean."""
    rule: str
    run_ahead: int
    max_staleness: int | None
    speed: float
    """Speed relative to the synchronous run."""
    mean_age: float
    p95_age: int
    largest_age: int
    masked: float
    longest_drawn: float
    """Share of the sampled tokens that belong to the longest tenth of the completions."""
    longest_trained: float
    """Share of the trained tokens that belong to the longest tenth of the completions."""
    thrown_away: float
    """Share of the started groups that were not trained."""
    trainer_idle: float
    ideal: float
    """Speed of a run whose slower part (sampler or trainer) never waits."""


def run(rule: str, sigma: float, longest: float, ahead: int, bound: int | None) -> Simulated:
    limits = Limits(
        prompts_per_step=16,
        group_size=8,
        last_version=STEPS,
        run_ahead=ahead,
        max_staleness=UNBOUNDED if bound is None else bound,
        max_given_up=UNBOUNDED,
    )
    return simulate(limits, workload(sigma, longest), controller=RULES[rule][0])


def workload(sigma: float, longest: float) -> Workload:
    return Workload(slots=256, sigma=sigma, longest=longest, train_seconds=1.0, publish_seconds=0.02)


def measured(
    rule: str, sigma: float, longest: float, ahead: int, bound: int | None, synchronous: Simulated
) -> Measured:
    print(f"{rule}, sigma {sigma}, longest {longest}, run_ahead {ahead}, max_staleness {bound}", flush=True)
    found = run(rule, sigma, longest, ahead, bound)
    drawn, trained = found.share_of_longest()
    rows = len(found.drawn)
    sampling = sum(synchronous.drawn) / 1000 / 256 / STEPS
    return Measured(
        sigma,
        longest,
        rule,
        ahead,
        bound,
        synchronous.seconds / found.seconds,
        found.mean_lag,
        found.lag_quantile(0.95),
        found.largest_lag,
        found.masked,
        drawn,
        trained,
        1 - STEPS * 16 * 8 / rows,
        found.trainer_idle,
        synchronous.seconds / STEPS / max(1.02, sampling),
    )


def everything() -> list[Measured]:
    """Do all runs: leads and bounds, then all rules, with lengths limited to 6 means and nearly unlimited."""
    found = []
    for longest in (6.0, 50.0):
        for sigma in SPREADS:
            synchronous = run("ours", sigma, longest, 0, 0)
            if longest == 6.0:
                found += [measured("ours", sigma, longest, *pair, synchronous) for pair in LEADS]
            for rule, (_, bounded) in RULES.items():
                for bound in (2, 8) if bounded else (None,):
                    if rule != "ours" or longest != 6.0:
                        found.append(measured(rule, sigma, longest, 2, bound, synchronous))
    return found


# --- tables ----------------------------------------------------------------------------------------------------------


def leads_table(found: list[Measured]) -> str:
    """The table of speed and ages by run_ahead and max_staleness."""
    lines = []
    for sigma in SPREADS:
        runs = {(one.run_ahead, one.max_staleness): one for one in ours(found, sigma, 6.0)}
        cells = [
            f"{one.speed:.1f}×, {one.mean_age:.1f} / {one.largest_age}, {one.masked:.1%}"
            for one in (runs[pair] for pair in LEADS)
        ]
        lines.append([str(sigma), *cells, f"{runs[LEADS[0]].ideal:.1f}×"])
    return table(["spread", *(f"D {ahead}, S {bound}" for ahead, bound in LEADS), "ideal"], lines)


def rules_table(found: list[Measured], longest: float) -> str:
    """The table that compares the rules."""
    head = ["spread", "rule", "bound", "speed", "age: mean / p95 / largest", "masked", "discarded"]
    lines = [
        rule_line(one)
        for sigma in SPREADS
        for rule in RULES
        for one in found
        if (one.sigma, one.longest, one.rule, one.run_ahead) == (sigma, longest, rule, 2)
        and one.max_staleness in (None, 2, 8)
    ]
    return table([*head, "longest tenth: sampled → trained"], lines)


def rule_line(one: Measured) -> list[str]:
    return [
        str(one.sigma),
        one.rule,
        "none" if one.max_staleness is None else str(one.max_staleness),
        f"{one.speed:.1f}×",
        f"{one.mean_age:.1f} / {one.p95_age} / {one.largest_age}",
        f"{one.masked:.1%}",
        f"{one.thrown_away:.1%}",
        f"{one.longest_drawn:.1%} → {one.longest_trained:.1%}",
    ]


def ours(found: list[Measured], sigma: float, longest: float) -> list[Measured]:
    return [one for one in found if (one.sigma, one.longest, one.rule) == (sigma, longest, "ours")]


def differences(found: list[Measured]) -> str:
    """Lines for runs that differ from the earlier model of the workload."""
    lines = []
    for (sigma, ahead, bound), (speed, masked, mean, largest) in EARLIER.items():
        (one,) = (o for o in ours(found, sigma, 6.0) if (o.run_ahead, o.max_staleness) == (ahead, bound))
        apart = []
        if abs(one.speed - speed) > 0.1:
            apart.append(f"speed {one.speed:.2f}, in the earlier model {speed}")
        if abs(100 * one.masked - masked) > 1.0:
            apart.append(f"masked {one.masked:.1%}, in the earlier model {masked}%")
        if mean and (abs(one.mean_age - mean) > 0.1 or one.largest_age != largest):
            apart.append(f"age {one.mean_age:.1f} / {one.largest_age}, in the earlier model {mean} / {largest}")
        if apart:
            lines.append(f"- spread {sigma}, D {ahead}, S {bound}: {'; '.join(apart)}")
    return "\n".join(lines) or "None."


def tables(found: list[Measured]) -> dict[str, str]:
    return {
        "leads": leads_table(found),
        "differences": differences(found),
        "rules": rules_table(found, 6.0),
        "uncut": rules_table(found, 50.0),
    }


def on_file() -> list[Measured]:
    return [Measured(**one) for one in json.loads(RESULT.read_text(encoding="utf-8"))]


def main(arguments: list[str]) -> None:
    if arguments != ["--page"]:
        lines = [json.dumps(asdict(one)) for one in everything()]
        RESULT.write_text("[\n " + ",\n ".join(lines) + "\n]\n", encoding="utf-8")
    found = on_file()
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), tables(found)), encoding="utf-8")
    print("\n\n".join(f"{name}\n{text}" for name, text in tables(found).items()))


if __name__ == "__main__":
    main(sys.argv[1:])
