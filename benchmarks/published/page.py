"""Write docs/scaling-on-paper.md: the planner's predictions for 70B on 64 and 256 GPUs, and for published figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from published.predict import Compared, compare, medians

from posttrain.lab.plan.api import Plan, make_plan
from posttrain.lab.plan.collectives import together
from posttrain.lab.plan.hardware import table as hardware_table
from posttrain.lab.plan.render import duration
from posttrain.lab.plan.verdict import size

TEMPLATE = Path(__file__).with_name("template.md")
MEAN = 2048
"""Mean length of an answer, in tokens."""
COMMON = {"train.gradient_checkpointing": True, "train.tokens_per_microbatch": 8192}
SFT = {"train.prompts_per_step": 512, "data.max_length": 4096}
GRPO = {
    "train.prompts_per_step": 256,
    "sampling.group_size": 16,
    "sampling.max_completion_length": 4096,
    "sampling.max_batch_rows": 256,
}
SLOW = {"network": 6.25}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run of the 70B model, and how it is divided among the GPUs."""

    how: str
    gpus: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, algorithm: str, settings: Mapping[str, Any]) -> Plan:
        settings = COMMON | settings | self.settings
        return make_plan(None, settings, model="70b", algorithm=algorithm, gpus=f"{self.gpus}xh100", **self.target)


def tokens(number: int) -> dict[str, int]:
    return {"train.tokens_per_microbatch": number}


SFT_CASES = (
    Case(how="full", gpus=64),
    Case(how="full, micro-batches of 4,096", gpus=64, settings=tokens(4096)),
    Case(how="full, 400 Gb/s a machine", gpus=64, target=SLOW),
    Case(how="full, 400 Gb/s a machine, micro-batches of 16,384", gpus=64, settings=tokens(16384), target=SLOW),
    Case(how="tensor 8, full, micro-batches of 16,384", gpus=64, settings=tokens(16384), target={"tensor": 8}),
    Case(how="hybrid", gpus=64, target={"sharding": "hybrid"}),
    Case(how="full", gpus=256),
    Case(how="full, micro-batches of 4,096", gpus=256, settings=tokens(4096)),
    Case(how="full, 400 Gb/s a machine", gpus=256, target=SLOW),
    Case(how="tensor 8, full, micro-batches of 16,384", gpus=256, settings=tokens(16384), target={"tensor": 8}),
    Case(how="hybrid", gpus=256, target={"sharding": "hybrid"}),
)
SHORTER = {"mean_completion_tokens": MEAN, "prompt_tokens": 256}
GRPO_CASES = tuple(
    Case(
        how=f"{half} to train (full), {half // 8} engines of 8",
        gpus=half,
        target={"engine": "separate", "engine_ranks": half, "engine_tensor": 8, **SHORTER},
    )
    for half in (32, 128)
) + tuple(
    Case(how="weights of the trainer, gathered for every token", gpus=gpus, target={"engine": "shared", **SHORTER})
    for gpus in (64, 256)
)


def page_of() -> str:
    """The whole page."""
    found = compare()
    grpo = [(case, case.plan("grpo", GRPO)) for case in GRPO_CASES]
    parts = {
        **_numbers(found),
        **_pass_of_an_engine(grpo[0][1]),
        "sft": _table(_sft_rows()),
        "grpo_plans": _table(_grpo_rows(grpo)),
        "published": _table(_published_rows(found)),
        "medians": _table(_median_rows(found)),
        "sources": "\n".join(_sources(found)),
    }
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(parts)


def _numbers(found: list[Compared]) -> dict[str, str]:
    told = {name: (number, middle, most) for name, number, middle, most in medians(found)}
    grpo = [one for one in found if one.grpo]
    return {
        "checked": f"{told['checked'][0]}",
        "checked_median": f"{told['checked'][1]:.0%}",
        "checked_most": f"{told['checked'][2]:.0%}",
        "fitted": f"{told['fitted'][0]}",
        "fitted_median": f"{told['fitted'][1]:.0%}",
        "grpo": f"{grpo[0].error:+.0%}",
        "other_grpo": f"{grpo[1].error:+.0%}",
        "compute": f"{hardware_table()['efficiency']['compute']:.0%}",
    }


def _pass_of_an_engine(plan: Plan) -> dict[str, str]:
    """The times of a pass of an engine and of the calls in it, in milliseconds, as text."""
    (part,) = (part for part in plan.cost.parts if part.phase == "generate")
    layers = plan.workload.architecture.layers
    passes = part.work.layer_calls / plan.workload.engine_ranks / layers
    calls = layers * plan.hardware.efficiency.layer_call
    return {"pass": f"{1e3 * part.seconds / passes:.0f} ms", "calls": f"{1e3 * calls:.0f} ms"}


