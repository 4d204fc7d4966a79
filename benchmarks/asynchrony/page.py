"""Write docs/asynchronous-measured.md from results/asynchrony.json: `python -m benchmarks.asynchrony.page`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.asynchrony import cores, learning, speed

from posttrain.files import write_atomically

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "benchmarks" / "results" / "asynchrony.json"
PAGE = ROOT / "docs" / "asynchronous-measured.md"
HEAD = """<!-- written by: python -m benchmarks.asynchrony -->

# Asynchronous runs, measured

    python -m benchmarks.asynchrony

This page measures what a run gains by sampling and training at the same time, and what training on older tokens costs.
The command repeats the measurement. The numbers are in `benchmarks/results/asynchrony.json`. The score is the share of
held-out words that the model sorts correctly with greedy decoding. Intervals are 95% intervals over seeds, by
Student's t.
"""


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def percent(value: float, digits: int = 1) -> str:
    """A share in percent.

    >>> percent(0.1234)
    '12.3%'
    """
    return f"{100 * value:.{digits}f}%"


def points(mean: float, low: float, high: float) -> str:
    """A difference with its interval, in percentage points.

    >>> points(-0.012, -0.03, 0.006)
    '-1.2 (-3.0 to +0.6)'
    """
    return f"{100 * mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def speed_section(found: Mapping[str, Any]) -> str:
    lines = [
        [
            f"{line['run_ahead']} / {line['max_staleness']}",
            f"{line['steps_per_second']:.2f}",
            f"{line['times']:.2f}",
            f"{line['times_at_pace']:.2f}",
            percent(line["idle"], 0),
            f"{line['lag_mean']:.1f} / {line['lag_p95']:.0f} / {line['lag_max']:.0f}",
            percent(line["masked"], 2),
            percent(line["score"]) + (f" ({line['runs']} seeds)" if line["runs"] > 1 else " (1 seed)"),
        ]
        for line in found["lines"]
    ]
    pace, train, change = found["pace"], found["base"]["train"], found["difference"]
    by_ahead = {line["run_ahead"]: line for line in found["lines"]}
    slow, fast = by_ahead[0], by_ahead[speed.RECOMMENDED[0]]
    sampling = slow["step_seconds"] - slow["busy_seconds"]
    rates = {(run["run_ahead"], run["seed"]): run["steps_per_second"] for run in found["runs"]}
    each = [rates[speed.RECOMMENDED[0], seed] / rates[0, seed] for seed in speed.SEEDS]
    loads = [load for run in found["runs"] for load in run["load"]]
    within = abs(change["low"]) <= 0.03 and abs(change["high"]) <= 0.03
    head = (
        "run_ahead / max_staleness", "steps per second", "speedup", "speedup, server alone",
        "trainer idle", "lag mean / p95 / largest", "masked tokens", "score",
    )  # fmt: skip
    return f"""
## Speed

The engine behaves like a server: the time for a token does not depend on the number of rows, up to {pace["slots"]}
rows at a time. The engine sleeps for that time, so it hardly uses the cores. Its tokens are real: the model samples
each token when it is due, with the weights that are loaded then. A token stands for a piece of a long answer. One
log-normal number for each row sets the time for its tokens (sigma {pace["sigma"]:g}, capped at {pace["longest"]:g}
times the mean). On average a token takes {pace["seconds"]:g} s. Answers have {slow["answer_tokens"]:.1f} tokens, so an
answer takes {pace["seconds"] * slow["answer_tokens"]:.2f} s on average.

The trainer is real and has one thread. Each step has {train["prompts_per_step"]} prompts with
{found["base"]["sampling"]["group_size"]} answers each. All runs start from one model, which has learned a part of the
task. They take {train["steps"]} steps at a learning rate of {train["learning_rate"]:g}. The first {speed.FIRST} steps
are not timed. Two synchronous runs and one of the other runs went on at the same time.

{table(head, lines)}

