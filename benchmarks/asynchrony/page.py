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

What sampling and training side by side is worth, and what older tokens cost. `python -m benchmarks.asynchrony` measures
it again; the numbers are in `benchmarks/results/asynchrony.json`. Score is the share of held-out words that are sorted
right, greedily. Intervals are of 95%, over seeds, by Student's t.
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
    slow, fast = by_ahead[0], by_ahead[speed.DEFAULT[0]]
    sampling = slow["step_seconds"] - slow["busy_seconds"]
    rates = {(run["run_ahead"], run["seed"]): run["steps_per_second"] for run in found["runs"]}
    each = [rates[speed.DEFAULT[0], seed] / rates[0, seed] for seed in speed.SEEDS]
    loads = [load for run in found["runs"] for load in run["load"]]
    within = abs(change["low"]) <= 0.03 and abs(change["high"]) <= 0.03
    head = (
        "run_ahead / max_staleness", "steps per second", "times synchronous", "times, server alone",
        "trainer idle", "lag mean / p95 / largest", "masked tokens", "score",
    )  # fmt: skip
    return f"""
## Speed

The engine answers like a server: a token takes its time whatever the number of rows, up to {pace["slots"]} rows at
once. It sleeps for that time, so that it needs few of the cores. Its tokens are real: the model that is trained draws
each one when it is due, with the weights that are loaded then. A token stands for a stretch of a long answer. How long
the stretches of a row are is one log-normal number (sigma {pace["sigma"]:g}, capped at {pace["longest"]:g} times the
mean); on average they take {pace["seconds"]:g} s. Answers have {slow["answer_tokens"]:.1f} tokens, so that one takes
{pace["seconds"] * slow["answer_tokens"]:.2f} s on average.

The trainer is real, with one thread. Steps have {train["prompts_per_step"]} prompts with
{found["base"]["sampling"]["group_size"]} answers each. All runs start from one model, which has learned a part of the
task, and take {train["steps"]} steps at a learning rate of {train["learning_rate"]:g}, of which the first
{speed.FIRST} are not timed. Two synchronous runs went on beside one of the others.

{table(head, lines)}

In a synchronous step sampling takes {sampling:.2f} s (median) and everything else {slow["busy_seconds"]:.2f} s. All of
it shared two cores (load average {min(loads):.1f} to {max(loads):.1f}), which slows both the trainer and the little
that the engine computes. So "times, server alone" compares with a synchronous step that takes the
server's own time for its slowest row, and the same everything else. The goal was AReaL's figure, {speed.GOAL} times.
The defaults reach {fast["times"]:.2f} as measured and {fast["times_at_pace"]:.2f} against the server's own time. Where
sampling takes a smaller part of a step, less can be won: the bound is (sampling + rest) / rest.

Score of the defaults less that of synchronous training: {points(change["mean"], change["low"], change["high"])} points
over {change["seeds"]} seeds, {"" if within else "not "}within 3 points. The model from which all start has
{percent(slow["baseline"])}, so that {percent(1 - slow["baseline"])} are left to learn: the policy moves slowly, as in
the fine-tuning of a model that can do its task already. k3, which estimates KL(sampler || trainer) per token, is
{fast["mismatch_k3"]:.4f}. An earlier set-up (70 steps of 16 prompts, from such a model) improved nothing and gave -1.6
(-4.0 to +0.9); the next paragraph has a policy that moves fast. Seed by seed the defaults made {min(each):.2f} to
{max(each):.2f} times the steps of synchronous training.

Lag p95 and largest are the largest of all steps and seeds; the other columns are medians over seeds, and the score is
their mean.
"""


