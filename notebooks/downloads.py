"""Download the packages that a notebook needs before it begins, as `posttrain.downloads` in its metadata lists them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def download(notebook: Path, folder: Path) -> str:
    """Download the packages into the folder; the notebook itself unpacks them. Return the reason of a failure or ""."""
    wanted = json.loads(notebook.read_text(encoding="utf-8"))["metadata"].get("posttrain", {}).get("downloads", [])
    for requirement in wanted:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            return f"pip cannot download {requirement}: {said[-1] if said else 'no reason given'}"
    return ""
