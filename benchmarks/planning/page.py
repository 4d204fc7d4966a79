"""Write docs/planner-measured.md from the numbers on file and the current planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from planning.cases import CASES, SHAPES, Case, workload

from posttrain.lab.plan.phases import predict
from posttrain.lab.plan.records import MemoryPlan, Phase
from posttrain.models.compute import DTYPES, Compute, dtype_name

EACH, MEDIAN, RESIDENT = 0.10, 0.05, 0.25
"""The goals: for the largest error of a case, for the median error, and for the error of resident memory."""
PHASES = ("generate", "score", "train")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The plan and the measurement of one case."""

    case: Case
    plan: MemoryPlan
    measured: Mapping[str, int]
    resident: int | None
    computing: Compute

    @staticmethod
    def of(case: Case, found: Mapping[str, Any]) -> Compared:
        ran = found["computing"]
        computing = Compute(
            dtype=DTYPES[ran["precision"]],
            matmul="onednn" if ran["onednn"] else "plain",
            sampler="packed" if ran["packed"] else "shared",
        )
        return Compared(
            case=case,
            plan=predict(workload(case, computing)),
            measured=found["measured"],
            resident=found.get("resident"),
            computing=computing,
        )

    @property
    def phases(self) -> list[Phase]:
        return [phase for phase in self.plan.phases if phase.name in PHASES]

    @property
    def peak(self) -> int:
        """The largest measured bytes of any phase of a step."""
        return max(self.measured[phase.name] for phase in self.phases)

    @property
    def error(self) -> float:
        return max(phase.bytes for phase in self.phases) / self.peak - 1

    @property
    def phase_errors(self) -> list[float]:
        return [phase.bytes / self.measured[phase.name] - 1 for phase in self.phases]

    @property
    def resident_error(self) -> float | None:
        return None if self.resident is None else self.plan.bytes / self.resident - 1


def compare(known: Mapping[str, Any]) -> list[Compared]:
    """The comparisons of the cases on file, in order."""
    return [Compared.of(case, known["cases"][case.full_name]) for case in CASES if case.full_name in known["cases"]]


def page_of(known: Mapping[str, Any]) -> str:
    found = compare(known)
    resident = [one for one in found if one.resident is not None]
    return "\n".join([*_head(known, found, resident), *_table(found), *_resident(resident), *_roles(found), ""])


def _head(known: Mapping[str, Any], found: Sequence[Compared], resident: Sequence[Compared]) -> list[str]:
    errors = [abs(one.error) for one in found]
    phases = [abs(error) for one in found for error in one.phase_errors]
    versions = known["versions"]
    return [
        "<!-- written by: python benchmarks/planner.py --page -->",
        "",
        "# The planner's memory, measured",
        "",
        "    python benchmarks/planner.py",
        "",
        "`posttrain plan` predicts how many bytes each phase of a step needs, before it loads anything. This page",
        "compares the predictions with real steps. PyTorch's CPU allocator reports the bytes of all live tensors over",
        "time, including temporaries inside kernels. A measurement is the largest of these sums in one phase of the",
        "second step. No number of the planner is fitted to these measurements. The bytes that a layer keeps per token",
        "were counted from the autograd graph. The derivation is in",
        "[the planner's source](../src/posttrain/lab/plan/activations.py).",
        "",
        f"**{len(found)} of {len(CASES)} cases are measured. The largest error of a step's peak is "
        f"{_percent(max(errors))}, the median error is {_percent(median(errors))}**",
        f"(goals: {EACH:.0%} and {MEDIAN:.0%}). For single phases the largest error is {_percent(max(phases))}, "
        f"the median error is {_percent(median(phases))}. {_of_resident(resident)}",
        *_missing(found),
        "",
        f"Models are Llamas with random weights: {'; '.join(f'{name}: {_shape(name)}' for name in SHAPES)}.",
        f"They ran on a CPU ({known['machine']}) with torch {versions['torch']} and transformers "
        f"{versions['transformers']}.",
        "No GPU was measured: a plan for a GPU is computed only.",
        "",
    ]


def _of_resident(resident: Sequence[Compared]) -> str:
    if not resident:
        return f"Resident memory is not measured yet (goal: {RESIDENT:.0%})."
    far = max(abs(one.resident_error or 0) for one in resident)
    goal = f"(goal: {RESIDENT:.0%})"
    return f"For anonymous resident memory, measured for {len(resident)} cases, the largest error is {far:.1%} {goal}."


def _missing(found: Sequence[Compared]) -> list[str]:
    """A line about cases that are not on file."""
    measured = {one.case.full_name for one in found}
    names = [case.full_name for case in CASES if case.full_name not in measured]
    return ["", f"Not measured yet: {'; '.join(names)}."] if names else []


def _table(found: Sequence[Compared]) -> list[str]:
    lines = [
        "| model | run | computes in | phase | predicted MB | measured MB | error | predicted moment of the peak |",
        "|---|---|---|---|---:|---:|---:|---|",
    ]
    for one in found:
        for place, phase in enumerate(one.phases):
            first = (one.case.shape, one.case.name, _computing(one.computing)) if place == 0 else ("", "", "")
            measured = one.measured[phase.name]
            cells = (
                *first,
                phase.name,
                _mb(phase.bytes),
                _mb(measured),
                f"{phase.bytes / measured - 1:+.1%}",
                phase.moment,
            )
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _resident(resident: Sequence[Compared]) -> list[str]:
    if not resident:
        return []
    lines = [
        "## Resident memory",
        "",
        "The table shows how much the anonymous resident memory grows after the imports, in a process without the",
        "profiler. This memory also contains buffers of libraries, free blocks of the allocator, and Python's objects.",
        "",
        "| model | run | predicted MB | measured MB | error |",
        "|---|---|---:|---:|---:|",
    ]
    for one in resident:
        assert one.resident is not None
        cells = (one.case.shape, one.case.name, _mb(one.plan.bytes), _mb(one.resident), f"{one.resident_error:+.1%}")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _roles(found: Sequence[Compared]) -> list[str]:
    """The table of predicted bytes for each role, in the phase that needs most."""
    roles = ("policy", "reference", "critic", "sampler")
    lines = [
        "## Per role",
        "",
        "The table shows the predicted MB of each role, in the phase that needs the most memory. The share of a role",
        "includes its activations and gradients.",
        "",
        f"| model | run | {' | '.join(roles)} | models |",
        f"|---|---|{'---:|' * len(roles)}---|",
    ]
    for one in found:
        shares = one.plan.peak.by_role
        sizes = [_mb(shares[role]) if role in shares else "" for role in roles]
        lines.append(f"| {' | '.join((one.case.shape, one.case.name, *sizes, ', '.join(one.plan.models)))} |")
    return lines


def _computing(computing: Compute) -> str:
    ways = [dtype_name(computing.dtype), *(["oneDNN"] if computing.matmul == "onednn" else [])]
    ways += ["packed"] if computing.sampler == "packed" else []
    return ", ".join(ways)


def _shape(name: str) -> str:
    shape = SHAPES[name]
    return f"{shape['num_hidden_layers']} layers of {shape['hidden_size']}, {shape['vocab_size']} tokens"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def _percent(share: float) -> str:
    return f"{share:.1%}"
