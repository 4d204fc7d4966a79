"""A folder appears complete or not at all, and an earlier folder is lost only to its replacement."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from posttrain.errors import ConfigError, ExportError
from posttrain.export import export
from posttrain.export.target import clean, written_whole


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An earlier export."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("earlier")
    return out


def dead() -> int:
    """The id of a process that has ended."""
    done = subprocess.Popen(["true"])
    done.wait()
    return done.pid


def test_the_new_folder_takes_the_place_of_the_earlier_one(out: Path):
    with written_whole(out, size=0) as aside:
        (aside / "config.json").write_text("new")
    assert (out / "config.json").read_text() == "new"
    assert list(out.parent.iterdir()) == [out]


def test_an_earlier_export_comes_back_when_the_new_one_cannot_take_its_place(out: Path, monkeypatch):
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if target == out and not source.name.endswith("-old"):
            raise OSError(13, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(ExportError, match="could not be written"), written_whole(out, size=0) as aside:
        (aside / "config.json").write_text("new")
    assert (out / "config.json").read_text() == "earlier"
    assert list(out.parent.iterdir()) == [out]


def test_an_earlier_export_that_a_kill_left_aside_is_put_back(out: Path):
    number = dead()
    out.rename(out.with_name(f".out.tmp-{number}-old"))
    out.with_name(f".out.tmp-{number}").mkdir()
    clean(out)
    assert (out / "config.json").read_text() == "earlier"
    assert list(out.parent.iterdir()) == [out]


def test_one_that_was_replaced_before_the_kill_is_removed(out: Path):
    old = out.with_name(f".out.tmp-{dead()}-old")
    old.mkdir()
    clean(out)
    assert list(out.parent.iterdir()) == [out]


def test_what_a_living_process_is_writing_stays(out: Path):
    aside = out.with_name(f".out.tmp-{os.getpid()}")
    aside.mkdir()
    clean(out)
    assert aside.is_dir()


def test_a_later_process_with_the_number_of_the_killed_one_is_not_taken_for_it(out: Path, monkeypatch):
    """In containers, which share process ids, a killed export's files would otherwise remain and make the next one
    fail."""
    out.rename(out.with_name(f".out.tmp-{os.getpid()}-old"))
    out.with_name(f".out.tmp-{os.getpid()}").mkdir()
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: time.time() + 60)
    clean(out)
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("name", ["out.gguf", "model.safetensors", "deep/er/pytorch_model.bin"])
@pytest.mark.parametrize("to", ["hf", "gguf"])
def test_a_name_of_a_file_becomes_no_folder(tmp_path: Path, name: str, to):
    with pytest.raises(ConfigError, match="names a file"):
        export(tmp_path / "run", tmp_path / name, to=to)
    assert not (tmp_path / name).exists()
