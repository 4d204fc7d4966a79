"""docs/first-model.md shows the files that `posttrain init` writes, and its commands lead to a better model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.strangers_path import FIRST_MODEL, START, commands, follow
from tests.test_docs import blocks

from posttrain.lab.init import make_example

DOWNLOAD = "pip download"


def test_the_files_on_the_page_are_those_that_init_writes(tmp_path):
    make_example("siblings", "HuggingFaceTB/SmolLM2-135M-Instruct", tmp_path)
    written = {name: (tmp_path / name).read_text() for name in ("sft.yaml", "grpo.yaml", "reward.py")}
    written["sft.yaml"] = written["sft.yaml"].replace("HuggingFaceTB/SmolLM2-135M-Instruct", "/home/you/smollm2")
    shown = blocks(FIRST_MODEL, "yaml") + blocks(FIRST_MODEL, "python")
    assert sorted(shown) == sorted(written.values())


def test_the_counts_on_the_page_are_those_of_the_files(tmp_path):
    make_example("siblings", "HuggingFaceTB/SmolLM2-135M-Instruct", tmp_path)
    page = FIRST_MODEL.read_text(encoding="utf-8")
    rows = {path.name: len(path.read_text().splitlines()) for path in tmp_path.glob("*.jsonl")}
    for name in ("train.jsonl", "eval.jsonl", "sft.jsonl", "sft_eval.jsonl", "plain.jsonl", "others.jsonl"):
        (line,) = [line for line in page.splitlines() if line.startswith("| `") and f"`{name}`" in line.split("|")[1]]
        assert str(rows[name]) in re.findall(r"\d+", line), name


def test_the_commands_of_a_page_are_found_in_their_order():
    assert commands(START, until="posttrain demo")[0] == "pip install posttrain"
    assert commands(START, until="posttrain demo")[-1] == "posttrain demo"
    verbs = [" ".join(line.split()[:2]) for line in commands(FIRST_MODEL)]
    trained = [place for place, verb in enumerate(verbs) if verb == "posttrain train"]
    assert verbs[0] == "pip install"
    assert len(trained) == 2
    assert trained[0] < verbs.index("posttrain reward") < trained[1] < verbs.index("posttrain eval")


def test_commands_are_followed_in_one_shell_and_the_first_that_fails_ends_it(tmp_path):
    lines = ["mkdir inner", "cd inner", "pwd", "echo $HOME"]
    timed = list(follow(lines, tmp_path, {"PATH": os.defpath, "HOME": "/nowhere"}))
    assert [one.command for one in timed] == lines
    assert timed[2].output.strip() == str(tmp_path / "inner")
    assert timed[3].output.strip() == "/nowhere"
    with pytest.raises(SystemExit, match="exit code 3 of sh -c 'echo oh; exit 3'\noh"):
        list(follow(["true", "sh -c 'echo oh; exit 3'", "touch after"], tmp_path, {"PATH": os.defpath}))
    assert not (tmp_path / "after").exists()


@pytest.mark.slow
def test_the_path_of_the_page_ends_in_a_better_model(tmp_path):
    pytest.importorskip("gguf", reason="needs the package gguf: pip install 'posttrain[gguf]'")
    lines = commands(FIRST_MODEL)[1:]
    (download,) = [line for line in lines if line.startswith(DOWNLOAD)]
    had = subprocess.run(
        [sys.executable, "-m", *download.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if had.returncode != 0:
        pytest.skip(f"{download}: {had.stderr.strip().splitlines()[-1]}")
    bin = tmp_path / "bin"
    bin.mkdir()
    for name, begin in {"python": "", "pip": "-m pip", "posttrain": "-m posttrain"}.items():
        (bin / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {begin} "$@"\n')
        (bin / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    said = {one.command: one.output for one in follow(lines, tmp_path, environment)}
    assert "The model improved, and on other prompts it stays within the bound." in said["posttrain train grpo.yaml"]
    assert Path(tmp_path / "siblings/runs/grpo/report.html").exists()