def fast_section(found: Mapping[str, Any]) -> str:
    """The paragraph on the cost of the same lead for a policy that moves fast."""
    change = found["difference"]
    return f"""
**Where the policy moves fast the lead costs something.** From the demonstration's start model, at a learning rate of
{found["learning_rate"]:g} with {found["minibatches"]} updates per batch, the defaults were {found["times"]:.2f} times
as fast and ended {points(change["mean"], change["low"], change["high"])} points from synchronous training
({percent(found["scores"][1])} and {percent(found["scores"][0])}) after the same number of steps, over
{change["seeds"]} seeds. The next section has more of that.
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
        "bound", "correction", "score", "change against 0, same seeds", "lag mean / largest", "masked",
        "k3 of the sampler", "gradient norm largest / spikes", "seeds",
    )  # fmt: skip
    train = found["base"]["train"]
    return f"""
## Learning

GRPO on the demonstration task from its start model: {train["steps"]} steps of {train["prompts_per_step"]} prompts with
{found["base"]["sampling"]["group_size"]} answers each, learning rate {train["learning_rate"]:g}, one update per batch.
`bound` is `run_ahead` and `max_staleness` at once. The engine decodes at once whatever it may, so that *every* token is
as old as the bound, once there were so many steps: the hardest case of a bound. In a real run most tokens are younger.

{table(head, lines)}

k3 estimates KL(sampler || trainer) per token: the median over steps, then over seeds. A spike is a gradient norm above
{learning.SPIKE:g} times the median of its run, counted over all seeds. `none` is a weight held between 1 and 1, because
`algorithm.correction = none` is refused for stale data.

{verdict(found["lines"])}
{few(found["lines"])}
The tiny policy moves fast: see k3. Read the table as a stress test of a bound, and not as its price for a large model.

What AReaL reports (arXiv:2505.24298, 1.5B model, 1000 updates, table of its release notes for v0.3). Its
bound is on the lead of the sampler, so that many tokens are younger:

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
        said = [f"below the synchronous score at bound {', '.join(lower)}"] if lower else []
        said += [f"above it at bound {', '.join(higher)}"] if higher else []
        sentences.append(f"`{correction}` is " + (" and ".join(said) or "not told from synchronous training anywhere"))
    return "By these intervals " + "; ".join(sentences) + "."


def few(lines: Sequence[Mapping[str, Any]]) -> str:
    """A paragraph on missing parts of the measurement; empty if it is complete."""
    least = min(line["seeds"] for line in lines)
    if least >= len(learning.SEEDS) and {line["correction"] for line in lines} == set(learning.CORRECTIONS):
        return ""
    there = ", ".join(f"`{name}`" for name in learning.CORRECTIONS if name in {line["correction"] for line in lines})
    return f"""
This is a part of the measurement: the corrections {there}, and {least} of {len(learning.SEEDS)} seeds at least. With so
few seeds intervals are wide.
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
        "times", "bound",
    )  # fmt: skip
    return f"""
## On two cores

Here sampling computes. A synchronous step gives both cores to each phase in turn; an asynchronous one gives one core
to the engine and one to the trainer (`run_ahead` 1). Its bound is (S2 + T2) / max(S1, T1): the phases of a
synchronous step with two cores, and with one, measured in the same minutes. Seconds are medians over
{cores.STEPS - cores.FIRST} steps.

{table(head, lines)}

Below 1, side by side is slower than in turns. Load average during these runs: {found["load"][0]:.1f} to
{found["load"][1]:.1f} on {found["cores"]} cores; each was run once. Where other work keeps a core busy, neither side
has what it would have alone.
"""


SECTIONS = {"speed": speed_section, "fast": fast_section, "learning": learning_section, "cores": cores_section}


def text(result: Mapping[str, Any]) -> str:
    measured = [section(result[name]) for name, section in SECTIONS.items() if name in result]
    origins = [
        f"- {name}: on {one['date']} of commit {one['commit']}, {one['machine']['processor']}, "
        f"{one['machine']['cores']} cores, torch {one['machine']['torch']}"
        for name, one in result["origins"].items()
    ]
    return HEAD + "".join(measured) + "\n## The machine\n\n" + "\n".join(origins) + "\n"


def write(result: Mapping[str, Any]) -> None:
    write_atomically(PAGE, text(result))


if __name__ == "__main__":
    write(json.loads(RESULT.read_text()))
