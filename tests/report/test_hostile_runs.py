"""Run folders that attack their reader in every way a folder can: each is reported as odd, and the others are shown."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.report.synthetic_run import write_run
from tests.report.test_dashboard import start

from posttrain.report.page import render
from posttrain.report.store import read_run

FILES = (
    "config.yaml",
    "metrics.jsonl",
    "events.jsonl",
    "evaluation.json",
    "error.json",
    "rollouts/step-000060.parquet",
)
DEEP = "[" * 200_000
ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))


def pipe(file: Path) -> None:
    os.mkfifo(file)


def listening(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(file.parent)  # socket names must be short
        made.bind(file.name)
        os.chdir(here)


def huge(file: Path) -> None:
    with file.open("wb") as made:
        made.truncate(50 << 30)


def bomb(file: Path) -> None:
    """Write five million rows that share one text."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000_000, pa.int32()), ["x" * 10_000])
    with parquet.ParquetWriter(file, pa.schema({"prompt": text.type, "completion": text.type})) as out:
        for _ in range(5):
            out.write_table(pa.table({"prompt": text, "completion": text}))


def one_great_value(file: Path) -> None:
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), ["x" * 70_000_000])
    parquet.write_table(pa.table({"prompt": text, "completion": text}), file, compression="zstd")


MAKE: dict[str, Callable[[Path], object]] = {
    "pipe": pipe,
    "socket": listening,
    "huge": huge,
    "folder": lambda file: file.mkdir(),
    "nothing": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(10_000)),
    "deep": lambda file: file.write_text(DEEP),
    "deep object": lambda file: file.write_text('{"a":' * 200_000),
    "loop": lambda file: file.symlink_to(file.name),
    "link": lambda file: file.symlink_to("/etc/passwd"),
}
ODD: dict[str, tuple[str, Callable[[Path], object]]] = {
    "aliases": ("config.yaml", lambda file: file.write_text(f"{ALIASES}model: {{path: *a29}}\n")),
    "deep yaml": ("config.yaml", lambda file: file.write_text("a: " + "{a: " * 100_000)),
    "large numbers": (
        "metrics.jsonl",
        lambda file: file.write_text(
            "".join(json.dumps({"step": n, "reward": 1e308 * (-1) ** n, "loss": 1e308}) + "\n" for n in range(50))
        ),
    ),
    "digits": ("metrics.jsonl", lambda file: file.write_text('{"step": 1, "reward": ' + "9" * 6000 + "}\n")),
    "not a number": ("evaluation.json", lambda file: file.write_text('{"baseline": {"greedy": NaN}}')),
    "parquet bomb": ("rollouts/step-000060.parquet", bomb),
    "one great value": ("rollouts/step-000060.parquet", one_great_value),
    "tokenizer": (
        "checkpoints/step-000060/model/tokenizer.json",
        lambda file: file.write_text('{"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}'),
    ),
    "names": ("config.yaml", lambda file: file.write_text('model: {path: "\\0\\e[2J"}\n')),
}


Cases = dict[str, tuple[str, Callable[[Path], object]]]
QUICK = tuple(file for file in FILES if file != "error.json")
"""The files that `make test` attacks: error.json is read as evaluation.json is."""


@pytest.fixture(scope="module", params=[QUICK, pytest.param(FILES, marks=pytest.mark.slow)], ids=["quick", "all"])
def cases(request: pytest.FixtureRequest) -> Cases:
    made = {f"{file.replace('/', ' ')} {name}": (file, make) for file in request.param for name, make in MAKE.items()}
    return made | ODD


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, cases: Cases) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    write_run(folder / "sound")
    for name, (file, make) in cases.items():
        path = write_run(folder / name) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)
    return folder


@pytest.mark.slow
def test_each_is_shown_as_what_it_is_and_hides_no_other(hostile, cases):
    process, server = start(str(hostile), cwd=hostile)
    browser = server.enter()
    try:
        begun = time.monotonic()
        found = {run["name"]: run for run in json.loads(browser.ask("/api/runs")[2])["runs"]}
        assert time.monotonic() - begun < 120
        runs = [name for name in cases if (hostile / name / "config.yaml").is_file() or "link" not in name]
        assert found["sound"]["newest"]["mean"] == pytest.approx(0.953125)
        needed = ("config.yaml", "events.jsonl")  # a folder without these files is no run
        no_run = {name for name in runs if not all((hostile / name / file).is_file() for file in needed)}
        assert set(runs) - set(found) == no_run
        odd = [name for name in ODD if name in found]
        for name in ("sound", *odd):
            for page in ("report.html", "rollouts", "rollouts?step=60"):
                status, _, text = browser.ask(f"/runs/{quote(name)}/{page}")
                assert status in (200, 500), (name, page)
                assert "root:x:" not in text
        status, _, text = browser.ask("/")
        assert status == 200
        assert "95%" in text
        assert browser.ask("/runs/sound/report.html")[0] == 200
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_a_report_of_any_of_them_is_written_in_bounded_time(hostile, cases):
    """A report that a run writes at its end must not be able to stop it."""
    begun = time.monotonic()
    for name in cases:
        run = read_run(hostile / name)
        page = render(run)
        assert "root:x:" not in page, name
        if name != "names":
            assert run.notes or "nothing" in name or name in ("tokenizer", "parquet bomb", "one great value"), name
    assert time.monotonic() - begun < 120
