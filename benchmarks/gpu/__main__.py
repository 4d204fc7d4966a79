"""Speed and memory on a GPU, compared with TRL and vLLM on the same GPU: `make bench-gpu`.

    python -m benchmarks.gpu                           results/speed_gpu.json and docs/speed-gpu.md, within 9.5 minutes
    python -m benchmarks.gpu --missing                 only what the results on file do not have yet
    python -m benchmarks.gpu --device cpu --models tiny --out /tmp/speed.json
                                                       the same on a CPU, to test the harness; the figures mean nothing

Each part has a time limit. If less time is left, the part is skipped and reported. Results are written to the file as
soon as their part is done. POSTTRAIN_BENCH_TRL and POSTTRAIN_BENCH_VLLM name the environments of the other libraries;
without them only posttrain is measured.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.gpu import card, page, parts, work
from benchmarks.gpu.budget import Report, within
from benchmarks.gpu.page import PAGE, RESULT
from benchmarks.speed.machine import origin
from benchmarks.speed.rounds import ROOT

MEASURED = ROOT / "src" / "posttrain" / "lab" / "plan" / "measured.json"
"""The file in which the planner looks for measured GPUs."""
BUDGET = 570.0


def main() -> int:
    """Measure all wanted parts. The exit code is 1 if there is no GPU, or if no part was completed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = _options()
    try:
        about = _about(options.device)
    except card.Missing as reason:
        print(reason, file=sys.stderr)
        return 1
    result = _known(options.out, about)
    official = options.out == RESULT
    ended = 0
    with tempfile.TemporaryDirectory(prefix="speed-gpu-") as scratch:
        place = parts.Place(options.work or Path(scratch), options.device)
        chosen = parts.parts(place, options.models, MEASURED if official else None)
        wanted = [part for part in chosen if _wanted(part.name, options, result)]
        for report in within(wanted, options.budget):
            _keep(result, report)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
            print(_line(report), flush=True)
            ended += not (report.skipped or report.failed)
    page.write(result, PAGE if official else options.out.with_suffix(".md"))
    return 0 if ended or not wanted else 1


def _about(device: str) -> dict[str, Any]:
    """The device and the versions behind every figure. Raises card.Missing."""
    import torch

    where = {"name": "processor"} if device == "cpu" else card.first_card().to_json()
    versions = {name: version(name) for name in ("transformers", "peft")} | parts.peers()
    return {"card": where, "torch": torch.__version__, "cuda": torch.version.cuda, "versions": versions}


def _known(file: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The results on file if they are from the same GPU; otherwise no results."""
    known = json.loads(file.read_text()) if file.exists() else {}
    same = known.get("about", {}).get("card") == about["card"]
    return {"about": about, "parts": known["parts"] if same else {}, "skipped": {}}


def _wanted(name: str, options: argparse.Namespace, result: dict[str, Any]) -> bool:
    if options.parts and name.split()[0] not in options.parts:
        return False
    return not (options.missing and "failed" not in result["parts"].get(name, {"failed": ""}))


def _keep(result: dict[str, Any], report: Report) -> None:
    """Put a report into the results. A part that was skipped or failed keeps the earlier result on file."""
    if report.skipped or report.failed:
        result["skipped"][report.name] = report.skipped or report.failed
        return
    result["parts"][report.name] = {**report.found, "took": report.took, "origin": origin()}


def _line(report: Report) -> str:
    if report.skipped or report.failed:
        return f"{report.name}: {'skipped' if report.skipped else 'failed'}: {report.skipped or report.failed}"
    ratios = ", ".join(f"{pair} {one['speed']}x" for pair, one in report.found.get("ratios", {}).items())
    failed = [f"{name} failed: {side['failed']}" for name, side in _sides(report) if "failed" in side]
    return f"{report.name}: {report.took:.0f} s; " + "; ".join(filter(None, [ratios, *failed]))


def _sides(report: Report) -> list[tuple[str, dict[str, Any]]]:
    return list(report.found.get("sides", {}).items())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(parts.SECONDS)}; default: all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", nargs="+", choices=list(work.MODELS), default=["0.5b", "1.5b", "3b"])
    parser.add_argument("--budget", type=float, default=BUDGET, help="time limit for everything together, in seconds")
    parser.add_argument("--missing", action="store_true", help="leave out parts that are on file")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--work", type=Path, help="keep models, prompts and logs in this folder")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(parts.SECONDS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(parts.SECONDS)}")
    if options.device == "cpu" and options.out == RESULT:
        parser.error("figures of a CPU must not replace those of a GPU: name another file with --out")
    return options


if __name__ == "__main__":
    sys.exit(main())
