"""Do the alarms ring in time? Runs train on three gameable rewards until these are gamed; the page is in docs/.

    python benchmarks/alarms.py              the missing ones of 120 runs, 15 s of a core each; can be interrupted
    python benchmarks/alarms.py --tune       the same for the seeds that thresholds may be tuned on, in another file
    python benchmarks/alarms.py --page       write the page again from the numbers on file

For each loophole of benchmarks/loopholes and each seed there are two runs of the same length from the same start model:
one with the flawed reward and one with the honest reward. The start model cheats in 1% to 5% of its answers. No alarm
stops a run, so that its whole course is visible. A run counts as caught if its first alarm comes before the held-out
score has lost 10 points from its best; that score is the independent check on prompts that are never trained on. The
thresholds are the defaults of `alarms:`. They and the tasks were chosen with the simulations of alarm_thresholds.py and
with seeds below 200. The results are those of seeds 200 to 219, which nobody had looked at before.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import resource
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from loopholes.page import KINDS, TWINS, in_words, page_of

from posttrain.config.sections import AlarmConfig
from posttrain.tasks.tiny import cache_folder

HERE = Path(__file__).parent
RESULT = HERE / "results" / "alarms.json"
TUNING = HERE / "results" / "alarms-tuning.json"
THRESHOLDS = HERE / "results" / "alarm_thresholds.json"
PAGE = HERE.parent / "docs" / "alarms-measured.md"
PAIRS_PER_POOL = 20
"""Number of pairs of runs before the processes are replaced, so that their memory starts small again. The alternative,
max_tasks_per_child of Python 3.11, can leave a pool without processes."""
SEEDS, TUNING_SEEDS = tuple(range(200, 220)), tuple(range(100, 106))
STEPS, EVERY, TRAIN_ROWS = 80, 2, 2000
PROCESSES = 2


def settings(kind: str, twin: str, seed: int, folder: Path, model: Path) -> dict[str, Any]:
    """The settings of one run: 80 steps x 32 prompts x 8 completions. After every second step it answers 256 held-out
    prompts greedily."""
    from loopholes.start import LOOPHOLES

    loophole = LOOPHOLES[kind]
    data = {}
    for name, split, rows in (("train", "train", TRAIN_ROWS), ("eval", "eval", 256)):
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in loophole.rows(rows, split=split)))
        data[name] = str(file)
    return {
        "model": {"path": str(model), "device": "cpu"},
        "algorithm": {"name": "dr_grpo"},
        "data": data,
        "rewards": [{"function": loophole.function(loophole.flawed if twin == "flawed" else loophole.honest)}],
        "check": [{"function": loophole.function("check")}],
        "sampling": {
            "group_size": 8,
            "max_completion_length": loophole.max_completion_length,
            "max_batch_rows": 256,
        },
        "train": {
            "steps": STEPS,
            "prompts_per_step": 32,
            "learning_rate": loophole.learning_rate,
            "warmup_steps": 10,
            "tokens_per_microbatch": 8192,
        },
        "evaluation": {"prompts": 256, "samples": 0, "every": EVERY},
        "checkpoint": {"every": 0},
        "guards": {"no_signal_steps": STEPS, "max_truncated": 1.0},
        "report": False,
        "output": str(folder / "run"),
        "seed": seed,
    }


# --- one run, in its own process --------------------------------------------------------------------------------------


def measure(kind: str, twin: str, seed: int, folder: Path, models: Path) -> dict[str, Any]:
    """Train one run, and read its alarms and its held-out scores from the run folder."""
    from loopholes.start import LOOPHOLES, start_model

    from posttrain.report.store import read_rollouts
    from posttrain.train.api import train

    model, start = start_model(LOOPHOLES[kind], seed, models)
    folder.mkdir(parents=True)
    before = seconds_used()
    run = train(settings(kind, twin, seed, folder, model))
    is_cheat = LOOPHOLES[kind].module.is_cheat
    cheats = []
    for step in range(1, STEPS + 1):
        rows = read_rollouts(run.folder, step)
        cheats.append(sum(is_cheat(row["completion"]) for row in rows) / len(rows) if rows else None)
    return {
        "kind": kind,
        "twin": twin,
        "seed": seed,
        "start": start,
        "alarms": alarms_of(run.folder),
        "heldout": heldout_of(run.folder),
        "reward": [round(record["reward"], 4) for record in run.metrics],
        "cheats": [share if share is None else round(share, 4) for share in cheats],
        "seconds": round(seconds_used() - before, 1),
    }


def seconds_used() -> float:
    """CPU seconds of this process and of the processes that computed its rewards."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def events_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def alarms_of(folder: Path) -> list[dict[str, Any]]:
    """All alarms of the run, in order."""
    return [
        {
            "step": event["step"],
            "alarm": event["alarm"],
            "change_point": event["change_point"],
            "message": event["message"],
        }
        for event in events_of(folder)
        if event["kind"] == "alarm"
    ]


