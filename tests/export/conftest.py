"""Runs of every kind, each trained once in seconds, and exports that several tests share."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.processes import run_script
from tests.tiny import tiny_model, write_prompts

import posttrain
from posttrain.export import Exported, api, export

FORKED = SimpleNamespace(run=run_script)
"""Replaces the module subprocess: a replay is forked from a process that has imported transformers already."""

SHARED = Path(__file__).parents[3] / "shared" / "data" / "models"


def shared(name: str) -> Path:
    """A small pretrained model; the test is skipped if it is missing."""
    if not (SHARED / name).is_dir():
        pytest.skip(f"needs the pretrained model {name} in ../shared/data/models")
    return SHARED / name


@pytest.fixture(scope="session")
def workshop(tmp_path_factory) -> Path:
    """A folder with a tiny model and data of each kind."""
    folder = tmp_path_factory.mktemp("workshop").resolve()
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=24)
    dice = random.Random(0)

    def word() -> str:
        return "".join(dice.choices("abcde", k=dice.randint(2, 5)))

    def rows(make: Any) -> str:
        return "".join(json.dumps(make()) + "\n" for _ in range(24))

    (folder / "examples.jsonl").write_text(rows(lambda: {"prompt": word(), "completion": word()}))
    (folder / "texts.jsonl").write_text(rows(lambda: {"text": word() + word()}))
    (folder / "pairs.jsonl").write_text(rows(lambda: {"prompt": word(), "chosen": word(), "rejected": word() + "e"}))
    (folder / "labels.jsonl").write_text(
        rows(lambda: {"prompt": word(), "completion": word(), "label": dice.random() < 0.5})
    )
    (folder / "rewards.py").write_text(
        "def vowels(completions, **columns):\n    return [sum(c in 'aeiou' for c in t) / 8 for t in completions]\n"
    )
    return folder


def settings(folder: Path, algorithm: str, data: str, **changes: Any) -> dict[str, Any]:
    return {
        "model": str(folder / "model"),
        "algorithm": algorithm,
        "data": {"train": str(folder / data), "eval_fraction": 0.25},
        "train": {"steps": 2, "prompts_per_step": 4, "learning_rate": 1e-2},
        "evaluation": {"writing": 0, "samples": 0, "prompts": 6},
        "guards": {"max_truncated": 1.0},
        "report": False,
        **changes,
    }


KINDS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "full": ("grpo", "prompts.jsonl", {}),
    "lora": ("grpo", "prompts.jsonl", {"lora": {"rank": 4}}),
    "stopping": ("grpo", "prompts.jsonl", {"sampling": {"stop": ["zz", *"abcdefghijklm"]}}),
    "sft": ("sft", "examples.jsonl", {}),
    "texts": ("sft", "texts.jsonl", {}),
    "pairs": ("dpo", "pairs.jsonl", {}),
    "labels": ("kto", "labels.jsonl", {}),
    "reward_model": ("reward_model", "pairs.jsonl", {}),
}


QUICK = ("full", "lora", "reward_model")
"""The kinds that quick tests export."""


@pytest.fixture(autouse=True)
def replays_are_forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork replays in quick tests: the work is the same, and a new interpreter takes seconds to import transformers."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(api, "subprocess", FORKED)


def kinds(names: Iterable[str]) -> list[Any]:
    """These kinds as parameters of a test; kinds that are not quick are marked as slow."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


class Runs:
    """Trains and exports each kind of run when it is first requested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exported: dict[str, Exported] = {}

    def run(self, kind: str) -> Path:
        place = self.folder / f"run-{kind}"
        if not place.exists():
            algorithm, data, changes = KINDS[kind]
            if algorithm == "grpo":
                changes = changes | {
                    "rewards": [{"function": f"{self.folder / 'rewards.py'}:vowels", "label": "vowels"}],
                    "sampling": {"group_size": 4, "max_completion_length": 8, **changes.get("sampling", {})},
                }
            posttrain.train(settings(self.folder, algorithm, data, **changes, output=str(place)))
        return place

    def export(self, kind: str) -> Exported:
        if kind not in self.exported:
            self.exported[kind] = export(self.run(kind), self.folder / f"exported-{kind}", max_new_tokens=8)
        return self.exported[kind]


@pytest.fixture(scope="session")
def runs(workshop: Path) -> Runs:
    return Runs(workshop)
