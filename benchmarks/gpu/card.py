"""Print the GPU of this machine and its driver, or in one line what `make test-gpu` and `make bench-gpu` lack.

    python -m benchmarks.gpu.card             before anything is installed: check for a driver and a GPU
    python -m benchmarks.gpu.card PYTHON      check that the torch of this interpreter sees the GPU

It uses only the standard library. The exit code is 1 if something is missing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

SEES = """
import torch
if torch.version.cuda is None:
    print(f"torch {torch.__version__} is a build without CUDA")
elif not torch.cuda.is_available():
    print(f"torch {torch.__version__} sees no card: its CUDA {torch.version.cuda} may be too new for the driver")
"""


class Missing(Exception):
    """The machine lacks something. The message says what, and what to do about it, in one line."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU, as nvidia-smi describes it."""

    name: str
    driver: str
    memory_mib: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def first_card() -> Card:
    """The GPU that torch calls cuda:0. Raises Missing if there is no driver, or if it reports no GPU."""
    name, driver, memory = _first_line("name,driver_version,memory.total", 3)
    return Card(name=name, driver=driver, memory_mib=int(memory))


def used_bytes() -> int:
    """Memory of the first GPU that all processes use together, in bytes. Raises Missing."""
    return int(_first_line("memory.used", 1)[0]) * 2**20


def index_for_driver() -> str:
    """The package index with a torch that this driver can run. PyTorch 2.13 is built for CUDA 12.6, 13.0 and 13.2.

    A driver runs programs built for its own CUDA version, for older ones, and for later ones with the same major
    version. Raises Missing for a driver that is too old for all builds.
    """
    program = shutil.which("nvidia-smi")
    said = "" if program is None else subprocess.run([program], capture_output=True, text=True, check=False).stdout
    found = re.search(r"CUDA (?:\w+ )?Version\s*:\s*(\d+)\.(\d+)", said)
    major = 12 if found is None else int(found[1])
    if found is not None and major < 12:
        raise Missing(f"the driver runs CUDA {found[1]}.{found[2]} at most, and torch is built for 12.6: update it")
    return f"https://download.pytorch.org/whl/{'cu130' if major > 12 else 'cu126'}"


def _first_line(fields: str, number: int) -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Missing("no NVIDIA driver: nvidia-smi is not on the PATH; run this on a machine with a card")
    asked = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    values = done.stdout.partition("\n")[0].rsplit(", ", number - 1)
    if done.returncode or len(values) != number or not values[-1].strip().isdigit():
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise Missing(f"no card: the driver is installed, and nvidia-smi says: {said}")
    return values


def require_torch(python: str) -> None:
    """Raise Missing unless the torch of this interpreter can compute on the GPU."""
    done = subprocess.run([python, "-c", SEES], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{python} has no torch: {done.stderr.strip().splitlines()[-1]}")
    if said := done.stdout.strip():
        raise Missing(f"{said}; name an index with another: make TORCH_INDEX={index_for_driver()} ...")


def main(arguments: list[str]) -> int:
    try:
        card = first_card()
        for python in arguments:
            require_torch(python)
    except Missing as reason:
        print(reason, file=sys.stderr)
        return 1
    print(f"{card.name}, {card.memory_mib} MiB, driver {card.driver}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
