"""The page shows the command's output: the test runs its console blocks. `python` with this file writes them again."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from posttrain.cli import run

PAGE = Path(__file__).parents[3] / "docs" / "plan.md"
BLOCK = re.compile(r"```console\n\$ posttrain (.*)\n((?:.*\n)*?)```\n")


def said(command: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(shlex.split(command)) == 0
    return out.getvalue()


def with_output(page: str) -> str:
    return BLOCK.sub(lambda block: f"```console\n$ posttrain {block[1]}\n{said(block[1])}```\n", page)


@pytest.mark.slow
def test_the_page_shows_what_the_command_says():
    page = PAGE.read_text(encoding="utf-8")
    assert len(BLOCK.findall(page)) >= 2
    assert page == with_output(page), "run: python tests/lab/plan/test_page.py"


if __name__ == "__main__":
    PAGE.write_text(with_output(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
