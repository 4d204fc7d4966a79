"""Write docs/speed.md and its picture from results/speed.json: `python -m benchmarks.speed.page`.

The text outside the two marks of docs/speed.md is written by hand; the text between them comes from the results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.speed.goals import GOALS, failure, reached
from benchmarks.speed.rounds import ROOT

from posttrain.files import write_atomically
from posttrain.report.svg import WIDTH, IntervalRow, interval_bars

RESULT = ROOT / "benchmarks" / "results" / "speed.json"
PAGE = ROOT / "docs" / "speed.md"
PICTURE = ROOT / "docs" / "images" / "speed.svg"
BEGIN, END = "<!-- measured: written by python -m benchmarks.speed.page -->\n", "<!-- end of what was measured -->\n"
_STYLE = """
text { font: 11.5px ui-sans-serif, system-ui, sans-serif; fill: #6b7280 } .value { fill: #1c1e22 }
.grid { stroke: #e3e3e0 } .bar { fill: #1f5fa8 } .whisker { stroke: #c2651a; fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #9aa1ab } .value { fill: #e8e6e1 } .grid { stroke: #30343a } .bar { fill: #6ea8ea }
  .whisker { stroke: #eb9a55 }
}
"""
Result = dict[str, Any]
REMARKS = {
    "one_batch": " All four sides stay loaded at the same time. So the seconds do not count, and the system may kill a "
    "side that has enough memory when it runs alone.",
    "served": " The server is vLLM's CPU build. The run starts it and proves each publication of weights. Memory is "
    "the sum over trainer and server. TRL samples with transformers.",
}
"""Part -> remark that a reader must know before reading its tables."""


def write(result: Result) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    write_atomically(PAGE, before + BEGIN + measured(result) + END + after)
    write_atomically(PICTURE, picture(result))


def measured(result: Result) -> str:
    """The generated part of the page."""
    sections = [_goals(result)]
    titles = {
        "grpo": "A GRPO step, end to end",
        "one_batch": "A GRPO step that TRL takes as one batch",
        "served": "A GRPO step that a vLLM server samples",
        "sampling": "Sampling alone",
        "dpo": "A DPO step: 16 pairs",
        "sft": "An SFT step: 32 examples",
        "others": "Other lengths, other models, adapters",
    }
    for part, title in titles.items():
        if part in result:
            about = result["origins"][part]
            where = f"On {about['machine']['processor']}, {about['date']}.{REMARKS.get(part, '')}\n\n"
            sections += [f"## {title}\n\n", where, *(_case(part, case) for case in result[part])]
    sections += [_passes(result.get("training_pass", [])), _machine(result)]
    return "\n" + "".join(sections)


def picture(result: Result) -> str:
    """A bar chart of the speedups, with the lowest and the highest round."""
    rows = [
        IntervalRow(label=label, bars=[("trained", ratio["speed"], ratio["lowest"], ratio["highest"])])
        for label, ratio in _ratios(result)
    ]
    top = max((row.bars[0][3] for row in rows), default=1.0)
    bars = interval_bars(
        rows, label="Speedup of posttrain over the other libraries", form=lambda x: f"{x:g}×", low=0.0, high=top
    )
    height = bars.split('height="')[1].split('"')[0]
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>{bars}</svg>\n'


def _ratios(result: Result) -> Iterable[tuple[str, dict[str, float]]]:
    names = {"grpo": "GRPO", "sampling": "sampling", "dpo": "DPO", "sft": "SFT"}
    for part, name in names.items():
        for case in result.get(part, []):
            for pair, ratio in case["ratios"].items():
                other = pair.split(" / ")[1]
                if other in ("TRL", "TRL best", "generate bfloat16", "vLLM bfloat16") and not pair.startswith(
                    "posttrain bfloat16 / TRL"
                ):
                    yield f"{name} {_size(case)}, {other.removesuffix(' bfloat16')}", ratio


def _goals(result: Result) -> str:
    lines = ["| | goal | measured | |", "|---|---|---|---|"]
    for goal in GOALS:
        found = reached(goal, result)
        if found is None:
            why = failure(goal, result)
            lines.append(f"| {goal.what} | {goal.form(goal.bound)} | {'failed' if why else 'not measured'} | {why} |")
            continue
        value, ok = found
        note = "reached" if ok else goal.why_missed or "missed"
        lines.append(f"| {goal.what} | {goal.form(goal.bound)} | {goal.form(value)} | {note} |")
    return "## Goals and results\n\n" + "\n".join(lines) + "\n\n"


def _case(part: str, case: Result) -> str:
    tokens = case["tokens"]
    rows = [_row(part, name, side, tokens) for name, side in case["sides"].items() if "seconds" in side]
    failed = [f"- {name} failed: {side['failed']}" for name, side in case["sides"].items() if "failed" in side]
    head = "| | seconds | rounds | peak memory |" + (" tokens/s |" if part == "sampling" else "")
    ratios = "; ".join(f"{pair}: {_ratio(part, ratio)}" for pair, ratio in case["ratios"].items())
    shape = (
        f"A step samples {tokens['sampled']:,} tokens. Its padded rows have {tokens['padded']:,} positions and hold "
        f"{tokens['real']:,} tokens, or {tokens['shared']:,} if each group has its prompt only once"
    )
    lines = [
        f"### {_size(case)} parameters, {case['case']}\n",
        shape + ".\n" if part in ("grpo", "one_batch", "served", "others") else "",
    ]
    table = [head, "|" + "---|" * (head.count("|") - 1), *rows]
    return "\n".join([line for line in lines if line] + table + [*(["", *failed] if failed else []), "", ratios, "\n"])


def _ratio(part: str, ratio: dict[str, float]) -> str:
    memory = f"memory {ratio['memory']:.2f}×" if "memory" in ratio else ""
    if part == "one_batch":  # sides that leave little memory for each other
        return f"**{memory}**"
    speed = f"**{ratio['speed']:.2f}×** ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
    return ", ".join(filter(None, [speed, memory]))


def _row(part: str, name: str, side: Result, tokens: Result) -> str:
    rounds = ", ".join(f"{seconds:.2f}" for seconds in side["rounds"])
    cells = [name, f"{side['seconds']:.2f}", rounds, f"{side['peak_mb']:,} MB" if "peak_mb" in side else "unknown"]
    cells += [f"{side['tokens'] / side['seconds']:,.0f}"] if part == "sampling" else []
    return f"| {' | '.join(cells)} |"


def _passes(cases: Sequence[Result]) -> str:
    if not cases:
        return ""
    lines = ["## The training pass alone\n", "| | pass | its matrix products alone | share | GFLOP/s of the products |"]
    lines.append("|---|---|---|---|---|")
    for case in cases:
        for precision, share in case["share_of_matmul_rate"].items():
            ours, alone = case["sides"][f"posttrain {precision}"], case["sides"][f"products {precision}"]
            lines.append(
                f"| {_size(case)}, {precision} | {ours['seconds']:.2f} s | {alone['products']:.2f} s | {share:.0%} "
                f"| {alone['gflops']:,.0f} |"
            )
    for case in cases:
        lines += ["", f"The profiler divides the time of the pass as follows ({_size(case)}, bfloat16):\n"]
        lines += ["| | share |", "|---|---|", *(f"| {kind} | {share:.1%} |" for kind, share in case["profile"].items())]
    return "\n".join(lines) + "\n\n"


def _machine(result: Result) -> str:
    """The section that tells for every part, which may be measured separately, the machine, the date and the version of
    the source."""
    rates, parts = dict(result.get("machine_limits", {})), dict[str, dict[str, list[str]]]()
    for part, origin in result["origins"].items():
        version = f"on {origin['date']} of commit {origin['commit']}"
        parts.setdefault(_description(origin["machine"]), {}).setdefault(version, []).append(f"`{part}`")
    bandwidth = rates.pop("memory_gb_per_s", None)
    speeds = "; ".join(f"{name} {rate:,.0f} GFLOP/s" for name, rate in rates.items())
    limits = f" Matrix products [4096 × 768 × 3072] reach {speeds}. Memory is read at {bandwidth} GB/s."
    text = "\n\n".join(
        f"{machine} These parts were measured there: "
        + "; ".join(f"{', '.join(names)} {version}" for version, names in found.items())
        + "."
        + (limits if any("`machine_limits`" in names for names in found.values()) else "")
        for machine, found in parts.items()
    )
    return f"## The machine\n\n{text}\n\n"


def _description(about: Result) -> str:
    return (
        f"{about['processor']}, {about['cores']} cores ({', '.join(about['instructions'])}), {about['memory_gb']} GB; "
        f"Python {about['python']}, torch {about['torch']}, transformers {about['transformers']}, TRL {about['trl']}, "
        f"vLLM {about['vllm']}."
    )


def _size(case: Result) -> str:
    """The number of parameters of a case, as text.

    >>> _size({"model": {"parameters": 2_730_432}}), _size({"model": {"parameters": 109_529_856}})
    ('2.7M', '110M')
    """
    millions = case["model"]["parameters"] / 1e6
    return f"{millions:.1f}M" if millions < 10 else f"{millions:.0f}M"


if __name__ == "__main__":
    write(json.loads(RESULT.read_text()))
