"""Kill engines, trainers and reward workers of asynchronous runs at random moments, and check that the runs recover.

    python -m benchmarks.engine_kills --kills 100 --seed 0
    python -m benchmarks.engine_kills --kills 20 --engine vllm     # servers instead of our engines

Each run samples two steps ahead, with two engines (or one server; then every other run is synchronous), evaluates
during training, and is resumed whenever its trainer was killed. The seed determines the target, the moment and the
signal: SIGKILL, or SIGSTOP to make an engine hang. Nothing is killed before the first step of a process or while an
engine starts. Every run must end with exit code 0, or say which engine is lost or who waited. Each prompt must be
trained exactly once, and not earlier than `run_ahead` allows. No process may be left, and policy versions may neither
fall nor come from the future. The first three runs are replayed and must end with the same bits. Further runs get
Ctrl-C, once or twice, at any moment.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
from benchmarks.speed.machine import origin

from posttrain.config import load_config
from posttrain.data.order import rows_for_step
from posttrain.data.split import read_split
from posttrain.errors import EngineError
from posttrain.report.store import read_run

PROMPTS, ROWS = 4, 2000
QUIET = 3.0
"""Time without a step, in seconds, after which nothing is killed."""
REWARD = """
def sorted_share(prompt, completion, answer, **row):
    return sum(a == b for a, b in zip(completion.strip(), answer)) / max(len(answer), 1)
"""


@dataclass(frozen=True)
class Kind:
    """A kind of engine, and the properties of its runs."""

    program: str
    """The module that an engine's process runs."""
    model: str
    steps: int
    kills: int
    """Number of kills in a run."""
    rollout: dict[str, Any]
    targets: dict[str, int]
    """What is killed -> its relative frequency."""
    leads: tuple[tuple[int, int], ...]
    """`run_ahead` and `max_staleness` of the runs, in turn."""
    result: str

    @property
    def modules(self) -> dict[str, str]:
        """What is killed -> the module that its process runs."""
        return {"engine": self.program, "hang": self.program, "reward": "posttrain.rewards.worker"}


MINIMIND = Path(__file__).parents[2] / "shared" / "data" / "models" / "minimind2-small"
KINDS = {
    "local": Kind(
        program="posttrain.engines.worker",
        model="tiny:sort",
        steps=200,
        kills=12,
        rollout={"engines": 2, "deadline": 10},
        targets={"engine": 4, "hang": 2, "reward": 2, "trainer": 2},
        leads=((2, 8),),
        result="engine_kills.json",
    ),
    "vllm": Kind(
        program="vllm.entrypoints.launchers.api_server.entry",
        model=str(MINIMIND),
        steps=60,
        kills=5,
        rollout={"engine": "vllm", "deadline": 20},
        targets={"engine": 4, "hang": 4, "trainer": 1},
        leads=((2, 8), (0, 0)),
        result="server_kills.json",
    ),
}


@dataclass
class Outcome:
    """The result of one run."""

    exit_code: int | None = None
    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """Messages of the run about losses."""


def write_inputs(folder: Path, seed: int, kind: Kind, lead: tuple[int, int]) -> Path:
    dice = random.Random(seed)
    rows = ["".join(dice.choices("0123456789", k=dice.randint(3, 6))) for _ in range(ROWS)]
    lines = [json.dumps({"prompt": row, "answer": "".join(sorted(row))}) for row in rows]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "reward.py").write_text(REWARD)
    config = {
        "model": {"path": kind.model, "device": "cpu"},
        "algorithm": {"name": "grpo"},
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0.01},
        "rewards": [{"function": f"{folder / 'reward.py'}:sorted_share"}],
        "sampling": {"group_size": 4, "max_completion_length": 24},
        "train": {
            "steps": kind.steps, "prompts_per_step": PROMPTS, "learning_rate": 1e-5, "run_ahead": lead[0],
            "max_staleness": lead[1],
        },
        "rollout": kind.rollout,
        "evaluation": {"prompts": 16, "samples": 1, "writing": 0, "every": 7},
        "checkpoint": {"every": 10, "keep": 3},
        "guards": {"max_truncated": 1.0, "no_signal_steps": 100_000},
        "report": False,
    }  # fmt: skip
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path.rename(folder / "config.yaml")  # JSON is YAML


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "posttrain", *arguments]


