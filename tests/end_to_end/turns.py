"""Parts of runs with turns for the table of settings: a model that ends turns and calls tools, and environments."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.episodes.talkers import ASKERS, TEMPLATE, WORLDS, talker

TALKER: Mapping[str, Any] = {
    "model": {"path": "talker", "device": "cpu"},
    "data.train": "guesses.jsonl",
    "rewards": [{"function": "rewards.py:length"}],
    "sampling.max_completion_length": 30,
}
TURNS = {**TALKER, "environment": {"function": "worlds.py:Says"}}
CALLS = {
    **TALKER,
    "model": {"path": "deep_talker", "device": "cpu"},
    "tools": ["worlds.py:look"],
    "train.prompts_per_step": 8,
}
ENVIRONMENT = {
    name: {**TALKER, "environment": {"function": f"worlds.py:{world}", **settings}}
    for name, world, settings in (
        ("slow", "Guess", {"settings": {"pause": 0.5}, "attempts": 1}),
        ("broken", "Broken", {}),
        ("keep", "Says", {"history": "keep"}),
    )
}
PAID = {**TALKER, "environment": {"function": "paying.py:Pays"}, "rewards": [{"name": "environment"}]}
REWRITES = {**ENVIRONMENT["keep"], "model": {"path": "talker", "device": "cpu", "chat_template": "rewrites.jinja"}}

AGENT = {
    name: {**TALKER, "agent": settings}
    for name, settings in {
        "talks": {"function": "askers.py:talks"},
        "program": {"command": [sys.executable, "askers.py"]},
        "slow": {"function": "askers.py:talks", "settings": {"pause": 1.0}, "attempts": 1},
        "breaks": {"function": "askers.py:breaks"},
        "cold": {"function": "askers.py:talks", "settings": {"temperature": 0.5}, "attempts": 1},
        "keep": {"function": "askers.py:talks", "history": "keep"},
    }.items()
}
AGENT["keep"] |= {"model": REWRITES["model"]}


def write_turns(folder: Path) -> None:
    """Write the files that these settings name."""
    talker(folder / "talker", layers=1)
    talker(folder / "deep_talker")  # it calls tools
    shutil.copy(WORLDS, folder / "worlds.py")
    shutil.copy(Path(WORLDS).with_name("paying.py"), folder / "paying.py")
    shutil.copy(ASKERS, folder / "askers.py")
    more = "{{ 'b ' if m.role == 'assistant' and not loop.last else '' }}{{ m.content }}"
    (folder / "rewrites.jinja").write_text(TEMPLATE.replace("{{ m.content }}", more))
    rows = [{"prompt": letter, "secret": letter} for letter in "abcdefgh" * 3]
    (folder / "guesses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