In a synchronous step sampling takes {sampling:.2f} s (median) and everything else {slow["busy_seconds"]:.2f} s. All
runs shared two cores (load average {min(loads):.1f} to {max(loads):.1f}). This slows both the trainer and the small
computations of the engine. So the column "speedup, server alone" compares with a computed synchronous step: it takes
the server's own time for its slowest row, plus the same measured time for everything else. The goal was AReaL's
figure, {speed.GOAL} times. The recommended setting (`run_ahead: {speed.RECOMMENDED[0]}`,
`max_staleness: {speed.RECOMMENDED[1]}`; both are 0 by default) reaches {fast["times"]:.2f} times as measured, and
{fast["times_at_pace"]:.2f} times against the server's own time. The gain is smaller if sampling takes a smaller part of
a step. Its bound is (sampling + rest) / rest.

The score with the recommended setting minus the score of synchronous training is
{points(change["mean"], change["low"], change["high"])} points over {change["seeds"]} seeds, which is
{"" if within else "not "}within 3 points. The start model of all runs has a score of {percent(slow["baseline"])}, so
{percent(1 - slow["baseline"])} are left to learn. The policy moves slowly, as in fine-tuning of a model that already
knows its task. k3, which estimates KL(sampler || trainer) per token, is {fast["mismatch_k3"]:.4f}. In an earlier setup
(70 steps of 16 prompts, from such a model) training did not improve the score, and the difference was -1.6 (-4.0 to
+0.9). For the same seed, the recommended setting made {min(each):.2f} to {max(each):.2f} times as many steps per
second as synchronous training. The next paragraph shows a policy that moves fast.

In the table, lag p95 and the largest lag are the largest over all steps and seeds. The score is the mean over seeds.
The other columns are medians over seeds.
"""


def fast_section(found: Mapping[str, Any]) -> str:
    """The paragraph on the cost of the same lead for a policy that moves fast."""
    change = found["difference"]
    return f"""
**If the policy moves fast, sampling ahead costs accuracy.** These runs start from the demonstration's start model and
use a learning rate of {found["learning_rate"]:g} with {found["minibatches"]} updates per batch. The recommended setting
was {found["times"]:.2f} times as fast as synchronous training. After the same number of steps the scores were
{percent(found["scores"][1])} with this setting and {percent(found["scores"][0])} with synchronous training. The
difference is {points(change["mean"], change["low"], change["high"])} points over {change["seeds"]} seeds. The next
section measures this cost in detail.
"""


def learning_section(found: Mapping[str, Any]) -> str:
    names = {"auto": "auto (decoupled)", "none": "none", "bypass": "bypass (PPO's clip around the sampler)"}
    lines = [
        [
            str(line["bound"]),
            names[line["correction"]] if line["bound"] else "synchronous",
            f"{percent(line['score'][0])} ({percent(line['score'][1])} to {percent(line['score'][2])})",
            points(*line["change"]) if line["bound"] else "",
            f"{line['lag_mean']:.1f} / {line['lag_max']:.0f}",
            percent(line["masked"], 0),
            f"{line['mismatch_k3']:.4f}",
            f"{line['gradient_max']:.1f} / {line['spikes']}",
            str(line["seeds"]),
        ]
        for line in sorted(found["lines"], key=lambda line: (list(names).index(line["correction"]), line["bound"]))
    ]
    head = (
        "bound", "correction", "score", "change against bound 0, same seeds", "lag mean / largest", "masked",
        "k3 of the sampler", "gradient norm largest / spikes", "seeds",
    )  # fmt: skip
    train = found["base"]["train"]
    return f"""
## Learning

GRPO trains the start model of the demonstration task for {train["steps"]} steps of {train["prompts_per_step"]} prompts
with {found["base"]["sampling"]["group_size"]} answers each. The learning rate is {train["learning_rate"]:g}, and each
batch gets one update.
`bound` is the value of both `run_ahead` and `max_staleness`. The engine decodes immediately everything that the bound
allows. So after the first steps *every* token is as old as the bound, which is the hardest case. In a real run most
tokens are younger.

{table(head, lines)}

k3 estimates KL(sampler || trainer) per token. The table shows the median over steps, and then over seeds. A spike is a
gradient norm above {learning.SPIKE:g} times the median of its run. Spikes are counted over all seeds. `none` uses a
correction weight limited to exactly 1, because runs refuse `algorithm.correction = none` for stale data.

{verdict(found["lines"])}
{few(found["lines"])}
The tiny policy moves fast, as k3 shows. Read the table as a stress test of a bound, and not as the cost of this bound
for a large model.

AReaL reports the following scores (arXiv:2505.24298, 1.5B model, 1000 updates, table of its release notes for v0.3).
Its bound limits how far the sampler runs ahead, so many tokens are younger:

