"""Write docs/speed-gpu.md from results/speed_gpu.json: `python -m benchmarks.gpu.page`. No part is written by hand.

The page does not exist until a GPU has been measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.goals import GOALS, Result, reached, share
from benchmarks.speed.rounds import ROOT

from posttrain.files import write_atomically

RESULT = ROOT / "benchmarks" / "results" / "speed_gpu.json"
PAGE = ROOT / "docs" / "speed-gpu.md"
TITLES = {
    "grpo": "A GRPO step, end to end",
    "sft": "An SFT step",
    "dpo": "A DPO step",
    "sampling": "Sampling alone",
}
INTRODUCTION = """# Speed on a card

`make bench-gpu` measures posttrain and [TRL](https://github.com/huggingface/trl), which samples with
[vLLM](https://github.com/vllm-project/vllm) on the same card, and writes this page. [speed.md](speed.md) has the same
for CPUs.

- **Work.** The models have the shapes of Qwen2.5 and random weights. A step has 16 prompts of 64 to 244 tokens with 8
  completions each. Most completions are short, and a few have up to 512 tokens. The lengths are forced on every side.
  SFT takes 64 of these rows, DPO 32 pairs.
- **Sides** run one after the other, each alone on the card. The first step is a warm-up. Figures are medians of up to
  five steps. Brackets have the lowest and the highest ratio of single steps.
- **posttrain** computes in bfloat16 under autocast with weights, gradients and AdamW in float32. Micro-batches have
  16,384 tokens for 0.5B, 8,192 for 1.5B and 4,096 for 3B. All other settings are the defaults.
- **TRL** has the defaults of its trainers: bfloat16 under autocast, gradient checkpointing, 8 rows at a time, and vLLM
  in the same process with 0.3 of the card. *TRL best* has no checkpointing, takes 16 rows at a time and has bfloat16
  weights, too. Its SFT is without padding. Its DPO computes the reference log-probabilities before the step.
- **Share of the matrix rate**: the operations that the training of a step needs, divided by its seconds and by the rate
  of a plain product of 8192 x 8192 matrices in bfloat16 on the same card. `benchmarks/gpu/work.py` has the formula and
  its source. It counts no operation twice, no recomputation and no padding.
"""


def write(result: Result, page: Path = PAGE) -> None:
    write_atomically(page, page_of(result))


def page_of(result: Result) -> str:
    sections = [INTRODUCTION, _goals(result), *_cases(result), _memory(result), _calibration(result)]
    return "\n".join(section for section in [*sections, _left_out(result), _machine(result)] if section)


def _goals(result: Result) -> str:
    lines = ["## Goals and results\n", "| | goal | measured | |", "|---|---|---|---|"]
    for goal in GOALS:
        found = reached(goal, result)
        told = "not measured | |" if found is None else f"{goal.form(found)} | {_verdict(goal.bound, found)} |"
        lines.append(f"| {goal.what} | {goal.form(goal.bound)} | {told}")
    return "\n".join(lines) + "\n"


def _verdict(bound: float, found: float) -> str:
    return "reached" if found >= bound else "missed"


def _cases(result: Result) -> Iterator[str]:
    for task, title in TITLES.items():
        cases = [case for name, case in result["parts"].items() if name.split()[0] == task]
        if cases:
            yield f"## {title}\n"
            yield from (_case(task, case, result) for case in cases)


def _case(task: str, case: Result, result: Result) -> str:
    sides = {name: side for name, side in case["sides"].items() if "seconds" in side}
    heads = ["", "seconds", "steps", "memory of tensors", "of the card", *_more(task)]
    rows = [_row(task, name, side, case, result) for name, side in sides.items()]
    ratios = "; ".join(
        f"{pair}: **{one['speed']:.2f}×** ({one['lowest']:.2f} to {one['highest']:.2f})"
        for pair, one in case["ratios"].items()
    )
    failed = [f"- {name}: {side['failed']}" for name, side in case["sides"].items() if "failed" in side]
    tokens = f"Completions have {case['tokens']['sampled']:,} tokens, {case['tokens']['shared']:,} with their prompts."
    table = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *rows]
    lines = [f"### {billions(case)} parameters\n", tokens + "\n", *table, *(["", ratios] if ratios else [])]
    return "\n".join([*lines, *(["", *failed] if failed else [])]) + "\n"


def _more(task: str) -> list[str]:
    return {
        "grpo": ["sampling", "tokens/s", "training", "share of the matrix rate", "publication"],
        "sampling": ["tokens/s"],
    }.get(task, ["share of the matrix rate"])


def _row(task: str, name: str, side: Result, case: Result, result: Result) -> str:
    cells = [name, f"{side['seconds']:.2f}", ", ".join(f"{one:.2f}" for one in side["rounds"])]
    cells += [_gigabytes(side, "peak_mb", 2**20), _gigabytes(side, "card_bytes", 1)]
    if task == "grpo":
        cells += [_seconds(side, "time/sample"), _rate(case, side.get("time/sample")), _seconds(side, "time/train")]
    if task == "sampling":
        cells.append(_rate(case, side["seconds"]))
    else:
        reached = share(case, side, result)
        cells.append("" if reached is None else f"{reached:.0%}")
    if task == "grpo":
        cells.append(_seconds(side, "time/publish"))
    return f"| {' | '.join(cells)} |"


def _gigabytes(side: Result, name: str, unit: int) -> str:
    return f"{side[name] * unit / 1e9:.1f} GB" if name in side else ""


def _seconds(side: Result, name: str) -> str:
    return f"{side[name]:.2f} s" if name in side else ""


def _rate(case: Result, seconds: float | None) -> str:
    return f"{case['tokens']['sampled'] / seconds:,.0f}" if seconds else ""


def _memory(result: Result) -> str:
    """The table of our training runs: memory and time as planned before the first step, and as measured."""
    rows = [
        f"| {name} | {key} | {side['planned_bytes'] / 1e9:.2f} GB | {side['peak_mb'] * 2**20 / 1e9:.2f} GB "
        f"| {side['planned_bytes'] / (side['peak_mb'] * 2**20) - 1:+.0%} "
        f"| {side['planned_seconds']:.2f} s | {side['seconds']:.2f} s |"
        for name, case in result["parts"].items()
        for key, side in case.get("sides", {}).items()
        if {"planned_bytes", "peak_mb"} <= side.keys()
    ]
    if not rows:
        return ""
    head = [
        "## Predictions of the planner\n",
        "| step | side | memory, planned | measured | | seconds, planned | measured |",
    ]
    return "\n".join([*head, "|---|---|---|---|---|---|---|", *rows]) + "\n"


def _calibration(result: Result) -> str:
    found = result["parts"].get("calibration")
    if found is None:
        return ""
    told, c = found["predicted"], found["calibration"]
    rows = [
        f"| {name} | {told[name]:.3f} s | {found['measured'][name]:.3f} s |"
        for name in ("generate", "train")
        if name in told
    ]
    lines = [
        "## Calibration of the planner\n",
        f"`posttrain plan --probe` measured this card on {c['date']}. Products reach "
        f"{(c['bfloat16'] or c['float32']) / 1e12:,.0f} TFLOP/s, training reaches {c['compute']:.0%} of that, copies "
        f"reach {c['bandwidth'] / 1e9:,.0f} GB/s, and a layer takes at least {1e6 * c['layer_call']:.0f} µs. Plans for "
        "this kind of card use these rates (`src/posttrain/lab/plan/measured.json`).\n",
        "| the probe's step | planned before the probe | measured |",
        "|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def _left_out(result: Result) -> str:
    if not result["skipped"]:
        return ""
    rows = [f"- {name}: {reason}" for name, reason in result["skipped"].items()]
    return "\n".join(["## Parts that were left out\n", *rows]) + "\n"


def _machine(result: Result) -> str:
    about, rates = result["about"], result["parts"].get("rates")
    card = about["card"]
    driver = f", {card['memory_mib']:,} MiB, driver {card['driver']}" if "driver" in card else ""
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    lines = ["## The machine\n", f"{card['name']}{driver}; torch {about['torch']}, {versions}."]
    if rates:
        lines.append(
            f"A product of large matrices in bfloat16 runs at {rates['bfloat16_flops'] / 1e12:,.1f} TFLOP/s. A copy "
            f"runs at {rates['bytes_per_second'] / 1e9:,.0f} GB/s, reads and writes together."
        )
    dates = {(part["origin"]["date"], part["origin"]["commit"]) for part in result["parts"].values()}
    lines.append("Measured " + "; ".join(f"on {date} of commit {commit}" for date, commit in sorted(dates)) + ".")
    return " ".join([lines[0] + "\n" + lines[1], *lines[2:]]) + "\n"


def billions(case: Result) -> str:
    """The number of parameters of a case, as text.

    >>> billions({"model": {"parameters": 1_543_714_304}}), billions({"model": {"parameters": 230_000}})
    ('1.5B', '0.2M')
    """
    parameters = case["model"]["parameters"]
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e8 else f"{parameters / 1e6:.1f}M"


if __name__ == "__main__":
    write(json.loads(RESULT.read_text()))
