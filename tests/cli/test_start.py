"""Quick commands import nothing heavy, and the shell completion knows verbs, algorithms and settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_commands import VERBS

import posttrain

HEAVY = ("torch._C", "transformers", "datasets", "peft", "pyarrow", "optuna", "sympy", "numpy", "plotly")
CONFIG = "model: tiny:copy\nalgorithm: grpo\ndata: {train: task:copy}\nrewards: [exact_match]\ntrain: {steps: 1}\n"
QUICK = (
    *("--version", "--help", *(f"{verb} --help" for verb in VERBS)),
    *("explain grpo", "explain dpo", "explain correction", "explain"),
)
REFUSED = (
    *(f"train {name}.yaml" for name in ("key", "rule", "names", "nothing", "stages", "missing")),
    "train run.yaml train.stesp=2",
    "explain grop",
)
CODES = dict.fromkeys((*QUICK, "train run.yaml --dry-run"), 0) | dict.fromkeys(REFUSED, 2)
COMPLETED = {
    "expl": ["explain", "explore"],
    "explain gs": ["gspo", "gspo_token"],
    "advise --da": ["--data"],
    "train run.yaml train.learn": ["train.learning_rate="],
    "train run.yaml algorithm.clip": ["algorithm.clip_low=", "algorithm.clip_high="],
    "train run.yaml --dr": ["--dry-run"],
}
OF_ANY_ALGORITHM = "train missing.yaml algorithm."
LOOK = f"""
import contextlib, io, json, os, sys
from posttrain.cli import main, run

def loaded(names):
    return [name for name in names if name in sys.modules]

def completed(words):
    sys.argv = ["posttrain"]
    os.environ |= {{"COMP_WORDS": f"posttrain {{words}}", "COMP_CWORD": str(words.count(" ") + 1)}}
    os.environ["_POSTTRAIN_COMPLETE"] = "complete_bash"
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), contextlib.suppress(SystemExit):
        main()
    del os.environ["_POSTTRAIN_COMPLETE"]
    assert errors.getvalue() == ""
    return out.getvalue().split()

commands, (first, *others) = map(json.loads, sys.argv[1:])
offered = [completed(first)]
after_first = loaded(("posttrain.config",))
after = {{}}
for arguments in commands:
    code = run(arguments)
    heavy = {HEAVY!r} + (("posttrain.config",) if arguments == ["--help"] else ())
    after[" ".join(arguments)] = [code, loaded(heavy)]
offered += map(completed, others)
import posttrain.config.page
found = {{"after": after, "offered": offered, "after first": after_first, "at the end": loaded({HEAVY!r})}}
json.dump(found, open(os.environ["FOUND"], "w"))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process imported and offered that completed a verb, ran all commands, and completed other words."""
    place: Path = tmp_path_factory.mktemp("start")
    (place / "run.yaml").write_text(CONFIG)
    for name, wrong in {"key": "sead: 1\n", "rule": "sampling: {group_size: 1}\n"}.items():
        (place / f"{name}.yaml").write_text(CONFIG + wrong)
    (place / "names.yaml").write_text(CONFIG.replace("exact_match", "exact_mtach"))
    (place / "nothing.yaml").write_text(CONFIG.replace("grpo", "grop"))
    (place / "stages.yaml").write_text("model: tiny:copy\nstages: [{algorithm: sft}, {algorithm: dpo}]\n")
    asked = [[words.split() for words in CODES], [*COMPLETED, OF_ANY_ALGORITHM]]
    environment = {**os.environ, "FOUND": str(place / "found.json")}
    code = [sys.executable, "-c", LOOK, *map(json.dumps, asked)]
    subprocess.run(code, cwd=place, env=environment, check=True, capture_output=True)
    return json.loads((place / "found.json").read_text())


def test_help_explanations_and_the_check_of_a_config_load_nothing_heavy(found):
    assert found["after"] == {words: [code, []] for words, code in CODES.items()}


def test_the_version_is_said(capsys):
    from posttrain.cli import run

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"posttrain {posttrain.__version__}\n"


def test_the_shell_completes_verbs_algorithms_and_settings(found):
    *offered, of_any_algorithm = found["offered"]
    assert offered == list(COMPLETED.values())
    assert "algorithm.gae_lambda=" in of_any_algorithm
    assert found["after first"] == [], "a verb is completed without the configuration"
    assert found["at the end"] == []
