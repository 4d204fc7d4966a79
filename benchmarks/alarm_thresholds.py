"""How often are there false alarms, and how late do true alarms come? A simulation with the functions that a run uses.

    python benchmarks/alarm_thresholds.py        about a minute; writes benchmarks/results/alarm_thresholds.json

In an honest run, reward and check disagree about a share d0 of the accepted answers; in a gamed run they disagree more
often. The rate of false alarms is the share of honest runs with at least one alarm. The delay is the median number of
steps (or evaluations) from the change to the alarm. `benchmarks/alarms.py` puts the tables on its page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from posttrain.config.sections import AlarmConfig
from posttrain.functional.cusum import largest_drop, log_likelihood_ratio
from posttrain.watch.disagreement import Disagreement

RESULT = Path(__file__).parent / "results" / "alarm_thresholds.json"
DEFAULTS = AlarmConfig()
LIMIT, RATIO = DEFAULTS.cusum_limit, DEFAULTS.disagreement_ratio or 3.0
STEPS, RUNS, LATEST = 1000, 4000, 300
"""Number of steps of an honest run, number of simulated runs, and steps after which a gamed run counts as missed."""


# --- disagreement -----------------------------------------------------------------------------------------------------


def first_crossings(rejected_RS: np.ndarray, checked: int, alarm: Disagreement) -> np.ndarray:
    """The step (from 1) at which the sum of each run R reaches the limit; 0 if it never does within the steps S."""
    shares = {"baseline": alarm.baseline, "target": alarm.target}
    llr_of = np.array([log_likelihood_ratio(rejected, checked, **shares) for rejected in range(checked + 1)])
    value_R, crossed_R = np.zeros(len(rejected_RS)), np.zeros(len(rejected_RS), dtype=int)
    for step in range(rejected_RS.shape[1]):
        value_R = np.maximum(0.0, value_R + llr_of[rejected_RS[:, step]])
        crossed_R[(crossed_R == 0) & (value_R >= alarm.limit)] = step + 1
    return crossed_R


def cusum(
    dice: np.random.Generator, *, limit: float = LIMIT, ratio: float = RATIO, checked: int = 32, true: float = 0.01
) -> dict[str, Any]:
    """One row of the first table. `true` is the disagreement of an honest run; the alarm assumes 1%."""
    alarm = Disagreement(ratio, limit, baseline=0.01)
    honest = first_crossings(dice.binomial(checked, true, (RUNS, STEPS)), checked, alarm)
    row = {"limit": limit, "ratio": ratio, "checked": checked, "true": true, "false": float((honest > 0).mean())}
    for gamed in (0.05, 0.10, 0.20):
        found = first_crossings(dice.binomial(checked, gamed, (RUNS, LATEST)), checked, alarm)
        row[f"delay_{gamed:.0%}"] = float(np.median(np.where(found > 0, found, LATEST)))
    return row


def measured(dice: np.random.Generator, *, true: float, accepted: int = 150) -> dict[str, Any]:
    """One row for the defaults, with the normal disagreement measured as in a run: before training, on the accepted
    held-out answers. It has the false alarms of honest runs, and the delay (median and 90% quantile) after the
    disagreement rises by 10 points."""
    rejected_R = dice.binomial(accepted, true, RUNS)
    false, delays = 0, []
    for rejected, runs in zip(*np.unique(rejected_R, return_counts=True), strict=True):
        alarm = Disagreement(RATIO, LIMIT)
        alarm.calibrate(int(rejected), accepted)
        false += int((first_crossings(dice.binomial(32, true, (runs, STEPS)), 32, alarm) > 0).sum())
        gamed = first_crossings(dice.binomial(32, true + 0.10, (runs, LATEST)), 32, alarm)
        delays += np.where(gamed > 0, gamed, LATEST).tolist()
    return {
        "true": true,
        "accepted": accepted,
        "false": false / RUNS,
        "delay": float(np.median(delays)),
        "late": float(np.quantile(delays, 0.9)),
    }


def clustered(dice: np.random.Generator, *, one_per_prompt: bool) -> dict[str, Any]:
    """Honest runs whose check is wrong about all answers of one prompt in a hundred. A step has 32 prompts with 8
    answers each, 60% of which are accepted. The check looks at 32 answers: random ones, or one for each prompt."""
    prompts, group, runs = 32, 8, 1000
    wrong_RSP = dice.random((runs, STEPS, prompts)) < 0.01
    if one_per_prompt:
        rejected_RS = wrong_RSP.sum(-1)
    else:
        accepted_RSP = dice.binomial(group, 0.6, wrong_RSP.shape)
        wrong_RS, all_RS = np.where(wrong_RSP, accepted_RSP, 0).sum(-1), accepted_RSP.sum(-1)
        rejected_RS = dice.hypergeometric(wrong_RS, all_RS - wrong_RS, 32)
    alarm = Disagreement(RATIO, LIMIT, baseline=0.01)
    return {"one_per_prompt": one_per_prompt, "false": float((first_crossings(rejected_RS, 32, alarm) > 0).mean())}


# --- held-out drop ----------------------------------------------------------------------------------------------------


def drop(
    dice: np.random.Generator, *, prompts: int, z: float, window: int = 3, score: float = 0.7, loss: float = 0.012
) -> dict[str, Any]:
    """One row of the second table, from two kinds of runs: 60 evaluations with a constant score, and 20 constant ones
    followed by 40 that each lose another 1.2 points."""
    runs, steady, falling = 600, 20, 40
    flat = [alarm_at((dice.binomial(prompts, score, 60) / prompts).tolist(), prompts, window, z) for _ in range(runs)]
    course = np.concatenate([np.full(steady, score), score - loss * np.arange(1, falling + 1)]).clip(0.02)
    fallen = [alarm_at((dice.binomial(prompts, course) / prompts).tolist(), prompts, window, z) for _ in range(runs)]
    delays = [max(0, found - steady) for found in fallen if found]
    return {
        "prompts": prompts,
        "window": window,
        "z": z,
        "false": sum(found > 0 for found in flat) / runs,
        "detected": len(delays) / runs,
        "delay": float(median(delays)),
        "lost": float(median(delays)) * loss,
    }


def alarm_at(scores: Sequence[float], prompts: int, window: int, z: float) -> int:
    """The evaluation (from 1) at which the drop exceeds z; 0 if none does."""
    measured = [(score, max(score * (1 - score), 1e-4) ** 0.5 / prompts**0.5) for score in scores]
    for end in range(2 * window, len(measured) + 1):
        found = largest_drop(measured[:end], window)
        if found is not None and found.z > z:
            return end
    return 0


def main() -> int:
    dice = np.random.default_rng(20)
    kinds = ((256, 3, 3.0), (256, 3, 3.5), (256, 3, 4.0), (64, 3, 4.0), (1024, 3, 4.0), (256, 5, 4.0))
    found = {
        "steps": STEPS,
        "latest": LATEST,
        "limits": [cusum(dice, limit=limit) for limit in (5.0, 7.0, 9.0, 11.0)],
        "samples": [cusum(dice, checked=checked) for checked in (8, 16, 64)],
        "ratios": [cusum(dice, ratio=ratio) for ratio in (2.0, 5.0, 8.0)],
        "baselines": [cusum(dice, true=true) for true in (0.0, 0.015, 0.02)],
        "measured": [measured(dice, true=true) for true in (0.0, 0.01, 0.02, 0.05, 0.10)],
        "clustered": [clustered(dice, one_per_prompt=each) for each in (False, True)],
        "drops": [drop(dice, prompts=prompts, window=window, z=z) for prompts, window, z in kinds],
    }
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