def of_run(folder: Path, module: str) -> list[psutil.Process]:
    """The processes of this run that run `module`. They inherited the run's folder in their environment."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        with suppress(psutil.Error):
            ours = (process.info["environ"] or {}).get("POSTTRAIN_KILLS") == str(folder)
            if ours and module in (process.info["cmdline"] or ()):
                found.append(process)
    return found


def supervises(process: psutil.Process) -> bool:
    """Whether a process only supervises the intended target."""
    return any(word.endswith("supervise.py") for word in process.info["cmdline"] or ())


def one_run(folder: Path, dice: random.Random, kills: int, kind: Kind, lead: tuple[int, int]) -> Outcome:
    outcome, run = Outcome(), folder / "run"
    config = write_inputs(folder, dice.randrange(10**6), kind, lead)
    environment = os.environ | {"POSTTRAIN_KILLS": str(folder), "OMP_NUM_THREADS": "1"}
    arguments = ["train", str(config), f"output={run}"]
    with (folder / "log.txt").open("ab") as log:
        while True:
            process = subprocess.Popen(command(*arguments), stdout=log, stderr=log, env=environment)
            killed = kill_while_it_runs(process, folder, dice, outcome, kills, kind)
            outcome.exit_code = process.wait()
            if not killed:
                break
            arguments = ["resume", str(run)] if (run / "checkpoints").exists() else arguments
    time.sleep(1.0)
    look_at(outcome, folder, kind, lead[0])
    return outcome


def kill_while_it_runs(
    process: subprocess.Popen[bytes], folder: Path, dice: random.Random, outcome: Outcome, kills: int, kind: Kind
) -> bool:
    """Kill at random moments, until the run has ended; True if the trainer was killed."""
    metrics, moment = folder / "run" / "metrics.jsonl", 0.0
    before = size = size_of(metrics)
    grown = time.monotonic()
    while process.poll() is None:
        time.sleep(0.05)
        if outcome.kills.total() >= kills or size_of(metrics) == before or time.monotonic() < moment:
            continue  # kill only while training: the start takes far longer and has less to lose
        if size_of(metrics) > size:
            size, grown = size_of(metrics), time.monotonic()
        if time.monotonic() - grown > QUIET:
            continue  # an engine is starting: it would be allowed to hang for five minutes
        target = dice.choices(list(kind.targets), list(kind.targets.values()))[0]
        moment = time.monotonic() + dice.uniform(0.2, 4)
        if target == "trainer":
            process.kill()
            process.wait()
            outcome.kills[target] += 1
            return True
        victims = [one for one in of_run(folder, kind.modules[target]) if not supervises(one)]
        if not victims:
            continue
        with suppress(psutil.Error):
            victims[dice.randrange(len(victims))].send_signal(signal.SIGSTOP if target == "hang" else signal.SIGKILL)
            outcome.kills[target] += 1
    return False


def size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def look_at(outcome: Outcome, folder: Path, kind: Kind, ahead: int) -> None:
    """Check the conditions that a run must meet after kills."""
    run = folder / "run"
    log = (folder / "log.txt").read_text()
    causes = ("EngineError: the trainer waited", "EngineError: no engine is left")
    if outcome.exit_code == EngineError.exit_code and any(cause in log for cause in causes):
        outcome.said.append("the run ended, and said which engine is lost or who waited for whom")
    elif outcome.exit_code:
        outcome.wrong.append(f"exit code {outcome.exit_code}: {log[-800:]}")
    if outcome.exit_code:
        return
    if left := [process for module in set(kind.modules.values()) for process in of_run(folder, module)]:
        outcome.wrong.append(f"{len(left)} processes are left")
    if (status := read_run(run).status) != "finished":
        outcome.wrong.append(f"the run is {status}")
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    outcome.said = [one["message"] for one in events if " is lost" in one["message"] or " is late" in one["message"]]
    given_up = sum(" is abandoned: " in one["message"] for one in events)
    outcome.wrong += wrong_in_the_ledger(run, kind.steps, ahead, given_up)


def wrong_in_the_ledger(run: Path, steps: int, ahead: int, given_up: int) -> list[str]:
    """Faults in the recorded rollouts. Every prompt of the order up to the last one must be trained once, except those
    that the run gave up by its own account, and the versions of tokens must be possible."""
    wrong = list[str]()
    files = sorted((run / "rollouts").glob("step-*.parquet"))
    columns = ["step", "group", "prompt_index", "versions"]
    rows = [row for file in files for row in pq.read_table(file, columns=columns).to_pylist()]
    groups = {(row["step"], row["group"]): row["prompt_index"] for row in rows}
    counts = Counter(groups.values())
    if len(files) != steps or len(groups) != steps * PROMPTS:
        wrong.append(f"{len(files)} steps with {len(groups)} groups are on file")
    if twice := [prompt for prompt, count in counts.items() if count > 1]:
        wrong.append(f"{len(twice)} prompts were trained more than once, {twice[:5]} for example")
    number = numbers_of_prompts(run, steps)
    first = {number[prompt] for prompt in counts}
    lost = sorted(set(range(len(groups) + given_up)) - first)
    if len(lost) != given_up:
        wrong.append(f"prompts {lost[:5]} in their order were never trained, and {given_up} were given up")
    early = [step - 1 - number[prompt] // PROMPTS for (step, _), prompt in groups.items()]
    if min(early) < -ahead:
        wrong.append(f"a prompt was trained {-min(early)} steps before its turn")
    if any(version > row["step"] - 1 or version < 0 for row in rows for version in row["versions"]):
        wrong.append("a token has a version that did not exist when it was trained")
    if any(row["versions"] != sorted(row["versions"]) for row in rows):
        wrong.append("versions fall within a completion")
    return wrong


def numbers_of_prompts(run: Path, steps: int) -> dict[int, int]:
    """Index of a prompt -> number of its group in the order of training."""
    config = load_config(run / "config.yaml").config
    size = len(read_split(config.data, config.seed).train)
    order = [row for step in range(1, steps + 50) for row in rows_for_step(config.seed, step, PROMPTS, size)]
    return {row: number for number, row in reversed(list(enumerate(order)))}


def interrupted(dice: random.Random) -> str:
    """Send Ctrl-C once or twice at a random moment of a run or its start; return the faults, "" if there are none."""
    kind = KINDS["local"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        config = write_inputs(folder, dice.randrange(10**6), kind, (2, 8))
        environment = os.environ | {"POSTTRAIN_KILLS": str(folder), "OMP_NUM_THREADS": "1"}
        with (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                command("train", str(config), f"output={folder / 'run'}"), stdout=log, stderr=log, env=environment
            )
            time.sleep(dice.uniform(0.2, 20))
            for _ in range(dice.randint(1, 2)):
                process.send_signal(signal.SIGINT)
                time.sleep(dice.uniform(0.0, 1.0))
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                return f"it went on for a minute: {(folder / 'log.txt').read_text()[-500:]}"
        time.sleep(1.0)
        left = [one for module in set(kind.modules.values()) for one in of_run(folder, module)]
        wrong = [f"{len(left)} processes are left"] if left else []
        wrong += [] if code in (0, 130, -signal.SIGINT) else [f"exit code {code}"]
        return ", ".join(wrong)


def replay(run: Path) -> str:
    """Train the run again from its records; return the faults, "" if all bits are the same."""
    done = subprocess.run(command("replay", str(run)), capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout[-500:] + done.stderr[-500:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--interrupts", type=int, default=20, help="runs that get Ctrl-C at any moment")
    parser.add_argument("--engine", choices=KINDS, default="local")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell and their children ignore it
    kind = KINDS[asked.engine]
    out = asked.out or Path(__file__).parent / "results" / kind.result
    kills, said, failed, replayed, runs = Counter[str](), 0, list[str](), 0, 0
    while kills.total() < asked.kills:
        dice = random.Random(f"{asked.seed} {runs}")
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            at_most, lead = min(kind.kills, asked.kills - kills.total()), kind.leads[runs % len(kind.leads)]
            outcome = one_run(folder, dice, at_most, kind, lead)
            if replayed < 3 and outcome.exit_code == 0:
                replayed += 1
                if wrong := replay(folder / "run"):
                    outcome.wrong.append(f"its replay: {wrong}")
        kills += outcome.kills
        said += len(outcome.said)
        failed += [f"run {runs}: {wrong}" for wrong in outcome.wrong]
        runs += 1
        print(
            f"run {runs}: exit {outcome.exit_code}, {dict(outcome.kills)}, {len(outcome.said)} losses told", flush=True
        )
        for wrong in outcome.wrong:
            print(f"  WRONG: {wrong}", flush=True)
        if not outcome.kills:
            failed.append(f"run {runs}: nothing was killed")
            break
    dice = random.Random(f"{asked.seed} interrupts")
    interrupts = [interrupted(dice) for _ in range(asked.interrupts)]
    failed += [f"interrupt {number}: {wrong}" for number, wrong in enumerate(interrupts) if wrong]
    record = {
        "kills": dict(kills), "runs": runs, "steps_of_a_run": kind.steps, "losses_told": said, "replayed": replayed,
        "interrupts": len(interrupts), "failed": failed, "origin": origin(),
    }  # fmt: skip
    out.write_text(json.dumps(record, indent=1) + "\n")
    for wrong in failed:
        print(f"WRONG: {wrong}")
    print(f"{kills.total()} kills in {runs} runs, {len(interrupts)} interrupted, {len(failed)} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
