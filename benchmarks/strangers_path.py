"""The path of a new user, timed in a new environment: docs/start.md up to its demo, then docs/first-model.md.

    make dist
    python -m benchmarks.strangers_path                 from the wheel: the demo, then a real model that improves
    python -m benchmarks.strangers_path --sdist         from the source archive: only the demo
    python -m benchmarks.strangers_path --tested        with the versions of constraints.txt: the CPU build of torch

There is an empty folder, an empty HOME, no PYTHONPATH, and a shell that runs these commands line by line. The commands
of docs/start.md after `posttrain demo` are left out.
By settings of pip, `pip install posttrain` finds the built file instead of a published one. Everything else is as for a
reader of the pages. It ends at the first command that fails, or that trains a model which does not improve.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
START, FIRST_MODEL = ROOT / "docs/start.md", ROOT / "docs/first-model.md"
_BLOCK = re.compile(r"^```bash[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MARK = "@@ began"
IMPROVED = "The model improved"


class Timed(NamedTuple):
    command: str
    seconds: float
    output: str


def commands(page: Path, *, until: str = "") -> list[str]:
    """The commands in the bash blocks of a page, up to the first one that begins with `until`."""
    lines = "\n".join(_BLOCK.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ").splitlines()
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    last = next((n for n, line in enumerate(found) if until and line.startswith(until)), len(found) - 1)
    return found[: last + 1]


def follow(lines: list[str], folder: Path, environment: dict[str, str]) -> Iterator[Timed]:
    """Run the commands in order, in one shell that starts in the folder. Raises SystemExit if one fails."""
    script = "".join(f"echo {shlex.quote(_MARK)}; {line}\n" for line in lines)
    shell = subprocess.Popen(
        ["bash", "-e", "-c", f"{script}echo {shlex.quote(_MARK)}\n"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert shell.stdout is not None
    place, said, began = -1, list[str](), time.perf_counter()
    for line in shell.stdout:
        if line.rstrip("\n") != _MARK:
            said.append(line)
            continue
        if place >= 0:
            yield Timed(lines[place], time.perf_counter() - began, "".join(said))
        place, said, began = place + 1, [], time.perf_counter()
    if shell.wait() != 0:
        raise SystemExit(f"exit code {shell.returncode} of {lines[place]}\n{''.join(said)[-3000:]}")


def strange(folder: Path, built: Path, *, tested: bool) -> dict[str, str]:
    """The environment variables of a new user. Of the current ones it keeps only the sources of packages."""
    home = folder / "home"
    home.mkdir()
    constraint = folder / "constraint.txt"
    versions = f"-c {ROOT / 'constraints.txt'}\n" if tested else ""
    version = built.name.removesuffix(".tar.gz").split("-")[1]
    constraint.write_text(f"posttrain=={version}\n{versions}", encoding="utf-8")
    offered = folder / "offered"
    offered.mkdir()
    shutil.copy(built, offered)
    kept = {
        name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_")) or name.endswith("_proxy")
    }
    found = {"PIP_CONSTRAINT": str(constraint), "PIP_FIND_LINKS": f"{offered} {os.environ.get('PIP_FIND_LINKS', '')}"}
    return {**kept, **found, "PATH": os.defpath + ":/usr/local/bin", "HOME": str(home)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sdist", action="store_true", help="install the source archive, and run only the demo")
    parser.add_argument("--tested", action="store_true", help="install the tested versions")
    parser.add_argument("--keep", type=Path, help="folder to work in, which is kept")
    asked = parser.parse_args()
    (built,) = sorted((ROOT / "dist").glob("*.tar.gz" if asked.sdist else "*.whl"))
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="stranger-"))
    folder.mkdir(parents=True, exist_ok=True)
    lines = commands(START, until="posttrain demo") + ([] if asked.sdist else commands(FIRST_MODEL))
    environment, total = strange(folder, built, tested=asked.tested), 0.0
    (folder / "work").mkdir()
    print(f"{built.name} in {folder}; {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    environment_made = [f"{shlex.quote(sys.executable)} -m venv {folder}/new", f". {folder}/new/bin/activate"]
    for timed in follow([*environment_made, *lines], folder / "work", environment):
        total += timed.seconds
        print(f"{timed.seconds:7.1f} s  {total:7.1f} s  {timed.command}", flush=True)
        print("".join(f"{'':22}{line}\n" for line in timed.output.strip().splitlines()[-12:]), end="", flush=True)
        if timed.command.startswith(("posttrain demo", "posttrain train grpo")) and IMPROVED not in timed.output:
            raise SystemExit(f"{timed.command} ended without {IMPROVED!r}")


if __name__ == "__main__":
    main()