def heldout_of(folder: Path) -> list[tuple[int, float]]:
    """(step, share of held-out prompts whose greedy answer the check accepts) before, during and after training."""
    return [
        (int(event.get("step", 0)), float(event["evaluation"]["check"]["check"]["mean"]))
        for event in events_of(folder)
        if event["kind"] == "evaluation"
    ]


# --- all of them ------------------------------------------------------------------------------------------------------


def run_missing(seeds: Sequence[int], file: Path) -> list[dict[str, Any]]:
    """Do the runs that are missing in the file, and return all runs. Each run is written to the file when it is done.

    Two processes work at a time, with one thread each. A run that fails is reported and does not stop the others.
    """
    runs = on_file(file)
    done = {(run["kind"], run["twin"], run["seed"]) for run in runs}
    pairs = [(kind, seed) for seed in seeds for kind in KINDS if any((kind, t, seed) not in done for t in TWINS)]
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    for first in range(0, len(pairs), PAIRS_PER_POOL):
        with ProcessPoolExecutor(max_workers=PROCESSES, mp_context=context) as pool:
            asked = {
                pool.submit(twins, kind, seed, [t for t in TWINS if (kind, t, seed) not in done])
                for kind, seed in pairs[first : first + PAIRS_PER_POOL]
            }
            for future in as_completed(asked):
                if (error := future.exception()) is not None:
                    print("".join(traceback.format_exception(error))[-2000:], flush=True)
                    continue
                for run in future.result():
                    print(in_words(run), flush=True)
                    runs.append(run)
                put_on_file(runs, file)
    return runs


def twins(kind: str, seed: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """The runs of one kind and seed, which share their start model."""
    with tempfile.TemporaryDirectory() as folder:
        return [measure(kind, name, seed, Path(folder) / name, cache_folder() / "loopholes") for name in names]


def on_file(file: Path) -> list[dict[str, Any]]:
    """The runs on file. Exits if they were measured with other thresholds, because the two must not be mixed."""
    if not file.exists():
        return []
    known = json.loads(file.read_text())
    if known["alarms"] != thresholds():
        sys.exit(f"{file} was measured with other thresholds. Move it away to measure all runs again.")
    return known["runs"]


def thresholds() -> dict[str, Any]:
    return AlarmConfig().model_dump(mode="json")


def put_on_file(runs: Sequence[Mapping[str, Any]], file: Path) -> None:
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    ordered = sorted(runs, key=lambda run: (KINDS.index(run["kind"]), TWINS.index(run["twin"]), run["seed"]))
    lines = ",\n".join(json.dumps(run) for run in ordered)
    draft = file.with_suffix(".draft")
    head = {"machine": machine, "steps": STEPS, "alarms": thresholds()}
    draft.write_text(f'{json.dumps(head)[:-1]}, "runs": [\n{lines}\n]}}\n')
    draft.replace(file)


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--tune"]:
        run_missing(TUNING_SEEDS, TUNING)
        return 0
    runs = json.loads(RESULT.read_text())["runs"] if arguments[:1] == ["--page"] else run_missing(SEEDS, RESULT)
    PAGE.write_text(page_of(runs, json.loads(THRESHOLDS.read_text()), steps=STEPS))
    return 0 if len(runs) == len(SEEDS) * len(KINDS) * len(TWINS) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
