"""docs/audit.md is up to date: its code, its output and its table are compared with the files that they come from."""

import re
from pathlib import Path

import pytest
from tests.catalogue import catalogue

from posttrain.cli import run
from posttrain.rewards.audit import CHECKS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
GSM8K = ROOT.parent / "shared" / "data" / "math" / "gsm8k_train.jsonl"


def block(language: str, number: int) -> str:
    """The content of the nth fenced block of a language on the page."""
    return re.findall(rf"```{language}\n(.*?)\n```", PAGE, re.DOTALL)[number]


def stable(text: str) -> list[str]:
    """The lines of the text, without measured times."""
    lines = [re.sub(r"[\d.]+ (?:µs|ms|s)\b", "TIME", line.rstrip()) for line in text.strip().splitlines()]
    return [line for line in lines if not line.startswith("OK      latency")]


@pytest.mark.parametrize(("number", "name"), [(0, "cheatable"), (1, "repaired")])
def test_the_page_shows_the_files(number, name):
    assert block("python", number) == (ROOT / "docs" / "audit" / f"{name}.py").read_text(encoding="utf-8").strip()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name", "code"), [(0, "cheatable", 1), (1, "repaired", 0)])
def test_the_page_shows_the_output(number, name, code, capsys, patient):
    if not GSM8K.exists():
        pytest.skip(f"needs {GSM8K}")
    reward = f"{ROOT / 'docs' / 'audit' / name}.py:grade"
    assert run(["reward", "audit", reward, "--data", str(GSM8K)]) == code
    assert stable(capsys.readouterr().out) == stable(block("text", number))


@catalogue("check", CHECKS, ids=[check.name for check in CHECKS])
def test_the_page_has_every_check_with_its_limit(check):
    assert f"| `{check.name}` | {check.asks} | {check.limit()} |" in PAGE