{table(("bound", "AIME24 naive PPO", "AIME24 decoupled", "AIME25 naive PPO", "AIME25 decoupled"), AREAL)}
"""


AREAL = [
    ["0", "42.0", "42.0", "32.9", "32.9"],
    ["1", "41.8", "42.1", "30.7", "31.9"],
    ["2", "40.0", "41.8", "32.1", "32.5"],
    ["4", "23.3", "42.2", "23.1", "32.0"],
    ["8", "35.7", "41.0", "27.8", "31.1"],
    ["16", "35.8", "38.7", "26.2", "32.5"],
    ["unbounded", "34.0", "36.9", "26.9", "29.9"],
]


def verdict(lines: Sequence[Mapping[str, Any]]) -> str:
    """The result of the table in sentences: which changes differ from 0."""
    sentences = []
    for correction in learning.CORRECTIONS:
        own = [line for line in lines if line["correction"] == correction and line["bound"]]
        if not own:
            continue
        lower = [str(line["bound"]) for line in own if line["change"][2] < 0]
        higher = [str(line["bound"]) for line in own if line["change"][1] > 0]
        said = [f"lower at bounds {', '.join(lower)}"] if lower else []
        said += [f"higher at bounds {', '.join(higher)}"] if higher else []
        sentences.append(f"`{correction}` is " + (" and ".join(said) or "not distinguishable from it at any bound"))
    return "By these intervals, compared with synchronous training: " + "; ".join(sentences) + "."


def few(lines: Sequence[Mapping[str, Any]]) -> str:
    """A paragraph on missing parts of the measurement; empty if it is complete."""
    least = min(line["seeds"] for line in lines)
    if least >= len(learning.SEEDS) and {line["correction"] for line in lines} == set(learning.CORRECTIONS):
        return ""
    there = ", ".join(f"`{name}`" for name in learning.CORRECTIONS if name in {line["correction"] for line in lines})
    return f"""
This is only a part of the measurement: the corrections {there}, with at least {least} of {len(learning.SEEDS)} seeds.
With so few seeds intervals are wide.
"""


def cores_section(found: Mapping[str, Any]) -> str:
    lines = [
        [
            one["name"],
            f"{one['parameters'] / 1e6:.1f}M",
            f"{one['sampling']:.2f} / {one['training']:.2f}",
            f"{one['synchronous']:.2f}",
            f"{one['asynchronous']:.2f}",
            f"{one['synchronous'] / one['asynchronous']:.2f}",
            f"{one['bound']:.2f}",
        ]
        for one in found["models"]
    ]
    head = (
        "model", "parameters", "sampling / rest with all cores", "synchronous step", "asynchronous step",
        "speedup", "bound",
    )  # fmt: skip
    return f"""
## On two cores

In this part, the engine computes instead of sleeping. A synchronous step gives both cores first to sampling and then
to training. An asynchronous step gives one core to the engine and one to the trainer (`run_ahead` 1). The bound of the
speedup is (S2 + T2) / max(S1, T1). S is the time of sampling and T the time of the rest of a synchronous step, with
two cores or one core, measured in the same minutes. Seconds are medians over {cores.STEPS - cores.FIRST} steps.

{table(head, lines)}

If the speedup is below 1, the asynchronous run is slower than the synchronous run. The load average during these runs
was {found["load"][0]:.1f} to {found["load"][1]:.1f} on {found["cores"]} cores, and each was run once. If another
program keeps a core busy, neither run has the speed that it has on an idle machine.
"""


SECTIONS = {"speed": speed_section, "fast": fast_section, "learning": learning_section, "cores": cores_section}


def text(result: Mapping[str, Any]) -> str:
    measured = [section(result[name]) for name, section in SECTIONS.items() if name in result]
    origins = [
        f"- {name}: on {one['date']}, commit {one['commit']}, {one['machine']['processor']}, "
        f"{one['machine']['cores']} cores, torch {one['machine']['torch']}"
        for name, one in result["origins"].items()
    ]
    return HEAD + "".join(measured) + "\n## The machine\n\n" + "\n".join(origins) + "\n"


def write(result: Mapping[str, Any]) -> None:
    write_atomically(PAGE, text(result))


if __name__ == "__main__":
    write(json.loads(RESULT.read_text()))
