"""Quick commands import nothing heavy, and the shell completion knows verbs, algorithms and settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.cli.test_commands import VERBS

import posttrain

HEAVY = ("torch._C", "transformers", "datasets", "peft", "pyarrow", "optuna", "sympy", "numpy", "plotly")
CONFIG = "model: tiny:copy\nalgorithm: grpo\ndata: {train: task:copy}\nrewards: [exact_match]\ntrain: {steps: 1}\n"
LOOK = f"""
import json, os, sys
from posttrain.cli import run
loaded = {{}}
for arguments in json.loads(sys.argv[1]):
    code = run(arguments)
    heavy = {HEAVY!r} + (("posttrain.config",) if arguments == ["--help"] else ())
    loaded[" ".join(arguments)] = [code, [name for name in heavy if name in sys.modules]]
json.dump(loaded, open(os.environ["FOUND"], "w"))
"""


def test_help_explanations_and_the_check_of_a_config_load_nothing_heavy(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    for name, wrong in {"key": "sead: 1\n", "rule": "sampling: {group_size: 1}\n"}.items():
        (tmp_path / f"{name}.yaml").write_text(CONFIG + wrong)
    (tmp_path / "names.yaml").write_text(CONFIG.replace("exact_match", "exact_mtach"))
    (tmp_path / "nothing.yaml").write_text(CONFIG.replace("grpo", "grop"))
    (tmp_path / "stages.yaml").write_text("model: tiny:copy\nstages: [{algorithm: sft}, {algorithm: dpo}]\n")
    helps = [f"{verb} --help" for verb in VERBS]
    quick = ("--version", "--help", *helps, "explain grpo", "explain dpo", "explain correction", "explain")
    refused = (
        *(f"train {name}.yaml" for name in ("key", "rule", "names", "nothing", "stages", "missing")),
        "train run.yaml train.stesp=2",
        "explain grop",
    )
    codes = dict.fromkeys((*quick, "train run.yaml --dry-run"), 0) | dict.fromkeys(refused, 2)
    asked = json.dumps([words.split() for words in codes])
    found = tmp_path / "found.json"
    environment = {**os.environ, "FOUND": str(found)}
    subprocess.run([sys.executable, "-c", LOOK, asked], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert json.loads(found.read_text()) == {words: [code, []] for words, code in codes.items()}


def test_the_version_is_said(capsys):
    from posttrain.cli import run

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"posttrain {posttrain.__version__}\n"


COMPLETE = f"""
import contextlib, io, json, os, sys
from posttrain.cli import main
asked, sys.argv = json.loads(sys.argv[1]), ["posttrain"]
found = []
for words in asked:
    os.environ |= {{"COMP_WORDS": f"posttrain {{words}}", "COMP_CWORD": str(words.count(" ") + 1)}}
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    found.append(out.getvalue().split())
    assert len(found) > 1 or "posttrain.config" not in sys.modules
assert not [name for name in {HEAVY!r} if name in sys.modules]
print(json.dumps(found))
"""


def completed(asked: list[str], place: Path) -> list[list[str]]:
    """Return the completions that bash receives for the last word of each line."""
    environment = {**os.environ, "_POSTTRAIN_COMPLETE": "complete_bash"}
    code = [sys.executable, "-c", COMPLETE, json.dumps(asked)]
    done = subprocess.run(code, cwd=place, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_the_shell_completes_verbs_algorithms_and_settings(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    expected = {
        "expl": ["explain", "explore"],
        "explain gs": ["gspo", "gspo_token"],
        "advise --da": ["--data"],
        "train run.yaml train.learn": ["train.learning_rate="],
        "train run.yaml algorithm.clip": ["algorithm.clip_low=", "algorithm.clip_high="],
        "train run.yaml --dr": ["--dry-run"],
    }
    *found, of_any_algorithm = completed([*expected, "train missing.yaml algorithm."], tmp_path)
    assert found == list(expected.values())
    assert "algorithm.gae_lambda=" in of_any_algorithm
