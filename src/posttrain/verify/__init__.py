"""Verifiers of mathematics and code, and the sandbox that runs foreign programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_table(path: Path) -> Any:
    """A catalogue in YAML that lies beside the code which reads it."""
    import yaml  # 15 ms that whoever needs no catalogue does without

    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
