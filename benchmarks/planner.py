"""How well `posttrain plan` predicts the memory of a run. Writes docs/planner-measured.md.

    python benchmarks/planner.py                 measure every case again, one at a time; half an hour on two cores
    python benchmarks/planner.py NAME ...        measure these cases; the others on file stay
    python benchmarks/planner.py --page          write the page again from the numbers on file

Each case of benchmarks/planning/cases.py is a run of `posttrain train` with random weights. Its second step is
measured: the bytes of all live tensors over time, as PyTorch's allocator reports them, and the peak in each phase. For
cases above a gigabyte, a second process measures the growth of anonymous resident memory from the end of the imports to
its peak. The planner knows the configuration, the lengths of prompt and completion, and how the run chose to compute.
It predicts when the page is written, so the page always shows the current planner.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from planning.cases import CASES  # noqa: E402
from planning.page import page_of  # noqa: E402

RESULT = HERE / "results" / "planner.json"
PAGE = HERE.parent / "docs" / "planner-measured.md"


def main(names: list[str]) -> None:
    """Measure the cases, save the numbers and write the page."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {"cases": {}}
    if names != ["--page"]:
        for case in CASES:
            if not names or case.full_name in names:
                print(case.full_name, flush=True)
                found = in_a_process("live", case.full_name)
                if case.resident:
                    found["resident"] = in_a_process("resident", case.full_name)["resident"]
                known["cases"][case.full_name] = found
                write(known)
    PAGE.write_text(page_of(known))


def write(known: dict[str, Any]) -> None:
    known["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    known["versions"] = {name: _version(name) for name in ("torch", "transformers", "peft")}
    RESULT.write_text(json.dumps(known, indent=1) + "\n")


def in_a_process(what: str, name: str) -> dict[str, Any]:
    """Measure one case in its own process, so that its memory is its own."""
    command = [sys.executable, str(HERE / "planning" / "run.py"), what, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    found = json.loads(lines[-1])
    found.pop("case")
    return found


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


if __name__ == "__main__":
    main(sys.argv[1:])