# --- tables ----------------------------------------------------------------------------------------------------------


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table. The first row has the names of the columns; a name that ends with a colon is for numbers."""
    names, *others = rows
    rules = ("---:" if name.endswith(":") else "---" for name in names)
    lines = [" | ".join(name.removesuffix(":") for name in names), "|".join(rules), *map(" | ".join, others)]
    return "\n".join(f"|{line}|" if number == 1 else f"| {line} |" for number, line in enumerate(lines))


def _sft_rows() -> Iterator[tuple[str, ...]]:
    yield (
        *("GPUs:", "divided", "fits", "memory:", "a step:"),
        *("tokens/s/GPU:", "traffic:", "bandwidth:", "latency:", "waits:"),
    )
    for case in SFT_CASES:
        plan = case.plan("sft", SFT)
        told = together(plan.cost.messages("train"), plan.hardware)
        number = plan.workload.rows * plan.workload.row_tokens
        yield (
            *(f"{case.gpus}", case.how, plan.verdict.answer, size(plan.verdict.needed), duration(plan.step_seconds)),
            f"{number / plan.step_seconds / case.gpus:,.0f}",
            size(sum(one.received for one in told)),
            duration(sum(one.bandwidth for one in told)),
            duration(sum(one.latency for one in told)),
            _share(plan.cost.waiting("train"), plan.step_seconds),
        )


def _grpo_rows(plans: list[tuple[Case, Plan]]) -> Iterator[tuple[str, ...]]:
    yield (
        *("GPUs:", "how", "fits", "memory:", "generate:"),
        *("train:", "a step:", "waits:", "answer tokens/s/GPU:"),
    )
    for case, plan in plans:
        waits = sum(part.waiting for part in plan.cost.parts)
        yield (
            *(f"{plan.devices}", case.how, plan.verdict.answer, size(plan.verdict.needed)),
            *(duration(plan.cost.of(phase)) for phase in ("generate", "train")),
            duration(plan.step_seconds),
            _share(waits, plan.step_seconds),
            f"{plan.workload.rows * MEAN / plan.step_seconds / plan.devices:,.0f}",
        )


def _published_rows(found: list[Compared]) -> Iterator[tuple[str, ...]]:
    yield (
        *("source", "use", "model", "GPUs", "divided"),
        *("rows x tokens:", "published:", "predicted:", "error:", "waits:"),
    )
    for one in found:
        row, w = one.row, one.workload
        divided = [f"tensor {w.tensor}"] * (w.tensor > 1) + [w.sharding] * (w.sharding != "none")
        marks = ", recomputed" * w.gradient_checkpointing + ", compiled" * row["compiled"]
        yield (
            *(one.source, "fitted" if one.fitted else "checked", row["model"] + marks, row["gpus"]),
            ", ".join(divided) or "-",
            f"{w.group_size if one.grpo else row['rows']} x {row['tokens']:,}",
            f"{one.published:,.0f}",
            f"{one.predicted:,.0f}",
            f"{one.error:+.0%}",
            f"{one.waiting:.0%}",
        )


def _median_rows(found: list[Compared]) -> Iterator[tuple[str, ...]]:
    yield "rows", "number:", "median error:", "largest error:"
    for name, number, middle, most in medians(found):
        yield name, f"{number}", f"{middle:.0%}", f"{most:.0%}"


def _sources(found: list[Compared]) -> Iterator[str]:
    yield "Sources:"
    yield ""
    for title, link in dict.fromkeys((one.source, one.row["link"]) for one in found):
        yield f"- [{title}]({link})"


def _share(part: float, whole: float) -> str:
    return f"{duration(part)} ({part / whole:.0%})"


# --- for a terminal --------------------------------------------------------------------------------------------------


def printed(found: list[Compared]) -> Iterator[str]:
    """Lines for a terminal with published and predicted figures, row by row."""
    for one in found:
        w, use = one.workload, "fitted" if one.fitted else "checked"
        how = f"tensor {w.tensor} " * (w.tensor > 1) + w.sharding
        yield (
            f"{one.source:<34} {one.row['model']:<11} {one.row['gpus']:<14} {how:<14} "
            f"{one.published:>8,.0f} {one.predicted:>8,.0f} {one.error:>+5.0%}  {use}"
        )
    for name, number, middle, most in medians(found):
        yield f"{number} {name}: median error {middle:.0%}, largest {most:.0%}"
